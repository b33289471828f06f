"""
What the menu holds: a tree of plain entries, made of one status. Pure.

An entry says what a click asks for as a `Wish`; who carries it out is not its
business. Keys are stable over time, so that a label can change in an open menu.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.base.text import quantities
from watchdog_app.core.explain.selection import KERNELS, SMALL_BYTES
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level
from watchdog_app.tray import labels
from watchdog_app.tray.state import (
    Outlook,
    protection,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from watchdog_app.core.model.status import Agent, Status, Task

MOST_TASKS = 12
HOUR_S = 3600.0


class Do(enum.StrEnum):
    """What can be asked for with a click: the keys of `ACTIONS`, and what is the tray's own."""

    SAVE = "save"
    PAUSE = "pause"
    RESUME = "resume"
    MORE_MEMORY = "more_memory"
    NO_LIMIT = "no_limit"
    END = "end"
    SNOOZE = "snooze"
    EXPLAIN = "explain"
    LIVE_VIEW = "show"
    RESCUES = "rescues"
    PROTECT = "protect"
    START_DAEMON = "start_daemon"
    START_AT_LOGIN = "start_at_login"
    SETTINGS = "settings"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Target:
    """The task that is meant, and the process that it was when it was shown."""

    pid: int
    start_time: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that a person asks for."""

    do: Do
    task: Target | None = None
    path: str | None = None  # RESCUES: the folder
    on: bool | None = None  # PROTECT
    for_s: float | None = None  # PROTECT; None: until it is switched on again
    incident: str | None = None  # SNOOZE


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the menu."""

    key: str  # unique among its siblings and the same over time
    label: str = ""  # empty: a separator
    wish: Wish | None = None
    enabled: bool = True
    checked: bool | None = None  # None: nothing to check
    radio: bool = False
    default: bool = False  # what a click on the icon itself does
    children: tuple[Entry, ...] = ()


def menu(
    status: Status | None,
    outlook: Outlook,
    *,
    shown: Sequence[int] = (),
    at_login: bool | None = None,
    now_unix_s: float,
) -> tuple[Entry, ...]:
    """
    The whole menu.

    Args:
        status: the last one; None: no daemon.
        outlook: of the same status.
        shown: pids of the tasks that were in the menu before; they keep their places.
        at_login: whether the companion starts at login; None: that cannot be set here.
        now_unix_s: what ages are counted to.
    """
    # In danger it is the one line to read: not greyed, and a click on it says why.
    danger = status is not None and outlook.picture.level in (Level.WARNING, Level.CRITICAL)
    headline = Wish(Do.EXPLAIN) if danger else None
    entries = [Entry("headline", outlook.headline, headline, enabled=danger)]
    if outlook.detail:
        entries.append(Entry("detail", outlook.detail, enabled=False))
    if status is None and not outlook.detail:  # one that hangs cannot be started
        entries.append(Entry("start", "Start the daemon", Wish(Do.START_DAEMON)))
    entries.append(Entry("line-tasks"))
    if status is not None:
        tasks = chosen_tasks(status, shown)
        entries += [_task(one, now_unix_s) for one in tasks]
        left = len(status.tasks) - len(tasks)
        if left > 0:
            more = "and 1 more Python process" if left == 1 else f"and {left} more Python processes"
            text = more if tasks else more.removeprefix("and ").replace(" more", "")
            entries.append(Entry("more", text, enabled=False))
        elif not tasks:
            entries.append(Entry("more", "No Python process is running", enabled=False))
        entries.append(Entry("line-machine"))
        entries += _protection(status)
        entries.append(Entry("explain", "Explain what is going on", Wish(Do.EXPLAIN)))
    entries.append(Entry("live", "Open live view", Wish(Do.LIVE_VIEW), default=True))
    entries.append(Entry("line-own"))
    if at_login is not None:
        login = Wish(Do.START_AT_LOGIN, on=not at_login)
        entries.append(Entry("login", "Start at login", login, checked=at_login))
    entries.append(Entry("settings", "Settings", Wish(Do.SETTINGS)))
    entries.append(Entry("quit", "Quit", Wish(Do.QUIT)))
    return tuple(entries)


def chosen_tasks(status: Status, shown: Sequence[int] = ()) -> list[Task]:
    """
    The tasks worth a line: paused ones, then those that end soonest, then those that grow.

    Where there are too many, those that are in danger, saved or large; one that is shown already
    stays unless another is clearly larger.

    Args:
        status: the last one.
        shown: pids of the tasks that were shown before.
    """
    before = frozenset(shown)

    def weight(task: Task) -> tuple[int, float]:
        urgent = task.level >= Level.WARNING or task.paused_by_watchdog
        ram = (task.ram_bytes or 0) * (1.3 if task.pid in before else 1)
        return 2 * urgent + (task.agent is not None), ram

    every = [one for one in status.tasks if _is_listed(one)]
    kept = sorted(every, key=weight, reverse=True)[:MOST_TASKS]
    return sorted(kept, key=_urgency)


def _urgency(task: Task) -> tuple[float, ...]:
    return (
        task.state != "paused",
        math.inf if task.eta_s is None else task.eta_s,
        -task.level,
        task.started_unix_s or 0,  # else as they began: it is seldom changed
        task.pid or 0,
    )


def _is_listed(task: Task) -> bool:
    """Not one of the small idle interpreters that every desktop runs."""
    if task.pid is None or task.kind == "server":
        return False
    return (
        task.kind in KERNELS
        or task.agent is not None
        or task.level > Level.OK
        or task.state == "paused"
        or (task.ram_bytes or 0) >= SMALL_BYTES
    )


def _task(task: Task, now_unix_s: float) -> Entry:
    target = Target(task.pid or 0, task.start_time, labels.name(task.name))
    # A pid that is used again is another entry, in another place of the menu's memory.
    return Entry(
        entry_key(task),
        f"{target.name}: {_summary(task)}",
        children=(*_figures(task, now_unix_s), Entry("line"), *_actions(task, target)),
    )


def entry_key(task: Task) -> str:
    """The key of a task's entry."""
    return f"task-{task.pid}-{task.start_time}"


def _summary(task: Task) -> str:
    """What is worth knowing without opening the submenu."""
    parts = [quantities.size(task.ram_bytes)]
    if task.state in ("paused", "stopped"):
        parts.append(str(task.state))
    elif task.agent is not None and task.agent.saving:
        parts.append("saving")
    elif task.level >= Level.WATCH:
        near = "near its limit" if task.level >= Level.WARNING else "growing"
        parts.append(near if task.eta_s is None else f"full in {labels.span(task.eta_s)}")
    return ", ".join(parts)


def _figures(task: Task, now_unix_s: float) -> list[Entry]:
    ram = f"RAM: {quantities.size(task.ram_bytes)}"
    if (task.swap_bytes or 0) >= 1024**2:
        ram += f", swap {quantities.size(task.swap_bytes)}"
    lines = {"ram": ram}
    if task.gpu_memory_bytes is not None:
        lines["gpu"] = f"GPU memory: {quantities.size(task.gpu_memory_bytes)}"
    guard = task.guard
    if guard is not None:
        used, limit = quantities.size(guard.used_bytes), quantities.size(guard.limit_bytes)
        held = ", held" if guard.stopped else ""
        reserve = quantities.size(guard.reserve_bytes)
        lines["guard"] = f"Airbag: {used} of {limit}, reserve {reserve}{held}"
    lines["trend"] = f"Trend: {labels.rate(task.slope_bytes_per_s)}"
    lines["eta"] = f"End: {labels.until_full(task) or 'none in sight'}"
    lines["rescue"] = _rescue(task.agent, now_unix_s)
    return [Entry(key, text, enabled=False) for key, text in lines.items()]


def _rescue(agent: Agent | None, now_unix_s: float) -> str:
    if agent is None:
        return "No agent: it cannot be saved"
    rescue = agent.rescue
    if rescue is None:
        return "Not saved yet"
    text = "Saved" if rescue.step is None else f"Saved at step {rescue.step}"
    at = rescue.saved_unix_s
    return text if at is None else f"{text}, {labels.ago(now_unix_s - at)}"


def _actions(task: Task, target: Target) -> list[Entry]:
    paused = task.state == "paused"
    saving = task.agent is not None and task.agent.saving
    labels_now = {
        Do.SAVE: "Saving\u2026" if saving else "",
        Do.PAUSE: "Paused by somebody else" if paused and not task.paused_by_watchdog else "",
    }
    always = (Do.SAVE, Do.PAUSE, Do.RESUME, Do.EXPLAIN)  # at the same place for every task
    found = []
    for do in (Do.SAVE, Do.PAUSE, Do.RESUME, Do.MORE_MEMORY, Do.NO_LIMIT, Do.END, Do.EXPLAIN):
        action = ACTIONS[do.value]
        fits = action.shown(task)
        if fits or do in always:
            label = labels_now.get(do) or action.menu
            found.append(Entry(do.value, label, Wish(do, target), enabled=fits))
    folder = task.agent.directory if task.agent is not None else None
    folder = folder if folder and folder.startswith("/") else None
    rescues = Wish(Do.RESCUES, target, path=folder)
    found.append(Entry("rescues", "Open folder of rescues", rescues, enabled=folder is not None))
    return found


def _protection(status: Status) -> list[Entry]:
    known = protection(status)
    if known is None:
        return []
    on, until = known
    for_a_while = not on and until is not None
    hour = f"Off until {labels.clock(until)}" if until is not None and not on else "Off for an hour"
    word = "on" if on else hour.lower() if for_a_while else "off"
    choices = (
        Entry("on", "On", Wish(Do.PROTECT, on=True), checked=on, radio=True),
        Entry(
            "hour",
            hour,
            Wish(Do.PROTECT, on=False, for_s=HOUR_S),
            checked=for_a_while,
            radio=True,
        ),
        Entry(
            "off",
            "Off until switched on again",
            Wish(Do.PROTECT, on=False),
            checked=not on and not for_a_while,
            radio=True,
        ),
    )
    return [Entry("protection", f"Protection: {word}", children=choices)]
