"""Make the tables of docs/comparison.md from the record."""

import ast
import re
from pathlib import Path
from typing import Any

from benchmarks.comparison._record import FOLDER, PLACES

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
TABLE = re.compile(r"<!-- table: (?P<name>[\w ]+) -->\n.*?<!-- end of table -->", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def code_lines(feature: str, place: str) -> int:
    """Return how many lines a program has, without its docstring, empty lines and comments."""
    tree = ast.parse((FOLDER / feature / f"{place}.py").read_text(encoding="utf-8"))
    tree.body = tree.body[1:]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


def of_feature(record: dict[str, Any], feature: str) -> str:
    """Return the table of a feature: a row for each place, with the lines of its program."""
    printed = record["programs"][feature]
    columns = list(dict.fromkeys(what for values in printed.values() for what in values))
    return table(
        ["", *columns, "lines"],
        [
            [
                PLACES[place][0],
                *(values.get(what, "–") for what in columns),
                str(code_lines(feature, place)),
            ]
            for place, values in printed.items()
        ],
    )


def of_figures(record: dict[str, Any]) -> str:
    """Return the table of figures: a row for each place."""
    figures = record["figures"]
    names = list(dict.fromkeys(name for values in figures.values() for name in values))
    return table(
        ["", *figures],
        [[name, *(values.get(name, "–") for values in figures.values())] for name in names],
    )


def of_versions(record: dict[str, Any]) -> str:
    """Return the table of versions."""
    return table(["", "version"], [[name, version] for name, version in record["versions"].items()])


def made(page: str, record: dict[str, Any]) -> str:
    """Return the page with each of its tables as the record has it."""

    def new(found: re.Match[str]) -> str:
        name = found["name"]
        if name == "figures":
            text = of_figures(record)
        elif name == "versions":
            text = of_versions(record)
        else:
            text = of_feature(record, name)
        return f"<!-- table: {name} -->\n\n{text}\n\n<!-- end of table -->"

    return TABLE.sub(new, page)
