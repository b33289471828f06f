"""
A shuffle buffer that fills:

the agent knows its final size, so the daemon warns or stays silent. Real TensorFlow.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.cgroup]

BASE_MB = 330


def warnings(world, pid):
    """Return the warnings about this program: other tests may run at the same time."""
    told = world.history("decision")
    return [e for e in told if e["decision_kind"] == "notify" and e["pid"] == pid]


def test_a_buffer_that_fits_fills_without_a_word(world):
    """For ten seconds it looks like a leak towards the limit; then it stops below it."""
    world.start_daemon()
    run = world.train(
        "fill.py", "--fill-mb", "600", "--mb-s", "60", group=world.group(BASE_MB + 600 + 250)
    )

    assert run.wait() == 0, run.tail()

    assert "trained" in run.tail()
    assert [] == [e["reason"] for e in warnings(world, run.pid)]


def test_a_buffer_that_will_not_fit_is_told_of_as_it_begins(world):
    """The warning has name and both sizes, and comes before a tenth of the buffer is full."""
    world.start_daemon()
    group = world.group(BASE_MB + 400)
    run = world.train("fill.py", "--fill-mb", "900", group=group)

    (told,) = world.until(lambda: warnings(world, run.pid), "the warning")

    assert "the shuffle buffer of 900 examples will need another 8" in told["reason"]
    assert "it will not fit" in told["reason"]
    assert group.usage().used_bytes < (BASE_MB + 200) * 1e6
