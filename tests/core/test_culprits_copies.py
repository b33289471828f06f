"""Growth of a memory group that shows in no process: on whom it is put, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import Machine, Program, flat

from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.decisions import Decision, DecisionKind, Stage
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey, ProcessSample
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.policy.attribution import attribute

MIB = 2.0**20

# A training with two data workers in a group of 687 MiB, as the kernel had it: seconds, use of the
# group less pages of files, and RssAnon of the three processes, in MiB. At 10.7 s the training
# walks through its objects: 65 MiB are copied, and no process becomes larger.
RECORDED = (
    (8.39, 513.2, 223.8, 342.2, 342.2),
    (8.63, 519.4, 223.8, 345.2, 345.2),
    (8.88, 528.7, 223.8, 351.3, 348.3),
    (9.06, 531.6, 223.8, 353.7, 351.3),
    (9.28, 537.6, 223.8, 355.0, 354.4),
    (9.57, 545.4, 223.8, 358.8, 357.4),
    (9.81, 552.5, 222.5, 363.4, 360.4),
    (10.02, 556.0, 222.7, 363.4, 363.5),
    (10.21, 559.0, 222.7, 366.5, 364.4),
    (10.49, 565.0, 222.7, 369.5, 369.5),
    (10.71, 571.5, 222.7, 372.5, 369.5),
    (10.91, 604.0, 223.8, 372.5, 369.5),
    (11.11, 636.1, 224.9, 372.5, 372.6),
)
SHARED_MIB = 200.0  # with the workers, when that was last measured: 3 x 134 less a third of it
KEY = ResourceKey(ResourceKind.CGROUP, "/sys/fs/cgroup/memory/small")


def recorded(unwatched, shared_mib=SHARED_MIB):
    """Attribution at the end of the recording; `unwatched` are MiB by the time, or None."""
    program = Program(10, "train.py", flat(1))
    whole = Machine(program)._task(program)
    workers = tuple(
        ProcessSample(
            ProcessKey(pid, 1), 10, "R", 0, 0, 0, None, 0.0, cow_bytes=int(shared_mib * MIB / 2)
        )
        for pid in (11, 12)
    )
    task = replace(whole, members=(*whole.members, *workers))
    resource, held = History(), History()
    others = None if unwatched is None else History()
    for at, used, *sizes in RECORDED:
        resource.add(at, used * MIB)
        held.add(at, (sum(sizes) - shared_mib) * MIB)
        if others is not None:
            others.add(at, unwatched(at) * MIB)
    reading = Reading(KEY, "the group", 636.1 * MIB, 687 * MIB, True, (task.key,))
    return attribute(reading, 20 * MIB, resource, (task,), {task.key: held}, unwatched=others)


def test_what_workers_stop_sharing_is_growth_of_their_task():
    """Recorded: it grew by 5 MiB, and its group by 60 in the same time."""
    found = recorded(lambda _: 1.2)

    assert ["train.py"] == [each.name for each in found.actionable]
    assert found.contributors[0].share == pytest.approx(1.0, abs=0.02)
    assert not found.mostly_unwatched


def test_where_nothing_is_shared_any_more_it_is_in_no_process():
    """Neither a task nor a program that is not watched may be blamed for it."""
    found = recorded(lambda _: 1.2, shared_mib=0.0)

    assert found.mostly_unwatched
    assert found.mostly_unaccounted
    assert found.unaccounted > 0.5
    assert 0.0 == found.others


def test_a_program_in_the_group_that_grows_so_is_blamed_and_no_worker():
    """It is there, it is not watched, and it has become larger by that much."""
    found = recorded(lambda at: 1.2 + max(0.0, at - 10.6) * 150)

    assert found.mostly_unwatched
    assert not found.mostly_unaccounted
    assert found.contributors[0].share < 0.5


def test_a_program_in_the_group_that_stays_as_it_is_is_not_blamed():
    """However large it is."""
    found = recorded(lambda _: 300.0)

    assert ["train.py"] == [each.name for each in found.actionable]
    assert 0.0 == found.others


def test_where_nobody_looked_what_no_task_explains_is_of_other_programs():
    """As of the machine's RAM, whose programs are not all read."""
    found = recorded(None)

    assert found.mostly_unwatched
    assert not found.mostly_unaccounted


def test_a_task_of_which_nothing_is_known_gets_nothing():
    """No growth of it was seen: it has just begun."""
    resource, others = History(), History()
    for at, used, *_ in RECORDED:
        resource.add(at, used * MIB)
        others.add(at, 0.0)
    reading = Reading(KEY, "the group", 636.1 * MIB, 687 * MIB, True, ())

    found = attribute(reading, 20 * MIB, resource, (), {}, unwatched=others)

    assert () == found.contributors
    assert 1.0 == found.unaccounted


@pytest.mark.parametrize(
    ("others", "unaccounted", "said"),
    [
        (0.9, 0.1, "Most of the growth comes from programs that watchdog does not watch."),
        (0.1, 0.9, "Most of the growth is in no process: files in RAM (tmpfs, /dev/shm), or"),
        (0.0, 0.0, "Which program makes it grow is not known yet."),
        (None, None, "Which program makes it grow is not known yet."),
    ],
)
def test_a_warning_that_names_no_task_says_what_was_seen_and_no_more(others, unaccounted, said):
    """Programs that are not watched are blamed where they were seen to grow."""
    decision = Decision(
        "d1", DecisionKind.NOTIFY, "i1", KEY, Stage.WARN, None, 1.0, 1.0, "why",
        {"topic": "warning", "used": 600 * MIB, "limit": 687 * MIB, "unit": "bytes", "fatal": 1,
         "label": "the group", "eta_s": 5.0, "low_s": 4.0, "high_s": 9.0,
         "others_share": others, "unaccounted_share": unaccounted},
    )  # fmt: skip

    body = notification(decision).body

    assert said in body
    assert 1 == sum(
        words in body for words in ("does not watch", "in no process", "is not known yet")
    )
