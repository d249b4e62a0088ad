"""Answer sixty tickets from twelve customers at once, and refund each customer once.

Shows what runs share on purpose: a budget that bounds them together, a cache that
loads each customer once, payments that are made once however many tickets ask for
them, and a log in the order of the tickets.

Run:     python examples/shared_refunds.py
Prints:  50 tickets answered, 10 without money left; 12 customers loaded, 12 refunds paid
         the log begins: ticket 0: refunded with receipt-0, ticket 1: refunded with receipt-1
"""

import trio
from trio.testing import MockClock

import harness
from harness.budgets import reserve_budget
from harness.shared import AppendLog, open_cache, open_once

TICKETS, CUSTOMERS = 60, 12
TOKENS_PER_ANSWER = 100


async def load_customer(customer: int) -> str:
    """Ask the database; slow."""
    await trio.sleep(1)
    return f"customer {customer}"


async def main() -> None:
    """Answer all tickets, and report."""
    log: AppendLog[str] = AppendLog()
    receipts = iter(range(CUSTOMERS))
    paid: list[int] = []

    async with (
        harness.open_run("tickets", budget=harness.Budget(tokens=5_000)),
        open_cache(ttl=600) as cache,
        open_once() as once,
    ):

        async def answer(ticket: int) -> str:
            customer = ticket % CUSTOMERS

            async def refund(idempotency_key: str) -> str:
                # The bank takes a second too, and more for customers with a higher number.
                await trio.sleep(1 + customer)
                paid.append(customer)
                return f"receipt-{next(receipts)}"

            await cache.get(customer, load_customer)
            with reserve_budget(tokens=TOKENS_PER_ANSWER) as spending:
                await trio.sleep(0.5)  # The model.
                spending.settle(tokens=TOKENS_PER_ANSWER)
            receipt = await once(("refund", customer), refund)
            log.append(f"ticket {ticket}: refunded with {receipt}")
            return receipt

        results = await harness.fan_out(
            answer, range(TICKETS), limit=20, policy=harness.BestEffort()
        )

    answered = sum(result.status == "ok" for result in results)
    loaded = cache.statistics().misses
    print(
        f"{answered} tickets answered, {len(results.failed)} without money left; "
        f"{loaded} customers loaded, {len(paid)} refunds paid"
    )
    print("the log begins:", ", ".join(log.merged()[:2]))


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
