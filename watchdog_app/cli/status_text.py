"""
A status object as text: verdict, ceilings, incidents, tasks, what is not watched.

Pure: object, clock and width in, lines out. The object is whatever a daemon of
any version sent: what is missing or null is shown as unknown or left out.
"""

from __future__ import annotations

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.cli import figures
from watchdog_app.cli.ceiling_lines import ceiling_lines
from watchdog_app.cli.color import Look
from watchdog_app.cli.gpu_lines import gpu_lines
from watchdog_app.cli.task_table import folded, ordered, task_lines
from watchdog_app.cli.text import counted, plain, width, wrap
from watchdog_app.cli.verdict import (
    CONDITION_WORDS,
    is_condition,
)
from watchdog_app.core.model.levels import Level, headline, reading_age_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_BY_WORK = ("temperature", "power", "battery")
_LONG = 10_000  # columns where nobody said how wide a line may be


def render(
    status: Json,
    now_unix_s: float,
    columns: int | None = None,
    look: Look | None = None,
    *,
    everything: bool = False,
    sort: str = "urgency",
    most_tasks: int | None = None,
) -> list[str]:
    """
    The lines of `watchdog status`.

    Args:
        status: the status object of docs/status-json.md.
        now_unix_s: what the age of the reading is counted to.
        columns: of the terminal; None: nothing is shortened.
        look: colours and symbols.
        everything: idle interpreters and far ceilings as well.
        sort: one of `task_table.SORTS`.
        most_tasks: rows of the task table; the rest is counted.
    """
    look = look or Look()
    lines = [*_verdict(status, now_unix_s, columns, look), ""]
    ceilings = ceiling_lines(status, columns, look, everything)
    lines += [*ceilings, ""] if ceilings else []
    cards = gpu_lines(status, columns, look, everything)
    lines += [*cards, ""] if cards else []
    for incident in objects(status, "incidents"):
        lines += [*incident_lines(incident, now_unix_s, columns, look), ""]
    lines += _tasks(
        status, now_unix_s, columns, look, everything=everything, sort=sort, most=most_tasks
    )
    lines += _errors(status, columns, look)
    return lines


def _verdict(status: Json, now_unix_s: float, columns: int | None, look: Look) -> list[str]:
    level, said = headline(status, now_unix_s)
    calm = level <= Level.WATCH
    mark = "" if calm else f"{level.mark} "
    first = wrap(f"{level.word}: {plain(said)}.", columns or _LONG, first=mark)
    painted = [look.paint(one, "green") if calm else look.level(one, level) for one in first]
    daemon = status.get("daemon") or {}
    processes = objects(status, "processes")
    agents = sum(1 for one in processes if one.get("agent"))
    parts = [f"watchdog {plain(daemon.get('version') or '?')}"]
    name = (status.get("host") or {}).get("name")
    if name:
        parts.append(f"on {plain(name)}")
    uptime = number_or_none(daemon.get("uptime_s"))
    if uptime is not None:
        parts.append(f"up {format_duration(uptime)}")
    seconds = reading_age_s(status, now_unix_s)
    if seconds is not None and level is not Level.UNKNOWN:
        parts.append(f"read {figures.age(seconds)}")
    parts.append(f"{counted(len(processes), 'task')}, {agents} with an agent")
    line = look.dot.join(parts)
    if columns is not None and name and width(line) > columns:
        line = look.dot.join(one for one in parts if not one.startswith("on "))
    return painted + [look.paint(one, "dim") for one in wrap(line, columns or _LONG)]


def incident_lines(incident: Json, now_unix_s: float, columns: int | None, look: Look) -> list[str]:
    """An open incident: stage, why, who grows, what to do."""
    limit = columns or _LONG
    level = Level.of(incident)
    stage = Level.of_stage(incident.get("stage"))
    since = number_or_none(incident.get("opened_unix_s"))
    calm = stage < Level.WARNING  # open until it has been calm for a while
    head = "~ CALMER" if calm else f"{level.mark} {level.name}"
    condition = is_condition(incident)
    if condition:
        head = f"{level.mark or '~'} {CONDITION_WORDS[level]}"
    head += f" {plain(incident.get('label') or incident.get('ceiling') or '?')}"
    if since is not None:
        head += f", opened {figures.age(now_unix_s - since)}"
    if calm and incident.get("peak") and not condition:
        head += f", reached {plain(incident['peak'])}"
    lines = [look.level(one, level) for one in wrap(head, limit, rest="   ")]
    if incident.get("why"):
        lines += wrap(plain(incident["why"]), limit, first="   ")
    for culprit in objects(incident, "culprits")[:3]:
        text = f"{plain(culprit.get('name') or '?')} (pid {figures.whole(culprit.get('pid'))})"
        share = figures.ratio(culprit.get("share"))
        if condition:
            text = f"hit: {text}" if incident.get("ceiling") == "gpu_health" else text
        elif incident.get("ceiling") in _BY_WORK:
            text += "" if share == figures.UNKNOWN else f" {share} of the work"
        else:
            text += f" {figures.rate(culprit.get('slope_bytes_per_s'))}"
            if share != figures.UNKNOWN:
                text += f", {share} of the growth"
        lines += wrap(text, limit, first="   ", rest="     ")
    for advice in [] if calm and not condition else incident.get("advice") or []:
        lines += wrap(plain(advice), limit, first="   > ")
    return lines


def _tasks(
    status: Json,
    now_unix_s: float,
    columns: int | None,
    look: Look,
    *,
    everything: bool,
    sort: str,
    most: int | None,
) -> list[str]:
    processes = ordered(objects(status, "processes"), sort)
    shown, hidden = (processes, []) if everything else folded(processes)
    lines = []
    if shown:
        gpus = objects(status, "gpus")
        # Of a card that does not answer nobody knows who holds what on it.
        cards = bool(gpus) and all(one.get("state") in (None, "ok", "asleep") for one in gpus)
        lines += task_lines(shown[:most], now_unix_s, columns, look, cards=cards)
        if most is not None and len(shown) > most:
            lines.append(look.paint(f"and {counted(len(shown) - most, 'more task')}", "dim"))
    elif not hidden:
        lines.append("No Python process is running here that you may see.")
    if hidden:
        known = [number_or_none(one.get("ram_bytes")) or 0 for one in hidden]
        text = f"and {len(hidden)} small idle Python process{'es' if len(hidden) > 1 else ''}, "
        text += f"{figures.size(sum(known))} together; --all shows them"
        lines += [look.paint(one, "dim") for one in wrap(text, columns or _LONG)]
    return lines


def _errors(status: Json, columns: int | None, look: Look) -> list[str]:
    lines = []
    texts = [_off(status.get("daemon")), *_snoozed(status), _unshown(status.get("daemon"))]
    told = _told_of(status)
    for error in objects(status, "errors"):
        if error.get("source") in told:
            continue
        remedy = f" {plain(error['remedy'])}" if error.get("remedy") else ""
        texts.append(plain(error.get("message") or "?") + remedy)
    for text in filter(None, texts):
        found = wrap(text, columns or _LONG, first="! ")
        lines += [look.paint(one, "yellow") for one in found]
    return ["", *lines] if lines else []


def _off(daemon: object) -> str:
    """That protection is switched off, and until when: nobody is to forget that."""
    part = daemon.get("protection") if isinstance(daemon, dict) else None
    if not isinstance(part, dict) or part.get("on") is not False:
        return ""
    until = figures.moment(part.get("until_unix_s"))
    when = f"until {until}" if until else "until you switch it on"
    return (
        f"Protection is off {when}: nothing is warned of, saved or paused. "
        "Switch it on: watchdog protect on"
    )


def _snoozed(status: Json) -> list[str]:
    """Which notices are held back, and until when."""
    found = []
    for one in objects(status.get("daemon") or {}, "snoozed"):
        if one.get("incident") is not None:
            whose = f"of incident {plain(one['incident'])}"
        else:
            whose = f"about {plain(one['name'])}" if one.get("name") else "of every kind"
        until = figures.moment(one.get("until_unix_s"))
        found.append(f"Notices {whose} are held back until {until}: watchdog snooze --help")
    return found


def _told_of(status: Json) -> set[str]:
    """Sources of errors about cards whose incident says the same, and more."""
    subjects = {
        one.get("subject")
        for one in objects(status, "incidents")
        if one.get("ceiling") == "gpu_health" and Level.of(one) >= Level.WARNING
    }
    driver = {"gpu.driver", "gpu.driver.updated"} if "driver" in subjects else set()
    return driver | {
        f"gpu.{figures.whole(gpu.get('index'))}"
        for gpu in objects(status, "gpus")
        if gpu.get("id") in subjects and gpu.get("parent_uuid") is None
    }


def _unshown(daemon: object) -> str:
    """That notices reach nobody: who relies on them has to know."""
    notices = daemon.get("notices") if isinstance(daemon, dict) else None
    number = number_or_none(notices.get("undelivered")) if isinstance(notices, dict) else None
    if not number or not isinstance(notices, dict):
        return ""
    why = f": {plain(notices['last_failure'])}" if notices.get("last_failure") else "."
    text = f"{counted(int(number), 'notice')} could not be shown{why}"
    return f"{text if text.endswith('.') else f'{text}.'} What they said: watchdog history"
