"""Spend from the budgets that apply here: reserve before a call, settle after it.

The budgets are those of the current run and of all runs above it. What a call might cost is
reserved in all of them or in none, so that concurrent callers can't overrun one together.

A reservation that doesn't fit is refused at once, even if calls in progress may turn out to need
less than they hold. Waiting for them would be kinder, but a run that holds something while it waits
for a child that waits for the same budget would wait forever; and a budget that is nearly spent is
no reason to go on. So estimate tightly: what is in flight holds its estimate.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from trio.lowlevel import checkpoint, enable_ki_protection

from harness._arguments import check_count, check_dollars
from harness._outside_trio import refuse_outside_trio
from harness.errors import ReservationError
from harness.runs._accounts import (
    NO_ACCOUNTS,
    NOTHING,
    Accounts,
    Ledger,
    Usage,
    current_accounts,
    dollars,
    units,
)


@attrs.frozen(kw_only=True)
class BudgetLeft:
    """What the calling code may still reserve."""

    tokens: int | None
    """The least that a budget here has left; None if none bounds it."""

    cost_usd: float | None
    """The least that a budget here has left, in dollars; None if none bounds it."""


@attrs.frozen(kw_only=True)
class BudgetDimension:
    """The tokens or the dollars of one budget, at one moment."""

    limit: float
    """What the budget was opened with."""

    spent: float
    """What was used, including estimates that nobody replaced."""

    reserved: float
    """What calls in progress hold."""

    left: float
    """What may still be reserved; never negative."""

    overrun: float
    """What was used beyond the limit, by calls that used more than they reserved."""


@attrs.frozen(kw_only=True)
class BudgetStatistics:
    """One budget at one moment."""

    run_path: str
    """The run that was given it."""

    tokens: BudgetDimension | None
    """None if it doesn't bound them."""

    cost_usd: BudgetDimension | None
    """None if it doesn't bound them."""

    refused: int
    """Reservations that it refused."""


def reserve_budget(*, tokens: int | None = None, cost_usd: float | None = None) -> Spending:
    """Reserve what a call might spend: ``with reserve_budget(tokens=1_200) as spending:``.

    Inside the block, `Spending.settle` replaces the estimate with what was used, and
    `Spending.refund` takes it back because nothing was sent. If the block is left with neither,
    even by an exception, the estimate stays spent. Without a budget here it costs next to nothing,
    and use is still counted for whoever counts it.

    ``async with`` does the same, and works with a budget that processes share, too, for which a
    server has to be asked (`harness.cluster.FleetStore.budget`).

    Args:
      tokens: The most that the call is likely to use, input and output together. None if unknown:
        then nothing is held, and the call goes ahead while anything is left. 0 if it uses none:
        that is never refused.
      cost_usd: The same in dollars.

    Returns:
      A context manager that reserves on entry, for the run that enters it. It never waits for what
      others hold.

    Raises:
      TypeError, ValueError: if an amount isn't a number, or is negative.
      BudgetExceeded: on entry, if a budget here has too little left. Nothing is held then.
      RunEndedError: on entry, if the current run has ended.
      ReservationError: on entry by ``with``, if other processes share a budget here.
      ConnectionError: on entry by ``async with``, if the server that keeps a budget can't be
        reached for 10 s.

    Checkpoint: with ``async with``, entering always is one; leaving never.

    Cancellation: nothing is held.
    """
    return Spending(_usage("reserve_budget", tokens, cost_usd))


class Spending:
    """One call's reservation in all budgets that apply to it; see `reserve_budget`."""

    __slots__ = ("_accounts", "_held", "_state")

    def __init__(self, estimate: Usage) -> None:
        self._accounts = NO_ACCOUNTS
        self._held = estimate
        self._state = "not entered yet"

    def __enter__(self) -> Spending:
        """Reserve the estimate, or refuse."""
        self._refuse_entered()
        accounts, path = current_accounts()
        if accounts.budgets:
            accounts.reserve(self._held, path)
        self._accounts = accounts
        self._state = "held"
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the estimate as spent, unless it was settled or refunded."""
        if self._state == "held":
            self._close(self._held, "left")

    @enable_ki_protection
    async def __aenter__(self) -> Spending:
        """Reserve the estimate, or refuse, asking those who share a budget."""
        self._refuse_entered()
        refuse_outside_trio("the spending of reserve_budget() was entered")
        await checkpoint()
        accounts, path = current_accounts()
        await accounts.reserve_shared(self._held, path)
        self._accounts = accounts
        self._state = "held"
        return self

    @enable_ki_protection
    async def __aexit__(self, *_: object) -> None:
        """Keep the estimate as spent, unless it was settled or refunded."""
        self.__exit__()

    def settle(self, *, tokens: int | None = None, cost_usd: float | None = None) -> None:
        """Replace the estimate with what the call really used.

        What isn't given keeps its estimate. Use above the estimate counts too: it takes what is
        left, down to nothing, and anything beyond that is the budget's overrun.

        Args:
          tokens: How many tokens it used, input and output.
          cost_usd: What it cost, in dollars.

        Raises:
          TypeError, ValueError: if an amount isn't a number, or is negative.
          ReservationError: if it isn't held: settled, refunded or left before, or not entered.
        """
        used = _usage("Spending.settle", tokens, cost_usd)
        self._refuse_unless_held("settle")
        held = self._held
        self._close(
            Usage(
                held.tokens if used.tokens is None else used.tokens,
                held.cost if used.cost is None else used.cost,
            ),
            "settled",
        )

    def refund(self) -> None:
        """Give back the whole estimate, because nothing was sent.

        Raises:
          ReservationError: if it isn't held: settled, refunded or left before, or not entered.
        """
        self._refuse_unless_held("refund")
        self._close(NOTHING, "refunded")

    def _close(self, used: Usage, state: str) -> None:
        self._state = state
        self._accounts.settle(self._held, used)
        self._accounts = NO_ACCOUNTS

    def _refuse_entered(self) -> None:
        if self._state != "not entered yet":
            raise ReservationError(
                f"this reservation of a budget is {self._state}; call reserve_budget() again"
            )

    def _refuse_unless_held(self, what: str) -> None:
        if self._state != "held":
            raise ReservationError(
                f"can't {what} a reservation of a budget that is {self._state}; do it once, inside "
                "its `with` block"
            )

    def __repr__(self) -> str:
        return f"<Spending, {self._state}>"


def charge_budget(*, tokens: int = 0, cost_usd: float = 0.0, earlier: bool = False) -> None:
    """Charge use that wasn't reserved to the budgets of the current run and of those above.

    It is never refused: anything beyond a limit is the budget's overrun, and the next reservation
    is refused.

    Args:
      tokens: The tokens used, input and output together.
      cost_usd: What they cost, in dollars.
      earlier: Whether an earlier session of the same work used them: the budgets go on with what is
        left, and whoever only counts isn't told again.

    Raises:
      TypeError, ValueError: if an amount isn't a number, or is negative.
      RunEndedError: if the current run has ended.
    """
    used = _usage("charge_budget", tokens, cost_usd)
    accounts, _ = current_accounts()
    if earlier:
        accounts.charge_earlier(used)
    else:
        accounts.settle(NOTHING, used)


def budget_left() -> BudgetLeft:
    """Return what may still be reserved here: the least that any budget here has left.

    Raises:
      RunEndedError: if the current run has ended.
    """
    accounts, _ = current_accounts()
    tokens = [budget.tokens.left for budget in accounts.budgets if budget.tokens is not None]
    cost = [budget.cost.left for budget in accounts.budgets if budget.cost is not None]
    return BudgetLeft(
        tokens=min(tokens, default=None),
        cost_usd=dollars(min(cost)) if cost else None,
    )


def budget_statistics() -> tuple[BudgetStatistics, ...]:
    """Return the current state of each budget that applies here, outermost first.

    Raises:
      RunEndedError: if the current run has ended.
    """
    accounts: Accounts = current_accounts()[0]
    return tuple(
        BudgetStatistics(
            run_path=budget.run_path,
            tokens=_dimension(budget.tokens, int),
            cost_usd=_dimension(budget.cost, dollars),
            refused=budget.refused,
        )
        for budget in accounts.budgets
    )


def _dimension(ledger: Ledger | None, in_units: Callable[[int], float]) -> BudgetDimension | None:
    if ledger is None:
        return None
    return BudgetDimension(
        limit=in_units(ledger.limit),
        spent=in_units(ledger.spent),
        reserved=in_units(ledger.held),
        left=in_units(ledger.left),
        overrun=in_units(max(0, ledger.spent - ledger.limit)),
    )


def _usage(call: str, tokens: object, cost_usd: object) -> Usage:
    if tokens is not None:
        check_count(f"{call}(tokens=...)", tokens, least=0, advice="0 if the call uses none")
    if cost_usd is None:
        return Usage(tokens, None)  # type: ignore[arg-type]
    dollars = check_dollars(f"{call}(cost_usd=...)", cost_usd, advice="0 if the call is free")
    return Usage(tokens, units(dollars))  # type: ignore[arg-type]
