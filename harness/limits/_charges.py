"""Work out what to charge a request from whatever its caller says about its tokens.

Three numbers describe a request: total tokens, input and output. A caller gives none, some or all
of them. Before the request, missing numbers are estimated; after it, they keep their estimates, so
use that nobody mentioned is still charged.
"""

from __future__ import annotations

from typing import TypeAlias

from harness.limits._estimates import Estimates
from harness.limits._numbers import checked_amount

Stated: TypeAlias = float | None

Charge: TypeAlias = tuple[int, float, Stated, Stated, Stated, Stated]
"""One request, its tokens, the input and the output among them, the stated input and output.

The first four are in the order of `KINDS`; ``None`` is what nobody stated and no limit needs.
What the caller stated is kept apart from what was estimated: input and total together give the
output, and an output stated beforehand is the maximum requested. A plain tuple, because every
reservation makes two.
"""

NO_TOKENS: Charge = (1, 0, None, None, None, None)


def planned_charge(
    tokens: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
    *,
    model: str | None,
    estimates: Estimates,
    split_needed: bool,
) -> Charge:
    """Return what to charge before a request.

    Args:
      tokens: The total tokens, if the caller gave them; the same goes for the next two.
      input_tokens: The input.
      output_tokens: The output.
      model: The model called.
      estimates: What earlier requests used.
      split_needed: Whether input or output has its own limit.

    Raises:
      TypeError, ValueError: if a number of tokens isn't a number, or is negative.
    """
    if tokens is not None:
        tokens = checked_amount("tokens", tokens)
        if input_tokens is None and output_tokens is None and not split_needed:
            return 1, tokens, None, None, None, None
    stated_input, stated_output = input_tokens, output_tokens
    if input_tokens is not None:
        input_tokens = checked_amount("input_tokens", input_tokens)
    if output_tokens is not None:
        output_tokens = checked_amount("output_tokens", output_tokens)
    if tokens is None:
        if output_tokens is None:
            output_tokens = estimates.output_tokens(model, input_tokens=input_tokens)
        if input_tokens is None:
            input_tokens = estimates.input_tokens(model)
        total = input_tokens + output_tokens
        return 1, total, input_tokens, output_tokens, stated_input, stated_output
    if split_needed:
        if output_tokens is None:
            if input_tokens is None:
                output_tokens = min(tokens, estimates.output_tokens(model, input_tokens=None))
            else:
                output_tokens = max(0, tokens - input_tokens)
        if input_tokens is None:
            input_tokens = max(0, tokens - output_tokens)
    return 1, tokens, input_tokens, output_tokens, stated_input, stated_output


def used_charge(
    planned: Charge,
    tokens: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
) -> Charge:
    """Return what a request used, given what was planned and what is known now.

    Raises:
      TypeError, ValueError: if a number of tokens isn't a number, or is negative.
    """
    _, total, known_input, known_output, stated_input, stated_output = planned
    if input_tokens is None and output_tokens is None:
        if tokens is not None:
            total = (
                tokens
                if type(tokens) is int and tokens >= 0
                else (checked_amount("tokens", tokens))
            )
        return 1, total, known_input, known_output, stated_input, stated_output
    if input_tokens is not None:
        known_input = checked_amount("input_tokens", input_tokens)
    if output_tokens is not None:
        known_output = checked_amount("output_tokens", output_tokens)
    if tokens is not None:
        total = checked_amount("tokens", tokens)
    else:
        total = (known_input or 0) + (known_output or 0)
    return 1, total, known_input, known_output, stated_input, stated_output


def with_maximum(used: Charge, planned: Charge) -> Charge:
    """Return a use no less than planned, for a provider that counts the maximum.

    An output that the caller stated beforehand is the request's maximum. Such a provider charges it
    with the request, and gives nothing back for a shorter answer.
    """
    if planned[5] is None:
        return used
    output = None if used[3] is None else max(used[3], planned[3] or 0)
    return used[0], max(used[1], planned[1]), used[2], output, used[4], used[5]


def learn_use(
    estimates: Estimates,
    model: str | None,
    planned: Charge,
    tokens: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
) -> None:
    """Update the estimates with what a caller said a request used."""
    known_input = planned[4] if input_tokens is None else input_tokens
    if tokens is None and known_input is not None and output_tokens is not None:
        tokens = known_input + output_tokens
    if output_tokens is None and tokens is not None and known_input is not None:
        output_tokens = max(0, tokens - known_input)
    estimates.learn(
        model, input_tokens=known_input, output_tokens=output_tokens, total_tokens=tokens
    )
