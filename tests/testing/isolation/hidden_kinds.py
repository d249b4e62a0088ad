"""Agents that share state in places where one seldom looks, each with its correction."""
# ruff: noqa: PLC0415, TID252 (imports in functions are one of the kinds)

import enum
import logging
import sys
import warnings

import trio

from tests.testing.isolation import elsewhere


async def pause() -> None:
    """Let others go on."""
    await trio.lowlevel.checkpoint()


# What a function imports itself ------------------------------------------------------------------


async def import_of_a_list(text: str) -> str:
    from tests.testing.isolation.elsewhere import NOTES

    NOTES.append(text)
    await pause()
    return NOTES[-1]


async def import_of_a_list_fixed(text: str) -> str:
    from tests.testing.isolation.elsewhere import NOTES

    notes = [*NOTES, text]
    await pause()
    return notes[-1]


async def relative_import(text: str) -> str:
    from . import elsewhere as there

    there.setting = text
    await pause()
    return there.setting


async def relative_import_fixed(text: str) -> str:
    from . import elsewhere as there

    setting = there.setting + text
    await pause()
    return setting


async def import_of_a_class(text: str) -> str | None:
    from tests.testing.isolation.elsewhere import Session

    Session.user = text
    await pause()
    return Session.user


async def import_of_a_class_fixed(text: str) -> str | None:
    from tests.testing.isolation.elsewhere import Session

    session = Session()
    session.user = text
    await pause()
    return session.user


# Names that stand in strings ---------------------------------------------------------------------

_current = ""


async def global_by_string(text: str) -> str:
    globals()["_current"] = text
    await pause()
    return str(globals()["_current"])


async def global_by_string_fixed(text: str) -> str:
    current = str(globals()["_current"]) + text
    await pause()
    return current


async def module_attribute_by_string(text: str) -> str:
    setattr(elsewhere, "chosen", text)  # noqa: B010 - that is the kind
    await pause()
    return str(getattr(elsewhere, "chosen"))  # noqa: B009


async def module_attribute_by_string_fixed(text: str) -> str:
    chosen = str(getattr(elsewhere, "chosen")) + text  # noqa: B009
    await pause()
    return chosen


# The process -------------------------------------------------------------------------------------


async def import_path(text: str) -> str:
    sys.path.insert(0, text)
    await pause()
    return sys.path.pop(0)


async def import_path_fixed(text: str) -> str:
    path = [text, *sys.path]
    await pause()
    return path.pop(0)


async def warning_filters(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error" if text == "ab" else "ignore")
        await pause()
        try:
            warnings.warn(text, stacklevel=1)
        except UserWarning:
            return "refused"
        return "let pass"


async def warning_filters_fixed(text: str) -> str:
    await pause()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if text == "ab" else "ignore")
        try:
            warnings.warn(text, stacklevel=1)
        except UserWarning:
            return "refused"
        return "let pass"


LOG = logging.getLogger("harness.test.hidden_kinds")


async def log_level(text: str) -> bool:
    LOG.setLevel(logging.DEBUG if text == "ab" else logging.ERROR)
    await pause()
    return LOG.isEnabledFor(logging.INFO)


async def log_level_fixed(text: str) -> bool:
    level = logging.DEBUG if text == "ab" else logging.ERROR
    await pause()
    return level <= logging.INFO


# Objects that look like constants ----------------------------------------------------------------


class Colour(enum.Enum):
    """Members are objects with attributes, one per process."""

    RED = 1
    shades: list[str]


class Queue(enum.Enum):
    """The value of a member is one object, too."""

    WAITING = ()


Queue.WAITING._value_ = []  # type: ignore[assignment]


async def attribute_of_an_enum(text: str) -> list[str]:
    Colour.RED.shades = [text]
    await pause()
    return Colour.RED.shades


async def attribute_of_an_enum_fixed(text: str) -> list[str]:
    shades = [Colour.RED.name, text]
    await pause()
    return shades


async def value_of_an_enum(text: str) -> str:
    waiting: list[str] = Queue.WAITING.value  # type: ignore[assignment]
    waiting.append(text)
    await pause()
    return waiting[-1]


async def value_of_an_enum_fixed(text: str) -> str:
    waiting = [*Queue.WAITING.value, text]
    await pause()
    return waiting[-1]


class RefusedError(Exception):
    """Says who was refused."""

    user = ""


REFUSED = RefusedError("come back tomorrow")


async def shared_error(text: str) -> str:
    REFUSED.user = text
    await pause()
    return REFUSED.user


async def shared_error_fixed(text: str) -> str:
    refused = RefusedError("come back tomorrow")
    refused.user = text
    await pause()
    return refused.user


BYTES = bytearray(8)
VIEW = memoryview(BYTES)


async def view_of_bytes(text: str) -> bytes:
    VIEW[0:2] = text[:2].encode()
    await pause()
    return bytes(VIEW[0:2])


async def view_of_bytes_fixed(text: str) -> bytes:
    view = memoryview(bytearray(VIEW))
    view[0:2] = text[:2].encode()
    await pause()
    return bytes(view[0:2])


# What belongs to a loop --------------------------------------------------------------------------

CACHE: trio.lowlevel.RunVar[dict[str, str]] = trio.lowlevel.RunVar("cache")


async def variable_of_the_loop(text: str) -> str:
    try:
        cache = CACHE.get()
    except LookupError:
        cache = {}
        CACHE.set(cache)
    cache["user"] = text
    await pause()
    return cache["user"]


GUARD: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("guard")


async def variable_of_the_loop_fixed(text: str) -> str:
    try:
        guard = GUARD.get()
    except LookupError:
        guard = trio.Lock()
        GUARD.set(guard)
    async with guard:
        cache = {"user": text}
        await pause()
        return cache["user"]


HERE = __name__

KINDS: dict[str, tuple[str, ...]] = {
    "import_of_a_list": (f"{elsewhere.__name__}.NOTES",),
    "relative_import": (f"{elsewhere.__name__}.setting",),
    "import_of_a_class": (f"{elsewhere.__name__}.Session.user",),
    "global_by_string": (f"{HERE}._current",),
    "module_attribute_by_string": (f"{elsewhere.__name__}.chosen",),
    "import_path": ("sys.path",),
    "warning_filters": ("warnings.filters",),
    "log_level": (f"{HERE}.LOG",),
    "attribute_of_an_enum": (f"{HERE}.Colour.RED.shades",),
    "value_of_an_enum": (f"{HERE}.Queue.WAITING.value",),
    "shared_error": (f"{HERE}.REFUSED.user",),
    "view_of_bytes": (f"{HERE}.VIEW.obj",),
    "variable_of_the_loop": (f"{HERE}.CACHE",),
}
"""The objects that a report must name, by the name of the leaky agent."""
