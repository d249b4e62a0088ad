"""Let others look at a batch while it runs: ``harness top``, ``harness dump`` and the dashboard."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from harness.cli._errors import InputError
from harness.cli._later import named
from harness.cli._options import BatchOptions
from harness.cli._progress import Display
from harness.errors import NotObservableError
from harness.fanout._watch import watched_by
from harness.observe._live import Live
from harness.observe._socket import serving

logger = logging.getLogger("harness.observe")


@asynccontextmanager
async def looked_at(
    live: Live, options: BatchOptions, display: Display
) -> AsyncGenerator[None, None]:
    """Answer whoever looks inside the block, as far as the machine and the options allow."""
    async with AsyncExitStack() as stack:
        if options.dashboard:
            try:
                named("harness.observe:open_dashboard")  # Says which extra there has to be.
            except ImportError as error:
                raise InputError(f"--dashboard: {error}") from error
            page = named("harness.observe._dashboard:serving_page")
            address = await stack.enter_async_context(page(live, allow_cancel=options.allow_cancel))
            display.say(f"dashboard: {address}")
        try:
            await stack.enter_async_context(serving(live))
        except NotObservableError as error:
            logger.info("harness top can't show this batch: %s", error)
        with watched_by(live):
            yield
