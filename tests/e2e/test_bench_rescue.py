"""The rescue table: its plan and its verdicts. The tests train nothing."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import rescue
from rescue_rows import KINDS, ROWS, USUAL, chosen
from rescue_trainings import FOLLOWED, STEPS, Length
from rescue_ways import Outcome, Seen

MIB = 1 << 20


def test_every_row_is_over_before_its_training_is():
    """Otherwise a slow leak would end without running out, and the row would not count."""
    for row in ROWS:
        for step_s in (0.003, 0.05, 0.25):
            length = Length.over([row], step_s)

            assert length.epochs * STEPS * step_s > row.seconds(step_s) + FOLLOWED * step_s


def test_names_choose_rows_in_the_order_of_the_table():
    """The usual trainings are those that the issue lists."""
    names = [each.name for each in chosen(ROWS, " jump-data, 5")]

    assert ["5", "jump-data"] == names
    assert ["keras", "keras-found", "torch-found"] == [each.name for each in chosen(KINDS, USUAL)]


@pytest.mark.parametrize("names", ["6", "", "5,jump"])
def test_a_name_that_no_row_has_is_refused(names):
    """The error lists the valid names."""
    with pytest.raises(ValueError, match="there are 1, 5, 20"):
        chosen(ROWS, names)


def record(kind, unix_s, used, stage="copying"):
    events = [{"unix_s": unix_s, "kind": kind, "text": ""}]
    return {"events": events, "used_bytes": used * MIB, "limit_bytes": 100 * MIB, "state": stage}


@pytest.mark.parametrize(
    ("copies", "jumped", "rescues", "expected"),
    [
        ([(10.0, 100)], None, [10.25], 0.25),
        # the first rescue came before the limit
        ([(8.0, 87), (10.0, 100)], None, [8.1, 10.5], 0.5),
        ([(8.0, 87), (10.0, 99)], None, [8.1], 0.0),  # and that rescue sufficed
        ([], 9.0, [9.5, 12.0], 0.5),  # the kernel refused the jump
        ([(9.5, 100)], 9.0, [10.0], 0.5),  # the kernel granted the jump
        ([(10.0, 100)], None, [], None),
        ([], None, [9.0], None),
    ],
)
def test_seconds_are_counted_from_the_limit(copies, jumped, rescues, expected):
    """If the kernel refused the jump, they count from it. They are 0 if a rescue existed before."""
    seen = Seen()
    for unix_s, used in copies:
        seen.update(record("limit", unix_s, used))
    seen.rescues = {Path(f"rescue-{at}"): at for at in rescues}

    assert expected == seen.seconds(jumped)


@pytest.mark.parametrize(
    ("stage", "stopped", "kills", "code", "expected"),
    [
        ("refusing", False, 0, 1, False),
        ("running", False, 0, -signal.SIGKILL, True),
        ("ending", False, 0, -signal.SIGKILL, False),  # by the supervisor
        ("stopped", True, 0, -signal.SIGKILL, False),  # by the test
        ("refusing", False, 1, 1, True),  # the kernel killed one of its children
    ],
)
def test_a_kill_of_the_kernel_is_told_from_one_of_the_supervisor(
    stage, stopped, kills, code, expected
):
    """The kernel's kill count decides, and an end that no program requested."""
    seen = Seen()
    seen.update(record("limit", 1.0, 100, stage))
    seen.stopped, seen.oom_kills = stopped, kills

    assert expected is seen.killed(code)


def test_a_line_holds_the_share_the_kills_and_the_worst():
    """The values are medians of known results; a row without runs stays empty."""
    outcomes = [
        Outcome(True, "", lost=0, seconds=0.1, steps=99),
        Outcome(True, "", lost=4, seconds=0.5, steps=99),
        Outcome(False, "no rescue", killed=True, steps=99),
    ]

    assert "2 of 3 | 1 | 0.30 (0.50) | 2 (4)" == rescue.cell(outcomes)
    assert "- | - | - | -" == rescue.cell([])
    assert "NOT RESCUED: no rescue, killed" == rescue.describe(outcomes[2])
