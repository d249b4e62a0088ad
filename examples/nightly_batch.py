"""Sort a night's messages with the commands that a person would type, from plan to export.

The agent and its prompt are in this file, and so is the simulated provider that
answers over HTTP. Everything else is the command line: a plan that says the window
is too short, a run that stops when it is over, a look from another process, the rest
in a second session. Then one line of the prompt is changed, and what it concerns is
run again; the two nights are compared, a sample is run again alone, the answers are
scored by category, and all of it is exported and read back.

Run:     python examples/nightly_batch.py
Or:      python examples/nightly_batch.py MESSAGES.csv LABELLED.csv
Prints:  plan: at least 0.66 s needed, 0.4 s given: requests bind; 52 requests short, ...
         meanwhile: 20 of 132 done, 0 failed, 20 in flight, 50/s
         first session: 40 sorted, 92 did not fit in 0.4s
         second session: 132 sorted, 40 of them in the first
         2 of billing were taken for cancellation; with another prompt
           14 of 132 were asked again
           before.jsonl has 132 items, night.jsonl 132; 127 came to the same
           0 new, 0 gone, 5 changed, 0 newly failed, 0 recovered, 0 slower, 0 dearer
         alone: 0 of 132 differ, and that is all of them
         right: 0.924 (0.866 to 0.958); by category from
           cancellation: 0.727 (0.434 to 0.903)
           delivery: 0.909 (0.623 to 0.984)
           refund: 0.909 (0.623 to 0.984)
         exported: 132 rows of 21 columns; 14,627 tokens

What the first three lines say depends on the machine; from then on only the counts of
slower items and of tokens do.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet  # type: ignore[import-untyped]
import trio

from harness.agents import Agent
from harness.evals import Sample, evaluate
from harness.testing.provider import Faults, ProviderRequest, open_provider
from nearest_example import LabelledExamples

HERE = Path(__file__).parent
REQUESTS_PER_MINUTE = 12_000
AT_ONCE = 20
LATENCY_SECONDS = (0.05, 0.2)
SHOWN = 3


# The agent ---------------------------------------------------------------------------------------


@attrs.frozen
class Sorted:
    """What the agent says of a message."""

    category: str


sorter = Agent(
    "sorter",
    model="openai:simulated",
    instructions=f"Sort the message into a category. {os.environ.get('SORTER_NOTE', '')}",
    output_type=Sorted,
)
"""`harness batch` gives it a model. What the environment adds is the line that is changed."""


def answers(examples: LabelledExamples) -> Callable[[ProviderRequest], str]:
    """Return what takes the place of a model: the category with the most similar examples.

    Where the prompt says ``between A and B choose A``, it does so if it wavers between the two.
    """

    def answer(request: ProviderRequest) -> str:
        messages = request["messages"]
        prompt, text = messages[0]["content"], messages[-1]["content"]
        scores = examples.category_similarities(text)
        best, second = sorted(scores, key=lambda category: (-scores[category], category))[:2]
        if f"between {second} and {best} choose {second}" in prompt:
            best = second
        return json.dumps({"category": best})

    return answer


# The commands ------------------------------------------------------------------------------------


@attrs.frozen
class Night:
    """A folder with a batch in it, and how commands are run there."""

    folder: Path
    environment: Mapping[str, str]

    async def harness(
        self, *words: str | Path, note: str = "", may_end: Sequence[int] = (0,)
    ) -> list[str]:
        """Run a command, and return the lines that it prints."""
        done = await trio.run_process(
            [sys.executable, "-m", "harness", *map(str, words)],
            cwd=self.folder,
            env={**self.environment, "SORTER_NOTE": note},
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said = done.stdout.decode()
        if done.returncode not in may_end:
            raise SystemExit(f"harness {words[0]} ended with {done.returncode}:\n{said}")
        return said.splitlines()

    async def batch(self, *words: str, note: str = "", may_end: Sequence[int] = (0,)) -> list[str]:
        """Run ``harness batch`` on the messages."""
        return await self.harness(
            *("batch", TARGET, *INPUT, "--limit", str(AT_ONCE), "--rpm", str(REQUESTS_PER_MINUTE)),
            *("--journal", "night.db", "--output", "night.jsonl", "--summary", "summary.json"),
            *words,
            note=note,
            may_end=may_end,
        )

    def summary(self) -> dict[str, Any]:
        """Return what the last batch wrote as its summary."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def categories(self) -> dict[str, str]:
        """Return what the last batch said of each message, by key."""
        lines = (self.folder / "night.jsonl").read_text(encoding="utf-8").splitlines()
        return {line["key"]: line["value"]["category"] for line in map(json.loads, lines)}


TARGET = f"{HERE / 'nightly_batch.py'}:sorter"
INPUT = ("--input", "messages.csv", "--key", "id", "--prompt", "text")


# The night ---------------------------------------------------------------------------------------


async def main(messages: Path, labelled: Path) -> None:
    """Go through a night."""
    examples = LabelledExamples.from_csv(labelled)
    with messages.open(newline="", encoding="utf-8") as file:
        samples = [
            Sample(f"m{number}", row["text"], row["category"], group=row["category"])
            for number, row in enumerate(csv.DictReader(file))
        ]
    async with open_provider(
        answer=answers(examples),
        requests_per_minute=REQUESTS_PER_MINUTE,
        faults=Faults(latency_seconds=LATENCY_SECONDS),
    ) as provider:
        with tempfile.TemporaryDirectory() as folder:
            keys = {"OPENAI_BASE_URL": provider.base_url, "OPENAI_API_KEY": "simulated"}
            night = Night(Path(folder), {**os.environ, **keys})
            with (night.folder / "messages.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(("id", "text"))
                writer.writerows((sample.id, sample.input) for sample in samples)
            await first_night(night, len(samples))
            note = await second_night(night, samples)
            await what_it_came_to(night, samples, note)


async def first_night(night: Night, count: int) -> None:
    """Plan, run in a window that is too short, look at it meanwhile, and do the rest."""
    window = f"{count / AT_ONCE * sum(LATENCY_SECONDS) / 4:.1f}s"
    planned = await night.batch("--within", window, "--dry-run")
    print("plan:", *next(line for line in planned if "needed" in line).split()[1:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, night)
        await night.batch("--within", window, may_end=(1,))
    done = night.summary()
    print(f"first session: {done['ok']:,} sorted, {done['did_not_fit']:,} did not fit in {window}")
    await night.batch("--resume", "--overwrite")
    done = night.summary()
    print(f"second session: {done['ok']:,} sorted, {done['from_journal']:,} of them in the first")


async def look(night: Night) -> None:
    """Say how far the batch is, as soon as there is something to see."""
    journal = night.folder / "night.db"
    while not journal.exists():  # noqa: ASYNC110  # It belongs to another process.
        await trio.sleep(0.1)
    said = await night.harness("journal", "watch", journal, "--once", may_end=(0, 1))
    print("meanwhile:", *said[1:2])


async def second_night(night: Night, samples: Sequence[Sample]) -> str:
    """Change what the prompt says of the category that is missed most; return what it says."""
    before = night.categories()
    pairs = ((sample.expected, before[str(sample.id)]) for sample in samples)
    misses = Counter((right, wrong) for right, wrong in pairs if right != wrong)
    (right, wrong), missed = misses.most_common(1)[0]
    note = f"Whenever you waver between {right} and {wrong} choose {right}."
    shutil.copy(night.folder / "night.jsonl", night.folder / "before.jsonl")
    await night.harness("journal", "retry", "night.db", "--where", f'value.category == "{wrong}"')
    await night.batch("--resume", "--force", "--overwrite", note=note)
    done = night.summary()
    print(f"{missed} of {right} were taken for {wrong}; with another prompt")
    print(f"  {done['ok'] - done['from_journal']} of {done['ok']:,} were asked again")
    differences = await night.harness(
        "diff", "before.jsonl", "night.jsonl", "--totals", may_end=(0, 1)
    )
    print(*(f"  {line}" for line in differences[:2]), sep="\n")
    return note


async def what_it_came_to(night: Night, samples: Sequence[Sample], note: str) -> None:
    """Run a sample again alone, score the answers, export everything."""
    verified = await night.harness(
        *("verify", "night.jsonl", "--target", TARGET, *INPUT, "--sample", "300", "--limit", "4"),
        note=note,
    )
    print("alone:", verified[0])

    said = night.categories()
    by_text = {sample.input: said[str(sample.id)] for sample in samples}

    async def answered(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return by_text[text]

    evaluation = await evaluate(answered, samples, scorers=["exact"])
    low, high = evaluation.interval("exact")
    print(f"right: {evaluation.mean('exact'):.3f} ({low:.3f} to {high:.3f}); by category from")
    groups = sorted(evaluation.by_group().items(), key=lambda group: group[1].mean("exact"))
    for name, group in groups[:SHOWN]:
        low, high = group.interval("exact")
        print(f"  {name}: {group.mean('exact'):.3f} ({low:.3f} to {high:.3f})")

    await night.harness("journal", "export", "night.db", "--output", "night.parquet")
    table = pyarrow.parquet.read_table(night.folder / "night.parquet")
    tokens = sum(table["tokens"].to_pylist())
    print(f"exported: {table.num_rows:,} rows of {table.num_columns} columns; {tokens:,} tokens")


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    messages, labelled = given or (HERE / "tickets.csv", HERE / "tickets_labelled.csv")
    trio.run(main, messages, labelled)
