"""Write an evaluation as a log of inspect_ai, whose viewer then opens it.

Its own package makes and writes the log, so whatever version is installed can read it back.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from uuid import uuid4

from harness.evals._evaluation import Evaluation
from harness.evals._score import MeanScore, SampleScore
from harness.evals._scorers import as_text


def write_inspect_log(
    evaluation: Evaluation, path: str | os.PathLike[str], *, model: str = "none/none"
) -> None:
    """Write a log that ``inspect view`` opens. Needs the package ``inspect-ai``.

    Every call is a sample of the log, a repeat an epoch. A call that failed has an error there and
    no score; the metrics are those of harness, so failed calls count as the evaluation says.

    Args:
      evaluation: What to write.
      path: The file: ``.eval``, or ``.json``.
      model: What the viewer shows as the model, such as ``openai/gpt-4o-mini``.

    Raises:
      ImportError: if ``inspect-ai`` isn't installed.
    """
    try:
        log: Any = import_module("inspect_ai.log")
        scoring: Any = import_module("inspect_ai.scorer")
        models: Any = import_module("inspect_ai.model")
    except ModuleNotFoundError as error:
        raise ImportError(
            "write_inspect_log() needs inspect_ai, which is not installed; "
            "run: pip install inspect-ai",
            name="inspect_ai",
        ) from error
    now = datetime.now(UTC).isoformat(timespec="seconds")
    ids = list(dict.fromkeys(one.sample.id for one in evaluation.scores))
    repeats = max(one.repeat for one in evaluation.scores) + 1

    def sample(one: SampleScore) -> Any:
        output = models.ModelOutput(model=model)
        if one.status == "ok":
            output = models.ModelOutput.from_content(model, as_text(one.output))
        scores = {
            name: scoring.Score(value=value, answer=as_text(one.output))
            for name, value in one.scores.items()
        }
        text = one.error or ""
        error = (
            None
            if one.status == "ok"
            else log.EvalError(message=text, traceback=text, traceback_ansi=text)
        )
        known = {"group": one.sample.group, "cluster": one.sample.cluster, "unscored": one.unscored}
        return log.EvalSample(
            id=one.sample.id,
            epoch=one.repeat + 1,
            input=as_text(one.sample.input),
            target=as_text(one.sample.expected),
            output=output,
            messages=[
                models.ChatMessageUser(content=as_text(one.sample.input)),
                *(choice.message for choice in output.choices),
            ],
            scores=scores,
            metadata={name: value for name, value in known.items() if value},
            total_time=one.seconds,
            error=error,
        )

    def score(mean: MeanScore) -> Any:
        figures = {"mean": mean.mean, "low": mean.low, "high": mean.high, "failed": mean.failed}
        metrics = {name: log.EvalMetric(name=name, value=value) for name, value in figures.items()}
        return log.EvalScore(
            name=mean.scorer,
            scorer=mean.scorer,
            scored_samples=mean.calls,
            unscored_samples=mean.unscored,
            metrics=metrics,
        )

    scored = dict.fromkeys(name for one in evaluation.scores for name in one.scores)
    done = sum(one.status == "ok" for one in evaluation.scores)
    made = log.EvalLog(
        status="success",
        eval=log.EvalSpec(
            created=now,
            run_id=uuid4().hex,
            task_id=uuid4().hex,  # The viewer shows the latest of each.
            task=evaluation.name,
            model=model,
            dataset=log.EvalDataset(name="samples", samples=len(ids), sample_ids=ids),
            config=log.EvalConfig(epochs=repeats),
        ),
        results=log.EvalResults(
            total_samples=len(evaluation.scores),
            completed_samples=done,
            scores=[score(evaluation.mean_score(name)) for name in scored],
        ),
        stats=log.EvalStats(started_at=now, completed_at=now),
        samples=[sample(one) for one in evaluation.scores],
    )
    log.write_eval_log(made, str(path))
