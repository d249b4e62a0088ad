"""Keep the values of a function that says how they are written, such as an agent's replies."""

from __future__ import annotations

from typing import Any

from harness._words import error_in_words, repr_of
from harness.errors import JournalValueError
from harness.fanout import ValueForm
from harness.journal._codec import Codec


class FormedCodec(Codec):
    """Writes values in the form their function gives them, as JSON."""

    def __init__(self, form: ValueForm) -> None:
        super().__init__()
        self._form = form

    def encode(self, value: Any) -> tuple[str, Any]:
        """Return the value's text, and the value that comes back from it; as `Codec.encode`."""
        try:
            plain = self._form.value_to_json(value)
        except Exception as error:
            raise JournalValueError(
                f"the value {repr_of(value)} can't be recorded as JSON: {error_in_words(error)}; "
                "return plain data, or give open_journal() encode= and decode= for it"
            ) from error
        text, plain = super().encode(plain)
        return text, self._read(plain)

    def decode(self, text: str) -> Any:
        """Return the value of a text that `encode` gave; as `Codec.decode`."""
        return self._read(super().decode(text))

    def _read(self, plain: Any) -> Any:
        try:
            return self._form.value_from_json(plain)
        except Exception as error:
            raise JournalValueError(
                f"a recorded value can't be read: {error_in_words(error)}; if the function has "
                "changed since, give open_journal() another version="
            ) from error
