"""How the tray shows a status: stage, fill, marks, headline and menu, also for hostile statuses."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from tray_readings import GIB, MIB, agent, ceiling, leaking, notice, status, task

from watchdog_app.base.text import quantities
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Notification, Resource, Status
from watchdog_app.tray.menu_model import (
    MAX_TASKS,
    Command,
    CommandKind,
    Entry,
    Slots,
    listed_tasks,
    menu,
    short_name,
)
from watchdog_app.tray.state import (
    NO_DAEMON,
    Mark,
    Picture,
    TrayState,
    fill_step,
    nearest,
    tray_state,
)

HOSTILE = ("\x1b[2J", "two\nlines", "\u202etxt", "-rf", "caf\udce9", "", None, 5, ["x"], "a" * 5000)


def seen(reading):
    return tray_state(Status.read(reading), time.time())


def flat(entries) -> list[Entry]:
    return [each for entry in entries for each in (entry, *flat(entry.children))]


def menu_of(reading, **more) -> tuple[Entry, ...]:
    """Return the visible lines."""
    entries = menu(Status.read(reading), seen(reading), now_unix_s=time.time(), **more)
    return visible(entries)


def visible(entries) -> tuple[Entry, ...]:
    return tuple(
        replace(entry, children=visible(entry.children)) for entry in entries if entry.visible
    )


def shape(entries) -> list:
    return [(entry.key, bool(entry.label), shape(entry.children)) for entry in entries]


def test_at_rest_the_gauge_shows_memory_and_nothing_is_said():
    """A disk at 95 % and a GPU that a framework reserved completely are normal."""
    reading = status(
        resources=[
            ceiling(),
            ceiling("disk", "disk of /r", 95.0, 100.0),
            ceiling("gpu_memory", "GPU 0", 23.5 * GIB, 24 * GIB),
        ]
    )

    found = seen(reading)

    assert Picture(Level.OK, 6) == found.picture
    assert "Nothing is about to run out" == found.headline
    assert "RAM 6.00 of 16.0 GiB" == found.detail
    assert not found.is_active


def test_the_nearest_ceiling_is_the_worst_then_the_soonest_then_the_fullest():
    """Any limit can be the nearest one once it is in danger."""
    worst = ceiling("gpu_memory", "GPU 0", 5.0, 10.0, stage="save", eta_s=60.0)
    sooner = ceiling("cgroup", "group", 4.0, 10.0, stage="save", eta_s=30.0)
    fuller = ceiling("cgroup", "other", 9.9, 10.0, stage="warn", eta_s=5.0)

    def nearest_of(*ceilings):
        return nearest(Status.read(status(resources=[*ceilings])))

    assert Resource.read(sooner) == nearest_of(ceiling(), worst, sooner, fuller)
    assert Resource.read(worst) == nearest_of(ceiling(), worst, fuller)
    unknown = [{**worst, "eta_s": None}, {**worst, "eta_s": None, "ratio": 0.9}]
    assert 0.9 == nearest_of(*unknown).ratio


@pytest.mark.parametrize(
    ("reading", "picture", "headline"),
    [
        (leaking(), Picture(Level.WARNING, 14), "RAM full in about 4 min: train.ipynb"),
        (leaking("pause"), Picture(Level.CRITICAL, 14), "RAM full in about 4 min: train.ipynb"),
        (leaking("watch"), Picture(Level.WATCH, 14), "RAM full in about 4 min: train.ipynb"),
        (
            status(
                level="warning",
                headline="paused: a.ipynb",
                tasks=[task(1, "a.ipynb", state="paused", paused_by_watchdog=True)],
            ),
            Picture(Level.WARNING, 6, Mark.PAUSED),
            "Paused: a.ipynb",
        ),
        (
            status(tasks=[task(1, "a.ipynb", agent=agent(saving=True))]),
            Picture(Level.OK, 6, Mark.SAVING),
            "Nothing is about to run out",
        ),
        (
            status(daemon={"protection": {"on": False, "until_unix_s": None}}),
            Picture(Level.OK, 6, Mark.OFF),
            "Protection is off",
        ),
    ],
)
def test_each_state_has_its_picture_and_the_daemons_sentence(reading, picture, headline):
    """The most important fact comes first."""
    found = tray_state(Status.read(reading), reading["time_unix_s"])

    assert (picture, headline) == (found.picture, found.headline)


def test_an_old_reading_is_grey():
    """The daemon is stopped, so its last status is no longer true."""
    found = tray_state(Status.read(leaking()), time.time() + 60)

    assert Picture(Level.UNKNOWN) == found.picture
    assert "this reading is 1 min old" in found.headline.lower()


@pytest.mark.parametrize(
    ("ratio", "steps"),
    [(None, 0), (-1, 0), (0, 0), (1e-9, 1), (0.5, 8), (0.99999, 15), (1, 16), (7.5, 16),
     (Resource.read({"ratio": float("nan")}).ratio, 0), (Resource.read({"ratio": "x"}).ratio, 0)],
)  # fmt: skip
def test_the_gauge_moves_in_steps(ratio, steps):
    """Any use above zero shows; the full step appears only when full."""
    assert steps == fill_step(ratio)


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_hostile_names_are_shown_and_never_obeyed(value):
    """Headline, tooltip and menu lines each stay one line of bounded length."""
    reading = leaking()
    reading["headline"] = value
    reading["tasks"][0]["name"] = value
    reading["resources"][0]["label"] = value
    reading["incidents"][0]["contributors"][0]["name"] = value

    texts = [seen(reading).title, *(entry.label for entry in flat(menu_of(reading)))]

    assert all(text.isprintable() and len(text) < 220 for text in texts)


@pytest.mark.parametrize(
    "reading",
    [
        {},
        {"resources": None, "tasks": "x", "incidents": [None], "daemon": []},
        {"tasks": [{}, {"pid": "x"}, {"pid": True}, {"pid": 5}, 7]},
        {"resources": [{}, {"stage": "doom", "ratio": "x", "eta_s": "soon", "tasks": 4}]},
        {
            "incidents": [{"stage": "pause", "contributors": 3}],
            "gpus": [{"memory_used_bytes": "x"}],
        },
        {"tasks": [{"pid": 5, "kind": "notebook", "agent": "x", "name": None}]},
        {"time_unix_s": "never", "gpus": [None, {}, {"index": 1, "memory_used_bytes": 5}]},
    ],
    ids=repr,
)
def test_a_daemon_of_another_version_does_no_harm(reading):
    """Missing, null or unexpected fields still give a sensible display."""
    status_ = Status.read(reading)
    found = tray_state(status_, 0.0)

    assert found.headline
    assert menu(status_, found, now_unix_s=0.0)


def test_without_a_daemon_the_menu_offers_to_start_it():
    """The menu keeps the entries that work without a daemon."""
    entries = visible(menu(None, NO_DAEMON, at_login=False, now_unix_s=0.0))

    commands = [entry.command.kind for entry in entries if entry.command is not None]
    assert [
        CommandKind.START_DAEMON,
        CommandKind.LIVE_VIEW,
        CommandKind.START_AT_LOGIN,
        CommandKind.SETTINGS,
        CommandKind.QUIT,
    ] == commands
    assert "The daemon is not running" == entries[0].label


def test_the_second_line_says_which_trainings_cannot_be_saved():
    """The tooltip and the icon stay as they are."""
    notebooks = [task(pid, f"{pid}.ipynb", can_save=False) for pid in (1, 2)]
    script = task(3, "train.py", kind="script", can_save=False)
    assert not any(entry.key == "unsaved" for entry in menu_of(status(tasks=[task(1, "a.ipynb")])))

    line = menu_of(status(tasks=[*notebooks, script]))[1]
    assert "3 possible trainings cannot be saved: turn on\u2026" == line.label
    assert Command(CommandKind.ENABLE_SAVING) == line.command
    line = menu_of(status(tasks=[script]))[1]
    assert "1 possible training cannot be saved: how to\u2026" == line.label
    assert (CommandKind.EXPLAIN, 3) == (line.command.kind, line.command.task.pid)
    assert "watchdog: Nothing is about to run out" == seen(status(tasks=notebooks)).title


def test_a_daemon_that_hangs_is_not_offered_to_be_started():
    """It already runs, so starting it would change nothing."""
    hangs = TrayState(
        NO_DAEMON.picture, "The daemon cannot be reached", "no answer in 5 s", is_active=False
    )

    entries = visible(menu(None, hangs, now_unix_s=0.0))

    assert CommandKind.START_DAEMON not in {
        entry.command.kind for entry in entries if entry.command
    }


def test_exactly_one_entry_is_what_a_left_click_does():
    """The entry is the live view."""
    defaults = [entry for entry in flat(menu_of(leaking())) if entry.default]

    assert [Command(CommandKind.LIVE_VIEW)] == [entry.command for entry in defaults]


def test_the_menu_keeps_its_shape_over_hundreds_of_statuses():
    """In an open menu only properties change, for any tasks, with or without a daemon."""
    source = random.Random(7)
    slots = Slots()
    expected = shape(menu(None, NO_DAEMON, now_unix_s=0.0))
    for entries in (expected, *(children for _, _, children in expected)):
        assert len({key for key, *_ in entries}) == len(entries)

    for _ in range(300):
        pids = source.sample(range(1, 40), source.randrange(20))
        now = [
            task(pid, f"{pid}.ipynb", source.randrange(GIB), agent=source.choice([None, agent()]))
            for pid in pids
        ]
        reading = Status.read(status(tasks=now)) if source.random() < 0.9 else None
        if source.random() < 0.2:
            slots.reassign(reading)
        found = seen(status(tasks=now)) if reading is not None else NO_DAEMON
        entries = menu(reading, found, slots.update(reading), now_unix_s=0.0)
        assert expected == shape(entries)
        lines = [entry for entry in visible(entries) if entry.key.startswith("task-")]
        clickable = {
            child.command.task.pid for line in lines for child in line.children if child.command
        }
        assert clickable <= set(pids if reading is not None else ())


@pytest.mark.parametrize(("age_h", "shown"), [(0.05, True), (13, False)])
def test_the_menu_keeps_the_last_end_after_its_notification_is_gone(age_h, shown):
    """A click explains it. A later danger may have closed its notification."""
    told = notice(
        topic="exited", title="Out of memory: a\n.ipynb", unix_s=time.time() - age_h * 3600
    )
    lines = menu_of(status(), ended=Notification.read(told))

    found = [entry for entry in lines if entry.key == "ended"]
    assert shown == bool(found)
    for entry in found:
        assert "Out of memory: a\\n.ipynb, 3 min ago" == entry.label
        assert (CommandKind.EXPLAIN, 4711) == (entry.command.kind, entry.command.task.pid)


def test_a_task_keeps_its_line_until_the_menu_is_opened_again():
    """An ended task says so and a new task takes a free line. The next opening sorts them."""
    slots = Slots()

    def names(*tasks):
        reading = Status.read(status(tasks=list(tasks)))
        lines = visible(menu(reading, seen(status()), slots.update(reading), now_unix_s=0.0))
        return [line.label.partition(":")[0] for line in lines if line.key.startswith("task-")]

    a, b, c = (task(pid, f"{name}.ipynb") for pid, name in ((1, "a"), (2, "b"), (3, "c")))
    first = names(a, b)
    second = names(c, b)
    slots.reassign(Status.read(status(tasks=[c, b])))
    third = names(c, b)

    assert ["a.ipynb", "b.ipynb"] == first
    assert ["a.ipynb has ended", "b.ipynb", "c.ipynb"] == second
    assert ["b.ipynb", "c.ipynb"] == third


def test_a_line_is_never_given_to_another_task_in_an_open_menu():
    """If all lines are in use, a new task waits for the next opening."""
    slots = Slots()
    every = [task(pid, f"{pid}.ipynb", GIB) for pid in range(1, MAX_TASKS + 1)]
    slots.update(Status.read(status(tasks=every)))
    reading = Status.read(status(tasks=[*every[1:], task(99, "new.ipynb", GIB)]))

    kept = slots.update(reading)
    slots.reassign(reading)

    assert [(1, True), (2, False)] == [(slot.task.pid, slot.ended) for slot in kept[:2]]
    assert 99 not in [slot.task.pid for slot in kept]
    assert 99 in [slot.task.pid for slot in slots.update(reading) if slot is not None]


def test_protection_says_until_when_it_is_off():
    """The menu checks the current choice."""
    until = time.time() + 1800
    reading = status(daemon={"protection": {"on": False, "until_unix_s": until}})

    (entry,) = (entry for entry in menu_of(reading) if entry.key == "protection")

    assert f"Protection: off until {quantities.moment(until)}" == entry.label
    assert [False, True, False] == [child.checked for child in entry.children]
    assert all(child.radio for child in entry.children)


def test_too_many_tasks_are_counted_and_the_large_are_shown():
    """The oldest come first. A shown task keeps its line until another is clearly larger."""
    tasks = [task(n, f"{n}.ipynb", n * 100 * MIB) for n in range(1, 31)]
    reading = status(tasks=tasks)

    first = [one.pid for one in listed_tasks(Status.read(reading))]
    tasks[18 - 1]["ram_bytes"] = 1910 * MIB  # a little more than the smallest shown task
    second = [one.pid for one in listed_tasks(Status.read(reading), first)]
    tasks[1 - 1]["ram_bytes"] = 90 * GIB
    third = [one.pid for one in listed_tasks(Status.read(reading), second)]

    assert list(range(31 - MAX_TASKS, 31)) == first == second
    assert 1 == third[0]
    assert "and 18 more Python processes" in [entry.label for entry in menu_of(reading)]


def test_the_menu_begins_with_what_needs_a_person():
    """Paused tasks come first, then the worst level, the soonest end, growth; then by start."""
    reading = status(
        tasks=[
            task(6, "slow.ipynb", eta_s=30.0),
            task(1, "calm.ipynb"),
            task(2, "later.ipynb", stage="watch", eta_s=600.0),
            task(3, "soon.ipynb", stage="warn", eta_s=60.0),
            task(4, "grows.ipynb", stage="watch"),
            task(5, "held.ipynb", state="paused", paused_by_watchdog=True),
        ]
    )

    shown = [entry.label for entry in menu_of(reading) if entry.key.startswith("task-")]

    assert [5, 3, 2, 4, 6, 1] == [one.pid for one in listed_tasks(Status.read(reading))]
    assert ["paused", "full in 1 min", "full in 10 min", "growing"] == [
        label.rpartition(", ")[2] for label in shown[:4]
    ]


def test_a_task_whose_time_is_over_soon_is_not_called_full():
    reading = status(tasks=[task(3, "job.py", stage="warn", eta_s=60.0, resource="walltime")])
    labels = [entry.label for entry in menu_of(reading)]
    assert any(label.endswith(", ends in 1 min") for label in labels)


def test_the_menu_says_why_what_is_left_will_not_suffice():
    """The reason is a line of its own, at a warning only."""
    reason = (
        "a.py grows by 1.1 MiB per step and has 9,000 steps left: needs 9.7 GiB, 6 GiB are free"
    )

    def lines(level):
        near = ceiling(stage="warn", level=level, reason=reason)
        return [each.label for each in menu_of(status(resources=[near])) if each.key == "reason"]

    assert ([reason], []) == (lines("warning"), lines("watch"))


def test_what_is_in_danger_or_paused_is_always_shown():
    """Such a task appears even if it is small."""
    tasks = [task(n, f"{n}.ipynb", 10 * GIB) for n in range(1, 31)]
    tasks.append(task(99, "small.py", 80 * MIB, kind="script", stage="pause"))
    tasks.append(task(98, "held.py", 1, kind="script", state="paused", paused_by_watchdog=True))

    shown = [one.pid for one in listed_tasks(Status.read(status(tasks=tasks)))]

    assert {98, 99} <= set(shown)


def test_small_idle_interpreters_are_no_lines():
    """Every desktop runs a dozen of them."""
    tasks = [task(1, "applet", 20 * MIB, kind="script"), task(2, "jupyter", GIB, kind="server")]

    assert [] == listed_tasks(Status.read(status(tasks=tasks)))


@pytest.mark.parametrize(
    ("changes", "enabled"),
    [
        ({"agent": agent()}, {"save", "pause", "explain", "rescues"}),
        ({}, {"pause", "explain"}),
        ({"agent": agent(saving=True)}, {"pause", "explain", "rescues"}),
        ({"agent": agent(training=False)}, {"pause", "explain", "rescues"}),
        ({"agent": agent(directory="--help")}, {"save", "pause", "explain"}),
        ({"state": "paused"}, {"explain"}),
        (
            {"state": "paused", "paused_by_watchdog": True, "agent": agent()},
            {"resume", "explain", "rescues"},
        ),
    ],
)
def test_what_can_be_done_with_a_task_follows_its_state(changes, enabled):
    """All five lines always exist; the menu disables those that make no sense."""
    (entry,) = (
        entry
        for entry in menu_of(status(tasks=[task(7, "a.ipynb", **changes)]))
        if entry.children and entry.key.startswith("task")
    )

    acts = [child for child in entry.children if child.command is not None]
    assert ["save", "pause", "resume", "explain", "rescues"] == [act.key for act in acts]
    assert enabled == {act.key for act in acts if act.enabled}


def test_long_names_keep_their_ending():
    """The beginning and the ending distinguish them."""
    name = short_name("train_resnet_with_a_very_long_name_and_more_of_it_v2.ipynb")

    assert 40 == len(name)
    assert name.startswith("train_resnet")
    assert name.endswith("_v2.ipynb")
