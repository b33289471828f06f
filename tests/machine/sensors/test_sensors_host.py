"""Memory of the whole machine."""

from __future__ import annotations

import os
import shutil

import pytest
from sensor_trees import FIXTURES
from support.finished import finished

from watchdog_app.base.errors import SensorError
from watchdog_app.machine.sensors.host import (
    HostReader,
    parse_arc,
    parse_meminfo,
    parse_pressure,
    parse_zram_swap,
)

PAGE = os.sysconf("SC_PAGESIZE")


def _reader(tree) -> HostReader:
    return HostReader(str(tree.proc), str(tree.shm))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b"MemTotal:  24684092 kB\nMemFree: 1 kB\n",
            {b"MemTotal": 24684092 * 1024, b"MemFree": 1024},
        ),
        (b"MemTotal:\nMemFree: x kB\nBad\n: 5 kB\n", {b"": 5 * 1024}),
        (b"MemTotal: 12", {b"MemTotal": 12 * 1024}),
        (b"", {}),
        (b"MemTotal: -5 kB\n", {}),
    ],
)
def test_meminfo_lines_without_a_number_are_left_out(data, expected):
    """An incomplete file gives the values it has."""
    assert expected == parse_meminfo(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"some avg10=1.0",
        b"some avg10=1.0 avg60=0 avg300=0 total=5\n",
        b"some avg10=x avg60=0 avg300=0 total=5\nfull avg10=0 avg60=0 avg300=0 total=5\n",
        b"\n\n",
    ],
)
def test_half_a_pressure_file_is_no_pressure(data):
    """Zeros that were not measured must not appear."""
    assert parse_pressure(data) is None


def test_pressure_is_in_percent_and_seconds():
    """The totals in the file are microseconds."""
    found = parse_pressure(
        b"some avg10=1.50 avg60=0.00 avg300=0.00 total=2500000\n"
        b"full avg10=0.25 avg60=0.00 avg300=0.00 total=500000\n"
    )

    assert (1.5, 0.25, 2.5) == (found.some_avg10, found.full_avg10, found.some_total_s)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"13 1 0x01\nname type data\nsize 4 1000\nc_min 4 300\n", 700),
        (b"size 4 100\nc_min 4 300\n", 0),
        (b"size 4 100\n", None),
        (b"", None),
    ],
)
def test_zfs_cache_that_can_be_given_back(data, expected):
    """All of the cache above its minimum counts as available."""
    assert expected == parse_arc(data)


def test_captured_machine(tree):
    """The captured files give the captured machine."""
    values = parse_meminfo((FIXTURES / "proc/meminfo").read_bytes())

    host = _reader(tree).read()

    assert values[b"MemTotal"] == host.total_bytes
    assert values[b"MemAvailable"] == host.available_bytes
    assert (0, 0) == (host.swap_total_bytes, host.swap_free_bytes)
    assert host.pressure is not None


def test_swap_traffic_is_read_while_there_is_swap(tree):
    """In bytes, and read again each time."""
    tree.rewrite("meminfo", "SwapTotal:             0 kB", "SwapTotal:       1000000 kB")
    tree.rewrite("meminfo", "SwapFree:              0 kB", "SwapFree:         400000 kB")
    tree.write("vmstat", "nr_free 1\npswpin 10\npswpout 20\n")
    reader = _reader(tree)
    first = reader.read()

    tree.write("vmstat", "nr_free 1\npswpin 11\npswpout 25\n")
    second = reader.read()

    assert (10 * PAGE, 20 * PAGE) == (first.swap_in_bytes, first.swap_out_bytes)
    assert (11 * PAGE, 25 * PAGE) == (second.swap_in_bytes, second.swap_out_bytes)
    assert 400000 * 1024 == second.swap_free_bytes


def test_kernel_without_pressure_is_said_with_a_remedy_and_watched_on(tree):
    """The fault stays; the rest is still read."""
    (tree.proc / "pressure/memory").unlink()
    reader = _reader(tree)

    host = reader.read()
    reader.read()

    assert host.pressure is None
    assert ["host.pressure"] == list(reader.faults)
    assert "psi=1" in reader.faults["host.pressure"].remedy


def test_missing_shared_memory_is_said_and_watched_on(tree):
    """The values are unknown, not zero."""
    tree.shm.rmdir()
    reader = _reader(tree)

    host = reader.read()

    assert (None, None) == (host.shm_used_bytes, host.shm_limit_bytes)
    assert ["host.shm"] == list(reader.faults)


def test_machine_without_meminfo_is_an_error(tree):
    """Without it there is no memory to watch."""
    tree.write("meminfo", "MemTotal: 0 kB\n")

    with pytest.raises(SensorError, match="MemTotal"):
        _reader(tree).read()


def test_zfs_cache_counts_as_available(tree):
    """It never exceeds the machine's memory."""
    tree.write("meminfo", "MemTotal: 1000 kB\nMemAvailable: 100 kB\n")
    tree.write("spl/kstat/zfs/arcstats", "name type data\nsize 4 512000\nc_min 4 102400\n")

    assert 100 * 1024 + 409600 == _reader(tree).read().available_bytes


@pytest.mark.skipif(shutil.which("free") is None, reason="needs free: apt-get install procps")
def test_real_readings_agree_with_free():
    """procps reads this machine too; the values may differ by what changes in between."""
    words = finished(["free", "-b"], check=True, env={"LC_ALL": "C"}).stdout.split()
    at = words.index("Mem:")

    host = HostReader("/proc", "/dev/shm").read()

    assert int(words[at + 1]) == host.total_bytes
    assert host.available_bytes == pytest.approx(int(words[at + 6]), abs=0.05 * host.total_bytes)


def test_real_shared_memory_agrees_with_the_file_system():
    """A file of 4 MiB in /dev/shm adds 4 MiB."""
    reader = HostReader("/proc", "/dev/shm")
    before = reader.read().shm_used_bytes
    path = f"/dev/shm/watchdog-test-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            file.write(b"x" * (4 << 20))
        after = reader.read().shm_used_bytes
    finally:
        os.unlink(path)

    assert after - before == pytest.approx(4 << 20, abs=3 << 20)


SWAPS = b"""Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/zram0                              partition\t8388604\t\t4194304\t\t100
/dev/sda2                               partition\t1000000\t\t5\t\t-2
/dev/zramx partition
"""


def test_swap_on_zram_is_told_from_swap_on_disks():
    """The device's name decides; an incomplete line is ignored."""
    assert {"zram0": (8388604 * 1024, 4194304 * 1024)} == parse_zram_swap(SWAPS)
    assert {} == parse_zram_swap(b"")


def test_what_zram_takes_of_ram_is_read(tree, tmp_path):
    """If the device does not report it, its data count as incompressible."""
    tree.rewrite("meminfo", "SwapTotal:             0 kB", "SwapTotal:       9388604 kB")
    tree.write("swaps", SWAPS.decode())
    folder = tmp_path / "sys/block/zram0"
    folder.mkdir(parents=True)
    reader = HostReader(str(tree.proc), str(tree.shm), str(tmp_path / "sys"))
    unknown = reader.read()
    (folder / "mm_stat").write_text("4294967296 1000000000 1073741824 0 1073741824 0 0 0 0\n")
    told = reader.read()

    assert 4194304 * 1024 == unknown.zram_ram_bytes
    assert (8388604 * 1024, 4194304 * 1024, 1 << 30) == (
        told.zram_total_bytes,
        told.zram_used_bytes,
        told.zram_ram_bytes,
    )


def test_a_machine_without_zram_is_not_asked_for_it_again(tree):
    """The list of swaps is read again when its total changes."""
    tree.rewrite("meminfo", "SwapTotal:             0 kB", "SwapTotal:       1000000 kB")
    tree.write("swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1000000 0 -2\n")
    reader = _reader(tree)
    reader.read()
    tree.write("swaps", SWAPS.decode())
    same = reader.read()
    tree.rewrite("meminfo", "SwapTotal:       1000000 kB", "SwapTotal:       9388604 kB")
    more = reader.read()

    assert 0 == same.zram_total_bytes
    assert 8388604 * 1024 == more.zram_total_bytes
