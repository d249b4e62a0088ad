"""Run the comparison: ``python -m benchmarks.comparison [run [WHAT ...] | figures | page]``.

``run`` runs the programs, and writes what they print into the record; ``figures`` measures, and
writes that; ``page`` writes the tables of docs/comparison.md. Without a word it does all of it.
`make compare` installs the peers into an environment of their own, and calls this there.
"""

import importlib.metadata
import platform
import sys

from benchmarks.comparison import _page, _record


def run(chosen: list[str]) -> None:
    """Run the programs of these features, or of one place: ``resume``, ``resume.on_dbos``."""
    record = _record.read() if _record.RECORD.exists() else {"versions": {}, "programs": {}}
    record["versions"] = {"Python": platform.python_version()} | {
        name: importlib.metadata.version(distribution)
        for name, _, distribution in _record.PLACES.values()
        if distribution
    }
    for feature in _record.FEATURES:
        printed = record["programs"].get(feature, {})
        for place in _record.programs(feature):
            if chosen and feature not in chosen and f"{feature}.{place}" not in chosen:
                continue
            print(f"{feature}, {_record.PLACES[place][0]}", flush=True)
            printed[place] = _record.run(feature, place)
            for what, value in printed[place].items():
                print(f"  {what}: {value}", flush=True)
            places = [place for place in _record.PLACES if place in printed]
            ran = record["programs"] | {feature: {place: printed[place] for place in places}}
            record["programs"] = {one: ran[one] for one in _record.FEATURES if one in ran}
            _record.write(record)


def figures() -> None:
    """Measure what costs what."""
    from benchmarks.comparison import _figures  # noqa: PLC0415 (it needs the peers)

    measured = _figures.all_figures()
    _record.write({**_record.read(), "figures": measured})


def page() -> None:
    """Write the tables of the page."""
    text = _page.PAGE.read_text(encoding="utf-8")
    _page.PAGE.write_text(_page.made(text, _record.read()), encoding="utf-8")


def main() -> None:
    """Do what the arguments say."""
    word, *chosen = sys.argv[1:] or ["all"]
    if word not in ("all", "run", "figures", "page"):
        sys.exit(__doc__)
    if word in ("all", "run"):
        run(chosen)
    if word in ("all", "figures"):
        figures()
    if word in ("all", "page"):
        page()


if __name__ == "__main__":
    main()
