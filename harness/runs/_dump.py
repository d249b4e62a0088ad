"""Show what everything is doing: the tree of runs, and where each of their tasks is waiting.

It is made from the live tasks of the current trio run and the context of each; no register of runs
is kept. So it also shows tasks that belong to no run, and those whose run has ended.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import trio

from harness._outside_trio import outside_trio
from harness._words import harmless, masked_repr_of
from harness.runs._current import current
from harness.runs._frames import describe_wait, is_plumbing, task_frames
from harness.runs._local import locals_of
from harness.runs._run import Run

Stack = tuple[tuple[str, int, str], ...]
"""File, line and function of each frame, outermost first."""


def dump(run: Run | None = None, *, locals: bool = False) -> str:
    """Return the tree of runs as text: status, age, what each waits for, and the stacks.

    Stacks are shown without trio's own frames; equal ones only once, with a count. May be called
    from a signal handler in trio's thread.

    Args:
      run: Show this run and those below it; by default all, plus the tasks of no run.
      locals: Whether to show what each `RunLocal` holds in each run, shortened, and with anything
        removed that looks like a key, a token or a password. It calls the ``repr`` of values.

    Raises:
      TypeError: if ``run`` isn't a run.
      RuntimeError: outside trio.
    """
    if run is not None and not isinstance(run, Run):
        raise TypeError(f"dump() takes a run, or nothing for all of them, not {run!r}")
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        root = None
    if root is None:
        raise outside_trio(
            "dump(), which shows the runs of the trio it is called in, was called",
            instead="call it in a function that trio.run() runs, in a signal handler, or with "
            "trio.from_thread.run_sync(harness.dump)",
        )
    picture = _Picture(now=trio.current_time(), with_locals=locals)
    for task in _all_tasks(root):
        picture.add(task)
    return picture.text(below=run)


def _all_tasks(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    pending = [root]
    while pending:
        task = pending.pop()
        yield task
        for nursery in reversed(task.child_nurseries):
            # A set, so in no order; by name is the best there is.
            pending.extend(sorted(nursery.child_tasks, key=_by_name, reverse=True))


def _by_name(task: trio.lowlevel.Task) -> tuple[int, str]:
    return len(task.name), task.name  # So that 10 comes after 9.


class _Picture:
    """What was seen in one walk over the tasks.

    Written out, because each class that attrs makes slows down ``import harness``.
    """

    def __init__(self, *, now: float, with_locals: bool) -> None:
        self.now = now
        self.with_locals = with_locals
        self.tasks: dict[Run | None, list[trio.lowlevel.Task]] = {}
        self.stacks: dict[Stack, int] = {}
        self.counts: dict[Stack, int] = {}

    def add(self, task: trio.lowlevel.Task) -> None:
        run = task.context.get(current)
        self.tasks.setdefault(run, []).append(task)
        # A run whose tasks are all in runs below it has none of its own, and is shown too.
        while run is not None and run.parent is not None:
            run = run.parent
            self.tasks.setdefault(run, [])

    def text(self, below: Run | None) -> str:
        children: dict[Run | None, list[Run]] = {}
        for run in self.tasks:
            if run is not None:
                children.setdefault(run.parent, []).append(run)
        lines: list[str] = []
        if below is not None:
            self._add_run(lines, below, children)
        else:
            for root in sorted(children.get(None, ()), key=_by_age):
                self._add_run(lines, root, children)
            own = [task for task in self.tasks.get(None, ()) if _shows_something(task)]
            if own:
                lines.append("tasks of no run")
                for task in own:
                    lines.append(f"  task {task.name}, waits for {self._wait_of(task)}")
        lines = lines or ["no runs"]
        for stack, number in self.stacks.items():
            count = self.counts[stack]
            lines.append("")
            lines.append(f"stack [{number}], {count:,} {'task' if count == 1 else 'tasks'}:")
            for filename, line, function in stack:
                lines.append(f'  File "{filename}", line {line}, in {function}')
                if source := linecache.getline(filename, line).strip():
                    lines.append(f"    {source}")
        # Names are anybody's: one with a line break would look like a run of its own.
        return "\n".join(map(harmless, lines)) + "\n"

    def _add_run(self, lines: list[str], top: Run, children: dict[Run | None, list[Run]]) -> None:
        # A stack and not recursion: chains of runs may be deeper than Python's.
        pending = [(top, 0)]
        while pending:
            run, level = pending.pop()
            indent = "  " * level
            lines.append(f"{indent}{self._run_line(run)}")
            if self.with_locals and run.status == "running":
                for local, value in locals_of(run).items():
                    lines.append(f"{indent}  {local._label()}: {masked_repr_of(value)}")
            for task in self.tasks.get(run, ()):
                if task is not run._task:
                    lines.append(f"{indent}  task {task.name}, waits for {self._wait_of(task)}")
            pending.extend((c, level + 1) for c in sorted(children.get(run, ()), key=_by_age)[::-1])

    def _run_line(self, run: Run) -> str:
        age = (self.now if run.ended_at is None else run.ended_at) - run.started_at
        words = f"{run.path} ({run.id}) {run.status} {age:.1f} s"
        if run.status != "running":
            return f"{words}, but tasks still carry it" if self.tasks.get(run) else words
        if run._scope.cancel_called:
            words += " cancelled" if run._cancel_asked else " out of time"
        elif run.stopping:
            words += " stopping"
        if overrun := run._overran_by(self.now):
            words += f", {overrun:.1f} s over the time for its cleanup"
        if run._task is None:
            return words
        return f"{words}, waits for {self._wait_of(run._task)}"

    def _wait_of(self, task: trio.lowlevel.Task) -> str:
        frames = task_frames(task)
        stack: Stack = tuple(
            (frame.f_code.co_filename, line, frame.f_code.co_qualname)
            for frame, line in frames
            if not is_plumbing(frame.f_code.co_filename)
        )
        number = self.stacks.setdefault(stack, len(self.stacks) + 1)
        self.counts[stack] = self.counts.get(stack, 0) + 1
        return f"{describe_wait(frames)} [{number}]"


def _by_age(run: Run) -> tuple[float, int, str]:
    return run.started_at, len(run.id), run.id


def _shows_something(task: trio.lowlevel.Task) -> bool:
    return any(not is_plumbing(frame.f_code.co_filename) for frame, _ in task_frames(task))
