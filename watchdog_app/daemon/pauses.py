"""
What we have paused: known over any end of the daemon, shown, and always to be undone.

Before the first signal the intent is on the disk, so that even a kill -9 in
the middle leaves no task stopped that nobody remembers stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.decisions import Notification, NotificationAction, Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.machine.process_control.paused import Paused

StateOf = Callable[[ProcessKey], str | None]  # one letter as in /proc; None: gone
_BY_A_PERSON = "asked for by "


@dataclass(frozen=True, slots=True)
class Pause:
    """One task that we paused."""

    task: ProcessKey
    name: str
    paused: Paused
    reason: str

    def ident(self, boot: str) -> str:
        """Key in the journal."""
        return ident(self.task, boot)


def ident(task: ProcessKey, boot: str) -> str:
    """Key of a task that stays its own over reboots, which begin the start times anew."""
    return f"{boot}:{task.pid}:{task.start_time}"


def intent(
    task: Task,
    family: Iterable[tuple[ProcessKey, bool]],
    boot: str,
    reason: str,
    before: Pause | None = None,
) -> dict[str, Any]:
    """
    What is written down before the first signal.

    Args:
        task: what is to be paused.
        family: from `processes.family`; who is stopped already is not ours to resume.
        boot: of this boot.
        reason: why.
        before: a pause of it that stands in part; it is kept.
    """
    found = list(family)
    return {
        **({} if before is None else {"paused": before.paused.to_json()}),
        "boot": boot,
        "task": [task.key.pid, task.key.start_time],
        "name": task.name,
        "reason": reason,
        "intended": [[key.pid, key.start_time] for key, stopped in found if not stopped],
        "stopped_before": [[key.pid, key.start_time] for key, stopped in found if stopped],
    }


def outcome(pause: Pause, boot: str) -> dict[str, Any]:
    """What is written down when it is paused."""
    return {
        "boot": boot,
        "task": [pause.task.pid, pause.task.start_time],
        "name": pause.name,
        "reason": pause.reason,
        "paused": pause.paused.to_json(),
    }


def remembered(stored: Mapping[str, Any], boot: str, state_of: StateOf) -> Pause | None:
    """
    The pause that an earlier daemon wrote down, if it still stands.

    Args:
        stored: from `intent` or `outcome`.
        boot: of this boot.
        state_of: state of a process now; None when it is gone or another.

    Returns:
        None when the machine was started anew, every process is gone, or all run again.
    """
    try:
        if stored["boot"] != boot:
            return None
        task = ProcessKey(*map(int, stored["task"]))
        name, reason = str(stored["name"]), str(stored["reason"])
        paused = Paused((), "sigstop", 0.0)
        if "paused" in stored:
            paused = Paused.from_json(stored["paused"])
        intended = [ProcessKey(int(pid), int(start)) for pid, start in stored.get("intended", ())]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    # One that waits for the disk is stopped as soon as that has answered.
    stands = any((state_of(key) or "Z") in "TtD" for key in paused.keys)
    caught = [key for key in intended if (state_of(key) or "Z") in "Tt"]
    if not stands and not caught:
        return None
    keys = tuple(dict.fromkeys((*paused.keys, *caught)))
    return Pause(task, name, replace(paused, keys=keys), reason)


def thaw_unfinished(stored: Mapping[str, Any], boot: str) -> None:
    """
    Undo a freeze that was cut short by the end of the daemon.

    The freezer is a barrier that lasts for an instant; a daemon killed within it leaves a
    group that not even SIGKILL can end (cgroup v1).
    """
    if stored.get("boot") != boot or "intended" not in stored:
        return
    from watchdog_app.machine.process_control.freezer import freezer_of

    with suppress(
        KeyError, TypeError, ValueError, IndexError, OverflowError, OSError, WatchdogError
    ):
        family = [*stored["intended"], *stored.get("stopped_before", ())]
        pids = {int(pid) for pid, _ in family}
        freezer = freezer_of(int(family[0][0]), pids, "/proc")
        if freezer is not None:
            freezer.thaw()


def unreported(recovered: Iterable[Pause], held: Container[ProcessKey]) -> Iterator[Pause]:
    """
    Yield the pauses that neither the engine nor a person knows of.

    The engine resumes what it has paused when there is room. It does not know a pause that the end
    of the daemon cut short, nor any pause if its state was lost.

    Args:
        recovered: pauses of an earlier daemon that still stand.
        held: tasks that the engine has paused.
    """
    for pause in recovered:
        by_a_person = pause.reason.startswith(_BY_A_PERSON) and pause.paused.at_unix_s > 0
        if pause.task not in held and not by_a_person:
            yield pause


def recovered_notification(pause: Pause, unix_s: float) -> Notification:
    """Return what people are told of a pause that an earlier daemon left."""
    pid = pause.task.pid
    return Notification(
        id=f"recovered-{pid}-{pause.task.start_time}-{unix_s:.0f}",
        incident="",
        stage="pause",
        urgency="normal",
        title=f"Still paused: {clean(pause.name)}",
        body="The watchdog daemon paused it, ended, and has just been started again "
        f"({clean(pause.reason, 200)}). Its state stays in memory.\n"
        f"It does not resume by itself. When there is room: watchdog resume {pid}",
        task=pid,
        unix_s=unix_s,
        actions=(NotificationAction("resume", "Resume", f"watchdog resume {pid}"),),
        topic=Topic.PAUSED.value,
    )


def as_held(
    tasks: tuple[Task, ...], held: Container[ProcessKey], stopping: Callable[[ProcessKey], bool]
) -> tuple[Task, ...]:
    """
    The tasks of a look; of those that are `held`, whoever is on its way to stop waits (D).

    What an airbag has frozen (cgroup v2) looks asleep, and would seem to run again.
    """
    return tuple(
        _waiting(task)
        if task.key in held and task.members[0].state in "RS" and stopping(task.key)
        else task
        for task in tasks
    )


def _waiting(task: Task) -> Task:
    root, *others = task.members
    return replace(task, members=(replace(root, state="D"), *others))


class Pauses:
    """Those that stand now."""

    def __init__(self) -> None:
        self._pauses: dict[ProcessKey, Pause] = {}
        self._pending: set[ProcessKey] = set()  # not seen stopped yet

    def add(self, pause: Pause) -> None:
        """It is paused. A second pause of the same task adds what it stopped."""
        before = self._pauses.get(pause.task)
        if before is not None:
            keys = (*before.paused.keys, *pause.paused.keys)
            merged = Paused(
                tuple(dict.fromkeys(keys)),
                pause.paused.method,
                before.paused.at_unix_s,
                pause.paused.already_stopped,
                pause.paused.skipped,
            )
            pause = Pause(pause.task, pause.name, merged, before.reason)
        self._pauses[pause.task] = pause
        self._pending.add(pause.task)

    def remove(self, task: ProcessKey) -> Pause | None:
        """It runs again, or is gone."""
        self._pending.discard(task)
        return self._pauses.pop(task, None)

    def get(self, task: ProcessKey) -> Pause | None:
        """The pause of a task, None when we did not pause it."""
        return self._pauses.get(task)

    def has(self, task: ProcessKey) -> bool:
        """Return whether we have paused a task."""
        return task in self._pauses

    def all(self) -> list[Pause]:
        """Every pause that stands."""
        return list(self._pauses.values())

    def ended(self, state_of: StateOf) -> Iterable[Pause]:
        """Pauses that somebody else ended, or whose processes are gone; they are removed."""
        found = []
        for pause in list(self._pauses.values()):
            states = {state_of(key) for key in pause.paused.keys}
            if states & {"T", "t"}:  # t: a debugger looks at it, which ends no pause
                self._pending.discard(pause.task)
                continue
            # SIGSTOP takes effect when a system call returns: of a dead network disk after hours.
            # One that had stopped shows like that, too, while its airbag is frozen (cgroup v1).
            if "D" in states and (pause.task in self._pending or not states & {"R", "S"}):
                continue
            self.remove(pause.task)
            found.append(pause)
        return found
