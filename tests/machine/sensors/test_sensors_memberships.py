"""Memory groups of processes are read in a thread, because the kernel's lock can block."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree, by_pid
from support.finished import finished

from watchdog_app.core.model.machine import Snapshot
from watchdog_app.machine.sensors import groups
from watchdog_app.machine.sensors.groups import Memberships
from watchdog_app.machine.sensors.machine import PATIENCE_S, LinuxMachine


def machine_of(tree: Tree) -> LinuxMachine:
    """A machine as the daemon makes it: a sample waits only for a moment."""
    found = LinuxMachine(
        proc=str(tree.proc),
        cgroup_root=str(tree.groups),
        shm=str(tree.shm),
        own_uid=os.getuid(),
        patience_s=PATIENCE_S,
    )
    tree.machines.append(found)
    return found


class Sampler:
    """Samples a machine, a second of its clock apart."""

    def __init__(self, machine: LinuxMachine) -> None:
        self.machine, self.now = machine, 0.0

    def until(self, seen: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(500):
            self.now += 1.0
            found = self.machine.sample(self.now, NOW_UNIX_S + self.now)
            if seen(found):
                return found
            time.sleep(0.02)
        raise AssertionError("never seen")


def block(tree: Tree, pid: int) -> Path:
    """From now on a read of its groups blocks, as on the kernel's lock."""
    path = tree.proc / str(pid) / "cgroup"
    path.unlink()
    os.mkfifo(path)
    return path


def stuck(snapshot: Snapshot) -> bool:
    return groups.MEMBERSHIPS in [fault.source for fault in snapshot.faults]


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_read_that_blocks_holds_up_no_look_and_no_other_process(tree: Tree, from_the_start: bool):
    sampler = Sampler(machine_of(tree))
    os.mkdir(f"{tree.groups}/memory/elsewhere")
    if not from_the_start:
        sampler.until(lambda seen: by_pid(seen)[431].cgroup is not None)
    path = block(tree, 450)

    faulty = sampler.until(stuck)
    tree.enter_group(431, "4:memory:/elsewhere")
    moved = sampler.until(lambda seen: str(by_pid(seen)[431].cgroup).endswith("elsewhere"))
    path.with_name("plain").write_text("4:memory:/elsewhere\n")
    with open(path, "w") as file:
        file.write("4:memory:/elsewhere\n")
        path.with_name("plain").rename(path)
    healed = sampler.until(lambda seen: not stuck(seen))

    assert {420, 431, 450} <= {sample.key.pid for sample in faulty.processes}
    assert stuck(moved)
    assert f"{tree.groups}/memory/elsewhere" == by_pid(healed)[450].cgroup


def test_a_move_to_another_group_is_seen_by_the_look_a_second_later(
    tree: Tree, machine: LinuxMachine
):
    """This includes a process that has been watched for long."""
    machine.sample(60.0, NOW_UNIX_S + 60)
    tree.enter_group(431, "4:memory:/batch")

    at_once = machine.sample(60.2, NOW_UNIX_S + 60.2)
    later = machine.sample(61.0, NOW_UNIX_S + 61)

    assert f"{tree.groups}/memory/batch" != by_pid(at_once)[431].cgroup
    assert f"{tree.groups}/memory/batch" == by_pid(later)[431].cgroup


def test_all_reads_that_block_take_no_more_than_four_threads(tmp_path: Path, started_threads):
    pids = range(100, 110)
    for pid in pids:
        (tmp_path / str(pid)).mkdir()
        os.mkfifo(tmp_path / str(pid) / "cgroup")
    reader = Memberships(str(tmp_path), PATIENCE_S)

    found = [reader.read(pids, 2.0 * turn) for turn in range(30)]

    assert not any(found)
    assert reader.fault is not None
    assert started_threads.count <= 4


def test_one_thread_serves_all_looks(tmp_path: Path, started_threads):
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text("4:memory:/a\n")
    reader = Memberships(str(tmp_path))

    found = [reader.read((1, 2), float(turn)) for turn in range(50)]

    assert [{1: b"4:memory:/a\n", 2: b"4:memory:/a\n"}] * 50 == found
    assert 1 == started_threads.count


# A read of these can block: on the kernel's cgroup_mutex, or on a lock of the process.
BLOCKING = frozenset(("cgroup", "cmdline", "environ", "smaps_rollup"))
READS = """
import os, sys, threading, time
from watchdog_app.machine.sensors.machine import PATIENCE_S, LinuxMachine

proc, blocking = sys.argv[1], frozenset(sys.argv[2:])
ours = threading.get_ident()
waited, asked = set(), set()

def opened(event, args):
    if event == "open" and isinstance(args[0], str) and args[0].startswith(proc):
        name = os.path.basename(args[0])
        if name in blocking:
            (waited if threading.get_ident() == ours else asked).add(name)

machine = LinuxMachine(proc=proc, own_uid=os.getuid(), patience_s=PATIENCE_S)
sys.addaudithook(opened)
for second in range(60):
    machine.sample(float(second), 1.8e9 + second)
    time.sleep(0.01)
machine.close()
print(sorted(waited), sorted(asked))
"""


def test_no_sample_reads_in_its_own_thread_what_can_block(tree: Tree):
    """Command lines, environments and groups of processes can block the sample."""
    tree.copy(431, 500, 777)
    for pid in (431, 500):
        tree.write(f"{pid}/smaps_rollup", "0-f ---p [rollup]\nPrivate_Dirty: 4 kB\n")
    head, _, rest = (tree.proc / "500/stat").read_text().rpartition(")")
    fields = rest.split(" ")
    fields[2] = "431"  # its parent, of which it is a fork
    tree.write("500/stat", f"{head}){' '.join(fields)}")

    done = finished([sys.executable, "-c", READS, str(tree.proc), *BLOCKING])

    assert f"[] {sorted(BLOCKING)}\n" == done.stdout, done.stderr
