"""Make the keys of effects: each is the same in every attempt, and belongs to only one effect.

Keys go to whoever carries out the effect, a bank or a mail server, once per key. So a key must be
the same when an item is tried again, even by another process, and no other item or effect may ever
get it: it would be taken for a repetition and ignored. Nothing that counts what a process happened
to do first goes into one.

- An item of a fan-out with a journal: the journal's origin, the batch's name, the item's key and
  the hash of its input (`item_key`).
- An item of any other fan-out: an origin drawn at random, and the item's index.
- An item of a fan-out inside an item: that item's key, the fan-out's name, and the index.
- A run that isn't an item passes on the key of the item it is in; outside any, it has its own.
- An effect: the key of its item and a name for it (`effect_key`).
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b
from typing import Protocol

_call: ContextVar[str | None] = ContextVar("harness.runs.call", default=None)
"""The tool call that this code is in, in words; the default name of its effects."""


def digest(*parts: str) -> str:
    """Return a key for exactly these words, however they are joined."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def item_key(origin: str, batch: str, key: str, input_hash: str) -> str:
    """Return the idempotency key of an item that a journal knows.

    Args:
      origin: The journal's, drawn when it was created.
      batch: The name of the batch.
      key: The item's key, as the journal stores it.
      input_hash: The hash of the item's input.
    """
    return digest("item", origin, batch, key, input_hash)


def name_of_effect(name: str | None) -> str:
    """Return ``name``, or by default what tells the surrounding tool call from others.

    Raises:
      TypeError: if ``name`` isn't a string, or is None outside a tool call.
      ValueError: if it is empty.
    """
    if name is None:
        name = _call.get()
        if name is None:
            raise TypeError(
                "run.effect_key() needs a name outside a tool call, such as "
                'run.effect_key("mail:ada"): one for each effect, the same in every attempt'
            )
        return f"call {name}"
    if not isinstance(name, str):
        raise TypeError(f"run.effect_key() takes a name as a string, not {name!r}")
    if not name:
        raise ValueError("run.effect_key() takes a name that tells this effect from others, not ''")
    return f"name {name}"


def words_of_call() -> str:
    """Return the tool call that this code is in, in words; empty outside one."""
    return _call.get() or ""


class _TakesNumbers(Protocol):
    def _take_number(self, kind: str, words: str) -> int: ...
    def _give_back_number(self, kind: str, words: str, number: int) -> None: ...


class ToolCallBlock:
    """Give the effects in this block a default name, for code that carries out a tool call.

    Equal calls are told apart by their occurrence, which entering returns: the smallest number that
    no other in this attempt has that returned or is in progress. One that raised gives its number
    back, so that the call that tries again asks for the same effect.

    A class: there is one for every call in progress, and a generator takes twice the memory.

    Args:
      run: The run that the call is made in.
      words: The tool's name and its arguments.
    """

    __slots__ = ("_number", "_run", "_token", "_words")

    def __init__(self, run: _TakesNumbers, words: str) -> None:
        self._run = run
        self._words = words
        self._number = run._take_number("call", words)

    def __enter__(self) -> int:
        self._token = _call.set(f"{self._number} {self._words}")
        return self._number

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._run._give_back_number("call", self._words, self._number)
        _call.reset(self._token)
