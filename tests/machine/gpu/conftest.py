"""A monitor on the stub driver, with a clock that the test moves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_stub.driver_stub import DriverStub

from watchdog_app.machine.gpu.backend import BACKENDS, GpuSample
from watchdog_app.machine.gpu.monitor import GpuMonitor

PATIENCE_S = 60.0  # seconds of the real clock; nothing takes a second on a quiet machine


class Ticker:
    """A GpuMonitor with a simulated clock; `now` is its time."""

    def __init__(self, stub: DriverStub, **settings: object) -> None:
        self.stub = stub
        self.now = 1000.0
        self.unix = 1_700_000_000.0
        defaults = {
            "env": stub.env(),
            "root": str(stub.folder.parent / "root"),
            "kernel_log": None,
            "start_deadline_s": 100_000.0,
            "wall_clock": lambda: self.unix + self.now,
        }
        find = settings.pop("find_library", None)
        if find is not None:
            settings["backend"] = replace(BACKENDS[0], find_library=find)
        self.watch = GpuMonitor(**{**defaults, **settings})

    def tick(self, seconds: float = 0.0, busy: bool = True) -> GpuSample:
        self.now += seconds
        return self.watch.read(self.now, busy)

    def reading(self) -> GpuSample:
        """The next reading that starts a second from now."""
        self.now += 1.0
        since = self.now
        return self.until(lambda sample: (sample.read_mono_s or 0) >= since)

    def until(self, true: Callable[[GpuSample], bool], step_s: float = 0.0) -> GpuSample:
        """Tick until `true` accepts the sample; the clock advances by `step_s` every 20 ms."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            sample = self.tick(step_s)
            if true(sample):
                return sample
            assert time.monotonic() < give_up, f"it never came: {sample}"
            time.sleep(0.02 if step_s else 0.002)

    def wait_for_call(self, function: str) -> None:
        """Tick until the driver is inside that function."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.stub.calls().get(function):
            assert time.monotonic() < give_up, f"{function} was never called"
            self.tick()
            time.sleep(0.01)


class Root:
    """A tree that replaces the machine's /sys, /proc/driver and /etc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def card(
        self, address: str, status: str = "active", control: str = "on", driver: str | None = None
    ) -> None:
        """Put one NVIDIA card on the bus."""
        base = f"sys/bus/pci/devices/{address}"
        self.write(f"{base}/vendor", "0x10de\n")
        self.write(f"{base}/class", "0x030000\n")
        self.write(f"{base}/power/runtime_status", f"{status}\n")
        self.write(f"{base}/power/control", f"{control}\n")
        link = self.folder / base / "driver"
        if driver is not None:
            link.unlink(missing_ok=True)
            os.symlink(f"../../../bus/pci/drivers/{driver}", link)

    def module(self, version: str) -> None:
        """Load the driver's kernel module."""
        self.write("sys/module/nvidia/version", f"{version}\n")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A tree without NVIDIA devices."""
    return Root(tmp_path / "root")


@pytest.fixture
def stub(tmp_path: Path) -> DriverStub:
    """A driver with two idle cards."""
    return DriverStub(tmp_path, cards=2)


@pytest.fixture
def ticker(tmp_path: Path) -> Iterator[Callable[..., Ticker]]:
    """Makes monitors for a stub, and closes them."""
    made: list[Ticker] = []

    def make(stub: DriverStub, **settings: object) -> Ticker:
        made.append(Ticker(stub, **settings))
        return made[-1]

    yield make
    for each in made:
        each.stub.heal()
        each.watch.close()


@pytest.fixture
def watch(stub: DriverStub, ticker: Callable[..., Ticker]) -> Ticker:
    """A monitor that has read the two cards once."""
    made = ticker(stub)
    made.reading()
    return made
