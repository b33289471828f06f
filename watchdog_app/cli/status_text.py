"""
A status as text: headline, resources, GPUs, incidents, tasks, what is not watched.

Pure: record, clock and width in, lines out. What is unknown is shown as such or left out.
"""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.base.text.terminal import Style, counted, plain, width, wrap
from watchdog_app.cli.resource_lines import resource_lines
from watchdog_app.cli.task_table import task_lines
from watchdog_app.core.explain.gpu_lines import gpu_lines
from watchdog_app.core.explain.selection import ordered, without_background
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Contributor, Daemon, Incident, Status

_LONG = 10_000  # columns where the width of a line is not known


def render(
    status: Status,
    now_unix_s: float,
    columns: int | None = None,
    style: Style | None = None,
    *,
    everything: bool = False,
    sort: str = "urgency",
    most_tasks: int | None = None,
) -> list[str]:
    """
    The lines of `watchdog status`.

    Args:
        status: the last one.
        now_unix_s: what the age of the reading is counted to.
        columns: of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: idle interpreters and resources far from their limits as well.
        sort: one of `selection.SORTS`.
        most_tasks: rows of the task table; the rest is counted.
    """
    style = style or Style()
    lines = [*_headline(status, now_unix_s, columns, style), ""]
    for part in (
        resource_lines(status, columns, style, everything),
        gpu_lines(status, columns, style, everything),
        *(incident_lines(one, now_unix_s, columns, style) for one in status.incidents),
    ):
        lines += [*part, ""] if part else []
    lines += _tasks(
        status, now_unix_s, columns, style, everything=everything, sort=sort, most=most_tasks
    )
    lines += _problems(status, columns, style)
    return lines


def _headline(status: Status, now_unix_s: float, columns: int | None, style: Style) -> list[str]:
    level, said = status.summary(now_unix_s)
    calm = level <= Level.WATCH
    mark = "" if calm else f"{level.mark} "
    first = wrap(f"{level.word}: {plain(said)}.", columns or _LONG, first=mark)
    painted = [style.paint(one, "green" if calm else level.color) for one in first]
    agents = sum(1 for one in status.tasks if one.agent is not None)
    version = status.daemon.version if status.daemon else None
    parts = [f"watchdog {plain(version or '?')}"]
    name = status.host.name
    if name:
        parts.append(f"on {plain(name)}")
    if status.daemon is not None and status.daemon.uptime_s is not None:
        parts.append(f"up {format_duration(status.daemon.uptime_s)}")
    seconds = status.age_s(now_unix_s)
    if seconds is not None and level is not Level.UNKNOWN:
        parts.append(f"read {quantities.age(seconds)}")
    parts.append(f"{counted(len(status.tasks), 'task')}, {agents} with an agent")
    line = style.dot.join(parts)
    if columns is not None and name and width(line) > columns:
        line = style.dot.join(one for one in parts if not one.startswith("on "))
    return painted + [style.paint(one, "dim") for one in wrap(line, columns or _LONG)]


def incident_lines(
    incident: Incident, now_unix_s: float, columns: int | None, style: Style
) -> list[str]:
    """An open incident: level, reason, contributors, what to do."""
    limit = columns or _LONG
    level = incident.level
    calm = incident.is_calm  # open until it has been calm for a while
    head = "~ CALMER" if calm else f"{level.mark} {level.name}"
    if incident.is_fault:
        head = f"{level.mark or '~'} {level.fault}"
    head += f" {plain(incident.label or incident.resource or '?')}"
    if incident.opened_unix_s is not None:
        head += f", opened {quantities.age(now_unix_s - incident.opened_unix_s)}"
    if calm and incident.peak and not incident.is_fault:
        head += f", reached {plain(incident.peak)}"
    lines = [style.paint(one, level.color) for one in wrap(head, limit, rest="   ")]
    if incident.reason:
        lines += wrap(plain(incident.reason), limit, first="   ")
    for one in incident.contributors[:3]:
        lines += wrap(_contribution(incident, one), limit, first="   ", rest="     ")
    for advice in () if calm and not incident.is_fault else incident.advice:
        lines += wrap(plain(advice), limit, first="   > ")
    return lines


def _contribution(incident: Incident, one: Contributor) -> str:
    text = f"{plain(one.name or '?')} (pid {quantities.whole(one.pid)})"
    if incident.is_fault:
        return f"hit: {text}" if incident.is_gpu_fault else text
    share = quantities.ratio(one.share)
    if incident.blame == "work":
        return text if one.share is None else f"{text} {share} of the work"
    text += f" {quantities.rate(one.slope_bytes_per_s)}"
    return text if one.share is None else f"{text}, {share} of the growth"


def _tasks(
    status: Status,
    now_unix_s: float,
    columns: int | None,
    style: Style,
    *,
    everything: bool,
    sort: str,
    most: int | None,
) -> list[str]:
    tasks = ordered(status.tasks, sort)
    shown, hidden = (tasks, []) if everything else without_background(tasks)
    lines = []
    if shown:
        # Of a GPU that does not answer it is not known who holds what on it.
        known = all(one.state in (None, "ok", "asleep") for one in status.gpus)
        gpus = bool(status.gpus) and known
        lines += task_lines(shown[:most], now_unix_s, columns, style, gpus=gpus)
        if most is not None and len(shown) > most:
            lines.append(style.paint(f"and {counted(len(shown) - most, 'more task')}", "dim"))
    elif not hidden:
        lines.append("No Python process is running here that you may see.")
    if hidden:
        together = quantities.size(sum(one.ram_bytes or 0 for one in hidden))
        text = f"and {len(hidden)} small idle Python process{'es' if len(hidden) > 1 else ''}, "
        text += f"{together} together; --all shows them"
        lines += [style.paint(one, "dim") for one in wrap(text, columns or _LONG)]
    return lines


def _problems(status: Status, columns: int | None, style: Style) -> list[str]:
    texts = [*_protection(status.daemon), *_snoozed(status.daemon), *_undelivered(status.daemon)]
    reported = _reported_by_incidents(status)
    for one in status.problems:
        if one.source not in reported:
            remedy = f" {plain(one.remedy)}" if one.remedy else ""
            texts.append(plain(one.message or "?") + remedy)
    lines = [
        style.paint(line, "yellow")
        for text in texts
        for line in wrap(text, columns or _LONG, first="! ")
    ]
    return ["", *lines] if lines else []


def _protection(daemon: Daemon | None) -> list[str]:
    """That protection is off, and until when: a person must not forget that."""
    protection = daemon.protection if daemon else None
    if protection is None or protection.on is not False:
        return []
    until = quantities.moment(protection.until_unix_s)
    when = f"until {until}" if until else "until you switch it on"
    text = f"Protection is off {when}: nothing is warned of, saved or paused."
    return [f"{text} Switch it on: watchdog protect on"]


def _snoozed(daemon: Daemon | None) -> list[str]:
    """Which notifications are snoozed, and until when."""
    found = []
    for one in daemon.snoozed if daemon else ():
        if one.incident is not None:
            whose = f"of incident {plain(one.incident)}"
        else:
            whose = f"about {plain(one.name)}" if one.name else "of every kind"
        until = quantities.moment(one.until_unix_s)
        found.append(f"Notifications {whose} are suppressed until {until}: watchdog snooze --help")
    return found


def _undelivered(daemon: Daemon | None) -> list[str]:
    """That notifications could not be shown."""
    delivery = daemon.notifications if daemon else None
    if delivery is None or not delivery.undelivered:
        return []
    why = f": {plain(delivery.last_failure)}" if delivery.last_failure else "."
    text = f"{counted(delivery.undelivered, 'notification')} could not be shown{why}"
    text = text if text.endswith(".") else f"{text}."
    return [f"{text} What they said: watchdog history"]


def _reported_by_incidents(status: Status) -> set[str]:
    """Sources of problems about GPUs whose incident says the same, and more."""
    subjects = {
        one.subject for one in status.incidents if one.is_gpu_fault and one.level >= Level.WARNING
    }
    driver = {"gpu.driver", "gpu.driver.updated"} if "driver" in subjects else set()
    return driver | {
        f"gpu.{quantities.whole(gpu.index)}"
        for gpu in status.gpus
        if gpu.id in subjects and gpu.parent_id is None
    }
