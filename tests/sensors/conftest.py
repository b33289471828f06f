"""A captured machine for the tests of the sensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from sensor_trees import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A copy of the captured machine, cgroup v1."""
    return Tree(tmp_path / "machine")
