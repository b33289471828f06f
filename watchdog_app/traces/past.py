"""Series of the journal as traces: from the daemon, or from what the last one left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchdog_app.base.errors import DaemonNotRunning
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.traces.trace import Sample, Trace

_MOST_ENTRIES = 1000


def traces_of(wanted: Mapping[str, Any], limit: float | None = None) -> list[Trace]:
    """
    The resources that could hit a task, as they went.

    Args:
        wanted: parameters of the protocol's `series`.
        limit: the task's own memory is played against this instead.

    Raises:
        DaemonNotRunning: no daemon, and no journal either.
    """
    found = _ask("series", "series", wanted)
    own: Mapping[str, Any] = next((one for one in found if one["kind"] == "task"), {})
    if limit is not None:
        return [t for one in found if one["kind"] == "task" if (t := _trace(one, limit, own))]
    return [t for one in found if one["kind"] != "task" if (t := _trace(one, None, own))]


def had_agent(task: str) -> bool:
    """
    Whether an agent of the task was ever asked for a checkpoint, or saved one, as the journal says.

    Raises:
        DaemonNotRunning: no daemon, and no journal either.
    """
    wanted = {"task": task, "limit": _MOST_ENTRIES, "kinds": ["decision", "outcome", "death"]}
    return any(
        entry.get("decision_kind") == "checkpoint" or entry.get("rescue") is not None
        for entry in _ask("history", "entries", wanted)
    )


def _ask(method: str, key: str, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the daemon; without one, of the journal it left."""
    from watchdog_app.protocol.client import Client

    try:
        with Client.connect() as daemon:
            return daemon.call(method, **wanted).get(key) or []
    except DaemonNotRunning:
        from watchdog_app.daemon import offline

        left = (offline.series if method == "series" else offline.history)(**wanted)
        if left is None:
            raise
        return left


def _trace(series: Mapping[str, Any], limit: float | None, own: Mapping[str, Any]) -> Trace | None:
    samples: list[Sample] = []
    begin: float | None = None
    for unix_s, used, top, _swap in series["points"]:
        bound = top if limit is None else limit
        if used is None or bound is None:
            continue
        begin = unix_s if begin is None else begin
        if not samples or unix_s - begin > samples[-1][0]:
            samples.append((unix_s - begin, used, bound))
    if not samples:
        return None
    try:
        kind = ResourceKind(series["kind"])
    except ValueError:
        kind = ResourceKind.CGROUP
    return Trace(
        series["name"] or series["kind"],
        samples,
        unit=series["unit"] or "bytes",
        kind=kind,
        start_unix_s=begin,
        task=own.get("name"),
        task_path=own.get("path"),
    )
