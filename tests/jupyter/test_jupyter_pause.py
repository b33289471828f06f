"""Checks after all other tests: the kernel paused for a minute, and the written files."""

from __future__ import annotations

import json
import time

from desk import Desk, Paused
from harness import state_letter
from support.waiting import until

PAUSE_S = 60.0


def test_paused_kernel_goes_on_after_a_minute_as_if_nothing_had_been(desk: Desk, paused: Paused):
    """Jupyter shows it busy and does not restart it; the cell's result arrives."""
    while time.monotonic() < paused.since_mono_s + PAUSE_S:
        assert "T" == state_letter(paused.pid)
        time.sleep(1)
    assert "busy" == paused.kernel.state
    assert "paused" == desk.task(paused.pid)["state"]

    desk.world.client.call("task.resume", task="long.ipynb")

    assert "grown to 60\n" == paused.take_over().finish(paused.cell)
    assert paused.pid == paused.kernel.pid()
    until(lambda: paused.kernel.state == "idle", "Jupyter sees it idle", 120)
    assert [] == desk.entries("restart", "long.ipynb")


def test_tokens_and_keys_are_nowhere(desk: Desk):
    """The test searches the log, the journal and the output of commands."""
    secrets = {desk.server.token}
    for kernel in desk.server.kernels:
        if kernel.connection_file.exists():
            secrets.add(json.loads(kernel.connection_file.read_text())["key"])
    assert len(secrets) > 1
    assert all(len(secret) > 20 for secret in secrets)
    places = {
        " ".join(words): desk.watchdog(*words)
        for words in (
            ("status",),
            ("status", "--json"),
            ("explain",),
            ("explain", "train.ipynb"),
            ("explain", "long.ipynb", "--json"),
            ("history", "--json"),
        )
    }
    places["log"] = (desk.world.folder / "daemon.log").read_text(errors="replace")
    for folder in ("state", "run"):
        for path in (desk.world.folder / folder).rglob("*"):
            if path.is_file():
                places[str(path)] = path.read_bytes().decode("latin-1")

    found = {place for place, text in places.items() for secret in secrets if secret in text}

    assert set() == found
    assert "long.ipynb" in places["status"]
    assert any("journal.db" in place for place in places)
