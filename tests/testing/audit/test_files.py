"""Which files are read, what silences a finding, and that nothing is imported."""

import sys
from pathlib import Path

import pytest

import harness
from harness.testing.audit import RULES, audit_paths, audit_source
from harness.testing.audit._source_file import Source

WRONG = "MESSAGES = []\ndef remember(text):\n    MESSAGES.append(text)\n"


def test_files_are_never_imported(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text("raise SystemExit('imported')\n" + WRONG)
    assert [one.symbol for one in audit_paths([tmp_path])] == ["MESSAGES"]
    assert "bomb" not in sys.modules


def test_a_file_that_is_no_python_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n    pass\n")
    (tmp_path / "bytes.py").write_bytes(b"# \xff\xfe\nx = 1\n")
    (tmp_path / "null.py").write_bytes(b"x = '\x00'\n")
    (tmp_path / "wrong.py").write_text(WRONG)
    found = audit_paths([tmp_path])
    assert [(Path(one.path).name, one.rule) for one in found] == [
        ("broken.py", "unreadable-file"),
        ("bytes.py", "unreadable-file"),
        ("null.py", "unreadable-file"),
        ("wrong.py", "module-global"),
    ]
    assert found[0].line == 1
    assert all(one.line >= 1 and one.column >= 1 for one in found)


def test_a_file_in_another_encoding_is_read(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + WRONG.encode())
    assert len(audit_paths([tmp_path])) == 1


def test_hidden_and_installed_files_are_left_out_unless_they_are_named(tmp_path: Path) -> None:
    for folder in (".venv", "__pycache__", "site-packages", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "wrong.py").write_text(WRONG)
    found = audit_paths([tmp_path])
    assert [Path(one.path).parent.name for one in found] == ["src"]
    assert len(audit_paths([tmp_path / "site-packages"])) == 1
    assert len(audit_paths([tmp_path / ".venv" / "wrong.py"])) == 1


def test_what_a_command_line_keeps_is_of_the_one_who_types(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    for folder in (tmp_path, tmp_path / "cli"):
        (folder / "state.py").write_text(WRONG)
    (found,) = audit_paths([tmp_path])
    assert Path(found.path).parent == tmp_path


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    assert len(audit_paths([tmp_path, tmp_path / "wrong.py"])) == 1


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        audit_paths([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match="no Python file"):
        audit_paths([tmp_path])


# Silence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            WRONG.replace("[]", "[]  # harness: shared (an append-only log)"), id="definition"
        ),
        pytest.param(
            WRONG.rstrip("\n") + "  # harness: shared (an append-only log)\n", id="the line itself"
        ),
        pytest.param("# harness: shared (an append-only log)\n" + WRONG, id="above"),
        pytest.param(
            "# harness: shared (an append-only log)\n# of all.\n\n" + WRONG, id="far above"
        ),
    ],
)
def test_a_comment_with_a_reason_silences_one(text: str) -> None:
    assert audit_source(text) == []


def test_a_comment_silences_nothing_else() -> None:
    text = WRONG + WRONG.replace("MESSAGES", "OTHERS").replace("remember", "note")
    text = text.replace("MESSAGES = []", "MESSAGES = []  # harness: shared (a log)")
    assert [one.symbol for one in audit_source(text)] == ["OTHERS"]


@pytest.mark.parametrize(
    "comment", ["# harness: shared", "# harness: shared ()", "#harness:shared"]
)
def test_a_comment_without_a_reason_is_a_finding_and_silences_nothing(comment: str) -> None:
    found = audit_source(WRONG.replace("[]", f"[]  {comment}"))
    assert [one.rule for one in found] == ["silence-without-reason", "module-global"]
    assert (found[0].line, found[0].column) == (1, 16)


def test_a_string_is_no_comment() -> None:
    assert len(audit_source('"""\n# harness: shared (no)\n"""\n' + WRONG)) == 1


# This very project -------------------------------------------------------------------------------


@pytest.mark.long
def test_harness_itself_has_no_findings() -> None:
    package = Path(harness.__file__).parent
    found = audit_paths([package, package.parent / "harness_pytest"])
    assert [str(one) for one in found] == []


def test_every_rule_says_why_and_what_to_do() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) >= 11
    for rule in RULES:
        assert rule.title
        assert rule.why
        assert rule.fix


def test_no_more_files_are_parsed_at_a_time_than_a_rule_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Source] = []
    init = Source.__init__

    def remember(self: Source, text: str, path: str) -> None:
        init(self, text, path)
        made.append(self)

    monkeypatch.setattr(Source, "__init__", remember)
    for number in range(1, 21):
        (tmp_path / f"desk{number}.py").write_text(
            f"from desk{number - 1} import DESK{number - 1}\nclass Desk{number}:\n    pass\n"
            f"DESK{number} = Desk{number}()\nasync def ask():\n    return DESK{number - 1}.name\n"
        )
    parsed: list[int] = []
    audit_paths([tmp_path], tell=lambda *_: parsed.append(sum(one.is_parsed for one in made)))
    assert len(parsed) == 40
    assert max(parsed) <= 1
