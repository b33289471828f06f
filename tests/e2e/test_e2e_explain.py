"""Memory kills by the real kernel, also of workers: detected at once, reported and explained."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest
from harness import NO_PAUSE

SOON_S = 2.0  # the promised delay on an idle machine
PATIENCE = 10


def in_a_terminal(world, *words, **env):
    """Return a command's output on its own terminal of 100 columns."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "watchdog_app", *words],
        env={**world.env, "COLUMNS": "100", "TERM": "xterm-256color", "PYTHONUTF8": "1", **env},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        said = b""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ready, _, _ = select.select([master], [], [], 0.5)
            if not ready:
                continue
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        os.close(master)
    return process.returncode, said.decode()


@pytest.fixture
def killed(world):
    """
    Yield the PID and the death's entry of a script that the kernel killed in a group of 120 MB.
    """
    world.start_daemon(NO_PAUSE)
    go = world.folder / "go"
    pid = world.start("last_moments.py", "--go", str(go), "--mb-s", "20", group=world.group(120))
    world.until(lambda: world.task(pid), "it is seen")
    go.touch()
    world.until(lambda: not os.path.exists(f"/proc/{pid}/fd/0"), "it is killed")
    gone = time.monotonic()
    deaths = world.until(
        lambda: [each for each in world.history("exit") if each["pid"] == pid], "it is found"
    )
    return pid, deaths[0], time.monotonic() - gone


def test_a_kill_for_memory_is_found_at_once_and_explained(world, killed):
    """
    The explanation is certain and has the limit, the memory's holder, the plot and the advice.

    A notification follows.
    """
    pid, death, took_s = killed

    assert took_s < PATIENCE * SOON_S
    assert ("group_limit", "exact", True) == (death["cause"], death["certainty"], death["memory"])
    assert any("rose from 0 to 1" in each["text"] for each in death["evidence"])
    told = [
        each
        for each in world.history("decision")
        if each["pid"] == pid and each["evidence"].get("topic") == "exited"
    ]
    assert 1 == len(told)

    status, text = in_a_terminal(world, "explain", str(pid))

    assert 0 == status
    assert "\x1b[" in text
    assert "That is exact." in " ".join(text.split())
    assert "Who held the memory then" in text
    assert "0┤" in text
    assert "X" in text
    assert "watchdog exec -- python" in text
    plain_status, plain = in_a_terminal(world, "explain", str(pid), NO_COLOR="1")
    assert (0, False) == (plain_status, "\x1b" in plain)


def test_the_kernels_own_words_are_the_evidence_where_they_can_be_read(killed):
    """The log names the process, the group and the memory of each process."""
    pid, death, _ = killed
    if not os.access("/dev/kmsg", os.R_OK):
        assert any("could not be read" in each["text"] for each in death["evidence"])
        return

    words = " ".join(each["text"] for each in death["evidence"] if each["source"] == "kernel")

    assert f"Killed process {pid}" in words
    assert pid in [each["pid"] for each in death["takers"]["kernel_table"]]
