"""Find the function that a command's ``TARGET`` names.

``module:function`` is imported with the current folder at the front of the search path, as
``python -m`` does; ``path.py:function`` is loaded from that file, with its folder at the front, as
``python path.py`` does. Everything that can be known without calling the function is checked here,
so that a batch doesn't find out at its first item.

An error inside the user's module is shown with the user's frames only: ours and the import
machinery's would hide the line that matters.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from harness._json_value import UnwritableValueError
from harness._value_types import ValueTypes
from harness.cli._errors import InputError
from harness.cli._record_fields import misspelt_field
from harness.runs._functions import forgotten_await_error

if TYPE_CHECKING:
    from harness.agents import Agent

Target: TypeAlias = Callable[[Any], Awaitable[Any]]
"""What a batch calls with each record."""

_FORMS = "write module:function or path.py:function"
_NAMES_SHOWN = 8


def load_target(text: str) -> Target:
    """Import what ``text`` names, and check that a batch can call it.

    Raises:
      InputError: if ``text`` has neither form, the module can't be imported, it has no such
        name, or what is there is not an async function of one argument.
    """
    value, module, name = load_named(text, "the target")
    _check(value, module, text, name)
    return value  # type: ignore[no-any-return]  # `_check` made sure.


async def value_of(function: Target, record: Any) -> Any:
    """Return what a target makes of a record.

    A note on its KeyError says which field was meant, if it asked the record for a misspelt one.

    Raises:
      UnwritableValueError: if what it returned is a coroutine, which it forgot to await.
      Exception: the target's own.

    Checkpoint: as the target.

    Cancellation: as the target.
    """
    try:
        value = await function(record)
    except KeyError as error:
        if (note := misspelt_field(error, record)) is not None:
            error.add_note(note)
        raise
    if isinstance(value, types.CoroutineType):
        raise UnwritableValueError(f"{forgotten_await_error(function, value)}")
    return value


def load_comparer(text: str) -> Callable[[Any, Any], bool]:
    """Import what ``text`` names, and check that it can compare two values.

    Raises:
      InputError: as for `load_target`; or if what is there is not a plain function of two
        arguments.
    """
    value, _, _ = load_named(text, "--compare")
    if not callable(value) or inspect.isclass(value) or _returns_awaitable(value):
        raise InputError(
            f"--compare {text} is not a plain function; name one that takes the recorded value "
            "and the new one, and returns whether they are the same"
        )
    try:
        inspect.signature(value).bind(None, None)
    except TypeError as error:
        raise InputError(
            f"--compare {text} takes {inspect.signature(value)}, but it is called with two "
            "arguments, the recorded value and the new one"
        ) from error
    except ValueError:
        pass  # Some callables can't say; then the first call will.
    return value  # type: ignore[no-any-return]


def load_named(text: str, what: str) -> tuple[Any, types.ModuleType, str]:
    """Return what ``text`` names, the module that it is in, and its name there.

    Raises:
      InputError: if ``text`` names nothing, or its module can't be imported.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InputError(f"{what} {text!r} names no function; {_FORMS}")
    module = _load_file(Path(place)) if _is_path(place) else load_module(place)
    return _look_up(module, place, name), module, name


def agent_in(target: Target) -> Agent[Any] | None:
    """Return the target if it is an agent, else None, without loading what agents need."""
    module = sys.modules.get("harness.agents._agent")
    if module is None:
        return None
    agent_class: type[Agent[Any]] = module.Agent
    return target if isinstance(target, agent_class) else None


def check_values(target: Target, text: str) -> None:
    """Refuse a function whose annotation says that it returns what JSON can't hold.

    Raises:
      InputError: if it does.
    """
    refused = ValueTypes().add_returned(target)
    if refused is not None:
        raise InputError(
            f"{text} is annotated to return {refused}, which can't be written as JSON; return "
            "plain data, a dataclass or the like"
        )


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


# Importing -------------------------------------------------------------------------------------


def load_module(name: str) -> types.ModuleType:
    """Import the module of this name, with the current folder at the front of the search path.

    Raises:
      InputError: if there is no such module, or importing it fails.
    """
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if _their_frames(error) is not None or not f"{name}.".startswith(f"{missing}."):
            raise _import_failed(name, error) from error
        near = _did_you_mean(name, (path.stem for path in Path.cwd().glob("*.py")))
        elsewhere = "; for a file elsewhere write its path, as in folder/file.py:function"
        raise InputError(
            f"there is no module {missing!r}, neither in the current folder nor among what is "
            f"installed{near or elsewhere}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        what = "a folder, not a Python file" if path.is_dir() else "not there"
        near = _did_you_mean(path.name, (other.name for other in path.parent.glob("*.py")))
        raise InputError(f"the target's file {str(path)!r} is {what}{near or f'; {_FORMS}'}")
    _search_first(path.resolve().parent)
    # Under its own name, so that pickles and dataclasses find it, unless that name is taken.
    name = path.stem if path.stem not in sys.modules else f"harness_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"the target's file {str(path)!r} is not a Python file; {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_failed(str(path), error) from error
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_failed(name: str, error: BaseException) -> InputError:
    if isinstance(error, SystemExit):
        return InputError(
            f"{name} ended the program when it was imported (SystemExit: {error.code}); "
            'put what it runs as a script under: if __name__ == "__main__":'
        )
    shown = "".join(traceback.format_exception(type(error), error, _their_frames(error)))
    return InputError(f"{name} can't be imported, because of an error inside it:\n\n{shown}")


def _their_frames(error: BaseException) -> types.TracebackType | None:
    """Return the traceback from the first frame that is neither ours nor the import machinery's."""
    frames = error.__traceback__
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        frames = frames.tb_next
    return frames


# Looking up ------------------------------------------------------------------------------------


def _look_up(module: types.ModuleType, place: str, name: str) -> Any:
    """Return what ``name`` refers to; ``Class.method`` and ``object.attribute`` work too."""
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            near = _did_you_mean(part, dir(value)) or _what_there_is(value)
            raise InputError(f"{place} has no {name!r}{near}") from error
    return value


def _did_you_mean(name: str, there_is: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [other for other in there_is if other[:1] != "_"], n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _what_there_is(holder: Any) -> str:
    names = [
        name for name in dir(holder) if name[:1] != "_" and _is_async(getattr(holder, name, None))
    ]
    if not names:
        return "; it has no async function at all"
    more = ", ..." if len(names) > _NAMES_SHOWN else ""
    return f"; its async functions are {', '.join(names[:_NAMES_SHOWN])}{more}"


def _is_async(value: Any) -> bool:
    """Return whether this is an async function, or called like one, as an agent is."""
    if inspect.iscoroutinefunction(value):
        return True
    is_object = callable(value) and not inspect.isclass(value)
    return is_object and inspect.iscoroutinefunction(type(value).__call__)


# Checking --------------------------------------------------------------------------------------


def _check(value: Any, module: types.ModuleType, text: str, name: str) -> None:
    """Refuse what can't be called with one record and awaited."""
    if inspect.iscoroutine(value):
        value.close()  # Or Python would warn that it was never awaited.
        raise InputError(
            f"{text} is a coroutine, the result of calling an async function, and not the "
            f"function itself; {_line_to_change(module, name)} remove the parentheses"
        )
    if inspect.isasyncgenfunction(value):
        raise InputError(
            f"{text} is an async generator: it yields, and a batch needs one value per record; "
            "collect the values in a list and return that"
        )
    if inspect.isclass(value):
        raise InputError(
            f"{text} is a class; name an async function, an async method of an instance, "
            "or an instance with an async __call__"
        )
    if not callable(value):
        raise InputError(
            f"{text} is of type {type(value).__name__} and can't be called; "
            "name an async function that takes one record"
        )
    if not _returns_awaitable(value):
        raise InputError(
            f"{text} is a plain function; write `async def` before its name, so that many can "
            "run at once (a plain function that returns an awaitable says so in its annotation: "
            "-> Awaitable[...])"
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # Some callables can't say; then the first call will.
    try:
        signature.bind(None)
    except TypeError as error:
        if next(iter(signature.parameters), None) == "self" and inspect.isfunction(value):
            raise InputError(
                f"{text} is a method of a class, taken from the class itself; make an instance in "
                "the module, and name its method"
            ) from error
        takes = "no argument" if not signature.parameters else f"{signature}"
        raise InputError(
            f"{text} takes {takes}, but a batch calls it with one argument, the record; "
            "give it one parameter, and defaults to all others"
        ) from error


def _returns_awaitable(value: Any) -> bool:
    while isinstance(value, functools.partial):
        value = value.func
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(inspect.unwrap(value)):
        return True
    if not inspect.isroutine(value):
        value = type(value).__call__
        if inspect.iscoroutinefunction(value):
            return True
    annotation = getattr(value, "__annotations__", {}).get("return", "")
    return bool(re.search(r"\b(Awaitable|Coroutine)\b", inspect.formatannotation(annotation)))


def _line_to_change(module: types.ModuleType, name: str) -> str:
    """Say where ``name`` is assigned, as the start of an instruction."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return f"where {name} is assigned,"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target) == name for target in targets):
                return f"in line {node.lineno} of {module.__file__},"
    return f"where {name} is assigned,"
