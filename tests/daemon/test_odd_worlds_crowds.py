"""Too many processes, too little processor time, a stopped daemon: with a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.sensors.exits import ExitEvidence

BOMB = """
import os, sys, time
end = time.monotonic() + 1.5
count = 0
while time.monotonic() < end:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(0.2 * (count % 3))
            os._exit(0)
        count += 1
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    time.sleep(0.02)
time.sleep(0.5)
"""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def daemon_status(world) -> dict:
    with world.connect() as client:
        return client.call("status")["daemon"]


def test_a_fork_bomb_of_short_lived_pythons_leaves_no_descriptor_and_stops_no_look(world):
    """
    Most are gone before the next sample: sampling continues, and all descriptors are returned.
    """
    world.start()
    pid = world.process.pid
    world.until(lambda: daemon_status(world)["samples"] > 1, "it looks")
    before, ticks = descriptors(pid), daemon_status(world)["samples"]

    bomb = subprocess.run([sys.executable, "-S", "-c", BOMB], timeout=60, check=False)

    assert 0 == bomb.returncode
    world.until(lambda: daemon_status(world)["samples"] > ticks + 1, "it has looked meanwhile")
    # Processes of other tests come and go: a few more or less do not count.
    world.until(lambda: descriptors(pid) <= before + 20, "descriptors are given back")
    assert [] == [each for each in world.problems().values() if "failed" in each]


def test_without_a_processor_it_looks_no_less_often(world):
    """The sampling rate depends on the CPU time of a sample, not on its waiting time."""
    world.start()
    loops = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        time.sleep(2)
        found = daemon_status(world)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()

    assert found["interval_s"] <= 1.0
    assert found["samples"] > 1


def test_a_daemon_that_was_stopped_says_that_looks_are_missing(world):
    """The daemon's own readings do not show the gap."""
    world.start()
    world.until(lambda: daemon_status(world)["samples"] > 1, "it looks")

    interval_s = daemon_status(world)["interval_s"]  # longer at rest, and on a busy machine
    world.process.send_signal(signal.SIGSTOP)
    time.sleep(8.0 + interval_s)  # the next sample is due after two intervals at the latest
    world.process.send_signal(signal.SIGCONT)

    world.until(lambda: "loop_lag" in world.problems(), "it says so")
    found = daemon_status(world)
    assert found["missed_samples"] >= 1
    assert found["max_lag_s"] >= 1.0


def test_who_kills_for_memory_is_not_asked_anew_for_each_of_five_hundred_ends(tmp_path):
    """Finding them reads every process of the machine: once in ten seconds is enough."""

    def process(pid: int, comm: str) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")

    process(50, "earlyoom")
    exit_evidence = ExitEvidence(None, str(tmp_path))

    def asked(pid: int) -> tuple[str, ...]:
        key = ProcessKey(pid, 1)
        more = {"announced_end": False, "failed": False, "was_paused": False, "device_ooms": 0}
        facts = exit_evidence.collect(key, None, None, group=None, alive_mono_s=0.0, **more)
        return facts.oom_daemons

    first = asked(900)
    process(51, "nohang")
    second = asked(901)

    assert (("earlyoom",), ("earlyoom",)) == (first, second)
    exit_evidence.close()
