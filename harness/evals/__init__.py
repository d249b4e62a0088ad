"""Evaluate a function or an agent on samples: scores, what they say, and how sure that is.

`evaluate` is a fan-out whose results are scored; `sweep` does it for every combination of models,
prompts or whatever else; `Evaluation.compare` tells an improvement from luck. ::

    evaluation = await evaluate(agent.run, samples, scorers=["exact"])
    print(evaluation.mean_score())

Needs the extra ``evals``: scipy for the statistics, pygal for charts.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.evals._judge import AgentJudge, judge
from harness.evals._sample import Sample, read_samples
from harness.evals._scorers import Choice, Contains, Exact, Fields, Number, Scorer

if TYPE_CHECKING:
    from harness.evals._chart import write_chart
    from harness.evals._comparison import Comparison
    from harness.evals._confusion import Confusion
    from harness.evals._evaluate import evaluate, sweep
    from harness.evals._evaluation import Evaluation, read_evaluation
    from harness.evals._inspect_log import write_inspect_log
    from harness.evals._score import MeanScore, SampleScore
    from harness.evals._sweep import Sweep
else:
    __getattr__, __dir__ = lazy(extras={"scipy": "evals", "pygal": "evals"})

__all__ = [
    "AgentJudge",
    "Choice",
    "Comparison",
    "Confusion",
    "Contains",
    "Evaluation",
    "Exact",
    "Fields",
    "MeanScore",
    "Number",
    "Sample",
    "SampleScore",
    "Scorer",
    "Sweep",
    "evaluate",
    "judge",
    "read_evaluation",
    "read_samples",
    "sweep",
    "write_chart",
    "write_inspect_log",
]
