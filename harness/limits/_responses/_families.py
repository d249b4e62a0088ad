"""Keep apart what several families of headers say about one limit, and read the IETF's fields.

A response may describe one limit twice: a gateway's own one-window headers, and the provider's for
a minute. A number of one family and the window of another make a limit that nobody has, so each
family is read by itself, and for each dimension one of them counts.

The IETF's drafts have three forms. Up to the sixth, three fields and a policy, ``100;w=60``. The
seventh has one field, ``limit=100, remaining=50, reset=30``, and the same policy. From the eighth
on, policies have names and units: ``"burst";q=100;w=60;qu="requests"``, and the state refers to
them: ``"burst";r=50;t=30``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from harness.limits._responses._durations import read_number
from harness.limits._responses._profiles import DAY_SECONDS, MINUTE_SECONDS

_MONTHS = range(28, 32)  # In days.
# Bounded by the length of the text: each alternative takes at least one character.
_BY_COMMA = re.compile(r'(?:"[^"]*"|[^,"])+')
_BY_SEMICOLON = re.compile(r'(?:"[^"]*"|[^;"])+')


@attrs.define(eq=False)
class Family:
    """What one family of headers says about one dimension."""

    name: str
    dimension: str
    window: float = 0.0
    """In seconds; 0 if unknown."""
    fields: dict[str, float] = attrs.field(factory=dict[str, float])


def chosen(found: Sequence[Family]) -> dict[str, Family]:
    """Return one family for each dimension: with a known window, then with most fields."""
    best: dict[str, Family] = {}
    for one in found:
        other = best.get(one.dimension)
        if other is None or _rank(one) > _rank(other):
            best[one.dimension] = one
    return best


def _rank(one: Family) -> tuple[bool, int]:
    return one.window > 0, len(one.fields)


def standard_families(
    state: str, policy: str, *, beside: Sequence[Family]
) -> tuple[list[Family], int]:
    """Read ``RateLimit`` and ``RateLimit-Policy``, in any of their forms.

    Args:
      state: The value of the first, or nothing.
      policy: The value of the second, or nothing.
      beside: What the three older fields say; those learn their window from the policy.

    Returns:
      What was read, and how many numbers made no sense.
    """
    unreadable = 0
    policies: dict[str, Family] = {}
    windows: dict[float, float] = {}  # Of policies without names, by their quota.
    for number, item in enumerate(_items(policy)):
        window = read_number(item.values.get("w", "")) or 0.0
        quota = read_number(item.values.get("q", item.name))
        if quota is None:
            unreadable += 1
        elif "q" not in item.values:
            windows.setdefault(quota, window)
        elif (unit := item.values.get("qu", "requests")) in ("requests", "tokens"):
            one = Family(f"policy {number}", unit, window, {"limit": quota})
            policies[item.name] = one
        else:
            policies[item.name] = Family("", "")  # Bytes, connections: nothing of ours.
    families = list(policies.values())
    plain = Family("ratelimit", "requests")
    for item in _items(state):
        values = item.values
        if known := {
            name: values[name] for name in ("limit", "remaining", "reset") if name in values
        }:
            named = {name: read_number(text) for name, text in known.items()}
            one = plain
        else:
            named = {"remaining": read_number(values.get("r", ""))}
            if "t" in values:
                named["reset"] = read_number(values["t"])
            one = policies.get(item.name) or Family(f"state {item.name}", "requests")
            if one not in families:
                families.append(one)
        for name, value in named.items():
            if value is None:
                unreadable += 1
            else:
                one.fields.setdefault("reset_seconds" if name == "reset" else name, value)
    for one in (plain, *beside):
        if not one.window and one.name.removeprefix("x-") == "ratelimit":
            one.window = windows.get(one.fields.get("limit", -1.0), 0.0)
    return _renamed([one for one in (plain, *families) if one.fields]), unreadable


def _renamed(families: list[Family]) -> list[Family]:
    """Name the dimensions after their windows, as limiters do; the minute's keeps its name."""
    taken: set[str] = set()
    for one in sorted(families, key=lambda one: one.window != MINUTE_SECONDS):
        unit = one.dimension
        if one.window == DAY_SECONDS:
            one.dimension = f"{unit}_day"
        elif one.window / DAY_SECONDS in _MONTHS:
            one.dimension = f"{unit}_month"
        elif unit in taken and one.window:
            one.dimension = f"{unit} per {one.window:g} s"
        taken.add(one.dimension)
    return [one for one in families if one.dimension]


@attrs.frozen
class _Item:
    """An item of a list, with its parameters."""

    name: str
    values: dict[str, str]


def _items(text: str) -> list[_Item]:
    items: list[_Item] = []
    for part in _BY_COMMA.findall(text):
        name, values = "", {}
        for piece in _BY_SEMICOLON.findall(part):
            key, equals, value = piece.strip().partition("=")
            if equals and not piece.strip().startswith('"'):
                values[key.strip().lower()] = value.strip().strip('"').lower()
            else:
                # One server writes two names, and refers to the second.
                name = piece.strip().strip('"')
        if name or values:
            items.append(_Item(name, values))
    return items
