"""
What ended while nobody watched: with the machine, or while no daemon ran.

The journal holds who was alive. The next daemon looks who still is, and whether the machine was
started anew: then it went down, and the last readings may say of what.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.linux import cgroups
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import evidence_of
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.exits import (
    Cause,
    CauseKind,
    Certainty,
    Evidence,
    ExitFacts,
    LastError,
    UnitEnd,
)
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.daemon.status import Look
from watchdog_app.history.entries import about_task, death_entry
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine.sensors import crash_reports
from watchdog_app.machine.sensors.exits import KERNELS
from watchdog_app.machine.sensors.systemd_units import UnitQuestion, UnitQuestions

STATE = "alive"
_KEEP_S = 15.0  # between two lists: as often as the engine's state is kept
_KEEP_ANYWAY_S = 60.0  # rescues and ages change as well
_LONG_S = 60.0  # what runs for less than that is not missed
_MOST_TASKS = 50
_LAST_S = 310.0  # of readings: what stands still is written some five minutes apart
_FRESH_S = 60.0
_HOT = 5.0  # degrees below the limit, at the last reading
_EMPTY = 0.95  # of a battery
_RESCUE = ("path", "step", "bytes", "seconds", "saved_unix_s")


class MissedExits:
    """
    Keeps in the journal who is alive, and buries who is not any more.

    Args:
        journal: of the daemon.
        boot: of the machine.
        lives: whether a process runs.
        units: asks systemd.
    """

    def __init__(
        self,
        journal: JournalWriter,
        boot: str,
        lives: Callable[[ProcessKey], bool],
        units: UnitQuestions,
    ) -> None:
        self._journal = journal
        self._boot = boot
        self._lives = lives
        self._units = units
        self._kept: frozenset[ProcessKey] = frozenset()
        self._kept_mono_s = float("-inf")
        self._waiting: list[tuple[Missed, UnitQuestion | None]] = []
        self._entries: list[Entry] = []

    def look(self, journal: Journal | None) -> None:
        """Find who has ended since the last daemon, or with the machine."""
        if journal is None:
            return
        folder = os.path.abspath(paths.state_dir())
        for missed in ended(journal, folder, self._boot, self._lives):
            question = None
            if missed.asks_systemd:
                question = self._units.ask(missed.group, missed.key.pid, missed.seen)
            self._waiting.append((missed, question))

    def ended(self, now_mono_s: float) -> list[Entry]:
        """
        Entries of those that `look` has found, each once: what systemd says is waited for.

        One whose state in the journal is damaged raises, once, and is left out then.
        """
        self._units.collect()
        for missed, question in list(self._waiting):
            if question is not None and not question.over(now_mono_s):
                continue
            self._waiting.remove((missed, question))
            self._entries.append(missed.entry(None if question is None else question.answer))
        entries, self._entries = self._entries, []
        return entries

    def next_deadline_mono_s(self) -> float | None:
        """When `ended` has something to give at the latest."""
        if self._entries:
            return 0.0
        questions = [question for _, question in self._waiting]
        return min((0.0 if q is None else q.until_mono_s for q in questions), default=None)

    def keep(self, look: Look | None) -> None:
        """Write down who lives: when others do than before, and now and then."""
        if look is None:
            return
        waited_s = look.snapshot.mono_s - self._kept_mono_s
        keys = frozenset(task.key for task in look.tasks)
        if waited_s < _KEEP_S or (keys == self._kept and waited_s < _KEEP_ANYWAY_S):
            return
        self._kept, self._kept_mono_s = keys, look.snapshot.mono_s
        data = alive(look.tasks, look.agents, self._boot, look.snapshot.unix_s)
        self._journal.submit(partial(Journal.put_state, key=STATE, data=data))


def alive(
    tasks: Sequence[Task], agents: Mapping[ProcessKey, AgentState], boot: str, unix_s: float
) -> dict[str, Any]:
    """Who runs now and would be missed, as the journal keeps it."""
    found = []
    for task in tasks:
        view = agents.get(task.key)
        started = task.info.started_unix_s
        long = started is not None and unix_s - started >= _LONG_S
        if view is None and task.kind not in KERNELS and not long:
            continue
        rescue = None if view is None else view.rescue
        found.append(
            {
                "pid": task.key.pid,
                "start_time": task.key.start_time,
                "name": task.name,
                "group": task.info.cgroup,
                "group_kills": _kills(task.info.cgroup),
                "rescue": None
                if rescue is None
                else {name: getattr(rescue, name) for name in _RESCUE},
                "about": about_task(task.info, task.rss_bytes, view),
            }
        )
    host_kills = cgroups.host_oom_kills()
    return {
        "boot": boot,
        "unix_s": unix_s,
        "host_kills": host_kills,
        "tasks": found[:_MOST_TASKS],
    }


def _kills(group: str | None) -> int | None:
    return None if group is None else cgroups.group_oom_kills(group)


@dataclass(frozen=True, slots=True)
class Missed:
    """One that was alive when the last daemon wrote that down, and is gone."""

    one: Mapping[str, Any]  # as it was written down
    key: ProcessKey
    facts: ExitFacts  # from the counts of then and now
    seen: float  # when it was last known to be alive: seconds of the epoch
    now: float
    machine: tuple[Cause, Sequence[Evidence]] | None  # why the machine went down, if it did

    @property
    def group(self) -> str | None:
        """Its memory group."""
        return self.facts.group

    @property
    def asks_systemd(self) -> bool:
        """Whether systemd may know how it ended: it has left no word, and the machine runs on."""
        return self.machine is None and _said_nothing(self.facts.words)

    def entry(self, unit: UnitEnd | None) -> Entry:
        """
        Its end as the journal keeps it.

        Args:
            unit: what systemd says.
        """
        words = self.facts.words
        said = [] if words is None else [_said(words)]
        if self.machine is not None:
            cause, evidence = self.machine
            return _entry(self.one, self.key, cause, [*evidence, *said], self.seen)
        facts = replace(self.facts, unit=unit)
        cause = _unseen(facts, self.seen, self.now)
        found = [each for each in evidence_of(facts) if each.source in ("systemd", "count")]
        return _entry(self.one, self.key, cause, [*found, *said], self.now)


def ended(
    journal: Journal, folder: str, boot: str, lives: Callable[[ProcessKey], bool]
) -> list[Missed]:
    """
    Those that the last daemon saw alive and that are gone.

    Args:
        journal: as the last daemon left it.
        folder: of the state, where last words lie.
        boot: of the machine as it runs now.
        lives: whether a process runs.
    """
    state = journal.state(STATE)
    if state is None:
        return []
    now = time.time()
    down = state.get("boot") != boot
    seen = _last_seen(journal, state)
    machine = _machine_down(journal, seen) if down else None
    host_kills = cgroups.host_oom_kills()
    missed = []
    for one in state.get("tasks") or []:
        key = ProcessKey(int(one["pid"]), int(one["start_time"]))
        if not down and lives(key):
            continue
        if any(  # its end was seen after it was last written down as alive
            each.get("start_time") == key.start_time
            for each in journal.history(task=str(key.pid), kinds=("death", "end"), limit=20)
        ):
            continue
        group = one.get("group")
        facts = ExitFacts(
            pid=key.pid,
            group=group,
            group_kills_before=one.get("group_kills"),
            group_kills_after=_kills(group),
            host_kills_before=state.get("host_kills"),
            host_kills_after=host_kills,
            counted=f"between {_moment(float(state.get('unix_s') or seen))} and {_moment(now)}",
            words=crash_reports.read(folder, key),
        )
        missed.append(Missed(one, key, facts, seen, now, machine))
    return missed


def _entry(
    one: Mapping[str, Any],
    key: ProcessKey,
    cause: Cause,
    evidence: Sequence[Evidence],
    unix_s: float,
) -> Entry:
    about = dict(one.get("about") or {})
    rescue = one.get("rescue")
    return death_entry(
        key,
        str(one.get("name")),
        about.get("path"),
        cause=cause,
        evidence=evidence,
        rescue=None if rescue is None else RescueRecord(**{n: rescue[n] for n in _RESCUE}),
        had_agent="agent" in about,
        was_paused=False,
        unix_s=unix_s,
        about=about,
        plain_end=cause.kind is CauseKind.UNKNOWN,
    )


def _unseen(facts: ExitFacts, seen: float, now: float) -> Cause:
    words = facts.words
    between = f"between {_moment(seen)} and {_moment(now)}, while no watchdog ran"
    if words is not None and not _said_nothing(words):
        at = "" if words.place is None else f" at {words.place}"
        return Cause(
            CauseKind.SIGNAL if words.fatal else CauseKind.FAILED,
            f"ended {between}: {words.fatal or words.error}{at}",
            Certainty.EXACT,
        )
    cause = diagnose(facts)
    # Others may have been killed as well in all that time: the machine's count alone says nothing.
    if cause.kind in (CauseKind.OOM_DAEMON, CauseKind.GROUP_LIMIT):
        likely = "" if cause.text.startswith("most likely") else "most likely "
        return replace(cause, text=f"{likely}{cause.text}; {between}", certainty=Certainty.LIKELY)
    return Cause(CauseKind.UNKNOWN, f"ended {between}: of what is not known")


def _said_nothing(words: LastError | None) -> bool:
    return words is None or not (words.fatal or words.error)


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _said(words: LastError) -> Evidence:
    at = "" if words.place is None else f", at {words.place}"
    return Evidence("python", f"Python wrote: {words.fatal or words.error}{at}.")


def _machine_down(journal: Journal, seen: float) -> tuple[Cause, list[Evidence]]:
    """Why the machine went down, as far as the last readings say."""
    at = f"at about {_clock(seen)}"
    text = "It ran when it was last seen, and the machine has been started anew since."
    evidence = [Evidence("boot", text)]
    newest = journal.history(limit=1, kinds=("daemon",))
    if newest and newest[0].get("what") == "stopped" and newest[0]["unix_s"] >= seen - _FRESH_S:
        told = Evidence("boot", "Watchdog had been told to end before.")
        why = "it was shut down or restarted in good order"
        return _down(at, why, Certainty.LIKELY), [told, *evidence]
    for text, why in _readings(journal, seen):
        evidence.insert(0, Evidence("level", text))
        return _down(at, f"most likely {why}", Certainty.LIKELY), evidence
    evidence.append(
        Evidence(
            "boot",
            "Nothing says why: neither heat nor an empty battery was near. A power cut, a forced "
            "reset and a crash leave no trace here; look into: journalctl -b -1 -e",
            Certainty.UNKNOWN,
        )
    )
    return _down(at, "why is not known", Certainty.UNKNOWN), evidence


def _readings(journal: Journal, seen: float) -> Iterator[tuple[str, str]]:
    """What was about to switch the machine off, the likeliest first: (reading, reason)."""
    series = journal.series(None, seen - _LAST_S, seen + _FRESH_S, 5000)
    for kind in (ResourceKind.TEMPERATURE.value, ResourceKind.BATTERY.value):
        for one in series:
            used, limit = one["points"][-1][1], one["points"][-1][2]
            if one["kind"] != kind or used is None or not limit:
                continue
            at = _clock(one["points"][-1][0])
            if kind == "temperature" and used >= limit - _HOT:
                level = f"{used:.0f} °C of {limit:.0f} °C"
                yield f"{one['name']} was at {level} at {at}.", f"heat, {level}"
            elif kind == "battery" and used >= _EMPTY * limit:
                left = f"{100 * (1 - used / limit):.0f} % left"
                yield f"{one['name']} had {left} at {at}.", f"an empty battery, {left}"


def _down(at: str, why: str, certainty: Certainty) -> Cause:
    text = f"ended with the machine, which went down {at}: {why}"
    return Cause(CauseKind.MACHINE_DOWN, text, certainty)


def _last_seen(journal: Journal, state: Mapping[str, Any]) -> float:
    """When the last daemon last wrote anything: seconds of the epoch."""
    found = [float(state.get("unix_s") or 0.0)]
    newest = journal.history(limit=1)
    found += [float(newest[0]["unix_s"])] if newest else []
    for one in state.get("tasks") or []:
        ident = f"{state.get('boot')}:{one['pid']}:{one['start_time']}"
        points = journal.series(ident, limit=10)
        found += [each["points"][-1][0] for each in points]
    return max(found)


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
