"""Turn everything that providers' libraries raise, or let through, into one family of errors.

They have errors of their own for an answer's status and for a connection that can't be opened. If
an answer breaks off, or can't be read, whatever the layer beneath raises comes through.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from harness._words import error_in_words
from harness.errors import (
    ModelConnectionError,
    ModelError,
    ModelQuotaExhaustedError,
    ModelRateLimitedError,
    ModelReplyError,
    ModelRequestTooLargeError,
    ModelUnreachableError,
)
from harness.limits import parse_rate_limit_headers
from harness.models._dialect import ReportedError, UnreadableReply, message_of
from harness.models._events import EventTooLargeError
from harness.models._failures import model_error, status_error_kind

# The layers beneath: both generations of the HTTP library, and what they build on.
_TRANSPORTS = frozenset({"anyio", "h11", "h2", "httpcore", "httpcore2", "httpx", "httpx2"})

# The HTTP library's errors from before anything is sent.
_UNREACHABLE = frozenset(
    {"ConnectError", "ConnectTimeout", "InvalidURL", "PoolTimeout", "UnsupportedProtocol"}
)

_MALFORMED = json.JSONDecodeError | UnicodeDecodeError | RecursionError | EventTooLargeError

# A shorter one is a placeholder, not a secret, and may be part of any word.
_SHORTEST_KEY = 8
_REMOVED = "[key]"


class SdkFailures:
    """What can go wrong in the library of one model.

    Args:
      sdk: The library's module.
      model: The model's name.
      provider: Who serves it.
      key: What must never appear in a message.
    """

    def __init__(self, sdk: Any, *, model: str, provider: str, key: str) -> None:
        self._sdk = sdk
        self._model = model
        self._provider = provider
        self._key = key

    @contextmanager
    def translated(self) -> Generator[None]:
        """Turn what is raised inside into a `ModelError` that says why; leave mistakes as they are.

        A ``TypeError`` for an option that the library doesn't know is such a mistake.
        """
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            failure = self._failure(error)
            if failure is None:
                raise
            self._clean(error)
            raise failure from error

    def _failure(self, error: Any) -> ModelError | None:
        sdk = self._sdk
        if isinstance(error, UnreadableReply):
            return self._error(ModelReplyError, str(error))
        if isinstance(error, UnicodeEncodeError):
            return self._error(
                ModelError,
                f"was not asked: its request holds text that can't be written, {error.reason}; "
                "clean the history with text.encode(errors='replace').decode()",
            )
        if isinstance(error, ReportedError):
            return self._status_error(error.status, {}, error.body, during=True)
        if isinstance(error, sdk.APIResponseValidationError | _MALFORMED):
            return self._error(ModelReplyError, f"gave a malformed reply: {self._words(error)}")
        if isinstance(error, sdk.APIStatusError):
            response = error.response
            during = response.status_code < 400  # Within a stream, whose status said all was well.
            return self._status_error(
                None if during else response.status_code,
                {name.lower(): value for name, value in response.headers.items()},
                _body_of(error),
                during=during,
            )
        if isinstance(error, sdk.APIConnectionError) or _is_of_transport(error):
            return self._connection_error(error)
        if isinstance(error, sdk.APIError):
            return self._status_error(None, {}, error.body or str(error), during=True)
        if isinstance(
            error, sdk.OpenAIError if hasattr(sdk, "OpenAIError") else sdk.AnthropicError
        ):
            return self._error(ModelError, f"could not be asked: {self._words(error)}")
        return None

    def _connection_error(self, error: Exception) -> ModelError:
        cause: BaseException = error
        while cause.__cause__ is not None and _is_of_transport(cause.__cause__):
            cause = cause.__cause__
        name = type(cause).__name__
        if name in _UNREACHABLE:
            return self._error(ModelUnreachableError, f"could not be reached: {self._words(cause)}")
        what = "broke the connection before its answer was whole"
        if "Timeout" in name:
            what = "let the connection hang"
        return self._error(ModelConnectionError, f"{what}: {self._words(cause)}")

    def _status_error(
        self, status: int | None, headers: Mapping[str, str], body: object, *, during: bool
    ) -> ModelError:
        body = self._without_key(body)
        heard = parse_rate_limit_headers(headers, provider=self._provider, status=status, body=body)
        facts: dict[str, Any] = {"status_code": status, "headers": dict(headers), "body": body}
        said = "reported an error while it answered" if during else "answered with an error"
        what = f"{said}{'' if status is None else f', status {status}'}: {message_of(body)}"
        if heard.too_large:
            return self._error(ModelRequestTooLargeError, what, **facts)
        if heard.quota_exhausted:
            return self._error(
                ModelQuotaExhaustedError, what, resets_after=heard.wait_seconds, **facts
            )
        if heard.is_rate_limit:
            return self._error(ModelRateLimitedError, what, retry_after=heard.wait_seconds, **facts)
        kind = status_error_kind(status, body)
        return self._error(kind, what, retry_after=heard.retry_after_seconds, **facts)

    def _error(self, kind: type[ModelError], what: str, **facts: Any) -> ModelError:
        return model_error(kind, what, model=self._model, provider=self._provider, **facts)

    # Keys --------------------------------------------------------------------------------------

    def _words(self, error: BaseException) -> str:
        words = error_in_words(error)
        return str(self._without_key(words))

    def _clean(self, error: BaseException) -> None:
        """Remove the key from the library's own error, in case a server quoted it."""
        seen: BaseException | None = error
        for _ in range(10):  # Causes of causes.
            if seen is None:
                return
            seen.args = tuple(self._without_key(value) for value in seen.args)
            for name, value in list(vars(seen).items()):
                clean = self._without_key(value)
                if clean != value:
                    setattr(seen, name, clean)
            seen = seen.__cause__ or seen.__context__

    def _without_key(self, value: object, depth: int = 20) -> object:
        if len(self._key) < _SHORTEST_KEY or not depth:
            return value
        if isinstance(value, str):
            return value.replace(self._key, _REMOVED)
        if isinstance(value, dict):
            return {
                self._without_key(name, depth - 1): self._without_key(entry, depth - 1)
                for name, entry in value.items()
            }
        if isinstance(value, list):
            return [self._without_key(entry, depth - 1) for entry in value]
        if isinstance(value, tuple):
            return tuple(self._without_key(entry, depth - 1) for entry in value)
        return value


def _is_of_transport(error: BaseException) -> bool:
    return isinstance(error, OSError) or any(
        kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__
    )


def _body_of(error: Any) -> object:
    """Return what the response said; the library's error may have only a part of it."""
    try:
        return json.loads(error.response.content)
    except Exception:  # Not JSON, or never read.
        return error.body if error.body is not None else str(error)
