"""
Processes that are not watched, and when each is asked again whether it has become Python.

A shell becomes Python by exec, mostly within its first moments: the young are asked often. At rest
the others are asked ever more rarely with their age, so that a machine full of processes that are
nobody's business costs next to nothing; while memory moves, all within `_HURRIED_S`. Nor do they
cost much memory: of one that is not young it is kept when it began, and when it is due.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress

from watchdog_app.base.errors import Denied, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import read_bytes, read_link
from watchdog_app.base.threads import Background, Question
from watchdog_app.machine.sensors.command_line import is_interpreter
from watchdog_app.machine.sensors.pid_times import PidTimes
from watchdog_app.machine.sensors.process_files import TICKS_PER_S, embeds_python, says_python

YOUNG_S = 5.0
YOUNG_EVERY_S = 0.5
_HURRIED_S = 20.0
# A launcher that has waited for a minute is asked again within 20 s, one of an hour in 10 min.
_AGE_SHARE = 0.25
_SELDOM_S = 600.0
_DUE_STEP_S = 4.0  # those who are due in the same span are kept together
_LONGEST_S = 4.0  # counted between two looks in a hurry: no look asks all at once after a rest
_MOST_AT_REST = 64  # at one look, and two minutes can lie between two
_MAX_PLAIN = 1000
_NEVER_S = float("inf")


class Bystanders:
    """Who is there besides the watched ones, by pid."""

    def __init__(self, proc: str, background: Background | None = None) -> None:
        self._proc = proc
        self._background = background or Background()
        # Since when each runs; `_NEVER_S`: a kernel thread, never asked again.
        self._known = PidTimes()
        self._young = PidTimes()  # when each was asked last
        self._plain: set[str] = set()  # programs that were found to hold no interpreter
        self._round = array("i")  # in a hurry: those that are not young, one after the other
        self._at = 0
        self._due: dict[int, array[int]] = {}  # at rest: pids by when they are due, in steps
        self._asked_mono_s: float | None = None

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __contains__(self, pid: int) -> bool:
        return pid in self._known

    def unknown(self, pids: Sequence[int]) -> list[int]:
        """Those of `pids`, ascending, that are not among these."""
        return self._known.absent(pids)

    def holds_python(self, pid: int) -> bool:
        """
        Whether a process, known or new, is Python or a user's program that embeds it.

        False also where that is not known yet: it is asked again.
        """
        try:
            exe = read_link(f"{self._proc}/{pid}/exe").removesuffix(" (deleted)")
        except Denied:
            question = Question(pid, "program")
            return self._background.ask(question, lambda: says_python(self._proc, pid)) or False
        except SensorError:
            return False
        if is_interpreter(exe):
            return True
        # Not in the first look: most newcomers are gone before their map would be read.
        if pid not in self._known or pid in self._young or exe in self._plain:
            return False
        embeds = self._background.ask(
            Question(pid, "map", exe), lambda: embeds_python(self._proc, pid, exe)
        )
        if embeds or embeds is None:
            return embeds or False
        if len(self._plain) >= _MAX_PLAIN:
            self._plain.clear()
        self._plain.add(exe)  # a browser has fifty processes of one program
        return False

    def note(self, pid: int, now_mono_s: float) -> None:
        """It was asked now, and is not to be watched."""
        if pid not in self._known:
            self._known.put(pid, now_mono_s)
            self._young.put(pid, now_mono_s)
        elif pid in self._young:
            self._young.put(pid, now_mono_s)

    def forget(self, pid: int) -> None:
        """It has ended, or is watched from now on."""
        self._known.drop(pid)
        self._young.drop(pid)

    def due(self, now_mono_s: float, *, at_rest: bool) -> Iterator[int]:
        """
        Those that are to be asked now, each once; `note` or `forget` follows for each.

        Args:
            now_mono_s: now.
            at_rest: nothing moves, so there is time.
        """
        for pid in self._young:
            asked_mono_s, since_mono_s = self._young.get(pid), self._known.get(pid)
            if asked_mono_s is None or since_mono_s is None:
                continue  # gone since
            if now_mono_s - since_mono_s >= YOUNG_S:
                self._young.drop(pid)
                self._grow_up(pid, since_mono_s, asked_mono_s)
            elif now_mono_s - asked_mono_s >= YOUNG_EVERY_S:
                yield pid
        yield from self._seldom(now_mono_s) if at_rest else self._hurried(now_mono_s)

    def _hurried(self, now_mono_s: float) -> Iterator[int]:
        """As many as are due since the last time, so that all are asked within `_HURRIED_S`."""
        elapsed_s = 0.0 if self._asked_mono_s is None else now_mono_s - self._asked_mono_s
        self._asked_mono_s = now_mono_s
        if self._at >= len(self._round):
            self._round = array("i", (pid for pid in self._known if self._is_grown(pid)))
            self._at = 0
        # At least one, so that the round is never stuck.
        count = 1 + int(len(self._round) * min(elapsed_s, _LONGEST_S) / _HURRIED_S)
        turn = self._round[self._at : self._at + count]
        self._at += count
        for pid in turn:
            if self._is_grown(pid):  # else gone since
                yield pid

    def _seldom(self, now_mono_s: float) -> Iterator[int]:
        self._asked_mono_s = now_mono_s
        asked: set[int] = set()
        for step in sorted(step for step in self._due if step * _DUE_STEP_S <= now_mono_s):
            pids = self._due.pop(step)
            for index, pid in enumerate(pids):
                # Gone since; or a pid that was used again, and stands here twice.
                if pid in asked or not self._is_grown(pid):
                    continue
                if len(asked) >= _MOST_AT_REST:
                    self._due[step] = pids[index:]
                    return
                asked.add(pid)
                yield pid
                if self._is_grown(pid):
                    self._wait(pid, now_mono_s)

    def _is_grown(self, pid: int) -> bool:
        return self._known.get(pid) not in {None, _NEVER_S} and pid not in self._young

    def _wait(self, pid: int, now_mono_s: float) -> None:
        """It was asked now; when it is again, at rest."""
        since_mono_s = self._known.get(pid) or 0.0
        wait_s = min(_SELDOM_S, max(YOUNG_S, _AGE_SHARE * (now_mono_s - since_mono_s)))
        step = int((now_mono_s + wait_s) // _DUE_STEP_S) + 1
        self._due.setdefault(step, array("i")).append(pid)

    def _grow_up(self, pid: int, since_mono_s: float, asked_mono_s: float) -> None:
        """No longer young: since when it has run is learnt, and whether it is a program at all."""
        with suppress(SensorError, ValueError):
            stat = process.Stat(read_bytes(f"{self._proc}/{pid}/stat", 2048))
            if stat.is_kernel_thread:
                self._known.put(pid, _NEVER_S)
                return
            age_s = _since_boot_s() - stat.start_ticks / TICKS_PER_S
            self._known.put(pid, min(since_mono_s, asked_mono_s - age_s))
        self._wait(pid, asked_mono_s)


def _since_boot_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
