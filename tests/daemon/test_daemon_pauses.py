"""Pauses over the end of a daemon, and over everything else that can happen to a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.model.machine import ProcessKey, ProcessSample, Task, TaskKind
from watchdog_app.daemon.pauses import Pause, Pauses, as_held, intent, outcome, remembered
from watchdog_app.machine.process_control.paused import Paused

ROOT, WORKER = ProcessKey(10, 100), ProcessKey(11, 101)
PAUSE = Pause(ROOT, "train.py", Paused((ROOT, WORKER), "sigstop", 5.0), "asked for")
STORED = outcome(PAUSE, "boot")
INTENT = {
    "boot": "boot", "task": [10, 100], "name": "train.py", "reason": "why",
    "intended": [[10, 100], [11, 101]],
}  # fmt: skip


def states(**found):
    """State by pid; None where it is gone."""
    return lambda key: found.get(f"p{key.pid}")


def test_a_pause_that_stands_is_remembered_as_it_was():
    """Every process, the method, the reason."""
    assert PAUSE == remembered(STORED, "boot", states(p10="T", p11="T"))


@pytest.mark.parametrize(
    ("stored", "boot", "now"),
    [
        (STORED, "other", states(p10="T", p11="T")),
        (STORED, "boot", states()),
        (STORED, "boot", states(p10="S", p11="R")),
        (INTENT, "boot", states(p10="S", p11="S")),
        (INTENT, "boot", states(p10="D")),
        ({}, "boot", states(p10="T")),
        ({"boot": "boot"}, "boot", states(p10="T")),
        ({**STORED, "task": "x"}, "boot", states(p10="T")),
        ({**STORED, "paused": {"keys": 5}}, "boot", states(p10="T")),
        ({**INTENT, "intended": [[1]]}, "boot", states(p10="T")),
    ],
)
def test_a_pause_that_does_not_stand_is_forgotten(stored, boot, now):
    """Another boot, gone, running again, or nonsense on the disk."""
    assert remembered(stored, boot, now) is None


def test_a_pause_cut_short_is_known_by_what_it_stopped():
    """Killed between the first signal and the last: what is stopped is ours to resume."""
    found = remembered(INTENT, "boot", states(p10="T", p11="S"))
    assert (ROOT,) == found.paused.keys


def test_a_process_that_waits_for_the_disk_is_still_paused():
    """It stops when the disk has answered: the pause is not forgotten before."""
    pauses = Pauses()
    pauses.add(PAUSE)

    assert [] == list(pauses.ended(states(p10="D", p11="S")))
    assert [] == list(pauses.ended(states(p10="T", p11="T")))
    assert [PAUSE] == list(pauses.ended(states(p10="D", p11="S")))
    assert pauses.get(ROOT) is None


def test_what_had_stopped_and_was_frozen_then_is_still_paused():
    """An airbag's group in cgroup v1: all of it waits in the kernel, as it seems."""
    pauses = Pauses()
    pauses.add(PAUSE)

    assert [] == list(pauses.ended(states(p10="T", p11="T")))
    assert [] == list(pauses.ended(states(p10="D", p11="D")))
    assert [PAUSE] == list(pauses.ended(states(p10="S", p11="D")))


def test_a_worker_alone_that_is_stopped_keeps_the_pause():
    """Somebody resumed the root by hand: the rest is still ours to resume."""
    pauses = Pauses()
    pauses.add(PAUSE)

    assert [] == list(pauses.ended(states(p10="S", p11="T")))
    assert PAUSE == pauses.get(ROOT)


def test_a_second_pause_adds_what_it_stopped():
    """Workers that came later are resumed with the others."""
    pauses = Pauses()
    pauses.add(PAUSE)
    late = ProcessKey(12, 102)

    pauses.add(Pause(ROOT, "train.py", Paused((late,), "sigstop", 9.0), "again"))

    assert (ROOT, WORKER, late) == pauses.get(ROOT).paused.keys
    assert "asked for" == pauses.get(ROOT).reason


TASK = Task(ROOT, "train.py", TaskKind.SCRIPT, 0, (), 0, None, 0.0, None)
CHILD = ProcessKey(12, 102)
FAMILY = [(ROOT, False), (WORKER, True), (CHILD, False)]


def test_a_pause_cut_short_wakes_whom_it_stopped_and_no_other():
    """A child that is no Python is among them; who was stopped before the pause is not."""
    stored = intent(TASK, FAMILY, "boot", "why")

    found = remembered(stored, "boot", states(p10="T", p11="T", p12="T"))

    assert (ROOT, CHILD) == found.paused.keys


def test_a_second_pause_cut_short_forgets_nothing_of_the_first():
    """The intent keeps what was stopped, and adds to it what is found stopped."""
    stored = intent(TASK, FAMILY, "boot", "again", PAUSE)

    found = remembered(stored, "boot", states(p10="S", p11="T", p12="T"))

    assert (ROOT, WORKER, CHILD) == found.paused.keys


@pytest.mark.parametrize(
    ("state", "held", "stopping", "shown"),
    [
        ("S", True, True, "D"),
        ("R", True, True, "D"),
        ("S", True, False, "S"),
        ("S", False, True, "S"),
        ("T", True, True, "T"),
    ],
)
def test_who_was_paused_and_looks_asleep_is_on_its_way_to_stop(state, held, stopping, shown):
    """What an airbag has frozen (cgroup v2) takes the signal afterwards: nobody has resumed it."""
    sample = ProcessSample(ROOT, 1, state, 0, None, 0, None, 0.0)
    other = replace(TASK, key=WORKER, members=(replace(sample, key=WORKER, state="S"),))

    found = as_held(
        (replace(TASK, members=(sample,)), other), {ROOT} if held else set(), lambda _: stopping
    )

    assert shown == found[0].members[0].state
    assert other is found[1]


def test_a_debugger_ends_no_pause():
    """State t: it stays ours to resume, now and after a restart."""
    pauses = Pauses()
    pauses.add(PAUSE)

    assert [] == list(pauses.ended(states(p10="t", p11="t")))
    assert PAUSE == remembered(STORED, "boot", states(p10="t", p11="t"))
