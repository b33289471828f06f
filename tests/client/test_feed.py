"""The feed of the screens: what it leaves behind."""

from __future__ import annotations

import os
import threading

import pytest

from watchdog_app.client.feed import Feed


def open_files():
    """What this process has open; a name is unique for a pipe and a socket."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing
            continue
    return {name for name in found if name.startswith(("pipe:", "socket:"))}


@pytest.mark.parametrize("started", [True, False])
def test_a_feed_that_has_stopped_leaves_no_descriptor(tmp_path, monkeypatch, started):
    """Nor does a message after its end harm anyone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = open_files()
    asked = threading.Event()
    feed = Feed(lambda status, error: asked.set())
    if started:
        feed.start()
        assert asked.wait(30)

    feed.stop()
    feed.refresh()

    assert open_files() <= before
