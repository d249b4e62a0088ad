"""Let others see what a batch does while it runs: Prometheus, and an OpenTelemetry collector."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from harness.cli._errors import InputError
from harness.cli._later import named
from harness.cli._options import BatchOptions
from harness.runs import observing


@asynccontextmanager
async def exported(options: BatchOptions, say: Callable[[str], object]) -> AsyncGenerator[None]:
    """Observe the runs opened in the block, as the options say.

    Args:
      options: The command's.
      say: Shows a line.

    Raises:
      InputError: if an extra isn't installed, or the port is taken.
    """
    port, url = options.metrics_port, options.otlp
    if port is None and url is None:
        yield
        return
    async with AsyncExitStack() as stack:
        try:
            metrics = named("harness.observe:Metrics")()
            stack.enter_context(observing(metrics))
            if port is not None:
                port = stack.enter_context(named("harness.observe:serving_metrics")(metrics, port))
                say(f"metrics: http://127.0.0.1:{port}/metrics")
            if url is not None:
                exporting = named("harness.observe:exporting")
                await stack.enter_async_context(exporting(url, metrics=metrics))
        except ImportError as error:
            raise InputError(str(error)) from error
        except OSError as error:
            raise InputError(f"--metrics-port {port} can't be used: {error.strerror}") from error
        yield
