"""Say, when a model gives no answer, which run asked which model, and why it failed."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from harness.errors import (
    ContentFilterError,
    ContextWindowError,
    ModelAccessError,
    ModelError,
    ModelRequestError,
    ModelStatusError,
)
from harness.runs import current_run_or_none

ErrorT = TypeVar("ErrorT", bound=ModelError)


_CONTEXT = re.compile(
    r"context[ _-]?(?:length|window|size|limit)|maximum context|prompt is too long"
    r"|input (?:is too long|token count|length)|too many (?:input )?tokens"
    r"|reduce the length of|exceeds? the (?:model'?s )?maximum (?:number of )?(?:input )?tokens",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content[ _]?filter|content management policy|content_policy", re.IGNORECASE)
_REQUEST_STATUSES = frozenset({400, 404, 405, 410, 411, 413, 414, 415, 422})


def status_error_kind(status: int | None, body: object) -> type[ModelStatusError]:
    """Return the class of error that an answer with an error status stands for.

    Limits for rate and quotas come first, and aren't told here.

    Args:
      status: The status; None if there was none.
      body: What the answer said.
    """
    if status in (401, 403):
        return ModelAccessError
    # llama.cpp says 500 for what others answer with 400.
    if status in _REQUEST_STATUSES or status in (None, 500):
        words = str(body)
        if _CONTEXT.search(words):
            return ContextWindowError
        if _FILTER.search(words):
            return ContentFilterError
    return ModelRequestError if status in _REQUEST_STATUSES else ModelStatusError


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
