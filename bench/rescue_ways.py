"""The two ways of `rescue.py`: a training in an ordinary memory group, and one under a guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "guard"))

from guard_desk import Desk
from harness import NO_PAUSE
from rescue_rows import Row
from rescue_trainings import MB, WATCHDOG, Place, Reference, resumed

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.linux.cgroups import group_oom_kills
from watchdog_app.demo.story import read_losses
from watchdog_app.rescue.checkpoint import inventory

WAYS = ("without", "guard")
_SPARE_S = 200.0  # in addition to the growth: starting, saving, ending, on a busy machine
_POLL_INTERVAL_S = 0.02
_FULL = 0.98  # fraction of the limit


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run."""

    rescued: bool  # all its rescues are complete, and the newest resumed with the right losses
    trouble: str  # why it was not rescued
    killed: bool = False  # by the kernel
    stopped: bool = False  # the guard stopped it until the benchmark ended it
    exit: int | None = None  # None: not over in time
    lost: int | None = None  # steps between the newest rescue and the last written step
    seconds: float | None = None  # guard: limit to rescue; without: newest rescue to last step
    steps: int = 0


def without(place: Place, row: Row, ref: Reference) -> Outcome:
    """Run it in a group with the same limit, with a daemon that must not pause it."""
    world = place.world
    try:
        world.start_daemon(NO_PAUSE)
        group = world.group(row.limit_mb(ref.base_mb))
        switch = [*WATCHDOG, "exec", "--no-guard", "--"] if place.kind.switched_on else []
        process = place.start(group.command([*switch, *place.program]), _env(place, row, ref))
        try:
            code = process.wait(row.seconds(place.length.step_s) + _SPARE_S)
        except subprocess.TimeoutExpired:
            return Outcome(False, "not over: " + place.output(), steps=_last(place)[0])
        finally:
            _kill(process)
        written = place.complete_rescues().values()
        seconds = max(0.0, _last(place)[1] - max(written)) if written else None
        return _outcome(
            place, ref, place.output(), killed=code == -signal.SIGKILL, seconds=seconds, exit=code
        )
    finally:
        with undisturbed():
            world.close()


def within(place: Place, row: Row, ref: Reference) -> Outcome:
    """Run it under a guard with that limit, without a daemon."""
    desk = Desk(place.folder)
    desk.env = _env(place, row, ref)
    try:
        limit = str(int(row.limit_mb(ref.base_mb) * MB))
        process = desk.start(
            *place.program, options=("--limit", limit, *row.options), cwd=place.folder
        )
        followed = _follow(desk, process, place, row.seconds(place.length.step_s) + _SPARE_S)
        if process.poll() is None:
            return Outcome(False, "not over: " + _output(process), stopped=followed.stopped)
        code = process.returncode
        return _outcome(
            place, ref, _output(process), killed=followed.killed(code), stopped=followed.stopped,
            seconds=followed.seconds(_jumped(place)), exit=code,
        )  # fmt: skip
    finally:
        with undisturbed():
            desk.close()


class Seen:
    """Observations of a guard while it runs."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}
        self.stopped = False
        self.oom_kills = 0
        self.rescues: dict[Path, float] = {}
        # Unix time of each copy, and whether the group was at its limit
        self._copied: dict[float, bool] = {}

    def update(self, record: dict[str, Any]) -> None:
        """Read the supervisor's record; it also makes copies shortly before the limit."""
        self.record = record
        for event in record.get("events", []):
            full = record["used_bytes"] >= _FULL * record["limit_bytes"]
            if event["kind"] == "limit":
                self._copied.setdefault(event["unix_s"], full)

    def killed(self, code: int | None) -> bool:
        """
        Return whether the kernel killed it: by its counter, or by SIGKILL that no one else sent.
        """
        ending = self.stopped or self.record.get("state") == "ending"
        return self.oom_kills > 0 or (code == -signal.SIGKILL and not ending)

    def seconds(self, jumped_unix_s: float | None) -> float | None:
        """Return seconds from the limit, or the refused jump, to the rescue; 0: saved before it."""
        begins = [each for each, full in self._copied.items()
                  if full and each >= (jumped_unix_s or 0.0)]  # fmt: skip
        begin = begins[0] if begins else jumped_unix_s
        if begin is None or not self.rescues:
            return None
        return min((at - begin for at in self.rescues.values() if at >= begin), default=0.0)


def _follow(desk: Desk, process: subprocess.Popen[str], place: Place, patience_s: float) -> Seen:
    """Observe the guard until the program has ended; end a stopped program, as a user would."""
    seen = Seen()
    end = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < end:
        seen.update(desk.record(process) or seen.record)
        group = seen.record.get("group")
        if group:
            seen.oom_kills = max(seen.oom_kills, group_oom_kills(group) or 0)
        if seen.record.get("state") == "stopped" and not seen.stopped:
            seen.stopped = True
            desk.run("limit", str(process.pid), "--end")
        seen.rescues.update(place.complete_rescues())
        time.sleep(_POLL_INTERVAL_S)
    seen.rescues.update(place.complete_rescues())
    return seen


def _outcome(place: Place, ref: Reference, output: str, **known: Any) -> Outcome:
    last, _ = _last(place)
    rescues = list(place.complete_rescues())
    if not rescues:
        return Outcome(False, lost=None, steps=last, trouble=f"no rescue; {output}", **known)
    newest = max(rescues, key=lambda each: int(each.name.split("-")[1]))
    lost = max(0, last - int(newest.name.split("-")[1]))
    try:
        for each in rescues:
            inventory.verify(str(each))
        trouble = resumed(place, newest, ref)
    except WatchdogError as error:
        trouble = str(error)
    return Outcome(not trouble, lost=lost, steps=last, trouble=trouble, **known)


def _env(place: Place, row: Row, ref: Reference) -> dict[str, str]:
    words = row.words(row.limit_mb(ref.base_mb))
    return place.environment(*place.kind.words, *words, step_s=place.length.step_s)


def _last(place: Place) -> tuple[int, float]:
    """Return the last written step, and its Unix time."""
    losses = read_losses(str(place.out))
    return (max(losses), losses[max(losses)].unix_s) if losses else (0, 0.0)


def _jumped(place: Place) -> float | None:
    with suppress(OSError):
        return float(Path(f"{place.out}.jump").read_text())
    return None


def _output(process: subprocess.Popen[str]) -> str:
    return str(process.output())[-1500:]  # type: ignore[attr-defined]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals, so that a second Ctrl-C does not leave groups behind."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
