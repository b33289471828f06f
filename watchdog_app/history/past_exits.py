"""
Finds deaths in the journal and describes them: the last one, or that of a given task.

Needs only a journal: the daemon's journal thread calls it, and clients if no daemon runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.explain import exits, phrases
from watchdog_app.core.explain.exits import describe_death
from watchdog_app.core.model.exits import cause_spec
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.status import Incident
from watchdog_app.core.model.tasks import match_rank
from watchdog_app.history.journal import Journal

_CLOCKS_S = 2.0  # tolerance between the kernel's clock (process start) and ours (time of death)
LATELY_S = 12 * 3600.0
MINUTES = 10.0
_MOST_ENTRIES = 1000
_MOST_POINTS = 10_000
# A constant series has a point at this distance: the first sample after five minutes.
_STILL_S = 310.0
_GROUPS = ("cgroup", "guard")  # kinds of resources that are limits of memory groups
_MARKS = {"checkpoint": "saved", "pause": "paused", "resume": "resumed"}  # by kind of decision

Entry = dict[str, Any]


def last_death(
    journal: Journal, now_unix_s: float, within_s: float | None = LATELY_S
) -> Entry | None:
    """
    The newest death. A plain end counts only if no user requested it.

    Args:
        journal: only read.
        now_unix_s: the current time.
        within_s: maximum age; None: any age.
    """
    since = None if within_s is None else now_unix_s - within_s
    return next(filter(_is_failure, _exits(journal, since_unix_s=since)), None)


def _exits(journal: Journal, limit: int = _MOST_ENTRIES, **wanted: Any) -> list[Entry]:
    """Exits, newest first, those that are not notable included; see `Journal.history`."""
    return journal.history(kinds=("exit",), all_exits=True, limit=limit, **wanted)


def find_death(journal: Journal, wanted: str) -> Entry | None:
    """
    The newest end of a task; None: the journal has none.

    Args:
        wanted: pid, notebook, script, path, kernel id or its beginning, or an incident.
    """
    wanted = wanted.strip()
    if not wanted:
        return None
    entries = _exits(journal)
    ranked = [(found, each) for each in entries if (found := _match_rank(wanted, each)) is not None]
    if ranked:
        return min(ranked, key=lambda each: each[0])[1]
    # Older than the newest thousand: search for a part of the name or path.
    older = _exits(journal, limit=1, task=wanted)
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
    The fields `death`, `death_text` and `plot` of an answer about a death.

    Args:
        minutes: time before the end that the plot shows.
        successor: the task that replaced the ended one: "pid" and "name".
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
    )
    return {"death": entry, "death_text": text, "plot": _plot(journal, entry, begin, around)}


def previous_death(
    journal: Journal, task: Task, now_unix_s: float, wanted_pid: int | None
) -> Entry | None:
    """
    A recent death that a question about a running task may mean; None: there was none.

    For a kernel: the earlier process of the same kernel id. For others: the last run of the script,
    or a worker.

    Args:
        journal: only read.
        task: the running task.
        now_unix_s: the current time.
        wanted_pid: the pid in the question: of the task, or of a worker that ended. With a pid, no
            earlier run of the script is meant.
    """
    info, pid = task.info, task.key.pid
    path = info.notebook or info.script
    for each in _exits(journal, since_unix_s=now_unix_s - LATELY_S):
        died = each.get("pid")
        if died == pid:
            matches = each.get("worker") is not None
        elif info.kernel_id:
            matches = each.get("kernel_id") == info.kernel_id
        elif wanted_pid is not None:
            matches = died == wanted_pid
        else:
            matches = each.get("name") == task.name and each.get("path") == path
        if matches:
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
    One death as in `describe_entry`; None: the journal has none.

    Args:
        journal: only read.
        wanted: as in `find_death`; None: the last death.
        minutes: time before the end that the plot shows.
        now_unix_s: the current time.
        within_s: maximum age of the last death; None: any age.
        task: the running task that matches `wanted`.
        tasks: the running tasks, one of which may have replaced the ended one.
    """
    if task is not None:
        entry = _end_of_task(journal, task)
        if entry is not None:  # it ended after the last sample
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
    """The end of a task that was alive at the last sample; None: it has not ended."""
    for each in _exits(journal, limit=20, task=str(task.key.pid)):
        key = (each.get("pid"), each.get("start_time"), each.get("worker"))
        if key == (task.key.pid, task.key.start_time, None):
            return each
    return None


def _successor(entry: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any] | None:
    """The task that replaced an ended one: a restarted kernel or a new run of the script."""
    kernel_id, path = entry.get("kernel_id"), entry.get("path")
    for task in tasks:
        info = task.info
        if entry.get("worker") is not None or (
            task.key.pid == entry.get("pid") and task.key.start_time == entry.get("start_time")
        ):
            continue
        same = info.kernel_id == kernel_id if kernel_id else (info.notebook or info.script) == path
        # A task that ran at the same time as the ended one did not replace it.
        began_s = None if kernel_id else info.started_unix_s
        beside = began_s is not None and began_s < entry["unix_s"] - _CLOCKS_S
        if same and (kernel_id or path) and not beside:
            return {"pid": task.key.pid, "name": task.name}
    return None


def _is_failure(entry: Mapping[str, Any]) -> bool:
    if entry["notable"]:
        return True
    # The user knows of an end by a plain kill, a closed terminal or Ctrl-C.
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
    """The first end of a contributor of an incident, after the incident opened."""
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
    """The decisions and outcomes for this task within the time of the plot."""
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


def _advice(journal: Journal, entry: Entry, at_unix_s: float) -> list[str]:
    """The advice of the last incident if the task died in it; else the advice for its cause."""
    general = list(exits.advice_after_exit(entry))
    spec = cause_spec(entry.get("cause"))
    if not (spec.out_of_memory or spec.of_group or general):
        return list(exits.growth_lines(entry))
    general = [*exits.growth_lines(entry), *general]
    for each in journal.history(
        since_unix_s=at_unix_s - 3600, until_unix_s=at_unix_s + 60, kinds=("incident",), limit=100
    ):
        if any(one.pid == entry.get("pid") for one in Incident.read(each).contributors):
            # Growth is known best at the end; the incident was written at its last change of stage.
            found = [*exits.growth_lines(entry), *(str(line) for line in each.get("advice") or [])]
            lasting = [line for line in found if not line.startswith(phrases.WHILE_IT_RUNS)]
            # After a predicted exhaustion, advice about the single step that failed does not apply.
            return list(dict.fromkeys(lasting or general))
    return general


def _plot(
    journal: Journal, entry: Entry, begin: float, around: Sequence[Entry]
) -> dict[str, Any] | None:
    """The memory of the last minutes, and the resource that was nearest to its limit."""
    end = float(entry["unix_s"])
    tail = f":{entry.get('pid')}:{entry.get('start_time')}"
    found = journal.series(str(entry.get("pid")), begin - _STILL_S, end + 1, _MOST_POINTS)
    own = next((s for s in found if s["kind"] == "task" and s["ident"].endswith(tail)), None)
    if own is None:
        return None
    resource = _plot_resource(entry, found, begin, end)
    points = _clip_points(own["points"], begin)
    rss = entry.get("rss_bytes")
    if points and (points[-1][0] or 0.0) < end:
        points.append([end, rss if isinstance(rss, int | float) else points[-1][1], None])
    marks = [mark for each in reversed(around) if (mark := plot_mark(each)) is not None]
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
    """The resource whose limit ended the task if known; else the one nearest to its limit."""
    # Ignore samples after the end: without the task, a group may be empty.
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
        group = entry.get("group")  # the group ended before its first sample
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
        points.append([end, limit, limit])  # the limit was reached: that ended the task
    return {"kind": nearest["kind"], "label": nearest["name"], "limit": limit, "points": points}


def plot_mark(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """A decision or outcome as a mark of a plot, with its forecast; None: it is none."""
    kind, word = str(entry.get("decision_kind")), None
    forecast: dict[str, Any] = {}
    if entry["kind"] == "outcome":
        word = _MARKS.get(kind) if entry.get("status") == "done" else None
    elif kind == "notify":
        evidence = entry.get("evidence")
        if isinstance(evidence, Mapping) and evidence.get("topic") == "warning":
            word = "warned"
            forecast = {key: evidence.get(key) for key in ("used", "eta_s", "low_s", "high_s")}
    return None if word is None else {"unix_s": entry["unix_s"], "kind": word, **forecast}


def _clip_points(
    points: Sequence[Sequence[float | None]], begin: float
) -> list[list[float | None]]:
    """Points from `begin` as [unix_s, used, limit]; the last one before moves to `begin`."""
    before = [point for point in points if (point[0] or 0) < begin]
    inside = [list(point[:3]) for point in points if (point[0] or 0) >= begin]
    if before and (not inside or (inside[0][0] or 0) > begin):
        inside.insert(0, [begin, *before[-1][1:3]])
    return inside


def _final_ratio(series: Mapping[str, Any]) -> float:
    """Used share of the limit at the end; 0 if unknown."""
    last_point = series["points"][-1]
    used, limit = last_point[1], last_point[2]
    return 0.0 if not used or not limit else float(used / limit)
