"""``harness diff``: compare what became of two batches, item by item.

Both are read side by side, and an item is compared as soon as both have given it. Where they come
in about the same order, few wait for their counterpart. If more do, as when one was sorted, they go
into a temporary database on disk; so neither the size nor the order matters to the memory.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import Enum
from itertools import islice
from typing import Any, Final, Literal

import attrs
import click

from harness._is_journal import is_journal
from harness.cli._errors import EXIT_FAILED, EXIT_OK, InputError
from harness.cli._files import STANDARD_STREAM
from harness.cli._option_values import FILE
from harness.cli._recorded import RecordedResult, results_in
from harness.cli._shown import shown

Kind = Literal["new", "gone", "changed", "failed", "recovered", "slower", "dearer"]

KINDS: dict[Kind, str] = {
    "new": "new",
    "gone": "gone",
    "changed": "changed",
    "failed": "newly failed",
    "recovered": "recovered",
    "slower": "slower",
    "dearer": "dearer",
}
"""What can be said of an item, and in which words."""

PARTS_AT_MOST = 20
"""Parts of one value that are told; the rest are counted."""

FACTOR = 2.0
"""How many times as slow or as dear an item must be to be told, if no option says so."""

SLOWER_BY_SECONDS = 0.1
"""And by so much at least: among shorter times it is chance."""

WAITING_AT_MOST = 20_000
"""Items of each batch in memory that wait for their counterpart."""

_SHOWN = 80
_PER_TURN = 100


class _Missing(Enum):
    MISSING = "nothing"


MISSING: Final = _Missing.MISSING
"""Stands for a part or an item that isn't there."""


@attrs.frozen
class Difference:
    """What differs about one item."""

    kind: Kind
    key: str | int
    before: Any
    """What it was: a value, an error, a number of seconds, dollars or tokens."""
    after: Any
    part: str = ""
    """Which part of the value has changed, as ``.name[0]``; empty for all of it."""


@attrs.define
class Compared:
    """What the comparison came to."""

    before: int = 0
    """Items in the first batch."""
    after: int = 0
    same: int = 0
    kinds: Counter[str] = attrs.field(factory=Counter)
    """Items by what is said of them; one item can be of several kinds."""
    seconds: list[float] = attrs.field(factory=lambda: [0.0, 0.0])
    """What the items that both have took, before and after."""
    tokens: list[int] = attrs.field(factory=lambda: [0, 0])
    has_costs: list[bool] = attrs.field(factory=lambda: [False, False])
    """Whether anything says what they cost, before and after."""
    cost_usd: list[float] = attrs.field(factory=lambda: [0.0, 0.0])

    def as_json(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "before": self.before,
            "after": self.after,
            "same": self.same,
            **{kind: self.kinds[kind] for kind in KINDS},
            "seconds": [round(one, 6) for one in self.seconds],
            "tokens": self.tokens,
            "cost_usd": [round(one, 6) for one in self.cost_usd],
        }


class Comparison:
    """Compares pairs of results, and counts."""

    def __init__(self, *, slower: float, dearer: float) -> None:
        self._slower = slower
        self._dearer = dearer
        self.found = Compared()

    def of_pair(self, before: RecordedResult, after: RecordedResult) -> list[Difference]:
        """Return what differs about an item that both have."""
        found = self.found
        found.before += 1
        found.after += 1
        for at, one in enumerate((before, after)):
            found.seconds[at] += one.seconds
            found.has_costs[at] |= one.tokens is not None or one.cost_usd is not None
            found.tokens[at] += one.tokens or 0
            found.cost_usd[at] += one.cost_usd or 0
        told = list(_ending(before, after))
        found.same += not told
        told += self._figures(before, after)
        for kind in {one.kind for one in told}:
            found.kinds[kind] += 1
        return told

    def of_one(self, result: RecordedResult, *, is_new: bool) -> Difference:
        """Return that an item is new, or gone."""
        if is_new:
            self.found.after += 1
            self.found.kinds["new"] += 1
            return Difference("new", result.key, MISSING, _ended(result))
        self.found.before += 1
        self.found.kinds["gone"] += 1
        return Difference("gone", result.key, _ended(result), MISSING)

    def _figures(self, before: RecordedResult, after: RecordedResult) -> Iterator[Difference]:
        old, new = before.seconds, after.seconds
        if new > old * self._slower and new - old > SLOWER_BY_SECONDS:
            yield Difference("slower", after.key, old, new)
        for paid, pays in ((before.cost_usd, after.cost_usd), (before.tokens, after.tokens)):
            if paid and pays:  # Tokens only where nothing says what they cost.
                if pays > paid * self._dearer:
                    yield Difference("dearer", after.key, paid, pays)
                return


def _ending(before: RecordedResult, after: RecordedResult) -> Iterator[Difference]:
    was_ok, is_ok = before.status == "ok", after.status == "ok"
    if was_ok and is_ok:
        parts = _parts(before.value, after.value)
        for part, old, new in islice(parts, PARTS_AT_MOST):
            yield Difference("changed", after.key, old, new, part)
        if more := sum(1 for _ in parts):
            yield Difference("changed", after.key, MISSING, MISSING, f" and {more:,} more parts")
    elif was_ok:
        yield Difference("failed", after.key, _ended(before), _ended(after))
    elif is_ok:
        yield Difference("recovered", after.key, _ended(before), _ended(after))
    elif (before.status, before.error) != (after.status, after.error):
        yield Difference("changed", after.key, _ended(before), _ended(after))


def _ended(result: RecordedResult) -> Any:
    return result.value if result.status == "ok" else (result.error or result.status)


def _parts(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of a value that differ, each with its place, field by field."""
    ahead: list[tuple[str, Any, Any]] = [("", before, after)]
    while ahead:  # Not with calls: a value may be nested deeply.
        place, old, new = ahead.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            names = dict.fromkeys([*old, *new])
            pairs = [(_dotted(one), old.get(one, MISSING), new.get(one, MISSING)) for one in names]
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            pairs = [(f"[{at}]", *pair) for at, pair in enumerate(zip(old, new, strict=True))]
        else:
            if not _is_same(old, new):
                yield place, old, new
            continue
        ahead += [(place + part, one, other) for part, one, other in reversed(pairs)]


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are the same JSON; they aren't both objects, or as long lists."""
    if isinstance(old, dict | list) or isinstance(new, dict | list):
        return False
    if isinstance(old, bool) is not isinstance(new, bool):
        return False
    return bool(old == new) or (old != old and new != new)  # NaN, in a journal.


def _dotted(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


# Who belongs together ---------------------------------------------------------------------------


class Pairing:
    """Finds, for each item of one batch, the item of the other with the same key."""

    def __init__(self, names: tuple[str, str]) -> None:
        """Pair two batches, called by ``names`` in errors."""
        self._names = names
        self._waiting: tuple[dict[Any, RecordedResult], ...] = ({}, {})
        self._matched: list[tuple[int]] = []
        # On disk, and gone when it is closed.
        self._disk = sqlite3.connect("", isolation_level=None)
        for statement in (
            "PRAGMA cache_size=-16384",
            "PRAGMA journal_mode=OFF",
            "CREATE TABLE waiting (side INTEGER, key TEXT, hash INTEGER, data TEXT, "
            "PRIMARY KEY (side, key))",
            "CREATE TABLE matched (hash INTEGER)",
        ):
            self._disk.execute(statement)
        self._on_disk = [0, 0]

    def close(self) -> None:
        """Delete what is on disk."""
        self._disk.close()

    def pairs(
        self, before: Iterable[RecordedResult], after: Iterable[RecordedResult], *, exact: bool
    ) -> Iterator[tuple[RecordedResult | None, RecordedResult | None]]:
        """Yield pairs as they are found, and at the end those with None in place of the other.

        Args:
          before: The items of the first batch.
          after: Those of the second.
          exact: Whether a number and its text are two keys, as in a journal.

        Raises:
          InputError: if a batch has a key twice.
        """
        for side, result in _in_turn(before, after):
            key = result.key if exact else str(result.key)
            if key in self._waiting[side]:
                raise self._twice(side, key)
            other = self._waiting[1 - side].pop(key, None) or self._from_disk(1 - side, key)
            if other is None:
                self._waiting[side][key] = result
                if len(self._waiting[side]) > WAITING_AT_MOST:
                    self._to_disk(side)
                continue
            self._matched.append((hash(key),))
            if len(self._matched) >= WAITING_AT_MOST:
                self._note_matched()
            yield (result, other) if side == 0 else (other, result)
        yield from self._left_over()

    def _left_over(self) -> Iterator[tuple[RecordedResult | None, RecordedResult | None]]:
        self._note_matched()
        for side in (0, 1):
            self._to_disk(side)
            if not self._on_disk[side]:
                continue
            # What was paired before it came once more has nobody left to wait for.
            twice = "SELECT key FROM waiting WHERE side = ? AND hash IN (SELECT hash FROM matched)"
            for (key,) in self._disk.execute(f"{twice} LIMIT 1", (side,)):
                raise self._twice(side, json.loads(key))
            query = "SELECT data FROM waiting WHERE side = ? ORDER BY rowid"
            for (data,) in self._disk.execute(query, (side,)):
                yield (_of_row(data), None) if side == 0 else (None, _of_row(data))

    def _to_disk(self, side: int) -> None:
        rows = [
            (side, json.dumps(key), hash(key), _to_row(one))
            for key, one in self._waiting[side].items()
        ]
        self._disk.execute("BEGIN")
        try:
            self._disk.executemany("INSERT INTO waiting VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            raise InputError(
                f"{self._names[side]} has a key twice; a batch has each once"
            ) from None
        self._disk.execute("COMMIT")
        self._on_disk[side] += len(rows)
        self._waiting[side].clear()

    def _from_disk(self, side: int, key: Any) -> RecordedResult | None:
        if not self._on_disk[side]:
            return None
        row = (side, json.dumps(key))
        found = self._disk.execute("SELECT data FROM waiting WHERE side = ? AND key = ?", row)
        data = found.fetchone()
        if data is None:
            return None
        self._disk.execute("DELETE FROM waiting WHERE side = ? AND key = ?", row)
        self._on_disk[side] -= 1
        return _of_row(data[0])

    def _note_matched(self) -> None:
        self._disk.execute("BEGIN")
        self._disk.executemany("INSERT INTO matched VALUES (?)", self._matched)
        self._disk.execute("COMMIT")
        self._matched.clear()

    def _twice(self, side: int, key: Any) -> InputError:
        return InputError(
            f"{self._names[side]} has the key {shown(repr(key), most=_SHOWN)} twice, so nobody "
            "can say which of the two is meant; compare outputs in which each key comes once"
        )


def _in_turn(
    before: Iterable[RecordedResult], after: Iterable[RecordedResult]
) -> Iterator[tuple[int, RecordedResult]]:
    """Yield the items of both, some of one and then some of the other."""
    sides = [iter(before), iter(after)]
    is_over = [False, False]
    while not all(is_over):
        for side, batch in enumerate(sides):
            some = list(islice(batch, _PER_TURN))
            is_over[side] = not some
            yield from ((side, one) for one in some)


_FIELDS = [one.name for one in attrs.fields(RecordedResult) if one.name != "item"]


def _to_row(result: RecordedResult) -> str:
    return json.dumps([getattr(result, name) for name in _FIELDS])


def _of_row(data: str) -> RecordedResult:
    return RecordedResult(**dict(zip(_FIELDS, json.loads(data), strict=True)))


# How it is told ---------------------------------------------------------------------------------


def _line(one: Difference) -> str:
    what = f"{shown(str(one.key))}: {KINDS[one.kind]}{shown(one.part)}"
    told = [_text(value) for value in (one.before, one.after) if value is not MISSING]
    if one.before is MISSING and one.after is not MISSING and one.kind == "changed":
        told.insert(0, "nothing")
    elif one.after is MISSING and one.before is not MISSING and one.kind == "changed":
        told.append("nothing")
    return f"{what}: {' -> '.join(told)}" if told else what


def _text(value: Any) -> str:
    """Return a value or an error on one short line that no terminal obeys."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return shown(json.dumps(value, ensure_ascii=False), most=_SHOWN)


def _json_line(one: Difference) -> str:
    told: dict[str, Any] = {"key": one.key, "what": one.kind}
    if one.part:
        told["part"] = one.part
    for name, value in (("before", one.before), ("after", one.after)):
        if value is not MISSING:
            told[name] = value
    try:
        return json.dumps(told, allow_nan=False)
    except ValueError:  # NaN or an infinity, which only a journal has.
        return json.dumps(told | {"before": repr(one.before), "after": repr(one.after)})


def _row(one: Difference) -> str:
    cells = [shown(str(one.key)), f"{KINDS[one.kind]}{shown(one.part)}"]
    cells += ["" if value is MISSING else _text(value) for value in (one.before, one.after)]
    return f"| {' | '.join(map(_code, cells))} |"


def _code(text: str) -> str:
    """Return a text as code in a table of Markdown, whatever is in it."""
    if not text:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text[0] in "` " or text[-1] in "` " else ""
    # A bar ends the cell even there. After a backslash of the text another would be no escape.
    safe = text.replace("\\|", "\\\\u007c").replace("|", "\\|")
    return f"{fence}{space}{safe}{space}{fence}"


def _totals(found: Compared, names: tuple[str, str]) -> Iterator[str]:
    yield (
        f"{shown(names[0])} has {found.before:,} items, {shown(names[1])} {found.after:,}; "
        f"{found.same:,} came to the same"
    )
    yield ", ".join(f"{found.kinds[kind]:,} {words}" for kind, words in KINDS.items())
    figures = [f"{found.seconds[0]:,.1f} s -> {found.seconds[1]:,.1f} s"]
    if all(found.has_costs) and any(found.tokens):
        figures.append(f"{found.tokens[0]:,} -> {found.tokens[1]:,} tokens")
    if all(found.has_costs) and any(found.cost_usd):
        figures.append(f"${found.cost_usd[0]:,.4f} -> ${found.cost_usd[1]:,.4f}")
    yield f"the items of both took {', '.join(figures)}"


def _factor(context: click.Context, parameter: click.Parameter, given: float | None) -> Any:
    if given is not None and not (1 <= given < float("inf")):
        raise click.BadParameter(f"{given:g} is not a factor from 1 upwards, such as 1.5")
    return given


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option(
    "--batch",
    "batches",
    multiple=True,
    metavar="NAME",
    help="The batch of journals that have several; give it twice if BEFORE and AFTER differ.",
)
@click.option(
    "--slower",
    type=float,
    callback=_factor,
    metavar="FACTOR",
    help="An item that takes more than FACTOR times as long is a difference. By default those "
    "beyond 2 are told, but don't decide the exit status.",
)
@click.option(
    "--dearer",
    type=float,
    callback=_factor,
    metavar="FACTOR",
    help="The same for what an item costs: dollars, or tokens where no dollars are recorded.",
)
@click.option("--json", "form", flag_value="json", help="A JSON object per line, totals last.")
@click.option("--markdown", "form", flag_value="markdown", help="A table for a report.")
@click.option("--totals", "only_totals", is_flag=True, help="Tell no single items.")
def diff(
    before: str,
    after: str,
    batches: tuple[str, ...],
    slower: float | None,
    dearer: float | None,
    form: str | None,
    only_totals: bool,
) -> int:
    """Compare two batches by key: what is new, gone, changed, newly failed or recovered.

    BEFORE and AFTER are each the output of harness batch (JSONL), what harness journal export
    wrote (JSONL or CSV), or a journal. Items are told as they are found, in no certain order.

    Exit status: 0 if all items came to the same, 1 if some differ, 2 if they can't be compared.
    """
    if before == after == STANDARD_STREAM:
        raise InputError("only one of the two can come from standard input; give a file as well")
    if len(batches) > 2:
        raise InputError("--batch can be given once for both, or once for each of the two")
    sides = (before, after)
    which = (batches[0], batches[-1]) if batches else (None, None)
    without_key = [0, 0]

    def results(side: int) -> Iterator[RecordedResult]:
        def count() -> None:
            without_key[side] += 1

        return results_in(sides[side], batch=which[side], without_key=count)

    comparison = Comparison(slower=slower or FACTOR, dearer=dearer or FACTOR)
    tell = {"json": _json_line, "markdown": _row, None: _line}[form]
    if form == "markdown" and not only_totals:
        click.echo("| key | what | before | after |\n| --- | --- | --- | --- |")
    try:
        with closing(Pairing(sides)) as pairing:
            exact = is_journal(before) and is_journal(after)
            for one, other in pairing.pairs(results(0), results(1), exact=exact):
                told: list[Difference] = []
                if one is not None and other is not None:
                    told = comparison.of_pair(one, other)
                elif (result := one or other) is not None:
                    told = [comparison.of_one(result, is_new=one is None)]
                if not only_totals:
                    for difference in told:
                        click.echo(tell(difference))
    except sqlite3.Error as error:
        raise InputError(f"there is no room for temporary files ({error})") from error
    found = comparison.found
    if form == "json":
        click.echo(json.dumps({"totals": found.as_json()}))
    else:
        lines = list(_totals(found, sides))
        click.echo("\n" * (form == "markdown" and not only_totals) + "\n".join(lines))
    for name, count in zip(sides, without_key, strict=True):
        if count:
            click.echo(f"{shown(name)}: {count:,} lines without a key were left out", err=True)
    undecided = {kind for kind, given in (("slower", slower), ("dearer", dearer)) if given is None}
    decides = [kind for kind in KINDS if kind not in undecided]
    return EXIT_FAILED if any(found.kinds[kind] for kind in decides) else EXIT_OK
