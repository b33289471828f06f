"""Other OOM killers next to watchdog: the rescue exists before they kill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import PYTHON, service, system_log, until
from guest_guards import HOG, WATCHDOG


def killed_at(pattern: str) -> float | None:
    """The time at which such a line came into the machine's journal, unix_s."""
    times = [
        float(line.split()[0])
        for line in system_log("-b").splitlines()
        if re.search(pattern, line) and re.match(r"\d+\.\d+ ", line)
    ]
    return times[-1] if times else None


def assert_we_were_first(me, training, killed: float, record_property) -> None:
    """There is a complete rescue and a warning from before the kill."""
    saved, warned = me.first("checkpoint"), me.first("notify")
    record_property("saved, s before the kill", killed - (saved or killed))
    record_property("warned, s before the kill", killed - (warned or killed))
    assert training.rescues(), me.daemon_log()
    assert saved is not None
    assert saved < killed
    assert training.rescues()[-1].stat().st_mtime < killed + 1
    assert me.daemon_pid() == me.status()["daemon"]["pid"]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("earlyoom", r"earlyoom.*sending SIG"),
        ("nohang", r"nohang.*(Sending SIG|Sent SIG|Send SIG|SIGTERM)"),
    ],
)
def test_a_killer_by_thresholds_finds_the_work_saved(me, record_property, name, pattern):
    """The whole machine fills: they act at a tenth of free memory, watchdog by the time left."""
    me.start_daemon()
    with service(name):
        training = me.train("--leak-mb-s", "10", "--seconds", "1200")
        me.until_watched(training)

        assert training.wait(600) != 0
        died = training.last_sign_unix_s()
        killed = until(lambda: killed_at(pattern), f"{name} says that it killed")
        record_property("it acted, s before the last step", died - killed)

    assert_we_were_first(me, training, min(killed, died), record_property)


@contextlib.contextmanager
def judged(me, slice_: str) -> Iterator[None]:
    """systemd-oomd soon kills units under memory pressure in a slice."""
    conf = Path("/etc/systemd/oomd.conf.d/test.conf")
    conf.parent.mkdir(exist_ok=True)
    conf.write_text("[OOM]\nDefaultMemoryPressureDurationSec=4s\n")
    me.systemctl("set-property", "--runtime", slice_, "ManagedOOMMemoryPressure=kill",
                 "ManagedOOMMemoryPressureLimit=20%")  # fmt: skip
    try:
        with service("systemd-oomd"):
            yield
    finally:
        conf.unlink()
        me.systemctl("set-property", "--runtime", slice_, "ManagedOOMMemoryPressure=auto")


def test_systemd_oomd_finds_the_work_saved(me, record_property):
    """It kills a scope under pressure; watchdog saves before the pressure exists."""
    me.start_daemon()
    with judged(me, "judged.slice"):
        training = me.train(
            "--leak-mb-s", "6", "--seconds", "1200",
            properties=["Slice=judged.slice", "MemoryHigh=150M", "MemoryMax=500M",
                        "MemorySwapMax=0"],
        )  # fmt: skip
        me.until_watched(training)
        pid = training.pid

        assert training.wait(600) != 0, subprocess.getoutput("oomctl")
        died = training.last_sign_unix_s()
        killed = until(lambda: killed_at(r"systemd-oomd.*Killed /user"), "its kill")
        record_property("it acted, s after the last step", killed - died)

    assert_we_were_first(me, training, killed, record_property)
    assert_oomd_is_named(me, me.death(pid), training.unit, record_property)


def test_systemd_oomd_is_named_also_where_no_daemon_ran_at_the_kill(me, record_property):
    """The next daemon finds the ended task, and asks systemd for the reason."""
    me.start_daemon()
    with judged(me, "judged.slice"):
        training = me.train(
            "--jump-mb", "400", "--seconds", "1200",
            properties=["Slice=judged.slice", "MemoryHigh=150M", "MemoryMax=500M",
                        "MemorySwapMax=0"],
        )  # fmt: skip
        me.until_watched(training)
        pid = training.pid
        until(lambda: str(pid) in alive(me), "it is in the list of who is alive")
        me.systemctl("stop", "watchdog.service")
        (training.folder / "jump").touch()
        assert training.wait(600) != 0, subprocess.getoutput("oomctl")
    me.start_daemon()
    death = me.death(pid)

    assert_oomd_is_named(me, death, training.unit, record_property)
    assert "most_likely" == death["certainty"]
    assert "while no watchdog ran" in death["reason"]


def alive(me) -> str:
    """The daemon's record of living tasks."""
    rows = me.journal("SELECT data FROM state WHERE key = 'alive'")
    return rows[0][0] if rows else ""


def explained(me, pid: int) -> str:
    """The output of `watchdog explain`, in one line."""
    return " ".join(me.run(*WATCHDOG, "explain", str(pid), check=False).split())


def assert_oomd_is_named(me, death, unit: str, record_property) -> None:
    """Systemd's record names systemd-oomd; the kernel is not named."""
    told = explained(me, death["pid"])
    record_property("reason", [death["certainty"], death["reason"]])
    record_property("evidence", [f"{e['source']}: {e['text']}" for e in death["evidence"]])
    record_property("explain", told)
    said = [e["text"] for e in death["evidence"] if e["source"] == "systemd"]
    assert "oom_daemon" == death["cause"]
    assert "killed by systemd-oomd" in death["reason"]
    assert unit in death["reason"]
    assert [text for text in said if "systemd-oomd killed" in text or "show -p Result" in text]
    assert "illed by systemd-oomd" in told
    assert "illed by the kernel" not in told + str(death["evidence"])


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "no_daemon_at_the_kill"])
def test_systemd_is_named_where_it_ends_a_service_after_a_kill_in_it(me, record_property, watched):
    """OOMPolicy=stop: the kernel kills a worker, and systemd ends the rest of its unit."""
    me.start_daemon()
    training = me.train(
        "--worker-mb-s", "10" if watched else "2", "--seconds", "1200", service=True,
        properties=["MemoryMax=200M", "MemorySwapMax=0", "OOMPolicy=stop"],
    )  # fmt: skip
    me.until_watched(training)
    pid = training.pid
    if not watched:
        until(lambda: str(pid) in alive(me), "it is in the list of who is alive")
        me.systemctl("stop", "watchdog.service")

    assert training.wait(600) != 0
    if not watched:
        me.start_daemon()
    death = me.death(pid)
    told = explained(me, pid)

    record_property("reason", [death["certainty"], death["reason"]])
    record_property("explain", told)
    assert "oom_daemon" == death["cause"]
    assert "(OOMPolicy=stop)" in death["reason"]
    assert "(OOMPolicy=stop)" in told


def test_a_kill_by_hand_at_memory_high_is_not_laid_on_the_kernel(me, record_property):
    """The group is full without a kill for memory, so the kill came from a user."""
    me.start_daemon()
    training = me.train(
        "--leak-mb-s", "6", "--seconds", "1200",
        properties=["MemoryHigh=140M", "MemoryMax=600M", "MemorySwapMax=0"],
    )  # fmt: skip
    me.until_watched(training)
    until(training.rescues, "it is saved at the limit")
    pid = training.pid

    os.kill(pid, signal.SIGKILL)
    death = me.death(pid)
    told = explained(me, pid)

    record_property("reason", [death["certainty"], death["reason"]])
    assert death["cause"] in ("killed", "unknown")  # unknown if its parent was quicker
    assert ("somebody" in death["reason"]) is (death["cause"] == "killed")
    assert "illed by the kernel" not in told


def test_systemd_oomd_leaves_a_held_program_alone(me, guarded, record_property):
    """It stops at its limit at once, so no pressure arises for systemd-oomd."""
    with judged(me, "app.slice"):
        hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0",
                     options=("--limit", "100M", "--no-refuse"))  # fmt: skip
        held = hog.stage("stopped")
        time.sleep(20)
        record_property("pressure", Path(held["group"], "memory.pressure").read_text())
        alive = hog.process.poll() is None
        me.run(*WATCHDOG, "limit", str(held["pid"]), "300M")

        assert alive, system_log("-u", "systemd-oomd", "-b")
        assert hog.end() == 0, hog.output()
