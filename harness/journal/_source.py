"""Take the fingerprint of a function's source, and of what it uses of its module.

It has a hash for each part, so that what has changed can be named:

- the function, every function and class of its module that it names, and so on from there;
- texts that these name, in their module or around them, and constants of the module whose names
  are in capitals: prompts and settings.

Comments and layout don't count. What it uses of other modules isn't looked at.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
from collections.abc import Iterator
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

_CONSTANTS = (str, bytes, int, float, bool, type(None))


def fingerprint(function: Any, digests: dict[Any, str]) -> dict[str, str]:
    """Return a hash of each part of a function's source, by name; empty if it has none.

    Args:
      function: Anything that a fan-out calls.
      digests: The hashes already taken, by code or class; more are added.
    """
    found: dict[str, str] = {}
    ahead: list[tuple[Any, type | None]] = [(function, None)]
    seen: dict[int, Any] = {}  # The parts too, or another could get the number of one.
    while ahead:  # Ends, since nothing is looked at twice.
        part, owner = ahead.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        try:
            ahead += _look_at(part, owner, found, digests)
        except Exception:  # These are somebody else's objects, and no reason to refuse a batch.
            continue
    return found


def _look_at(
    part: Any, owner: type | None, found: dict[str, str], digests: dict[Any, str]
) -> list[tuple[Any, type | None]]:
    """Note one part, and return what it leads to, methods with their class."""
    if isinstance(part, functools.partial):
        given = [*enumerate(part.args), *part.keywords.items()]
        found.update((f"argument {name}", _hash(repr(one))) for name, one in given if _plain(one))
        return [(part.func, None)]
    if isinstance(getattr(type(part), "functions", None), property):  # A pipeline or a router.
        return [(one, None) for one in part.functions.values()]
    if inspect.ismethod(part):
        part, owner = part.__func__, type(part.__self__)
    elif not isinstance(part, FunctionType | type):
        part, owner = type(part).__call__, type(part)
    part = inspect.unwrap(part)
    if part.__module__.partition(".")[0] == "harness":
        return []  # An agent, whose settings are compared.
    name = part.__qualname__.rpartition("<locals>.")[2]
    name += "" if isinstance(part, type) else "()"
    while name in found:
        name += "'"  # Two lambdas, for instance.
    codes = list(_codes_of(part))
    told_by = part if isinstance(part, type) else part.__code__
    if told_by not in digests:
        digests[told_by] = _hash(_source_of(part, codes))
    found[name] = digests[told_by]
    return list(_used_by(part, owner, codes, found))


def _used_by(
    part: Any, owner: type | None, codes: list[CodeType], found: dict[str, str]
) -> Iterator[tuple[Any, type | None]]:
    """Note the constants that a part names; yield what it names of its module."""
    within = [part] if isinstance(part, FunctionType) else list(_functions_of(part))
    names = sorted({one for code in codes for one in (*code.co_names, *code.co_freevars)})
    around: dict[str, Any] = {}
    for function in within:
        free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in free:
            with contextlib.suppress(ValueError):  # It has no value yet.
                around[name] = cell.cell_contents
    scope = within[0].__globals__ if within else {}
    for name in names:
        value = around.get(name, scope.get(name))
        if isinstance(value, str) or (name.isupper() and name in scope and _plain(value)):
            found[name] = _hash(repr(value))
        elif isinstance(value, FunctionType | type) and value.__module__ == part.__module__:
            yield value, None
        method = None if owner is None else inspect.getattr_static(owner, name, None)
        if isinstance(method, FunctionType) and method.__module__ == part.__module__:
            yield method, owner


def _plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_plain, value))
    return type(value) in _CONSTANTS


def _functions_of(cls: type) -> Iterator[FunctionType]:
    for one in vars(cls).values():
        inner = getattr(one, "__func__", getattr(one, "fget", one))
        if isinstance(inner, FunctionType):
            yield inner


def _codes_of(part: Any) -> Iterator[CodeType]:
    """Yield the code of a function or a class, and all code inside it."""
    functions = _functions_of(part) if isinstance(part, type) else [part]
    ahead = [one.__code__ for one in functions]
    while ahead:
        code = ahead.pop()
        yield code
        ahead += [one for one in code.co_consts if isinstance(one, CodeType)]


def _source_of(part: Any, codes: list[CodeType]) -> str:
    """Return a part's source without comments and layout, or what was compiled from it."""
    try:
        # The source of a lambda is the lines it is in, with whatever else is there.
        if "<lambda>" not in part.__qualname__.rpartition("<locals>.")[2]:
            return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(part))))
    except (OSError, TypeError, SyntaxError, ValueError):
        pass  # A console, a program given as text, or a file that isn't there any more.
    constants = [
        repr([one for one in code.co_consts if not isinstance(one, CodeType)]) for code in codes
    ]
    return repr([(code.co_code, code.co_names) for code in codes]) + "".join(constants)


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
