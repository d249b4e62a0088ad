"""Let a person approve what an agent is about to do, while the batch goes on.

Three customers want their money back. The agent looks each order up and asks for a
refund; the tool that pays is marked ``approve=True``, so those runs wait. A person
approves one and denies one; the next session goes on where they stopped, and asks
the model nothing twice. The last waits until somebody decides.

The answers come from code here. On the command line they are
``harness journal show refunds.db`` and ``harness journal approve refunds.db KEY``.

Run:     python examples/approved_refunds.py
Prints:  first session: 1 of 4 ok, 3 waiting for approval
         ada: refund({"order": 1, "usd": 20})
         bob: refund({"order": 2, "usd": 900})
         cy: refund({"order": 3, "usd": 35})
         second session: 3 of 4 ok, 1 waiting for approval
         ada: Your 20 dollars are on their way.
         bob: We can't: a person refused this call: more than the order cost
         cy: waiting
         dan: You are welcome.
         paid: [1]; the model was asked 6 times
"""

import json
import re
import tempfile
from pathlib import Path

import trio

import harness
from harness.agents import Agent, tool
from harness.errors import ApprovalPending
from harness.journal import edit_journal, open_journal, read_journal
from harness.models import FunctionModel, ModelRequest, ModelResponse, ToolCall

TICKETS = {
    "ada": "I want 20 dollars back for order 1.",
    "bob": "I want 900 dollars back for order 2.",
    "cy": "I want 35 dollars back for order 3.",
    "dan": "Thank you!",
}

paid: list[int] = []
asked: list[str] = []


@tool(approve=True)
async def refund(order: int, usd: int) -> str:
    """Pay the money for an order back.

    Args:
      order: The number of the order.
      usd: How many dollars.
    """
    await trio.lowlevel.checkpoint()  # Where the bank would be asked, with effect_key().
    paid.append(order)
    return f"{usd} dollars"


def model(request: ModelRequest) -> ModelResponse | str:
    """Stand in for a model: ask for the refund, then tell the customer."""
    ticket, last = request.messages[1].text, request.messages[-1]
    asked.append(ticket)
    if last.role == "tool":
        return (
            f"We can't: {last.text}"
            if "refused" in last.text
            else f"Your {last.text} are on their way."
        )
    numbers = re.findall(r"\d+", ticket)
    if not numbers:
        return "You are welcome."
    usd, order = map(int, numbers)
    return ModelResponse(tool_calls=[ToolCall("1", "refund", {"order": order, "usd": usd})])


AGENT = Agent(
    "refunds", model=FunctionModel(model), instructions="Be kind to customers.", tools=[refund]
)


async def session(file: Path) -> harness.Results[str]:
    """Go through all tickets; what is done is in the journal, and so is what waits."""

    async def answer(customer: str) -> str:
        return (await AGENT.run(TICKETS[customer])).output

    async with open_journal(file) as journal:
        return await harness.fan_out(
            answer,
            TICKETS,
            name="refunds",
            journal=journal,
            key=str,
            policy=harness.BestEffort(),
        )


def show(file: Path) -> None:
    """Print what a person has to decide."""
    with read_journal(file) as reader:
        for item in reader.waiting("refunds"):
            for call in item.calls:
                print(f"{item.key}: {call.tool}({json.dumps(call.arguments)})")


async def main() -> None:
    """Run a session, decide, and run another."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "refunds.db"
        results = await session(file)
        print(f"first session: {str(results.summary()).partition(';')[0]}")
        show(file)
        with edit_journal(file) as editor:
            editor.answer("refunds", "ada", True)
            editor.answer("refunds", "bob", "more than the order cost")
        results = await session(file)
    print(f"second session: {str(results.summary()).partition(';')[0]}")
    for result in results:
        print(f"{result.key}: {'waiting' if is_waiting(result) else result.value}")
    print(f"paid: {paid}; the model was asked {len(asked)} times")


def is_waiting(result: harness.Result[str]) -> bool:
    """Return whether an item waits for a person."""
    return result.status == "cancelled" and isinstance(result.error, ApprovalPending)


if __name__ == "__main__":
    trio.run(main)
