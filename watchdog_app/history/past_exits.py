"""
Deaths looked up in the journal and described: the last one, or the one that is meant.

Works on a journal alone: in the daemon's thread, and where no daemon runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.base.text.quantities import number_or_none, parse_pid
from watchdog_app.core.explain import exits, phrases
from watchdog_app.core.explain.exits import describe_death
from watchdog_app.core.model.agent import RescueRecord
from watchdog_app.core.model.exits import cause_spec
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.status import Incident
from watchdog_app.core.model.tasks import match_rank
from watchdog_app.history.journal import Journal

_CLOCKS_S = 2.0  # between the start of a process by the kernel's clock and a death by ours
LATELY_S = 12 * 3600.0
MINUTES = 10.0
_MOST_ENTRIES = 1000
_MOST_POINTS = 10_000
# A series that stands still is kept at this distance: the first look after five minutes.
_STILL_S = 310.0
_GROUPS = ("cgroup", "guard")  # kinds of resources: limits of memory groups
_KINDS = ("death", "end")
_MARKS = {"checkpoint": "saved", "pause": "paused", "resume": "resumed"}  # by decision

Entry = dict[str, Any]


def last_death(
    journal: Journal, now_unix_s: float, within_s: float | None = LATELY_S
) -> Entry | None:
    """
    The newest death; of plain ends only those that nobody wanted.

    Args:
        journal: is read alone.
        now_unix_s: seconds of the epoch.
        within_s: how old it may be; None: any age.
    """
    since = None if within_s is None else now_unix_s - within_s
    entries = journal.history(since_unix_s=since, kinds=_KINDS, limit=_MOST_ENTRIES)
    return next((each for each in entries if _is_failure(each)), None)


def find_death(journal: Journal, wanted: str) -> Entry | None:
    """
    The newest end of what is meant; None: the journal knows none.

    Args:
        wanted: pid, notebook, script, path, kernel id or its beginning, or an incident.
    """
    wanted = wanted.strip()
    if not wanted:
        return None
    entries = journal.history(kinds=_KINDS, limit=_MOST_ENTRIES)
    ranked = [(found, each) for each in entries if (found := _match_rank(wanted, each)) is not None]
    if ranked:
        return min(ranked, key=lambda each: each[0])[1]
    # Older than the newest thousand: the journal looks for a part of its name or path.
    older = journal.history(task=wanted, kinds=_KINDS, limit=1)
    return older[0] if older else _death_of_incident(journal, entries, wanted)


def describe_entry(
    journal: Journal,
    entry: Entry,
    *,
    minutes: float = MINUTES,
    now_unix_s: float,
    successor: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    The parts of an answer that concern a death: `death`, `death_text` and `plot`.

    Args:
        minutes: before the end, that the plot shows.
        successor: what runs in its place: "pid" and "name".
    """
    at_unix_s = float(entry["unix_s"])
    begin = at_unix_s - minutes * 60
    around = _decisions_between(journal, entry, begin, at_unix_s)
    clock = time.localtime(at_unix_s)
    today = clock[:3] == time.localtime(now_unix_s)[:3]
    at = time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", clock)
    text = describe_death(
        entry,
        at=at,
        now_unix_s=now_unix_s,
        advice=_advice(journal, entry, at_unix_s),
        successor=successor,
        earlier=_earlier_save(journal, entry),
    )
    return {"death": entry, "death_text": text, "plot": _plot(journal, entry, begin, around)}


def previous_death(
    journal: Journal, task: Task, now_unix_s: float, wanted_pid: int | None
) -> Entry | None:
    """
    The death, lately, that who asks for a living task may mean; None: there was none.

    Of a kernel that of the same id before; of others the last one of that script, or of a worker.

    Args:
        journal: is read alone.
        task: that lives.
        now_unix_s: seconds of the epoch.
        wanted_pid: by which it was asked for: its own, or one that its workers had; no earlier run
            of the script is meant then.
    """
    info, pid = task.info, task.key.pid
    path = info.notebook or info.script
    for each in journal.history(
        since_unix_s=now_unix_s - LATELY_S, kinds=_KINDS, limit=_MOST_ENTRIES
    ):
        died = each.get("pid")
        if died == pid:
            meant = each.get("worker") is not None
        elif info.kernel_id:
            meant = each.get("kernel_id") == info.kernel_id
        elif wanted_pid is not None:
            meant = died == wanted_pid
        else:
            meant = each.get("name") == task.name and each.get("path") == path
        if meant:
            return each if _is_failure(each) else None
    return None


def explain_death(
    journal: Journal,
    wanted: str | None,
    minutes: float,
    now_unix_s: float,
    *,
    within_s: float | None = None,
    task: Task | None = None,
    tasks: Sequence[Task] = (),
) -> dict[str, Any] | None:
    """
    What the journal says of one death, as `describe_entry`; None: it knows of none.

    Args:
        journal: is read alone.
        wanted: as `find_death` takes it; None: the last death.
        minutes: before the end, that the plot shows.
        now_unix_s: now.
        within_s: how old the last death may be; None: any age.
        task: that answers to `wanted` and lives.
        tasks: those that live: one of them may have taken the place of the dead.
    """
    if task is not None:
        entry = _end_of_task(journal, task)
        if entry is not None:  # since the last look
            found = describe_entry(journal, entry, minutes=minutes, now_unix_s=now_unix_s)
            return {"text": found["death_text"], "incidents": [], **found}
        wanted_pid = None if wanted is None else parse_pid(wanted)
        entry = previous_death(journal, task, now_unix_s, wanted_pid)
    else:
        entry = (
            last_death(journal, now_unix_s, within_s)
            if wanted is None
            else find_death(journal, wanted)
        )
    if entry is None:
        return None
    after = _successor(entry, tasks)
    return describe_entry(journal, entry, minutes=minutes, now_unix_s=now_unix_s, successor=after)


def _end_of_task(journal: Journal, task: Task) -> Entry | None:
    """The end of a task that a look shows alive; None: it has not ended."""
    for each in journal.history(task=str(task.key.pid), kinds=_KINDS, limit=20):
        who = (each.get("pid"), each.get("start_time"), each.get("worker"))
        if who == (task.key.pid, task.key.start_time, None):
            return each
    return None


def _successor(entry: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any] | None:
    """The task that runs in the place of one that has ended: a restarted kernel, a script anew."""
    kernel_id, path = entry.get("kernel_id"), entry.get("path")
    for task in tasks:
        info = task.info
        if entry.get("worker") is not None or (
            task.key.pid == entry.get("pid") and task.key.start_time == entry.get("start_time")
        ):
            continue
        same = info.kernel_id == kernel_id if kernel_id else (info.notebook or info.script) == path
        # One of two that ran side by side takes nobody's place.
        began_s = None if kernel_id else info.started_unix_s
        beside = began_s is not None and began_s < entry["unix_s"] - _CLOCKS_S
        if same and (kernel_id or path) and not beside:
            return {"pid": task.key.pid, "name": task.name}
    return None


def _is_failure(entry: Mapping[str, Any]) -> bool:
    if entry["kind"] == "death":
        return True
    # Asked to end by a plain kill, a closed terminal, Ctrl-C: its user knows.
    text = str(entry.get("reason"))
    asked = any(name in text for name in ("SIGTERM", "SIGINT", "SIGHUP"))
    return not cause_spec(entry.get("cause")).by_itself and not asked


def _match_rank(wanted: str, entry: Entry) -> int | None:
    name, cwd = str(entry.get("name") or ""), str(entry.get("cwd") or "")
    found = (entry.get("path"), entry.get("worker_path"), os.path.join(cwd, name))
    paths = [str(path) for path in found if path]
    pids = [pid for pid in (entry.get("pid"), entry.get("worker")) if pid is not None]
    return match_rank(wanted, pids, name, paths, entry.get("kernel_id"))


def _death_of_incident(journal: Journal, entries: Sequence[Entry], wanted: str) -> Entry | None:
    """The first end of one of those that an incident blamed, after it had opened."""
    for each in journal.history(kinds=("incident",), limit=_MOST_ENTRIES):
        if each.get("id") != wanted:
            continue
        pids = {one.pid for one in Incident.read(each).contributors}
        opened = float(each.get("opened_unix_s") or 0.0)
        after = [e for e in entries if e.get("pid") in pids and e["unix_s"] >= opened]
        bad = [each for each in after if _is_failure(each)]
        newest_first = bad or after
        return newest_first[-1] if newest_first else None
    return None


def _decisions_between(journal: Journal, entry: Entry, begin: float, end: float) -> list[Entry]:
    """What was decided and came of it for this task, in the time of the plot."""
    return [
        each
        for each in journal.history(
            since_unix_s=begin,
            until_unix_s=end + 1,
            task=str(entry.get("pid")),
            kinds=("decision", "outcome"),
            limit=_MOST_ENTRIES,
        )
        if each.get("pid") == entry.get("pid")
    ]


def _earlier_save(journal: Journal, entry: Entry) -> RescueRecord | None:
    """The last save in this process, of a training whose agent was gone at the end."""
    outcomes = journal.history(
        since_unix_s=number_or_none(entry.get("started_unix_s")),
        until_unix_s=entry["unix_s"],
        task=str(entry.get("pid")),
        kinds=("outcome",),
        limit=_MOST_ENTRIES,
    )
    for each in outcomes:
        saved = each.get("evidence")
        if _plot_mark(each) == {"unix_s": each["unix_s"], "kind": "saved"} and isinstance(
            saved, dict
        ):
            path, step = saved.get("path"), saved.get("step")
            if isinstance(path, str) and isinstance(step, int):
                return RescueRecord(path, step, 0, 0.0, each["unix_s"])
    return None


def _advice(journal: Journal, entry: Entry, at_unix_s: float) -> list[str]:
    """What was advised in the last danger that it was in, if it died in it; else by its cause."""
    general = list(exits.advice_after_exit(entry))
    spec = cause_spec(entry.get("cause"))
    if not (spec.out_of_memory or spec.of_group or general):
        return list(exits.growth_lines(entry))
    general = [*exits.growth_lines(entry), *general]
    for each in journal.history(
        since_unix_s=at_unix_s - 3600, until_unix_s=at_unix_s + 60, kinds=("incident",), limit=100
    ):
        if any(one.pid == entry.get("pid") for one in Incident.read(each).contributors):
            # What grew is known best at the end: an incident is written down as it changes stage.
            found = [*exits.growth_lines(entry), *(str(line) for line in each.get("advice") or [])]
            lasting = [line for line in found if not line.startswith(phrases.WHILE_IT_RUNS)]
            # What was seen coming is no matter of the single step that failed.
            return list(dict.fromkeys(lasting or general))
    return general


def _plot(
    journal: Journal, entry: Entry, begin: float, around: Sequence[Entry]
) -> dict[str, Any] | None:
    """The last minutes of its memory and of the resource that it was nearest to."""
    end = float(entry["unix_s"])
    tail = f":{entry.get('pid')}:{entry.get('start_time')}"
    found = journal.series(str(entry.get("pid")), begin - _STILL_S, end + 1, _MOST_POINTS)
    own = next((s for s in found if s["kind"] == "task" and s["ident"].endswith(tail)), None)
    if own is None:
        return None
    # By its ident: the pid may have been another's before, and a part of another's name.
    found = journal.series(own["ident"], begin - _STILL_S, end + 1, _MOST_POINTS)
    resource = _plot_resource(entry, found, begin, end)
    points = _clip_points(own["points"], begin)
    rss = entry.get("rss_bytes")
    if points and (points[-1][0] or 0.0) < end:
        points.append([end, rss if isinstance(rss, int | float) else points[-1][1], None])
    marks = [mark for each in reversed(around) if (mark := _plot_mark(each)) is not None]
    rescue = entry.get("rescue")
    saved = rescue.get("saved_unix_s") if isinstance(rescue, Mapping) else None
    if isinstance(saved, int | float) and saved >= begin and not any(
        each["kind"] == "saved" and abs(each["unix_s"] - saved) < 2 for each in marks
    ):  # fmt: skip
        marks.append({"unix_s": saved, "kind": "saved"})
    marks.append({"unix_s": end, "kind": "death"})
    return {
        "begin_unix_s": begin,
        "end_unix_s": end,
        "name": own["name"],
        "points": points,
        "resource": resource,
        "marks": marks,
    }


def _plot_resource(
    entry: Mapping[str, Any], series: Sequence[Mapping[str, Any]], begin: float, end: float
) -> dict[str, Any] | None:
    """The one that it died at, where that is known; else the one that it was nearest to."""
    # What was seen after the end is of a world without it: a group is empty then.
    known = [
        {**s, "points": points}
        for s in series
        if s["kind"] != "task"
        and s["unit"] == "bytes"
        and (points := [point for point in s["points"] if (point[0] or 0.0) <= end])
    ]
    spec = cause_spec(entry.get("cause"))
    grouped = spec.of_group
    nearest = max(
        (s for s in known if _final_ratio(s)),
        key=lambda s: (
            spec.of_card == s["kind"].startswith("gpu"),
            grouped and s["kind"] in _GROUPS,
            _final_ratio(s),
        ),
        default=None,
    )  # fmt: skip
    if grouped and (nearest is None or nearest["kind"] not in _GROUPS):
        group = entry.get("group")  # it was too quick to be looked at
        if not isinstance(group, Mapping):
            return None
        limit = group.get("limit_bytes")
        return {"kind": "cgroup", "label": group.get("label"), "limit": limit,
                "points": [[end, limit, limit]]}  # fmt: skip
    if nearest is None:
        return None
    points = _clip_points(nearest["points"], begin)
    limit = nearest["points"][-1][2]
    if grouped and points and (points[-1][0] or 0.0) < end:
        points.append([end, limit, limit])  # it was met: that is what ended it
    return {"kind": nearest["kind"], "label": nearest["name"], "limit": limit, "points": points}


def _plot_mark(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    kind, word = str(entry.get("decision_kind")), None
    if entry["kind"] == "outcome":
        word = _MARKS.get(kind) if entry.get("status") == "done" else None
    elif kind == "notify":
        evidence = entry.get("evidence")
        warned = isinstance(evidence, Mapping) and evidence.get("topic") == "warning"
        word = "warned" if warned else None
    return None if word is None else {"unix_s": entry["unix_s"], "kind": word}


def _clip_points(
    points: Sequence[Sequence[float | None]], begin: float
) -> list[list[float | None]]:
    """Points from `begin` on as [unix_s, used, limit]; the one before it stands at the edge."""
    before = [point for point in points if (point[0] or 0) < begin]
    inside = [list(point[:3]) for point in points if (point[0] or 0) >= begin]
    if before and (not inside or (inside[0][0] or 0) > begin):
        inside.insert(0, [begin, *before[-1][1:3]])
    return inside


def _final_ratio(series: Mapping[str, Any]) -> float:
    """How full it was in the end; 0 where that is not known."""
    last_point = series["points"][-1]
    used, limit = last_point[1], last_point[2]
    return 0.0 if not used or not limit else float(used / limit)
