"""
The reader's life: started, asked, given up on, started again later and later.

A card on which the driver hung or crashed is left out for a while, so that the others are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.sensors.gpu import answer, faults
from watchdog_app.sensors.gpu.child import ReaderChild, reader_env
from watchdog_app.sensors.gpu.driver import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0
# So long it has to go well for the next failure to count as a first one.
_WELL_S = 60.0
_AVOID_FIRST_S = 60.0
_AVOID_LAST_S = 1800.0
# On a machine that stalls we come late ourselves: it is not the driver that hangs.
_LOOKS_IN_VAIN = 3
# Readers that SIGKILL does not end, waiting in the kernel: more would help nobody.
_MOST_STUCK = 2
_CLOSE_S = 1.0
# What taking apart an answer raises that none of our readers gives: too deep, infinite, not there.
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class _Avoided:
    """A card on which the driver hung or crashed."""

    __slots__ = ("times", "until_mono_s")

    def __init__(self) -> None:
        self.times = 0
        self.until_mono_s = 0.0


class Link:
    """One reader at a time, and what became of those before."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], deadline_s: float, start_s: float
    ) -> None:
        self._argv = tuple(argv)
        self._env = env
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._child: ReaderChild | None = None
        self._leaving: list[ReaderChild] = []  # killed or let go, not gone yet
        self._ready = False
        self._slow_start = False  # it is said that the driver takes long to begin
        self._number = 0
        self._waiting = False  # for an answer, or for the reader to be ready
        self._progress_mono_s = 0.0
        self._looks = 0  # in vain, since it last said something
        self._index: int | None = None  # the card that is being asked about
        self._retry_mono_s: float | None = None
        self._retries = 0
        self._well_mono_s: float | None = None
        self._avoid: dict[int, _Avoided] = {}
        self._skipped: frozenset[int] = frozenset()  # of the last request
        self._awake: frozenset[int] | None = None  # likewise; None: all are
        self._failed: dict[str, Any] | None = None  # the reader's own word
        self._fault: Fault | None = None
        self.versions: dict[str, Any] = {}
        self.asked_mono_s: float | None = None
        self._started_mono_s: float | None = None
        self._own_word = False  # this reader said why it cannot go on

    @property
    def running(self) -> bool:
        """There is a reader."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._child is None else self._child.pid

    @property
    def ill(self) -> bool:
        """The last reader failed, and none has read everything since."""
        return self._fault is not None or self._failed is not None

    @property
    def absence(self) -> str | None:
        """Why there is nothing to watch, where that is no fault; None: there is."""
        if self._failed is None or self._failed.get("code") not in (
            DRIVER_NOT_LOADED,
            LIBRARY_NOT_FOUND,
        ):
            return None
        return "A driver library is installed, and no NVIDIA driver is loaded."

    def avoided(self, now_mono_s: float) -> frozenset[int]:
        """Indices of the cards that are not asked about for now."""
        return frozenset(i for i, each in self._avoid.items() if now_mono_s < each.until_mono_s)

    def left_out(self, index: int) -> GpuState | None:
        """
        How a card counts of which the last request did not ask; None: it was asked.

        Nothing can be said of such a card: not that it is well, nor that it is gone.
        """
        if index in self._skipped:
            return GpuState.SILENT
        return GpuState.OK if self._awake is not None and index not in self._awake else None

    def failure(self, library: str | None, module: str | None) -> Fault | None:
        """What is wrong with the driver or the reader; None: nothing."""
        failed = self._failed
        if failed is None:
            return self._fault
        if failed["failed"] == "binding":
            return faults.binding(str(failed.get("said")))
        if failed["failed"] == "reader":
            return faults.start(str(failed.get("said")))
        code = failed.get("code")
        return faults.init(
            code if isinstance(code, int) else -1, str(failed.get("said")), library, module
        )

    def try_now(self) -> None:
        """Something has changed: no use in waiting for the next try."""
        self._retry_mono_s = None
        self._retries = 0
        self._avoid.clear()

    def forget(self) -> None:
        """There is no driver any more: nothing is wrong with it either."""
        self._failed = self._fault = None
        self.versions = {}

    def start(self, now_mono_s: float, library_folder: str | None) -> None:
        """Start a reader, unless it is too early after the last failure."""
        self._bury()
        if self._retry_mono_s is not None and now_mono_s < self._retry_mono_s:
            return
        if len(self._leaving) >= _MOST_STUCK:
            self._fault = faults.stuck(len(self._leaving))
            self._put_off(now_mono_s)
            return
        try:
            self._child = ReaderChild(self._argv, reader_env(self._env, library_folder))
        except OSError as error:
            self._fault = faults.start(error.strerror or str(error))
            self._put_off(now_mono_s)
            return
        self._ready = self._own_word = self._slow_start = False
        self._waiting = True
        self._looks = 0
        self._index = None
        self._started_mono_s = self._progress_mono_s = now_mono_s
        self._well_mono_s = None

    def ask(
        self, now_mono_s: float, every_s: float, awake: Sequence[tuple[int, str]] | None
    ) -> None:
        """Send the next request if it is due and none is under way."""
        asked = self.asked_mono_s
        if self._child is None or self._waiting:
            return
        if asked is not None and now_mono_s - asked < every_s:
            return
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "now": now_mono_s}
        avoided = self.avoided(now_mono_s)
        if avoided:
            request["skip"] = sorted(avoided)
        if awake is not None:
            request["awake"] = list(awake)
        self._skipped = avoided
        self._awake = None if awake is None else frozenset(index for index, _ in awake)
        self._child.ask(request)
        self._waiting = True
        self._looks = 0
        self._index = None
        self._progress_mono_s = self.asked_mono_s = now_mono_s

    def collect(self, now_mono_s: float) -> list[dict[str, Any]]:
        """Messages with cards and ends of readings; finds out who hangs and who is gone."""
        self._bury()
        child = self._child
        if child is None:
            return []
        status = child.status  # before reading: what it said last is read all the same
        found: list[dict[str, Any]] = []
        try:
            messages = child.answers()
            for message in messages:
                self._progress_mono_s = now_mono_s
                self._looks = 0
                if self._hear(message, now_mono_s):
                    found.append(message)
        except NONSENSE:
            self.distrust(now_mono_s)
            return found
        if status is not None:
            if not self._own_word:
                self._failed = None
                self._fault = faults.ended(status, self._index)
                if status not in faults.BY_SOMEBODY:
                    self._suspect(now_mono_s)
            self._give_up(now_mono_s, self._fault)
        elif self._waiting:
            deadline_s = self._deadline_s if self._ready else self._start_s
            self._looks += 1
            overdue = now_mono_s - self._progress_mono_s > deadline_s
            late = now_mono_s - self._progress_mono_s > self._deadline_s
            if late and not self._ready and not self.ill and self._looks >= _LOOKS_IN_VAIN:
                self._fault, self._slow_start = faults.starting(self._deadline_s), True
            if overdue and self._looks >= _LOOKS_IN_VAIN:
                self._suspect(now_mono_s)
                self._give_up(now_mono_s, faults.silent(deadline_s, self._index))
        return found

    def let_go(self) -> None:
        """No reader for now: it ends by itself, or is ended at the next look."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._leaving.append(child)
        self._waiting = False
        self.asked_mono_s = None
        self._bury()

    def rest(self, now_mono_s: float, seconds: float) -> None:
        """No reader for so long, once the reading that is under way is in."""
        if self._child is not None and self._ready and not self._waiting:
            self.let_go()
            self._retry_mono_s = now_mono_s + seconds

    def renew(self, now_mono_s: float, after_s: float) -> None:
        """A new reader in place of one that is so old."""
        started = self._started_mono_s
        if started is not None and now_mono_s - started >= after_s and not self._waiting:
            self.let_go()

    def distrust(self, now_mono_s: float) -> None:
        """It said what no reader says: the driver has damaged it."""
        self._suspect(now_mono_s)
        self._give_up(now_mono_s, faults.nonsense())

    def close(self) -> None:
        """End everything; waits a second at most."""
        self.let_go()
        for child in self._leaving:
            child.wait(_CLOSE_S / len(self._leaving))
        self._leaving.clear()

    def _hear(self, message: Mapping[str, Any], now_mono_s: float) -> bool:
        """Take one message; whether it is one about cards."""
        if "failed" in message:
            self._failed = {**message, "said": answer.text(str(message.get("said")))}
            self._own_word = True
            return False
        if "ready" in message:
            self.versions = answer.versions(message["ready"])
            self._ready, self._waiting = True, False
            self._failed = None
            if self._slow_start:
                self._fault, self._slow_start = None, False
            return False
        if message["id"] != self._number:
            return False
        if "begin" in message:
            self._index = int(message["begin"])
            return False
        if "end" in message:
            self._waiting = False
            self._index = None
            self._fault = None
            self._forgive(now_mono_s)
        return True

    def _suspect(self, now_mono_s: float) -> None:
        """The card that was asked about is left out for a while."""
        if self._index is None:
            return
        each = self._avoid.setdefault(self._index, _Avoided())
        each.until_mono_s = now_mono_s + min(_AVOID_FIRST_S * 2**each.times, _AVOID_LAST_S)
        each.times += 1

    def _forgive(self, now_mono_s: float) -> None:
        if self._well_mono_s is None:
            self._well_mono_s = now_mono_s
        elif now_mono_s - self._well_mono_s >= _WELL_S:
            self._retries = 0
        for index, each in list(self._avoid.items()):
            if now_mono_s >= each.until_mono_s + _WELL_S:
                del self._avoid[index]

    def _give_up(self, now_mono_s: float, fault: Fault | None) -> None:
        self._fault = fault
        self.let_go()
        self._put_off(now_mono_s)

    def _put_off(self, now_mono_s: float) -> None:
        self._retry_mono_s = now_mono_s + min(FIRST_RETRY_S * 2**self._retries, LAST_RETRY_S)
        self._retries = min(self._retries + 1, 16)

    def _bury(self) -> None:
        self._leaving = [child for child in self._leaving if child.status is None]
