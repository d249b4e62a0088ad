"""Check the fields of policies, in the shape that attrs calls."""

from __future__ import annotations

from typing import Any

import attrs

from harness._arguments import check_fraction, check_seconds


def seconds(advice: str, *, least: float = 0.0, zero: bool = True) -> Any:
    """Return a check for a field in seconds; ``advice`` ends the error's sentence."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        call = f"{type(instance).__name__}({attribute.name}=...)"
        check_seconds(call, value, advice=advice, least=least, zero=zero)

    return check


def fraction(advice: str) -> Any:
    """Return a check for a field from 0 to 1; ``advice`` ends the error's sentence."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        call = f"{type(instance).__name__}({attribute.name}=...)"
        check_fraction(call, value, advice=advice)

    return check
