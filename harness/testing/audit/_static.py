"""Audit files by reading them: nothing is imported, nothing is run."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from harness.testing.audit._finding import Finding, Rule
from harness.testing.audit._rules import CHECKERS
from harness.testing.audit._rules._check_then_act import CHECK_THEN_ACT
from harness.testing.audit._silence import NO_REASON, Silence, silenced_lines, silences_in
from harness.testing.audit._source_file import FUNCTIONS, Source
from harness.testing.audit._sources import Hit, Sources

UNREADABLE = Rule(
    name="unreadable-file",
    title="a file that can't be read as Python",
    why="nothing in it was looked at",
    fix="mend the file, or leave it out of the paths",
)

RULES: tuple[Rule, ...] = (
    *dict.fromkeys(checker.rule for checker in CHECKERS),
    NO_REASON,
    UNREADABLE,
)
"""Every rule of the static audit."""

Tell: TypeAlias = Callable[[int, int], None]
"""Hears how far an audit has come: how many steps are done, and how many there are."""

_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "site-packages", "build", "dist"))


def audit_source(text: str, path: str = "<text>") -> list[Finding]:
    """Return what is worth a look in the text of one file.

    Args:
      text: The program.
      path: What findings call the file.
    """
    return _audit([(text, path)])


def audit_paths(
    paths: Iterable[str | os.PathLike[str]], *, tell: Tell | None = None
) -> list[Finding]:
    """Return what is worth a look in files, and in all Python files below folders.

    Files are read and never imported. Hidden folders, and those for caches, builds and installed
    packages, are left out, unless they are named. A file that can't be read is a finding.

    Args:
      paths: Files and folders.
      tell: Called with how many steps are done and how many there are, two for each file: one for
        reading it and one for the rules.

    Raises:
      FileNotFoundError: if a path doesn't exist, or a folder holds no Python file.
    """
    texts, broken = _texts_of(paths)
    return _in_order([*_audit(texts, tell), *broken])


def read_program(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[Sources, list[Finding]]:
    """Return the files, and a finding for each that can't be read.

    Raises:
      FileNotFoundError: as for `audit_paths`.
    """
    texts, broken = _texts_of(paths)
    program, not_python = _parsed(texts)
    return program, _in_order([*broken, *not_python])


def _texts_of(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[list[tuple[str, str]], list[Finding]]:
    texts: list[tuple[str, str]] = []
    broken: list[Finding] = []
    for path in python_files(paths):
        try:
            with tokenize.open(path) as file:
                texts.append((file.read(), str(path)))
        except (OSError, SyntaxError, UnicodeDecodeError, LookupError) as error:
            broken.append(_unreadable(str(path), 1, 1, str(error)))
    return texts, broken


def python_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files to read, each once, in order."""
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = list(_files_below(path))
            if not inside:
                raise FileNotFoundError(f"there is no Python file in the folder {str(path)!r}")
            found.update(dict.fromkeys(inside))
        elif path.is_file():
            found[path] = None
        else:
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    return list(found)


def _files_below(folder: Path) -> Iterator[Path]:
    for home, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and name not in _SKIPPED_FOLDERS
        )
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(home, name)


def _audit(texts: Sequence[tuple[str, str]], tell: Tell | None = None) -> list[Finding]:
    tell = _tell_nobody if tell is None else tell
    program, findings = _parsed(texts, tell)
    silenced: dict[Source, set[int]] = {}
    for source in program.sources:
        silences = silences_in(source.text) if "harness:" in source.text else []
        silenced[source] = silenced_lines(silences, source.text)
        findings += [_without_reason(source, one) for one in silences if not one.reason]
    seen: set[tuple[str, str, int, int, str]] = set()
    for done, source in enumerate(program.sources, len(texts)):
        tell(done, len(texts) + len(program.sources))
        for checker in CHECKERS:
            for hit in checker.check(source, program):
                home = hit.source or source
                finding = _finding(checker.rule, home, hit)
                # A class with an instance in each of two files is found from both, so keep one
                # finding per place. But one statement can set several attributes.
                attribute = finding.symbol.rpartition(".")[2]
                place = (finding.rule, finding.path, finding.line, finding.column, attribute)
                if place not in seen and not silenced[home] & set(_lines_of(hit)):
                    seen.add(place)
                    findings.append(finding)
        for one in program.sources:
            if one.is_parsed:
                one.forget()
    return _in_order(_one_for_each_decision(findings))


def _one_for_each_decision(findings: list[Finding]) -> list[Finding]:
    """Leave out a check-then-act on an attribute that another finding names in the same class.

    Keeping it per call, as the other one says, mends both.
    """
    named = {_decision(one) for one in findings if one.rule != CHECK_THEN_ACT.rule.name}
    return [
        one
        for one in findings
        if one.rule != CHECK_THEN_ACT.rule.name or _decision(one) not in named
    ]


def _decision(finding: Finding) -> tuple[str, str, str]:
    """Return the file, the class and the attribute that a finding is about."""
    owner = finding.function.rpartition(".")[0]
    return finding.path, owner, finding.symbol.rpartition(".")[2]


def _tell_nobody(done: int, steps: int) -> None: ...


def _parsed(
    texts: Sequence[tuple[str, str]], tell: Tell = _tell_nobody
) -> tuple[Sources, list[Finding]]:
    """Return the files that can be read, and a finding for each that can't."""
    program = Sources()
    findings: list[Finding] = []
    for done, (text, path) in enumerate(texts):
        tell(done, 2 * len(texts))
        try:
            program.add(source := Source(text, path))
            source.forget()
        except SyntaxError as error:
            findings.append(
                _unreadable(path, error.lineno or 1, error.offset or 1, error.msg or "not Python")
            )
        except (ValueError, RecursionError, MemoryError) as error:
            findings.append(_unreadable(path, 1, 1, str(error)))
    return program, findings


def _lines_of(hit: Hit) -> Iterator[int]:
    yield getattr(hit.node, "lineno", 1)
    yield hit.defined_at
    if isinstance(hit.node, ast.expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        yield hit.node.end_lineno or hit.node.lineno


def _finding(rule: Rule, source: Source, hit: Hit) -> Finding:
    function = hit.node if isinstance(hit.node, FUNCTIONS) else source.function_of(hit.node)
    return Finding(
        function="" if function is None else source.qualified_name(function),
        rule=rule.name,
        path=source.path,
        line=getattr(hit.node, "lineno", 1),
        column=getattr(hit.node, "col_offset", 0) + 1,
        symbol=hit.symbol,
        message=hit.message,
        why=rule.why,
        fix=rule.fix,
        maybe=hit.maybe,
    )


def _without_reason(source: Source, silence: Silence) -> Finding:
    return Finding(
        rule=NO_REASON.name,
        path=source.path,
        line=silence.line,
        column=silence.column,
        symbol="# harness: shared",
        message="the comment silences nothing, because it gives no reason in brackets",
        why=NO_REASON.why,
        fix=NO_REASON.fix,
    )


def _unreadable(path: str, line: int, column: int, what: str) -> Finding:
    return Finding(
        rule=UNREADABLE.name,
        path=path,
        line=line,
        column=max(column, 1),
        symbol=Path(path).name,
        message=f"the file can't be read as Python: {what}",
        why=UNREADABLE.why,
        fix=UNREADABLE.fix,
    )


def _in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (one.path, one.line, one.column, one.rule))
