"""Xid events from the driver and the kernel log: each appears once, for an hour."""

from __future__ import annotations

import os

import pytest
from gpu_stub.driver_stub import CRASH

from watchdog_app.base.linux.files import KernelLog
from watchdog_app.core.model.hardware import GpuState, XidEvent
from watchdog_app.machine.gpu.events import DeviceEvents, parse_line, parse_record

FELL = "NVRM: Xid (PCI:0000:05:00): 79, pid=4321, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (FELL, ("0000:05:00", 79, 4321, "GPU has fallen off the bus.")),
        (
            "NVRM: Xid (PCI:0000:65:00): 31, pid=99, name=kernel, Ch 00000008, intr 10000000. MMU",
            ("0000:65:00", 31, 99, "Ch 00000008, intr 10000000. MMU"),
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen",
            ("0000:05:00", 79, None, "GPU has fallen"),
        ),
        ("NVRM: Xid (PCI:0001:05:00): 119", ("0001:05:00", 119, None, None)),
        (
            "NVRM: Xid (0000:05:00): 13, Graphics Exception",
            ("0000:05:00", 13, None, "Graphics Exception"),
        ),
        (
            "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
            ("0000:05:00.0", 79, None, "GPU 0000:05:00.0: GPU has fallen off the bus."),
        ),
        (
            "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2204) has fallen off the bus and",
            (
                "0000:05:00.0",
                79,
                None,
                "The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2204) has fallen off the bus and",
            ),
        ),
    ],
)
def test_lines_about_a_card_are_understood(message, expected):
    """The cases have the formats of several driver versions."""
    line = parse_line(message, 5.0)

    assert (5.0, *expected) == (line.mono_s, line.address, line.code, line.pid, line.text)


@pytest.mark.parametrize(
    "message",
    ["", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06", "Xid (PCI:0000:05:00): 79",
     "NVRM: Xid (PCI:): 79", "NVRM: Xid (PCI:0000:05:00): ", "python: fallen off the bus"],
)  # fmt: skip
def test_other_lines_are_none(message):
    assert parse_line(message, 0.0) is None


def test_words_of_the_driver_are_made_plain():
    """The text is untrusted: no control characters and a bounded length."""
    line = parse_line(f"NVRM: Xid (PCI:0000:05:00): 13, \x1b[31mred\n{'x' * 5000}", 0.0)

    assert line is None or (line.text.isprintable() and len(line.text) <= 200)
    line = parse_line(f"NVRM: Xid (PCI:0000:05:00): 13, \x1b[31m{'x' * 5000}", 0.0)
    assert line.text.isprintable()
    assert 200 == len(line.text)


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (f"4,1234,5000000,-;{FELL}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n".encode(), 79),
        (f"12,1234,5000000,-;{FELL}\n".encode(), None),  # a user wrote it
        (f"4,1234;{FELL}".encode(), None),
        (f"x,1,y,-;{FELL}".encode(), None),
        (b"NVRM", None),
        (b"4,1,2,-;NVRM: \xff\xfe Xid", None),
    ],
)
def test_records_of_the_kernels_own_are_understood(record, code):
    """A line that a program writes into the log does not come from the driver."""
    line = parse_record(record)

    assert code == (line.code if line else None)
    if line:
        assert 5.0 == line.mono_s


def test_the_kernels_own_log_can_be_read():
    """If permitted: reading ends, and finds no event on a machine without cards."""
    log = KernelLog()
    try:
        for _ in range(50):
            lines = [parse_record(record) for record in log.read()]
        assert not any(lines)
    finally:
        log.close()


def _log(tmp_path) -> tuple[str, int]:
    """A log that gives one record per read, like /dev/kmsg: a pipe in packet mode."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    return f"/proc/self/fd/{reader}", writer


def test_one_event_told_by_both_is_one(stub, ticker, tmp_path):
    """The driver gives the time, the log the pid and the text."""
    path, writer = _log(tmp_path)
    watch = ticker(stub, kernel_log=path)
    watch.reading()
    stub.xid(0, 79)
    os.write(writer, f"4,1,{int(watch.now * 1e6)},-;{FELL}".encode())
    stub.xid(1, 13)

    sample = watch.reading()

    first, second = sample.gpus
    assert [(79, 4321, "GPU has fallen off the bus.")] == [
        (xid.code, xid.pid, xid.text) for xid in first.xids
    ]
    assert [13] == [xid.code for xid in second.xids]
    assert abs(first.xids[0].at_unix_s - (watch.unix + watch.now)) < 5
    os.close(writer)


def test_an_event_stays_for_an_hour_and_outlives_its_card(stub, watch, tmp_path):
    """For a lost card, its last event explains the loss."""
    stub.xid(0, 79)
    watch.reading()
    stub.lose(0)

    assert [79] == [xid.code for xid in watch.reading().gpus[0].xids]
    watch.now += 3500
    assert [79] == [xid.code for xid in watch.reading().gpus[0].xids]
    watch.now += 120
    assert () == watch.reading().gpus[0].xids


def test_an_event_outlives_the_reader_that_told_it(stub, watch):
    """The failing card may end the reader at the same moment."""
    stub.xid(1, 79)
    stub.fail("nvmlDeviceGetUtilizationRates", CRASH, card=0)
    stub.lose(1)

    sample = watch.until(lambda sample: GpuState.LOST in [g.state for g in sample.gpus], step_s=0.2)

    assert [[], [79]] == [[xid.code for xid in gpu.xids] for gpu in sample.gpus]


def test_events_of_before_the_daemon_are_found_in_the_log(stub, ticker, tmp_path):
    """Only events of the last hour count."""
    path, writer = _log(tmp_path)
    watch = ticker(stub, kernel_log=path)
    watch.now = 10_000.0
    os.write(writer, f"4,1,{int(2000e6)},-;{FELL}".encode())
    os.write(writer, f"4,2,{int(9000e6)},-;{FELL.replace('79', '48')}".encode())

    sample = watch.reading()

    assert [48] == [xid.code for xid in sample.gpus[0].xids]
    assert watch.unix + 9000 == pytest.approx(sample.gpus[0].xids[0].at_unix_s, abs=2)
    os.close(writer)


def test_two_events_of_one_source_are_two():
    """Even if they are close together."""
    xids = DeviceEvents()
    xids.add("card", XidEvent(31, 1.0), "log")
    xids.add("card", XidEvent(31, 1.5), "log")
    xids.add("card", XidEvent(31, 2.0), "driver")

    assert 2 == len(xids.recent("card", 3.0))


def test_an_event_that_says_what_happened_outlives_a_thousand_that_follow():
    """A card keeps a bounded number of events, and some of each code."""
    xids = DeviceEvents()
    xids.add("GPU-0", XidEvent(79, 1000.0), "log")
    for number in range(1000):
        xids.add("GPU-0", XidEvent(13, 1000.0 + number), "log")

    codes = [event.code for event in xids.recent("GPU-0", 2000.0)]

    assert (79, 64) == (codes[0], len(codes))
