"""
Whether anything is about to run out, in one sentence, and how old that knowledge is. Pure.
"""

from __future__ import annotations

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.cli import figures
from watchdog_app.cli.task_table import stage_rank
from watchdog_app.cli.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

# What is broken, or brakes, has no end that a stage could be told by.
_SOON_S = 120.0
_BRIMFUL = 0.98  # of a card's memory
_AIRBAG_LIMIT = "airbag limit"  # what `core.ceilings` begins the label of such a limit with
_FILLS = ("ram", "ram_swap", "cgroup", "shm", "gpu_memory", "gpu_allocator")
_EYES = ("gpu", "hardware", "machine", "engine")  # sources of errors that blind us
_CARD_STAGES = {"note": "watch", "warning": "warn", "critical": "rescue"}
SEVERITIES = {"ok": "OVER", "watch": "NOTE", "warn": "WARNING", "rescue": "CRITICAL"}


def worst_stage(status: Json) -> str:
    """The highest stage that any ceiling, task, incident or card of a status object is in."""
    cards = [card_stage(gpu) for gpu in objects(status, "gpus")]
    return max([_worst_of(status), *cards], key=stage_rank)


def _worst_of(status: Json) -> str:
    every = [
        *objects(status, "ceilings"),
        *objects(status, "processes"),
        *objects(status, "incidents"),
    ]
    return max((str(one.get("stage") or "ok") for one in every), key=stage_rank, default="ok")


def reading_age_s(status: Json, now_unix_s: float) -> float | None:
    """Seconds since the daemon measured; None where it does not say."""
    at = figures.number(status.get("time_unix_s"))
    return None if at is None else max(0.0, now_unix_s - at)


def is_stale(status: Json, now_unix_s: float) -> bool:
    """The reading is much older than the daemon's own pace allows."""
    seconds = reading_age_s(status, now_unix_s)
    pace = figures.number((status.get("daemon") or {}).get("interval_s")) or 1.0
    return seconds is not None and seconds > max(10.0, 5 * pace)


def verdict(status: Json, now_unix_s: float) -> str:
    """One sentence: whether anything is about to run out, and how old that knowledge is."""
    if is_stale(status, now_unix_s):
        old = format_duration(reading_age_s(status, now_unix_s))
        return f"STALE: this reading is {old} old; the daemon is stopped or overloaded."
    worst = _worst_of(status)
    host = status.get("host") or {}
    if not status.get("ceilings") and figures.number(host.get("memory_total_bytes")) is None:
        return "UNKNOWN: the daemon has not measured yet."
    card = max(objects(status, "gpus"), key=lambda gpu: stage_rank(card_stage(gpu)), default={})
    if stage_rank(card_stage(card)) > max(1, stage_rank(_worst_of(status))):
        name = f"GPU {figures.whole(card.get('index'))} ({plain(card.get('name') or '?')})"
        return f"{SEVERITIES[card_stage(card)]}: {name} {card_title(card)}."
    if stage_rank(worst) < stage_rank("warn") and (unwatched := _unwatched(status)):
        return f"WARNING: {unwatched}"
    if stage_rank(worst) < stage_rank("warn"):
        soon = _soon(status)
        if soon is not None:
            what = plain(soon.get("label") or soon.get("kind") or "?")
            return f"WATCH: {what}, {figures.end(soon)} if it goes on; that is not certain yet."
    if stage_rank(worst) == 0:
        return f"OK: nothing is about to run out{_brimful(status)}."
    if worst == "watch" and all(map(is_condition, _in_stage(status, worst))):
        return f"OK: nothing is about to run out{_brimful(status)}; see the notes."
    if worst == "watch":
        return "OK: something grows and is watched closely; it is no danger yet."
    near = _nearest(status, worst)
    held = [one for one in objects(status, "processes") if one.get("state") == "held"]
    if held and (near.get("state") == "held" or _of_airbag(near)):
        return _held(held[0])
    if is_condition(near):
        word = "CRITICAL" if stage_rank(worst) > stage_rank("warn") else "WARNING"
        return f"{word}: {plain(near.get('label') or '?')}: {plain(near.get('why') or '?')}."
    what = plain(near.get("label") or near.get("name") or near.get("ceiling") or "a limit")
    when = figures.eta(near)
    text = f"{plain(worst).upper()}: {what}"
    if when == figures.NONE:
        return f"{text} is close to its limit."
    return f"{text}, {figures.end({'kind': near.get('ceiling'), **near})}."


def _soon(status: Json) -> Json | None:
    """What ends within a minute or two if it goes on, though the evidence is thin."""
    found = [
        one
        for one in objects(status, "ceilings")
        if (one.get("lethal") or one.get("kind") in _FILLS)
        and (figures.number(one.get("eta_s")) or _SOON_S) < _SOON_S
    ]
    return min(found, key=lambda one: float(one["eta_s"]), default=None)


def _brimful(status: Json) -> str:
    """A word on cards that are all but full, and steady: the next larger request may fail."""
    full = [
        plain(one.get("label") or "?")
        for one in objects(status, "ceilings")
        if one.get("kind") == "gpu_memory" and (figures.number(one.get("ratio")) or 0) >= _BRIMFUL
    ]
    return f"; {full[0]} is all but full, and steady" if full else ""


def _unwatched(status: Json) -> str:
    """What is said of a part of the machine that cannot be read; nothing where all can."""
    for error in objects(status, "errors"):
        source, message = str(error.get("source")), error.get("message")
        if source.partition(".")[0] in _EYES and isinstance(message, str) and message:
            return plain(message.partition(". ")[0].rstrip(".")) + "."
    return ""


def card_stage(gpu: Json) -> str:
    """What the daemon says of a card, as a stage; it may be lost before its incident is open."""
    found = gpu.get("verdict")
    severity = found.get("severity") if isinstance(found, dict) else None
    return _CARD_STAGES.get(str(severity), "ok")


def card_title(gpu: Json) -> str:
    """`is lost`: what the daemon says of a card; empty where it is well."""
    found = gpu.get("verdict")
    return plain((found.get("title") if isinstance(found, dict) else None) or "")


def _of_airbag(one: Json) -> bool:
    """It is the limit of an airbag, at which nobody is killed."""
    return str(one.get("label") or "").startswith(_AIRBAG_LIMIT)


def _held(task: Json) -> str:
    """A program that has met the limit of its airbag is in no danger; it waits for somebody."""
    airbag = task.get("airbag")
    pid = (airbag if isinstance(airbag, dict) else task).get("pid")
    return (
        f"HELD: {plain(task.get('name') or '?')} stands still at the limit of its airbag and loses "
        f"nothing. Give it more: watchdog limit {plain(pid)} SIZE"
    )


def _nearest(status: Json, worst: str) -> Json:
    """What to name in the verdict: the ceiling in the worst stage that ends soonest."""
    candidates = _in_stage(status, worst)
    timed = [one for one in candidates if figures.number(one.get("eta_s")) is not None]
    return min(timed, key=lambda one: float(one["eta_s"])) if timed else candidates[0]


def _in_stage(status: Json, stage: str) -> list[Json]:
    every = [
        *objects(status, "ceilings"),
        *objects(status, "incidents"),
        *objects(status, "processes"),
    ]
    return [one for one in every if str(one.get("stage") or "ok") == stage]


def is_condition(incident: Json) -> bool:
    """Whether an incident is of something that is broken or brakes, and not of a level."""
    kind = incident.get("ceiling")
    return kind in ("gpu_health", "throttling", "stalled") or (
        kind == "battery" and incident.get("subject") == "unplugged"
    )


def objects(holder: Json, key: str) -> list[Json]:
    """The objects in a list of a message; whatever else it holds is left out."""
    found = holder.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
