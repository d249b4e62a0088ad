"""Find where to begin: an agent function, what it is made of, and its inputs, with their names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from harness.testing._users_code import is_users_module
from harness.testing.objects._places import (
    Place,
    function_name,
    local_place,
    place_of_definition,
)
from harness.testing.objects._reach import Reached


def reach_from(agent_fn: object, inputs: list[Any], caller: FrameType) -> Reached:
    """Return everything that an agent function and its inputs can reach."""
    reached = Reached(may_import=True)
    thing: Any = agent_fn
    while isinstance(thing, functools.partial):
        for argument in (*thing.args, *thing.keywords.values()):
            reached.add(_place_in(argument, {}, caller), argument)
        thing = thing.func
    if inspect.ismethod(thing):
        reached.add(place_of_definition(thing.__func__), thing.__func__)
        reached.add(_place_in(thing.__self__, thing.__func__.__globals__, caller), thing.__self__)
    if inspect.isfunction(thing):
        reached.add(place_of_definition(thing), thing)
    reached.add(_place_in(agent_fn, {}, caller), agent_fn)
    for index, value in enumerate(inputs):
        reached.add(Place("inputs").item(index), value)
    return reached


def _place_in(thing: Any, names: Mapping[str, Any], caller: FrameType) -> Place:
    """Return where a given object hangs, by its name in the surrounding code."""
    for namespace in (names, caller.f_globals, *_modules_at_hand(thing, caller)):
        for name, value in list(namespace.items()):
            if value is thing:
                return Place(f"{namespace.get('__name__', '__main__')}.{name}")
    function = function_name(caller.f_code.co_qualname)
    for name, value in caller.f_locals.items():
        if value is thing:
            return local_place(name, thing, function)
    return Place(type(thing).__qualname__, local_of=function)


def _modules_at_hand(thing: Any, caller: FrameType) -> Iterator[dict[str, Any]]:
    """Yield the names of modules where an object may hang: its class's, and those in use here.

    As in ``assert_isolated(bots.support, ...)``, where the caller knows only the module.
    """
    call = getattr(type(thing), "__call__", None)  # noqa: B004 (its globals are wanted)
    yield getattr(call, "__globals__", {})
    for value in (*caller.f_locals.values(), *caller.f_globals.values()):
        if isinstance(value, ModuleType) and is_users_module(value.__name__):
            yield vars(value)
