"""Let people look at a batch: while it runs, and afterwards in a report."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory

import click

from harness.cli._errors import EXIT_OK, EXIT_USAGE, InputError
from harness.cli._files import STANDARD_STREAM, Input, check_output
from harness.cli._later import named
from harness.cli._options import BatchOptions
from harness.cli._progress import Display
from harness.errors import NotObservableError
from harness.fanout._watch import watched_by
from harness.observe._live import Live
from harness.observe._socket import serving

logger = logging.getLogger("harness.observe")


class Recording:
    """A trace of the batch, which its report is made of."""

    def __init__(self, trace: str, page: str) -> None:
        """Record into the file ``trace``, and write the report to ``page``."""
        self.trace = trace
        self._page = page

    def write(self, status: int) -> int:
        """Write the report of a batch that ended with ``status``, and return the exit status."""
        try:
            named("harness.observe:write_report")(self.trace, self._page)
        except (OSError, ValueError) as error:
            click.echo(f"Error: the report can't be written: {error}", err=True)
            return EXIT_USAGE if status == EXIT_OK else status
        return status


def check_pages(options: BatchOptions, input_: Input, *, overwrite: bool) -> None:
    """Refuse a report that would destroy something, and a dashboard without its extra."""
    if options.report is not None:
        if options.report == STANDARD_STREAM:
            raise InputError("--report takes a file, such as report.html")
        check_output(options.report, input_, overwrite=overwrite, option="--report")
    if options.dashboard:
        try:
            named("harness.observe:open_dashboard")
        except ImportError as error:
            raise InputError(f"--dashboard: {error}") from error


@contextmanager
def recorded(options: BatchOptions) -> Iterator[Recording | None]:
    """Give a recording for the report, if one is asked for; its trace goes with the block."""
    if options.report is None:
        yield None
        return
    page = os.path.abspath(options.report)  # An agent may change the working directory.
    if options.trace is not None:
        yield Recording(os.path.abspath(options.trace), page)
        return
    with TemporaryDirectory(prefix="harness-") as folder:
        yield Recording(os.path.join(folder, "trace.jsonl"), page)


@asynccontextmanager
async def looked_at(
    live: Live, options: BatchOptions, display: Display, recording: Recording | None
) -> AsyncGenerator[None, None]:
    """Answer whoever looks inside the block, and record it, as the options say."""
    async with AsyncExitStack() as stack:
        if recording is not None and options.trace is None:
            record = named("harness.observe:record")
            await stack.enter_async_context(record(recording.trace, messages=True))
        if options.dashboard:
            page = named("harness.observe._dashboard:serving_page")
            address = await stack.enter_async_context(page(live, allow_cancel=options.allow_cancel))
            display.say(f"dashboard: {address}")
        try:
            await stack.enter_async_context(serving(live))
        except NotObservableError as error:
            logger.info("harness top can't show this batch: %s", error)
        with watched_by(live):
            yield
