"""Reads that can block run in threads, so that the loop never waits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree
from support.waiting import until

from watchdog_app.base.errors import Gone
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.base.linux.process import Stat
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import ProcessInfo, TaskKind
from watchdog_app.machine.sensors.identity import Describer, Description, read_argv
from watchdog_app.machine.sensors.jupyter import JupyterServers
from watchdog_app.machine.sensors.processes import ProcessTable

PATIENCE_S = 0.005
DEADLINE_S = 60.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event for which a blocked read waits."""
    event = threading.Event()
    yield event
    event.set()


def held(gate: threading.Event, answer: str = "late") -> Callable[[], str]:
    """A read that ends when the gate opens."""

    def job() -> str:
        gate.wait()
        return answer

    return job


def test_who_does_not_hurry_gets_every_answer_at_once():
    """Without a patience, as doctor and offline commands use it."""
    background = Background()

    assert [0, 1, 2] == [background.ask(Question(n, "all"), lambda n=n: n) for n in range(3)]


def test_an_answer_that_is_late_is_given_when_it_is_asked_for_again(gate):
    """The answer is given once; after that it is read again."""
    background = Background(PATIENCE_S)
    question = Question(1, "all")
    first = background.ask(question, held(gate))
    again = background.ask(question, held(gate, "another"))

    gate.set()

    assert (None, None) == (first, again)
    background.wait(DEADLINE_S)
    assert "late" == background.ask(question, held(gate, "another"))
    until(lambda: "third" == background.ask(question, held(gate, "third")))


def test_one_that_is_held_up_holds_up_no_other(gate):
    """Up to three of them; with a fourth, other reads wait until one of them ends."""
    background = Background(PATIENCE_S)
    for pid in range(3):
        background.ask(Question(pid, "all"), held(gate))
    other = Question(10, "all")

    until(lambda: "at once" == background.ask(other, lambda: "at once"))

    background.ask(Question(4, "all"), held(gate))
    waits = background.ask(other, lambda: "at last")
    gate.set()
    assert waits is None
    until(lambda: "at last" == background.ask(other, lambda: "at last"))


def test_a_look_waits_for_all_of_them_together_no_longer_than_it_may(gate):
    """After that it asks without waiting, until the next sample."""
    background = Background(10.0)
    background.end_sample()

    background.ask(Question(1, "all"), held(gate))  # uses up the time of this sample

    assert background.is_exhausted
    assert background.ask(Question(2, "all"), held(gate)) is None
    background.end_sample()
    assert not background.is_exhausted


def test_what_fails_fails_for_who_asked():
    """The caller gets the exception of the read."""

    def fail() -> str:
        raise Gone("process 1 has ended")

    with pytest.raises(Gone, match="process 1"):
        Background().ask(Question(1, "all"), fail)


def test_answers_about_those_who_have_ended_are_not_kept(gate):
    """This holds however many processes come and go while the kernel blocks."""
    background = Background(PATIENCE_S)
    for pid in range(100):
        background.ask(Question(pid, "all"), held(gate))
    background.drop_ended({7})
    background.drop(8)

    gate.set()

    until(lambda: "late" == background.ask(Question(7, "all"), held(gate)))
    until(lambda: "anew" == background.ask(Question(8, "all"), lambda: "anew"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_no_thread_stays_when_nothing_is_left_to_read(gate, started_threads):
    """The threads end on their own."""
    background = Background(PATIENCE_S)
    for pid in range(3):
        background.ask(Question(pid, "all"), held(gate))

    gate.set()

    until(lambda: started_threads.count and started_threads.all_ended)


class Held(Describer):
    """A describer that cannot read one process's command line until a gate opens."""

    def __init__(self, tree: Tree, pid: int, gate: threading.Event) -> None:
        locator = Layout(())
        super().__init__(str(tree.proc), locator, JupyterServers(lambda _: False))
        self._pid, self._gate = pid, gate
        self.reads = 0

    def describe(self, pid: int, stat: Stat, uid: int, *, waits: bool = True) -> Description:
        """Wait as if the kernel blocked the read."""
        if waits and pid == self._pid:
            self.reads += 1
            self._gate.wait()
        return super().describe(pid, stat, uid, waits=waits)


class Sampler:
    """Samples a captured machine at given times."""

    def __init__(self, tree: Tree, pid: int, gate: threading.Event) -> None:
        self.describer = Held(tree, pid, gate)
        self.table = ProcessTable(str(tree.proc), self.describer, os.getuid(), 1, PATIENCE_S)

    def at(self, now_mono_s: float) -> dict[int, ProcessInfo]:
        """The watched processes by pid."""
        self.table.update(now_mono_s, NOW_UNIX_S)
        self.table.sample(now_mono_s, NOW_UNIX_S, swap_in_use=False)
        return {key.pid: info for key, info in self.table.infos.items()}


@pytest.fixture
def sampler(tree: Tree, gate: threading.Event) -> Iterator[Sampler]:
    """Process 431 is a script whose command line cannot be read."""
    found = Sampler(tree, 431, gate)
    yield found
    found.table.close()


def test_a_look_goes_on_without_who_cannot_be_read(sampler):
    """The others appear by the next sample; the blocked one is read only once."""
    rest = {410, 420, 421, 432, 433, 440, 450, 471}

    until(lambda: rest == set(sampler.at(0.0)))
    assert 1 == sampler.describer.reads


def test_who_could_not_be_read_is_described_as_soon_as_that_comes(sampler, gate):
    """The description equals that of a direct read."""
    sampler.at(0.0)
    gate.set()

    until(lambda: 431 in sampler.at(1.0))
    info = sampler.at(1.0)[431]
    assert (TaskKind.SCRIPT, "train.py") == (info.kind, info.name)
    assert info.started_unix_s is not None


def test_nobody_grows_unseen_for_longer_than_two_seconds(sampler, gate):
    """After that it is watched without a name, and is named once it can be read."""
    sampler.at(0.0)
    soon = sampler.at(1.0)
    nameless = sampler.at(3.0)[431]
    key = nameless.key
    gate.set()

    assert 431 not in soon
    assert ((), TaskKind.PYTHON) == (nameless.argv, nameless.kind)
    until(lambda: "train.py" == sampler.at(4.0)[431].name)
    assert key == sampler.at(5.0)[431].key


def test_who_ends_before_it_could_be_read_is_forgotten(sampler, gate, tree):
    """Also a process that was already watched without a name."""
    sampler.at(0.0)
    sampler.at(3.0)
    shutil.rmtree(tree.proc / "431")

    gone = sampler.at(10.0)
    gate.set()

    assert 431 not in gone
    assert 431 not in sampler.at(12.0)


# Copies the page tables of 400 MB repeatedly, under the lock of its memory map (dup_mmap), with
# hardly any processor time. Private memory, because page tables of shared memory are not copied.
FORKS = """
import mmap, os, sys
held = mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(held), 4096):
    held[at] = 1
print("ready", flush=True)
sys.stdin.readline()
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""
BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class CommandLine:
    """Reads a process's command line repeatedly, and knows when the kernel blocks the read."""

    def __init__(self, pid: int) -> None:
        self.reads = 0
        self.over = False
        self._path = Path(f"/proc/{pid}/cmdline")
        self._began = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def held_up(self) -> bool:
        return time.monotonic() - self._began > 0.1

    def _run(self) -> None:
        with suppress(OSError):
            while not self.over:
                self._began = time.monotonic()
                self._path.read_bytes()
                self.reads += 1
                time.sleep(0.001)


@pytest.fixture
def starved() -> Iterator[tuple[int, list[subprocess.Popen[bytes]]]]:
    """
    A process that holds the lock of its memory map without processor time, and the processes that
    use it up.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("takes Linux and two processors: one of them is kept from a process")
    ours = os.sched_getaffinity(0)
    cpu = max(ours)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    forks = subprocess.Popen([sys.executable, "-c", FORKS, str(cpu)], **pipes)
    busy = []
    try:
        assert "ready" == forks.stdout.readline().strip()
        busy = [subprocess.Popen([sys.executable, "-c", BUSY, str(cpu)]) for _ in range(2)]
        os.sched_setaffinity(0, ours - {cpu})
        forks.stdin.write("go\n")
        forks.stdin.flush()
        yield forks.pid, busy
    finally:
        os.sched_setaffinity(0, ours)
        for process in (*busy, forks):
            process.kill()
            process.wait()
        forks.stdin.close()
        forks.stdout.close()


def test_a_real_process_that_keeps_its_lock_holds_up_nobody(starved):
    """A direct read of its command line blocks; the background read does not block its caller."""
    pid, busy = starved
    reader = CommandLine(pid)
    background = Background(PATIENCE_S)
    question = Question(pid, "words")

    def asked_meanwhile() -> bool:
        """A whole background read within one blocked direct read."""
        if not reader.held_up:
            return False
        reads = reader.reads
        answer = background.ask(question, lambda: read_argv("/proc", pid))
        return answer is None and reads == reader.reads

    try:
        until(asked_meanwhile)
        for process in busy:
            process.kill()
        until(lambda: FORKS in (background.ask(question, tuple) or ()))
    finally:
        reader.over = True
