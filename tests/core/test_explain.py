"""Notices say what happened, what it means and what to do, and are safe to show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from simulation import MB, WALL_S, Machine, Program, flat, leak
from support.statuses import status_of_sample

from watchdog_app.base.text.plain import clean, shell_argument
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import should_notify
from watchdog_app.core.explain import phrases, status
from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import DecisionKind
from watchdog_app.core.model.exits import ExitFacts
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.core.model.resource import SPECS, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import ActionSettings, Settings
from watchdog_app.core.model.status import Resource, Status

NO_PAUSE = Settings(actions=ActionSettings(pause=False))


def story(name="train.ipynb", seconds=60.0, settings=None, **changes):
    """A leak to a group's limit, and the first notice of each topic."""
    program = Program(10, name, leak(25), **{"save_s": 0.2, "group": "g", **changes})
    machine = Machine(program, groups={"g": 1200}, settings=settings)
    notices = {}
    told = 0
    for _ in range(int(seconds / 0.5)):
        machine.run(0.5)
        for decision in machine.log[told:]:
            if decision.kind is DecisionKind.NOTIFY:
                notices.setdefault(decision.evidence["topic"], decision.notification)
        told = len(machine.log)
    return machine, notices


# Notices


def test_a_warning_names_the_notebook_the_ceiling_the_time_and_the_numbers():
    """The title is enough; the body adds the certainty and the actions."""
    _, notices = story()
    notice = notices["warning"]

    assert notice.title.startswith("Memory limit reached in about ")
    assert notice.title.endswith(": train.ipynb")
    assert "normal" == notice.urgency  # critical only for the very end and for deaths
    assert 10 == notice.task
    for words in (
        "Memory limit of the group g: ",
        " of 1.12 GiB",
        " GiB, full in ",
        "train.ipynb grows by 23.",
        " MiB/s, 100 % of the growth",
        "saved",
        "paused, so that it does not die",
        "keep float(loss) instead of the tensor",
    ):
        assert words in notice.body
    assert ["save", "pause", "snooze", "show"] == [each.key for each in notice.actions]
    assert [
        "watchdog checkpoint train.ipynb",
        "watchdog pause train.ipynb",
        "watchdog snooze train.ipynb --for 15m",
        "watchdog top",
    ] == [each.command for each in notice.actions]


def test_a_pause_says_how_to_go_on_and_what_not_to_press():
    """A restart would kill the paused kernel."""
    _, notices = story()
    notice = notices["paused"]

    assert "Paused: train.ipynb" == notice.title
    assert "watchdog resume train.ipynb" in notice.body
    assert "Do not press Restart" in notice.body
    assert "its state is lost" in notice.body
    assert "a rescue of step " in notice.body
    assert "critical" == notice.urgency
    assert ["resume", "show"] == [each.key for each in notice.actions]


def test_a_paused_console_may_be_of_jupyter_or_in_a_terminal():
    """A Jupyter console and IPython in a terminal are the same kind."""
    _, notices = story("ipython", kind=TaskKind.CONSOLE)

    assert "Do not press Restart" in notices["paused"].body
    assert "type fg" in notices["paused"].body


def test_a_paused_script_is_told_about_fg_and_not_about_jupyter():
    """The shell has taken the terminal back."""
    _, notices = story("train.py", kind=TaskKind.SCRIPT)

    assert "type fg" in notices["paused"].body
    assert "Jupyter" not in notices["paused"].body


def test_a_save_that_failed_says_why_and_what_is_left():
    """There is no rescue, or only an older one."""
    _, notices = story(fails=True)

    assert "Not saved: train.ipynb" == notices["rescue_failed"].title
    assert "The disk is full." in notices["rescue_failed"].body
    assert "its work is lost" in notices["rescue_failed"].body


def test_a_task_without_an_agent_is_told_so():
    """The notice and the advice say how to get an agent."""
    machine, notices = story(save_s=None, seconds=30)

    assert "has no watchdog agent" in notices["warning"].body
    (incident,) = machine.result.incidents
    assert any("watchdog agent enable" in line for line in incident.advice)
    assert ["pause", "snooze", "show"] == [each.key for each in notices["warning"].actions]


def test_a_death_names_its_cause_and_the_rescue():
    """The notice that the user finds in the morning."""
    machine, _ = story(settings=NO_PAUSE)
    program = machine.programs[0]
    assert program.dead
    task, agent = machine._task(program), machine._agent(program)
    facts = ExitFacts(9, group_limit_bytes=1200 * MB, group_kills_before=0, group_kills_after=1)

    (decision,) = machine.engine.task_ended(task, agent, diagnose(facts), machine._snapshot())
    notice = decision.notification

    assert "Out of memory: train.ipynb" == notice.title
    assert (
        "Killed by the kernel: its memory group reached its limit of 1.12 GiB "
        "(oom_kill rose from 0 to 1)." in notice.body
    )
    assert f"A rescue of step {program.rescue.step} is in {program.rescue.path}" in notice.body
    assert "Start it again" in notice.body


@pytest.mark.parametrize(
    "name",
    [
        "evil\x1b[31m.ipynb",
        "a\nb.ipynb",
        "\u202egnp.ipynb",
        "--help",
        "x" * 500 + ".ipynb",
        "<b>&amp;.ipynb",
        "\udcff.ipynb",
        "\x00",
        "rm -rf ~; .ipynb",
    ],
)
def test_no_name_breaks_a_notice_or_a_command_line(name):
    """One line, no control characters, and only names that are safe to paste into a command."""
    _, notices = story(name, seconds=50)

    assert {"warning", "paused"} <= set(notices)
    for notice in notices.values():
        assert "\n" not in notice.title
        assert len(notice.title) < 130
        for line in notice.body.splitlines():
            assert line.isprintable()
    assert "watchdog resume 10\n" in notices["paused"].body


# Plain text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.ipynb", "train.ipynb"),
        ("Übung 3.ipynb", "Übung 3.ipynb"),
        ("訓練.ipynb", "訓練.ipynb"),
        ("a\tb\n c", "a b c"),
        ("\x1b[2J", "?[2J"),
        ("\u202eabc\u200b", "?abc?"),
        ("\udcff", "?"),
        ("", "(no name)"),
        (" \n ", "(no name)"),
        ("a" * 30 + "b" * 40, "a" * 29 + "…" + "b" * 30),
    ],
)
def test_text_from_files_becomes_one_plain_line(text, expected):
    """A question mark replaces control and direction characters."""
    assert expected == clean(text)


@pytest.mark.parametrize("name", ["-x", "a b", "$(x)", "a;b", "*", "", "ü.py", "a'b", "n" * 99])
def test_a_name_that_is_not_safe_to_paste_is_named_by_its_pid(name):
    """The user copies the command line of a notice without thinking."""
    assert "42" == shell_argument(name, 42)
    assert "train-2.ipynb" == shell_argument("train-2.ipynb", 42)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "soon"),
        (float("inf"), "soon"),
        (0.1, "now"),
        (0.9, "in about a second"),
        (3.4, "in about 3 s"),
        (47.0, "in about 45 s"),
        (58.0, "in about 1 min"),
        (80.0, "in about 1.5 min"),
        (239.0, "in about 4 min"),
        (3500.0, "in about 58 min"),
        (5400.0, "in about 1.5 h"),
        (36_000.0, "in about 10 h"),
        (200_000.0, "in about 2 d"),
        (1e9, "soon"),
    ],
)
def test_times_are_as_exact_as_a_forecast_is(seconds, expected):
    """A time has at most two figures."""
    assert expected == phrases.format_eta(seconds)


def test_every_kind_of_ceiling_has_its_words():
    assert all(SPECS[kind].title for kind in ResourceKind)


# watchdog explain


def as_status(machine, **more):
    """The status of the machine's last sample; `more` changes the agents."""
    programs = [each for each in machine.programs if not each.dead]
    agents = {
        each.key: replace(machine._agent(each), **more)
        for each in programs
        if each.save_s is not None
    }
    tasks = tuple(machine._task(each) for each in programs)
    return status_of_sample(
        machine._snapshot(), tasks, tuple(machine.readings()), machine.result, agents
    )


def explained(machine, program, **more):
    found = as_status(machine, **more)
    return status.describe_task(found, found.task(program.pid), WALL_S + machine.now)


def test_one_task_is_explained_with_its_end_its_ceilings_and_its_agent():
    """What it uses, what ends it first and when, what can be saved."""
    machine, _ = story(seconds=28, settings=NO_PAUSE)

    text = explained(machine, machine.programs[0])

    for words in (
        "train.ipynb (notebook, pid 10): running.",
        "changing by +2",
        "It meets memory limit of the group g in ",
        "RAM: ",
        "Its agent: keras, step ",
        "; rescue at step ",
        "A save of 9.54 MiB is expected to take 0.2 s.",
        "The rescue is in /rescues/",
        ": critical, noticed ",
        "To do: ",
    ):
        assert words in text


def test_a_limit_without_enough_readings_has_no_outlook():
    """Right after the daemon's start nothing is known of the future."""
    found = as_status(story(seconds=28, settings=NO_PAUSE)[0])
    for one in found.resources:
        one.growth, one.eta_s = "unknown", None

    text = status.describe_machine(found, WALL_S)

    assert "too few readings for a trend" in text
    assert "no end in sight" not in text


@pytest.mark.parametrize(("slope", "words"), [(0.0, ", steady"), (None, " of swap")])
def test_memory_that_stays_as_it_is_has_no_figure_of_change(slope, words):
    """No 'changing by 0', and nothing of a trend that is not known."""
    found = as_status(story(seconds=28, settings=NO_PAUSE)[0])
    task = found.tasks[0]
    task.slope_bytes_per_s = slope

    text = status.describe_task(found, task, WALL_S)

    assert words in text
    assert "changing by" not in text


@pytest.mark.parametrize("saved", [False, True])
def test_the_end_of_a_guard_promises_a_save_only_where_one_is_possible(saved):
    """A program without an agent is stopped at its guard's limit, but not saved."""
    machine, _ = story(seconds=60)
    decision = next(
        each
        for each in machine.log
        if each.kind is DecisionKind.NOTIFY and each.evidence["topic"] == "warning"
    )
    guarded = replace(decision, resource=ResourceKey(ResourceKind.GUARD, "10"))

    agent = AgentState(ProcessKey(10, 1), "keras", "/rescues") if saved else None

    body = notification(guarded, None, agent).body

    assert "stopped or refused more memory, and not killed." in body
    assert saved == ("There it is saved, then stopped" in body)


def test_what_is_not_known_is_left_out_and_a_kind_is_in_words():
    """A save of unknown size; a kernel whose notebook is not known."""
    machine, _ = story(seconds=28, settings=NO_PAUSE)
    found = as_status(machine, state_bytes=None)
    task = found.tasks[0]
    task.kind = "kernel"

    text = status.describe_task(found, task, WALL_S + machine.now)

    assert "(Jupyter kernel, pid 10)" in text
    assert "\nA save is expected to take 0.2 s." in text


def test_without_a_forecast_the_nearest_limit_is_named_by_its_reason():
    """Each of several groups above a task has no forecast."""
    machine, _ = story(seconds=28, settings=NO_PAUSE)
    found = as_status(machine)
    task = found.tasks[0]
    (group,) = (each for each in found.resources if each.kind == "cgroup")
    found.resources = (
        Resource(kind="cgroup", label="memory limit of the pod", tasks=(10,), reason="steady"),
        group,
    )
    task.eta_s = group.eta_s = None

    text = status.describe_task(found, task, WALL_S + machine.now)

    assert "Nearest to it is memory limit of the group g" in text


def test_what_others_fill_up_is_said_to_end_beside_a_task_that_rests():
    """Its limits have a forecast below, so the text must not deny one."""
    idle = Program(11, "idle.ipynb", flat(50), group="g")
    machine = Machine(Program(10, "train.ipynb", leak(25), group="g"), idle, groups={"g": 1200})

    text = explained(machine.run(15), idle)

    assert re.search("Memory limit of the group g full in .*, but others make it grow", text)
    assert "no forecast" not in text


def test_an_agent_of_an_older_version_is_said_to_need_a_restart():
    """Its training continues, but cannot be saved until then."""
    machine, _ = story(seconds=28, settings=NO_PAUSE)

    assert "restart its kernel" in explained(machine, machine.programs[0], outdated=True)
    assert "outdated" not in explained(machine, machine.programs[0])


def test_before_the_first_sample_no_machine_is_called_quiet():
    """The daemon was started a moment ago, or cannot read the machine."""
    text = status.describe_machine(Status(level=Level.UNKNOWN), WALL_S)

    assert "The daemon has not measured yet." in text
    assert "No warning is open" not in text


def test_a_quiet_task_and_a_quiet_machine_are_explained_too():
    """The text says so explicitly."""
    program = Program(10, "idle.ipynb", flat(300))
    machine = Machine(program).run(10)

    text = explained(machine, program)
    whole = status.describe_machine(as_status(machine), WALL_S + machine.now)

    assert "no forecast for it" in text
    assert "No training with an agent runs in it now" in text
    assert "No warning is open." in whole
    assert whole.startswith("OK: nothing is about to run out. 1 Python task watched.")


# Deaths


@pytest.mark.parametrize(
    ("status", "training", "expected"),
    [(9, True, True), (11, True, True), (256, True, True), (2, True, False), (15, True, False),
     (0, True, False), (9, False, False)],
)  # fmt: skip
def test_only_deaths_that_are_news_are_told(status, training, expected):
    """Users end their own programs all the time."""
    agent = AgentState(ProcessKey(1, 1), "keras", "/r", training=training)

    assert expected is should_notify(diagnose(ExitFacts(status)), agent)


def test_a_death_for_lack_of_memory_is_told_with_or_without_an_agent():
    """Only a rule that switches notices off suppresses it."""
    machine, _ = story(save_s=None, settings=NO_PAUSE)
    task = machine._task(machine.programs[0])
    cause = diagnose(ExitFacts(9, group_kills_before=0, group_kills_after=1))

    assert 1 == len(machine.engine.task_ended(task, None, cause, machine._snapshot()))
    machine.engine.settings = replace(NO_PAUSE, actions=ActionSettings(notify=False))
    assert () == machine.engine.task_ended(task, None, cause, machine._snapshot())
