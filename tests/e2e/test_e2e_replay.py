"""Replay of real runs: from the journal and from a recording."""

from __future__ import annotations

import json
import sys

import pytest
from support.finished import finished

pytestmark = pytest.mark.cgroup


def watchdog(world, *arguments):
    """Return a command's output; it must have succeeded."""
    done = finished([sys.executable, "-m", "watchdog_app", *arguments], env=world.env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_group(traces):
    """Return the trace of the memory group among the traces of a task."""
    return next(trace for trace in traces if "memory limit of" in trace["trace"])


def test_a_run_that_was_killed_can_be_played_again_from_the_journal(world, tmp_path):
    """With and without the daemon, the replay repeats the warnings from the same numbers."""
    world.start_daemon()
    group = world.group(700)
    pid = world.start("hog.py", "30", group=group)
    died = world.until(
        lambda: [e["unix_s"] for e in world.history("exit") if e["pid"] == pid],
        "the kernel kills it",
    )[0]
    warned = [e for e in world.history("decision") if e["decision_kind"] == "notify"]
    assert pid in [e["pid"] for e in warned], world.daemon_log()

    silent = tmp_path / "silent.toml"
    silent.write_text(
        '[[rule]]\ntask = "hog*"\nnotify = false\ncheckpoint = false\npause = false\n'
    )
    never = ("--config", str(silent))
    replay = ("replay", "--task", str(pid), "--json")
    online = in_group(json.loads(watchdog(world, *replay))["traces"])
    text = watchdog(world, "replay", "--task", str(pid))
    world.kill_daemon()
    offline = in_group(json.loads(watchdog(world, *replay))["traces"])

    assert online == offline
    alarms = [event for event in online["decisions"] if event["kind"] == "notify"]
    assert alarms, online
    assert online["start_unix_s"] + alarms[0]["t"] < died
    assert "knows of no agent" in text
    assert "  notification  " in text
    assert "  checkpoint  " not in text
    assert not in_group(json.loads(watchdog(world, *replay, *never))["traces"])["decisions"]
