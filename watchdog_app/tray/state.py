"""
What one status says, for an icon: its stage, its fill, its marks, and one sentence.

Pure: status objects of docs/protocol.md in, plain records out. Fields that a
daemon does not send, and kinds that this version does not know, do no harm.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.core.model.levels import Level, headline
from watchdog_app.tray import labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

FILL_STEPS = 16  # the fill moves in steps that can be seen: the icon is seldom drawn

# What the gauge shows while nothing is in danger. Disks stand at 90 % for years, and frameworks
# take a whole card for themselves: a gauge that is always full says nothing.
_AT_REST = frozenset(("ram", "ram_swap", "cgroup", "gpu_allocator"))
_TITLE_MOST = 120


class Mark(enum.StrEnum):
    """A small sign in the corner of the icon; the first that applies is shown."""

    PAUSED = "paused"  # a task is paused by watchdog and waits for a person
    SAVING = "saving"  # a rescue is being written
    OFF = "off"  # protection is switched off
    NONE = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the icon shows: two equal ones look the same and are drawn once."""

    level: Level  # UNKNOWN: no daemon, or none that measures
    fill: int = 0  # of FILL_STEPS
    mark: Mark = Mark.NONE


@dataclass(frozen=True, slots=True)
class Outlook:
    """A status in one glance."""

    picture: Picture
    headline: str  # "RAM full in about 4 min: train.ipynb"
    detail: str  # "6.10 of 7.00 GiB; GPU 0: 3.10 of 24.0 GiB"; may be empty
    hot: bool  # something moves: worth looking at every second

    @property
    def title(self) -> str:
        """For a tooltip."""
        return labels.plain(f"watchdog: {self.headline}", _TITLE_MOST)


NO_DAEMON = Outlook(Picture(Level.UNKNOWN), "The daemon is not running", "", hot=False)


def outlook(status: Json, now_unix_s: float) -> Outlook:
    """What the icon and the first lines of the menu say of a status."""
    level, text = headline(status, now_unix_s)
    if level is Level.UNKNOWN:
        return Outlook(Picture(level), capital(labels.plain(text)), "", hot=True)
    near = nearest(status)
    mark = _mark(status)
    known = protection(status)
    if mark is Mark.OFF and known is not None and level < Level.WARNING:
        until = f" until {labels.clock(known[1])}" if known[1] is not None else ""
        text = f"protection is off{until}"
    picture = Picture(level, fill_step(None if near is None else near.get("ratio")), mark)
    hot = level >= Level.WARNING or bool(mark)
    return Outlook(picture, capital(labels.plain(text)), _detail(status, near), hot)


def nearest(status: Json) -> Json | None:
    """The ceiling to name: in the worst stage, then the soonest end, then the fullest."""
    ceilings = objects(status, "ceilings")
    worst = max(map(Level.of, ceilings), default=Level.OK)
    if worst is Level.OK:
        calm = [one for one in ceilings if one.get("kind") in _AT_REST]
        return max(calm, key=lambda one: number_or_none(one.get("ratio")) or 0.0, default=None)
    near = [one for one in ceilings if Level.of(one) is worst]
    return min(near, key=lambda one: (_eta_s(one), -(number_or_none(one.get("ratio")) or 0.0)))


def fill_step(ratio: Any) -> int:
    """A ratio of 0 to 1 in steps of the gauge; the last one is kept for a ceiling that is hit."""
    known = number_or_none(ratio)
    if known is None or known <= 0:
        return 0
    # Something that is used at all shows, and full is not said before it is.
    return min(FILL_STEPS, max(1, math.floor(known * FILL_STEPS + 1e-9)))


def protection(status: Json | None) -> tuple[bool, float | None] | None:
    """Whether protection is on, and until when it is not; None: this daemon does not say."""
    daemon = (status or {}).get("daemon")
    found = daemon.get("protection") if isinstance(daemon, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("on"), bool):
        return None
    return found["on"], number_or_none(found.get("until_unix_s"))


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _mark(status: Json) -> Mark:
    tasks = objects(status, "processes")
    if any(one.get("paused_by_watchdog") is True or one.get("state") == "held" for one in tasks):
        return Mark.PAUSED
    agents = (task.get("agent") for task in tasks)
    if any(isinstance(agent, dict) and agent.get("saving") is True for agent in agents):
        return Mark.SAVING
    known = protection(status)
    return Mark.OFF if known is not None and not known[0] else Mark.NONE


def _detail(status: Json, near: Json | None) -> str:
    """The nearest ceiling in figures, and each graphics card."""
    parts = []
    if near is not None:
        label = capital(labels.plain(near.get("label") or near.get("kind") or "?", 40))
        use = labels.of_limit(near.get("used"), near.get("limit"), near.get("unit"))
        parts.append(f"{label} {use}")
    for index, gpu in enumerate(objects(status, "gpus")[:4]):
        used, total = gpu.get("memory_used_bytes"), number_or_none(gpu.get("memory_total_bytes"))
        if total is not None:  # what the driver keeps for itself is nobody's
            total -= number_or_none(gpu.get("memory_reserved_bytes")) or 0
        if number_or_none(used) is not None:
            shown = labels.whole(gpu.get("index"))
            card = index if shown is None else shown
            parts.append(f"GPU {card} {labels.of_limit(used, total, 'bytes')}")
    return " \u00b7 ".join(parts)


def _eta_s(ceiling: Json) -> float:
    eta_s = number_or_none(ceiling.get("eta_s"))
    return math.inf if eta_s is None else eta_s
