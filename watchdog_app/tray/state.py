"""
What one status says, for an icon: its level, its fill, its marks, and one sentence. Pure.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import plain, shorten
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Resource, Status

FILL_STEPS = 16  # the fill moves in steps that can be seen: the icon is seldom drawn

_MAX_TITLE_CHARS = 120
_MAX_HEADLINE_CHARS = 200


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
class TrayState:
    """What the icon, its tooltip and the head of the menu show."""

    picture: Picture
    headline: str  # "RAM full in about 4 min: train.ipynb"
    detail: str  # "6.10 of 7.00 GiB; GPU 0: 3.10 of 24.0 GiB"; may be empty
    is_active: bool  # poll every second

    @property
    def title(self) -> str:
        """For a tooltip."""
        return shorten(plain(f"watchdog: {self.headline}"), _MAX_TITLE_CHARS)


NO_DAEMON = TrayState(Picture(Level.UNKNOWN), "The daemon is not running", "", is_active=False)


def tray_state(status: Status, now_unix_s: float) -> TrayState:
    """The state of icon, tooltip and menu headline for a status."""
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
    The resource to name: of the worst level, then the soonest end, then the fullest.

    At rest only some count: disks are 90 % full for years, and frameworks take whole GPUs.
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
    """A ratio of 0 to 1 in steps of the gauge; the last one is kept for a limit that is reached."""
    if ratio is None or ratio <= 0:
        return 0
    # Something that is used at all shows, and full is not said before it is.
    return min(FILL_STEPS, max(1, math.floor(ratio * FILL_STEPS + 1e-9)))


def protection_state(status: Status | None) -> tuple[bool, float | None] | None:
    """Whether protection is on, and until when it is not; None: this daemon does not say."""
    daemon = status.daemon if status is not None else None
    found = daemon.protection if daemon is not None else None
    return None if found is None or found.on is None else (found.on, found.until_unix_s)


def capitalize_first(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


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
    """The nearest resource in figures, and each GPU."""
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
