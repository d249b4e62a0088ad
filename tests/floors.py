"""Draw the floors of the package, as a table in docs/architecture.md.

A row per part: its floor, the first sentence of its docstring, and what it imports. The floors are
those that tests/test_layers.py holds the imports to; all else is read from the source files.

Run: python -m tests.floors
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from tests.test_layers import FLOORS, PACKAGE

PAGE = PACKAGE.parent / "docs" / "architecture.md"
BEGIN = "<!-- floors: written by `python -m tests.floors` -->"
END = "<!-- end of floors -->"


def summary_of(package: Path, part: str) -> str:
    """Return the first sentence of a part's docstring."""
    path = package / part
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).replace("``", "`").split(". ")[0].rstrip(".")


def imports_of_part(package: Path, part: str) -> set[str]:
    """Return the other parts that a part imports, wherever in its files it does."""
    path = package / part
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    modules: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == package.name:
                modules |= {f"{package.name}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module or "")
    return {name.split(".")[1] for name in modules if name.startswith(f"{package.name}.")} - {part}


def table(package: Path, floors: Mapping[str, int]) -> str:
    """Return the table, the highest floor first.

    The ground floor is imported by all others, so no row repeats it.
    """
    rows = ["| floor | part | what it is | imports, besides floor 0 |", "| --- | --- | --- | --- |"]
    for part in sorted(floors, key=lambda part: (-floors[part], part.lstrip("_"))):
        if not (package / part).is_dir() and not (package / part).with_suffix(".py").is_file():
            continue  # A floor may be laid before there is a house on it.
        below = sorted(
            (one for one in imports_of_part(package, part) if floors.get(one, 0) > 0),
            key=lambda one: (-floors[one], one),
        )
        names = ", ".join(f"`{one}`" for one in below)
        rows.append(f"| {floors[part]} | `{part}` | {summary_of(package, part)} | {names} |")
    return "\n".join(rows)


def with_table(page: str, drawn: str) -> str:
    """Return the page with this table between its two markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{drawn}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(
        with_table(PAGE.read_text(encoding="utf-8"), table(PACKAGE, FLOORS)), encoding="utf-8"
    )
