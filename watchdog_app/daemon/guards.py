"""
The guards of this user: reads their supervisors' records, reports changes and sends orders.

A supervisor needs no daemon and never waits for one. It replaces a small file at each change. The
daemon reads the file at each sample. It believes a file only if the kernel confirms that the named
program is in that group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.client.jsonrpc import INVALID_PARAMS, REFUSED
from watchdog_app.client.requests import LimitGuard
from watchdog_app.core.model import status as records
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.agent import RescueRecord
from watchdog_app.core.model.decisions import Decision, Topic
from watchdog_app.core.model.exits import GuardEnd
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import Reading, ResourceKind
from watchdog_app.core.model.status import Button, Notification
from watchdog_app.core.model.tasks import find_task, name_with_pid
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.guard import cgroup, record
from watchdog_app.guard.record import TIME_IS_OVER, GuardRecord
from watchdog_app.history.journal import Entry

_SWEEP_S = 5.0
_MOST_MEMBERS = 50
_REFUSED_AGAIN_S = 60.0  # a program that frees and allocates in turn is refused many times a second
_REPORTED_WHEN_OVER = ("stopped", "unlimited")  # the other states end on their own


# By state at the limit: urgency, stage and title of the notification.
_AT_LIMIT = {
    "stopped": ("critical", "pause", "Stopped at its memory limit"),
    "refusing": ("critical", "warn", "At its memory limit: more is refused"),
    "unlimited": ("normal", "warn", "Beyond its memory limit"),
    "ending": ("critical", "pause", "Ended at its memory limit"),
}
_CONTINUES = ("normal", "warn", "Continues")

GuardEvent = tuple[Notification, Entry, Task | None]  # for people and for the journal


class Guards:
    """
    Every guard of this user.

    Args:
        observer: provides the last sample.
        log: the daemon's log.
    """

    def __init__(self, observer: Observer, log: Log) -> None:
        self._observer = observer
        self._log = log
        self._events: list[GuardEvent] = []
        self._guards: dict[str, GuardRecord] = {}  # by name of their group
        self._by_task: dict[ProcessKey, str] = {}
        self._refused_mono_s: dict[str, float] = {}  # the last refusal, by name of the group
        self._next_sweep_mono_s = 0.0
        # When memory runs out, starting a supervisor takes seconds: the loop must not wait for it.
        self._sweeper = Worker()

    def refresh(self) -> None:
        """
        Read the supervisors' records. `take_events` returns the events that people should know.
        """
        self._sweeper.collect()
        due = not self._sweeper.waiting and time.monotonic() >= self._next_sweep_mono_s
        if self._guards and due:
            from watchdog_app.guard import process

            self._next_sweep_mono_s = time.monotonic() + _SWEEP_S
            # If supervisor and standby were both killed, a process must not stay stopped for ever.
            self._sweeper.submit(process.adopt_orphans, _raise_error)
        before = self._guards
        self._guards = {
            cgroup.guard_group_name(each.pid, each.start_time): each
            for each in record.read_all()
            if each.group is not None and cgroup.PREFIX in each.group
        }
        self._update_usage()
        self._by_task = self._match_tasks()
        for name, guard in self._guards.items():
            state = before[name].state if name in before else "running"
            if guard.state != state:
                self._report_change(name, guard, state)

    def _guard_readings(self) -> Iterator[tuple[Reading, GuardRecord]]:
        """The readings of the last sample that belong to guards."""
        for reading in self._observer.readings() if self._guards else ():
            guard = self._guards.get(_group_name(reading.key.subject))
            if guard is not None:
                yield reading, guard

    def _update_usage(self) -> None:
        """Update the usage from the last sample: supervisors write records mostly at changes."""
        for reading, guard in self._guard_readings():
            least = 0 if guard.state == "running" else guard.used_bytes
            guard.used_bytes = max(int(reading.used), least)

    def limits(self) -> dict[str, int]:
        """Limits in the guards' records in bytes, without the reserve, by folder of the group."""
        return {
            reading.key.subject: guard.limit_bytes
            for reading, guard in self._guard_readings()
            if guard.state != "unlimited"
        }

    def _match_tasks(self) -> dict[ProcessKey, str]:
        """The guard of every task that has one."""
        found: dict[ProcessKey, str] = {}
        if not self._guards:
            return found
        for task in self._observer.tasks():
            # A task outside any guard may have started a program in a guard.
            for key in (task.key, *(member.key for member in task.members[:_MOST_MEMBERS])):
                # Use the last sample: reading it from the kernel here could wait for a lock.
                name = cgroup.guard_in_path(self._observer.cgroup_of(key) or "")
                if name in self._guards:
                    found[task.key] = name
                    break
        return found

    def take_events(self) -> list[GuardEvent]:
        """Events of guards since the last call."""
        events, self._events = self._events, []
        return events

    def rescues(self) -> dict[int, RescueRecord]:
        """The newest rescue that a supervisor has copied, by pid."""
        return {
            pid: found
            for guard in self._guards.values()
            for pid in {each.pid for each in guard.rescues}
            if (found := _newest_copy(guard, pid)) is not None
        }

    def get(self, task: ProcessKey) -> GuardRecord | None:
        """The guard of a task."""
        name = self._by_task.get(task)
        return None if name is None else self._guards.get(name)

    def status_records(self) -> Mapping[ProcessKey, records.Guard]:
        """Guards as records of the status, by task."""
        return {task: to_status(self._guards[name]) for task, name in self._by_task.items()}

    def explanation(self, task: ProcessKey) -> str | None:
        """The text of `explain` for a task's guard; None: the task has no guard."""
        guard = self.get(task)
        if guard is None:
            return None
        from watchdog_app.guard import messages

        return messages.explanation(guard)

    def stopped_reason(self, task: ProcessKey) -> str | None:
        """
        Why a task that its guard has stopped cannot be paused or resumed; None: it is not stopped.

        Uses the records of the last `refresh`; call that first, once for all tasks.
        """
        guard = self.get(task)
        if guard is None or not guard.stopped:
            return None
        what, _, choices = _report(guard).partition("\n")
        if not choices:
            return f"{what} Ask again in a moment."
        return f"{what} {choices.partition(chr(10))[0]}"  # the answer has one line

    def active_reports(self) -> list[str]:
        """Texts of `explain` for all guards whose limit was reached."""
        return [_report(guard) for guard in self._guards.values() if guard.state != "running"]

    def already_reported(self, decision: Decision) -> str | None:
        """The reason to skip a warning about a guard's limit; None: do not skip it."""
        key = decision.resource
        if decision.evidence.get("topic") != Topic.WARNING.value or key.kind != ResourceKind.GUARD:
            return None
        self.refresh()
        guard = self._guards.get(_group_name(key.subject))
        if guard is None or guard.state not in _AT_LIMIT:
            return None
        return "Its guard has reached that limit and reported it."

    def prepare_limit(self, params: LimitGuard) -> tuple[Task, Callable[[], str]]:
        """
        Prepare `guard.limit`: return the task, and a function that asks its supervisor.

        The function waits for the supervisor, so call it in another thread. It raises an
        ActionError if the supervisor refuses or does not answer.

        Raises:
            RequestError: the task has no guard, or the parameters are wrong.
            TaskNotFound: the task does not exist.
        """
        task = find_task(params.task, self._observer.tasks())
        self.refresh()
        guard = self.get(task.key)
        if guard is None:
            raise RequestError(
                f"{name_with_pid(task)} is under no guard. Those that are were started "
                "with: watchdog exec -- COMMAND",
                REFUSED,
            )
        from watchdog_app.guard import control

        return task, partial(control.send_request, guard.socket_path, _supervisor_request(params))

    def _report_change(self, name: str, guard: GuardRecord, before: str) -> None:
        if guard.state not in _AT_LIMIT and (
            guard.state != "running" or before not in _REPORTED_WHEN_OVER
        ):
            return
        if guard.state == "refusing":
            last_mono_s = self._refused_mono_s.get(name, float("-inf"))
            self._refused_mono_s[name] = time.monotonic()
            if time.monotonic() - last_mono_s < _REFUSED_AGAIN_S:
                return
        now = time.time()
        text = _report(guard)
        self._log.warning(f"a guard is {guard.state}", pid=guard.pid, name=guard.name)
        key = next((key for key, value in self._by_task.items() if value == name), None)
        notification = _notification(guard, text, key, now)
        entry = Entry(
            now,
            "decision",
            {
                "id": notification.id,
                "decision_kind": "hold" if guard.stopped else f"guard {guard.state}",
                "name": guard.name,
                "text": text.split("\n")[0],
                "guard": to_status(guard).to_json(),
            },
            guard.pid,
            guard.name,
        )
        self._events.append((notification, entry, self._observer.task(key)))


def _report(guard: GuardRecord) -> str:
    """The report on a guard. The module takes 0.2 MB, so import it with the first guard."""
    from watchdog_app.guard import messages

    return messages.report(guard)


def _raise_error(_: object, error: Exception | None) -> None:
    if error is not None:
        raise error


def _group_name(folder: str) -> str:
    """The name of a guard's group, as from `cgroup.guard_group_name`."""
    return os.path.basename(folder.rstrip("/")).removesuffix(".scope")


def to_status(guard: GuardRecord) -> records.Guard:
    """A guard as clients and the journal see it."""
    newest = guard.rescues[-1] if guard.rescues else None
    return records.Guard.from_object(
        guard,
        state=guard.state,
        stopped=guard.stopped,
        since_unix_s=guard.since_unix_s if guard.state != "running" else None,
        automatic_limit=guard.follows_machine,
        reason=guard.because or None,
        rescue=None if newest is None else newest.path,
    )


def _supervisor_request(params: LimitGuard) -> dict[str, Any]:
    # The guard's own socket uses the same names.
    wanted = {name: getattr(params, name) for name in ("limit_bytes", "more", "unlimited", "end")}
    given = {name: value for name, value in wanted.items() if value}
    if len(given) != 1:
        raise RequestError(
            "Give one of limit_bytes, more, unlimited and end, and no other.", INVALID_PARAMS
        )
    return given


def _notification(
    guard: GuardRecord, text: str, task: ProcessKey | None, now: float
) -> Notification:
    pid = guard.pid if task is None else task.pid
    actions = []
    if guard.state in ("stopped", "refusing"):
        from watchdog_app.guard import messages

        more = messages.next_limit(guard)
        actions = [
            Button(
                key="more_memory",
                label=f"Give it {more}",
                command=f"watchdog limit {guard.pid} {more}",
            ),
            *(ACTIONS[key].button(guard.pid) for key in ("no_limit", "end")),
        ]
    first_line, _, _ = text.partition("\n")
    urgency, stage, title = _AT_LIMIT.get(guard.state, _CONTINUES)
    if guard.state == "ending" and guard.because == TIME_IS_OVER:
        title = "Its time is over"
    return Notification(
        id=f"guard-{guard.pid}-{guard.state}-{now:.3f}",
        incident="",
        stage=stage,
        urgency=urgency,
        title=f"{title}: {clean(guard.name)}",
        body=first_line if actions else text,
        task=pid,
        unix_s=now,
        actions=tuple(actions),
        topic=(Topic.RESUMED if guard.state == "running" else Topic.STOPPED).value,
    )


def guard_end(key: ProcessKey, group: str | None) -> GuardEnd | None:
    """
    The guard of a process that has just ended; None: it had none.

    Args:
        group: folder of its memory group, as last seen.
    """
    guard = record.find(key.pid, key.start_time, group)
    if guard is None:
        return None
    from watchdog_app.guard import messages

    limit = "" if guard.follows_machine else f"{guard.limit_bytes >> 20}M"
    return GuardEnd(
        limit_bytes=guard.limit_bytes,
        next_limit=messages.next_limit(guard) if messages.was_full(guard) else limit,
        limit=limit,
        refused=guard.was_just_refused,
        ended=messages.cause_of_end(guard),
        stopped=messages.stopped_at_end(guard),
        last_message=guard.events[-1].text.partition("\n")[0] if guard.events else "",
        # what a launcher started is its work
        rescue=_newest_copy(guard, None if key.pid == guard.pid else key.pid),
    )


def _newest_copy(guard: GuardRecord, pid: int | None) -> RescueRecord | None:
    """The newest rescue of a process in a guard, or with None of all processes in it."""
    for each in reversed(guard.rescues):
        if pid in (None, each.pid):
            at_unix_s = each.saved_unix_s or guard.saved_unix_s or 0.0
            return RescueRecord(
                each.path, each.step, each.bytes, 0.0, at_unix_s,
                exact=not each.missing, missing=each.missing,
            )  # fmt: skip
    return None
