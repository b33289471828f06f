"""Status objects as a daemon sends them, for the tray's tests."""

from __future__ import annotations

import time
from typing import Any

from support import statuses
from support.statuses import GIB, MIB


def task(pid: int, name: str, ram_bytes: int | None = 3 * GIB, **more: Any) -> dict[str, Any]:
    """Return an idle notebook."""
    return statuses.process(pid, name, ram_bytes, **{"started_unix_s": 1.7e9 + pid, **more})


def agent(**more: Any) -> dict[str, Any]:
    """Return the agent of a training that saved 12 s ago."""
    rescue = statuses.agent()["rescue"] | {"saved_unix_s": time.time() - 12}
    return statuses.agent(**{"rescue": rescue, **more})


def ceiling(
    kind: str = "ram", label: str = "RAM", used: float = 6 * GIB, limit: float = 16 * GIB, **more
) -> dict[str, Any]:
    """Return a limit that nothing approaches."""
    return statuses.ceiling(kind, label, used, limit, **more)


def status(**more: Any) -> dict[str, Any]:
    """Return the current status of an idle workstation with one training."""
    now = {
        "time_unix_s": time.time(),
        "daemon": {
            "pid": 900,
            "version": "0.1.0",
            "protection": {"on": True, "until_unix_s": None},
        },
        "resources": [ceiling()],
        "tasks": [task(4711, "train.ipynb", agent=agent())],
    }
    return statuses.status(**(now | more))


def leaking(stage: str = "warn", used: float = 14 * GIB) -> dict[str, Any]:
    """Return a status in which the training fills the memory."""
    near = ceiling(used=used, stage=stage, eta_s=240.0, eta_low_s=180.0, eta_high_s=420.0)
    growing = task(
        4711,
        "train.ipynb",
        11 * GIB,
        slope_bytes_per_s=21.0 * MIB,
        stage=stage,
        eta_s=240.0,
        eta_low_s=180.0,
        eta_high_s=420.0,
        agent=agent(),
    )
    levels = {"watch": "watch", "warn": "warning"}
    return status(
        level=levels.get(stage, "critical"),
        headline="RAM full in about 4 min: train.ipynb",
        resources=[near],
        tasks=[growing, task(4800, "plots.py", 300 * MIB, kind="script")],
        incidents=[
            {
                "id": "i1",
                "resource": "ram",
                "subject": "",
                "label": "RAM",
                "stage": stage,
                "reason": "rising 21 MiB/s for 40 s, steady",
                "contributors": [{"pid": 4711, "name": "train.ipynb", "share": 0.97}],
            }
        ],
    )


def notice(id_: str = "n1", **more: Any) -> dict[str, Any]:
    """Return a warning with all its buttons."""
    return {
        "id": id_,
        "incident": "i1",
        "topic": "warning",
        "stage": "warn",
        "urgency": "normal",
        "title": "RAM full in about 4 min: train.ipynb",
        "body": "RAM: 14.0 of 16.0 GiB.\nIt is asked to save its state now.",
        "task": 4711,
        "actions": [
            {"key": "save", "label": "Save now"},
            {"key": "pause", "label": "Pause"},
            {"key": "snooze", "label": "Snooze 15 min"},
            {"key": "show", "label": "Show"},
        ],
        "unix_s": 1.7e9,
        **more,
    }
