"""Guards need writable memory groups: root, or a delegated group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard_desk import MEMORY, Desk, own_group


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk that is cleaned up after the test, even if the test fails."""
    if not os.access(f"{MEMORY}{own_group()}/cgroup.procs", os.W_OK):
        pytest.skip("no cgroup v1 memory hierarchy that can be written")
    found = Desk(tmp_path)
    try:
        yield found
    finally:
        found.close()
