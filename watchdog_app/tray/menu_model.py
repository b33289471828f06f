"""
The entries of the menu: a tree made from a status. Pure.

The tree always has the same shape: only labels change, and whether entries are enabled and visible.
A panel can show such changes in an open menu. A click on an entry requests its `Command`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import plain, shorten
from watchdog_app.core.explain.saving import unsaved_sentence, unsaved_trainings
from watchdog_app.core.explain.selection import RUN_CELLS, SMALL_BYTES
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Agent, Notification, Status, Task
from watchdog_app.tray.state import TrayState, nearest, protection_state

MAX_TASKS = 12
HOUR_S = 3600.0
_MAX_NAME_CHARS = 40
_MAX_ENDED_CHARS, _MAX_REASON_CHARS = 80, 130
_ENDED_S = 12 * HOUR_S  # as long as `watchdog explain` names the last end


class CommandKind(enum.StrEnum):
    """Kinds of commands: the keys of `ACTIONS`, and the tray's own."""

    SAVE = "save"
    PAUSE = "pause"
    RESUME = "resume"
    MORE_MEMORY = "more_memory"
    NO_LIMIT = "no_limit"
    END = "end"
    SNOOZE = "snooze"
    EXPLAIN = "explain"
    LIVE_VIEW = "show"
    ENABLE_SAVING = "enable_saving"
    RESCUES = "rescues"
    PROTECT = "protect"
    START_DAEMON = "start_daemon"
    START_AT_LOGIN = "start_at_login"
    SETTINGS = "settings"
    QUIT = "quit"


_NOT_OF_A_TASK = frozenset((CommandKind.SNOOZE, CommandKind.LIVE_VIEW, CommandKind.ENABLE_SAVING))


@dataclass(frozen=True, slots=True)
class Target:
    """The task of a command, with its start time when the menu showed it."""

    pid: int
    start_time: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the menu or of a notification's button."""

    kind: CommandKind
    task: Target | None = None
    # RESCUES: the folder. ENABLE_SAVING: the environment; None: the user chooses one.
    path: str | None = None
    on: bool | None = None  # PROTECT and START_AT_LOGIN: the new state
    for_s: float | None = None  # PROTECT: duration; None: until switched on again
    incident: str | None = None  # SNOOZE: the incident's id


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the menu."""

    key: str  # unique among its siblings
    label: str = ""  # empty: a separator
    command: Command | None = None
    enabled: bool = True
    visible: bool = True
    checked: bool | None = None  # None: no check mark
    radio: bool = False
    default: bool = False  # True: a click on the icon itself runs the command
    children: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """One line of the menu for a task."""

    task: Task
    ended: bool = False


class Slots:
    """
    Assignment of tasks to lines of the menu.

    A task keeps its line until the menu is opened again, so that nothing moves under the pointer.
    """

    def __init__(self) -> None:
        self._slots: list[Slot | None] = [None] * MAX_TASKS

    def update(self, status: Status | None) -> tuple[Slot | None, ...]:
        """Update from a status: an ended task keeps its line, a new one gets a free line."""
        if status is None:
            self._slots = [None] * MAX_TASKS
            return tuple(self._slots)
        running = {task.key: task for task in status.tasks}
        for number, slot in enumerate(self._slots):
            if slot is not None:
                task = running.get(slot.task.key)
                self._slots[number] = Slot(task or slot.task, ended=task is None)
        shown = {slot.task.key for slot in self._slots if slot is not None}
        for task in listed_tasks(status, self._pids()):
            if task.key not in shown and None in self._slots:
                self._slots[self._slots.index(None)] = Slot(task)
        return tuple(self._slots)

    def reassign(self, status: Status | None) -> None:
        """Assign all lines again, in order of urgency; called when the menu opens."""
        tasks = listed_tasks(status, self._pids()) if status is not None else []
        self._slots = [Slot(task) for task in tasks]
        self._slots += [None] * (MAX_TASKS - len(tasks))

    def _pids(self) -> list[int]:
        return [slot.task.pid or 0 for slot in self._slots if slot is not None]


def menu(
    status: Status | None,
    state: TrayState,
    slots: Sequence[Slot | None] | None = None,
    *,
    ended: Notification | None = None,
    at_login: bool | None = None,
    now_unix_s: float,
) -> tuple[Entry, ...]:
    """
    Return the whole menu; it has the same shape for every status.

    Args:
        status: the latest status; None: no daemon.
        state: the tray state of the same status.
        slots: the `MAX_TASKS` lines of tasks; None: the listed tasks, in order of urgency.
        ended: the last notification of an end; None: there was none.
        at_login: whether the tray process starts at login; None: not available here.
        now_unix_s: current time, for ages.
    """
    # In danger the headline is the most important line: enabled, and a click explains it.
    danger = status is not None and state.picture.level in (Level.WARNING, Level.CRITICAL)
    headline = Command(CommandKind.EXPLAIN) if danger else None
    near = nearest(status) if status is not None else None
    reason = plain(near.reason or "") if near is not None and near.level >= Level.WARNING else ""
    watched = status is not None
    if slots is None:
        sorted_slots = Slots()
        sorted_slots.reassign(status)
        slots = sorted_slots.update(status)
    more = _more_label(status, slots)
    login = Command(CommandKind.START_AT_LOGIN, on=not at_login)
    return (
        Entry("headline", state.headline, headline, enabled=danger),
        Entry("reason", shorten(reason, _MAX_REASON_CHARS) or "-", None, False, bool(reason)),
        _unsaved_entry(status),
        Entry("detail", state.detail or "-", enabled=False, visible=bool(state.detail)),
        _ended_entry(ended, now_unix_s),
        Entry(
            "start",
            "Start the daemon",
            Command(CommandKind.START_DAEMON),
            visible=not watched and not state.detail,  # a daemon that hangs cannot be started
        ),
        Entry("line-tasks"),
        *(_task_entry(number, slot, now_unix_s) for number, slot in enumerate(slots)),
        Entry("more", more or "-", enabled=False, visible=bool(more)),
        Entry("line-machine", visible=watched),
        _protection_entry(status),
        Entry("explain", "Explain what is going on", Command(CommandKind.EXPLAIN), visible=watched),
        Entry("live", "Open live view", Command(CommandKind.LIVE_VIEW), default=True),
        Entry("line-own"),
        Entry(
            "login",
            "Start at login",
            login,
            checked=bool(at_login),
            visible=at_login is not None,
        ),
        Entry("settings", "Settings", Command(CommandKind.SETTINGS)),
        Entry("quit", "Quit", Command(CommandKind.QUIT)),
    )


def _unsaved_entry(status: Status | None) -> Entry:
    """Return the line on trainings that cannot be saved; a click changes that or says how."""
    tasks = unsaved_trainings(() if status is None else status.tasks)
    if not tasks:
        return Entry("unsaved", "-", visible=False)
    text = unsaved_sentence(tasks)
    if any(task.kind in RUN_CELLS for task in tasks):
        return Entry("unsaved", f"{text}: turn on\u2026", Command(CommandKind.ENABLE_SAVING))
    how_to = Command(CommandKind.EXPLAIN, _target(tasks[0]))
    return Entry("unsaved", f"{text}: how to\u2026", how_to)


def _ended_entry(ended: Notification | None, now_unix_s: float) -> Entry:
    """Return the line of the last end; a click explains it, also when its notification is gone."""
    age_s = math.inf if ended is None else now_unix_s - (ended.unix_s or 0.0)
    if ended is None or ended.task is None or age_s > _ENDED_S:
        return Entry("ended", "-", visible=False)
    target = Target(ended.task, ended.start_time, short_name(ended.name))
    label = f"{shorten(plain(ended.title), _MAX_ENDED_CHARS)}, {_short_age(age_s)}"
    return Entry("ended", label, Command(CommandKind.EXPLAIN, target))


def _more_label(status: Status | None, slots: Sequence[Slot | None]) -> str:
    """Return the label that counts tasks without a line."""
    if status is None:
        return ""
    shown = sum(slot is not None and not slot.ended for slot in slots)
    left = len(status.tasks) - shown
    if left <= 0:
        return "" if shown else "No Python process is running"
    text = "1 more Python process" if left == 1 else f"{left} more Python processes"
    return f"and {text}" if shown else text.replace(" more", "")


def listed_tasks(status: Status, shown: Sequence[int] = ()) -> list[Task]:
    """
    Return the tasks to list: paused ones first, then by level, then by ETA.

    If there are too many, keep tasks that are in danger, have an agent or are large. A task that is
    already shown stays unless another task is clearly larger.

    Args:
        status: the latest status.
        shown: pids of the tasks that the menu shows now.
    """
    before = frozenset(shown)

    def weight(task: Task) -> tuple[int, float]:
        urgent = task.level >= Level.WARNING or task.paused_by_watchdog
        ram = (task.ram_bytes or 0) * (1.3 if task.pid in before else 1)
        return 2 * urgent + (task.agent is not None), ram

    every = [one for one in status.tasks if _is_listed(one)]
    kept = sorted(every, key=weight, reverse=True)[:MAX_TASKS]
    return sorted(kept, key=_urgency)


def _urgency(task: Task) -> tuple[float, ...]:
    return (
        task.state != "paused",
        -task.level,
        math.inf if task.eta_s is None else task.eta_s,
        task.started_unix_s or 0,  # then by start time, which never changes
        task.pid or 0,
    )


def _is_listed(task: Task) -> bool:
    """Return False for the small idle interpreters that every desktop runs."""
    if task.pid is None or task.kind == "server":
        return False
    return (
        task.kind in RUN_CELLS
        or task.agent is not None
        or task.level > Level.OK
        or task.state == "paused"
        or (task.ram_bytes or 0) >= SMALL_BYTES
    )


def _task_entry(number: int, slot: Slot | None, now_unix_s: float) -> Entry:
    task = Task() if slot is None else slot.task
    target = _target(task)
    entry = Entry(
        f"task-{number}",
        f"{target.name}: {_task_summary(task)}",
        visible=slot is not None,
        children=(
            *_figure_entries(task, now_unix_s),
            Entry("line"),
            *_action_entries(task, target),
        ),
    )
    if slot is not None and not slot.ended:
        return entry
    # Disable all entries of an ended task.
    off = tuple(replace(child, command=None, enabled=False) for child in entry.children)
    return replace(entry, label=f"{target.name} has ended", enabled=False, children=off)


def _task_summary(task: Task) -> str:
    """Return the most important facts, for the label of the submenu."""
    parts = [quantities.format_bytes(task.ram_bytes)]
    if task.state in ("paused", "stopped"):
        parts.append(str(task.state))
    elif task.agent is not None and task.agent.saving:
        parts.append("saving")
    elif task.level >= Level.WATCH:
        near = "near its limit" if task.level >= Level.WARNING else "growing"
        how = "ends" if task.resource == "walltime" else "full"
        parts.append(
            near
            if task.eta_s is None
            else f"{how} in {quantities.format_rough_duration(task.eta_s)}"
        )
    return ", ".join(parts)


def _figure_entries(task: Task, now_unix_s: float) -> list[Entry]:
    ram = f"RAM: {quantities.format_bytes(task.ram_bytes)}"
    if (task.swap_bytes or 0) >= 1024**2:
        ram += f", swap {quantities.format_bytes(task.swap_bytes)}"
    gpu, limit_line = "", ""
    if task.gpu_memory_bytes is not None:
        gpu = f"GPU memory: {quantities.format_bytes(task.gpu_memory_bytes)}"
    guard = task.guard
    if guard is not None:
        level = quantities.guard_level(guard, automatic=guard.automatic_limit)
        limit_line = f"Guard: {level}{', stopped' if guard.stopped else ''}"
    trend = quantities.format_rate(task.slope_bytes_per_s)
    eta = quantities.eta(task.eta_s, task.eta_low_s, task.eta_high_s)
    lines = {
        "ram": ram,
        "gpu": gpu,
        "guard": limit_line,
        "trend": f"Trend: {'steady' if trend == '0' else trend}",
        "eta": f"End: {'none in sight' if task.eta_s is None else eta}",
        "rescue": _rescue_label(task.agent, now_unix_s),
        "past": shorten(plain(task.past or ""), _MAX_ENDED_CHARS),
    }
    return [
        Entry(key, text or "-", enabled=False, visible=bool(text)) for key, text in lines.items()
    ]


def _rescue_label(agent: Agent | None, now_unix_s: float) -> str:
    if agent is None:
        return "No agent: it cannot be saved"
    rescue = agent.rescue
    if rescue is None:
        return "Not saved yet"
    text = "Saved" if rescue.step is None else f"Saved at step {rescue.step}"
    at = rescue.saved_unix_s
    return text if at is None else f"{text}, {_short_age(now_unix_s - at)}"


def _target(task: Task) -> Target:
    return Target(task.pid or 0, task.start_time, short_name(task.name))


def short_name(name: str | None) -> str:
    """Shorten a task's name in the middle, so that it keeps its suffix (`.ipynb`)."""
    return shorten(plain(name or "(no name)"), _MAX_NAME_CHARS)


def _short_age(seconds: float) -> str:
    """
    Format an age coarsely (`just now`, `40 s ago`, `3 min ago`), so that labels change rarely.
    """
    return "just now" if seconds < 5 else f"{quantities.format_rough_duration(seconds)} ago"


def _action_entries(task: Task, target: Target) -> list[Entry]:
    paused = task.state == "paused"
    saving = task.agent is not None and task.agent.saving
    labels_now = {
        CommandKind.SAVE: "Saving\u2026" if saving else "",
        CommandKind.PAUSE: "Paused by somebody else"
        if paused and not task.paused_by_watchdog
        else "",
    }
    found = []
    for kind in CommandKind:
        action = ACTIONS.get(kind.value)
        if action is None or kind in _NOT_OF_A_TASK:
            continue
        fits = action.shown(task)
        label = labels_now.get(kind) or action.menu or action.label
        # Keep each entry in the same place for every task; only a guard's entries are hidden.
        shown = fits or action.method != "guard.limit"
        found.append(Entry(kind.value, label, Command(kind, target), enabled=fits, visible=shown))
    folder = task.agent.directory if task.agent is not None else None
    folder = folder if folder and folder.startswith("/") else None
    rescues = Command(CommandKind.RESCUES, target, path=folder)
    found.append(Entry("rescues", "Open folder of rescues", rescues, enabled=folder is not None))
    return found


def _protection_entry(status: Status | None) -> Entry:
    known = protection_state(status)
    on, until = known or (True, None)
    for_a_while = not on and until is not None
    hour = (
        f"Off until {quantities.moment(until)}"
        if until is not None and not on
        else "Off for an hour"
    )
    word = "on" if on else hour.lower() if for_a_while else "off"
    choices = (
        Entry("on", "On", Command(CommandKind.PROTECT, on=True), checked=on, radio=True),
        Entry(
            "hour",
            hour,
            Command(CommandKind.PROTECT, on=False, for_s=HOUR_S),
            checked=for_a_while,
            radio=True,
        ),
        Entry(
            "off",
            "Off until switched on again",
            Command(CommandKind.PROTECT, on=False),
            checked=not on and not for_a_while,
            radio=True,
        ),
    )
    return Entry("protection", f"Protection: {word}", visible=known is not None, children=choices)
