"""Run a simulated provider from the command line until it is interrupted."""

from __future__ import annotations

import signal

import attrs
import click
import trio

from harness.cli._errors import InputError
from harness.testing.provider import (
    AnswerFunction,
    Faults,
    Judged,
    ProviderRequest,
    ProviderStatistics,
    open_provider,
)


@click.command("sim-provider")
@click.option("--host", default="127.0.0.1", show_default=True, help="A loopback address.")
@click.option("--port", default=0, help="The port; by default one that is free.")
@click.option("--rpm", type=float, help="Most requests a minute.")
@click.option("--tpm", type=float, help="Most tokens a minute.")
@click.option("--rpd", type=float, help="Most requests in 24 hours.")
@click.option(
    "--judged",
    type=click.Choice(["bucket", "second", "minute"]),
    default="bucket",
    show_default=True,
    help="Over what the limits per minute are judged.",
)
@click.option("--reply", help="The text of every answer; by default the prompt.")
@click.option("--seed", default=0, help="Another seed, other requests are hit by faults.")
@click.option(
    "--error",
    "errors",
    multiple=True,
    metavar="STATUS=PROBABILITY",
    help="Fail some requests, such as 500=0.1. May be given several times.",
)
@click.option("--cut", default=0.0, help="Probability that the connection is cut.")
@click.option("--malformed", default=0.0, help="Probability that the JSON breaks off.")
@click.option("--hang", default=0.0, help="Probability that no answer comes.")
@click.option(
    "--latency",
    default="0",
    metavar="SECONDS|LOW..HIGH",
    help="How long answers take to begin, such as 0.2 or 0.1..0.5.",
)
def sim_provider(
    host: str,
    port: int,
    rpm: float | None,
    tpm: float | None,
    rpd: float | None,
    judged: Judged,
    reply: str | None,
    seed: int,
    errors: tuple[str, ...],
    cut: float,
    malformed: float,
    hang: float,
    latency: str,
) -> None:
    """Serve OpenAI's and Anthropic's APIs on this machine, with limits and faults.

    Prints where it listens, serves until Ctrl-C, then prints what it counted.
    """

    def answer(request: ProviderRequest) -> str:
        return request.prompt if reply is None else reply

    try:
        faults = Faults(
            seed=seed,
            errors=dict(_error(error) for error in errors),
            cut=cut,
            malformed=malformed,
            hang=hang,
            latency_seconds=_latency(latency),
        )
        statistics = trio.run(_serve, answer, host, port, rpm, tpm, rpd, judged, faults)
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
        raise InputError(f"can't listen on {host} port {port}: {error}") from error
    for name, value in attrs.asdict(statistics).items():
        click.echo(f"{name}: {value}")


async def _serve(
    answer: AnswerFunction,
    host: str,
    port: int,
    rpm: float | None,
    tpm: float | None,
    rpd: float | None,
    judged: Judged,
    faults: Faults,
) -> ProviderStatistics:
    """Serve until a signal asks for the end, and return what was counted."""
    # Before the URL is printed: who reads it may send the signal at once.
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_provider(
            answer=answer,
            requests_per_minute=rpm,
            tokens_per_minute=tpm,
            requests_per_day=rpd,
            judged=judged,
            faults=faults,
            host=host,
            port=port,
        ) as provider:
            click.echo(f"listening on {provider.base_url}")
            await anext(signals)
        return provider.statistics()


def _error(text: str) -> tuple[int, float]:
    status, _, probability = text.partition("=")
    try:
        return int(status), float(probability)
    except ValueError as error:
        raise ValueError(
            f"--error {text!r} must be a status and a probability, such as 500=0.1"
        ) from error


def _latency(text: str) -> float | tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else float(low)
    except ValueError as error:
        raise ValueError(
            f"--latency {text!r} must be seconds or two bounds, such as 0.2 or 0.1..0.5"
        ) from error
