"""Keep what a run and all below it may spend, and tell listeners what they spent.

A run's accounts are the budgets and meters of that run and of all above it. They are among the
run's values, under a key that says how a child starts: with the same ones. So a tree without a
budget pays nothing for them, and a child finds all levels in one place.

Code in no run can still spend for one: a cache's load is paid for by whoever started it, though it
outlives that run. Such code carries the accounts in its context (`paid_by`), and the tree of a run
that it opens keeps them. A task that `harness.start_soon` gives to another run, or to none, doesn't
carry them on: a worker first needed there would otherwise spend for it forever.

Spending goes through `harness.budgets`, which reserves in all budgets or in none, and settles.
Nobody ever waits for what another holds, so a budget can't be part of a deadlock. A budget that
processes share has a *keeper*, which asks a server: for its answer alone there is a wait.

Invariant, at every step: in each budget, whatever is held or spent fitted in before it was held.
Only use above its estimate can go beyond the limit: then nothing is left, and the excess is known.
`left` is never negative.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias

from trio.lowlevel import enable_ki_protection

from harness.errors import BudgetExceeded, ReservationError
from harness.runs._current import current
from harness.runs._run import Run

if TYPE_CHECKING:
    from harness._budget import Budget

UNITS_PER_USD = 10**12
"""Costs are kept in whole units: sums of fractions would drift, and a refund would leave crumbs.
The price of a token is a few hundred thousand units."""


class UsageMeter(Protocol):
    """Is told everything spent in a run and below it, without bounding it."""

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Note what was used, once it is known. Called in the thread that spent; mustn't raise."""
        ...


# Plain classes, not attrs: each takes half a millisecond to make, and `import harness` makes them.


class Usage:
    """An amount in each dimension; None if unknown."""

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
        self.limit: int = limit
        self.held: int = 0
        """Reserved by calls in progress."""
        self.spent: int = 0

    @property
    def left(self) -> int:
        """What the next call may reserve; never negative."""
        return max(0, self.limit - self.spent - self.held)


class BudgetKeeper(Protocol):
    """Keeps a budget that other processes share, and asks them, or a server, before it lends."""

    tokens: Ledger | None
    """As far as this process knows; None if it doesn't bound them."""
    cost: Ledger | None

    async def hold(self, usage: Usage) -> str | None:
        """Hold ``usage``, or nothing; return the name of a dimension in which it doesn't fit.

        Raises:
          ConnectionError: if nobody can be asked. Nothing is held then.
        """
        ...

    def settle(self, held: Usage, used: Usage) -> None:
        """Release what was held, and count what was used. In any thread; it never waits."""
        ...


class LiveBudget:
    """A budget in force, and what has been spent of it."""

    __slots__ = ("charged", "cost", "keeper", "refused", "run_path", "tokens")

    def __init__(self, run_path: str, budget: Budget) -> None:
        self.run_path = run_path
        self.keeper: BudgetKeeper | None = getattr(budget, "keeper", None)
        """Who keeps it, if other processes share it."""
        if self.keeper is not None:
            self.tokens, self.cost = self.keeper.tokens, self.keeper.cost
        else:
            self.tokens = None if budget.tokens is None else Ledger(budget.tokens)
            self.cost = None if budget.cost_usd is None else Ledger(units(budget.cost_usd))
        self.refused = 0
        """Reservations that it refused."""
        self.charged: set[object] = set()
        """The pieces of work whose earlier sessions were counted; later use is charged directly."""

    def ledgers(self, usage: Usage) -> Iterator[tuple[str, Ledger, int | None]]:
        """Yield each dimension that is bounded: its name, ledger, and the amount in ``usage``."""
        if self.tokens is not None:
            yield "tokens", self.tokens, usage.tokens
        if self.cost is not None:
            yield "cost_usd", self.cost, usage.cost


class Accounts:
    """The budgets and meters that apply to one run: its own and those above. Never changed."""

    __slots__ = ("budgets", "meters", "shared")

    def __init__(
        self, budgets: tuple[LiveBudget, ...] = (), meters: tuple[UsageMeter, ...] = ()
    ) -> None:
        self.budgets = budgets
        """Outermost first."""
        self.meters = meters
        self.shared = tuple(budget for budget in budgets if budget.keeper is not None)
        """Those among the budgets that other processes share."""

    @enable_ki_protection
    def reserve(self, usage: Usage, path: str) -> None:
        """Hold ``usage`` in all budgets, or in none, without a wait.

        Raises:
          BudgetExceeded: if it doesn't fit into one. An unknown amount fits while anything is left.
          ReservationError: if other processes share one.
        """
        if self.shared:
            raise ReservationError(
                f"the budget of run {self.shared[0].run_path!r} is shared with other processes, so "
                "reserving has to ask a server; write `async with reserve_budget(...)`"
            )
        self._reserve_here(usage, path)

    @enable_ki_protection
    async def reserve_shared(self, usage: Usage, path: str) -> None:
        """Hold ``usage`` in all budgets, or in none, asking those who share one.

        Raises:
          BudgetExceeded: as `reserve`.
          ConnectionError: if they can't be asked. Nothing is held then.

        Cancellation: nothing is held.
        """
        self._reserve_here(usage, path)
        held = [budget for budget in self.budgets if budget.keeper is None]
        try:
            for budget in self.shared:
                assert budget.keeper is not None
                full = await budget.keeper.hold(usage)
                if full is not None:
                    budget.refused += 1
                    for name, ledger, amount in budget.ledgers(usage):
                        if name == full:
                            raise _exceeded(budget, name, ledger, amount, path)
                held.append(budget)
        except BaseException:
            Accounts(tuple(held)).settle(usage, NOTHING)
            raise

    def _reserve_here(self, usage: Usage, path: str) -> None:
        with _lock:
            for budget in self.budgets:
                if budget.keeper is None:
                    for name, ledger, amount in budget.ledgers(usage):
                        if ledger.left < (1 if amount is None else amount):
                            budget.refused += 1
                            raise _exceeded(budget, name, ledger, amount, path)
            for budget in self.budgets:
                if budget.keeper is None:
                    for _, ledger, amount in budget.ledgers(usage):
                        ledger.held += amount or 0

    @enable_ki_protection
    def settle(self, held: Usage, used: Usage) -> None:
        """Release what was held, and count what was used, whatever it is."""
        with _lock:
            for budget in self.budgets:
                if budget.keeper is None:
                    for _, ledger, amount in budget.ledgers(held):
                        ledger.held -= amount or 0
                    for _, ledger, amount in budget.ledgers(used):
                        ledger.spent += amount or 0
        for budget in self.shared:
            assert budget.keeper is not None
            budget.keeper.settle(held, used)
        if self.meters and (used.tokens or used.cost):
            for meter in self.meters:
                meter.spent(used.tokens or 0, dollars(used.cost or 0))

    def charge_earlier(self, used: Usage, work: object = None) -> None:
        """Charge to the budgets what an earlier session used; meters were told then.

        Args:
          used: The amount.
          work: What it was used for. A budget that was charged for the same work before has been
            charged for all later use, and isn't charged again. None: always charged.
        """
        Accounts(self.not_charged(work)).settle(NOTHING, used)
        if work is not None:
            for budget in self.budgets:
                budget.charged.add(work)

    def not_charged(self, work: object) -> tuple[LiveBudget, ...]:
        """Return the budgets that weren't charged for a work's earlier sessions.

        One that other processes share was charged in those sessions.
        """
        return tuple(
            budget
            for budget in self.budgets
            if budget.keeper is None and work not in budget.charged
        )


NO_ACCOUNTS = Accounts()

Payer: TypeAlias = tuple[Accounts, str]
"""Who pays: the accounts, and the path of the run they belong to."""

NOBODY: Payer = (NO_ACCOUNTS, "")

paid_by: ContextVar[Payer] = ContextVar("harness.runs.paid_by", default=NOBODY)
"""Who pays for code that is in no run. Set in tasks made for such code, and never reset."""

_lock = threading.Lock()
"""Guards all ledgers, because worker threads spend too. Nothing is called or awaited under it."""


class _AccountsKey:
    """What a run keeps its accounts under; a child starts with the same."""

    def fork_value(self, value: Accounts) -> Accounts:
        """Return what a child run starts with."""
        return value


_KEY = _AccountsKey()


def current_accounts() -> Payer:
    """Return the accounts that apply to the calling code, with the path of its run.

    Raises:
      RunEndedError: if the current run has ended.
    """
    run = current.get()
    if run is None:
        return paid_by.get()
    run._refuse_if_ended("it can't spend anything")
    return accounts_of(run), run.path


def current_payer() -> Payer:
    """Return who pays for code started here that belongs to no run of this tree."""
    run = current.get()
    if run is None or run.status != "running":
        return paid_by.get()
    return accounts_of(run), run.path


def accounts_of(run: Run) -> Accounts:
    """Return the accounts of a live run; its parent's, if it hasn't begun yet."""
    for where in (run, run._parent):
        if where is not None and where._locals is not None and _KEY in where._locals:
            accounts: Accounts = where._locals[_KEY]
            return accounts
    return payer_of(run)[0]


def payer_of(run: Run) -> Payer:
    """Return who pays for the tree of ``run``, besides the runs in it."""
    payer: Payer | None = run._above.tree.payer
    return NOBODY if payer is None else payer


def add_budget(run: Run, budget: Budget) -> None:
    """Make ``run``, and each run opened in it from now on, keep to ``budget``."""
    accounts = accounts_of(run)
    keeper = getattr(budget, "keeper", None)
    if keeper is not None and any(one.keeper is keeper for one in accounts.shared):
        return  # What is spent here is charged to it already.
    _set(run, Accounts((*accounts.budgets, LiveBudget(run.path, budget)), accounts.meters))


def add_meter(run: Run, meter: UsageMeter) -> None:
    """Tell ``meter`` what is spent in ``run``, and in each run opened in it from now on.

    May be called before the run begins, by the engine that made it.
    """
    accounts = accounts_of(run)
    _set(run, Accounts(accounts.budgets, (*accounts.meters, meter)))


def units(cost_usd: float) -> int:
    """Return dollars as whole units."""
    whole = int(cost_usd)  # By itself: a large float would be infinite in units.
    return whole * UNITS_PER_USD + round((cost_usd - whole) * UNITS_PER_USD)


def dollars(cost: int) -> float:
    """Return whole units as dollars; inf if there are too many."""
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
        f"{words(ledger.held)} reserved by calls in progress); give open_run() a larger budget, "
        "ask for less at a time, or end with what there is",
        budget.run_path,
    )
