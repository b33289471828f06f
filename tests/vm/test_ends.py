"""systemd ends a training, or announces the end: a stopped unit, a logout, a sleep, a shutdown."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from guest import PATIENCE_S, UID, until
from guest_sleep import sleep

SLEEP_S = 10


def locks() -> str:
    done = subprocess.run(["systemd-inhibit", "--list", "--no-pager"], capture_output=True,
                          check=True, text=True)  # fmt: skip
    return done.stdout


def watched(me):
    """A daemon with its lock, and a training that it knows."""
    # Emulated, polkit's scripts take longer than polkit allows. Without them its defaults hold.
    for folder in (Path("/etc/polkit-1/rules.d"), Path("/usr/share/polkit-1/rules.d")):
        for script in folder.glob("*"):
            script.unlink()
    subprocess.run(["systemctl", "restart", "polkit"], check=True, timeout=PATIENCE_S)
    me.start_daemon()
    training = me.train("--seconds", "1200", service=True)
    me.until_watched(training)
    until(lambda: "watchdog" in locks(), "the lock is taken")
    return training


def test_a_unit_that_is_stopped_is_saved_and_explained(me, record_property):
    me.start_daemon()
    training = me.train("--seconds", "1200", service=True)
    me.until_watched(training)
    pid, began = training.pid, time.monotonic()

    me.systemctl("stop", training.unit)

    record_property("stop took, s", round(time.monotonic() - began, 1))
    steps = training.steps()[-1][0]
    assert training.saved_step() in (steps, steps - 1)
    death = me.death(pid)
    record_property("explained", death["reason"])
    assert death["rescue"]["step"] == training.saved_step()


def test_before_a_sleep_the_training_is_saved_and_continues_after_it(me, record_property):
    training = watched(me)
    asked_unix_s = time.time()

    slept_s = sleep(SLEEP_S, announced=True)

    record_property("slept, s", round(slept_s, 1))
    assert slept_s >= SLEEP_S / 2
    saved = me.first("checkpoint")
    record_property("saved, s after the request", round(saved - asked_unix_s, 1))
    before = len(training.steps())
    until(lambda: len(training.steps()) > before + 3, "the training continues")
    until(lambda: "watchdog" in locks(), "the lock is taken again")
    assert "the machine goes to sleep" in {each["what"] for each in me.history("daemon")}


def test_an_announced_shutdown_saves_and_is_the_cause_of_the_end(me, record_property):
    """The last target of the shutdown only waits, so that this machine can tell of it."""
    training = watched(me)
    pid = training.pid
    units = Path("/run/systemd/system")
    target, waits = units / "poweroff.target", units / "waits.service"
    # Had the target nothing to wait for, logind would announce the end of the shutdown.
    target.write_text(f"[Unit]\nRequires={waits.name}\nAfter={waits.name}\n")
    waits.write_text(
        "[Unit]\nDefaultDependencies=no\n"
        f"[Service]\nType=oneshot\nExecStart=/bin/sleep {PATIENCE_S:.0f}\n"
    )
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=PATIENCE_S)
    try:
        subprocess.run(["systemctl", "poweroff"], check=False, timeout=PATIENCE_S)
        until(training.rescues, "a rescue")
        os.kill(pid, signal.SIGTERM)
        death = me.death(pid)
    finally:
        subprocess.run(["systemctl", "kill", waits.name], check=False, timeout=PATIENCE_S)
        target.unlink()
        waits.unlink()
        subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=PATIENCE_S)

    record_property("explained", death["reason"])
    assert death["cause"] == "machine_down"
    # The last rescue, or that before it: emulated, its report may come too late.
    assert death["rescue"]["path"] in {str(each) for each in training.rescues()}
    assert "the machine is shut down" in {each["what"] for each in me.history("daemon")}


def test_a_logout_saves_each_training(me):
    """Their systemd ends, and with it the daemon and all units. The journal knows it later."""
    me.start_daemon()
    trainings = [me.train("--seconds", "1200", name=name, service=True) for name in ("one", "two")]
    for each in trainings:
        me.until_watched(each)

    subprocess.run(["loginctl", "terminate-user", str(UID)], check=True)
    try:
        for each in trainings:
            each.wait()
            steps = each.steps()[-1][0]
            assert each.saved_step() in (steps, steps - 1)
    finally:
        subprocess.run(["systemctl", "start", f"user@{UID}.service"], check=True)
