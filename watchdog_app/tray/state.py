"""
What one status says, for an icon: its stage, its fill, its marks, and one sentence.

Pure: status objects of docs/protocol.md in, plain records out. Fields that a
daemon does not send, and kinds that this version does not know, do no harm.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from watchdog_app.tray import labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

FILL_STEPS = 16  # the fill moves in steps that can be seen: the icon is seldom drawn
STAGES = ("ok", "watch", "warn", "rescue", "hold")

# What the gauge shows while nothing is in danger. Disks stand at 90 % for years, and frameworks
# take a whole card for themselves: a gauge that is always full says nothing.
_AT_REST = frozenset(("ram", "ram_swap", "cgroup", "gpu_allocator"))
_CARD_RANKS = {"note": 1, "warning": 2, "critical": 3}
_STALE_S = 15.0
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

    stage: str | None  # one of STAGES; None: no daemon, grey
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


NO_DAEMON = Outlook(Picture(None), "The daemon is not running", "", hot=False)


def outlook(status: Json, now_unix_s: float) -> Outlook:
    """What the icon and the first lines of the menu say of a status."""
    age_s = _age_s(status, now_unix_s)
    if age_s is not None and age_s > _STALE_S:
        text = f"The daemon has measured nothing for {labels.span(age_s)}"
        return Outlook(Picture(None), text, "It is stopped or overloaded", hot=True)
    near = nearest(status)
    stage = worst_stage(status)
    mark = _mark(status)
    picture = Picture(STAGES[stage], fill_step(None if near is None else near.get("ratio")), mark)
    headline = _headline(status, near, stage, mark)
    return Outlook(picture, headline, _detail(status, near), hot=stage >= 2 or bool(mark))


def stage_rank(stage: object) -> int:
    """0 for ok up to 4 for hold; one that this version does not know counts as warn."""
    if stage is None:
        return 0
    return STAGES.index(str(stage)) if stage in STAGES else 2


def worst_stage(status: Json) -> int:
    """The highest rank that any ceiling, open incident or card is in."""
    every = [*objects(status, "ceilings"), *objects(status, "incidents")]
    ranks = [stage_rank(one.get("stage")) for one in every]
    return max([*ranks, *map(card_rank, objects(status, "gpus"))], default=0)


def card_rank(gpu: Json) -> int:
    """What the daemon says of a card, as the rank of a stage."""
    verdict = gpu.get("verdict")
    severity = verdict.get("severity") if isinstance(verdict, dict) else None
    return _CARD_RANKS.get(str(severity), 0)


def nearest(status: Json) -> Json | None:
    """The ceiling to name: in the worst stage, then the soonest end, then the fullest."""
    ceilings = objects(status, "ceilings")
    worst = max((stage_rank(one.get("stage")) for one in ceilings), default=0)
    if worst == 0:
        calm = [one for one in ceilings if one.get("kind") in _AT_REST]
        return max(calm, key=lambda one: labels.number(one.get("ratio")) or 0.0, default=None)
    near = [one for one in ceilings if stage_rank(one.get("stage")) == worst]
    return min(near, key=lambda one: (_eta_s(one), -(labels.number(one.get("ratio")) or 0.0)))


def fill_step(ratio: Any) -> int:
    """A ratio of 0 to 1 in steps of the gauge; the last one is kept for a ceiling that is hit."""
    known = labels.number(ratio)
    if known is None or known <= 0:
        return 0
    # Something that is used at all shows, and full is not said before it is.
    return min(FILL_STEPS, max(1, math.floor(known * FILL_STEPS + 1e-9)))


def objects(holder: Any, key: str) -> list[Json]:
    """The objects in a list of a message; whatever else it holds is left out."""
    found = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def protection(status: Json | None) -> tuple[bool, float | None] | None:
    """Whether protection is on, and until when it is not; None: this daemon does not say."""
    daemon = (status or {}).get("daemon")
    found = daemon.get("protection") if isinstance(daemon, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("on"), bool):
        return None
    return found["on"], labels.number(found.get("until_unix_s"))


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _age_s(status: Json, now_unix_s: float) -> float | None:
    at = labels.number(status.get("time_unix_s"))
    return None if at is None else now_unix_s - at


def _mark(status: Json) -> Mark:
    tasks = objects(status, "processes")
    if any(one.get("paused_by_watchdog") is True or one.get("state") == "held" for one in tasks):
        return Mark.PAUSED
    if _saving(status) is not None:
        return Mark.SAVING
    known = protection(status)
    return Mark.OFF if known is not None and not known[0] else Mark.NONE


def _saving(status: Json) -> Json | None:
    for task in objects(status, "processes"):
        agent = task.get("agent")
        if isinstance(agent, dict) and agent.get("saving") is True:
            return task
    return None


def _headline(status: Json, near: Json | None, stage: int, mark: Mark) -> str:
    """The one thing to know now: what is paused, what ends, what is saved, or that all is well."""
    paused = [one for one in objects(status, "processes") if one.get("paused_by_watchdog") is True]
    if paused:
        rest = f" and {len(paused) - 1} more" if len(paused) > 1 else ""
        return f"Paused: {labels.name(paused[0].get('name'))}{rest}"
    held = [one for one in objects(status, "processes") if one.get("state") == "held"]
    if held:
        rest = f" and {len(held) - 1} more" if len(held) > 1 else ""
        return f"Held at its limit: {labels.name(held[0].get('name'))}{rest}"
    danger = near is not None and stage_rank(near.get("stage")) >= 2
    if danger and near is not None:
        return f"{_end(near)}{_whose(status, near)}"
    saving = _saving(status)
    if saving is not None:
        return f"Saving {labels.name(saving.get('name'))}"
    if stage >= 2:
        return _incident(status)
    known = protection(status)
    if mark is Mark.OFF and known is not None:
        until = f" until {labels.clock(known[1])}" if known[1] is not None else ""
        return f"Protection is off{until}"
    if stage == 1 and near is not None:
        return f"Growing, no danger yet{_whose(status, near)}"
    if near is None and not objects(status, "ceilings"):
        return "The daemon has not measured yet"
    return "Nothing is about to run out"


def _end(ceiling: Json) -> str:
    label = capital(labels.plain(ceiling.get("label") or ceiling.get("kind") or "A limit", 60))
    eta_s = labels.number(ceiling.get("eta_s"))
    bytes_ = ceiling.get("unit") == "bytes"
    if eta_s is None:
        return f"{label} {'nearly full' if bytes_ else 'close to its limit'}"
    return f"{label} {'full' if bytes_ else 'at its limit'} in about {labels.span(eta_s)}"


def _incident(status: Json) -> str:
    """Of the worst incident that has no ceiling in danger any more, or never had one."""
    incidents = objects(status, "incidents")
    worst = max(incidents, key=lambda one: stage_rank(one.get("stage")), default={})
    for gpu in objects(status, "gpus"):
        if card_rank(gpu) > max(1, stage_rank(worst.get("stage"))):  # its incident is not open yet
            return labels.plain(f"GPU {gpu.get('index')} {gpu['verdict'].get('title')}", 80)
    label = labels.plain(worst.get("label") or worst.get("ceiling") or "A limit", 60)
    why = labels.plain(worst.get("why"), 60)
    return f"{capital(label)}: {why}" if why else capital(label)


def _whose(status: Json, ceiling: Json) -> str:
    """`: train.ipynb`, the task that makes it grow; nothing where nobody is known to."""
    for incident in objects(status, "incidents"):
        same = incident.get("ceiling") == ceiling.get("kind")
        if same and incident.get("subject", ceiling.get("subject")) == ceiling.get("subject"):
            for culprit in objects(incident, "culprits"):
                return f": {labels.name(culprit.get('name'))}"
    pids = ceiling.get("tasks")
    tasks = [
        one
        for one in objects(status, "processes")
        if isinstance(pids, list) and one.get("pid") in pids
    ]
    growing = [one for one in tasks if (labels.number(one.get("trend_bytes_per_s")) or 0) > 1024]
    if not growing:
        return ""
    first = max(growing, key=lambda one: labels.number(one.get("trend_bytes_per_s")) or 0.0)
    return f": {labels.name(first.get('name'))}"


def _detail(status: Json, near: Json | None) -> str:
    """The nearest ceiling in figures, and each graphics card."""
    parts = []
    if near is not None:
        label = capital(labels.plain(near.get("label") or near.get("kind") or "?", 40))
        use = labels.of_limit(near.get("used"), near.get("limit"), near.get("unit"))
        parts.append(f"{label} {use}")
    for index, gpu in enumerate(objects(status, "gpus")[:4]):
        used, total = gpu.get("memory_used_bytes"), labels.number(gpu.get("memory_total_bytes"))
        if total is not None:  # what the driver keeps for itself is nobody's
            total -= labels.number(gpu.get("memory_reserved_bytes")) or 0
        if labels.number(used) is not None:
            shown = labels.whole(gpu.get("index"))
            card = index if shown is None else shown
            parts.append(f"GPU {card} {labels.of_limit(used, total, 'bytes')}")
    return " \u00b7 ".join(parts)


def _eta_s(ceiling: Json) -> float:
    eta_s = labels.number(ceiling.get("eta_s"))
    return math.inf if eta_s is None else eta_s
