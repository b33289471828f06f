"""
Exits that no daemon saw, because the machine went down or no daemon ran.

The journal lists the tasks that were alive. The next daemon checks which still run, and whether the
machine was restarted. If so, the last readings may show why it went down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from watchdog_app.base import codec, paths
from watchdog_app.base.linux import cgroups
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import NO_KILL, collect_evidence
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
from watchdog_app.daemon.logind import SHUTDOWN
from watchdog_app.daemon.recorder import StateStore
from watchdog_app.daemon.status import AssessedSample
from watchdog_app.history.entries import exit_entry, task_fields
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.machine.sensors.exits import KERNELS, read_crash_report
from watchdog_app.machine.sensors.systemd_units import UnitQueries, UnitQuery

STATE = "alive"
_SAVE_INTERVAL_S = 15.0  # between two lists; the interval of the engine's state
_SAVE_UNCHANGED_INTERVAL_S = 60.0  # rescues and ages change as well
_LEAST_AGE_S = 60.0  # a shorter run is too unimportant
_MOST_TASKS = 50
# time range of the readings: a constant value is stored about every five minutes
_READINGS_S = 310.0
_FRESH_S = 60.0
_LAST_NOTES = 5  # a shutdown also stops the daemon
_HOT_MARGIN_CELSIUS = 5.0  # below the limit, at the last reading
_EMPTY_RATIO = 0.95  # used share of the battery that counts as empty

_Diagnosis = tuple[Cause, list[Evidence]]
# the question to systemd (None: it is not asked), and the function that makes the entry
_Pending = tuple[UnitQuery | None, Callable[[UnitEnd | None], Entry]]


class MissedExits:
    """
    Saves the tasks that are alive, and records those that ended unseen.

    Args:
        state_store: stores the list.
        is_alive: whether a process runs.
        units: asks systemd.
    """

    def __init__(
        self, state_store: StateStore, is_alive: Callable[[ProcessKey], bool], units: UnitQueries
    ) -> None:
        self._state_store = state_store
        self._is_alive = is_alive
        self._units = units
        self._saved_keys: frozenset[ProcessKey] = frozenset()
        self._saved_mono_s = float("-inf")
        self._pending: list[_Pending] = []

    def find(self, journal: Journal | None) -> None:
        """Find tasks that ended since the last daemon ran, or with the machine."""

        if journal is not None:
            self._state_store.restore(journal, STATE, partial(self._find_missed, journal))

    def ended(self, now_mono_s: float) -> list[Entry]:
        """
        Entries of the exits that `find` has found, each once, after systemd has answered.

        Raises once for an exit whose state in the journal is damaged, and then skips it.
        """
        self._units.collect()
        entries = []
        for pending in list(self._pending):
            question, make_entry = pending
            if question is None or question.over(now_mono_s):
                self._pending.remove(pending)
                entries.append(make_entry(None if question is None else question.answer))
        return entries

    def next_deadline_mono_s(self) -> float | None:
        """The time by which `ended` must be called; None: no exit is pending."""
        deadlines = (each.until_mono_s if each else 0.0 for each, _ in self._pending)
        return min(deadlines, default=None)

    def save_alive(self, sample: AssessedSample | None, *, stopping: bool = False) -> None:
        """
        Save the tasks that are alive, after a change and at an interval.

        Args:
            sample: the last sample.
            stopping: save them now, because this daemon ends.
        """
        if sample is None:
            return
        waited_s = sample.snapshot.mono_s - self._saved_mono_s
        keys = frozenset(task.key for task in sample.tasks)
        interval_s = _SAVE_UNCHANGED_INTERVAL_S if keys == self._saved_keys else _SAVE_INTERVAL_S
        if waited_s < interval_s and not stopping:
            return
        self._saved_keys, self._saved_mono_s = keys, sample.snapshot.mono_s
        unix_s = sample.snapshot.unix_s
        living = [
            _task_record(task, sample.agents.get(task.key))
            for task in _tasks_to_save(sample, unix_s)
        ]
        host_kills = cgroups.host_oom_kills()
        self._state_store.put(STATE, unix_s=unix_s, host_kills=host_kills, tasks=living)

    def _find_missed(self, journal: Journal, state: Mapping[str, Any], same_boot: bool) -> None:
        """Queue tasks of the last daemon that have ended, until systemd has answered."""
        now_unix_s, host_kills = time.time(), cgroups.host_oom_kills()
        newest = journal.history(limit=1)
        seen_unix_s = max(
            float(state.get("unix_s") or 0.0), *(float(each["unix_s"]) for each in newest), 0.0
        )
        machine = None if same_boot else _diagnose_machine_down(journal, seen_unix_s)
        folder = os.path.abspath(paths.state_dir())
        for kept in state.get("tasks") or []:
            key = ProcessKey(int(kept["pid"]), int(kept["start_time"]))
            if (same_boot and self._is_alive(key)) or _has_exit_entry(journal, key):
                continue
            group, words = kept.get("group"), read_crash_report(folder, key)
            facts = ExitFacts(
                pid=key.pid,
                group=group,
                group_kills_before=kept.get("group_kills"),
                group_kills_after=_group_kills(group),
                host_kills_before=state.get("host_kills"),
                host_kills_after=host_kills,
                counted=_between(float(state.get("unix_s") or seen_unix_s), now_unix_s),
                words=words,
            )
            question = None
            if machine is None and _last_error_text(words) is None:
                question = self._units.ask(group, key.pid, seen_unix_s)
            span = (seen_unix_s, now_unix_s)
            make_entry = partial(_missed_entry, kept, key, facts, machine=machine, span_unix_s=span)
            self._pending.append((question, make_entry))


def _tasks_to_save(sample: AssessedSample, unix_s: float) -> Sequence[Task]:
    """Tasks worth saving: kernels, trainings, and those that have run for a minute."""
    found = [
        task
        for task in sample.tasks
        if task.kind in KERNELS
        or task.key in sample.agents
        or unix_s - (task.info.started_unix_s or unix_s) >= _LEAST_AGE_S
    ]
    return found[:_MOST_TASKS]


def _task_record(task: Task, view: AgentState | None) -> dict[str, Any]:
    """A task as the journal stores it."""
    return {
        "pid": task.key.pid,
        "start_time": task.key.start_time,
        "name": task.name,
        "group": task.info.cgroup,
        "group_kills": _group_kills(task.info.cgroup),
        "rescue": codec.encode(None if view is None else view.rescue),
        "about": task_fields(task.info, task.rss_bytes, view),
    }


def _group_kills(group: str | None) -> int | None:
    return None if group is None else cgroups.group_oom_kills(group)


def _has_exit_entry(journal: Journal, key: ProcessKey) -> bool:
    """Whether the journal has an entry for the end of a process."""
    entries = journal.history(task=str(key.pid), kinds=("exit",), limit=20, all_exits=True)
    return any(each.get("start_time") == key.start_time for each in entries)


def _missed_entry(
    kept: Mapping[str, Any],
    key: ProcessKey,
    facts: ExitFacts,
    unit: UnitEnd | None,
    *,
    machine: _Diagnosis | None,
    span_unix_s: tuple[float, float],
) -> Entry:
    """
    The journal entry of a missed exit.

    Args:
        kept: the stored record of the task.
        key: its process.
        facts: with the counters of then and now.
        unit: the answer of systemd.
        machine: why the machine went down; None: it did not.
        span_unix_s: when the task was last known to be alive, and now.
    """
    if machine is not None:
        (cause, evidence), unix_s = machine, span_unix_s[0]
    else:
        cause, evidence = _diagnose_unseen(replace(facts, unit=unit), span_unix_s)
        unix_s = span_unix_s[1]
    error_text = _last_error_text(facts.words)
    if error_text is not None:
        evidence = [*evidence, Evidence("python", f"Python wrote: {error_text}.")]
    about = dict(kept.get("about") or {})
    return exit_entry(
        key,
        str(kept.get("name")),
        about.get("path"),
        cause=cause,
        evidence=evidence,
        rescue=codec.decode(RescueRecord | None, kept.get("rescue")),
        had_agent="agent" in about,
        was_paused=False,
        unix_s=unix_s,
        about=about,
        notable=cause.kind is not CauseKind.UNKNOWN,
    )


def _diagnose_unseen(facts: ExitFacts, span_unix_s: tuple[float, float]) -> _Diagnosis:
    """Diagnose an exit that happened while no daemon ran."""
    cause = diagnose(facts)
    sources = ("systemd", "count", NO_KILL)
    evidence = [each for each in collect_evidence(facts) if each.source in sources]
    between = f"{_between(*span_unix_s)}, while no watchdog ran"
    words, error_text = facts.words, _last_error_text(facts.words)
    if words is not None and error_text is not None:
        kind = CauseKind.SIGNAL if words.fatal else CauseKind.FAILED
        cause = Cause(kind, f"ended {between}: {error_text}", Certainty.EXACT)
    # Other processes may have been killed since: the machine's counter alone is not evidence.
    elif cause.kind in (CauseKind.OOM_DAEMON, CauseKind.GROUP_LIMIT):
        likely = "" if cause.text.startswith("most likely") else "most likely "
        text = f"{likely}{cause.text}; {between}"
        cause = replace(cause, text=text, certainty=Certainty.LIKELY)
    else:
        cause = Cause(CauseKind.UNKNOWN, f"ended {between}")
    return cause, evidence


def _last_error_text(words: LastError | None) -> str | None:
    """The error that Python wrote before the end, and its line; None: there is none."""
    if words is None or not (words.fatal or words.error):
        return None
    at = "" if words.place is None else f" at {words.place}"
    return f"{words.fatal or words.error}{at}"


def _diagnose_machine_down(journal: Journal, seen_unix_s: float) -> _Diagnosis:
    """Diagnose why the machine went down, from the last readings."""
    text = "It ran when it was last seen, and the machine has been restarted since."
    evidence = [Evidence("boot", text)]
    notes = journal.history(limit=_LAST_NOTES, kinds=("daemon",))
    newest = notes[:1]
    announced = [each for each in notes if each.get("what") == SHUTDOWN]
    level = _shutdown_reading(journal, seen_unix_s)
    if announced and announced[0]["unix_s"] >= seen_unix_s - _FRESH_S:
        at = _format_time(announced[0]["unix_s"])
        evidence.insert(0, Evidence("boot", f"logind announced a shutdown at {at}."))
        why, certainty = ": it was shut down", Certainty.EXACT
    elif (
        newest
        and newest[0].get("what") == "stopped"
        and (newest[0]["unix_s"] >= seen_unix_s - _FRESH_S)
    ):
        evidence.insert(0, Evidence("boot", "The daemon had been stopped before."))
        why, certainty = ": it was shut down or restarted in good order", Certainty.LIKELY
    elif level is not None:
        evidence.insert(0, Evidence("level", level[0]))
        why, certainty = f": most likely {level[1]}", Certainty.LIKELY
    else:
        text = (
            "Nothing says why: neither heat nor an empty battery was near. A power cut, a forced "
            "reset and a crash leave no trace here; look into: journalctl -b -1 -e"
        )
        evidence.append(Evidence("boot", text, Certainty.UNKNOWN))
        why, certainty = "", Certainty.UNKNOWN
    text = f"ended with the machine, which went down at about {_format_time(seen_unix_s)}{why}"
    return Cause(CauseKind.MACHINE_DOWN, text, certainty), evidence


def _shutdown_reading(journal: Journal, seen_unix_s: float) -> tuple[str, str] | None:
    """Heat or an empty battery that may have switched the machine off: reading and reason."""
    begin_unix_s, end_unix_s = seen_unix_s - _READINGS_S, seen_unix_s + _FRESH_S
    found: dict[str, tuple[str, str]] = {}
    for series in journal.series(None, begin_unix_s, end_unix_s, 5000):
        unix_s, used, limit = series["points"][-1][:3]
        if used is None or not limit:
            continue
        if series["kind"] == "temperature" and used >= limit - _HOT_MARGIN_CELSIUS:
            level = f"{used:.0f} °C of {limit:.0f} °C"
            text = f"{series['name']} was at {level} at {_format_time(unix_s)}."
            found.setdefault("heat", (text, f"heat, {level}"))
        elif series["kind"] == "battery" and used >= _EMPTY_RATIO * limit:
            left = f"{100 * (1 - used / limit):.0f} % left"
            text = f"{series['name']} had {left} at {_format_time(unix_s)}."
            found.setdefault("battery", (text, f"an empty battery, {left}"))
    return found.get("heat") or found.get("battery")


def _between(begin_unix_s: float, end_unix_s: float) -> str:
    """`between 2026-11-26 12:14:05 and 12:14:31`: the day appears once if it is the same."""
    begin, end = _format_time(begin_unix_s), _format_time(end_unix_s)
    day = begin.partition(" ")[0]
    return f"between {begin} and {end.removeprefix(f'{day} ')}"


def _format_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
