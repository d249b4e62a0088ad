"""Sort a batch of support tickets into categories, many agents at once.

Each ticket gets its own run: the agent asks the model for a category, and shows it
similar tickets until the model is sure. Its messages are in a `RunLocal`, so a
thousand concurrent runs never see each other's.

The model is simulated: it needs no network, takes a while to answer, and now and
then fails in a way that a retry cures. It learns from labelled examples:
tickets_labelled.csv here, or the CSV file that TRIAGE_EXAMPLES names.

Run:     python examples/triage.py
Or:      harness batch examples/triage.py:triage --retry 3 --input FILE --output FILE
         on any CSV or JSONL file with a "text" field (and the right answer as
         "category" or "label", if known), or on plain lines
Prints:  132 tickets in, 132 results out: 132 ok, 0 not
         7 attempts failed; retries recovered 6 tickets
         1.2 s for runs of 28.0 s in all, 24 times as fast as one by one
         125 of 132 answers are right
         9 tickets run again alone: 9 got the same answer as together

Only the times depend on the machine: a slower one adds to them.
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import trio

import harness
from labelled_answers import LabelledAnswers
from nearest_example import LabelledExamples, category_of
from simulated_model import Message, ModelOverloadedError, SimulatedModel

HERE = Path(__file__).parent
EXAMPLES_VARIABLE = "TRIAGE_EXAMPLES"
MOST_MODEL_CALLS = 3
SIMILAR_TICKETS_PER_CALL = 10
SURE = 0.2  # Below this confidence the agent asks again.
TICKETS_AT_ONCE = 50
SAMPLE_EVERY = 16
GAPS_SHOWN = 3
CATEGORIES_SHOWN = 5
EACH_TICKET = harness.Attempt(
    timeout=10,
    # Without jitter, so that the times in the header are the same each time.
    retry=harness.Retry(3, first_delay=0.2, jitter=0, on=ModelOverloadedError),
)
INSTRUCTIONS = "Sort the support ticket into one of the categories. Say how confident you are."

# Read once, when the module is imported: a wrong path is then a single error before
# anything runs, and costs no ticket any time.
EXAMPLES = LabelledExamples.from_csv(
    Path(os.environ.get(EXAMPLES_VARIABLE) or HERE / "tickets_labelled.csv")
)
MODEL = SimulatedModel(answer=LabelledAnswers(EXAMPLES))

messages: harness.RunLocal[list[Message]] = harness.RunLocal(list, name="messages")


class Answer(TypedDict):
    """What is known of a ticket after triage."""

    category: str
    confidence: float
    expected: str | None
    model_calls: int


async def triage(record: Mapping[str, Any] | str) -> Answer:
    """Find the category of one ticket.

    Args:
      record: The ticket's text, or a record that has it as ``text``. If the record
        states the right category, that is passed on for comparison.

    Raises:
      ValueError: if there is no text, or the right category is one that no labelled
        example has.
      ModelOverloadedError: if the model can't answer now. Call again: this attempt
        leaves nothing behind, since its messages end with its run.

    Checkpoint: always.

    Cancellation: nothing is left behind.
    """
    ticket, expected = read_record(record)
    idempotency_key = harness.current_run().idempotency_key
    tell("system", INSTRUCTIONS)
    tell("user", json.dumps({"ticket": ticket}))
    for call in range(1, MOST_MODEL_CALLS + 1):
        messages.get().append(await MODEL.complete(messages.get(), idempotency_key=idempotency_key))
        category, confidence = extract(messages.get())
        if confidence >= SURE or call == MOST_MODEL_CALLS:
            break
        tell("user", json.dumps({"similar_tickets": more_similar_tickets(ticket, call)}))
    return Answer(category=category, confidence=confidence, expected=expected, model_calls=call)


def tell(role: str, content: str) -> None:
    """Add a message to this run's own."""
    messages.get().append({"role": role, "content": content})


def extract(chat: Sequence[Message]) -> tuple[str, float]:
    """Return the assistant's latest category and confidence."""
    said = next(message for message in reversed(chat) if message["role"] == "assistant")
    proposal = json.loads(said["content"])
    return proposal["category"], proposal["confidence"]


def more_similar_tickets(ticket: str, call: int) -> list[dict[str, str | float]]:
    """Return the labelled examples that the model is to see after its ``call``-th answer."""
    shown = (call - 1) * SIMILAR_TICKETS_PER_CALL
    return [
        {"text": near.text, "category": near.category, "similarity": round(near.similarity, 3)}
        for near in EXAMPLES.nearest(ticket, shown + SIMILAR_TICKETS_PER_CALL)[shown:]
    ]


def read_record(record: Mapping[str, Any] | str) -> tuple[str, str | None]:
    """Return a record's text, and its category if it states one.

    Raises:
      ValueError: if there is no text, or no labelled example has that category.
    """
    fields = record if isinstance(record, Mapping) else {"text": record}
    ticket, expected = fields.get("text"), category_of(fields)
    if not isinstance(ticket, str) or not ticket.strip():
        raise ValueError(
            f"a ticket is a text with at least one word, and here is {record!r}; put the text "
            "into a field named 'text'"
        )
    if expected is not None and expected not in EXAMPLES.categories:
        raise ValueError(
            f"the ticket's category is {expected!r}, and the labelled examples have only "
            f"{', '.join(EXAMPLES.categories[:CATEGORIES_SHOWN])} ...; set {EXAMPLES_VARIABLE} to "
            "a CSV file of examples for this input (columns text,category), or leave the category "
            "out"
        )
    return ticket, expected


async def main() -> None:
    """Sort our own tickets, and report."""
    with (HERE / "tickets.csv").open(newline="", encoding="utf-8") as file:
        tickets = list(csv.DictReader(file))

    started_at = trio.current_time()
    results = await harness.fan_out(
        triage, tickets, policy=harness.BestEffort(), limit=TICKETS_AT_ONCE, each=EACH_TICKET
    )
    together_seconds = trio.current_time() - started_at

    report(results, together_seconds)

    sample = [result for result in results if result.ok][::SAMPLE_EVERY]
    same = 0
    for result in sample:
        (alone,) = await harness.fan_out(triage, [result.item], each=EACH_TICKET)
        same += alone.value == result.value
    print(f"{len(sample)} tickets run again alone: {same} got the same answer as together")


def report(results: harness.Results[Answer], together_seconds: float) -> None:
    """Print what became of the tickets."""
    answers = results.values()
    print(
        f"{len(results)} tickets in, {len(results)} results out: "
        f"{len(answers)} ok, {len(results.gaps)} not"
    )
    for result in results.gaps[:GAPS_SHOWN]:
        print(f"  ticket {result.index}: {result.error}")
    recovered = sum(result.ok and result.attempts > 1 for result in results)
    failed_attempts = sum(result.attempts for result in results) - len(answers)
    print(f"{failed_attempts} attempts failed; retries recovered {recovered} tickets")
    runs_seconds = sum(result.seconds for result in results)
    print(
        f"{together_seconds:.1f} s for runs of {runs_seconds:.1f} s in all, "
        f"{runs_seconds / together_seconds:.0f} times as fast as one by one"
    )
    right = sum(answer["category"] == answer["expected"] for answer in answers)
    print(f"{right} of {len(answers)} answers are right")


if __name__ == "__main__":
    trio.run(main)
