"""Cards, temperatures and power in one sample that never blocks."""

from __future__ import annotations

import threading
import time
from collections import namedtuple
from dataclasses import dataclass

import psutil
import pytest
from device_trees import LAPTOP_CPU, DeviceTree
from support.waiting import until

from watchdog_app.core.model.hardware import Gpu, Hardware
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.sensors.devices import HardwareWatch
from watchdog_app.machine.sensors.portable import hardware

# The field names of psutil.
Sbattery = namedtuple("sbattery", "percent secsleft power_plugged")


@pytest.fixture
def tree(tmp_path):
    """An empty /sys."""
    return DeviceTree(tmp_path / "sys")


@pytest.fixture
def watch_of():
    """Make watches that the fixture closes."""
    made = []

    def make(*arguments, **options):
        options.setdefault("first_wait_s", 20.0)
        made.append(HardwareWatch(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Device:
    """A device whose answers the test sets; it hangs on request."""

    def __init__(self):
        self.answers = threading.Event()
        self.answers.set()
        self.asked = []
        self.answered = 0
        self.error = None

    def has_sensors(self):
        return True

    def read(self, now_mono_s):
        self.asked.append(now_mono_s)
        self.answers.wait(60.0)
        self.answered += 1
        if self.error is not None:
            raise self.error
        return Hardware(on_mains=True)


@dataclass
class CardReading:
    gpus: tuple[Gpu, ...] = ()
    read_mono_s: float | None = None
    driver_version: str | None = None
    faults: tuple[Fault, ...] = ()
    awaited: bool = False


class Cards:
    """A source of card readings."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.closed = False
        self.busy = []

    def read(self, now_mono_s, busy=False):
        self.busy.append(busy)
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def close(self):
        self.closed = True


def test_all_that_a_laptop_shows_is_in_one_look(tree, watch_of):
    """The sample has temperatures, battery and plug."""
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    tree.supply("BAT0", type="Battery", status="Discharging", capacity=60)
    tree.supply("AC", type="Mains", online=0)
    watch = watch_of(str(tree.root))

    found = watch.read(100.0)

    assert [61.0] == [t.celsius for t in found.temperatures]
    assert [60.0] == [b.percent for b in found.batteries]
    assert found.on_mains is False
    assert {} == watch.faults


def test_a_machine_without_any_of_it_has_no_thread_and_no_fault(tree, watch_of, started_threads):
    """A virtual machine. Cooling devices are not sensors."""
    tree.write("class/thermal/cooling_device0", type="Processor")
    watch = watch_of(str(tree.root))

    assert Hardware() == watch.read(0.0)
    assert {} == watch.faults
    assert 0 == started_threads.count


def test_sensors_that_appear_are_found(tree, watch_of):
    """A driver that is loaded later is found within a minute."""
    watch = watch_of(str(tree.root))
    before = watch.read(0.0)
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)

    assert () == before.temperatures
    assert () == watch.read(59.0).temperatures
    assert 1 == len(watch.read(61.0).temperatures)


def test_sensors_are_asked_every_two_seconds(watch_of):
    """Also at ten samples a second; the last answer stays valid in between."""
    device = Device()
    watch = watch_of(reader=device)
    for tick in range(50):
        watch.read(tick / 10)
        until(lambda: len(device.asked) == device.answered)
        time.sleep(0.005)  # the time from the answer to the queue

    assert [0.0, 2.0, 4.0] == device.asked


def test_a_device_that_hangs_delays_nobody_and_is_said(watch_of):
    """It is read again as soon as it answers."""
    device = Device()
    watch = watch_of(reader=device, first_wait_s=0.01)
    device.answers.clear()

    begun = time.monotonic()
    readings = [watch.read(float(second)) for second in range(16)]
    took_s = time.monotonic() - begun

    assert took_s < 5.0
    assert [Hardware()] * 16 == readings
    assert "not watched" in watch.faults["hardware"].message
    assert [0.0] == device.asked
    device.answers.set()
    until(lambda: watch.read(20.0).on_mains)
    assert {} == watch.faults


def test_a_device_that_stops_answering_leaves_no_stale_figures(watch_of):
    """A temperature of a quarter of a minute ago is not valid."""
    device = Device()
    watch = watch_of(reader=device)
    assert watch.read(0.0).on_mains
    device.answers.clear()

    kept = watch.read(10.0).on_mains
    gone = watch.read(26.0).on_mains
    device.answers.set()

    assert kept
    assert gone is None


def test_a_reader_that_fails_is_a_fault_until_it_works(watch_of):
    """The loop continues whatever a driver shows."""
    device = Device()
    device.error = ValueError("what is this")
    watch = watch_of(reader=device)
    watch.read(0.0)
    failed = dict(watch.faults)
    device.error = None
    until(lambda: watch.read(10.0 + len(device.asked)).on_mains)

    assert "what is this" in failed["hardware"].message
    assert {} == watch.faults


def test_closing_ends_the_thread_and_closes_the_cards(started_threads):
    """A device that hangs does not delay the close."""
    device, cards = Device(), Cards(CardReading())
    watch = HardwareWatch(reader=device, gpu=cards, first_wait_s=20.0)
    watch.read(0.0)

    watch.close()

    until(lambda: started_threads.all_ended)
    assert 1 == started_threads.count
    assert cards.closed


def test_cards_are_read_closely_for_as_long_as_somebody_asks(watch_of, tree):
    """This does not depend on the processes: in a container the driver does not list them."""
    cards = Cards(CardReading())
    watch = watch_of(str(tree.root), gpu=cards)

    watch.read(1.0)
    watch.gpus_busy = True
    watch.read(2.0)
    watch.gpus_busy = False
    watch.read(3.0)

    assert [False, True, False] == cards.busy


def test_cards_stand_beside_heat(tree, watch_of):
    """The sample has their reading time, the driver, and their faults while these last."""
    card = Gpu("GPU-0", 0, "card")
    lost = Fault("gpu", "lost", None)
    cards = Cards(
        CardReading((card,), 5.0, "580.95"),
        CardReading((card,), 6.0, "580.95", (lost,)),
        CardReading(),
    )
    tree.hwmon(0, "coretemp", **LAPTOP_CPU)
    watch = watch_of(str(tree.root), gpu=cards)

    found = watch.read(5.5)
    first = dict(watch.faults)
    watch.read(6.5)
    second = dict(watch.faults)
    watch.read(7.5)

    assert ((card,), 5.0, "580.95", 1) == (
        found.gpus,
        found.gpus_mono_s,
        found.driver_version,
        len(found.temperatures),
    )
    assert ({}, {"gpu": lost}, {}) == (first, second, watch.faults)


def test_psutil_is_asked_where_there_is_no_sys():
    """It works on any machine; unknown values have no answer."""
    assert isinstance(hardware(), Hardware)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, Hardware()),
        (Sbattery(None, -1, None), Hardware()),
        (Sbattery(255, -1, True), Hardware()),
    ],
)
def test_no_battery_is_none(monkeypatch, answer, expected):
    """A desktop, or a driver that reports 255."""
    monkeypatch.setattr(psutil, "sensors_battery", lambda: answer, raising=False)

    assert expected == hardware()


@pytest.mark.parametrize(("plugged", "expected"), [(True, False), (False, True), (None, False)])
def test_psutils_battery_is_drained_when_it_is_unplugged(monkeypatch, plugged, expected):
    """Unknown is not unplugged."""
    answer = Sbattery(41, 3600, plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: answer, raising=False)

    found = hardware()

    (battery,) = found.batteries
    assert (41.0, expected, plugged) == (battery.percent, battery.discharging, found.on_mains)
