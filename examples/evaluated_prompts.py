"""Evaluate two prompts of an agent on labelled tickets, with a second agent as the judge.

The desk answers in sentences, so comparing texts would call everything wrong: a judge
reads each answer beside the right category. All calls of both prompts are one fan-out,
and so are the judge's. Then the two prompts are compared ticket by ticket, which tells
an improvement from luck.

Both models are simulated: a function that knows some labelled examples stands for the
desk's, and one that reads carefully for the judge's.

Run:     python examples/evaluated_prompts.py
Prints:  528 calls of models in 14.0 s; one after another takes 264 s
         prompt        scorer   mean  95 %            calls
         the ticket    judge   0.932  0.875 to 0.964    132
         with similar  judge   0.970  0.925 to 0.988    132
         judge: 0.932 -> 0.970
           +0.038 (+0.002 to +0.073, 95 %), p = 0.0625 (McNemar, exact)
           132 pairs: 5 better, 0 worse
         the hardest categories of the first: billing, delivery, refund
"""

import json
from pathlib import Path

import trio
from trio.testing import MockClock

from harness.agents import Agent
from harness.evals import judge, read_samples, sweep
from harness.models import FunctionModel, ModelRequest, ModelResponse
from labelled_answers import LabelledAnswers
from nearest_example import LabelledExamples

HERE = Path(__file__).parent
SECONDS_PER_CALL = 0.5
CALLS_AT_ONCE = 20
SIMILAR_TICKETS = 10

EXAMPLES = LabelledExamples.from_csv(HERE / "tickets_labelled.csv")
KNOWLEDGE = LabelledAnswers(EXAMPLES)
PROMPTS = {"the ticket": 0, "with similar": SIMILAR_TICKETS}
"""How many similar tickets are shown."""


async def desk_says(request: ModelRequest) -> ModelResponse:
    """Answer in a sentence, as the model of the desk."""
    await trio.sleep(SECONDS_PER_CALL)
    said = KNOWLEDGE([{"role": "user", "content": request.messages[-1].text}])
    return ModelResponse(f"This ticket is about: {json.loads(said)['category']}.")


async def judge_says(request: ModelRequest) -> ModelResponse:
    """Read reference and answer, as the model of the judge."""
    await trio.sleep(SECONDS_PER_CALL)
    parts = request.messages[-1].text.split("\n\n")
    reference, answer = (part.partition("\n")[2] for part in parts[-3:-1])
    return ModelResponse("CORRECT" if f": {reference}." in answer else "INCORRECT")


DESK = Agent("desk", model=FunctionModel(desk_says))
JUDGE = Agent("judge", model=FunctionModel(judge_says))


async def sort(ticket: str, *, prompt: int) -> str:
    """Ask the desk about a ticket, and show it that many similar ones."""
    similar = [
        {"category": one.category, "similarity": one.similarity}
        for one in EXAMPLES.nearest(ticket, count=prompt)
    ]
    reply = await DESK.run(json.dumps({"ticket": ticket, "similar_tickets": similar}))
    return reply.output


async def main() -> None:
    """Evaluate, compare, and report."""
    samples = read_samples(
        HERE / "tickets.csv", input="text", expected="category", group="category"
    )
    began_at = trio.current_time()
    found = await sweep(
        sort,
        samples,
        over={"prompt": PROMPTS},
        scorers=[judge(JUDGE.run)],
        limit=CALLS_AT_ONCE,
    )
    seconds = trio.current_time() - began_at

    calls = 2 * len(samples) * len(PROMPTS)
    one_by_one = calls * SECONDS_PER_CALL
    print(f"{calls} calls of models in {seconds:.1f} s; one after another takes {one_by_one:.0f} s")
    print(found)
    plain, similar = found["the ticket"], found["with similar"]
    print(str(plain.compare(similar)).replace("; ", "\n  "))
    groups = plain.by_group()
    hardest = sorted(groups, key=lambda group: groups[group].mean())[:3]
    print(f"the hardest categories of the first: {', '.join(hardest)}")


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
