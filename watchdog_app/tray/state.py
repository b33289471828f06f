"""
The state of icon, tooltip and menu headline, derived from a status. Pure.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import capitalize_first
from watchdog_app.base.text.terminal import plain, shorten
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Resource, Status

FILL_STEPS = 16  # few visible steps, so that the icon is drawn rarely

_MAX_TITLE_CHARS = 120
_MAX_HEADLINE_CHARS = 200


class Mark(enum.StrEnum):
    """A small mark in the corner of the icon; the first that applies is shown."""

    PAUSED = "paused"  # watchdog paused a task, and the user has to decide
    SAVING = "saving"  # a rescue is being written
    OFF = "off"  # protection is switched off
    NONE = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of the icon: equal pictures look the same and are drawn once."""

    level: Level  # UNKNOWN: no daemon, or its status is too old
    fill: int = 0  # in units of 1/FILL_STEPS
    mark: Mark = Mark.NONE


@dataclass(frozen=True, slots=True)
class TrayState:
    """The content of the icon, its tooltip and the head of the menu."""

    picture: Picture
    headline: str  # such as "RAM full in about 4 min: train.ipynb"
    detail: str  # such as "6.10 of 7.00 GiB; GPU 0: 3.10 of 24.0 GiB"; can be empty
    is_active: bool  # poll every second

    @property
    def title(self) -> str:
        """Text of the tooltip."""
        return shorten(plain(f"watchdog: {self.headline}"), _MAX_TITLE_CHARS)


NO_DAEMON = TrayState(Picture(Level.UNKNOWN), "The daemon is not running", "", is_active=False)


def tray_state(status: Status, now_unix_s: float) -> TrayState:
    """Return the state of icon, tooltip and menu headline for a status."""
    level, text = status.summary(now_unix_s)
    if level is Level.UNKNOWN:
        return TrayState(Picture(level), _headline(text), "", is_active=True)
    near = nearest(status)
    mark = _mark(status)
    known = protection_state(status)
    if mark is Mark.OFF and known is not None and level < Level.WARNING:
        until = f" until {quantities.moment(known[1])}" if known[1] is not None else ""
        text = f"protection is off{until}"
    picture = Picture(level, fill_step(None if near is None else near.ratio), mark)
    hot = level >= Level.WARNING or bool(mark)
    return TrayState(picture, _headline(text), _detail(status, near), hot)


def nearest(status: Status) -> Resource | None:
    """
    Return the resource to name: by worst level, then soonest exhaustion, then fullest.

    If nothing is near its limit, only some resources count: disks are 90 % full for years, and
    frameworks allocate whole GPUs.
    """
    worst = max((resource.level for resource in status.resources), default=Level.OK)
    if worst is Level.OK:
        calm = [resource for resource in status.resources if resource.on_icon]
        return max(calm, key=lambda resource: resource.ratio or 0.0, default=None)
    near = [resource for resource in status.resources if resource.level is worst]
    return min(
        near,
        key=lambda resource: (
            math.inf if resource.eta_s is None else resource.eta_s,
            -(resource.ratio or 0.0),
        ),
    )


def fill_step(ratio: float | None) -> int:
    """Convert a ratio from 0 to 1 to fill steps; the last step means that the limit is reached."""
    if ratio is None or ratio <= 0:
        return 0
    # Any use shows at least one step. Only a full resource shows all steps.
    return min(FILL_STEPS, max(1, math.floor(ratio * FILL_STEPS + 1e-9)))


def protection_state(status: Status | None) -> tuple[bool, float | None] | None:
    """Return whether protection is on, and until when it is off; None: unknown."""
    daemon = status.daemon if status is not None else None
    found = daemon.protection if daemon is not None else None
    return None if found is None or found.on is None else (found.on, found.until_unix_s)


def _headline(text: str) -> str:
    return capitalize_first(shorten(plain(text), _MAX_HEADLINE_CHARS))


def _mark(status: Status) -> Mark:
    if any(task.waits for task in status.tasks):
        return Mark.PAUSED
    if any(task.agent is not None and task.agent.saving for task in status.tasks):
        return Mark.SAVING
    known = protection_state(status)
    return Mark.OFF if known is not None and not known[0] else Mark.NONE


def _detail(status: Status, near: Resource | None) -> str:
    """Describe the nearest resource and each GPU in figures."""
    parts = []
    if near is not None:
        label = capitalize_first(shorten(plain(near.label or near.kind or "?"), 40))
        parts.append(f"{label} {quantities.of_limit(near.used, near.limit, near.unit)}")
    for index, gpu in enumerate(status.gpus[:4]):
        if gpu.memory_used_bytes is not None:
            number = index if gpu.index is None else gpu.index
            use = quantities.of_limit(gpu.memory_used_bytes, gpu.usable_bytes, "bytes")
            parts.append(f"GPU {number} {use}")
    return " \u00b7 ".join(parts)
