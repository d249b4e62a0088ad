"""Grant reservations from limits whose numbers are in a file that several processes share.

The rules are those of `Grants`. Around each of them, this takes the file's lock, restores the
numbers as the last process left them, lets the rule work on them, and commits what has become of
them. So whatever holds for tasks of one process holds for tasks of several. No Ctrl-C comes
between, or half a change would be committed.

What can't be had at once, because another process has the lock, is done later: a line tries again
after a millisecond, and what ends a reservation is kept in `_later`. Its charge stays until then,
which is on the safe side.

Nobody is woken by another process. The head of a line looks again when its moment has come by what
it knew, and at least every 10 ms.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import trio
from trio import current_time
from trio.lowlevel import checkpoint, current_trio_token, enable_ki_protection

from harness.errors import HarnessWarning, LimiterRunError
from harness.limits._across_processes._shared_file import MEMBER_NUMBERS, SharedFile
from harness.limits._across_processes._shared_window import SharedWindow
from harness.limits._charges import used_charge
from harness.limits._claim import Claim
from harness.limits._dimension_meter import METER_NUMBERS, sliding_cap
from harness.limits._grants import LATE_SECONDS, Grants
from harness.limits._health import Health
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._other_processes import is_real
from harness.limits._pauses import Pauses
from harness.limits._provider_state import ProviderState
from harness.limits._responses._headers import HeaderSource, parse_rate_limit_headers
from harness.limits._responses._heard import RateLimitHeaders
from harness.limits._responses._refusals import Response
from harness.limits._stated import StatedRate, changed_rates
from harness.limits._window import Window

_LOOK_AGAIN_SECONDS = 0.01
_MARGIN_SECONDS = 0.01
_LOOK_FOR_THE_DEAD_SECONDS = 0.05
_LOOK_AT_THE_FILE_SECONDS = 1.0
_RETRY_SECONDS = 0.001
_PATIENCE_SECONDS = 10.0
_VIRTUAL = "virtual"

WINDOW_NUMBERS = 4
PAUSE_NUMBERS = 7
HEALTH_NUMBERS = 3


class SharedGrants(Grants):
    """What a limiter has granted, in all processes that share its file.

    Takes what `Grants` takes; the file is opened by `open`.
    """

    _file: SharedFile | None = None
    _shift = 0.0
    _depth = 0
    _told = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stated = self.rates, self.places

    def start(self) -> None:
        """Forget everything and start over; with a file, go on from what it says."""
        self.exclusive = self._exclusive
        self.make_window = self._make_window
        self._windows: list[SharedWindow] = []
        self._claimed_name = None  # Others of its name are what it is for.
        self._later: list[Callable[[], object]] = []
        self._flushing = False
        self.holders.clear()
        super().start()
        self._in_flight_before = 0
        self._unsettled_before = [0.0] * len(self.meters)
        self._numbers_in_all = (
            2
            + PAUSE_NUMBERS
            + HEALTH_NUMBERS
            + METER_NUMBERS * len(self.meters)
            + WINDOW_NUMBERS * len(self._windows)
        )
        self._buried_at = self._looked_at = -inf

    def reset(self) -> None:
        """Refuse: what others have used doesn't go away."""
        raise LimiterRunError(
            f"limiter {self.name!r} keeps its state in a file that other processes share, and "
            "can't be reset; when nobody uses it, delete the file"
        )

    # The file ---------------------------------------------------------------------------------

    @enable_ki_protection
    async def open(self, path: Path) -> None:
        """Open the file, and go on from what it says.

        Raises:
          OSError, ValueError, TimeoutError, RuntimeError: if that can't be done.
        """
        await checkpoint()
        windows = len(self.rates) * (2 if self.headroom < 1 else 1)
        file = SharedFile(path, windows=windows)
        try:
            with trio.move_on_after(_PATIENCE_SECONDS) as scope:
                await _until(file.lock)
            if scope.cancelled_caught:
                raise TimeoutError(
                    f"another process has kept {str(path)!r} locked for {_PATIENCE_SECONDS:g} s, "
                    "probably because it was stopped; let it go on, or end it"
                )
            self._refuse_open()
            self._file = file
            self.rates, self.places = self._stated
            self._shift = _shift()
            self.start()
            self.check_run()
            self._join(file, clock=_clock())
        except BaseException:
            if self._file is file:
                self._file = None
            file.unlock()
            file.close()
            raise
        file.unlock()

    def _refuse_open(self) -> None:
        if self._file is None:
            return
        if self._trio_token is current_trio_token():
            raise LimiterRunError(
                f"limiter {self.name!r} is open; enter it once, and share it among tasks, or make "
                "another one of the same file"
            )
        # It was open in a run that is over, or in the process that forked this one.
        self._file.close()
        self._file = None

    def _join(self, file: SharedFile, *, clock: str) -> None:
        statement = {
            "limiter": self.name,
            "rates": [[name, rate.amount, rate.period] for _, name, rate in self.rates],
            "concurrent": self.places,
            "headroom": self.headroom,
            "burst_seconds": self._burst_seconds,
        }
        header = file.header()
        dead = file.bury()
        if header is not None:
            stated = {key: header.get(key) for key in statement}
            if stated != statement and file.others:
                raise ValueError(
                    f"{str(file.path)!r} is in use with other limits: it has "
                    f"{_differences(stated, statement)}; state the same limits in each process, or "
                    "name another file"
                )
            if file.others and _VIRTUAL in header["clock"] + clock and header["clock"] != clock:
                raise ValueError(
                    f"{str(file.path)!r} is in use with another clock, so times in it can't be "
                    "compared; a test with a virtual clock needs a file of its own"
                )
            if _shape_of(header) == _shape_of(statement):
                # What was used is used, whoever used it, and whatever was allowed then.
                self._restore(file)
                for held in dead:
                    self._take_from(held)
                if not file.others:
                    if header["clock"] != clock:
                        self._forget_times()
                    self.places = self._stated[1]
                    Grants.change(self, self._stated[0], None)
            elif header["limiter"] == self.name:
                self._charge_again(file, header, same_clock=header["clock"] == clock)
        file.join()
        self._commit(file)
        file.write_header({**statement, "clock": clock})

    def _charge_again(self, file: SharedFile, header: dict[str, Any], *, same_clock: bool) -> None:
        """Count what was used under limits of another kind as used just now."""
        now = current_time()
        old = [(name, period) for name, _, period in header["rates"]]
        windows = 2 + PAUSE_NUMBERS + HEALTH_NUMBERS + METER_NUMBERS * len(old)
        each = WINDOW_NUMBERS * (2 if header["headroom"] < 1 else 1)
        numbers = file.read(windows + each * len(old))
        if same_clock:
            self.pauses.restore(tuple(numbers[2 : 2 + PAUSE_NUMBERS]), self._shift)
        for meter in self.meters:
            if (limit := (meter.name, meter.rate.period)) in old:
                used = numbers[windows + each * old.index(limit)]
                meter.take(used, now)
                meter.unsettled -= used

    @enable_ki_protection
    async def close(self) -> None:
        """Give back what this process holds, and close the file."""
        file = self._file
        if file is None:
            return
        try:
            with trio.CancelScope(deadline=current_time() + _PATIENCE_SECONDS, shield=True):
                await checkpoint()
                await _until(lambda: file.is_cut or (self._flush_now() and self._leave(file)))
        finally:
            # If it couldn't leave, the others find that it has gone.
            self._file = None
            file.close()
            self._turnstile.turn_away()

    def _leave(self, file: SharedFile) -> bool:
        """Give back what this process holds, if the lock can be had; say whether it could."""
        if not file.lock():
            return False
        self._restore(file)
        self._take_from([*file.numbers[file.own : file.own + MEMBER_NUMBERS]])
        file.leave()
        self._commit(file)
        file.unlock()
        return True

    def _restore(self, file: SharedFile) -> None:
        """Take over the numbers as the last process left them."""
        numbers = iter(file.read(self._numbers_in_all))
        take = partial(islice, numbers)
        places, in_flight = take(2)
        self.places = None if places < 0 else int(places)
        self.in_flight = self._in_flight_before = int(in_flight)
        self.pauses.restore(tuple(take(PAUSE_NUMBERS)), self._shift)
        self.state.health.restore(tuple(take(HEALTH_NUMBERS)), self._shift)
        for meter in self.meters:
            meter.restore(tuple(take(METER_NUMBERS)), self._shift)
        for window in self._windows:
            window.restore(tuple(take(WINDOW_NUMBERS)))
        self._unsettled_before = [meter.unsettled for meter in self.meters]

    def _commit(self, file: SharedFile) -> None:
        """Hand the numbers to whoever comes next."""
        own = file.own + 1
        changes: list[float] = [self.in_flight - self._in_flight_before]
        changes += [
            meter.unsettled - before
            for meter, before in zip(self.meters, self._unsettled_before, strict=True)
        ]
        for index, change in enumerate(changes, own):
            if change:
                file.poke(index, file.numbers[index] + change)
        numbers: list[float] = [-1 if self.places is None else self.places, self.in_flight]
        numbers += self.pauses.numbers(self._shift)
        numbers += self.state.health.numbers(self._shift)
        for meter in self.meters:
            numbers += meter.numbers(self._shift)
        for window in self._windows:
            numbers += window.numbers()
        file.commit(numbers)

    def _take_from(self, held: list[float]) -> None:
        """Give back what a process held that is no more; what it was charged stays charged."""
        self.in_flight -= int(held[1])
        self._in_flight_before -= int(held[1])  # It isn't this process that gives it back.
        for index, (meter, unsettled) in enumerate(zip(self.meters, held[2:], strict=False)):
            meter.unsettled -= unsettled
            self._unsettled_before[index] -= unsettled

    def _forget_times(self) -> None:
        """Count all that was charged as charged now: the machine's clock has started anew."""
        now = current_time()
        for window in self._windows:
            window.charge_all_now(now)
        for meter in self.meters:
            meter.forget_times(now)
        self.state.pauses = self.pauses = Pauses()
        self.state.health = Health()

    def _make_window(self, limit: float, period: float) -> Window:
        file = self._file
        if file is None:
            return sliding_cap(limit, period)  # Only to be asked, before the file is open.
        window = SharedWindow(
            limit=limit,
            # A process may be held up between its grant and what it sends then.
            period=period + min(period / 1000, _MARGIN_SECONDS),
            shift=self._shift,
            memory=file.numbers,
            start=file.cells(len(self._windows)),
            poke=file.poke,
        )
        self._windows.append(window)
        return window

    # Between processes ------------------------------------------------------------------------

    @contextmanager
    @enable_ki_protection
    def _exclusive(self) -> Generator[bool]:
        """Hold the lock, with the numbers as they are now; give whether it could be had."""
        file = self._file
        if file is None:
            yield False
        elif self._depth:
            yield True
        elif not file.lock():
            if file.is_cut:
                self._turnstile.turn_away()
            yield False
        else:
            epoch = self.pauses.epoch
            try:
                self._restore(file)
                self._depth = 1
                try:
                    if self.pauses.epoch != epoch:
                        self.after_response(current_time())  # Another process paused.
                    yield True
                finally:
                    self._depth = 0
                    self._commit(file)
            finally:
                file.unlock()

    def _do(self, work: Callable[[], object]) -> None:
        """Do something with the numbers, now or soon."""
        if not self._later or self._flush_now():
            with self._exclusive() as alone:
                if alone:
                    work()
                    return
        if self._file is None or self._file.is_cut:
            return  # What this process held was given back when it was closed, or is lost.
        self._later.append(work)
        if not self._flushing:
            self._flushing = True
            trio.lowlevel.spawn_system_task(self._flush, name="harness.cluster: shared limiter")

    def _end(self, reservation: Claim, work: Callable[[], object]) -> None:
        """Do what a reservation ends with, unless it is from before the file was closed."""
        if reservation.state is self.state:
            self._do(work)

    async def _flush(self) -> None:
        try:
            await _until(lambda: self._file is None or self._file.is_cut or self._flush_now())
        finally:
            self._flushing = False

    def _flush_now(self) -> bool:
        """Do what was left for later, if the lock can be had; say whether nothing is left."""
        while self._later:
            with self._exclusive() as alone:  # One each, so that none changes too much at once.
                if not alone:
                    return False
                self._later.pop(0)()
        return True

    # The rules -------------------------------------------------------------------------------

    @enable_ki_protection
    def admit_now(self, reservation: Claim) -> bool:
        """Charge the reservation if possible at once, and say whether it was."""
        self.refuse_closed()
        with self._exclusive() as alone:
            return alone and super().admit_now(reservation)

    def admit_later(self, reservation: Claim) -> Awaitable[bool]:
        """Wait in line until the reservation is charged, or nobody should wait any longer."""
        self.refuse_closed()
        return super().admit_later(reservation)

    def woken(self, reservation: Claim) -> None:
        """Charge a task that waited in line at the moment it runs, if that is late."""
        if current_time() - reservation.granted_at > LATE_SECONDS:
            self._do(partial(super().woken, reservation))

    def settled(
        self,
        reservation: Claim,
        tokens: float | None,
        input_tokens: float | None,
        output_tokens: float | None,
        headers: HeaderSource,
        status: int | None,
        body: object,
    ) -> None:
        """Replace a charge with the real use, and apply what the response says."""
        used_charge(reservation.planned, tokens, input_tokens, output_tokens)  # Raises now.
        settle = super().settled
        self._end(
            reservation,
            lambda: settle(reservation, tokens, input_tokens, output_tokens, headers, status, body),
        )

    def refunded(self, reservation: Claim) -> None:
        """Take back a charge."""
        self._end(reservation, partial(super().refunded, reservation))

    def left(self, reservation: Claim, error: BaseException | None) -> None:
        """Free the reservation's place."""
        # Now, because by the time it is done the reservation counts as closed.
        leave = partial(super().left, reservation, error)
        if not reservation.closed:
            leave = partial(_as_open, reservation, leave)
        self._end(reservation, leave)

    def free_at(self, reservation: Claim, now: float) -> float:
        """Return when the reservation can be granted, or when to look again."""
        if not self._depth:  # A pool asks all its members, and not all can be had.
            return now + _RETRY_SECONDS
        self._look_after_the_file(now)
        moment = super().free_at(reservation, now)
        return moment if moment <= now else min(moment, now + _LOOK_AGAIN_SECONDS)

    @enable_ki_protection
    def hear(
        self, state: ProviderState, response: Response, *, epoch: int | None, in_use: int
    ) -> RateLimitHeaders:
        """Learn from one response, and act on it."""
        hear = partial(super().hear, state, response, epoch=epoch, in_use=in_use)
        if self._depth:
            return hear()
        self._do(hear)
        status, headers, body = response
        return parse_rate_limit_headers(headers, provider=self.profile, status=status, body=body)

    @enable_ki_protection
    def pause(self, seconds: float) -> None:
        """Grant nothing for a while, in no process."""
        self.refuse_closed()
        self._do(partial(super().pause, seconds))

    @enable_ki_protection
    def change(self, rates: tuple[StatedRate, ...], places: int | None) -> None:
        """Replace these limits for all processes."""
        self.refuse_closed()
        changed_rates(self.rates, rates, limiter=self.name)  # Raises now.
        self._do(partial(super().change, rates, places))

    @enable_ki_protection
    def statistics(self) -> LimiterStatistics:
        """Return the state now, of all processes but for who waits and what was granted here."""
        with self._exclusive():
            return super().statistics()

    # Inside -----------------------------------------------------------------------------------

    def refuse_closed(self) -> None:
        """Raise unless the file is open, and whole."""
        if self._file is None:
            raise LimiterRunError(
                f"limiter {self.name!r} is not open; use it inside "
                "`async with FleetLimiter(...) as limiter:`"
            )
        if self._file.is_cut:
            raise LimiterRunError(
                f"{str(self._file.path)!r} was made shorter while limiter {self.name!r} used it, "
                "and what it said is lost; end all processes that use it, and start them again"
            )
        self.check_run()

    def _look_after_the_file(self, now: float) -> None:
        """Give back what dead processes held, and see whether the file is still there."""
        file = self._file
        assert file is not None
        places = self.places
        full = places is not None and self.in_flight >= places
        # What the dead have not settled matters, too, but slowly.
        if now - self._buried_at >= (
            _LOOK_FOR_THE_DEAD_SECONDS if full else _LOOK_AT_THE_FILE_SECONDS
        ):
            self._buried_at = now
            for held in file.bury():
                self._take_from(held)
        if now - self._looked_at >= _LOOK_AT_THE_FILE_SECONDS:
            self._looked_at = now
            if file.is_gone and not self._told:
                self._told = True
                warnings.warn(
                    f"{str(file.path)!r} was deleted or moved while limiter {self.name!r} used "
                    "it, so processes that open it from now on share nothing with those that have "
                    "it open",
                    HarnessWarning,
                    stacklevel=2,
                )


async def _until(done: Callable[[], bool]) -> None:
    """Call it until it is true. There is no event that tells: it depends on other processes."""
    while not done():  # noqa: ASYNC110
        await trio.sleep(_RETRY_SECONDS)


def _as_open(reservation: Claim, leave: Callable[[], None]) -> None:
    closed, reservation.closed = reservation.closed, False
    try:
        leave()
    finally:
        reservation.closed = closed


def _shift() -> float:
    """Return how much later the machine's clock is than trio's, which is each process's own."""
    if not is_real(trio.lowlevel.current_clock()):
        return 0.0
    # Whoever is held up between the two clocks finds too little.
    return max(time.monotonic() - current_time() for _ in range(5))


def _clock() -> str:
    """Return what identifies the clock: the time since the machine was started, or a test's run."""
    if not is_real(trio.lowlevel.current_clock()):
        return f"{_VIRTUAL} {os.getpid()} {id(current_trio_token())}"
    return machine_clock()


def machine_clock() -> str:
    """Return what identifies the time since this machine was started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"about {round((time.time() - time.monotonic()) / 600)}"


def _shape_of(header: dict[str, Any]) -> list[object]:
    """Return what must be the same for numbers to mean the same."""
    return [
        header["limiter"],
        header["headroom"],
        *((name, period) for name, _, period in header["rates"]),
    ]


def _differences(stated: dict[str, Any], wanted: dict[str, Any]) -> str:
    return " and ".join(
        f"{key} {_in_words(key, stated[key])} where this process states {_in_words(key, value)}"
        for key, value in wanted.items()
        if stated[key] != value
    )


def _in_words(key: str, value: Any) -> str:
    if key != "rates":
        return repr(value)
    return ", ".join(f"{amount:,.15g} {name} in {period:,.15g} s" for name, amount, period in value)
