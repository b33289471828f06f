"""
Guards that are over: what became of the programs in them, for whoever asks later.

A supervisor writes down the last state of its guard as it goes; no daemon is needed for that.

    STATE/guards/PID.START.json      as `record` has it, with the time of the end
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from watchdog_app.base import durable, paths
from watchdog_app.guard import cgroup, record
from watchdog_app.guard.record import GuardRecord

_MOST = 50


def folder() -> str:
    """Where they are."""
    return os.path.join(os.path.abspath(paths.state_dir()), "guards")


def keep(guard: GuardRecord) -> None:
    """Write down how a guard stood at its end. Never raises."""
    with suppress(OSError):
        for each in (os.path.dirname(folder()), folder()):
            durable.make_folders(each, 0o700)
        if paths.foreign(os.lstat(folder())) or os.path.islink(folder()):
            return
        data = {name: getattr(guard, name) for name in GuardRecord.__annotations__}
        text = json.dumps({**data, "ended_unix_s": time.time()})
        path = os.path.join(folder(), f"{guard.pid}.{guard.start_time}.json")
        durable.write_whole(path, text.encode("utf-8"), 0o600)
        found = sorted(
            (os.path.join(folder(), name) for name in os.listdir(folder())), key=os.path.getmtime
        )
        for old in found[:-_MOST]:
            os.unlink(old)


def every() -> list[GuardRecord]:
    """Those that are over, the newest first."""
    try:
        names = [name for name in os.listdir(folder()) if name.endswith(".json")]
    except OSError:
        return []
    found = [record.read_file(os.path.join(folder(), name)) for name in names[: 4 * _MOST]]
    known = [each for each in found if each is not None and each.ended_unix_s is not None]
    return sorted(known, key=lambda guard: -(guard.ended_unix_s or 0.0))


def of(pid: int, start_time: int, group: str | None = None) -> GuardRecord | None:
    """
    The guard that a process was in which has just ended, over or not; None: none is known.

    Args:
        pid, start_time: of the process.
        group: folder of its memory group, which names the guard for what was started in one later.
    """
    name = f"{pid}.{start_time}"
    base = os.path.basename((group or "").rstrip("/")).removesuffix(".scope")
    if base.startswith(cgroup.PREFIX):
        name = base.removeprefix(cgroup.PREFIX).replace("-", ".", 1)
    found = record.read(os.path.join(record.root(), name))
    return found or record.read_file(os.path.join(folder(), f"{name}.json"))
