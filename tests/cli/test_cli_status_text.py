"""A status object as text: its contents, their order and the columns."""

from __future__ import annotations

import os

import pytest
from support.statuses import (
    GIB,
    HOSTILE_NAMES,
    MIB,
    NOW_UNIX_S,
    agent,
    ceiling,
    leaking,
    process,
    status,
)

from watchdog_app.base.text.terminal import Style, width
from watchdog_app.cli.status import check
from watchdog_app.cli.status_text import guard_remarks, render, saved_text
from watchdog_app.core.explain.agent_lines import agent_line
from watchdog_app.core.explain.saving import saving_paragraph
from watchdog_app.core.explain.selection import SORTS, sort_tasks
from watchdog_app.core.model.status import Agent, Guard, Status


def read(tasks):
    return Status.read({"tasks": tasks}).tasks


def text_of(object_, columns=None, **more):
    return "\n".join(render(Status.read(object_), NOW_UNIX_S, columns, **more))


def test_a_calm_machine_at_80_columns():
    """The text has the verdict, the daemon, the limits and one line per task."""
    assert """\
OK: nothing is about to run out.
watchdog 0.1.0 · on lab7 · up 2 h 05 min · read now · 1 task, 0 with an agent

RAM   ████░░░░░░░░  6.00 of 16.0 GiB  37 %  steady
swap  ░░░░░░░░░░░░   0 B of 2.00 GiB   0 %  steady

 PID  NOTEBOOK/SCRIPT  STATE          RAM  SWAP  CPU%  TREND  ETA  SAVED
4711  train.ipynb      sleeping  3.00 GiB   0 B     0      0  -""" == text_of(status(), 80)


def test_a_leak_at_80_columns():
    """
    The growing task comes first, the incident has reasons and advice, unwatched parts come last.
    """
    assert """\
!! CRITICAL: memory limit of the group jupyter-ada full in about 45 s.
watchdog 0.1.0 · on lab7 · up 2 h 05 min · read now · 5 tasks, 1 with an agent

   RAM                 ████░░░░░░░░ 6.00 of 16.0 GiB 37 %
   swap                ░░░░░░░░░░░░  0 B of 2.00 GiB  0 %
!! memory limit…er-ada ██████████░░ 6.10 of 7.00 GiB 87 % full in 43 s (31-70 s)
and 3 limits far away; --all shows them

!! CRITICAL memory limit of the group jupyter-ada, opened 1 min 35 s ago
   rising 21 MiB/s for 40 s, steady; 6.1 of 7.0 GiB
   train_resnet_with_a_very_long_name_v2_final.ipynb (pid 4711) grows by
     20.0 MiB/s, 95 % of the growth
   > Raise the limit of the group, or end train_resnet.ipynb.
   > Its work is saved: rescue at step 1200.

    PID NOTEBOOK/SCRIPT       STATE    RAM SWAP CPU%  TREND ETA            SAVED
!! 4711 train_resn…inal.ipynb run    5.00G 120M  187 +20M/s 43 s (31-70 s) 12 s
      keras, epoch 4, step 1210, loss 0.3125; rescue at step 1200, 12 s ago
   5000 分析ノート.ipynb      paused 2.00G    0    0      0 -
      paused by watchdog; resume it: watchdog resume 5000
   5100 eda.py                sleep   600M  N/A  N/A    N/A -
and 2 small idle Python processes, 45.0 MiB together; --all shows them

! Memory pressure is not watched: /proc/pressure/memory is missing. Boot with
  psi=1, or use kernel 4.20 or newer.""" == text_of(leaking(), 80)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 132, 200])
@pytest.mark.parametrize("everything", [False, True])
def test_no_line_is_wider_than_the_terminal(columns, everything):
    """The table keeps its shape for any name."""
    crowded = leaking()
    crowded["tasks"] += [
        process(2**22 - index, name * 9, 123 * GIB, swap_bytes=99 * GIB, cpu_percent=6400)
        for index, name in enumerate(HOSTILE_NAMES)
    ]

    lines = render(Status.read(crowded), NOW_UNIX_S, columns, everything=everything)

    assert [] == [line for line in lines if width(line) > columns]


@pytest.mark.parametrize("name", [name for name in HOSTILE_NAMES if name])
def test_hostile_names_do_nothing(name):
    """The output escapes names in the table, an incident, a label and an error."""
    hostile = status(
        tasks=[process(1, name, GIB)],
        resources=[ceiling("cgroup", name, 1, 2)],
        incidents=[
            {
                "stage": "warn",
                "label": name,
                "reason": name,
                "advice": [name],
                "contributors": [{"pid": 1, "name": name}],
            }
        ],
        problems=[{"source": "x", "message": name, "remedy": name}],
    )

    for line in render(Status.read(hostile), NOW_UNIX_S, 80, everything=True):
        assert line.isprintable()


def test_a_machine_without_a_gpu_has_no_columns_on_gpus():
    """A column of N/A takes room on every terminal and says nothing."""
    machine = leaking()
    without = text_of(machine, None)
    machine["tasks"][2]["gpu_memory_bytes"] = 8 * GIB

    assert "GPU-MEM" not in without
    assert "DEV" not in without
    assert "SWAP" in text_of(leaking(), 75)
    assert "GPU-MEM" in text_of(machine, 78)


def test_unknown_is_never_zero():
    """Null shows as N/A in every cell."""
    row = text_of(
        status(
            tasks=[
                process(7, "a.py", None, swap_bytes=None, cpu_percent=None, slope_bytes_per_s=None)
            ]
        )
    ).splitlines()[-1]

    assert ["7", "a.py", "sleeping", *["N/A"] * 4, "-"] == row.split()


def test_the_most_urgent_incident_comes_first():
    """Their order in the status is that of their beginnings."""
    seen = leaking()
    first = seen["incidents"][0]
    seen["incidents"] = [{**first, "id": "i0", "label": "calm", "level": "warning"}, first]
    heads = [line for line in text_of(seen, 80).splitlines() if ", opened" in line]

    assert ["CRITICAL", "WARNING"] == [line.split()[1] for line in heads]


def test_most_urgent_first_then_largest():
    """The stage precedes the size; unknown values come last."""
    tasks = [
        process(1, "small", 1 * MIB),
        process(2, "unknown", None),
        process(3, "large", 9 * GIB),
        process(4, "warned", 2 * MIB, stage="warn"),
        process(5, "rescued", 1 * MIB, stage="save"),
    ]

    assert [5, 4, 3, 1, 2] == [one.pid for one in sort_tasks(read(tasks))]


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_bears_unknown_values(sort):
    """An old daemon may omit fields."""
    assert 3 == len(
        sort_tasks(read([{}, process(1, "a", None), {"pid": None, "name": None}]), sort)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "notebook"},
        {"ram_bytes": 65 * MIB},
        {"swap_bytes": 50 * MIB},
        {"ram_bytes": None},
        {"cpu_percent": 3.0},
        {"state": "running"},
        {"level": "watch"},
        {"agent": {"framework": "keras"}},
        {"paused_by_watchdog": True},
    ],
)
def test_only_what_is_small_idle_and_no_notebook_is_folded(change):
    """One reason is enough for a separate line."""
    idle = process(901, "applet", 20 * MIB, kind="script")
    busy = {**idle, **change}

    assert "applet" not in text_of(status(tasks=[idle]))
    hint = "and 1 small idle Python process, 20.0 MiB together; --all shows it"
    assert hint in text_of(status(tasks=[idle])).split("\n")
    assert "applet" in text_of(status(tasks=[busy]))
    assert "applet" in text_of(status(tasks=[idle]), everything=True)


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("no agent", None),
        ("keras, epoch 4, step 1210, loss 0.3125; rescue at step 1200, 12 s ago", agent()),
        ("keras, epoch 4, step 1210, loss 0.3125; no rescue yet", agent(rescue=None)),
        (
            "keras, epoch 4, step 1210, loss 0.3125, saving now; rescue at step 1200, 12 s ago",
            agent(saving=True),
        ),
        ("keras, not training; no rescue yet", {"framework": "keras", "training": False}),
        (
            "torch, cannot be saved: no optimizer steps; no rescue yet",
            {"framework": "torch", "training": False, "not_restored": ["no optimizer steps"]},
        ),
    ],
)
def test_what_is_said_of_an_agent(text, view):
    """The line has the agent's position and its last save."""
    assert text == agent_line(Agent.read_object(view), NOW_UNIX_S)


CALMER = {
    "stage": "ok",
    "peak": "save",
    "label": "RAM",
    "opened_unix_s": NOW_UNIX_S - 60,
    "advice": ["Run."],
}
NO_SWAP = {"swap_total_bytes": 0, "swap_free_bytes": 0}
CROWD = [ceiling("cgroup", f"group {n}", n, 100) for n in range(50)]
CROWD.append(ceiling("shm", "/dev/shm", 1, 100, stage="warn"))


def changed(host=(), daemon=(), **more):
    """Return a status with other values in its host or daemon."""
    found = status(**more)
    found["host"] |= dict(host)
    found["daemon"] |= dict(daemon)
    return found


@pytest.mark.parametrize(
    ("found", "said", "unsaid"),
    [
        # Only in danger does it matter that the task cannot save.
        (changed(tasks=[process(1, "a.ipynb", GIB, stage="warn")]), "cannot save its work", None),
        (changed(), "OK: ", "cannot save its work"),
        # A stopped daemon must not look like a calm machine; the daemon's own interval counts.
        (changed(time_unix_s=NOW_UNIX_S - 45), "? UNKNOWN: this reading is 45 s old", "OK:"),
        (changed(time_unix_s=NOW_UNIX_S - 45, daemon={"interval_s": 30.0}), "OK: ", "UNKNOWN"),
        (changed(host=NO_SWAP), "RAM", "swap"),
        # The incident stays open for a while to avoid flapping; the user need not act.
        (changed(incidents=[CALMER]), "~ CALMER RAM, opened 1 min ago, reached save", "Run."),
        # Right after the start the growth is unknown.
        (
            changed(host=NO_SWAP, resources=[ceiling("ram", "RAM", 1, 2, growth="unknown")]),
            "RAM",
            "steady",
        ),
        # A user who relies on notifications must know that the daemon cannot show them.
        (
            changed(
                daemon={"notifications": {"undelivered": 2, "last_failure": "no desktop was found"}}
            ),
            "! 2 notifications could not be shown: no desktop was found.",
            None,
        ),
        (changed(), "OK: ", "could not be shown"),
        # A user who disabled protection in the evening sees it in the morning.
        (
            changed(daemon={"protection": {"on": False, "until_unix_s": None}}),
            "! Protection is off until you switch it on",
            None,
        ),
        # Fifty groups of a container host must not fill the screen.
        (changed(resources=CROWD), "and 47 limits far away", "group 0 "),
        (changed(resources=CROWD), "group 49", None),
        (changed(resources=CROWD), "/dev/shm", None),
    ],
)
def test_what_a_person_has_to_know_is_said_and_nothing_else(found, said, unsaid):
    assert said in text_of(found)
    assert unsaid is None or unsaid not in text_of(found)


def test_everything_shows_the_far_limits_too():
    assert "group 0" in text_of(status(resources=CROWD), everything=True)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"tasks": None, "resources": None, "host": None, "daemon": None},
        {"tasks": [None, "x", {}], "resources": [{}], "incidents": [{}], "problems": [{}]},
        {"gpus": "x"},
        {"gpus": [None, 3, {}, {"uuid": 3, "processes": 5, "notes": "x"}]},
        {"tasks": [{"pid": "7", "ram_bytes": "1", "agent": {"rescue": {}}, "stage": "new"}]},
    ],
)
def test_an_object_of_another_version_is_still_shown(broken):
    """Missing, null and unexpected fields are unknown, never an error."""
    assert render(Status.read(broken), NOW_UNIX_S, 80)


def test_swap_traffic_is_its_trend():
    """The trend is swap-out minus swap-in."""
    busy = status()
    busy["host"]["swap_out_bytes_per_s"] = 30.0 * MIB
    busy["host"]["swap_in_bytes_per_s"] = 10.0 * MIB

    line = next(line for line in text_of(busy).splitlines() if line.startswith("swap"))
    assert line.endswith("+20.0 MiB/s")


def test_colour_adds_nothing_but_colour():
    """Without escape sequences the coloured text equals the plain text."""
    import re

    colored = "\n".join(render(Status.read(leaking()), NOW_UNIX_S, 80, Style(color=True)))

    assert text_of(leaking(), 80) == re.sub(r"\x1b\[[\d;]*m", "", colored)
    painted = re.findall(r"\x1b\[(?:\d+;)*[34]\dm(.*?)\x1b", colored)
    assert {"!!", "!"} == set(painted), "letters keep the terminal's own colour"


@pytest.mark.parametrize(
    ("word", "code", "level"),
    [
        ("OK", 0, "ok"),
        ("OK", 0, "watch"),
        ("WARNING", 1, "warning"),
        ("CRITICAL", 2, "critical"),
        ("UNKNOWN", 3, "unknown"),
        ("UNKNOWN", 3, "a level of tomorrow"),
    ],
)
def test_check_turns_levels_into_codes(word, code, level):
    """The codes follow the convention of monitoring plugins."""
    line, got = check(Status.read(status(level=level, headline="a|b is full")), NOW_UNIX_S)

    assert code == got
    assert line.startswith(f"WATCHDOG {word} - a/b is full | ")
    assert 1 == line.count("|")
    assert "ram=6442450944B;;;0;17179869184" in line


def test_a_daemon_without_a_summary_is_not_called_well():
    """An older daemon may still run after an upgrade."""
    old = {key: each for key, each in status().items() if key not in ("level", "headline")}

    assert 3 == check(Status.read(old), NOW_UNIX_S)[1]
    assert text_of(old).startswith("? UNKNOWN: this daemon sends no summary; restart it:")


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("stopped", "resume it: watchdog limit 7 200M; end it with: watchdog limit 7 --end"),
        ("refusing", "more with: watchdog limit 7 200M"),
        ("finishing", "at its limit: finishing"),
        ("running", ""),
    ],
)
def test_what_stands_at_the_limit_of_its_guard_is_shown_with_the_words_to_type(stage, said):
    """The command has a size above the current use, and no placeholder."""
    guard = {"pid": 7, "kind": "cgroup v1", "state": stage, "stopped": stage == "stopped",
           "used_bytes": 150 << 20, "limit_bytes": 100 << 20, "reserve_bytes": 0}  # fmt: skip

    first, *rest = guard_remarks(Guard.read(guard))

    assert first.startswith("guard 150 MiB of 100 MiB")
    assert bool(said) == bool(rest)
    assert said in " ".join(rest)


def test_a_training_shows_when_it_was_saved():
    """The column is empty for what does not train."""
    rescue = agent()["rescue"]
    tasks = [
        process(1, "saved.ipynb", GIB, can_save=True, agent=agent()),
        process(2, "hours.ipynb", GIB, can_save=True, agent=agent(
            rescue={**rescue, "saved_unix_s": NOW_UNIX_S - 7300})),
        process(3, "new.ipynb", GIB, can_save=True, agent=agent(rescue=None)),
        process(4, "no.ipynb", GIB, can_save=False),
        process(5, "old.ipynb", GIB, can_save=False, agent=agent(outdated=True, rescue=None)),
        process(6, "idle.ipynb", GIB),
    ]  # fmt: skip
    found = {one.pid: saved_text(one, NOW_UNIX_S) for one in Status.read(status(tasks=tasks)).tasks}
    assert found == {1: "12 s ago", 2: "2 h ago", 3: "not yet", 4: "cannot", 5: "cannot", 6: ""}


def test_the_headline_counts_the_trainings_that_cannot_be_saved():
    """A user who looks once knows that something is missing."""
    tasks = [process(1, "train.ipynb", GIB, can_save=False), process(2, "other.ipynb", GIB)]
    text = text_of(status(tasks=tasks), 80)
    assert text.startswith(
        "OK: nothing is about to run out. 1 possible training cannot be saved.\n"
    )
    assert "cannot be saved" not in text_of(status(), 80)


_NOTEBOOK = process(1, "train.ipynb", GIB, can_save=False, framework="torch", python="/o/tf")
_SECOND = {**_NOTEBOOK, "pid": 3, "name": "b.ipynb"}
_SCRIPT = process(
    2, "train.py", GIB, can_save=False, framework="torch", kind="script", python="/o/tf"
)


def test_the_way_to_save_is_a_line_for_each_environment():
    """The lines can be pasted; one command for an environment is enough."""
    tasks = Status.read(status(tasks=[_NOTEBOOK, _SECOND, _SCRIPT])).tasks
    assert """\
If memory runs out, these 3 can be paused but not saved. If they train, change that:
  train.ipynb, b.ipynb  before its next fit, in a cell:        %load_ext watchdog_app.agent
                        or every kernel, from its next start:  watchdog agent enable --python /o/tf
  train.py              at its next start:                     watchdog exec -- python train.py
Do not show this again: watchdog config set hints.saving false""" == "\n".join(
        saving_paragraph(tasks, 120, lambda _: True, os.path.basename)
    )


def test_a_loop_in_plain_jax_is_told_that_nothing_saves_it():
    """The command saves Keras fits on JAX; without an agent the two look alike."""
    tasks = Status.read(status(tasks=[{**_SCRIPT, "framework": "jax"}])).tasks
    assert "On JAX this saves Keras fits only: nothing saves a loop in plain JAX yet." in (
        saving_paragraph(tasks, 120, lambda _: True)
    )


def test_a_narrow_terminal_gets_each_command_on_a_line_of_its_own():
    """With pipx the kernel cannot import watchdog, so no line for a cell is shown."""
    tasks = Status.read(status(tasks=[_NOTEBOOK])).tasks
    assert """\
If memory runs out, it can be paused but not saved. If it trains,
change that:
  train.ipynb, every kernel, from its next start:
    watchdog agent enable --python /o/tf
Do not show this again: watchdog config set hints.saving false""" == "\n".join(
        saving_paragraph(tasks, 70, lambda _: False)
    )
    assert [] == saving_paragraph(Status.read(status()).tasks, 80, lambda _: True)
