"""The state of a process's threads, from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from watchdog_app.base.linux.process import Stat
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.sensors import thread_dump


def stat(pid: int, name: str, state: str, ppid: int = 1, *, count: int = 1) -> bytes:
    """A line of /proc/PID/stat; 33 pages were read from a disk."""
    fields = [state, ppid, pid, pid, 0, -1, 0, 10, 0, 33, 0, 5, 6, 0, 0, 20, 0, count, 0, 500]
    fields += [4096, 10, 2**64 - 1, *range(1, 20), 0, 0, 0]
    return f"{pid} ({name}) {' '.join(map(str, fields))}\n".encode()


@pytest.fixture
def proc(tmp_path: Path):
    """A program with two threads and a worker, and a child that has ended."""

    def thread(pid: int, tid: int, line: bytes, **files: str) -> None:
        folder = tmp_path / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "stat").write_bytes(line)
        for name, text in files.items():
            (folder / name).write_text(text)

    thread(10, 10, stat(10, "python", "S"), wchan="futex_do_wait", children="20 30 ",
           syscall="202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffe 0x7f11\n",
           stack="[<0>] futex_do_wait+0x3c/0x70\n"
                 "[<0>] __futex_wait.constprop.0+0x1/0x2\n")  # fmt: skip
    thread(10, 11, stat(11, ") Z (", "R"), wchan="0", syscall="running\n")
    (tmp_path / "10" / "stat").write_bytes(stat(10, "python", "S", count=2))
    thread(20, 20, stat(20, "python", "D", ppid=10), wchan="rpc_wait_bit_killable")
    (tmp_path / "20" / "stat").write_bytes(stat(20, "python", "D", ppid=10))
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "stat").write_bytes(stat(30, "python", "Z", ppid=10, count=0))
    return tmp_path


def test_each_thread_is_read_with_where_it_waits(proc):
    """The main thread comes first; a name may hold anything; unreadable values are unknown."""
    program, worker, ended = thread_dump.dump(
        [ProcessKey(10, 500), ProcessKey(20, 500)], str(proc), "x86_64"
    )

    first, second = program.threads
    assert (10, "S", "futex_do_wait", "futex") == (
        first.tid,
        first.state,
        first.wchan,
        first.syscall,
    )
    assert ("futex_do_wait", "__futex_wait") == first.kernel
    assert (11, ") Z (", "R", None, None) == (
        second.tid, second.name, second.state, second.wchan, second.syscall
    )  # fmt: skip
    assert 2 == program.thread_count
    assert ("rpc_wait_bit_killable", None, ()) == (
        worker.threads[0].wchan, worker.threads[0].syscall, worker.threads[0].kernel
    )  # fmt: skip
    assert (30, 10, "Z", ()) == (ended.pid, ended.ppid, ended.state, ended.threads)


def test_a_pid_that_another_process_has_by_now_is_not_read(proc):
    """The pid and the start time are the identity."""
    assert () == thread_dump.dump([ProcessKey(10, 501), ProcessKey(77, 1)], str(proc))


def test_system_calls_of_an_unknown_machine_are_unknown(proc):
    """The numbers differ between architectures."""
    (program, *_) = thread_dump.dump([ProcessKey(10, 500)], str(proc), "riscv64")

    assert program.threads[0].syscall is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_real_process_is_read():
    """A sleeping child has a sleeping thread; an ended one is a zombie until it is reaped."""
    code = "import os, time; os.fork() or os._exit(0); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        key = ProcessKey(child.pid, Stat(Path(f"/proc/{child.pid}/stat").read_bytes()).start_ticks)
        end = time.monotonic() + 10
        while True:
            found = thread_dump.dump([key])
            if len(found) == 2 and found[0].threads[0].state == "S":
                break
            assert time.monotonic() < end, found
            time.sleep(0.02)

        process, ended = found
        assert (child.pid, os.getpid()) == (process.pid, process.ppid)
        assert process.threads[0].wchan not in ("", "0")
        assert ("Z", child.pid) == (ended.state, ended.ppid)
    finally:
        child.kill()
        child.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_our_own_threads_are_counted():
    """At least as many as Python has."""
    stop = threading.Event()
    mine = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in mine:
        thread.start()
    try:
        start = Stat(Path("/proc/self/stat").read_bytes()).start_ticks
        (own, *_) = thread_dump.dump([ProcessKey(os.getpid(), start)])
        assert {thread.native_id for thread in mine} <= {thread.tid for thread in own.threads}
        assert own.thread_count >= 4
    finally:
        stop.set()
        for thread in mine:
            thread.join()
