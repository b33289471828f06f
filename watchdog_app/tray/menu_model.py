"""
What the menu holds: a tree of plain entries, made of one status. Pure.

An entry says what a click asks for as a `Wish`; who carries it out is not its
business. Keys are stable over time, so that a label can change in an open menu.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.core.model.levels import Level
from watchdog_app.tray import labels
from watchdog_app.tray.state import (
    Outlook,
    protection,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Json = dict[str, Any]

MOST_TASKS = 12
HOUR_S = 3600.0

_SMALL_BYTES = 64 * 1024**2
_KERNELS = ("notebook", "kernel", "console")


class Do(enum.StrEnum):
    """What can be asked for with a click."""

    LIVE_VIEW = "live_view"
    CHECKPOINT = "checkpoint"
    PAUSE = "pause"
    RESUME = "resume"
    MORE = "more"  # memory, for a task that is held in its airbag
    GO_ON = "go_on"  # ... or no limit but the machine's
    END = "end"  # ... or its end
    SNOOZE = "snooze"
    EXPLAIN = "explain"
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
    for_s: float | None = None  # PROTECT, SNOOZE; None: until it is switched on again
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
    status: Json | None,
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
        left = len(objects(status, "processes")) - len(tasks)
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


def chosen_tasks(status: Json, shown: Sequence[int] = ()) -> list[Json]:
    """
    The tasks worth a line: paused ones, then those that end soonest, then those that grow.

    Where there are too many, those that are in danger, saved or large; one that is shown already
    stays unless another is clearly larger.
    """
    before = frozenset(shown)
    every = [one for one in objects(status, "processes") if _worth_a_line(one)]

    def weight(task: Json) -> tuple[int, float]:
        ram = number_or_none(task.get("ram_bytes")) or 0.0
        urgent = Level.of(task) >= Level.WARNING or task.get("paused_by_watchdog") is True
        return (2 * urgent + bool(task.get("agent")), ram * (1.3 if task["pid"] in before else 1))

    kept = sorted(every, key=weight, reverse=True)[:MOST_TASKS]
    return sorted(kept, key=_urgency)


def _urgency(task: Json) -> tuple[bool, float, int, float, int]:
    eta_s = number_or_none(task.get("eta_s"))
    return (
        task.get("state") != "paused",
        math.inf if eta_s is None else eta_s,
        -Level.of(task),
        number_or_none(task.get("started_unix_s")) or 0,  # else as they began: it is seldom changed
        task["pid"],
    )


def _worth_a_line(task: Json) -> bool:
    """Not one of the small idle interpreters that every desktop runs."""
    if labels.whole(task.get("pid")) is None or task.get("kind") == "server":
        return False
    return bool(
        task.get("kind") in _KERNELS
        or task.get("agent")
        or Level.of(task) > Level.OK
        or task.get("state") == "paused"
        or (number_or_none(task.get("ram_bytes")) or 0) >= _SMALL_BYTES
    )


def _task(task: Json, now_unix_s: float) -> Entry:
    start_time = labels.whole(task.get("start_time"))
    target = Target(task["pid"], start_time, labels.name(task.get("name")))
    agent = task.get("agent") if isinstance(task.get("agent"), dict) else None
    # A pid that is used again is another entry, in another place of the menu's memory.
    key = f"task-{target.pid}-{start_time}"
    return Entry(
        key,
        f"{target.name}: {_glance(task, agent)}",
        children=(*_figures(task, agent, now_unix_s), Entry("line"), *_acts(task, agent, target)),
    )


def _glance(task: Json, agent: Json | None) -> str:
    """What is worth knowing without opening the submenu."""
    parts = [labels.size(task.get("ram_bytes"))]
    if task.get("state") in ("paused", "held"):
        parts.append(str(task["state"]))
    elif agent is not None and agent.get("saving") is True:
        parts.append("saving")
    elif Level.of(task) >= Level.WATCH:
        eta_s = number_or_none(task.get("eta_s"))
        near = "near its limit" if Level.of(task) >= Level.WARNING else "growing"
        parts.append(f"full in {labels.span(eta_s)}" if eta_s is not None else near)
    return ", ".join(parts)


def _figures(task: Json, agent: Json | None, now_unix_s: float) -> list[Entry]:
    ram = f"RAM: {labels.size(task.get('ram_bytes'))}"
    if (number_or_none(task.get("swap_bytes")) or 0) >= 1024**2:
        ram += f", swap {labels.size(task.get('swap_bytes'))}"
    lines = {"ram": ram}
    if number_or_none(task.get("gpu_memory_bytes")) is not None:
        lines["gpu"] = f"GPU memory: {labels.size(task.get('gpu_memory_bytes'))}"
    bag = task.get("airbag")
    if isinstance(bag, dict):
        used, limit = labels.size(bag.get("used_bytes")), labels.size(bag.get("limit_bytes"))
        held = ", held" if bag.get("held") is True else ""
        lines["airbag"] = (
            f"Airbag: {used} of {limit}, reserve {labels.size(bag.get('reserve_bytes'))}{held}"
        )
    lines["trend"] = f"Trend: {labels.rate(task.get('trend_bytes_per_s'))}"
    lines["eta"] = f"End: {labels.until_full(task) or 'none in sight'}"
    lines["rescue"] = _rescue(agent, now_unix_s)
    return [Entry(key, text, enabled=False) for key, text in lines.items()]


def _rescue(agent: Json | None, now_unix_s: float) -> str:
    if agent is None:
        return "No agent: it cannot be saved"
    rescue = agent.get("rescue")
    if not isinstance(rescue, dict):
        return "Not saved yet"
    step = labels.whole(rescue.get("step"))
    at = number_or_none(rescue.get("saved_unix_s"))
    text = "Saved" if step is None else f"Saved at step {step}"
    return text if at is None else f"{text}, {labels.ago(now_unix_s - at)}"


def _acts(task: Json, agent: Json | None, target: Target) -> list[Entry]:
    paused = task.get("state") == "paused"
    ours = task.get("paused_by_watchdog") is True
    saving = agent is not None and agent.get("saving") is True
    can_save = agent is not None and agent.get("training") is True and not paused and not saving
    folder = agent.get("directory") if agent is not None else None
    folder = folder if isinstance(folder, str) and folder.startswith("/") else None
    save = "Saving\u2026" if saving else "Save checkpoint now"
    pause = "Paused by somebody else" if paused and not ours else "Pause"
    return [
        Entry("checkpoint", save, Wish(Do.CHECKPOINT, target), enabled=can_save),
        Entry("pause", pause, Wish(Do.PAUSE, target), enabled=not paused),
        Entry("resume", "Resume", Wish(Do.RESUME, target), enabled=ours),
        *_bag_acts(task, target),
        Entry("explain", "Explain", Wish(Do.EXPLAIN, target)),
        Entry(
            "rescues",
            "Open folder of rescues",
            Wish(Do.RESCUES, target, path=folder),
            enabled=folder is not None,
        ),
    ]


def _bag_acts(task: Json, target: Target) -> tuple[Entry, ...]:
    """Of a task in an airbag: more memory, and where it is held what else there is to choose."""
    bag = task.get("airbag")
    if not isinstance(bag, dict):
        return ()
    raised = Entry("more", "Raise the limit of its airbag", Wish(Do.MORE, target))
    if bag.get("held") is not True:
        return (raised,)
    return (
        raised,
        Entry("go_on", "Go on without a limit", Wish(Do.GO_ON, target)),
        Entry("end", "End it; its rescue stays", Wish(Do.END, target)),
    )


def _protection(status: Json) -> list[Entry]:
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
