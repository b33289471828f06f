"""Free space for rescues, and disks that do not answer."""

from __future__ import annotations

import shutil
import threading
import time

from watchdog_app.core.model.machine import Gauge
from watchdog_app.machine.sensors.devices import Disks


def test_room_is_what_the_file_system_says(tmp_path):
    """Already in the first sample; root's reserve is not free."""
    disks = Disks()
    disks.watch([str(tmp_path)])

    (found,) = disks.read(0.0)
    disks.close()

    assert shutil.disk_usage(tmp_path).total == found.limit
    assert 0 <= found.used < found.limit
    assert {} == disks.faults


def test_folder_that_does_not_exist_yet_stands_where_its_parent_stands(tmp_path):
    """The agent creates it at the first save."""
    disks = Disks()
    path = str(tmp_path / "a" / "b")
    disks.watch([path])

    (found,) = disks.read(0.0)
    disks.close()

    assert (path, shutil.disk_usage(tmp_path).total) == (found.subject, found.limit)


def _until_heard(disks: Disks, now_mono_s: float) -> tuple[Gauge, ...]:
    """The reading after the thread has answered."""
    time.sleep(0.05)
    return disks.read(now_mono_s)


def test_folder_that_cannot_be_read_is_a_fault_until_it_can():
    """The others are still watched."""
    broken = True

    def ask(path: str) -> Gauge:
        if broken and path == "/bad":
            raise OSError(5, "Input/output error")
        return Gauge("disk", path, "", 1, 2)

    disks = Disks(ask)
    disks.watch(["/bad", "/good"])
    disks.read(0.0)
    first = _until_heard(disks, 0.1)
    fault = disks.faults["/bad"]
    broken = False
    disks.read(10.0)
    second = _until_heard(disks, 10.1)
    disks.close()

    assert ["/good"] == [disk.subject for disk in first]
    assert "Input/output error" in fault.message
    assert fault.remedy
    assert ["/bad", "/good"] == [disk.subject for disk in second]
    assert {} == disks.faults


def test_fault_of_a_folder_ends_with_its_watch():
    """Its state does not matter any more."""

    def ask(path: str) -> Gauge:
        raise OSError(5, "Input/output error")

    disks = Disks(ask)
    disks.watch(["/bad"])
    disks.read(0.0)
    _until_heard(disks, 0.1)
    disks.watch([])
    disks.close()

    assert {} == disks.faults


def test_disk_that_does_not_answer_stalls_no_tick():
    """It is a fault after some seconds; only the first sample waits, for a tenth of a second."""
    hold = threading.Event()

    def ask(path: str) -> Gauge:
        hold.wait(20)
        return Gauge("disk", path, "", 1, 2)

    disks = Disks(ask)
    disks.watch(["/net"])
    begun = time.monotonic()

    found = [disks.read(float(second)) for second in range(30)]
    elapsed_s = time.monotonic() - begun
    fault = disks.faults["/net"]
    hold.set()
    after = _until_heard(disks, 30.0)
    disks.close()

    assert {()} == set(found)
    assert elapsed_s < 5.0  # the disk takes twenty
    assert "does not answer" in fault.message
    assert ["/net"] == [disk.subject for disk in after]
    assert {} == disks.faults


def test_many_new_folders_on_a_slow_disk_hold_up_one_look_once():
    """All folders share one wait for their first answers."""
    answered: list[str] = []

    def ask(path: str) -> Gauge:
        time.sleep(0.09)
        answered.append(path)
        return Gauge("disk", path, "", 1, 2)

    disks = Disks(ask)
    disks.watch([f"/net/run{number}" for number in range(20)])

    found = disks.read(0.0)
    heard_meanwhile = len(answered)
    disks.close()

    assert len(found) < 20
    assert heard_meanwhile < 20


def test_no_disks_no_thread(started_threads):
    assert () == Disks().read(0.0)
    assert 0 == started_threads.count
