"""Status objects as a daemon sends them, and hostile ones that no daemon should send."""

from __future__ import annotations

from typing import Any

from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.resource import SPECS, ResourceKind
from watchdog_app.core.model.status import (
    Agent,
    Daemon,
    Delivery,
    Incident,
    Rescue,
    Resource,
    Status,
    Task,
)
from watchdog_app.daemon.status import AssessedSample, raise_levels
from watchdog_app.daemon.status import status as build_status

GIB = 1024**3
MIB = 1024**2
NOW_UNIX_S = 1_795_244_400.0

HOSTILE_NAMES = (
    "\x1b[2J\x1b[31mgone.ipynb",
    "two\nlines.py",
    "bell\x07\x08\x08.py",
    "right\u202eto\u202cleft.ipynb",
    "-rf",
    "caf\udce9.py",  # a file name that is not UTF-8
    "\x9b31mC1.py",
    "\u2028line separator",
    "",
)


def status_of_sample(*sample: Any) -> Status:
    """The status that a daemon makes of the arguments of `AssessedSample`."""
    known = AssessedSample(*sample)
    return build_status(
        known, daemon=Daemon(), host_name="host", paused=(), faults=(), now_unix_s=0.0
    )


def level_of(item: dict[str, Any]) -> str:
    """The level of the item's stage."""
    return Level.from_stage(item.get("stage")).name.lower()


def process(pid: int, name: str, ram_bytes: int | None, **more: Any) -> dict[str, Any]:
    """One task; by default a quiet notebook."""
    return {
        **Task().to_json(),
        "pid": pid,
        "start_time": pid * 100,
        "name": name,
        "kind": "notebook",
        "notebook": f"/home/ada/{name}",
        "user": "ada",
        "state": "sleeping",
        "children": 0,
        "started_unix_s": NOW_UNIX_S - 3600,
        "ram_bytes": ram_bytes,
        "swap_bytes": 0,
        "cpu_percent": 0.0,
        "slope_bytes_per_s": 0.0,
        "stage": "ok",
        "level": level_of(more),
        **more,
    }


def agent(**more: Any) -> dict[str, Any]:
    """The agent of a Keras training that has saved."""
    return {
        **Agent().to_json(),
        "framework": "keras",
        "directory": "/home/ada/rescues",
        "training": True,
        "step": 1210,
        "epoch": 3,
        "batch": 10,
        "loss": 0.3125,
        "step_s": 0.05,
        "save_s": 0.8,
        "state_bytes": 500 * MIB,
        "rescue": {
            **Rescue().to_json(),
            "path": "/home/ada/rescues/step-1200",
            "step": 1200,
            "bytes": 500 * MIB,
            "seconds": 0.8,
            "saved_unix_s": NOW_UNIX_S - 12,
        },
        **more,
    }


def display_of(kind: str, more: dict[str, Any]) -> dict[str, Any]:
    """The display fields that the daemon takes from the table of resources."""
    if kind not in list(ResourceKind):  # a kind of a later version
        return {"display": "half_full", "on_icon": False, "exhausted": "full"}
    spec = SPECS[ResourceKind(kind)]
    return {"display": spec.display, "on_icon": spec.on_icon, "exhausted": spec.exhausted}


def ceiling(kind: str, label: str, used: float, limit: float, **more: Any) -> dict[str, Any]:
    """One resource whose usage is constant."""
    return {
        **Resource().to_json(),
        "kind": kind,
        "label": label,
        "used": used,
        "limit": limit,
        "unit": "bytes",
        "ratio": used / limit,
        "fatal": True,
        **display_of(kind, more),
        "stage": "ok",
        "regime": "flat",
        "slope_per_s": 0.0,
        "reason": "steady",
        "level": level_of(more),
        **more,
    }


def status(**more: Any) -> dict[str, Any]:
    """A workstation at rest with one notebook."""
    found: dict[str, Any] = {
        **Status().to_json(),
        "schema_version": 2,
        "time_unix_s": NOW_UNIX_S - 0.4,
        "headline": "nothing is about to run out",
        "host": {
            "name": "lab7",
            "memory_total_bytes": 16 * GIB,
            "memory_available_bytes": 10 * GIB,
            "swap_total_bytes": 2 * GIB,
            "swap_free_bytes": 2 * GIB,
            "swap_in_bytes_per_s": 0.0,
            "swap_out_bytes_per_s": 0.0,
            "shm_used_bytes": 0,
            "shm_limit_bytes": 8 * GIB,
            "pressure_some_avg10_percent": 0.0,
            "pressure_full_avg10_percent": 0.0,
        },
        "daemon": {
            **Daemon().to_json(),
            "pid": 900,
            "version": "0.1.0",
            "uptime_s": 7500.0,
            "interval_s": 1.0,
            "rss_bytes": 21 * MIB,
            "cpu_percent": 0.2,
            "samples": 7500,
            "missed_samples": 0,
            "max_lag_s": 0.0,
            "locked_memory": False,
            "notifications": {
                **Delivery().to_json(),
                "shown": 0,
                "undelivered": 0,
                "tray_connected": False,
            },
        },
        "resources": [ceiling("ram", "RAM", 6 * GIB, 16 * GIB)],
        "tasks": [process(4711, "train.ipynb", 3 * GIB)],
        **more,
    }
    gpus = found["gpus"]
    if gpus and all(isinstance(gpu, dict) and "id" in gpu for gpu in gpus):
        read = Status.read(found)
        raise_levels(read.gpus, read.resources, read.incidents)
        for gpu, raised in zip(gpus, read.gpus, strict=True):
            gpu["level"] = raised.level.name.lower()
    return found


def leaking() -> dict[str, Any]:
    """A training that leaks towards its group's limit, a paused one, and idle interpreters."""
    return status(
        level="critical",
        headline="memory limit of the group jupyter-ada full in about 45 s",
        resources=[
            ceiling("ram", "RAM", 6 * GIB, 16 * GIB, slope_per_s=21.0 * MIB),
            ceiling("ram_swap", "RAM and swap", 6 * GIB, 18 * GIB),
            ceiling(
                "cgroup",
                "memory limit of the group jupyter-ada",
                6.1 * GIB,
                7 * GIB,
                stage="save",
                growth="linear",
                slope_per_s=21.0 * MIB,
                eta_s=43.0,
                eta_low_s=31.0,
                eta_high_s=70.0,
                reason="rising 21 MiB/s for 40 s, steady; 6.1 of 7.0 GiB",
                tasks=[4711],
            ),
            ceiling("shm", "/dev/shm", 0, 8 * GIB),
            ceiling("disk", "disk of /home/ada/rescues", 100 * GIB, 500 * GIB),
        ],
        tasks=[
            process(
                901, "networkd-dispatcher", 20 * MIB, kind="script", user="root", notebook=None
            ),
            process(902, "unattended-upgrade", 25 * MIB, kind="script", user="root", notebook=None),
            process(
                4711,
                "train_resnet_with_a_very_long_name_v2_final.ipynb",
                5 * GIB,
                state="running",
                children=4,
                swap_bytes=120 * MIB,
                cpu_percent=187.4,
                slope_bytes_per_s=20.0 * MIB,
                eta_s=43.0,
                eta_low_s=31.0,
                eta_high_s=70.0,
                resource="memory limit of the group jupyter-ada",
                stage="save",
                agent=agent(),
            ),
            process(
                5000,
                "分析ノート.ipynb",
                2 * GIB,
                state="paused",
                paused_by_watchdog=True,
                cpu_percent=0.0,
            ),
            process(
                5100,
                "eda.py",
                600 * MIB,
                kind="script",
                swap_bytes=None,
                cpu_percent=None,
                slope_bytes_per_s=None,
            ),
        ],
        incidents=[
            {
                **Incident().to_json(),
                "id": "i1",
                "level": "critical",
                "resource": "cgroup",
                "blame": "growth",
                "label": "memory limit of the group jupyter-ada",
                "stage": "save",
                "peak": "save",
                "opened_unix_s": NOW_UNIX_S - 95,
                "reason": "rising 21 MiB/s for 40 s, steady; 6.1 of 7.0 GiB",
                "advice": [
                    "Raise the limit of the group, or end train_resnet.ipynb.",
                    "Its work is saved: rescue at step 1200.",
                ],
                "contributors": [
                    {
                        "pid": 4711,
                        "name": "train_resnet_with_a_very_long_name_v2_final.ipynb",
                        "slope_bytes_per_s": 20.0 * MIB,
                        "share": 0.953,
                    }
                ],
            }
        ],
        problems=[
            {
                "source": "host.pressure",
                "message": "Memory pressure is not watched: /proc/pressure/memory is missing.",
                "remedy": "Boot with psi=1, or use kernel 4.20 or newer.",
            }
        ],
    )
