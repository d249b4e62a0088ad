"""`Similar` joins values whose embeddings point nearly the same way, in any order of arrival."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from harness.fanin import Similar, merge
from tests.fanin.made_results import arrivals, values


def at(*degrees: float) -> list[list[float]]:
    """Return a vector in the plane for each angle."""
    return [[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees]


def by_angle(degrees: list[float]) -> list[list[float]]:
    return at(*degrees)


def sources(given: list[Any], similar: Similar) -> list[list[int]]:
    """Merge the values in every order, see that the answer is one, and return the indexes."""
    answers = []
    for order in arrivals(values(*given)):
        merged = merge(order, dedupe=similar)
        assert [one.value for one in merged] == [one.sources[0].value for one in merged]
        answers.append([[source.index for source in one.sources] for one in merged])
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def test_what_is_within_the_threshold_is_joined_and_keeps_its_sources() -> None:
    assert sources([0, 90, 5, 180, 92], Similar(by_angle, cosine(6))) == [[0, 2], [1, 4], [3]]


def test_a_chain_is_one_group_whatever_arrives_first() -> None:
    """The ends are 20 degrees apart, and each link 10: connected components join them all."""
    assert sources([0, 20, 10], Similar(by_angle, cosine(11))) == [[0, 1, 2]]
    assert sources([0, 20], Similar(by_angle, cosine(11))) == [[0], [1]]


def test_the_length_of_a_vector_says_nothing() -> None:
    vectors = {"short": [0.1, 0.0], "long": [70.0, 0.0], "other": [0.0, 3.0]}
    similar = Similar(lambda words: [vectors[word] for word in words], 1.0)
    assert sources(["short", "other", "long"], similar) == [[0, 2], [1]]


def test_at_a_threshold_of_one_the_same_direction_is_joined_in_spite_of_rounding() -> None:
    vector = [0.1, 0.7, 0.3333333]
    similar = Similar(lambda them: [[n * them[i] for n in vector] for i in range(len(them))], 1)
    assert sources([1.0, 3.0, 7.77], similar) == [[0, 1, 2]]


def test_a_vector_that_points_nowhere_is_like_nothing_but_its_own_text() -> None:
    """An embedding of words that a model doesn't know is all zeros; two such texts may differ."""
    similar = Similar(lambda words: [[0.0, 0.0] for _ in words], 0.1)
    assert sources(["qwx", "zzv", "qwx"], similar) == [[0, 2], [1]]


def test_equal_values_are_joined_whatever_their_embeddings() -> None:
    asked: list[list[str]] = []

    def embed(words: list[str]) -> list[list[float]]:
        asked.append(words)
        return at(*range(0, 90 * len(words), 90))

    assert sources(["a", "b", "a"], Similar(embed, 0.5)) == [[0, 2], [1]]
    assert set(map(tuple, asked)) == {("a", "b")}, "in input order, each once"


def test_the_groups_are_the_components_of_the_graph() -> None:
    """Against a plain search through random vectors."""
    rng = random.Random(5)
    points = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(60)]
    similar = Similar(lambda positions: [points[p] for p in positions], 0.93)
    unit = [[x / math.hypot(*p) for x in p] for p in points]
    near = [
        {j for j in range(60) if sum(map(float.__mul__, unit[i], unit[j])) >= 0.93}
        for i in range(60)
    ]
    expected, left = [], set(range(60))
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = set().union(*(near[i] for i in edge)) - group
        expected.append(sorted(group))
        left -= group
    assert similar.groups(list(range(60))) == expected
    assert 1 < len(expected) < 60


def test_an_embedder_of_one_value_at_a_time() -> None:
    similar = Similar(lambda degrees: at(degrees)[0], cosine(6), batch=False)
    assert sources([0, 90, 5], similar) == [[0, 2], [1]]


# Bad embedders -----------------------------------------------------------------------------------


async def async_embed(given: Any) -> Any:
    return at(*given)


@pytest.mark.parametrize(
    ("embed", "error", "words"),
    [
        (lambda given: [1.0, 2.0], TypeError, "a vector for each, not a list of 2 × float; if"),
        (lambda given: 7, TypeError, "must return a vector for each, not a int"),
        (lambda given: None, TypeError, "batch=False"),
        (lambda given: "abc", TypeError, "must return a vector for each, not a str"),
        (lambda given: at(0), ValueError, "with 2 values and returned 1 vectors"),
        (lambda given: at(0, 1, 2), ValueError, "with 2 values and returned 3 vectors"),
        (lambda given: [[1.0], [1.0, 2.0]], ValueError, "different lengths, 1 and 2"),
        (lambda given: [[], []], TypeError, "vector of numbers for each value, but returned a lis"),
        (lambda given: [["a"], ["b"]], TypeError, "vector of numbers for each value"),
        (lambda given: [[[1.0]], [[2.0]]], TypeError, "vector of numbers for each value"),
        (lambda given: [[math.nan], [1.0]], ValueError, "nan or infinity"),
        (lambda given: [[math.inf], [1.0]], ValueError, "nan or infinity"),
        (async_embed, TypeError, "takes a plain function, and this one is async"),
    ],
)
def test_an_embedder_of_the_wrong_shape_is_refused(
    embed: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        merge(values("a", "b"), dedupe=Similar(embed, 0.9))
    assert words in str(caught.value)


@pytest.mark.parametrize("wrong", [0, -0.5, 1.01, math.nan])
def test_a_threshold_that_is_no_similarity_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="cosine similarity above 0"):
        Similar(by_angle, wrong)


@pytest.mark.parametrize("wrong", ["0.9", None, True])
def test_a_threshold_that_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="threshold"):
        Similar(by_angle, wrong)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"write Similar\(model\.encode"):
        Similar("model")  # type: ignore[arg-type]


# Arrays and models -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_arrays_of_numpy_are_vectors(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    rows = {"a": [1, 0], "b": [0, 1], "c": [2, 0]}
    as_one = Similar(lambda words: numpy.array([rows[w] for w in words], dtype=kind), 0.99)
    as_list = Similar(lambda words: [numpy.array(rows[w], dtype=kind) for w in words], 0.99)
    as_numbers = Similar(lambda words: [list(numpy.array(rows[w], kind)) for w in words], 0.99)
    for similar in (as_one, as_list, as_numbers):
        assert sources(["a", "b", "c"], similar) == [[0, 2], [1]]
    flat = Similar(lambda words: numpy.array([1.0, 2.0]), 0.99)
    with pytest.raises(TypeError, match="batch=False"):
        merge(values("a", "b"), dedupe=flat)


def static_model(words: Sequence[str], vectors: Sequence[Sequence[float]]) -> Any:
    """Build a tiny static model of model2vec, with a vector for each word."""
    model2vec = pytest.importorskip("model2vec", reason="needs the extra: similar")
    numpy = pytest.importorskip("numpy")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocab=vocabulary, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rows = numpy.array([[0.0] * len(vectors[0]), *vectors], dtype="float32")
    return model2vec.StaticModel(vectors=rows, tokenizer=tokenizer)


def test_a_static_model_of_model2vec_is_an_embedder() -> None:
    """The choice that the docs recommend, on a model made here: weights can't be fetched."""
    words = ["late", "delayed", "parcel", "delivery", "card", "stolen"]
    vectors: list[list[float]] = [
        [1, 0, 0.1],
        [1, 0.1, 0],
        [0, 1, 0.1],
        [0.1, 1, 0],
        [-1, 0, 1],
        [-1, 0.2, 1],
    ]
    model = static_model(words, vectors)
    texts = ["parcel late", "card stolen", "delivery delayed", "late parcel", "stolen card"]
    assert sources(texts, Similar(model.encode, 0.95)) == [[0, 2, 3], [1, 4]]
