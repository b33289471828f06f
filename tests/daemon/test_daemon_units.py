"""Ends in systemd units, with a real daemon and recorded answers of systemd's tools."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup_v1 import CgroupV1

pytestmark = pytest.mark.cgroup

MIB = 1 << 20
WAIT = "import time\ntime.sleep(600)\n"
OOMD = "train.scope: systemd-oomd killed 1 process(es) in this unit."


@pytest.fixture
def scope():
    """A memory group whose path is that of a scope of this user's manager."""
    outer = create(f"watchdog-test-units-{os.getpid()}-{time.monotonic_ns()}", 400 * MIB)
    if not isinstance(outer, CgroupV1):
        outer.close()
        pytest.skip("needs cgroup v1, where folders may be nested freely")
    manager = f"{outer.path}/user@{os.getuid()}.service"
    os.mkdir(manager)
    os.mkdir(f"{manager}/train.scope")
    inner = CgroupV1(f"{manager}/train.scope", 100 * MIB)
    inner.set_limit(100 * MIB)
    yield inner
    inner.close()
    with suppress(OSError):
        os.rmdir(manager)
    outer.close()


@pytest.fixture
def systemd(world):
    """Fake systemd tools that print recorded answers."""
    folder = world.folder / "bin"
    folder.mkdir()
    world.env["PATH"] = f"{folder}:{world.env['PATH']}"

    def say(journal: str) -> None:
        for name, answer in (("journalctl", journal), ("systemctl", "ActiveState=inactive\n")):
            (folder / f"{name}.answer").write_text(f"{answer}\n")
            (folder / name).write_text('#!/bin/sh\ncat "$0.answer"\n')
            (folder / name).chmod(0o755)

    return say


FULL = "held = bytearray(b'x') * (90 * 2**20)\nopen('grown', 'w').close()\n" + WAIT


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        (OOMD, ("oom_daemon", "exact", "killed by systemd-oomd, which killed 1 process of its")),
        ("", ("killed", "unknown", "somebody")),
    ],
)
def test_a_kill_in_a_full_group_is_never_laid_to_a_kernel_that_counted_none(
    world, scope, systemd, journal, told
):
    """systemd-oomd if its manager's journal says so; otherwise a SIGKILL of unknown origin."""
    systemd(journal)
    client = world.start()
    pid = world.script(FULL, "train.py", scope)
    world.seen(pid)
    world.until((world.folder / "grown").exists, "it is full")
    ticks = client.call("status")["daemon"]["samples"]
    world.until(lambda: client.call("status")["daemon"]["samples"] >= ticks + 3, "it is looked at")

    os.kill(pid, signal.SIGKILL)

    death = world.ended(pid)
    assert told[:2] == (death["cause"], death["certainty"])
    assert told[2] in death["reason"]
    counts = [each["text"] for each in death["evidence"] if each["source"] == "no_kill"]
    assert 1 == len(counts)
    assert "train.scope, between " in counts[0]
    assert "killed nothing for memory" in counts[0]


def test_a_kill_by_systemd_oomd_while_no_daemon_ran_is_named_by_the_next(world, scope, systemd):
    """From the journal of the unit's manager, with the time span of the end."""
    systemd(OOMD)
    world.start()
    pid = world.script(WAIT, "train.py", scope)
    world.seen(pid)
    db = world.folder / "state" / "journal.db"
    world.until(db.exists, "a journal")
    world.end()
    os.kill(pid, signal.SIGKILL)
    world.until(lambda: world.state_letter(pid) in ("", "Z"), "it is gone")
    keep(world, pid, scope.path)

    world.start()

    death = world.ended(pid)
    assert (True, "oom_daemon", "most_likely") == (
        death["notable"], death["cause"], death["certainty"],
    )  # fmt: skip
    assert "most likely killed by systemd-oomd" in death["reason"]
    assert "while no watchdog ran" in death["reason"]
    assert any(OOMD in each["text"] for each in death["evidence"])


def keep(world, pid: int, group: str) -> None:
    """Record the script as alive, because the daemon ignores tasks younger than a minute."""
    import json
    import sqlite3

    db = sqlite3.connect(world.folder / "state" / "journal.db")
    (text,) = db.execute("SELECT data FROM state WHERE key = 'alive'").fetchone()
    state = json.loads(text)
    state["tasks"] = [{"pid": pid, "start_time": 7, "name": "train.py", "group": group,
                       "group_kills": 0, "rescue": None, "about": {}}]  # fmt: skip
    db.execute("UPDATE state SET data = ? WHERE key = 'alive'", (json.dumps(state),))
    db.commit()
    db.close()
