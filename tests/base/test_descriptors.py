"""The share of open files per purpose, so that sampling always has some left."""

from __future__ import annotations

import resource

import pytest

from watchdog_app.base.linux.files import descriptor_share


@pytest.fixture
def limited():
    """Set the soft limit; the fixture restores it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("soft", "handles", "connections"), [(256, 26, 52), (1024, 122, 244), (4096, 500, 500)]
)
def test_shares_leave_room_for_looking(limited, soft, handles, connections):
    """A quarter goes to files of processes; agents and pidfds get two shares each."""
    limited(soft)

    assert handles == descriptor_share(8, 500)
    assert connections == descriptor_share(4, 500)
    assert soft // 4 + 2 * handles + 2 * connections <= soft - 30
