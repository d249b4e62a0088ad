"""Write findings down: as text for people, as JSON for programs, as SARIF for code hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import attrs

from harness._version import __version__
from harness.testing.audit._finding import Finding, Rule

Format: TypeAlias = Literal["text", "json", "sarif"]

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def report(
    findings: Sequence[Finding],
    format: Format,
    rules: Sequence[Rule],
    known: int = 0,
    hidden: int = 0,
) -> str:
    """Return the findings in a format; ends with a line break.

    Args:
      findings: What was found, in the order to show.
      format: ``"text"``, ``"json"`` or ``"sarif"``.
      rules: Every rule that was looked for; SARIF lists them.
      known: How many findings a baseline left out; text says so.
      hidden: How many maybes were left out; text says so.

    Raises:
      ValueError: if ``format`` is none of these.
    """
    if format == "text":
        return _text(findings, known, hidden)
    if format == "json":
        return _json({"findings": [attrs.asdict(finding) for finding in findings]})
    if format == "sarif":
        return _json(_sarif(findings, rules))
    raise ValueError(f"format={format!r} is not one of 'text', 'json', 'sarif'")


def _text(findings: Sequence[Finding], known: int, hidden: int) -> str:
    left_out = f"; {known:,} more in the baseline" if known else ""
    left_out += f"; {hidden:,} more with --all" if hidden else ""
    if not findings:
        return f"nothing {'new' if known else 'found'}{left_out}\n"
    lines: list[str] = []
    explained: set[str] = set()
    for finding in findings:
        lines.append(str(finding))
        if finding.rule not in explained:  # Once is enough in a long report.
            explained.add(finding.rule)
            lines += [f"    why: {finding.why}", f"    fix: {finding.fix}"]
    files = len({finding.path for finding in findings})
    lines.append("")
    lines.append(
        f"{len(findings):,} {'finding' if len(findings) == 1 else 'findings'} "
        f"in {files:,} {'file' if files == 1 else 'files'}; "
        f"if one is shared on purpose, say so: # harness: shared (reason){left_out}"
    )
    return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _sarif(findings: Sequence[Finding], rules: Sequence[Rule]) -> dict[str, Any]:
    places = {rule.name: place for place, rule in enumerate(rules)}
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "harness audit",
                        "semanticVersion": __version__,
                        "rules": [
                            {
                                "id": rule.name,
                                "shortDescription": {"text": rule.title},
                                "fullDescription": {"text": rule.why},
                                "help": {"text": rule.fix},
                                "defaultConfiguration": {"level": "warning"},
                            }
                            for rule in rules
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    {
                        "ruleId": finding.rule,
                        "ruleIndex": places[finding.rule],
                        "level": "note" if finding.maybe else "warning",
                        "message": {"text": f"{finding.message}. {finding.fix}"},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": _uri(finding.path)},
                                    "region": {
                                        "startLine": finding.line,
                                        "startColumn": finding.column,
                                    },
                                },
                                "logicalLocations": [{"fullyQualifiedName": finding.symbol}],
                            }
                        ],
                    }
                    for finding in findings
                ],
            }
        ],
    }


def _uri(path: str) -> str:
    pure = PurePath(path)
    # As `as_uri` does it: a file's name may be no text.
    return pure.as_uri() if pure.is_absolute() else quote(os.fsencode(pure.as_posix()))
