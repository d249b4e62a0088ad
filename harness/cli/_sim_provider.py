"""Run a simulated provider from the command line until it is interrupted."""

from __future__ import annotations

import signal

import attrs
import click
import trio

from harness.cli._errors import InputError
from harness.cli._option_table import command, option
from harness.testing.provider import Faults, Judged, ProviderStatistics, open_provider


def _error(text: str) -> tuple[int, float]:
    status, _, probability = text.partition("=")
    try:
        return int(status), float(probability)
    except ValueError as error:
        raise click.UsageError(
            f"--error {text!r} must be a status and a probability, such as 500=0.1"
        ) from error


def _latency(text: str) -> float | tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else float(low)
    except ValueError as error:
        raise click.UsageError(
            f"--latency {text!r} must be seconds or two bounds, such as 0.2 or 0.1..0.5"
        ) from error


@attrs.frozen(kw_only=True)
class SimProviderOptions:
    """Serve OpenAI's and Anthropic's APIs on this machine, with limits and faults.

    Prints where it listens, serves until Ctrl-C, then prints what it counted.
    """

    host: str = option("A loopback address.", default="127.0.0.1")
    port: int = option("The port; by default one that is free.", default=0, shows_default=False)
    rpm: float | None = option("Most requests a minute.", type=float)
    tpm: float | None = option("Most tokens a minute.", type=float)
    rpd: float | None = option("Most requests in 24 hours.", type=float)
    judged: Judged = option(
        "Over what the limits per minute are judged.",
        type=click.Choice(["bucket", "second", "minute"]),
        default="bucket",
    )
    reply: str | None = option("The text of every answer; by default the prompt.")
    seed: int = option(
        "Another seed, other requests are hit by faults.", default=0, shows_default=False
    )
    error: list[tuple[int, float]] = option(
        "Fail some requests, such as 500=0.1. May be given several times.",
        "STATUS=PROBABILITY",
        many=True,
        read=lambda texts: [_error(text) for text in texts],
    )
    cut: float = option("Probability that the connection is cut.", default=0.0, shows_default=False)
    malformed: float = option(
        "Probability that the JSON breaks off.", default=0.0, shows_default=False
    )
    hang: float = option("Probability that no answer comes.", default=0.0, shows_default=False)
    latency: float | tuple[float, float] = option(
        "How long answers take to begin, such as 0.2 or 0.1..0.5.",
        "SECONDS|LOW..HIGH",
        read=_latency,
        default="0",
        shows_default=False,
    )


def _run(options: SimProviderOptions) -> None:
    try:
        statistics = trio.run(_serve, options)
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing != "h11":
            raise
        raise InputError(
            "sim-provider needs h11, which is not installed; "
            "run: pip install 'trio-harness[provider]'"
        ) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise InputError(f"can't listen on {options.host} port {options.port}: {error}") from error
    for name, value in attrs.asdict(statistics).items():
        click.echo(f"{name}: {value}")


async def _serve(options: SimProviderOptions) -> ProviderStatistics:
    """Serve until a signal asks for the end, and return what was counted."""
    reply = options.reply
    # Before the URL is printed: whoever reads it may send the signal at once.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_provider(
            answer=lambda request: request.prompt if reply is None else reply,
            requests_per_minute=options.rpm,
            tokens_per_minute=options.tpm,
            requests_per_day=options.rpd,
            judged=options.judged,
            faults=Faults(
                seed=options.seed,
                errors=dict(options.error),
                cut=options.cut,
                malformed=options.malformed,
                hang=options.hang,
                latency_seconds=options.latency,
            ),
            host=options.host,
            port=options.port,
        ) as provider:
            click.echo(f"listening on {provider.base_url}")
            await anext(signals)
        return provider.statistics()


sim_provider = command("sim-provider", SimProviderOptions, _run)
