"""Keep a value that each run has for itself.

`RunLocal` is to runs what `threading.local` is to threads: declared once, at module level, with a
different value in each run. The values live on the run, so they end with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from trio.lowlevel import disable_ki_protection

from harness._arguments import says_near_options
from harness.runs._current import current, current_run, no_run_error
from harness.runs._run import Run

T = TypeVar("T")

_current_run = current.get


@says_near_options
class RunLocal(Generic[T]):
    """One value per run, made by ``factory`` when a run first asks for it.

    Args:
      factory: Makes a fresh value; called without arguments, once per run. (Threads of one run that
        ask at the same time may each make one, but all get the same.)
      name: For messages and ``repr``.
      fork: Makes a child run's value from its parent's when the child starts, as in
        ``fork=list.copy``. Without it, a child starts with nothing. What the parent never asked for
        isn't forked.

    Raises:
      TypeError: if ``factory`` or ``fork`` isn't a plain function.
    """

    __slots__ = ("_factory", "_fork", "_name")

    def __init__(
        self,
        factory: Callable[[], T],
        *,
        name: str | None = None,
        fork: Callable[[T], T] | None = None,
    ) -> None:
        _check_function("RunLocal(factory, ...)", factory, example="list")
        if fork is not None:
            _check_function("RunLocal(fork=...)", fork, example="list.copy")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"RunLocal(name=...) takes a name for messages, not {name!r}")
        self._factory = factory
        self._name = name
        self._fork = fork

    def get(self) -> T:
        """Return the current run's value, making it if there is none yet.

        Raises:
          NoRunError: outside any run.
          RunEndedError: if the current run has ended.
        """
        # The common case in as few steps as Python allows; everything else fails here and is
        # told apart below.
        try:
            return _current_run()._locals[self]  # type: ignore[union-attr,index,no-any-return]
        except (KeyError, AttributeError, TypeError):
            return self.get_in(self._run())

    def set(self, value: T) -> None:
        """Set the current run's value. None is a value like any other.

        Raises:
          NoRunError: outside any run.
          RunEndedError: if the current run has ended.
        """
        if self._fork is None:
            try:
                _current_run()._locals[self] = value  # type: ignore[union-attr,index]
                return
            except (AttributeError, TypeError):
                pass
        self._ready(self._run())[self] = value

    def get_in(self, run: Run) -> T:
        """Return the value in ``run``, making it if there is none yet.

        Raises:
          RunEndedError: if ``run`` has ended.
        """
        if not isinstance(run, Run):
            raise TypeError(f"RunLocal.get_in() takes a run, not {run!r}")
        values = run._locals
        if values is None or self not in values:
            run._refuse_if_ended(f"{self!r} has no value in it")
            made = self._factory()
            values = self._ready(run)
            # Threads of one run may get here at once: the first to arrive gives the value.
            return values.setdefault(self, made)  # type: ignore[no-any-return]
        value: T = values[self]
        return value

    @disable_ki_protection  # It is the user's function that is called, while a run is opened.
    def fork_value(self, value: Any) -> Any:
        """Return what a child run starts with where its parent has ``value``."""
        assert self._fork is not None
        return self._fork(value)

    def __repr__(self) -> str:
        return f"<RunLocal {self._name or self._factory!r}>"

    def _label(self) -> str:
        """Return what it is called: its name, or what makes its values."""
        return self._name or repr(self._factory)

    def _run(self) -> Run:
        run = _current_run()
        if run is None:
            raise no_run_error(f"{self!r} has a value in each run, and")
        return run

    def _ready(self, run: Run) -> dict[Any, Any]:
        """Return where ``run`` keeps its values, prepared to take this one's."""
        run._refuse_if_ended(f"{self!r} has no value in it")
        if run._locals is None:
            run._locals = {}
        if self._fork is not None and self not in run._forks:
            run._forks = (*run._forks, self)
        return run._locals


def locals_of(run: Run | None = None) -> dict[RunLocal[Any], Any]:
    """Return the values that a run has in each `RunLocal`, in the order in which they were made.

    The dict is a copy; the values are the run's own.

    Args:
      run: The run; by default the current one.

    Raises:
      TypeError: if ``run`` is not a run.
      NoRunError: by default, outside any run.
      RunEndedError: if the run has ended.
    """
    if run is None:
        run = current_run()
    elif not isinstance(run, Run):
        raise TypeError(f"locals_of() takes a run, or nothing for the current one, not {run!r}")
    run._refuse_if_ended("it has no values left")
    values = dict(run._locals or {})  # At once: threads of the run may add to it.
    return {key: value for key, value in values.items() if isinstance(key, RunLocal)}


def _check_function(where: str, function: Any, *, example: str) -> None:
    if not callable(function):
        raise TypeError(
            f"{where} takes a function that makes a fresh value, such as {example}, "
            f"not {function!r}, which all runs would share"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{where} takes a plain function, not the async function {function!r}: a value is "
            "made when it is first asked for, which must not wait; compute it in the run and "
            "store it with .set()"
        )
