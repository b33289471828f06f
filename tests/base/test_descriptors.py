"""Open files are shared out so that looking never goes short of any."""

from __future__ import annotations

import resource

import pytest

from watchdog_app.base.linux.files import max_connections, max_pidfds


@pytest.fixture
def limited():
    """Sets the soft limit; it is put back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("soft", "handles", "connections"), [(256, 26, 52), (1024, 122, 244), (4096, 500, 500)]
)
def test_shares_leave_room_for_looking(limited, soft, handles, connections):
    """A quarter of all goes to files of processes, two agents' shares and two of ends follow."""
    limited(soft)

    assert handles == max_pidfds(500)
    assert connections == max_connections(500)
    assert soft // 4 + 2 * handles + 2 * connections <= soft - 30
