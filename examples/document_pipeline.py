"""Take documents through three stages, each with a limit of its own, without reading far ahead.

Eight documents are fetched at once, sixteen are with a model, and the index stores the
lines of up to twenty in one request, one request at a time. That is the slowest stage,
so it sets the pace: what is before it waits, back to the list of documents, which is
read no faster than they are indexed. Two documents are no good, and the rest goes on.

Run:     python examples/document_pipeline.py
Prints:  document 7 failed at fetch: no connection
         document 13 failed at summarise: the model gave no answer
         400 documents in 62 s, 80 read ahead at most
         fetch: 41% busy, 0 of 8 working, 0 waiting, 5.84 items/s, 1 failed, 40 dropped
         summarise: 73% busy, 0 of 16 working, 0 waiting, 5.82 items/s, 1 failed
         index: 93% busy, 0 of 1 working, 0 waiting, 5.82 items/s <- bottleneck
"""

from collections.abc import Iterator

import trio
from trio.testing import MockClock

import harness
from harness.flow import DROP, Batch, Drop, Pipeline, failed_at, stage

DOCUMENTS = 400
SECONDS = {"fetch": 0.5, "summarise": 2.0, "index": 3.0}


async def fetch(number: int) -> str | Drop:
    """Fetch a document; one in ten is empty, which is no failure."""
    await trio.sleep(SECONDS["fetch"])
    if number == 7:
        raise OSError("no connection")
    return DROP if number % 10 == 9 else f"document {number}"


async def summarise(document: str) -> str:
    """Ask a model for a line."""
    await trio.sleep(SECONDS["summarise"])
    if document == "document 13":
        raise ValueError("the model gave no answer")
    return f"what {document} says"


async def index(lines: list[str]) -> list[str]:
    """Store up to twenty lines in one request."""
    await trio.sleep(SECONDS["index"])
    return [f"{line}, stored" for line in lines]


async def main() -> None:
    """Index all of them, and report."""
    read = ended = most_ahead = 0

    def documents() -> Iterator[int]:
        nonlocal read, most_ahead
        for number in range(DOCUMENTS):
            read += 1
            most_ahead = max(most_ahead, read - ended)
            yield number

    pipeline = Pipeline(
        stage(fetch, limit=8),
        stage(summarise, limit=16),
        stage(index, limit=1, batch=Batch(20, within=2)),
        buffer=8,
    )
    async with pipeline.open(documents(), policy=harness.BestEffort()) as stream:
        async for result in stream:
            ended += 1
            if result.failed:
                print(
                    f"document {result.key} failed at {failed_at(result.error)[0]}: {result.error}"
                )
        statistics = stream.statistics()

    print(f"{DOCUMENTS} documents in {statistics.seconds:.0f} s, {most_ahead} read ahead at most")
    print(statistics)


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
