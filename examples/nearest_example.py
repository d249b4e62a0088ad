"""Compare a text with examples that people have labelled.

`LabelledExamples` answers two questions about a text: which category it is like as a
whole (cheap: a few lookups per word), and which single examples are nearest (more
expensive: it looks at every example that shares a feature). Both are the cosine of
tf-idf vectors over words, pairs of words and pieces of words.

It learns when it is made and never changes afterwards, so any number of runs may
share it. The same examples in the same order give the same numbers on every
machine.
"""

import csv
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import attrs

CATEGORY_FIELDS = ("category", "label")
"""Where a record may say its category; the first field that it has counts."""

COMMON_SHARE = 0.1
COMMON_MINIMUM = 50
# `nearest` skips a feature that is in more than this share of the examples (but never
# one in fewer than the minimum): on 10,000 examples such features cost three quarters of
# the time, and add only two points of accuracy.

_WORD = re.compile(r"[^\W_]+")


@attrs.frozen(kw_only=True)
class Neighbour:
    """A labelled example, and how near to the question it is."""

    text: str
    category: str

    similarity: float
    """The cosine, from 0 (nothing shared) to 1 (the same text)."""


class LabelledExamples:
    """Texts with their categories, ready to be compared with.

    Args:
      examples: ``(text, category)`` pairs.

    Raises:
      ValueError: if there are no examples.
    """

    def __init__(self, examples: Sequence[tuple[str, str]]) -> None:
        if not examples:
            raise ValueError(
                "there are no labelled examples to compare with; give at least one (text, category)"
            )
        self._examples = tuple(examples)
        self._rarity = _rarity([text for text, _ in examples])
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._profiles: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for index, (text, category) in enumerate(examples):
            for feature, weight in self._vector(text).items():
                self._postings[feature].append((index, weight))
                self._profiles[feature][category] += weight
        squares: dict[str, float] = dict.fromkeys((category for _, category in examples), 0.0)
        for profile in self._profiles.values():
            for category, weight in profile.items():
                squares[category] += weight * weight
        self._profile_lengths = {category: math.sqrt(s) or 1.0 for category, s in squares.items()}

    @classmethod
    def from_csv(cls, path: Path) -> Self:
        """Read the examples from a CSV file with a ``text`` and a ``category`` column.

        Raises:
          OSError: if the file can't be read.
          ValueError: if a row has no text or no category, or there are no rows.
        """
        examples: list[tuple[str, str]] = []
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for row in reader:
                text, category = row.get("text"), category_of(row)
                if not text or not category:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: a labelled example needs a 'text' and a "
                        f"'category' (or 'label'), neither empty; the columns are "
                        f"{', '.join(map(repr, reader.fieldnames or []))}"
                    )
                examples.append((text, category))
        return cls(examples)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories, in the order of their first example."""
        return tuple(self._profile_lengths)

    def __len__(self) -> int:
        return len(self._examples)

    def category_similarities(self, text: str) -> dict[str, float]:
        """Return how much ``text`` is like each category as a whole, from 0 to 1."""
        similarities = dict.fromkeys(self._profile_lengths, 0.0)
        for feature, weight in self._vector(text).items():
            for category, profile_weight in self._profiles[feature].items():
                similarities[category] += weight * profile_weight
        return {
            category: similarity / self._profile_lengths[category]
            for category, similarity in similarities.items()
        }

    def nearest(self, text: str, count: int) -> list[Neighbour]:
        """Return the ``count`` examples nearest to ``text``, the nearest first.

        Fewer when fewer share anything with it. Of equally near ones the earlier
        example comes first.
        """
        common = max(COMMON_MINIMUM, int(COMMON_SHARE * len(self._examples)))
        # A list with a place for every example takes a third of the time of a dict, although
        # few places are used: the postings of 10,000 examples are long.
        similarities = [0.0] * len(self._examples)
        for feature, weight in self._vector(text).items():
            postings = self._postings[feature]
            if len(postings) <= common:
                for index, example_weight in postings:
                    similarities[index] += weight * example_weight
        best = heapq.nlargest(count, enumerate(similarities), key=itemgetter(1))
        return [
            Neighbour(
                text=self._examples[index][0],
                category=self._examples[index][1],
                similarity=similarity,
            )
            for index, similarity in best
            if similarity > 0
        ]

    def _vector(self, text: str) -> dict[str, float]:
        """Return the weights of the text's known features, at length 1 (or empty)."""
        weights = {
            feature: (1 + math.log(count)) * self._rarity[feature]
            for feature, count in Counter(features(text)).items()
            if feature in self._rarity
        }
        length = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {feature: weight / length for feature, weight in weights.items()}


def category_of(record: Mapping[str, Any]) -> str | None:
    """Return the category that a record states, or None when it states none."""
    stated = (record.get(field) for field in CATEGORY_FIELDS)
    # A number in a JSON record and the same number in a CSV file are the same category.
    return next((str(category) for category in stated if category not in (None, "")), None)


def features(text: str) -> list[str]:
    """Return the features of a text: words, pairs of words, pieces of three letters.

    The pieces make ``recharge`` and ``charged`` meet; the pairs keep ``not arrived``
    apart from ``arrived``.
    """
    words: list[str] = _WORD.findall(text.lower().replace("'", "").replace("’", ""))
    found = list(words)
    found += [f"{left} {right}" for left, right in zip(["^", *words], [*words, "$"], strict=True)]
    for word in words:
        padded = f"<{word}>"
        found += [padded[start : start + 3] for start in range(len(padded) - 2)]
    return found


def _rarity(texts: Sequence[str]) -> dict[str, float]:
    """Return a weight per feature, larger the fewer texts have it."""
    texts_with: Counter[str] = Counter()
    for text in texts:
        texts_with.update(set(features(text)))
    return {
        feature: math.log((len(texts) + 1) / (count + 0.5)) for feature, count in texts_with.items()
    }
