"""A captured machine for the tests of the sensors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sensor_trees import NOW_UNIX_S, Tree

from watchdog_app.base import threads
from watchdog_app.machine.sensors.machine import LinuxMachine


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """A copy of the captured machine, cgroup v1."""
    found = Tree(tmp_path / "machine")
    yield found
    for machine in found.machines:
        machine.close()


@pytest.fixture
def machine(tree: Tree) -> LinuxMachine:
    """The machine of that tree, sampled once."""
    made = tree.machine()
    made.sample(0.0, NOW_UNIX_S)
    return made


class StartedThreads:
    """The threads that `watchdog_app.base.threads` started during this test."""

    def __init__(self, start_new_thread: Callable[..., int]) -> None:
        self._start_new_thread = start_new_thread
        self.count = 0
        self._native_ids: list[int] = []

    def start(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        """Start a thread, as `start_new_thread` does."""

        def run() -> None:
            self._native_ids.append(threading.get_native_id())
            function(*arguments)

        self.count += 1
        return self._start_new_thread(run, ())

    @property
    def all_ended(self) -> bool:
        """Whether each of them ran and ended."""
        ids = list(self._native_ids)
        alive = any(os.path.exists(f"/proc/self/task/{each}") for each in ids)
        return len(ids) == self.count and not alive


@pytest.fixture
def started_threads(monkeypatch: pytest.MonkeyPatch) -> StartedThreads:
    """Records the threads of this test; other tests leave threads that end at any time."""
    found = StartedThreads(threads.start_new_thread)
    monkeypatch.setattr(threads, "start_new_thread", found.start)
    return found
