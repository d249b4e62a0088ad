"""The language of ``--where``: choose items by what became of them.

It looks like Python and is read by Python's parser, but nothing of it is ever run as Python: of the
tree only the few forms below are allowed, and each becomes a plain function here. A name is a field
of the item, a dot is a look-up in JSON, and there are no calls but three tests of texts, none of
which takes longer than reading the text. So whoever writes an expression can neither run code nor
keep the command busy.

Two values that have no order, such as a text and a number, are neither less nor greater; what isn't
there is None.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from typing import Any

from harness.cli._errors import InputError

FIELDS = (
    "key",
    "status",
    "input",
    "value",
    "error",
    "error_type",
    "error_message",
    "attempts",
    "seconds",
    "tokens",
    "cost_usd",
    "degraded",
)
"""What an expression may name."""

STATUSES = (
    "ok",
    "failed",
    "timed_out",
    "cancelled",
    "skipped",
    "in_flight",
    "waiting",
    "open",
)

CHARACTERS_AT_MOST = 2_000
NODES_AT_MOST = 300
DEPTH_AT_MOST = 30

FieldOf = Callable[[str], Any]
"""Gives a field of an item, by its name."""

Test = Callable[[FieldOf], Any]

_ALLOWED = (
    f"allowed are the fields {', '.join(FIELDS)}; value.name, value[0] and the same of "
    "input; texts, numbers, True, False, None and lists of them; == != < <= > >= in, not in, "
    "is None; and, or, not; and "
    '.startswith("..."), .endswith("...") and .matches("...*...")'
)


class Where:
    """An expression that was read, ready to be asked about items."""

    def __init__(self, text: str) -> None:
        """Read an expression.

        Raises:
          InputError: pointing at the place that isn't allowed, and saying what is.
        """
        self.text = text
        reader = _Reader(text)
        self._test = reader.read()
        self.needs_input = "input" in reader.named
        """Whether it names what items were, which takes longer to read."""

    def matches(self, field_of: FieldOf) -> bool:
        """Return whether the expression holds for an item, given its fields."""
        try:
            return bool(self._test(field_of))
        except RecursionError:  # Two values nested so deeply that they can't be compared.
            return False


def where_of(given: str | None) -> Where | None:
    """Return the expression given for an option, if there is one."""
    return None if given is None else Where(given)


class _Reader:
    """Turns one expression into functions."""

    def __init__(self, text: str) -> None:
        # A line break counts as a space, so that there is one line to point into.
        self._text = " ".join(text.splitlines()).strip()
        self._nodes = 0
        self.named: set[str] = set()
        """The fields that it names."""

    def read(self) -> Test:
        text = self._text
        if not text:
            raise InputError(f"--where takes an expression, not {text!r}; {_ALLOWED}")
        if len(text) > CHARACTERS_AT_MOST:
            raise InputError(
                f"the expression of --where has {len(text):,} characters, and "
                f"{CHARACTERS_AT_MOST:,} are allowed; give a shorter one"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # About escapes in texts.
                tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            start = max(0, (error.offset or 1) - 1)
            raise self._error(f"it can't be read ({error.msg})", start, start + 1) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"the expression of --where can't be read ({error})") from None
        return self._test(tree, 1)

    def _test(self, node: ast.expr, depth: int) -> Test:
        self._nodes += 1
        if depth > DEPTH_AT_MOST or self._nodes > NODES_AT_MOST:
            raise self._refused(
                node,
                f"it has more than {NODES_AT_MOST} parts, or more than {DEPTH_AT_MOST} inside "
                "each other",
            )
        read = _FORMS.get(type(node))
        if read is None:
            raise self._refused(node, "this is not allowed")
        return read(self, node, depth + 1)

    # The forms ------------------------------------------------------------------------------------

    def _and_or(self, node: ast.BoolOp, depth: int) -> Test:
        tests = [self._test(one, depth) for one in node.values]
        stops_at = isinstance(node.op, ast.Or)

        def decide(field_of: FieldOf) -> Any:
            value = None
            for test in tests:
                value = test(field_of)
                if bool(value) is stops_at:
                    break
            return value

        return decide

    def _unary(self, node: ast.UnaryOp, depth: int) -> Test:
        if isinstance(node.op, ast.Not):
            test = self._test(node.operand, depth)
            return lambda field_of: not test(field_of)
        number = node.operand
        if (
            isinstance(node.op, ast.USub)
            and isinstance(number, ast.Constant)
            and type(number.value) in (int, float)
        ):
            value = -number.value  # type: ignore[operator]  # It is a number.
            return lambda field_of: value
        raise self._refused(node, "only a number can have a sign")

    def _compare(self, node: ast.Compare, depth: int) -> Test:
        operands = [node.left, *node.comparators]
        tests = [self._test(one, depth) for one in operands]
        compares = []
        for number, kind in enumerate(node.ops):
            pair = operands[number : number + 2]
            if isinstance(kind, ast.Is | ast.IsNot) and not (
                isinstance(pair[1], ast.Constant) and pair[1].value is None
            ):
                raise self._refused(pair[1], "`is` only compares with None; write ==")
            self._check_status(pair)
            compares.append(_COMPARES[type(kind)])

        def compare(field_of: FieldOf) -> bool:
            left = tests[0](field_of)
            for holds, test in zip(compares, tests[1:], strict=True):
                right = test(field_of)
                if not holds(left, right):
                    return False
                left = right
            return True

        return compare

    def _check_status(self, pair: list[ast.expr]) -> None:
        """Refuse a status that no item can have: it would quietly match nothing."""
        if any(isinstance(one, ast.Name) and one.id == "status" for one in pair):
            for node in pair:
                parts = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
                for one in parts:
                    if isinstance(one, ast.Constant) and one.value not in STATUSES:
                        raise self._refused(one, f"a status is one of {', '.join(STATUSES)}")

    def _name(self, node: ast.Name, depth: int) -> Test:
        name = node.id
        if name not in FIELDS:
            raise self._refused(
                node,
                f'{name} is not a field; if it is a text, put it in quotes: "{name}"; if it is '
                f"part of the record, write input.{name}, and of its result, value.{name}",
            )
        self.named.add(name)
        return lambda field_of: field_of(name)

    def _constant(self, node: ast.Constant, depth: int) -> Test:
        value = node.value
        if value is not None and type(value) not in (str, int, float, bool):
            raise self._refused(node, "this is neither a text, a number, True, False nor None")
        return lambda field_of: value

    def _list(self, node: ast.List | ast.Tuple, depth: int) -> Test:
        tests = [self._test(one, depth) for one in node.elts]
        return lambda field_of: [test(field_of) for test in tests]

    def _part(self, node: ast.Attribute | ast.Subscript, depth: int) -> Test:
        place: Any
        if isinstance(node, ast.Attribute):
            place = node.attr
        elif isinstance(node.slice, ast.Constant) and type(node.slice.value) in (str, int):
            place = node.slice.value
        else:
            raise self._refused(node.slice, 'a part is named by a text or a number: value["name"]')
        base: ast.expr = node
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if not (isinstance(base, ast.Name) and base.id in ("input", "value")):
            raise self._refused(node, "only input and value have parts")
        whole = self._test(node.value, depth)
        return lambda field_of: _part_of(whole(field_of), place)

    def _call(self, node: ast.Call, depth: int) -> Test:
        told = node.func
        test = _TEXT_TESTS.get(told.attr) if isinstance(told, ast.Attribute) else None
        if test is None or not isinstance(told, ast.Attribute):
            raise self._refused(node, "this can't be called")
        given = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
            raise self._refused(node, f'{told.attr} takes one text: .{told.attr}("...")')
        operand, wanted = self._test(told.value, depth), given.value

        def holds(field_of: FieldOf) -> bool:
            text = operand(field_of)
            return isinstance(text, str) and test(text, wanted)

        return holds

    # Errors ---------------------------------------------------------------------------------------

    def _refused(self, node: ast.expr, why: str) -> InputError:
        # Offsets are in bytes.
        encoded = self._text.encode()
        ends = (node.col_offset, node.end_col_offset or node.col_offset + 1)
        start, end = (len(encoded[:at].decode(errors="replace")) for at in ends)
        return self._error(why, start, end)

    def _error(self, why: str, start: int, end: int) -> InputError:
        """Return an error that shows the expression, and marks a place in it."""
        marks = " " * start + "^" * max(1, min(end, len(self._text)) - start)
        return InputError(
            f"--where, at character {start + 1}: {why}\n  {self._text}\n  {marks}\n{_ALLOWED}"
        )


def _part_of(whole: Any, place: str | int) -> Any:
    """Return a part of JSON; None if it isn't there."""
    if isinstance(place, str):
        return whole.get(place) if isinstance(whole, dict) else None
    if isinstance(whole, list) and 0 <= place < len(whole):
        return whole[place]
    return None


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def holds(left: Any, right: Any) -> bool:
        try:
            return compare(left, right)
        except TypeError:
            return False

    return holds


def _is_in(left: Any, right: Any) -> bool:
    if isinstance(right, str):
        return isinstance(left, str) and left in right
    if isinstance(right, dict):
        return isinstance(left, str) and left in right
    return isinstance(right, list) and left in right


def _matches(text: str, pattern: str) -> bool:
    """Return whether a text is a pattern in which each ``*`` may be any text.

    The parts between the stars are looked for one after another, so it never tries again.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return text == first
    *between, last = parts
    if not text.startswith(first) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in between:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end and text.endswith(last)


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "matches": _matches,
}

_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: _is_in,
    ast.NotIn: lambda left, right: not _is_in(left, right),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}

_FORMS: dict[type[ast.expr], Callable[[_Reader, Any, int], Test]] = {
    ast.BoolOp: _Reader._and_or,
    ast.UnaryOp: _Reader._unary,
    ast.Compare: _Reader._compare,
    ast.Name: _Reader._name,
    ast.Constant: _Reader._constant,
    ast.List: _Reader._list,
    ast.Tuple: _Reader._list,
    ast.Attribute: _Reader._part,
    ast.Subscript: _Reader._part,
    ast.Call: _Reader._call,
}
"""All that an expression may be made of."""
