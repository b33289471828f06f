"""New processes, and when a process is checked for having become Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.base.linux.process import Stat
from watchdog_app.core.policy.cadence import LONGEST_S
from watchdog_app.machine.sensors import discovery as module
from watchdog_app.machine.sensors.discovery import Discovery, has_last_pid
from watchdog_app.machine.sensors.machine import LinuxMachine

WAIT_S = 20.0
IDLE = "import signal; signal.pause()"


@pytest.fixture
def machine():
    found = LinuxMachine()
    found.sample(time.monotonic(), time.time())
    yield found
    found.close()


def samples_until_seen(machine: LinuxMachine, pid: int, begun_mono_s: float) -> float:
    """Seconds of the daemon's clock until a process is watched, at the longest interval."""
    now, end = begun_mono_s, time.monotonic() + WAIT_S
    while time.monotonic() < end:
        now += LONGEST_S
        if pid in {each.key.pid for each in machine.sample(now, time.time()).processes}:
            return now - begun_mono_s
    raise AssertionError("never seen")


def runs_python(pid: int) -> bool:
    return "python" in os.readlink(f"/proc/{pid}/exe")


def wait_for_python(pid: int) -> None:
    end = time.monotonic() + WAIT_S
    while not runs_python(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_python_that_begins_is_watched_within_four_seconds(machine: LinuxMachine):
    """It works without a list of all processes."""
    now = time.monotonic()
    machine._processes._discovery._listed_mono_s = now + 1000.0
    with subprocess.Popen([sys.executable, "-c", IDLE]) as process:
        try:
            wait_for_python(process.pid)
            assert samples_until_seen(machine, process.pid, now) <= 4.0
        finally:
            process.kill()


@pytest.mark.parametrize("young_s", [0.0, 6.0])
def test_a_shell_that_becomes_python_is_watched_within_four_seconds(
    machine: LinuxMachine, tmp_path: Path, young_s: float
):
    """The shell prepares for some seconds and then execs Python."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    now = time.monotonic()
    argv = ["sh", "-c", f"read x < {gate}; exec {sys.executable} -c '{IDLE}'"]
    with subprocess.Popen(argv) as process:
        try:
            found = machine.sample(now, time.time())
            now += young_s
            found = machine.sample(now, time.time())
            assert process.pid not in {each.key.pid for each in found.processes}
            gate.write_text("go\n")
            wait_for_python(process.pid)
            assert samples_until_seen(machine, process.pid, now) <= 4.0
        finally:
            process.kill()


def test_an_old_shell_that_becomes_python_is_watched_when_it_starts_a_thread(
    machine: LinuxMachine, tmp_path: Path
):
    """Even with so many processes that its regular check would come minutes later."""
    program = tmp_path / "late.py"
    program.write_text("import signal, threading\nthreading.Thread(target=signal.pause).start()\n")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    argv = ["sh", "-c", f"read x < {gate}; exec {sys.executable} {program}"]
    discovery = machine._processes._discovery
    with subprocess.Popen(argv) as process:
        try:
            now = time.monotonic()
            machine.sample(now, time.time())
            # As if it had existed for an hour: never young, and not due for long.
            discovery._young.clear()
            del discovery._known[:]
            discovery._listed_mono_s = now + 1000.0

            gate.write_text("go\n")
            end = time.monotonic() + WAIT_S
            while len(os.listdir(f"/proc/{process.pid}/task")) < 2:
                assert time.monotonic() < end
                time.sleep(0.01)

            assert samples_until_seen(machine, process.pid, now) <= 4.0
        finally:
            process.kill()


def test_a_thread_of_a_watched_process_is_not_asked():
    """Its process is checked instead: a new thread suggests that it may have become Python."""
    begun, over = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        over.wait(WAIT_S)

    for watched, expected in (((os.getpid(),), False), ((), True)):
        discovery = Discovery("/proc", watched)
        discovery.scan(0.0)
        discovery.scan(30.0)
        discovery.new_pids.clear()
        begun.clear()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert begun.wait(WAIT_S)
            discovery.scan(31.0)
            assert expected is (os.getpid() in discovery.new_pids)
            assert thread.native_id not in discovery.new_pids
            assert os.getpid() not in discovery._young  # checking it would read its memory map
        finally:
            over.set()
            thread.join()
            over.clear()
            discovery.close()


def test_a_pid_that_was_given_out_before_its_process_is_there_is_asked_again(monkeypatch):
    """It is asked once more, at the next sample, because most of such pids have ended."""
    asked: list[str] = []
    there, real = False, module.read_or_empty

    def read(path: str, most: int) -> bytes:
        asked.append(path)
        return real(path, most) if there else b""

    discovery = Discovery("/proc")
    discovery.scan(0.0)
    discovery.scan(1.0)
    discovery.new_pids.clear()
    monkeypatch.setattr(module, "read_or_empty", read)
    with subprocess.Popen([sys.executable, "-c", IDLE]) as process:
        try:
            discovery.scan(2.0)
            assert process.pid not in discovery.new_pids
            there = True
            discovery.scan(3.0)
            assert process.pid in discovery.new_pids
            assert process.pid in discovery._young

            there = False
            with subprocess.Popen(["true"]) as ended:
                ended.wait()
            for now in (4.0, 5.0, 6.0):
                discovery.scan(now)
            assert 2 == asked.count(f"/proc/{ended.pid}/status")
        finally:
            process.kill()
            discovery.close()


def test_a_pid_file_of_another_kernel_is_not_believed(tmp_path: Path):
    """lxcfs mounts its own file over /proc/loadavg, with the pids of another namespace."""
    program = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.unshare(0x20000) == 0\n"  # CLONE_NEWNS
        "assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n"  # private, recursive
        f"own = {os.fsencode(tmp_path / 'own')!r}\n"
        "assert libc.mount(own, b'/proc/loadavg', None, 4096, None) == 0\n"
        "from watchdog_app.machine.sensors.discovery import has_last_pid\n"
        "print(has_last_pid('/proc'))\n"
    )
    (tmp_path / "own").write_text("0.00 0.01 0.05 1/300 12345\n")
    done = finished([sys.executable, "-c", program])
    if done.returncode and os.getuid():
        pytest.skip("only root lays a file over another here")

    assert ("False\n", "") == (done.stdout, done.stderr)
    assert has_last_pid("/proc")


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_a_program_that_becomes_ours_after_it_began_as_roots_is_not_given_up():
    """sudo, cron: a process that may not be read yet is checked again."""
    program = (
        "import os, pwd, resource, sys, time\n"  # imported while they are still readable
        "from watchdog_app.machine.sensors.machine import LinuxMachine\n"
        "os.setgid(65534); os.setgroups([]); os.setuid(65534)\n"
        "machine = LinuxMachine()\n"
        "machine.sample(time.monotonic(), time.time())\n"
        "print('ready', flush=True)\n"
        "pid = int(sys.stdin.readline())\n"
        "end, seen = time.monotonic() + 9, False\n"
        "while time.monotonic() < end and not seen:\n"
        "    found = machine.sample(time.monotonic(), time.time())\n"
        "    seen = pid in {each.key.pid for each in found.processes}\n"
        "    time.sleep(0.5)\n"
        "print(seen)\n"
    )
    # Only root may read the interpreter of these tests; a program's name identifies it.
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    interpreter = shutil.copy("/bin/sleep", f"{folder}/python3")
    becoming = (
        f"import os, sys, time; time.sleep(2); os.setgid(65534); os.setuid(65534); "
        f"os.execv({interpreter!r}, ['python3', '60'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout
        assert "ready\n" == reader.stdout.readline()
        with subprocess.Popen([sys.executable, "-c", becoming]) as becomer:
            try:
                out, _ = reader.communicate(f"{becomer.pid}\n", WAIT_S)
            finally:
                becomer.kill()
                shutil.rmtree(folder)

    assert "True\n" == out


def processes(folder: Path, pids: range) -> None:
    for pid in pids:
        (folder / str(pid)).mkdir()


def test_another_proc_is_listed_at_each_look(tmp_path: Path):
    """Nothing else reports its new pids."""
    elsewhere = Discovery(str(tmp_path))
    processes(tmp_path, range(5, 8))

    assert frozenset((5, 6, 7)) == elsewhere.scan(0.0).existing
    assert [5, 6, 7] == list(elsewhere.new_pids)
    elsewhere.new_pids.clear()
    processes(tmp_path, range(8, 9))
    assert frozenset((5, 6, 7, 8)) == elsewhere.scan(1.0).existing
    assert [8] == list(elsewhere.new_pids)


def test_a_process_is_asked_often_while_young_and_in_turn_later(tmp_path: Path):
    """Every process within about 20 s, unless there are too many."""
    processes(tmp_path, range(5, 305))
    discovery = Discovery(str(tmp_path))
    asked: dict[int, list[float]] = {}

    for turn in range(100):
        now = turn * LONGEST_S
        for pid in discovery.scan(now).recheck:
            asked.setdefault(pid, []).append(now)

    assert set(range(5, 305)) == set(asked)
    for times in asked.values():
        assert max(b - a for a, b in pairwise(times)) <= 25.0
    assert [LONGEST_S * turn for turn in range(1, 6)] == asked[304][:5]


def test_no_look_asks_more_than_some_of_thousands(tmp_path: Path):
    """5,000 processes at once would delay the sample; each gets its turn."""
    processes(tmp_path, range(1000, 4000))
    discovery = Discovery(str(tmp_path))
    discovery.scan(0.0)
    discovery.scan(20.0)  # every process is old now

    asked = [discovery.scan(22.0 + LONGEST_S * turn).recheck for turn in range(60)]

    assert max(map(len, asked)) <= 64
    assert 3000 == len({pid for turn in asked for pid in turn})


@pytest.mark.parametrize(
    ("line", "thread"),
    [
        (b"2 (kthreadd) S 0 0 0 0 -1 2129984" + 20 * b" 0", True),
        (b"2 (a) b) S 1 2 2 0 -1 4194560" + 20 * b" 0", False),
    ],
)
def test_a_kernel_thread_is_told_by_its_flags(line: bytes, thread: bool):
    """PF_KTHREAD; in a container process 2 can be any program."""
    assert thread is Stat(line).is_kernel_thread
