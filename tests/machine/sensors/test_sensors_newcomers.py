"""Whether a Python has begun, and who is asked when whether it has become one."""

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
from sensor_trees import Tree

from watchdog_app.base.linux.process import Stat, status_words
from watchdog_app.core.policy.glance import GLANCE_S
from watchdog_app.machine.sensors.bystanders import Bystanders
from watchdog_app.machine.sensors.machine import Machine
from watchdog_app.machine.sensors.newcomers import Newcomers, tells_pids

WAIT_S = 20.0
IDLE = "import signal; signal.pause()"


@pytest.fixture
def newcomers():
    found = Newcomers("/proc", 0, 1)
    found.listed()
    yield found
    found.close()


def seen(newcomers: Newcomers, argv: list[str], turns: float = WAIT_S) -> bool:
    """Whether a glance notices this program while it runs."""
    with subprocess.Popen(argv) as process:
        try:
            end = time.monotonic() + turns
            while time.monotonic() < end:
                if newcomers.look(time.monotonic()):
                    return True
                time.sleep(0.05)
            return False
        finally:
            process.kill()


def test_a_python_that_begins_is_noticed(newcomers: Newcomers):
    """Also one that a shell becomes by exec, a moment later."""
    assert seen(newcomers, [sys.executable, "-c", IDLE])
    newcomers.listed()
    assert not newcomers.found
    assert seen(newcomers, ["sh", "-c", f"sleep 1; exec {sys.executable} -c '{IDLE}'"])


@pytest.mark.parametrize("watched", [True, False])
def test_a_thread_is_a_newcomer_only_where_its_process_is_not_watched(watched: bool):
    """A launcher of an hour that becomes Python gets no new pid; what it starts to work does."""
    newcomers = Newcomers("/proc", 0, 1, lambda pid: watched)
    begun, over = threading.Event(), threading.Event()
    tids: list[int] = []

    def run() -> None:
        tids.append(threading.get_native_id())
        begun.set()
        over.wait(WAIT_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        assert (None if watched else os.getpid()) == newcomers.counts(tids[0])
        assert newcomers.counts(threading.get_native_id()) == newcomers.counts(tids[0])
        # The next thread of a watched process is told by one question.
        assert watched is newcomers._is_of_family(tids[0])
        assert not newcomers._is_of_family(os.getppid())
    finally:
        over.set()
        thread.join()
        newcomers.close()


def test_an_old_shell_that_becomes_python_is_watched_when_it_starts_a_thread(tmp_path: Path):
    """Not ten minutes later, as one of its age would be asked."""
    program = tmp_path / "late.py"
    program.write_text("import signal, threading\nthreading.Thread(target=signal.pause).start()\n")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    argv = ["sh", "-c", f"read x < {gate}; exec {sys.executable} {program}"]
    machine = Machine(runtime_dirs=[])
    table = machine._processes
    with subprocess.Popen(argv) as process:
        try:
            now = time.monotonic()
            machine.sample(now, time.time())
            table.glance(now)
            # As if it had been there for an hour: never young, and not due for long.
            table._others._young.drop(process.pid)
            table._newcomers._fresh.clear()
            assert process.pid in table._others

            gate.write_text("go\n")
            end, seen = time.monotonic() + WAIT_S, set[int]()
            while time.monotonic() < end and process.pid not in seen:
                time.sleep(0.05)
                if table.glance(time.monotonic()):
                    found = machine.sample(time.monotonic(), time.time())
                    seen = {each.key.pid for each in found.processes}

            assert process.pid in seen
        finally:
            process.kill()
            machine.close()


def test_a_newcomer_is_asked_twice_more_by_glances_as_far_apart_as_they_can_be(tmp_path: Path):
    """What prepares for some seconds and becomes Python by exec."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    newcomers = Newcomers("/proc", os.getuid(), os.getpid())
    newcomers.listed()
    argv = ["sh", "-c", f"read x < {gate}; exec {sys.executable} -c 'input()'"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        try:
            for now in (0.0, GLANCE_S + 0.001):
                newcomers.look(now)
                assert process.pid not in newcomers.became
            gate.write_text("go\n")
            end = time.monotonic() + WAIT_S
            while "python" not in os.readlink(f"/proc/{process.pid}/exe"):
                assert time.monotonic() < end
                time.sleep(0.01)
            newcomers.look(2 * GLANCE_S + 0.002)
        finally:
            process.kill()
            newcomers.close()

    assert process.pid in newcomers.became


def test_a_pid_file_of_another_kernel_is_not_believed(tmp_path: Path):
    """lxcfs lays its own over /proc/loadavg: the pids in it are those of another machine."""
    program = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.unshare(0x20000) == 0\n"  # CLONE_NEWNS
        "assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n"  # private, recursive
        f"own = {os.fsencode(tmp_path / 'own')!r}\n"
        "assert libc.mount(own, b'/proc/loadavg', None, 4096, None) == 0\n"
        "from watchdog_app.machine.sensors.newcomers import tells_pids\n"
        "print(tells_pids('/proc'))\n"
    )
    (tmp_path / "own").write_text("0.00 0.01 0.05 1/300 12345\n")
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    if done.returncode and os.getuid():
        pytest.skip("only root lays a file over another here")

    assert ("False\n", "") == (done.stdout, done.stderr)
    assert tells_pids("/proc")


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_a_program_that_becomes_ours_after_it_began_as_roots_is_not_given_up():
    """sudo, cron: whoever may not be asked yet is asked again."""
    program = (
        "import os, subprocess, sys, time\n"
        "from watchdog_app.machine.sensors.newcomers import Newcomers\n"
        "os.setgid(65534); os.setgroups([]); os.setuid(65534)\n"
        "found = Newcomers('/proc', 65534, 1)\n"
        "found.listed()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "end, refused = time.monotonic() + 8, False\n"
        "while time.monotonic() < end and not found.look(time.monotonic()):\n"
        "    refused = refused or bool(found._fresh)\n"
        "    if refused: print('asked', flush=True)\n"
        "    time.sleep(0.05)\n"
        "print(found.found)\n"
    )
    # The interpreter of these tests may be root's alone; a program is known by its name.
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    interpreter = shutil.copy("/bin/sleep", f"{folder}/python3")
    becoming = (
        f"import os, sys, time; time.sleep(0.7); os.setgid(65534); os.setuid(65534); "
        f"os.execv({interpreter!r}, ['python3', '60'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as looker:
        assert looker.stdout
        assert "ready\n" == looker.stdout.readline()
        with subprocess.Popen([sys.executable, "-c", becoming]) as becomer:
            try:
                out, _ = looker.communicate("go\n", WAIT_S)
            finally:
                becomer.kill()
                shutil.rmtree(folder)

    assert "asked" in out
    assert out.endswith("True\n")


def test_of_another_proc_nothing_is_known(tmp_path: Path):
    """So everything is listed, each time."""
    elsewhere = Newcomers(str(tmp_path), 0, 1)

    assert elsewhere.begun() is None
    assert elsewhere.look(0.0)


def test_a_bystander_is_asked_often_while_young_and_ever_more_seldom_with_age(tmp_path: Path):
    """At rest. While memory moves, everyone within 20 s."""
    folder = tmp_path / "5"
    folder.mkdir()
    stat = "5 (sleep) S 1 5 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {} 9 9 9 0 0 0"
    (folder / "stat").write_text(stat.format(10**12))  # begun a moment ago, whatever the clock
    others = Bystanders(str(tmp_path))
    others.note(5, 0.0)

    asked = []
    for second in range(4000):
        for name in others.due(float(second), at_rest=True):
            asked.append(second)
            others.note(name, float(second))
    gaps = [later - earlier for earlier, later in pairwise(asked)]

    assert [1, 2, 3, 4] == asked[:4]
    assert max(gap for gap, at in zip(gaps, asked, strict=False) if at < 60) <= 20
    assert 600 <= gaps[-1] <= 660
    hurried = [
        second
        for second in range(4000, 4100)
        for name in others.due(float(second), at_rest=False)
        if others.note(name, float(second)) is None
    ]
    assert len(hurried) >= 5


def test_threads_of_the_kernel_are_never_asked_again(tmp_path: Path):
    """They have no program, and can never have one."""
    folder = tmp_path / "9"
    folder.mkdir()
    (folder / "stat").write_text(
        "9 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 30" + 7 * " 0"
    )
    others = Bystanders(str(tmp_path))
    others.note(9, 0.0)

    asked = [second for second in range(6, 2000) for _ in others.due(float(second), at_rest=True)]

    assert [] == asked
    assert 9 in others


@pytest.mark.parametrize(
    ("line", "thread"),
    [
        (b"2 (kthreadd) S 0 0 0 0 -1 2129984" + 20 * b" 0", True),
        (b"2 (a) b) S 1 2 2 0 -1 4194560" + 20 * b" 0", False),
    ],
)
def test_a_kernel_thread_is_told_by_its_flags(line: bytes, thread: bool):
    """PF_KTHREAD; in a container process 2 is anybody."""
    assert thread is Stat(line).is_kernel_thread


def test_half_a_line_is_refused():
    """So that nothing is concluded from it."""
    with pytest.raises(ValueError, match="no line"):
        Stat(b"2 (kthreadd) S")
    assert [] == status_words(b"Name:\tx\n", b"Tgid")
    assert [b"12"] == status_words(b"Name:\tx\nTgid:\t12\nNgid:\t0\n", b"Tgid")


def test_a_glance_at_the_real_machine_reads_what_a_full_look_reads():
    """The same available memory, within what moves in a moment; no full look is taken for it."""
    from watchdog_app.core.model.readings import readings
    from watchdog_app.core.model.tasks import group
    from watchdog_app.core.policy.glance import Rest

    machine = Machine(runtime_dirs=[])
    now = time.monotonic()
    found = machine.sample(now, time.time())
    rest = Rest(found, readings(found, group(found.processes, found.infos)), 3.0, now + 60)

    glance = machine.glance(rest, time.monotonic())
    machine.close()

    assert glance is not None
    assert pytest.approx(found.host.available_bytes, rel=0.2) == glance.available_bytes
    assert set(glance.spaces) == set(rest.spaces)


def test_a_machine_that_is_not_ours_is_not_glanced_at(tree: Tree):
    """Its pids say nothing of ours."""
    assert not tree.machine().can_glance
