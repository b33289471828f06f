"""A laptop's sleeping card stays asleep, because any call of the driver would wake it."""

from __future__ import annotations

import os

import pytest
from gpu_stub.driver_stub import GIB

from watchdog_app.core.model.hardware import GpuState

ONE, TWO = "0000:05:00.0", "0000:06:00.0"


def test_no_reader_is_started_while_every_card_sleeps(stub, ticker, root):
    """There is no driver call; the cards show as asleep, which is not a fault."""
    root.card(ONE, "suspended", "auto")
    root.card(TWO, "suspended", "auto")
    watch = ticker(stub)

    for _ in range(20):
        sample = watch.tick(5)

    assert {} == stub.calls()
    assert watch.watch.reader_pid is None
    assert [GpuState.ASLEEP] * 2 == [gpu.state for gpu in sample.gpus]
    assert [0, 1] == [gpu.index for gpu in sample.gpus]
    assert () == sample.faults


def test_a_card_that_wakes_is_read(stub, ticker, root):
    """A program uses it, and the daemon must see that program."""
    root.card(ONE, "suspended", "auto")
    watch = ticker(stub)
    watch.tick()
    root.card(ONE, "active", "auto")

    sample = watch.reading()

    assert [GpuState.OK] * 2 == [gpu.state for gpu in sample.gpus]
    assert "GPU-00000000-1111-2222-3333-444444444444" == sample.gpus[0].uuid


def test_a_sleeping_card_beside_a_working_one_is_not_touched(stub, ticker, root):
    """The reader opens cards by address, so only the active card is opened."""
    root.card(ONE, "suspended", "auto")
    root.card(TWO, "active", "on")
    stub.processes(1, [(os.getpid(), GIB)])
    watch = ticker(stub)

    for _ in range(12):
        sample = watch.reading()

    assert 0 == stub.touched(0)
    asleep, awake = sample.gpus
    assert (GpuState.ASLEEP, 0) == (asleep.state, asleep.index)
    assert (GpuState.OK, 1) == (awake.state, awake.index)
    assert () == sample.faults
    root.card(ONE, "active", "auto")
    sample = watch.reading()
    assert [(GpuState.OK, 0), (GpuState.OK, 1)] == [(gpu.state, gpu.index) for gpu in sample.gpus]


def test_a_card_that_falls_asleep_keeps_its_name_and_loses_its_figures(stub, ticker, root):
    """The reader ends at once, because it would keep the card awake."""
    root.card(ONE, "active", "auto")
    root.card(TWO, "active", "auto")
    watch = ticker(stub)
    watch.reading()
    root.card(ONE, "suspended", "auto")
    root.card(TWO, "suspended", "auto")

    sample = watch.tick(1)

    assert watch.watch.reader_pid is None
    assert [GpuState.ASLEEP] * 2 == [gpu.state for gpu in sample.gpus]
    assert "NVIDIA GeForce RTX 3090" == sample.gpus[0].name
    assert (None, None) == (sample.gpus[0].temperature_c, sample.read_mono_s)


def test_an_unused_card_that_may_sleep_is_let_go(stub, ticker, root):
    """The reader's own handle could keep it awake."""
    root.card(ONE, "active", "auto")
    watch = ticker(stub)
    watch.reading()

    sample = watch.until(lambda sample: watch.watch.reader_pid is None, step_s=0.5)
    since = watch.now
    sample = watch.tick(30)

    assert [GpuState.OK] * 2 == [gpu.state for gpu in sample.gpus]
    assert sample.gpus[0].temperature_c is None
    assert any("may sleep" in note for note in sample.gpus[0].notes)
    assert () == sample.faults
    watch.until(lambda sample: watch.watch.reader_pid is not None, step_s=2.0)
    assert watch.now - since >= 55


@pytest.mark.parametrize(("control", "used"), [("on", False), ("auto", True)])
def test_a_card_that_cannot_sleep_or_is_used_is_read_on(stub, ticker, root, control, used):
    """A desktop's cards, and a training that is idle for a minute."""
    root.card(ONE, "active", control)
    stub.processes(0, [(os.getpid(), GIB)] if used else [])
    watch = ticker(stub)
    first = watch.reading()
    pid = watch.watch.reader_pid

    for _ in range(60):
        sample = watch.reading()

    assert pid == watch.watch.reader_pid
    assert sample.read_mono_s >= first.read_mono_s + 60
