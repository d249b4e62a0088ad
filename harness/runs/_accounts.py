"""Keep what a run, and all below it, may spend, and tell who listens what they spent.

A run's accounts are the budgets and meters of that run and of all above it. They stand among the
run's values, under a key that says how a child starts: with the same ones. So a tree without a
budget pays nothing for them, and a child finds all levels in one place.

Code in no run can spend for one all the same: the load of a cache is paid by whoever started it,
though it outlives that run. Such code carries the accounts in its context (`paid_by`), and the
tree of a run that it opens keeps them. A task that `harness.start_soon` gives to another run, or
to none, doesn't carry them on: a worker that was first needed there would spend for it for ever.

Who spends goes through `harness.shared`: it reserves in all budgets or in none, and settles. That
is never waited for, so a budget can't be part of a deadlock.

Invariant, at every step: of each budget, what is held and spent was fitted in before it was held.
Only a use above its estimate can go beyond the limit: then nothing is left, and what was used too
much is known. `left` is never negative.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from trio.lowlevel import enable_ki_protection

from harness._budget import Budget
from harness.errors import BudgetExceeded
from harness.runs._current import current
from harness.runs._run import Run

UNITS_PER_USD = 10**12
"""Costs are kept in whole units: sums of fractions would drift, and a refund leave some crumbs.
The price of a token is a few hundred thousand of them."""


class UsageMeter(Protocol):
    """Hears of all that is spent in a run and below it, without bounding it."""

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Note a use, once it is known. Called in the thread that spent; must not raise."""
        ...


# Plain classes, not attrs: each takes half a millisecond to make, and `import harness` makes them.


class Usage:
    """An amount in each dimension; None where it isn't known."""

    __slots__ = ("cost", "tokens")

    def __init__(self, tokens: int | None, cost: int | None) -> None:
        self.tokens: int | None = tokens
        self.cost: int | None = cost
        """In units of `UNITS_PER_USD`."""


NOTHING = Usage(0, 0)


class Ledger:
    """One dimension of one budget, in whole units."""

    __slots__ = ("held", "limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Reserved by calls under way."""
        self.spent = 0

    @property
    def left(self) -> int:
        """What the next call may reserve; never negative."""
        return max(0, self.limit - self.spent - self.held)


class LiveBudget:
    """A budget in force, and what was spent of it."""

    __slots__ = ("charged", "cost", "refused", "run_path", "tokens")

    def __init__(self, run_path: str, budget: Budget) -> None:
        self.run_path = run_path
        self.tokens = None if budget.tokens is None else Ledger(budget.tokens)
        self.cost = None if budget.cost_usd is None else Ledger(units(budget.cost_usd))
        self.refused = 0
        """Reservations that it refused."""
        self.charged: set[object] = set()
        """The works whose earlier sessions were counted; from then on it hears of them itself."""

    def ledgers(self, usage: Usage) -> Iterator[tuple[str, Ledger, int | None]]:
        """Yield each dimension that is bounded: its name, ledger, and the amount in ``usage``."""
        if self.tokens is not None:
            yield "tokens", self.tokens, usage.tokens
        if self.cost is not None:
            yield "cost_usd", self.cost, usage.cost


class Accounts:
    """The budgets and meters that hold for one run: its own and those above. Never changed."""

    __slots__ = ("budgets", "meters")

    def __init__(
        self, budgets: tuple[LiveBudget, ...] = (), meters: tuple[UsageMeter, ...] = ()
    ) -> None:
        self.budgets = budgets
        """Outermost first."""
        self.meters = meters

    @enable_ki_protection
    def reserve(self, usage: Usage, path: str) -> None:
        """Hold ``usage`` in all budgets, or in none.

        Raises:
          BudgetExceeded: if it doesn't fit into one. An amount that isn't known fits while there
            is anything left.
        """
        with _lock:
            for budget in self.budgets:
                for name, ledger, amount in budget.ledgers(usage):
                    if ledger.left < (1 if amount is None else amount):
                        budget.refused += 1
                        raise _exceeded(budget, name, ledger, amount, path)
            for budget in self.budgets:
                for _, ledger, amount in budget.ledgers(usage):
                    ledger.held += amount or 0

    @enable_ki_protection
    def settle(self, held: Usage, used: Usage) -> None:
        """Let go of what was held, and count what was used, whatever it is."""
        with _lock:
            for budget in self.budgets:
                for _, ledger, amount in budget.ledgers(held):
                    ledger.held -= amount or 0
                for _, ledger, amount in budget.ledgers(used):
                    ledger.spent += amount or 0
        if self.meters and (used.tokens or used.cost):
            for meter in self.meters:
                meter.spent(used.tokens or 0, dollars(used.cost or 0))

    def charge_earlier(self, used: Usage, work: object = None) -> None:
        """Count on the budgets what an earlier session used; meters have heard of it then.

        Args:
          used: The amount.
          work: What it was used for. A budget that the same work was charged to before has heard
            of all it used since, and isn't charged again. None: always charged.
        """
        Accounts(self.not_charged(work)).settle(NOTHING, used)
        if work is not None:
            for budget in self.budgets:
                budget.charged.add(work)

    def not_charged(self, work: object) -> tuple[LiveBudget, ...]:
        """Return the budgets that earlier sessions of a work were not charged to."""
        return tuple(budget for budget in self.budgets if work not in budget.charged)


NO_ACCOUNTS = Accounts()

Payer: TypeAlias = tuple[Accounts, str]
"""Who pays: the accounts, and the path of the run whose they are."""

NOBODY: Payer = (NO_ACCOUNTS, "")

paid_by: ContextVar[Payer] = ContextVar("harness.runs.paid_by", default=NOBODY)
"""Who pays for code that is in no run. Set in tasks made for such code, and never put back."""

_lock = threading.Lock()
"""Guards all ledgers: worker threads spend too. Nothing is called or awaited under it."""


class _AccountsKey:
    """What a run keeps its accounts under; a child starts with the same."""

    def fork_value(self, value: Accounts) -> Accounts:
        """Return what a child run starts with."""
        return value


_KEY = _AccountsKey()


def current_accounts() -> Payer:
    """Return the accounts that hold for the code that asks, with the path of its run.

    Raises:
      RunEndedError: if the current run has ended.
    """
    run = current.get()
    if run is None:
        return paid_by.get()
    run._refuse_if_ended("it can't spend anything")
    return accounts_of(run), run.path


def current_payer() -> Payer:
    """Return who is to pay for code that is started here, and belongs to no run of this tree."""
    run = current.get()
    if run is None or run.status != "running":
        return paid_by.get()
    return accounts_of(run), run.path


def accounts_of(run: Run) -> Accounts:
    """Return what holds for a live run; its parent's, if it has not begun yet."""
    for where in (run, run._parent):
        if where is not None and where._locals is not None and _KEY in where._locals:
            accounts: Accounts = where._locals[_KEY]
            return accounts
    return payer_of(run)[0]


def payer_of(run: Run) -> Payer:
    """Return who pays for the tree of ``run``, beside the runs in it."""
    payer: Payer | None = run._above.tree.payer
    return NOBODY if payer is None else payer


def add_budget(run: Run, budget: Budget) -> None:
    """Have ``run``, and each run that is opened in it from now on, keep to ``budget``."""
    accounts = accounts_of(run)
    _set(run, Accounts((*accounts.budgets, LiveBudget(run.path, budget)), accounts.meters))


def add_meter(run: Run, meter: UsageMeter) -> None:
    """Have ``meter`` hear what is spent in ``run``, and in each run opened in it from now on.

    May be called before the run begins, by the engine that has made it.
    """
    accounts = accounts_of(run)
    _set(run, Accounts(accounts.budgets, (*accounts.meters, meter)))


def units(cost_usd: float) -> int:
    """Return dollars as whole units."""
    whole = int(cost_usd)  # By itself: a large float would be infinite in units.
    return whole * UNITS_PER_USD + round((cost_usd - whole) * UNITS_PER_USD)


def dollars(cost: int) -> float:
    """Return whole units as dollars; inf if that many can't be said."""
    try:
        return cost / UNITS_PER_USD
    except OverflowError:
        return math.inf


def _set(run: Run, accounts: Accounts) -> None:
    run._refuse_if_ended("it can't spend anything")
    if run._locals is None:
        run._locals = {}
    run._locals[_KEY] = accounts
    if _KEY not in run._forks:
        run._forks = (*run._forks, _KEY)


def _exceeded(
    budget: LiveBudget, name: str, ledger: Ledger, amount: int | None, path: str
) -> BudgetExceeded:
    def words(n: int) -> str:
        return f"{n:,} tokens" if name == "tokens" else f"{dollars(n):,.10g} dollars"

    asked = f"for {words(amount)}" if amount is not None else "for a call of unknown size"
    return BudgetExceeded(
        f"run {path!r} asked {asked}, and the budget of run {budget.run_path!r} has "
        f"{words(ledger.left)} left of {words(ledger.limit)} ({words(ledger.spent)} spent, "
        f"{words(ledger.held)} reserved by calls under way); give open_run() a larger budget, ask "
        "for less at a time, or end with what there is",
        budget.run_path,
    )
