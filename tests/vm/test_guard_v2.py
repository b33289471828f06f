"""Guards in control groups of version 2: stopped by memory.high and cgroup.freeze, and resumed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guest import HOME, PATIENCE_S, PYTHON, USER, until
from guest_guards import HOG, MIB, WATCHDOG, kills

from watchdog_app.base.linux.process import read_stat


@pytest.mark.parametrize("pause_s", ["0.02", "0"])
def test_a_users_program_is_held_in_a_scope_and_goes_on_with_more(me, guarded, pause_s):
    """
    Without root: systemd makes the group; the program stops at the limit without a kill.

    runuser belongs to root; it would stop with a SIGSTOP and never continue, so the kernel freezes.
    """
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", pause_s,
                 options=("--limit", "100M", "--no-refuse"))  # fmt: skip

    held = hog.stage("stopped")
    states = [read_stat(pid).state for pid in (held["pid"], hog.process.pid)]
    killed = kills(held["group"])
    me.run(*WATCHDOG, "limit", str(held["pid"]), "300M")

    assert held["kind"] == "systemd scope"
    assert "T" not in states
    assert killed == 0
    assert hog.end() == 0, hog.output()
    assert "all of it" in hog.process.stdout.read()


def test_one_array_is_refused_in_a_scope_too(guarded):
    """Three times the limit causes a MemoryError at once."""
    program = guarded(PYTHON, "-S", "-c", "bytearray(400 << 20)", options=("--limit", "120M"))

    assert program.end() == 1
    assert "MemoryError" in program.output()


def test_one_array_that_is_being_filled_is_held_and_not_killed(me, guarded):
    """Even at the fastest fill rate, the freeze comes before memory.max."""
    program = guarded(PYTHON, "-S", "-c", "bytearray(b'x') * (300 << 20)",
                     options=("--limit", "100M", "--no-refuse"))  # fmt: skip

    held = program.stage("stopped")
    killed = kills(held["group"])
    me.run(*WATCHDOG, "limit", str(held["pid"]), "450M")

    assert killed == 0
    assert program.end() == 0, program.output()


def test_a_signal_gets_through_to_a_stopped_program(guarded):
    """The user need not know what a guard is."""
    hog = guarded(PYTHON, "-S", "-c", HOG, "300", "0", options=("--limit", "100M", "--no-refuse"))
    held = hog.stage("stopped")

    os.kill(held["pid"], signal.SIGINT)

    assert hog.end() != 0


def test_a_flood_of_page_cache_holds_nobody_in_v2(me, guarded):
    """It reaches memory.high all the time, and the kernel reclaims the cache."""
    code = f"""
with open({str(me.folder / "flood")!r}, "wb") as file:
    for _ in range(250):
        file.write(b"x" * (1 << 20))
print("through", flush=True)
"""
    program = guarded(PYTHON, "-S", "-c", code, options=("--limit", "80M"))

    assert program.end() == 0, program.output()
    assert "held" not in program.output()


def test_the_supervisor_in_v2_is_started_anew(me, guarded):
    """It is killed while the program is stopped."""
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0", options=("--limit", "100M", "--no-refuse"))
    held = hog.stage("stopped")

    os.kill(held["supervisor_pid"], signal.SIGKILL)
    until(
        lambda: hog.record().get("supervisor_pid") not in (None, held["supervisor_pid"]),
        "another one",
    )
    me.run(*WATCHDOG, "limit", str(held["pid"]), "300M")

    assert hog.end() == 0, hog.output()


def test_a_new_supervisor_in_v2_knows_the_limit_that_was_given_since(me, guarded):
    """The limit was raised before the supervisor was killed: the old limit does not count."""
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0.1",
                 options=("--limit", "100M", "--no-refuse"))  # fmt: skip
    first = hog.stage("running")
    me.run(*WATCHDOG, "limit", str(first["pid"]), "300M")

    os.kill(first["supervisor_pid"], signal.SIGKILL)

    until(
        lambda: hog.record().get("supervisor_pid") not in (None, first["supervisor_pid"]),
        "another one",
    )
    assert hog.end() == 0, hog.output()
    assert "is held there" not in hog.output()


def test_a_limit_below_what_it_holds_kills_nobody(me, guarded):
    """The kernel kills at once if memory.max is set below the usage, frozen or not."""
    hog = guarded(PYTHON, "-S", "-c", HOG + "time.sleep(600)", "250", "0",
                 options=("--limit", "450M", "--no-refuse"))  # fmt: skip
    until(lambda: hog.record().get("used_bytes", 0) > 240 * MIB, "it holds what it wants")
    pid = hog.record()["pid"]

    me.run(*WATCHDOG, "limit", str(pid), "80M")
    held = hog.stage("stopped")
    killed = kills(held["group"])
    me.run(*WATCHDOG, "limit", str(pid), "400M")
    calm = hog.stage("running")

    assert killed == 0
    assert calm["limit_bytes"] == 400 * MIB
    assert hog.process.poll() is None


def test_what_systemd_does_beside_it_leaves_the_limit_as_it_is(me, guarded):
    """A reload, as after updates, removes the limits: the supervisor writes them again."""
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0.1",
                 options=("--limit", "100M", "--no-refuse"))  # fmt: skip
    group = Path(hog.stage("running")["group"])
    names = ("memory.high", "memory.max", "memory.swap.max")
    until(lambda: (group / names[0]).read_text() == f"{100 * MIB}\n", "its limit")
    before = [(group / name).read_text() for name in names]

    me.systemctl("daemon-reload")
    until(lambda: [(group / name).read_text() for name in names] == before, "the same limits")
    held = hog.stage("stopped")
    me.systemctl("daemon-reexec")
    me.run("systemd-run", "--user", "--scope", "--quiet", "--property=MemoryMax=200M",
           "--property=CPUWeight=50", "/bin/true")  # fmt: skip

    until(lambda: "max\n" not in [(group / name).read_text() for name in names], "its limits")
    assert (group / names[0]).read_text() == before[0]
    assert (group / "cgroup.freeze").read_text() == "1\n"
    assert kills(str(group)) == 0
    me.run(*WATCHDOG, "limit", str(held["pid"]), "300M")
    assert hog.end() == 0, hog.output()


def test_a_reserve_that_was_used_up_is_taken_back_and_kills_nobody(me, guarded_training):
    """
    A jump within a step, larger than limit and reserve: stopped there, continued after a raise.
    """
    training = guarded_training("--in-step", "--jump-mb", "350",
                               options=("--limit", "120M", "--no-refuse"))  # fmt: skip
    training.until_steps()
    training.jump()

    held = training.stage("stopped")
    killed = kills(held["group"])
    me.run(*WATCHDOG, "limit", str(held["pid"]), "550M")
    training.until_steps(2)

    assert killed == 0
    assert "the reserve was used up" in held["because"]
    assert held["used_bytes"] > 250 * MIB


def test_a_program_that_a_service_started_has_a_scope_too(me):
    """Below JupyterHub, cron or su the environment does not name systemd."""
    done = subprocess.run(
        ["runuser", "-u", USER, "--", "env", "-i", f"HOME={HOME}", "PATH=/usr/bin:/bin",
         *WATCHDOG, "exec", "--limit", "200M", "--", "/bin/true"],
        cwd=me.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0
    assert "limit 200 MiB, reserve 256 MiB, systemd scope" in done.stderr


def test_a_guard_started_in_a_guard_is_another(guarded):
    """Its own limit does not change that of the first."""
    inner = " ".join([*WATCHDOG, "exec", "--limit 90M -- /bin/cat /proc/self/cgroup"])
    code = f"{inner}; cat /proc/self/cgroup; cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)"
    outer = guarded("/bin/sh", "-c", f"{code}/memory.high", options=("--limit", "300M"))

    assert outer.end() == 0, outer.output()
    first, second, high = outer.process.stdout.read().split()
    assert "watchdog-guard-" in first
    assert "watchdog-guard-" in second
    assert first != second
    assert int(high) == 300 * MIB
    assert "limit 90.0 MiB" in outer.output()


def test_root_has_guards_too(guarded):
    """They use the system's systemd."""
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0", root=True,
                 options=("--limit", "100M", "--no-refuse"))  # fmt: skip

    held = hog.stage("stopped")
    subprocess.run([*WATCHDOG, "limit", str(held["pid"]), "--end"], check=True, timeout=PATIENCE_S)

    assert hog.end() == -signal.SIGTERM


@pytest.mark.parametrize("way", ["frozen", "stopped"])
def test_a_folder_of_ones_own_does_without_systemd(way):
    """A delegated folder: created, entered, frozen or stopped at its limit, raised, removed."""
    from watchdog_app.guard.cgroup_v2 import CgroupV2

    guard = CgroupV2.create("/sys/fs/cgroup", f"watchdog-guard-{os.getpid()}-1", 60 * MIB, 0)
    assert guard is not None, Path("/sys/fs/cgroup/cgroup.subtree_control").read_text()
    hog = subprocess.Popen(
        [PYTHON, "-S", "-c", "input();" + HOG, "90", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        guard.enter(hog.pid)
        guard.enforce_limit()
        hog.stdin.write("\n")
        hog.stdin.flush()
        until(guard.at_limit, "at its limit")
        still = guard.freeze() if way == "frozen" else guard.stop()
        state = read_stat(hog.pid).state
        before = guard.usage().held_bytes
        time.sleep(0.5)
        after = guard.usage().held_bytes
        guard.set_limit(200 * MIB)
        guard.resume()
        said = hog.communicate(timeout=PATIENCE_S)[0]
    finally:
        guard.lift_limit()
        guard.resume(everyone=True)
        hog.kill()
        hog.wait(PATIENCE_S)

    assert still
    assert (way == "stopped") is (state == "T")
    assert abs(after - before) < MIB
    assert "all of it" in said
    assert until(guard.remove, "removed")


def test_a_shell_shows_its_prompt_and_fg_meets_the_limit_again(me, guarded_in_shell):
    """
    It stops as with Ctrl-Z, reports again after fg, and continues after a raise from the prompt.
    """
    script = me.folder / "hog.py"
    script.write_text(HOG)
    hog = guarded_in_shell(PYTHON, "-S", str(script), "160", "0",
                          options=("--limit", "100M", "--no-refuse"))  # fmt: skip
    for _ in range(2):
        held = hog.stage("stopped")
        hog.until_prompt()
        hog.type("fg\n")
    hog.until_prompt()
    held = hog.stage("stopped")
    killed = kills(held["group"])

    hog.type(f"{shlex.join(WATCHDOG)} limit {held['pid']} 300M\n")

    hog.see("fg brings it back")
    hog.see("all of it")
    assert killed == 0


def test_a_daemon_that_is_killed_leaves_held_what_is_held(me, guarded):
    """The supervisor keeps running; the daemon that systemd restarts shows the guard."""
    first = me.start_daemon().daemon_pid
    hog = guarded(PYTHON, "-S", "-c", HOG, "160", "0", options=("--limit", "100M", "--no-refuse"))
    held = hog.stage("stopped")
    until(lambda: shown_as_held(me, held["pid"]), "the first daemon shows it")

    os.kill(first, signal.SIGKILL)
    until(lambda: me.daemon_pid() not in (0, first), "another daemon")
    task = until(lambda: shown_as_held(me, held["pid"]), "the other daemon shows it")

    now = hog.stage("stopped")
    assert me.status()["daemon"]["pid"] != first
    assert now["supervisor_pid"] == held["supervisor_pid"]
    assert Path(held["group"], "cgroup.freeze").read_text() == "1\n"
    assert task["guard"]["kind"] == "systemd scope"
    me.run(*WATCHDOG, "limit", str(held["pid"]), "300M")
    assert hog.end() == 0, hog.output()


def shown_as_held(me, pid: int) -> dict | None:
    """The status entry of the task in this program's guard, once it is shown as stopped."""
    for task in me.status()["tasks"]:
        guard = task["guard"] or {}
        if guard.get("pid") == pid and guard["stopped"] and task["state"] == "stopped":
            return task
    return None
