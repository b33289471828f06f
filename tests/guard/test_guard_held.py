"""
Programs at the limit of a real guard (cgroup v1): stopped, never killed, always with a way out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from guard_desk import MIB, STORM, guard_folder, pids_in, state

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.process import read_stat
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine import process_control

JUMP = """
import sys, time
try:
    held = bytearray(300 << 20)
except MemoryError:
    print("refused", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("rate", [0, 500])
def test_a_program_at_its_limit_is_held_and_goes_on_when_the_limit_is_raised(desk, rate):
    """It finishes its work and returns its exit code as usual."""
    hog = desk.hog(200, rate, options=("--no-refuse",))

    held = desk.stage(hog, "stopped")
    told = desk.run("limit", str(hog.pid), "300M")

    assert 100 * MIB == held["limit_bytes"]
    assert (0, "") == (told.returncode, told.stderr)
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))
    assert "was stopped there: it loses nothing" in hog.output()
    assert f"watchdog limit {hog.pid} " in hog.output()
    assert "continues" in hog.output()


def test_a_slow_leak_is_held_when_it_comes_to_the_limit(desk):
    """A slow growth by single pages triggers the stop too; nothing is killed."""
    hog = desk.hog(400, 40, limit="60M")

    record = desk.stage(hog, "stopped")

    assert record["used_bytes"] > 0.9 * 60 * MIB
    assert hog.poll() is None


def test_one_array_of_three_times_the_limit_is_refused_and_the_program_lives(desk):
    """A MemoryError comes at once; no memory is filled and nothing is stopped."""
    program = desk.start(
        sys.executable, "-S", "-c", JUMP, options=("--limit", "100M", "--reserve", "64M"), stdin=-1
    )

    assert "refused\n" == desk.line(program)
    program.stdin.close()
    assert 0 == desk.end(program)
    assert "held" not in program.output()


def test_without_refusing_the_same_array_is_held_while_it_is_filled(desk):
    """Memory that is already reserved cannot be refused; the program stops, and can be resumed."""
    program = desk.start(
        sys.executable, "-S", "-c", "bytearray(b'x') * (300 << 20)",
        options=("--limit", "100M", "--no-refuse"),
    )  # fmt: skip

    desk.stage(program, "stopped")
    desk.run("limit", str(program.pid), "400M")

    assert 0 == desk.end(program)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_gets_through_to_a_program_that_is_held(desk, number):
    """Ctrl-C and kill work: the user need not know what a guard is."""
    hog = desk.hog(300, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")

    os.kill(hog.pid, number)

    assert -number == desk.end(hog) or (number == signal.SIGINT and 1 == hog.returncode)


def test_ctrl_c_ends_what_needs_more_than_the_reserve_to_end(desk):
    """Python does not handle a signal while it fills an array: the reserve is its last chance."""
    program = desk.start(
        sys.executable, "-S", "-c", "bytearray(b'x') * (900 << 20)",
        options=("--limit", "100M", "--reserve", "16M", "--no-refuse"),
    )  # fmt: skip
    desk.stage(program, "stopped")

    os.kill(program.pid, signal.SIGINT)

    assert 0 != desk.end(program)


def test_limit_ends_what_is_held(desk):
    """The terminal shows the reason."""
    hog = desk.hog(300, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")

    told = desk.run("limit", str(hog.pid), "--end")

    assert 0 == told.returncode
    assert -signal.SIGTERM == desk.end(hog)
    assert "is ended at its memory limit" in hog.output()


def test_a_pause_of_the_daemons_and_its_end_leave_stopped_what_is_stopped(desk):
    """When the machine's memory is short as well, the resume must not carry it beyond its limit."""
    hog = desk.hog(300, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")
    found = read_stat(hog.pid)

    with suppress(ActionError):  # stopped already: there is nothing to pause
        process_control.resume(process_control.pause([ProcessKey(*found.key)]))

    desk.stage(hog, "stopped")
    time.sleep(0.5)
    desk.stage(hog, "stopped")
    assert hog.poll() is None
    assert 0 == desk.run("limit", str(hog.pid), "500M").returncode
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))


def test_a_shell_is_told_that_it_was_stopped_and_fg_meets_the_limit_again(desk):
    """The shell shows its prompt; a SIGCONT from fg loses nothing."""
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",))

    for _ in range(2):
        desk.until(lambda: was_stopped(hog.pid), "the shell would wait for ever")
        desk.stage(hog, "stopped")
        assert "T" == state(hog.pid)
        os.kill(hog.pid, signal.SIGCONT)
    desk.until(lambda: was_stopped(hog.pid), "the shell would wait for ever")
    desk.stage(hog, "stopped")
    raised = desk.run("limit", str(hog.pid), "400M")

    assert 0 == raised.returncode, raised.stderr
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))
    assert "fg brings it back" in hog.output()


def test_what_is_ended_by_a_shell_as_a_stopped_job_ends(desk):
    """`kill %1` sends SIGTERM, then SIGCONT."""
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",))
    desk.stage(hog, "stopped")

    os.kill(hog.pid, signal.SIGTERM)
    os.kill(hog.pid, signal.SIGCONT)

    assert -signal.SIGTERM == desk.end(hog)


def test_who_takes_no_sigstop_is_frozen_instead_and_goes_on_with_more(desk):
    """The kernel drops SIGSTOP for PID 1 of a container: a freeze keeps it at its limit."""
    alone = ("unshare", "--fork", "--pid", "--mount-proc")
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace of its own can be had here")
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",), front=alone)

    record = desk.until(lambda: first_stopped(desk), "never stopped")
    states = [state(pid) for pid in pids_in(record["group"])]
    used = Path(record["group"], "memory.usage_in_bytes").read_text()
    time.sleep(0.5)
    later = Path(record["group"], "memory.usage_in_bytes").read_text()
    raised = desk.run("limit", "1", "400M")
    said, code = hog.stdout.read(), desk.end(hog)
    desk.run("exec", "--limit", "100M", "--", "true")  # its supervisor ended with the namespace

    assert "T" not in states
    assert abs(int(later) - int(used)) < MIB
    assert 0 == raised.returncode, raised.stderr
    assert ("all of it\n", 0) == (said, code)


@pytest.mark.parametrize("depth", [1, 2])
def test_runuser_that_stops_with_its_command_continues_with_it(desk, depth):
    """su and sudo also stop: a script that waits for one of them must not wait for ever."""
    front = ("runuser", "-u", "root", "--") * depth
    hog = desk.hog(200, 0, limit="60M", options=("--no-refuse",), front=front)

    record = desk.until(lambda: first_stopped(desk), "never stopped")
    desk.until(lambda: state(hog.pid) == "T", "runuser never stops")
    raised = desk.run("limit", str(record["pid"]), "400M")

    assert 0 == raised.returncode, raised.stderr
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))


def first_stopped(desk):
    """The record of a guard whose program is stopped, whatever its pid in this namespace."""
    for path in (desk.folder / "run" / "guard").glob("*/guard.json"):
        record = json.loads(path.read_text())
        if record["state"] == "stopped":
            return record
    return None


def was_stopped(pid: int) -> bool:
    """Whether the parent learns that its child has stopped, as a shell does."""
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    return bool(found) and os.WIFSTOPPED(status)


@pytest.mark.parametrize(("choice", "ends_with"), [("end", -signal.SIGTERM), ("go-on", 0)])
def test_what_was_chosen_beforehand_is_done_at_the_limit(desk, choice, ends_with):
    """No user has to be present."""
    hog = desk.hog(200, 0, options=("--no-refuse", "--at-limit", choice))

    assert ends_with == desk.end(hog)


@pytest.mark.parametrize("wanted", [(), ("--go-on",)])
def test_without_a_limit_nothing_is_refused_either(desk, wanted):
    """The limit on reservations that came with the memory limit must go too."""
    options = () if wanted else ("--at-limit", "go-on")
    hog = desk.hog(300, 0, limit="60M", options=("--reserve", "32M", *options))
    if wanted:
        desk.stage(hog, "stopped")
        desk.run("limit", str(hog.pid), *wanted)

    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))
    assert "continues without a memory limit of its own" in hog.output()
    assert "MemoryError" not in hog.output()


def test_a_limit_that_the_machine_does_not_have_is_told_at_the_start(desk):
    """The user must not rely on a guard that cannot act."""
    much = desk.hog(1, limit="900T")
    little = desk.hog(1, limit="60M")

    assert [0, 0] == [desk.end(much), desk.end(little)]
    assert "and that one kills" in much.output()
    assert "and that one kills" not in little.output()


def test_refusing_makes_a_memory_error_of_what_does_not_fit(desk):
    """The program gets an error from its own allocation and can end as it likes."""
    hog = desk.hog(400, 0, options=("--no-refuse", "--at-limit", "refuse"))

    code = desk.end(hog)

    # Without a limit on reservations nothing can be refused, so the guard ends it.
    assert code in (-signal.SIGTERM, -signal.SIGKILL)


def test_nobody_waits_for_ever_where_a_time_was_set(desk):
    """After `--hold-for` the guard ends the program."""
    hog = desk.hog(300, 0, options=("--no-refuse", "--hold-for", "300ms"))

    assert -signal.SIGTERM == desk.end(hog)
    assert "no decision came within the time of --hold-for" in hog.output()


def test_a_flood_of_page_cache_holds_nobody(desk):
    """The kernel reclaims the cache: a program that reads and writes files is not stopped."""
    code = f"""
block = b"x" * (1 << 20)
with open({str(desk.folder / "flood")!r}, "wb") as file:
    for _ in range(300):
        file.write(block)
print("through", flush=True)
"""
    program = desk.start(sys.executable, "-S", "-c", code, options=("--limit", "80M"))

    assert ("through\n", 0) == (program.stdout.read(), desk.end(program))
    assert "held" not in program.output()


def test_a_tmpfs_that_fills_up_is_an_error_of_the_program_or_held_never_a_kill(desk):
    """Files in memory cannot be reclaimed; writing them fails, touching them waits."""
    path = f"/dev/shm/watchdog-test-{os.getpid()}"
    code = f"""
import mmap, os, sys
fd = os.open({path!r}, os.O_RDWR | os.O_CREAT, 0o600)
try:
    for _ in range(300):
        os.write(fd, b"x" * (1 << 20))
except OSError as error:
    print(error.errno, flush=True)
os.ftruncate(fd, 0)
sys.exit(5)
"""
    program = desk.start(sys.executable, "-S", "-c", code, options=("--limit", "80M"))
    try:
        desk.until(
            lambda: (
                program.poll() is not None or (desk.record(program) or {}).get("state") == "stopped"
            ),
            "neither ended nor held",
        )
        # Python itself may fail to report the error, and exit: it was not killed.
        assert program.poll() in (None, 1, 5), program.output()
    finally:
        Path(path).unlink(missing_ok=True)


def test_a_storm_of_forks_stands_still_as_a_whole_and_can_be_ended(desk):
    """All its processes stop together."""
    words = (sys.executable, "-S", "-c", STORM)
    storm = desk.start(*words, options=("--limit", "120M", "--no-refuse"))

    desk.stage(storm, "stopped")
    folder = guard_folder(storm.pid, "memory")
    everyone = pids_in(folder)
    time.sleep(0.3)
    later = pids_in(folder)
    desk.run("limit", str(storm.pid), "--end")

    assert len(everyone) > 10
    assert everyone == later
    desk.end(storm)
    desk.until(lambda: not os.path.exists(folder), "the group is left")


def test_a_limit_is_lowered_and_raised_while_the_program_runs(desk):
    """Below its usage it stops at once, also while it waits; after the raise it continues."""
    program = desk.start(
        sys.executable, "-S", "-u", "-c",
        "a = bytearray(b'x') * (60 << 20); print(1); input(); b = a[: 5 << 20]; print(2)",
        options=("--limit", "200M"), stdin=-1,
    )  # fmt: skip
    desk.line(program)

    lowered = desk.run("limit", str(program.pid), "50M")
    desk.stage(program, "stopped")
    desk.run("limit", str(program.pid), "200M")
    program.stdin.write("\n")
    program.stdin.flush()

    assert "already, so it is at its limit now" in lowered.stdout
    assert ("2\n", 0) == (program.stdout.read(), desk.end(program))


def test_ctrl_z_and_fg_work_in_a_guard(desk):
    """Job control works between the program and its shell."""
    program = desk.start("sleep", "30", options=("--limit", "100M"))
    desk.until(lambda: desk.record(program), "no guard")

    os.kill(program.pid, signal.SIGTSTP)
    desk.until(lambda: state(program.pid) == "T", "not stopped")
    os.kill(program.pid, signal.SIGCONT)
    desk.until(lambda: state(program.pid) == "S", "not continued")

    os.kill(program.pid, signal.SIGTERM)
    assert -signal.SIGTERM == desk.end(program)


def test_exec_within_a_guard_makes_no_second_one(desk):
    """A script that itself uses `watchdog exec` is in the guard already."""
    inner = [sys.executable, "-m", "watchdog_app", "exec", "--", "cat", "/proc/self/cgroup"]
    program = desk.start(*inner, options=("--limit", "200M"))

    said = program.stdout.read()

    assert 0 == desk.end(program)
    assert f"watchdog-guard-{program.pid}-" in said
    assert "the one that is around this shell already" in program.output()


def test_in_a_limited_container_the_limit_leaves_room_for_the_reserve(desk):
    """Without --limit it is the tightest enclosing group's memory, less margin and reserve."""
    group = desk.group(400)

    program = desk.start("sleep", "30", options=("--reserve", "64M"), group=group)
    record = desk.until(lambda: desk.record(program), "no guard")

    assert record["follows_machine"]
    assert 200 * MIB < record["limit_bytes"] < (400 - 64) * MIB
    assert record["group"].startswith(group)


def test_two_that_race_in_one_container_are_both_alive_and_one_waits_for_the_other(desk):
    """
    The container's limit kills neither; when one has ended, the other continues automatically.
    """
    group = desk.group(540)
    words = (sys.executable, "-S", "-c", HOLDING, "230")
    options = ("--reserve", "32M", "--no-refuse")

    both = [desk.start(*words, options=options, group=group, stdin=-1) for _ in range(2)]
    desk.until(
        lambda: (
            any((desk.record(each) or {}).get("state") == "stopped" for each in both)
            or all(each.poll() is not None for each in both)
        ),
        "neither was held",
    )
    assert [None, None] == [each.poll() for each in both]
    for each in both:
        each.stdin.close()

    assert [0, 0] == [desk.end(each) for each in both]
    assert 0 == kills(group)


HOLDING = """
import sys, time
held = []
for _ in range(int(sys.argv[1])):
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.005)
sys.stdin.read()
"""


def kills(group: str) -> int:
    for line in Path(group, "memory.oom_control").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return -1


# Like a training that an agent saves at SIGTERM. As in one, most threads are without Python.
HANDLED = """
import ctypes, faulthandler, signal, sys, time
libc = ctypes.CDLL(None)
for _ in range(40):
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
faulthandler.register(signal.SIGTERM, file=sys.stdout, all_threads=False)
held = []
while True:
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.01)
"""


def test_the_main_thread_of_a_held_program_gets_the_signal_that_ends_it(desk):
    """Another thread may be the first to run again; there the agent learns of no signal."""
    words = (sys.executable, "-S", "-c", HANDLED)
    program = desk.start(*words, options=("--limit", "100M", "--at-limit", "hold", "--no-refuse"))
    desk.stage(program, "stopped")

    desk.run("limit", str(program.pid), "--end")

    assert "most recent call first" in desk.line(program)
