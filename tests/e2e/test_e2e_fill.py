"""A shuffle buffer that fills: known from the program, so foretold or no news. Real TensorFlow."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.cgroup]

BASE_MB = 330


def warnings(world, pid):
    """Those about this program: other tests may run beside this one."""
    told = world.history("decision")
    return [e for e in told if e["decision_kind"] == "notify" and e["pid"] == pid]


def test_a_buffer_that_fits_fills_without_a_word(world):
    """It looks like a leak towards the limit for half a minute, and then stops below it."""
    world.start_daemon()
    run = world.train("fill.py", "--fill-mb", "600", group=world.group(BASE_MB + 600 + 250))

    assert run.wait() == 0, run.tail()

    assert "trained" in run.tail()
    assert [] == [e["reason"] for e in warnings(world, run.pid)]


def test_a_buffer_that_will_not_fit_is_told_of_as_it_begins(world):
    """With its name and both figures, when less than a tenth of it is there."""
    world.start_daemon()
    group = world.group(BASE_MB + 400)
    run = world.train("fill.py", "--fill-mb", "900", group=group)

    (told,) = world.until(lambda: warnings(world, run.pid), "the warning")

    assert "the shuffle buffer of 900 examples will need another 8" in told["reason"]
    assert "it will not fit" in told["reason"]
    assert group.usage_bytes() < (BASE_MB + 200) * 1e6


def test_the_buffer_that_is_advised_is_followed_to_the_end_of_the_training(world):
    """The number of the incident is put into the program, and nothing is killed."""
    world.start_daemon()
    limit_mb = BASE_MB + 800
    group = world.group(limit_mb)
    run = world.train("fill.py", "--fill-mb", "3000", "--mb-s", "80", group=group)
    world.until(lambda: warnings(world, run.pid), "the warning")
    assert run.wait() == -9, run.tail()
    death = world.until(lambda: world.history("death"), "the death is told", 10)
    answer = world.client.call("explain", task=str(death[0]["pid"]))
    counts = re.findall(r"shuffle\((\d+)\) would", answer["death_text"])
    assert counts, answer["death_text"]

    again = world.train(
        "fill.py", "--fill-mb", "3000", "--mb-s", "80", "--buffer", counts[-1],
        name="again", group=world.group(limit_mb),
    )  # fmt: skip

    assert again.wait() == 0, again.tail()
    assert "trained" in again.tail()
