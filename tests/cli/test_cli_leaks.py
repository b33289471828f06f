"""Output of `watchdog leaks`: the growth that it found, and what it did not examine."""

from __future__ import annotations

import pytest

from watchdog_app.cli.leaks import render

FOUND = {
    "name": "train.py",
    "seconds": 0.42,
    "steps": 7,
    "refused": None,
    "lines": [{"file": "/w/train.py", "line": 9, "own": True, "bytes": 808960,
               "bytes_per_step": 115566.0}],
    "tensors": [],
    "complete": True,
    "tensors_counted": True,
    "cut_short": False,
}  # fmt: skip


def test_a_short_look_is_no_look_of_no_time():
    """The command must not print 0.4 s as 0 s."""
    lines = render(FOUND)

    assert "train.py: Python objects that became more in 0.4 s and 7 steps:" == lines[0]
    assert "  790 KiB, 113 KiB a step: /w/train.py:9" == lines[1]
    assert 2 == len(lines)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cut_short": True}, "It ended before its time"),
        (
            {"tensors_counted": False, "complete": False},
            "Tensors were not counted: worker processes",
        ),
        ({"complete": False}, "There are too many objects to look at all"),
        ({"refused": "the program uses tracemalloc itself"}, "Lines are not known: the program"),
    ],
)
def test_what_was_not_seen_is_said_with_its_reason(change, words):
    """The user must know that the result is incomplete."""
    said = [line for line in render(FOUND | change) if line.startswith(words)]

    assert 1 == len(said)
    assert 3 == len(render(FOUND | change))
