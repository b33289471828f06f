"""Entries of /proc that vanish, refuse, fail or end in mid-read: they cost at most one process."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from watchdog_app.base.errors import Denied, Gone, SensorError, Unsupported
from watchdog_app.base.linux.files import KeptFile, read_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="errors of Linux")

# The kernel refuses to read address 0 of any process with EIO, a real error.
_EIO = "/proc/self/mem"


def watched(machine, now: float) -> set[int]:
    snapshot = machine.sample(now, 1.8e9 + now)
    assert snapshot.host.total_bytes > 0
    return {sample.key.pid for sample in snapshot.processes}


def test_the_errors_of_the_kernel_are_told_apart(tmp_path):
    """Gone, denied or unsupported; an I/O error is unsupported."""
    with pytest.raises(Gone):
        read_bytes(str(tmp_path / "none"))
    with pytest.raises(Unsupported):
        read_bytes(_EIO)
    with pytest.raises(Unsupported):
        KeptFile(_EIO).read()


@pytest.mark.parametrize("name", ["stat", "statm", "cmdline", "cgroup", "status", "exe"])
@pytest.mark.parametrize("what", ["vanishes", "fails", "is cut", "is a folder"])
def test_no_file_of_one_process_takes_another_with_it(tree, name, what):
    """Before the first sample and between two: all other processes are read as usual."""
    machine = tree.machine(own_uid=0)
    everyone = watched(machine, 0.0)
    victim, others = max(everyone), everyone - {max(everyone)}
    assert others

    path = tree.proc / str(victim) / name
    data = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
    if path.is_symlink() or path.exists():
        path.unlink()
    if what == "fails":
        path.symlink_to(_EIO)
    elif what == "is cut":
        path.write_bytes(data[: len(data) // 2])
    elif what == "is a folder":
        path.mkdir()

    fresh = tree.machine(own_uid=0)
    for machine_now in (machine, fresh):
        for now in (1.0, 2.0, 40.0):
            assert others <= watched(machine_now, now)


def test_a_process_that_ends_between_listing_and_reading_is_left_out(tree):
    """Its folder exists without files, which must cause neither a fault nor a guess."""
    machine = tree.machine(own_uid=0)
    everyone = watched(machine, 0.0)
    victim = max(everyone)
    folder = tree.proc / str(victim)
    shutil.rmtree(folder)
    folder.mkdir()

    fresh = tree.machine(own_uid=0)

    assert everyone - {victim} == watched(fresh, 1.0)
    assert everyone - {victim} == watched(machine, 10.0) - {victim}
    assert not [fault for fault in fresh.sample(2.0, 1.8e9).faults if fault.source == "processes"]


@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_files_that_refuse_are_denied_and_not_gone(tmp_path):
    """An unreadable process exists: it must not count as ended."""
    secret = tmp_path / "stat"
    secret.write_text("1 (x) S")
    secret.chmod(0)
    tmp_path.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(tmp_path, os.O_PATH)
            os.setgid(65534)
            os.setuid(65534)
            read_bytes(f"/proc/self/fd/{fd}/stat")
        except Denied:
            os._exit(7)
        except SensorError:
            os._exit(8)
        finally:
            os._exit(9)
    _, status = os.waitpid(pid, 0)

    assert 7 == os.waitstatus_to_exitcode(status)


def test_newcomers_by_the_hundred_are_all_found_within_some_looks(tree):
    """One sample reads only some of them; the others follow in the next ones."""
    machine = tree.machine(own_uid=0)
    before = watched(machine, 0.0)
    model = max(before)
    fresh = set(range(70_000, 70_120))
    for pid in fresh:
        tree.copy(model, pid, 5_000_000 + pid)

    samples = 0
    while not fresh <= watched(machine, 1.0 + samples):
        samples += 1
        assert samples < 100, "some were forgotten"

    assert before <= watched(machine, 200.0)


@pytest.mark.parametrize(
    ("set_s", "moves_s"), [(0.0, 0.0), (1.5, 0.0), (3600.0, 3600.0), (-9e6, -9e6)]
)
def test_when_a_task_began_is_told_by_the_clock_as_it_is_now(tree, set_s, moves_s):
    """A machine may boot without the time; a later correction must not move the start."""
    uptime_s = float((tree.proc / "uptime").read_text().split()[0])
    machine = tree.machine(own_uid=0)
    first = machine.sample(0.0, 1.8e9).infos

    tree.write("uptime", f"{uptime_s + 70:.2f} 0.00\n")
    then = machine.sample(70.0, 1.8e9 + 70 + set_s).infos

    assert first
    for key, info in first.items():
        assert info.started_unix_s + moves_s == pytest.approx(then[key].started_unix_s, abs=0.1)
