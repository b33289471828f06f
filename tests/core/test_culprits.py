"""Which task fills a resource: decided by recent growth, never by size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import MB, Machine, Program, flat, leak

from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.decisions import Decision, DecisionKind, Stage
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey, ProcessSample
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.policy.attribution import attribute


def attributed(series, kind=ResourceKind.CGROUP, slope=0.0, others=lambda t: 0.0, until=60.0):
    """Attribution at `until` for tasks that follow `series`: a name and a function of time each."""
    programs = [Program(10 + index, name, grows) for index, (name, grows) in enumerate(series)]
    machine = Machine(*programs)
    resource, growths = History(), {program.key: History() for program in programs}
    for second in range(int(until) + 1):
        for program, (_, grows) in zip(programs, series, strict=True):
            growths[program.key].add(float(second), grows(second))
        used = sum(grows(second) for _, grows in series) + others(second)
        resource.add(float(second), used)
    keys = tuple(program.key for program in programs)
    reading = Reading(ResourceKey(kind, "x"), "x", used, 4000 * MB, True, keys)
    tasks = [machine._task(program) for program in programs]
    return attribute(reading, slope, resource, tasks, growths)


def newcomer(grows, starts, *, until, seen_before=True):
    """Attribution two seconds after `new.py` first appears next to a flat neighbour."""
    old, new = Program(10, "old.py", flat(1000)), Program(11, "new.py", grows)
    resource, growths = History(), {old.key: History(), new.key: History()}
    for tenth in range(int(until * 10) + 1):
        t = tenth / 10
        size = grows(t - starts) if t >= starts else 0.0
        if t >= starts:
            growths[new.key].add(t, size)
        if seen_before or t >= starts:
            growths[old.key].add(t, 1000 * MB)
            resource.add(t, 1000 * MB + size)
    reading = Reading(
        ResourceKey(ResourceKind.CGROUP, "x"), "x", resource.last, 4000 * MB, True,
        (old.key, new.key),
    )  # fmt: skip
    tasks = [Machine()._task(program) for program in (old, new)]
    return attribute(reading, 100 * MB, resource, tasks, growths, unwatched=History())


def test_a_task_that_has_just_started_counts_with_all_its_memory():
    """What a new task holds at its first sample is growth since then."""
    found = newcomer(lambda t: (600 + 100 * t) * MB, 20.0, until=22.0)

    assert [("new.py", pytest.approx(1.0))] == [
        (each.name, each.share) for each in found.contributors
    ]
    assert (0.0, 0.0) == (found.others, found.unaccounted)


def test_a_task_that_is_new_to_us_alone_is_not_blamed_for_what_it_held_before():
    """It was found late or moved into the group: the group itself has hardly grown."""
    leaks, late = Program(10, "leak.py", flat(1)), Program(11, "late.py", flat(1))
    resource, growths = History(), {leaks.key: History(), late.key: History()}
    for second in range(41):
        growths[leaks.key].add(second, (300 + 10 * second) * MB)
        if second >= 40:
            growths[late.key].add(second, 8000 * MB)
        resource.add(second, (8300 + 10 * second) * MB)
    reading = Reading(
        ResourceKey(ResourceKind.CGROUP, "x"), "x", resource.last, 10_000 * MB, True,
        (leaks.key, late.key),
    )  # fmt: skip
    tasks = [Machine()._task(program) for program in (leaks, late)]

    found = attribute(reading, 10 * MB, resource, tasks, growths)

    assert ["leak.py"] == [each.name for each in found.contributors]


def test_what_was_there_at_the_first_look_is_not_new():
    """A new daemon sees every task for the first time."""
    found = newcomer(lambda t: (600 + 100 * t) * MB, 20.0, until=22.0, seen_before=False)

    assert [("new.py", pytest.approx(100 * MB))] == [
        (each.name, each.slope_bytes_per_s) for each in found.contributors
    ]


def test_a_task_that_was_seen_before_the_window_counts_with_its_growth_alone():
    found = newcomer(lambda t: (600 + 100 * t) * MB, 20.0, until=40.0)

    assert [pytest.approx(100 * MB)] == [each.slope_bytes_per_s for each in found.contributors]


def test_the_largest_task_is_no_culprit_when_it_does_not_grow():
    """Size alone does not make a task a culprit."""
    found = attributed([("big", flat(3000)), ("leak", leak(10))])

    assert ["leak"] == [each.name for each in found.contributors]
    assert found.contributors[0].share == pytest.approx(1.0)
    assert found.contributors[0].slope_bytes_per_s == pytest.approx(10 * MB)
    assert 0.0 == pytest.approx(found.others)


def test_two_that_leak_share_the_guilt_by_their_speed():
    """The slower one is listed too; it is actionable only if it is nearly as fast."""
    found = attributed([("slow", leak(3)), ("fast", leak(9))])

    assert [("fast", 0.75), ("slow", 0.25)] == [
        (each.name, pytest.approx(each.share)) for each in found.contributors
    ]
    assert ["fast"] == [each.name for each in found.actionable]
    even = attributed([("a", leak(9)), ("b", leak(8))])
    assert 2 == len(even.actionable)


def test_a_warm_up_that_ended_is_not_blamed_for_the_leak_of_now():
    """The shortest window that shows the growth decides."""

    def warm(t):
        return (300 + 100 * min(t, 20)) * MB

    found = attributed([("warm", warm), ("leak", leak(10))], slope=10 * MB)

    assert ["leak"] == [each.name for each in found.contributors]


def test_a_leak_in_steps_is_found_between_its_steps():
    """The trend shows growth although the last seconds do not."""

    def steps(t):
        return (300 + 100 * (t // 15)) * MB

    found = attributed([("steps", steps), ("flat", flat(500))], slope=6.7 * MB, until=59.0)

    assert ["steps"] == [each.name for each in found.actionable]
    assert found.window_s >= 20


def test_growth_that_no_task_explains_is_foreign():
    """A program that is not watched grows: the result has no contributor and says why."""
    found = attributed([("a", flat(500))], ResourceKind.RAM, others=lambda t: 50 * t * MB)

    assert () == found.contributors
    assert found.mostly_unwatched
    assert found.others == pytest.approx(1.0)


def test_trembling_is_no_growth():
    """The memory of an idle interpreter varies by a megabyte or two."""
    found = attributed([("a", lambda t: (500 + (t % 2)) * MB)])

    assert found.window_s is None
    assert () == found.contributors


def test_the_only_owner_of_a_ceiling_is_its_culprit():
    """An address space belongs to one task, whatever its resident memory does."""
    found = attributed(
        [("a", lambda t: 500 * MB)],
        ResourceKind.RLIMIT_AS,
        slope=5 * MB,
        others=lambda t: 5 * t * MB,
    )

    assert [("a", 1.0)] == [(each.name, each.share) for each in found.contributors]


@pytest.mark.parametrize(
    "kind", [ResourceKind.DISK, ResourceKind.TEMPERATURE, ResourceKind.BATTERY]
)
def test_memory_says_nothing_about_who_fills_other_things(kind):
    """A wrong guess is worse than no guess."""
    assert () == attributed([("leak", leak(10))], kind).contributors


def test_a_history_answers_for_the_time_that_it_knows():
    """Fine steps at the end, coarse steps before, bounded in between."""
    growth = History()
    for tenth in range(6000):
        growth.add(tenth / 10, tenth * 2.0)

    assert (pytest.approx(40.0, abs=8), pytest.approx(2.0, abs=0.4)) == growth.growth(2.0)
    grown, seconds = growth.growth(200.0)
    assert grown == pytest.approx(20 * seconds)
    assert 195 <= seconds <= 206
    assert growth.growth(1e6)[1] < 300
    assert growth.rate(1000.0) is None
    assert 20.0 == pytest.approx(growth.rate(60.0))


def test_growth_is_compared_over_the_same_time_whenever_a_history_began():
    """Otherwise a task that was seen later appears to make only part of its group's growth."""
    group, task = History(), History()
    for tenth in range(600):
        group.add(tenth / 10, tenth * 2.0)
        if tenth >= 37:
            task.add(tenth / 10, tenth * 2.0)

    assert group.growth(20.0) == task.growth(20.0)


def test_a_history_ignores_time_that_goes_back():
    """A sample with an older time changes nothing."""
    growth = History()
    for moment, value in ((1.0, 5.0), (2.0, 6.0), (1.5, 100.0), (2.0, 50.0)):
        growth.add(moment, value)

    assert 6.0 == growth.last
    assert (1.0, 1.0) == growth.growth(10.0)
    assert (0.0, 0.0) == History().growth(10.0)


# Growth of a memory group that shows in no process: its attribution and its words

MIB = 2.0**20

# A recorded training with two data workers in a group of 687 MiB: seconds, usage of the group less
# file pages, and RssAnon of the three processes, in MiB. At 10.7 s the training walks through its
# objects: 65 MiB are copied, and no process grows.
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
SHARED_MIB = 200.0  # shared with the workers at the last measurement: 3 x 134 less a third of it
KEY = ResourceKey(ResourceKind.CGROUP, "/sys/fs/cgroup/memory/small")


def recorded(unwatched, shared_mib=SHARED_MIB):
    """Attribution at the end of the recording; `unwatched` maps time to MiB, or is None."""
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
    """In the recording the task grows by 5 MiB and its group by 60 in the same time."""
    found = recorded(lambda _: 1.2)

    assert ["train.py"] == [each.name for each in found.actionable]
    assert found.contributors[0].share == pytest.approx(1.0, abs=0.02)
    assert not found.mostly_unwatched


def test_where_nothing_is_shared_any_more_it_is_in_no_process():
    """Neither a task nor an unwatched program can be blamed."""
    found = recorded(lambda _: 1.2, shared_mib=0.0)

    assert found.mostly_unwatched
    assert found.unaccounted > found.others
    assert found.unaccounted > 0.5
    assert 0.0 == found.others


def test_a_program_in_the_group_that_grows_so_is_blamed_and_no_worker():
    """The unwatched program has grown by that much."""
    found = recorded(lambda at: 1.2 + max(0.0, at - 10.6) * 150)

    assert found.mostly_unwatched
    assert found.unaccounted <= found.others
    assert found.contributors[0].share < 0.5


def test_a_program_in_the_group_that_stays_as_it_is_is_not_blamed():
    """Its size does not matter."""
    found = recorded(lambda _: 300.0)

    assert ["train.py"] == [each.name for each in found.actionable]
    assert 0.0 == found.others


def test_where_nobody_looked_what_no_task_explains_is_of_other_programs():
    """The same holds for the machine's RAM, whose programs are not all read."""
    found = recorded(None)

    assert found.mostly_unwatched
    assert found.unaccounted <= found.others


def test_a_task_of_which_nothing_is_known_gets_nothing():
    """It has just started, so its growth is unknown."""
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
        (0.1, 0.9, "Most of the growth is in no process: files in RAM (tmpfs, /dev/shm) or"),
        (0.0, 0.0, "Which program makes it grow is not known yet."),
        (None, None, "Which program makes it grow is not known yet."),
    ],
)
def test_a_warning_that_names_no_task_says_what_was_seen_and_no_more(others, unaccounted, said):
    """Unwatched programs are blamed only if they were seen to grow."""
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
