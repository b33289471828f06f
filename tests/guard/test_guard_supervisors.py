"""Supervisors of real guards (cgroup v1): killed alone, with their standby, or with the guard."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from guard_desk import MIB, state
from support.finished import finished


def test_the_supervisor_is_started_anew_when_it_is_killed_and_still_lets_go(desk):
    """After two kill -9 the program is still stopped, and its limit can be raised."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    killed = set()
    for _ in range(2):
        record = desk.stage(hog, "stopped")
        os.kill(record["supervisor_pid"], signal.SIGKILL)
        killed.add(record["supervisor_pid"])
        desk.until(
            lambda: (desk.record(hog) or {}).get("supervisor_pid") not in killed, "not again"
        )
        assert hog.poll() is None

    told = desk.run("limit", str(hog.pid), "400M")

    assert 0 == told.returncode, told.stderr
    assert 0 == desk.end(hog)


def test_a_new_supervisor_knows_the_limit_that_was_given_since(desk):
    """
    The limit was lowered before the supervisor was killed: the new one uses the lowered limit.
    """
    program = desk.start(
        sys.executable, "-S", "-c", "input(); bytearray(b'x') * (120 << 20)",
        options=("--limit", "200M", "--no-refuse"), stdin=-1,
    )  # fmt: skip
    first = desk.stage(program, "running")["supervisor_pid"]
    told = desk.run("limit", str(program.pid), "60M")
    os.kill(first, signal.SIGKILL)
    desk.until(lambda: desk.record(program)["supervisor_pid"] != first, "not again")

    program.stdin.write("\n")
    program.stdin.flush()

    assert 0 == told.returncode, told.stderr
    assert 60 * MIB == desk.stage(program, "stopped")["limit_bytes"]


def test_the_standby_is_started_anew_too(desk):
    """Otherwise the next end of the supervisor would end the guard."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    record = desk.stage(hog, "stopped")

    os.kill(record["standby_pid"], signal.SIGKILL)

    again = desk.until(
        lambda: (pid := desk.record(hog)["standby_pid"]) not in (0, record["standby_pid"]) and pid,
        "no standby again",
    )
    assert state(again) not in ("", "Z")
    assert "stopped" == desk.record(hog)["state"]


def test_supervisors_that_end_again_and_again_give_the_limit_back_to_the_kernel(desk):
    """The program must not wait for ever, and supervisors must not restart for ever."""
    program = desk.start("sleep", "60", options=("--limit", "100M"))
    comm = Path(f"/proc/{program.pid}/comm")
    desk.until(lambda: comm.read_text() == "sleep\n", "it never began")
    killed = {None}
    for _ in range(6):
        pid = desk.until(
            lambda: (
                pid := (desk.record(program) or {}).get("supervisor_pid", None)
            ) not in killed and pid,
            "not again",
        )  # fmt: skip
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    control = Path(desk.record(program)["group"], "memory.oom_control")

    desk.until(lambda: "oom_kill_disable 0" in control.read_text(), "it still holds")
    alive = program.poll() is None
    program.kill()
    program.wait()
    desk.run("exec", "--limit", "100M", "--", "true")

    assert alive
    assert desk.record(program) is None


def kill_both(desk, process):
    """Kill the supervisor and its standby together, so that neither can start the other."""
    record = desk.record(process)
    pids = [record["standby_pid"], record["supervisor_pid"]]
    assert 0 not in pids
    os.kill(pids[0], signal.SIGSTOP)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)
    desk.until(lambda: all(state(pid) in ("", "Z") for pid in pids), "they live")
    return pids


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [("400M", 0, "is 400 MiB now"), ("--go-on", 0, "without a limit of its own"),
     ("--end", -signal.SIGTERM, "is being ended")],
)  # fmt: skip
def test_what_is_held_without_any_supervisor_gets_one_from_whoever_wants_something(
    desk, wanted, code, said
):
    """After both were killed, nothing claims that the program has ended, and nothing kills it."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")
    kill_both(desk, hog)

    told = desk.run("limit", str(hog.pid), wanted)

    assert (0, "") == (told.returncode, told.stderr)
    assert said in told.stdout
    assert code == desk.end(hog)


def test_what_is_held_without_any_supervisor_gets_one_from_the_next_exec(desk):
    """It stays stopped at its limit with its work, and its limit can be raised."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")
    before = kill_both(desk, hog)

    desk.run("exec", "--limit", "100M", "--", "true")

    record = desk.record(hog)
    assert "stopped" == record["state"]
    assert not {record["supervisor_pid"], record["standby_pid"]} & {*before, 0}
    assert hog.poll() is None
    desk.run("limit", str(hog.pid), "400M")
    assert ("all of it\n", 0) == (hog.stdout.read(), desk.end(hog))


def test_an_empty_group_that_nobody_keeps_goes_at_the_next_occasion(desk):
    """Its record goes too; a group with a present or coming process stays, in any namespace."""
    program = desk.start("sleep", "60", options=("--limit", "100M"))
    record = desk.until(
        lambda: (found := desk.record(program)) and found["supervisor_pid"] and found, "no guard"
    )
    parent = os.path.dirname(record["group"])
    names = ("999999999-1", own_name(), "999999998-1")
    stray, coming, of_another_namespace = (f"{parent}/watchdog-guard-{each}" for each in names)
    for folder in (stray, coming, of_another_namespace):
        os.mkdir(folder)
    os.utime(stray, (0, 0))
    try:
        kill_both(desk, program)
        program.kill()
        program.wait()

        desk.run("exec", "--limit", "100M", "--", "true")

        desk.until(lambda: not os.path.exists(record["group"]), "the group is left")
        desk.until(lambda: desk.record(program) is None, "the record is left")
        assert not os.path.exists(stray)
        assert os.path.exists(coming)
        assert os.path.exists(of_another_namespace)
    finally:
        for folder in (stray, coming, of_another_namespace):
            with suppress(OSError):
                os.rmdir(folder)


def own_name():
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    return f"{os.getpid()}-{fields[19]}"


def test_everything_is_gone_when_the_program_has_ended(desk):
    """This covers group, freezer, folder, sockets, supervisor and standby."""
    program = desk.start("sleep", "0.5", options=("--limit", "100M"))
    record = desk.until(lambda: desk.record(program), "no guard")
    record = desk.until(
        lambda: (desk.record(program) or {}).get("standby_pid") and desk.record(program),
        "no standby",
    )

    desk.end(program)

    desk.until(lambda: not os.path.exists(record["group"]), "the group is left")
    desk.until(
        lambda: not Path(f"/proc/{record['supervisor_pid']}").exists(), "the supervisor is left"
    )
    desk.until(lambda: state(record["standby_pid"]) in ("", "Z"), "the standby is left")
    assert desk.record(program) is None


OFFERS = """
import os, sys, time
from watchdog_app.rescue.segment import exchange
from watchdog_app.rescue.segment.segment import Segment
segment = Segment()
exchange.offer(os.path.join(os.environ["WATCHDOG_GUARD"], exchange.SOCKET), "/", segment.fd)
print("offered", flush=True)
time.sleep(60)
"""


def test_another_supervisor_has_what_the_trainings_handed_to_the_first(desk):
    """Also of a training that is stopped, which can hand over nothing anew."""
    program = desk.start(sys.executable, "-c", OFFERS, options=("--limit", "100M"))
    assert "offered" in desk.line(program)
    first = desk.until(lambda: (found := desk.record(program)) and found["agents"] and found, "no")
    os.kill(program.pid, signal.SIGSTOP)
    killed = set()
    for _ in range(2):
        pid = desk.record(program)["supervisor_pid"]
        desk.until(lambda: desk.record(program)["standby_pid"], "no standby")
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        desk.until(lambda: desk.record(program)["supervisor_pid"] not in killed, "not again")
    taken = desk.record(program)["supervisor_pid"]

    held = desk.until(lambda: handed_over(taken), "it has nothing")

    assert 1 == first["agents"]
    assert {"/memfd:watchdog-segment (deleted)", f"/proc/{program.pid}/mem"} == held
    program.kill()
    program.wait()


def handed_over(pid):
    """The segments and memories of which a process has a descriptor."""
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return {each for each in links if "watchdog-segment" in each or each.endswith("/mem")}


def test_a_supervisor_and_its_standby_are_small(desk):
    """Each program has two of them: 12 MB and 8 MB when measured."""
    program = desk.start("sleep", "60", options=("--limit", "100M"))
    record = desk.until(
        lambda: (found := desk.record(program)) and found["standby_pid"] and found, "no guard"
    )

    supervisor, standby = (resident_mib(record[name]) for name in ("supervisor_pid", "standby_pid"))

    bare = float(finished([sys.executable, "-I", "-S", "-c", BARE], check=True).stdout)
    assert 0 < supervisor < bare + 5
    assert 0 < standby < bare + 2


BARE = "print([int(e.split()[1]) / 1024 for e in open('/proc/self/status') if 'VmRSS' in e][0])"


def resident_mib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
