"""
The number of modules between a reading and its notification, and a request and its rescue.

A newcomer who follows one of them reads only these modules. Modules that do a part of the work
count, and so does each on the call stack between two of them. Shared leaves do not count: `base`,
records, and `daemon.log`, which contains errors. The numbers may only shrink.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base.linux.process import start_time
from watchdog_app.cli import main
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    TaskKind,
)
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.notify import Channel, Delivery
from watchdog_app.daemon.parts import Parts
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.store import RescueStore

GIB = 1 << 30
# module -> what it does with a reading
NOTIFICATION = {
    "daemon.loop": "takes a sample, hands on what was decided",
    "daemon.observer": "asks the machine, then the engine",
    "machine.sensors.machine": "samples",
    "core.model.readings": "makes readings of a sample",
    "core.policy.engine": "decides, in order",
    "core.policy.tracker": "keeps the series",
    "core.forecast.stages": "stages with hysteresis",
    "core.forecast.forecaster": "where the series leads",
    "core.policy.danger": "what of it is dangerous for whom",
    "core.policy.attribution": "whose growth it is",
    "core.policy.incidents": "opens an incident",
    "core.policy.reporting": "when it is reported",
    "core.explain.notifications": "its text",
    "daemon.executor": "written down and carried out",
    "daemon.notify.dispatcher": "whether it is shown, and by which channels",
}
# module -> what it does with a request for a checkpoint
CHECKPOINT = {
    "cli.checkpoint": "asks",
    "client.client": "sends",
    "daemon.rpc": "receives, and sends to the agent",
    "daemon.methods": "knows what it means",
    "daemon.executor": "written down and carried out",
    "daemon.checkpoints": "asks the agents",
    "agent.runtime.link": "hears it in the training",
    "agent.runtime.session": "saves at the end of a step",
    "rescue.checkpoint.store": "makes the rescue",
    "rescue.checkpoint.stream": "writes its tensors",
    "rescue.checkpoint.sink": "writes bytes",
}
LEAVES = ("base.", "core.model.", "daemon.log")


class Screen(Channel):
    """A channel that records what it shows."""

    name = "screen"

    def __init__(self) -> None:
        self.shown = threading.Event()

    def send(self, _: Any) -> Delivery:
        self.shown.set()
        return Delivery(True)


class FillingMachine:
    """The real machine with other figures: one program fills its memory."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.key = ProcessKey(os.getpid(), start_time(os.getpid()) or 0)
        self.now_mono_s = time.monotonic()
        self.used_bytes = 4 * GIB

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sample(self, now_mono_s: float, now_unix_s: float) -> Any:
        """The present figures."""
        found = self._real.sample(now_mono_s, now_unix_s)
        free_bytes = 16 * GIB - self.used_bytes
        sample = ProcessSample(self.key, 1, "R", self.used_bytes, None, 0, None, self.now_mono_s)
        info = ProcessInfo(
            self.key, 1, os.getuid(), "ann", "/usr/bin/python3", ("python3", "fill.py"),
            "/home/ann", TaskKind.SCRIPT, "fill.py",
        )  # fmt: skip
        return replace(
            found,
            mono_s=self.now_mono_s,
            host=HostMemory(16 * GIB, free_bytes, 0, 0, 0, 0, None, None, None),
            processes=(sample,),
            infos={self.key: info},
        )


class Trace:
    """For each module, the modules on the stack at the first call of one of its functions."""

    def __init__(self) -> None:
        self.stacks: dict[str, list[str]] = {}
        self.active = True

    def __enter__(self) -> Trace:
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def passed(self, path: Iterable[str]) -> set[str]:
        """The modules of a path and those between them. All of the path must have been called."""
        missing = [module for module in path if module not in self.stacks]
        assert [] == missing
        found: set[str] = set()
        for module in path:
            stack = self.stacks[module]
            first = next(number for number, each in enumerate(stack) if each in path)
            found.update(stack[first:])
        return {each for each in found if not each.startswith(LEAVES)} | set(path)

    def _call(self, frame: Any, event: str, _: Any) -> None:
        if not self.active or event != "call":
            return
        module = _module(frame)
        if module is None or module in self.stacks:
            return
        stack = self.stacks[module] = []
        while frame is not None:
            above = _module(frame)
            if above is not None:
                stack.insert(0, above)
            frame = frame.f_back


def _module(frame: Any) -> str | None:
    name = str(frame.f_globals.get("__name__"))
    return name.removeprefix("watchdog_app.") if name.startswith("watchdog_app.") else None


@pytest.fixture
def screen() -> Screen:
    """The only channel of the daemon."""
    return Screen()


@pytest.fixture
def channels(screen: Screen) -> list[Any]:
    """The channels of the daemon."""
    return [screen]


@pytest.fixture
def parts(parts: Parts) -> Parts:
    """A daemon in the test's process, whose machine readings come from the test."""
    parts.observer.machine = FillingMachine(parts.observer.machine)  # type: ignore[assignment]
    return parts


def test_a_reading_passes_through_few_modules_to_its_notification(parts, loop, screen):
    """The channel counts as one. A new module between two of them fails here."""
    machine = parts.observer.machine
    for _ in range(200):
        machine.now_mono_s += 1.0
        machine.used_bytes += GIB // 16
        with Trace() as trace:
            loop.sample()
        if "core.explain.notifications" in trace.stacks:
            break

    assert screen.shown.wait(60)
    assert set(NOTIFICATION) == trace.passed(NOTIFICATION)
    assert len(NOTIFICATION) <= 15


def test_a_request_passes_through_few_modules_to_its_rescue(parts, control, loop, tmp_path):
    """From the command line to the bytes. A new module between two of them fails here."""
    loop.sample()
    parts.server.open(Methods(parts, control))
    store = RescueStore(str(tmp_path / "rescues"))
    session = Session(store, Link("keras", store.directory), lambda: Capture([], {}))
    over = threading.Event()

    def train() -> None:
        session.prepare()
        for step in range(1, 100_000):
            session.boundary(step, epoch=0)
            if over.wait(0.02):
                break
        session.end()

    with Trace() as trace:
        trace.active = False
        threads = [threading.Thread(target=each) for each in (loop.run, train)]
        for thread in threads:
            thread.start()
        try:
            while not parts.agents.connected():
                time.sleep(0.05)
            trace.active = True
            code = main(["checkpoint", str(os.getpid()), "--wait"])
        finally:
            trace.active = False
            over.set()
            threads[1].join()
            with suppress(OSError):
                parts.waker.wake()
            control.stopping = True
            threads[0].join()

    assert 0 == code
    assert set(CHECKPOINT) == trace.passed(CHECKPOINT)
    assert len(CHECKPOINT) <= 11
