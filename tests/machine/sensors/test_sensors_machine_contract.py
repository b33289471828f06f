"""One contract for every machine: /proc and psutil must report the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from watchdog_app.base.errors import Gone
from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.machine.sensors import open_machine
from watchdog_app.machine.sensors.machine import LinuxMachine, Machine
from watchdog_app.machine.sensors.portable import PortableMachine

SLEEPER = "import sys; b = bytearray(b'x' * (40 << 20)); print(flush=True); sys.stdin.read()"
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sh", "-c", f"{sys.executable} -c 'import sys; sys.stdin.read()'; true"])
print(flush=True)
child.wait()
"""


@pytest.fixture(params=["proc", "psutil"])
def machine(request) -> Iterator[Machine]:
    """This machine, read in both ways."""
    found: Machine
    found = LinuxMachine() if request.param == "proc" else PortableMachine()
    yield found
    found.close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start Python processes that report when they are ready; end them afterwards."""
    started = []

    def begin(*arguments: str, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def take_sample(machine: Machine, ticks: int = 1):
    """The last of some ticks, a second apart by the machine's clock."""
    take_sample.now = getattr(take_sample, "now", 0.0)
    for _ in range(ticks):
        take_sample.now += 1.0
        snapshot = machine.sample(take_sample.now, time.time())
    return snapshot


def sample_with(machine: Machine, pid: int):
    """The first sample with this process, which a busy machine may find only later."""
    end = time.monotonic() + 20
    while key_of(snapshot := take_sample(machine), pid) is None and time.monotonic() < end:
        time.sleep(0.05)
    return snapshot


def tasks_of(snapshot, leader: int):
    """The tasks in the session of a started process: the tests' own Pythons are outside it."""
    found = []
    for sample in snapshot.processes:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(sample.key.pid) == leader:
                found.append(sample)
    return group_processes(tuple(found), snapshot.infos)


def key_of(snapshot, pid: int) -> ProcessKey | None:
    """The key of a watched pid."""
    return next((key for key in snapshot.infos if key.pid == pid), None)


def test_python_process_is_found_with_its_figures(machine, start):
    """psutil reads the same process at the same time."""
    process = start("-c", SLEEPER)

    snapshot = sample_with(machine, process.pid)
    sample = next(s for s in snapshot.processes if s.key.pid == process.pid)
    info = snapshot.infos[sample.key]
    truth = psutil.Process(process.pid)

    assert truth.memory_info().rss == pytest.approx(sample.rss_bytes, abs=1 << 20)
    assert sample.rss_bytes > 40 << 20
    assert truth.memory_info().vms == sample.vsize_bytes
    assert os.getpid() == sample.ppid
    assert sample.state in "RS"
    # psutil's start times have the second of the boot as their base.
    assert truth.create_time() == pytest.approx(info.started_unix_s, abs=1.5)
    assert (TaskKind.PYTHON, os.getuid()) == (info.kind, info.uid)
    assert os.path.realpath(sys.executable) == os.path.realpath(info.exe)


def test_script_is_named_and_placed(machine, start, tmp_path):
    """Relative to the folder in which it was started."""
    (tmp_path / "train.py").write_text(SLEEPER)
    process = start("train.py", cwd=tmp_path)

    snapshot = sample_with(machine, process.pid)
    info = snapshot.infos[key_of(snapshot, process.pid)]

    assert (TaskKind.SCRIPT, "train.py") == (info.kind, info.name)
    assert os.path.realpath(tmp_path / "train.py") == os.path.realpath(info.script)


def test_process_that_ends_is_gone(machine, start):
    """From the next sample on, also by its key, and even as a zombie."""
    process = start("-c", SLEEPER)
    key = key_of(sample_with(machine, process.pid), process.pid)
    alive = machine.alive(key)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped

    snapshot = take_sample(machine)

    assert alive
    assert not machine.alive(key)
    assert key_of(snapshot, process.pid) is None
    with pytest.raises(Gone):
        machine.read_process(key)


def test_key_of_another_start_is_not_alive(machine):
    """A pid alone is not an identity."""
    assert not machine.alive(ProcessKey(os.getpid(), 1))
    with pytest.raises(Gone):
        machine.read_process(ProcessKey(os.getpid(), 1))


def test_stopped_process_shows_it(machine, start):
    """State T, and a task that is paused."""
    process = start("-c", SLEEPER)
    sample_with(machine, process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    snapshot = take_sample(machine)
    tasks = tasks_of(snapshot, process.pid)

    assert next(task for task in tasks if task.key.pid == process.pid).paused


def test_child_below_a_shell_belongs_to_its_task(machine, start):
    """Python, sh and Python are one task with two members."""
    process = start("-c", PARENT)
    end = time.monotonic() + 10
    task = None
    while time.monotonic() < end and (task is None or len(task.members) < 2):
        snapshot = take_sample(machine)
        tasks = tasks_of(snapshot, process.pid)
        task = next((task for task in tasks if task.key.pid == process.pid), None)
        time.sleep(0.05)

    assert task is not None
    assert 2 == len(task.members)
    assert process.pid != task.members[1].ppid


def test_shell_that_execs_python_is_found(machine, start):
    """Same pid, same start time, another program."""
    shell = subprocess.Popen(
        ["sh", "-c", f"read line; exec {sys.executable} -c 'import sys; sys.stdin.read()'"],
        stdin=subprocess.PIPE,
    )
    try:
        before = key_of(take_sample(machine), shell.pid)
        shell.stdin.write(b"go\n")
        shell.stdin.flush()
        end = time.monotonic() + 10
        while (after := key_of(take_sample(machine), shell.pid)) is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        shell.kill()
        shell.communicate()

    assert before is None
    assert after is not None


def test_watchdog_and_this_process_are_not_watched(machine, start, tmp_path):
    """The installed command is recognised by its program; a script with that name is watched."""
    for name in ("bin/watchdog", "watchdog.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SLEEPER)
    own = start(str(tmp_path / "bin/watchdog"), "run")
    other = start(str(tmp_path / "watchdog.py"), "run")

    sample_with(machine, other.pid)
    snapshot = take_sample(machine, ticks=2)

    assert key_of(snapshot, os.getpid()) is None
    assert key_of(snapshot, own.pid) is None
    assert key_of(snapshot, other.pid) is not None


def test_host_agrees_with_psutil(machine):
    """The values may differ by what changes between two readings."""
    truth = psutil.virtual_memory()

    host = take_sample(machine).host

    assert truth.total == host.total_bytes
    assert host.available_bytes == pytest.approx(truth.available, abs=0.05 * truth.total)
    assert psutil.swap_memory().total == host.swap_total_bytes


def test_disk_is_watched_as_asked(machine, tmp_path):
    """It is dropped on request too."""
    machine.watch_disks([str(tmp_path)])
    watched = take_sample(machine).gauges
    machine.watch_disks([])

    assert [str(tmp_path)] == [disk.subject for disk in watched]
    assert 0 <= watched[0].used < watched[0].limit
    assert () == take_sample(machine).gauges


def test_machine_is_chosen_by_platform():
    """Linux uses /proc, other systems use psutil."""
    linux, other = open_machine(platform="linux"), open_machine(platform="darwin")

    assert isinstance(linux, LinuxMachine)
    assert isinstance(other, PortableMachine)
    linux.close()
    other.close()


def test_hardware_is_in_the_snapshot(machine):
    """Missing hardware gives an empty result without a fault."""
    snapshot = take_sample(machine, ticks=2)

    assert all(0.0 < each.celsius < 127.0 for each in snapshot.hardware.temperatures)
    assert "hardware" not in [fault.source for fault in snapshot.faults]
