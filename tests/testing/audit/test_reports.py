"""Findings as text, JSON and SARIF."""

import json

import pytest

from harness.testing.audit import RULES, Finding, audit_source, report

FOUND = audit_source(
    "HISTORY = []\nSEEN = set()\nasync def note(text):\n"
    "    HISTORY.append(text)\n    SEEN.add(text)\n    return HISTORY, SEEN\n",
    "src/a b.py",
)


def test_text_names_the_place_and_explains_a_rule_once() -> None:
    text = report(FOUND, "text", RULES)
    assert text.startswith("src/a b.py:4:5: module-global: HISTORY belongs to the module")
    assert text.count("    why: ") == text.count("    fix: ") == 1
    assert "2 findings in 1 file; " in text
    assert report([], "text", RULES) == "nothing found\n"


def test_json_has_exactly_the_promised_fields() -> None:
    given = json.loads(report(FOUND, "json", RULES))
    assert list(given) == ["findings"]
    assert [list(one) for one in given["findings"]] == 2 * [
        ["rule", "path", "line", "column", "symbol", "message", "why", "fix", "function", "maybe"]
    ]
    assert given["findings"][1]["symbol"] == "SEEN"
    assert (given["findings"][1]["line"], given["findings"][1]["column"]) == (5, 5)
    assert json.loads(report([], "json", RULES)) == {"findings": []}


def test_sarif_has_what_code_hosts_ask_for() -> None:
    sarif = json.loads(report(FOUND, "sarif", RULES))
    assert sarif["version"] == "2.1.0"
    assert sarif["$schema"].endswith("sarif-2.1.0.json")
    (run,) = sarif["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "harness audit"
    assert [rule["id"] for rule in driver["rules"]] == [rule.name for rule in RULES]
    for result, finding in zip(run["results"], FOUND, strict=True):
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding.rule
        assert finding.message in result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "src/a%20b.py"
        assert place["region"] == {"startLine": finding.line, "startColumn": finding.column}
        assert location["logicalLocations"] == [{"fullyQualifiedName": finding.symbol}]
    assert json.loads(report([], "sarif", RULES))["runs"][0]["results"] == []


def test_an_absolute_path_is_a_file_uri() -> None:
    finding = Finding(
        rule=RULES[0].name,
        path="/project/a.py",
        line=1,
        column=1,
        symbol="x",
        message="m",
        why="w",
        fix="f",
    )
    result = json.loads(report([finding], "sarif", RULES))["runs"][0]["results"][0]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///project/a.py"


def test_a_file_whose_name_is_no_text_is_reported_in_every_format() -> None:
    (finding, *_) = audit_source("X = []\ndef f(x):\n    X.append(x)\n", "odd\udcff.py")
    for form in ("text", "json", "sarif"):
        assert "odd" in report([finding], form, RULES)
    assert "odd%FF.py" in report([finding], "sarif", RULES)


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="'text', 'json', 'sarif'"):
        report([], "xml", RULES)  # type: ignore[arg-type]
