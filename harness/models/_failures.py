"""Say, when a model gives no answer, which run asked which model, and why it failed."""

from __future__ import annotations

from typing import Any, TypeVar

from harness.errors import ModelError
from harness.runs import current_run_or_none

ErrorT = TypeVar("ErrorT", bound=ModelError)


def model_error(
    kind: type[ErrorT], what: str, *, model: str, provider: str | None = None, **facts: Any
) -> ErrorT:
    """Return an error that names the model, what went wrong, and the run that asked.

    Args:
      kind: Its class.
      what: What went wrong, in words that follow "model 'x' ...".
      model: The model.
      provider: Who serves it.
      facts: Further arguments of the class.
    """
    run = current_run_or_none()
    asked_by = "outside any run" if run is None else f"by run {run.path!r}"
    served_by = "" if provider is None else f" of {provider}"
    return kind(
        f"model {model!r}{served_by} {what} (asked {asked_by})",
        model=model,
        provider=provider,
        **facts,
    )
