"""
A status as text: headline, resources, GPUs, incidents, tasks and problems.

Pure: gets record, clock and width; returns lines. Unknown values are shown as unknown or left out.
"""

from __future__ import annotations

from itertools import chain

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_duration, limit_above
from watchdog_app.base.text.terminal import Style, Table, counted, plain, width, wrap
from watchdog_app.core.explain.agent_lines import agent_line, contributor_line, unsaved_reason
from watchdog_app.core.explain.gpu_lines import gpu_details, gpu_lines
from watchdog_app.core.explain.saving import unsaved_sentence
from watchdog_app.core.explain.selection import (
    gpu_numbers,
    listed_resources,
    sort_tasks,
    split_background,
)
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from watchdog_app.core.model.status import (
        Daemon,
        Guard,
        Incident,
        Resource,
        Status,
        Task,
    )

HEADS = (
    "PID",
    "NOTEBOOK/SCRIPT",
    "STATE",
    "RAM",
    "SWAP",
    "DEV",
    "GPU-MEM",
    "CPU%",
    "TREND",
    "ETA",
    "SAVED",
)

_LEFT = ("NOTEBOOK/SCRIPT", "STATE", "DEV", "ETA", "SAVED")
_SHORT_STATES = {"running": "run", "sleeping": "sleep"}

# Layouts from wide to narrow: compact sizes, compact times, columns, minimum width of the name.
_LAYOUTS: tuple[tuple[bool, bool, tuple[str, ...], int], ...] = (
    (False, False, HEADS, 24),
    (True, False, HEADS, 18),
    (True, True, HEADS, 15),
    (True, True, tuple(head for head in HEADS if head != "SWAP"), 12),
    (True, True, ("PID", "NOTEBOOK/SCRIPT", "STATE", "RAM", "ETA", "SAVED"), 8),
)

_BAR_COLUMNS = 12
_LABEL, _BAR, _USED, _TREND = 1, 2, 3, 5  # indices of the cells of a line
_RESOURCES_RIGHT = {3, 4}


def render(
    status: Status,
    now_unix_s: float,
    columns: int | None = None,
    style: Style | None = None,
    *,
    everything: bool = False,
    sort: str = "urgency",
    hints: Sequence[str] = (),
    gpus_only: bool = False,
) -> list[str]:
    """
    Return the lines of `watchdog status`.

    Args:
        status: the status to show.
        now_unix_s: current time, for the age of the reading.
        columns: width of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: also show idle interpreters and resources far from their limits.
        sort: one of `selection.SORTS`.
        hints: paragraph after the task table.
        gpus_only: show the GPUs in detail, and nothing else.
    """
    style = style or Style()
    lines = [*_headline(status, now_unix_s, columns, style), ""]
    if gpus_only:
        lines += gpu_details(status, columns, style)
        return lines + _problem_lines(status, columns, style)
    gpus = gpu_lines(status, status.gpus, columns, style, everything=everything)
    for part in (
        resource_lines(status, columns, style, everything),
        list(chain.from_iterable(gpus)),
        *(
            incident_lines(incident, now_unix_s, columns, style)
            for incident in sorted(status.incidents, key=lambda one: -one.level)
        ),
    ):
        lines += [*part, ""] if part else []
    lines += _task_section(status, now_unix_s, columns, style, everything=everything, sort=sort)
    lines += ["", *hints] if hints else []
    lines += _problem_lines(status, columns, style)
    return lines


def _headline(status: Status, now_unix_s: float, columns: int | None, style: Style) -> list[str]:
    level, summary = status.headline_level(now_unix_s), status.summary(now_unix_s)[1]
    mark = f"{level.mark} " if level.mark else ""
    unsaved = "" if level is Level.UNKNOWN else unsaved_sentence(status.tasks)
    text = f"{level.word}: {plain(summary)}."
    first = wrap(f"{text} {unsaved}." if unsaved else text, columns, first=mark)
    painted = [level.paint(one, style) for one in first]
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
    return painted + [style.paint(one, "dim") for one in wrap(line, columns)]


def incident_lines(
    incident: Incident, now_unix_s: float, columns: int | None, style: Style
) -> list[str]:
    """Describe an open incident: level, reason, contributors and advice."""
    level = incident.level
    calm = incident.is_calm  # the incident closes after some time at this level
    head = "~ CALMER" if calm else f"{level.mark} {level.name}"
    if incident.is_fault:
        head = f"{level.mark or '~'} {level.fault}"
    head += f" {plain(incident.label or incident.resource or '?')}"
    if incident.opened_unix_s is not None:
        head += f", opened {quantities.age(now_unix_s - incident.opened_unix_s)}"
    if calm and incident.peak and not incident.is_fault:
        head += f", reached {plain(incident.peak)}"
    lines = [level.paint(one, style) for one in wrap(head, columns, rest="   ")]
    if incident.reason:
        lines += wrap(plain(incident.reason), columns, first="   ")
    for one in incident.contributors[:3]:
        lines += wrap(contributor_line(incident, one), columns, first="   ", rest="     ")
    for advice in () if calm and not incident.is_fault else incident.advice:
        lines += wrap(plain(advice), columns, first="   > ")
    return lines


def _task_section(
    status: Status,
    now_unix_s: float,
    columns: int | None,
    style: Style,
    *,
    everything: bool,
    sort: str,
) -> list[str]:
    tasks = sort_tasks(status.tasks, sort)
    shown, hidden = (tasks, []) if everything else split_background(tasks)
    lines = []
    if shown:
        # If a GPU does not answer, nothing is known about the processes on it.
        known = all(one.state in (None, "ok", "asleep") for one in status.gpus)
        gpus = known if status.gpus else None
        lines += task_lines(shown, now_unix_s, columns, style, gpus=gpus)
    elif not hidden:
        lines.append("No Python process is running here that you may see; new ones appear here.")
    if hidden:
        together = quantities.format_bytes(sum(one.ram_bytes or 0 for one in hidden))
        them = "it" if len(hidden) == 1 else "them"
        text = f"and {len(hidden)} small idle Python process{'es' if len(hidden) > 1 else ''}, "
        text += f"{together} together; --all shows {them}"
        lines += [style.paint(one, "dim") for one in wrap(text, columns)]
    return lines


def _problem_lines(status: Status, columns: int | None, style: Style) -> list[str]:
    texts = [] if status.daemon is None else _daemon_texts(status.daemon)
    reported = _reported_by_incidents(status)
    for problem in status.problems:
        if problem.source not in reported:
            remedy = f" {plain(problem.remedy)}" if problem.remedy else ""
            texts.append(plain(problem.message or "?") + remedy)
    lines = [
        Level.WARNING.paint(line, style)
        for text in texts
        for line in wrap(text, columns, first="! ")
    ]
    return ["", *lines] if lines else []


def _daemon_texts(daemon: Daemon) -> list[str]:
    """Return what the daemon does not do now: protect, notify, or show what it wanted to."""
    found = []
    if daemon.protection is not None and daemon.protection.on is False:
        until = quantities.moment(daemon.protection.until_unix_s)
        when = f"until {until}" if until else "until you switch it on"
        text = f"Protection is off {when}: nothing is warned of, saved or paused."
        found.append(f"{text} Switch it on: watchdog protect on")
    for snooze in daemon.snoozed:
        if snooze.incident is not None:
            whose = f"of incident {plain(snooze.incident)}"
        else:
            whose = f"about {plain(snooze.name)}" if snooze.name else "of every kind"
        until = quantities.moment(snooze.until_unix_s)
        found.append(f"Notifications {whose} are suppressed until {until}: watchdog snooze --help")
    delivery = daemon.notifications
    if delivery is not None and delivery.undelivered:
        why = f": {plain(delivery.last_failure)}" if delivery.last_failure else "."
        text = f"{counted(delivery.undelivered, 'notification')} could not be shown{why}"
        found.append(f"{text.removesuffix('.')}. What they said: watchdog history")
    return found


def _reported_by_incidents(status: Status) -> set[str]:
    """Return sources of GPU problems that an incident already reports in more detail."""
    subjects = {
        incident.subject
        for incident in status.incidents
        if incident.is_gpu_fault and incident.level >= Level.WARNING
    }
    driver = {"gpu.driver", "gpu.driver.updated"} if "driver" in subjects else set()
    return driver | {
        f"gpu.{quantities.whole(gpu.index)}"
        for gpu in status.gpus
        if gpu.id in subjects and gpu.parent_id is None
    }


def resource_lines(
    status: Status, columns: int | None, style: Style, everything: bool
) -> list[str]:
    """
    Return a line for each resource: label, bar, use, trend, time to exhaustion.

    On a narrow terminal the trend is dropped first, then the bar.

    Args:
        status: the status to show.
        columns: width of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: also show resources that are far from their limits.
    """
    shown, left_out = listed_resources(status, everything)
    if not shown:
        return []
    rows = [_resource_cells(resource, style) for resource in shown]
    table = Table(rows, _RESOURCES_RIGHT, gives_way=_LABEL, gap=2)
    for column, least in ((None, 24), (_TREND, 20), (_BAR, 12), (_USED, 8)):
        if table.fits(columns, least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        table = Table(rows, _RESOURCES_RIGHT, gives_way=_LABEL, gap=1)
    lines = [
        resource.level.paint(line, style)
        for line, resource in zip(table.lines(columns, style.ellipsis), shown, strict=True)
    ]
    if left_out:
        them = "it" if left_out == 1 else "them"
        text = f"and {counted(left_out, 'limit')} far away; --all shows {them}"
        lines.append(style.paint(text, "dim"))
    return lines


def _resource_cells(resource: Resource, style: Style) -> list[str]:
    unit = resource.unit or "bytes"
    slope = quantities.movement(resource.slope_per_s, unit)
    if resource.growth == "unknown":
        slope = quantities.UNKNOWN  # too few samples: different from steady
    filled = resource.ratio
    # of a battery the bar shows the remaining charge
    if unit == "ratio" and resource.used is not None:
        filled = max(0.0, 1.0 - resource.used)
    return [
        resource.level.mark,
        plain(resource.label or resource.kind or "?"),
        style.bar(filled, _BAR_COLUMNS),
        quantities.of_limit(resource.used, resource.limit, unit),
        "" if unit == "ratio" else quantities.ratio(resource.ratio),
        {"0": "steady", quantities.UNKNOWN: ""}.get(slope, slope),
        resource.end(),
    ]


def task_lines(
    tasks: Sequence[Task],
    now_unix_s: float,
    columns: int | None,
    style: Style,
    *,
    gpus: bool | None = None,
) -> list[str]:
    """
    Return heading and rows in at most `columns`, with remarks below each task.

    Args:
        tasks: the tasks, in display order.
        now_unix_s: current time, for ages.
        columns: width of the terminal; None: nothing is shortened.
        style: colours and symbols.
        gpus: True: the processes of all GPUs are known, so a task on no GPU holds no GPU memory.
            None: the machine has no GPU, so the columns on GPUs are left out.
    """
    table = _fit_table(tasks, now_unix_s, columns, gpus)
    head, *rows = table.lines(columns, style.ellipsis)
    lines = [style.paint(head, "bold")]
    for task, row in zip(tasks, rows, strict=True):
        lines.append(task.level.paint(row, style))
        for remark in _task_remarks(task, now_unix_s):
            lines += [style.paint(line, "dim") for line in wrap(remark, columns, first="      ")]
    return lines


def _fit_table(
    tasks: Sequence[Task], now_unix_s: float, columns: int | None, gpus: bool | None
) -> Table:
    """Return the table in the widest layout that fits, else in the narrowest."""
    on_gpus = gpus is not None or any(task.gpu_memory_bytes is not None for task in tasks)
    for compact, short, columns_of_all, least in _LAYOUTS:
        heads = [one for one in columns_of_all if on_gpus or one not in ("DEV", "GPU-MEM")]
        rows = [["", *heads]]
        for task in tasks:
            cells = _task_cells(task, now_unix_s, compact=compact, short=short, gpus=bool(gpus))
            rows.append([task.level.mark, *(cells[head] for head in heads)])
        right = {place for place, head in enumerate(heads, 1) if head not in _LEFT}
        name = 1 + heads.index("NOTEBOOK/SCRIPT")  # the mark is in front
        table = Table(rows, right, gives_way=name, gap=1 if compact else 2)
        if table.fits(columns, least):
            break
    return table


def _task_cells(
    task: Task, now_unix_s: float, *, compact: bool, short: bool, gpus: bool
) -> dict[str, str]:
    nothing = quantities.NONE if gpus and not task.gpus else quantities.UNKNOWN
    held, saved = task.gpu_memory_bytes, saved_text(task, now_unix_s)
    return {
        "PID": quantities.whole(task.pid),
        "NOTEBOOK/SCRIPT": plain(task.name or "?"),
        "STATE": _format_state(task, compact=compact),
        "RAM": quantities.format_bytes(task.ram_bytes, compact=compact),
        "SWAP": quantities.format_bytes(task.swap_bytes, compact=compact),
        "DEV": gpu_numbers(task) or nothing,
        "GPU-MEM": nothing if held is None else quantities.format_bytes(held, compact=compact),
        "CPU%": quantities.whole(task.cpu_percent),
        "TREND": quantities.format_rate(task.slope_bytes_per_s, compact=compact),
        "ETA": quantities.eta(task.eta_s, task.eta_low_s, task.eta_high_s, compact=short),
        "SAVED": saved.removesuffix(" ago") if compact else saved,
    }


def saved_text(task: Task, now_unix_s: float) -> str:
    """
    Return when a training was saved: `12 s ago`, `not yet`, `cannot`; empty: it does not train.

    Args:
        task: a task of the status.
        now_unix_s: current time.
    """
    if task.can_save is False:
        return "cannot"
    rescue = task.agent.rescue if task.agent is not None else None
    if rescue is None or rescue.saved_unix_s is None:
        return "not yet" if task.can_save else ""
    age_s = now_unix_s - rescue.saved_unix_s
    if age_s < 59.5:
        return quantities.age(age_s)
    return f"{quantities.format_rough_duration(age_s)} ago"


def _format_state(task: Task, *, compact: bool) -> str:
    state = plain(task.state or quantities.UNKNOWN)
    if task.agent is not None and task.agent.saving and state != "paused":
        return "saving"
    return _SHORT_STATES.get(state, state) if compact else state


def _task_remarks(task: Task, now_unix_s: float) -> list[str]:
    remarks = []
    if task.paused_by_watchdog:
        command = ACTIONS["resume"].command_for(quantities.whole(task.pid))
        remarks.append(f"paused by watchdog; resume it: {command}")
    if task.guard is not None:
        remarks += guard_remarks(task.guard)
    if task.past_verdict not in (None, "silent"):
        remarks.append(plain(task.past or ""))
    if task.agent is not None:
        remarks.append(agent_line(task.agent, now_unix_s))
        lost = "; ".join(map(plain, task.agent.not_restored))
        if lost and not unsaved_reason(task.agent):
            remarks.append(f"a resume will not bring back: {lost}")
        if task.agent.outdated:
            remarks.append("its agent is outdated: restart its kernel to save it")
    elif task.level >= Level.WARNING:
        remarks.append("no agent: watchdog can pause this task, but cannot save its work")
    return remarks


def guard_remarks(guard: Guard) -> list[str]:
    """
    Describe a guard: `guard 3.1 GiB of 12.0 GiB, reserve 512 MiB`; if stopped, how to resume it.
    """
    pid = quantities.whole(guard.pid)
    known = guard.limit_bytes or guard.used_bytes
    more = limit_above(guard.limit_bytes or 0, guard.used_bytes or 0) if known else "SIZE"
    level = quantities.guard_level(guard, automatic=guard.automatic_limit)
    remarks = [f"guard {level}, {plain(guard.kind or '')}".rstrip(", ")]
    if guard.stopped:
        remarks.append(
            f"stopped at its limit; resume it: watchdog limit {pid} {more}; "
            f"end it with: {ACTIONS['end'].command_for(pid)}"
        )
    elif guard.state == "refusing":
        remarks.append(f"further memory is refused; more with: watchdog limit {pid} {more}")
    elif guard.state not in (None, "running"):
        remarks.append(f"at its limit: {plain(guard.state)}")
    return remarks
