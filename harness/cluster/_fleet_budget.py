"""Keep a budget for all processes, on a Redis server: reserved before a call, settled after it.

The server has one number for each dimension: what was *charged*, which is what was used, plus what
calls in progress hold. Invariants:

- What is reserved is charged before anybody is told that it may be spent, and only if the sum stays
  within the limit. So all processes together never hold more than the limit, however they end.
- Each change is made once, though its answer may be lost: a process makes one at a time, and says
  the same again, under the same number, until it hears.
- What a process had seen charged stays charged, even if the server forgets it, or remembers an
  older state: the process says so when it next asks.
- What nobody can settle any more, because its process died, stays charged. It may have been spent.

A process sends what has changed when it changes, and everything that is asked meanwhile with the
next call. A waiter that gives up leaves its amount to be returned when the answer comes.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from functools import partial

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._budget import Budget
from harness._events import happened
from harness.budgets import BudgetLeft
from harness.cluster._courier import Courier
from harness.runs._accounts import NOTHING, Ledger, Usage, dollars, units

_LARGEST = 2**53
"""The server counts in floating point, which is exact up to here."""

_UNITS_OF_COST = 1_000
"""It counts dollars in parts of a thousand units, so that nine million of them can be counted."""

_MOST_ASKED = 32

# Beside what was charged, a hash has what of it was charged before its epoch: when that begins anew
# because something was forgotten, what each process saw before is put in its place.
_CHARGE = """
local at = 0
local function arg() at = at + 1; return ARGV[at] end
local function number() return tonumber(arg()) end
local call, mine, fresh, seen_calls = arg(), arg(), arg(), number()
local last = redis.call('GET', KEYS[2])
if last then
  local words = {}
  for word in string.gmatch(last, '%S+') do words[#words + 1] = word end
  if table.remove(words, 1) == call then return words end
end
local state = {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
local function recall(name) return tonumber(state[name] or 0) end
local function keep(name, x) state[name] = string.format('%.0f', x) end

local calls = recall('calls')
local was_lost = mine ~= '' and (mine ~= state.epoch or calls < seen_calls)
if mine == state.epoch and was_lost then
  state.epoch = fresh
  for _, id in ipairs({'tokens', 'cost_usd'}) do keep('before:' .. id, recall('charged:' .. id)) end
end
state.epoch = state.epoch or fresh
keep('calls', math.max(calls, seen_calls) + 1)

local answer, dims = {state.epoch, state.calls}, number()
local charged, limits, ids = {}, {}, {}
for i = 1, dims do
  local id, limit, seen, change = arg(), number(), number(), number()
  local before, sum = recall('before:' .. id), recall('charged:' .. id)
  if was_lost and seen > before then
    sum = sum - before + seen
    keep('before:' .. id, seen)
  end
  ids[i], limits[i], charged[i] = id, limit, sum + change
end
local verdicts = {}
for _ = 1, number() do
  local verdict, amounts = 0, {}
  for i = 1, dims do
    local word = arg()
    amounts[i] = tonumber(word) or 0
    local least = word == '?' and 1 or amounts[i]
    if verdict == 0 and math.max(0, limits[i] - charged[i]) < least then verdict = i end
  end
  for i = 1, dims do
    if verdict == 0 then charged[i] = charged[i] + amounts[i] end
  end
  verdicts[#verdicts + 1] = tostring(verdict)
end
for i = 1, dims do
  keep('charged:' .. ids[i], charged[i])
  answer[#answer + 1] = state['charged:' .. ids[i]]
end
for _, verdict in ipairs(verdicts) do answer[#answer + 1] = verdict end
local change = {}
for name, value in pairs(state) do
  change[#change + 1] = name
  change[#change + 1] = value
end
redis.call('HSET', KEYS[1], unpack(change))
redis.call('SET', KEYS[2], call .. ' ' .. table.concat(answer, ' '), 'PX', '86400000')
return answer
"""


@attrs.define(eq=False)
class _Dimension:
    name: str
    ledger: Ledger
    scale: int
    """How many units of the ledger the server counts as one."""
    charged: int = 0
    """As the server last said."""
    unsent: int = 0
    """What it hasn't been told yet: more was used than was held, or less."""

    def amount(self, usage: Usage) -> int | None:
        units = usage.tokens if self.name == "tokens" else usage.cost
        return None if units is None else -(-units // self.scale)


@attrs.define(eq=False)
class _Asked:
    amounts: list[int | None]
    is_wanted: bool = True
    verdict: int | None = None
    """0 if it is held, else the number of the dimension in which it doesn't fit."""
    done: trio.Event = attrs.field(factory=trio.Event)


class FleetKeeper:
    """What a process knows of a budget on a server, and how it asks for a part of it."""

    def __init__(self, store: Courier, name: str, budget: Budget) -> None:
        self._store = store
        self._name = name
        self.tokens: Ledger | None = None
        self.cost: Ledger | None = None
        self._dimensions: list[_Dimension] = []
        if budget.tokens is not None:
            self.tokens = self._bound("tokens", budget.tokens, 1)
        if budget.cost_usd is not None:
            self.cost = self._bound("cost_usd", units(budget.cost_usd), _UNITS_OF_COST)
        # Worker threads settle, too.
        self._lock = threading.Lock()
        self._asked: deque[_Asked] = deque()
        self._is_sending = False
        self._member, self._number = uuid.uuid4().hex, 0
        self._epoch, self._calls_seen = "", 0

    def _bound(self, name: str, limit: int, scale: int) -> Ledger:
        if limit // scale > _LARGEST:
            raise ValueError(
                f"the budget {self._name!r} has too large a limit to be counted on a server; up to "
                "9,000,000,000,000,000 tokens and 9,000,000 dollars can be"
            )
        ledger = Ledger(limit // scale * scale)
        self._dimensions.append(_Dimension(name, ledger, scale))
        return ledger

    @enable_ki_protection
    async def hold(self, usage: Usage) -> str | None:
        """Hold ``usage``, or nothing; return the name of a dimension in which it doesn't fit."""
        _waiting_for = f"the budget {self._name!r}, which is kept on a server"
        self._store.refuse_closed()
        asked = _Asked([dimension.amount(usage) for dimension in self._dimensions])
        self._asked.append(asked)
        self._send()
        try:
            with trio.move_on_after(self._store.patience_seconds):
                await happened(asked.done)
        finally:
            asked.is_wanted = asked.verdict is not None
        if asked.verdict is None:
            raise self._store.gone()
        return self._dimensions[asked.verdict - 1].name if asked.verdict else None

    def settle(self, held: Usage, used: Usage) -> None:
        """Release what was held, and count what was used. In any thread; it never waits."""
        with self._lock:
            for dimension in self._dimensions:
                was = (dimension.amount(held) or 0) * dimension.scale
                now = (dimension.amount(used) or 0) * dimension.scale
                dimension.ledger.held -= was
                dimension.ledger.spent += now
                dimension.unsent += (now - was) // dimension.scale
        self._store.in_its_thread(self._send)

    async def left(self) -> BudgetLeft:
        """Ask what is left."""
        await self.hold(NOTHING)
        return BudgetLeft(
            tokens=None if self.tokens is None else self.tokens.left,
            cost_usd=None if self.cost is None else dollars(self.cost.left),
        )

    @enable_ki_protection
    def _send(self) -> None:
        if self._is_sending or not self._store.is_served:
            return
        asked: list[_Asked] = []
        while self._asked and len(asked) < _MOST_ASKED:
            if (one := self._asked.popleft()).is_wanted:
                asked.append(one)
        if not asked and not any(dimension.unsent for dimension in self._dimensions):
            return
        self._is_sending = True
        self._number += 1
        words: list[object] = [self._number, self._epoch, uuid.uuid4().hex, self._calls_seen]
        words.append(len(self._dimensions))
        for dimension in self._dimensions:
            with self._lock:
                change, dimension.unsent = dimension.unsent, 0
            limit = dimension.ledger.limit // dimension.scale
            words += [dimension.name, limit, dimension.charged, change]
        words.append(len(asked))
        for one in asked:
            words += ["?" if amount is None else amount for amount in one.amounts]
        self._store.post(
            _CHARGE,
            self._store.key("budget", self._name, "charged"),
            self._store.key("budget", self._name, "last call of", self._member),
            arguments=tuple(words),
            answered=partial(self._take_answer, asked),
        )

    def _take_answer(self, asked: list[_Asked], reply: list[str] | None) -> None:
        self._is_sending = False
        if reply is None:  # The store was closed.
            asked += self._asked
            self._asked.clear()
            for one in asked:
                one.done.set()
            return
        self._epoch, self._calls_seen = reply[0], int(reply[1])
        verdicts = map(int, reply[2 + len(self._dimensions) :])
        with self._lock:
            for one, verdict in zip(asked, verdicts, strict=True):
                if one.is_wanted:
                    one.verdict = verdict
                for dimension, amount in zip(self._dimensions, one.amounts, strict=True):
                    if verdict == 0 and amount and one.is_wanted:
                        dimension.ledger.held += amount * dimension.scale
                    elif verdict == 0 and amount:
                        dimension.unsent -= amount
            for dimension, charged in zip(self._dimensions, reply[2:], strict=False):
                dimension.charged = int(charged)
                # What calls in progress elsewhere hold counts as spent.
                known = (dimension.charged + dimension.unsent) * dimension.scale
                dimension.ledger.spent = known - dimension.ledger.held
        for one in asked:
            one.done.set()
        self._send()


@attrs.frozen(kw_only=True)
class FleetBudget(Budget):
    """A `harness.Budget` that processes share; made by `FleetStore.budget`."""

    keeper: FleetKeeper = attrs.field(repr=False, eq=False)

    async def left(self) -> BudgetLeft:
        """Ask the server what may still be reserved.

        Raises:
          ConnectionError: if the server can't be reached for 10 s.
          SharedClosedError: if the store's block was left.

        Checkpoint: always.

        Cancellation: changes nothing.
        """
        return await self.keeper.left()
