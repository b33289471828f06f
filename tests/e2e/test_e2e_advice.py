"""Advice works: the test applies the number of the message, and the training finishes."""

from __future__ import annotations

import json
import re
import sys

import pytest
from harness import PROGRAMS
from support.finished import finished

from watchdog_app.base import children

BASE_MB = 330
RANGE_MB = 3000

pytestmark = [pytest.mark.tensorflow, pytest.mark.cgroup]


def explained(world, pid):
    """Return the output of `watchdog explain` for an ended program."""
    world.until(
        lambda: any(each["pid"] == pid for each in world.history("exit")), "the death is told", 20
    )
    return world.client.call("explain", task=str(pid))["death_text"]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--shuffle", r"Shuffle buffer still filling: .* shuffle\((\d+)\) would"),
        pytest.param(
            "--cache",
            r"Cache in memory still filling: .* ([\d,]+) examples would",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_buffer_that_is_advised_fits(world, option, advice):
    """The buffer fills until a kill. With the number from `explain` the training finishes."""
    world.start_daemon()
    limit_mb = BASE_MB + 800
    words = ("--fill-mb", f"{RANGE_MB}", "--mb-s", "80")
    run = world.train("fill.py", *words, option, f"{RANGE_MB}", group=world.group(limit_mb))
    assert run.wait() == -9, run.tail()
    text = explained(world, run.pid)
    found = re.findall(advice, text)
    assert found, text

    fits = found[-1].replace(",", "")
    again = world.train(
        "fill.py", *words, option, fits, name="again", group=world.group(limit_mb)
    )  # fmt: skip

    assert again.wait() == 0, again.tail()
    assert "trained" in again.tail()


@pytest.mark.slow
def test_a_buffer_that_fills_and_leaves_too_little_is_named_by_the_second_death_too(world):
    """The user tries a number between the advice and the available memory."""
    world.start_daemon()
    limit_mb = BASE_MB + 800
    words = ("--fill-mb", f"{RANGE_MB}", "--mb-s", "80")
    run = world.train("fill.py", *words, "--shuffle", "820", group=world.group(limit_mb))

    assert run.wait() == -9, run.tail()

    text = explained(world, run.pid)
    assert re.search(r"Shuffle buffer (still filling|has filled)", text), text
    assert re.search(r"shuffle\(\d+\) would", text), text


def test_the_largest_batch_of_an_estimate_fits(world):
    """`watchdog estimate` uses the limit that the training then has."""
    limit_mb = 1200
    done = finished(
        [
            *children.watchdog_argv(
                ["estimate", f"{PROGRAMS / 'batch.py'}:build", "--batch", "32"]
            ),
            "--limit",
            f"{limit_mb}M",
            "--json",
        ],
        env=world.env,
    )
    assert done.stdout, done.stderr
    largest = json.loads(done.stdout)["largest_batch"]
    assert largest > 32

    run = world.train(
        "batch.py", "--batch", f"{largest}", "--epochs", "2", group=world.group(limit_mb)
    )

    assert run.wait() == 0, run.tail()
    assert "trained" in run.tail()


def test_the_limit_that_is_advised_is_enough(world, tmp_path):
    """The test is the limit of `watchdog exec`, after it refused one allocation."""
    program = tmp_path / "jump.py"
    program.write_text("import numpy\nkept = numpy.ones(90_000_000)\nprint('trained', kept.size)\n")

    def run(limit):
        return finished(
            children.watchdog_argv(["exec", "--limit", limit, "--", sys.executable, str(program)]),
            env=world.env,
        )

    refused = run("300M")
    assert refused.returncode == 1, refused.stderr
    found = re.findall(r"watchdog exec --limit (\S+) -- \S", refused.stderr)
    assert found, refused.stderr

    again = run(found[-1])

    assert again.returncode == 0, again.stderr
    assert "trained" in again.stdout
