"""Asking systemd, beside the loop, about the units of processes that have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from watchdog_app.base.threads import Worker
from watchdog_app.core.model.exits import UnitEnd
from watchdog_app.machine.sensors import unit_end

# Until then an end is neither written down nor told: under memory pressure journalctl is slow.
_WAIT_S = 12.0
_MOST = 8  # that wait at once: whoever ends beyond that is written down unasked

Done = Callable[[UnitEnd | None], None]


@dataclass(slots=True, eq=False)
class _Open:
    until_mono_s: float
    done: Done


class UnitExits:
    """
    Questions that are open. Each `done` is called once, by who calls `expire` or `close`.

    Args:
        wake: wakes the loop when an answer has come.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._worker = Worker(wake)
        self._open: list[_Open] = []

    def ask(
        self,
        group: str | None,
        pid: int,
        since_unix_s: float,
        done: Done,
        *,
        guards: Sequence[str] = (),
    ) -> bool:
        """
        Ask; False: there is nobody who could answer, and `done` is not called.

        Args:
            group: memory group of a process that has ended.
            pid: of the process.
            since_unix_s: when it was last seen alive.
            done: called with the answer, or with None where none came in time.
            guards: daemons that kill for memory and run here.
        """
        unit = unit_end.unit_of(group)
        guards = [each for each in guards if each in unit_end.GUARDS]
        if (unit is None and not guards) or len(self._open) >= _MOST:
            return False
        if not unit_end.can_ask():
            return False
        question = _Open(time.monotonic() + _WAIT_S, done)
        self._open.append(question)
        job = partial(unit_end.ask, unit, pid, since_unix_s, guards=guards)
        self._worker.submit(job, lambda answer, _: self._end(question, answer))
        return True

    def expire(self, now_mono_s: float) -> None:
        """Hand over what has been answered; end what was not answered in time."""
        self._worker.collect()
        for question in [each for each in self._open if now_mono_s >= each.until_mono_s]:
            self._end(question, None)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        return min((each.until_mono_s for each in self._open), default=None)

    def close(self) -> None:
        """End every question without an answer."""
        for question in list(self._open):
            self._end(question, None)

    def _end(self, question: _Open, answer: UnitEnd | None) -> None:
        if question in self._open:
            self._open.remove(question)
            question.done(answer)
