"""A captured machine for the tests of the sensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree

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
