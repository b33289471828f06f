"""A card that is lost is never "OK", with or without an open incident."""

from __future__ import annotations

import pytest

from watchdog_app.cli.check import CRITICAL, check
from watchdog_app.cli.status_text import render
from watchdog_app.cli.verdict import verdict

VERDICTS = {
    "lost": {"severity": "critical", "title": "is lost"},
    "needs_reset": {"severity": "critical", "title": "needs a reset"},
}


@pytest.mark.parametrize("state", ["lost", "needs_reset"])
@pytest.mark.parametrize(
    "incidents", [[], [{"ceiling": "gpu_health", "stage": "ok", "label": "GPU 1", "why": "x"}]]
)
def test_a_lost_card_is_critical_everywhere(state, incidents):
    """Before its incident opens, and where nothing else is said of it."""
    status = {
        "time_unix_s": 100.0,
        "daemon": {"interval_s": 1.0},
        "host": {"memory_total_bytes": 1 << 30, "memory_available_bytes": 1 << 29},
        "ceilings": [],
        "processes": [],
        "incidents": incidents,
        "gpus": [{"index": 1, "name": "NVIDIA H100", "state": state, "verdict": VERDICTS[state]}],
    }

    assert verdict(status, 100.0).startswith("CRITICAL: GPU 1 (NVIDIA H100)")
    line, code = check(status, 100.0)
    assert (CRITICAL, True) == (code, line.startswith("WATCHDOG CRITICAL - GPU 1"))
    assert "CRITICAL: GPU 1" in render(status, 100.0)[0]
    assert not any(each.startswith("OK") for each in render(status, 100.0))
