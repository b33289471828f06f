"""The guard's decisions at the limit, and the sharing of free memory: values in, values out."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from support.observers import observer_of

from watchdog_app.base.errors import UsageError
from watchdog_app.base.linux.cgroups import AvailableMemory
from watchdog_app.base.text.quantities import format_bytes, limit_above, parse_bytes, size_above
from watchdog_app.cli import limit as limit_command
from watchdog_app.cli.output import Output
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.guards import Guards
from watchdog_app.guard import launch, messages, record, reservation
from watchdog_app.guard.cgroup import Cgroup
from watchdog_app.guard.limits import margin_bytes, reserve_for, share_of
from watchdog_app.guard.policy import (
    Action,
    AtLimit,
    CopyResults,
    CopySchedule,
    Growth,
    Policy,
    State,
)
from watchdog_app.guard.record import ASKED_BY_PERSON, CopiedRescue, GuardEvent, GuardRecord
from watchdog_app.guard.supervisor import Supervisor

MIB = 1 << 20
GIB = 1 << 30
SAVED_AT_3 = CopiedRescue(7, "/r", 3)
NOBODY = CopyResults(0, 0, 0)
SAVED = CopyResults(1, 1, 0)
IN_STEP = CopyResults(1, 0, 1, "it is within a step")


def at_limit(policy: Policy, copies: CopyResults) -> tuple[Action, ...]:
    assert (Action.FREEZE, Action.COPY) == policy.limit_met(1.0)
    return policy.copied(2.0, copies)


@pytest.mark.parametrize(
    ("choice", "notebook", "copies", "stage", "steps"),
    [
        (AtLimit.AUTO, True, SAVED, State.STOPPED, (Action.STOP, Action.REPORT)),
        (AtLimit.AUTO, False, NOBODY, State.STOPPED, (Action.STOP, Action.REPORT)),
        (AtLimit.AUTO, False, SAVED, State.REFUSING,
         (Action.REFUSE, Action.GIVE_ALL, Action.REPORT, Action.RESUME)),
        (AtLimit.HOLD, False, SAVED, State.STOPPED, (Action.STOP, Action.REPORT)),
        (AtLimit.END, True, SAVED, State.ENDING, (Action.REPORT, Action.END)),
        (AtLimit.REFUSE, False, NOBODY, State.REFUSING,
         (Action.REFUSE, Action.GIVE_ALL, Action.REPORT, Action.RESUME)),
        (AtLimit.REFUSE, False, CopyResults(2, 1, 0, "no page"), State.STOPPED,
         (Action.STOP, Action.REPORT)),
        (AtLimit.GO_ON, False, SAVED, State.UNLIMITED,
         (Action.LIFT, Action.ALLOW, Action.RESUME, Action.REPORT)),
    ],
)  # fmt: skip
def test_after_the_copy_comes_what_was_chosen(choice, notebook, copies, stage, steps):
    """Unsaved work is never put at risk."""
    policy = Policy(choice, notebook)

    assert steps == at_limit(policy, copies)
    assert stage is policy.state


def test_a_step_that_is_under_way_gets_most_of_the_reserve_to_end():
    """It is copied at its boundary, before anything else happens."""
    policy = Policy()

    assert (Action.GIVE_MOST, Action.RESUME, Action.REQUEST_SAVE) == at_limit(policy, IN_STEP)
    assert (Action.FREEZE, Action.COPY) == policy.boundary(3.0)
    assert Action.REFUSE in policy.copied(4.0, SAVED)


def test_a_boundary_that_was_left_before_the_freeze_is_waited_for_again():
    """No more of the reserve is given, the time stays bounded; an agent is asked three times."""
    policy = Policy()
    at_limit(policy, IN_STEP)
    policy.boundary(3.0)

    for requests in (2, 3):
        assert (Action.RESUME, Action.REQUEST_SAVE) == policy.copied(2.0 * requests, IN_STEP)
        policy.boundary(2.0 * requests + 1)
    assert (Action.RESUME,) == policy.copied(8.0, IN_STEP)
    assert () == policy.tick(50.0, 10 * MIB, 10 * MIB)
    assert (Action.FREEZE, Action.COPY) == policy.tick(70.0, 10 * MIB, 10 * MIB)
    assert (Action.STOP, Action.REPORT) == policy.copied(71.0, IN_STEP)
    assert "its step did not end within a minute" == policy.because


def test_the_end_of_the_reserve_is_the_end_of_waiting():
    """A program that cannot be copied by then is stopped, and reported as unsaved."""
    policy = Policy()
    at_limit(policy, IN_STEP)

    assert (Action.FREEZE, Action.COPY) == policy.limit_met(3.0)
    assert (Action.STOP, Action.REPORT) == policy.copied(4.0, IN_STEP)
    assert (State.STOPPED, "the reserve was used up before its step ended") == (
        policy.state, policy.because,
    )  # fmt: skip


def test_what_is_held_goes_on_when_there_is_room():
    """The limit was raised, or memory was freed."""
    policy = Policy()
    at_limit(policy, NOBODY)

    assert () == policy.tick(3.0, 99 * MIB, 100 * MIB)
    assert Action.RESUME in policy.tick(4.0, 50 * MIB, 100 * MIB)
    assert State.RUNNING is policy.state
    at_limit(policy, NOBODY)
    assert Action.RESUME in policy.limit_raised(9.0)


def test_a_limit_below_the_usage_is_met_also_during_a_copy_in_advance():
    """A program that is refused memory already is not ended for it."""
    policy, early = Policy(), Policy()
    early.copy_early(1.0)

    assert (Action.FREEZE, Action.COPY) == policy.limit_lowered(1.0)
    assert () == early.limit_lowered(2.0)
    assert Action.REFUSE in early.copied(3.0, SAVED)
    assert () == early.limit_lowered(4.0)
    assert State.REFUSING is early.state


def test_an_interrupt_gives_the_reserve_and_the_end_of_that_is_the_end():
    """One Ctrl-C is enough, and the program is never stuck after it."""
    policy = Policy()
    at_limit(policy, NOBODY)

    assert (Action.GIVE_ALL, Action.RESUME) == policy.signal_waits(3.0)
    assert (Action.FREEZE, Action.REPORT, Action.END) == policy.limit_met(4.0)
    assert () == policy.limit_met(5.0)
    assert () == policy.signal_waits(6.0)


def test_a_notebook_lives_on_after_an_interrupt():
    """The cell was interrupted and its memory freed; the next cell that grows is stopped again."""
    policy = Policy(notebook=True)
    at_limit(policy, NOBODY)
    policy.signal_waits(3.0)

    assert (Action.FREEZE, Action.COPY) == policy.limit_met(
        3.5
    )  # it grows further before it has unwound
    policy.copied(3.6, NOBODY)
    assert State.STOPPED is policy.state
    policy.signal_waits(4.0)
    steps = policy.tick(5.0, 50 * MIB, 100 * MIB)

    assert State.RUNNING is policy.state
    assert {Action.TAKE_BACK, Action.RESUME} <= set(steps)
    assert Action.REPORT not in steps
    assert (Action.FREEZE, Action.COPY) == policy.limit_met(6.0)


def test_a_notebook_may_use_the_reserve_until_the_user_has_freed_memory():
    """An interrupted cell leaves its variables; a stopped kernel could not delete them."""
    policy = Policy(notebook=True)
    at_limit(policy, NOBODY)
    policy.signal_waits(3.0)

    assert () == policy.tick(3600.0, 100 * MIB, 100 * MIB)
    assert Action.TAKE_BACK in policy.tick(3601.0, 50 * MIB, 100 * MIB)


def test_a_script_that_was_interrupted_is_calm_once_it_has_had_room_for_a_while():
    """Most scripts end right away; one that catches Ctrl-C continues under its limit."""
    policy = Policy()
    at_limit(policy, NOBODY)
    policy.signal_waits(3.0)

    assert () == policy.tick(4.0, 50 * MIB, 100 * MIB)
    assert Action.TAKE_BACK in policy.tick(9.0, 50 * MIB, 100 * MIB)
    assert State.RUNNING is policy.state


def test_refusal_that_was_not_enough_ends_a_script_and_holds_a_notebook():
    """A notebook's variables are worth waiting for the user."""
    script, notebook = Policy(AtLimit.REFUSE), Policy(AtLimit.REFUSE, notebook=True)
    at_limit(script, SAVED)
    at_limit(notebook, SAVED)

    assert [(Action.FREEZE, Action.COPY)] * 2 == [
        each.limit_met(3.0) for each in (script, notebook)
    ]
    assert Action.END in script.copied(4.0, IN_STEP)
    assert Action.END not in notebook.copied(4.0, SAVED)
    assert SAVED == script.copies
    assert State.STOPPED is notebook.state


def test_what_was_refused_memory_and_ends_is_not_said_to_go_on():
    """It has room while it ends, but no notice may say that it continues."""
    policy = Policy()
    at_limit(policy, SAVED)

    steps = policy.tick(3.0, 50 * MIB, 100 * MIB)

    assert Action.ALLOW in steps
    assert Action.REPORT not in steps
    assert State.RUNNING is policy.state


def test_what_runs_is_saved_before_it_is_ended_on_request():
    """It is saved at its next boundary. A second request does not wait for that."""
    patient, hurried = Policy(), Policy()

    for policy in (patient, hurried):
        assert (Action.FREEZE, Action.COPY) == policy.end_wanted(1.0)
        assert (Action.GIVE_MOST, Action.RESUME, Action.REQUEST_SAVE) == policy.copied(2.0, IN_STEP)
    assert (Action.FREEZE, Action.COPY) == patient.boundary(3.0)
    assert (Action.REPORT, Action.END) == patient.copied(4.0, SAVED)
    assert (Action.REPORT, Action.END) == hurried.end_wanted(3.0)
    assert ASKED_BY_PERSON == patient.because == hurried.because


def test_what_has_used_up_its_time_is_saved_and_ended_once():
    """The supervisor says so at every tick."""
    policy = Policy()

    assert (Action.FREEZE, Action.COPY) == policy.time_is_over(1.0)
    assert () == policy.time_is_over(1.1)
    assert (Action.REPORT, Action.END) == policy.copied(2.0, SAVED)
    assert () == policy.time_is_over(2.1)
    assert "--time" in policy.because


def test_a_higher_limit_calls_off_an_end_that_waits_for_a_save():
    """The program continues, and the next limit counts as usual."""
    policy = Policy()
    policy.end_wanted(1.0)
    policy.copied(2.0, IN_STEP)

    assert Action.RESUME in policy.limit_raised(3.0)
    assert Action.REFUSE in at_limit(policy, SAVED)


def test_who_is_ended_far_below_the_limit_is_not_told_to_raise_it():
    """The message must not say that it was at its limit."""
    low = a_guard(state="ending", because=ASKED_BY_PERSON, used_bytes=2 * GIB)
    high = a_guard(state="ending", because=ASKED_BY_PERSON, used_bytes=4 * GIB)
    # Its usage is read again while it ends.
    held = a_guard(
        state="ending",
        because=ASKED_BY_PERSON,
        used_bytes=1,
        events=[GuardEvent(1.0, "stopped", "")],
    )

    assert "is ended: somebody asked for that." in messages.report(low)
    assert "higher" not in messages.report(low) + messages.past_summary(low)
    for ended in (high, held):
        assert "at its memory limit of 4.00 GiB: somebody asked for that." in messages.report(ended)
        assert "higher" in messages.report(ended)


def test_what_is_ending_is_not_begun_again():
    """No event changes an end."""
    policy = Policy(AtLimit.END)
    at_limit(policy, SAVED)

    assert [] == [
        *policy.limit_met(3.0), *policy.boundary(3.0), *policy.limit_raised(3.0),
        *policy.end_wanted(3.0),
        *policy.no_limit_wanted(3.0), *policy.tick(3.0, 0, MIB), *policy.copied(3.0, SAVED),
    ]  # fmt: skip


FREE = AvailableMemory(8 * GIB, 16 * GIB)


def holder(**more):
    values = {"used_bytes": GIB, "reserve_bytes": 256 * MIB, **more}
    return a_guard(follows_machine=True, **values)


def test_one_guard_alone_has_what_is_free_less_margin_and_reserve():
    """Memory for the desktop stays free."""
    assert GIB + 8 * GIB - GIB - 256 * MIB == share_of(holder(), [], FREE)


def test_the_least_protected_has_the_smaller_share():
    """It reaches its limit first: without an agent, then with the older rescue."""
    guards = [holder(), holder(agents=1, saved_unix_s=10.0), holder(agents=1, saved_unix_s=20.0)]

    others = [[other for other in guards if other is not each] for each in guards]
    none, old, new = (
        share_of(each, rest, FREE) - GIB for each, rest in zip(guards, others, strict=True)
    )

    assert none < old == new
    assert none + old + new <= 8 * GIB - margin_bytes(FREE) - 3 * 256 * MIB


def test_who_stands_still_leaves_what_is_free_to_those_who_run():
    """Its reserve is shared too."""
    runs, too, stopped = holder(), holder(agents=1), holder(state="stopped")

    assert share_of(runs, [too], FREE) == share_of(runs, [stopped, too], FREE)


def test_who_was_let_go_while_all_others_stand_still_keeps_what_it_was_given():
    """Otherwise it would stop at once, the next would resume, and all would end without memory."""
    tight = AvailableMemory(200 * MIB, 2 * GIB)
    others = [holder(state="stopped", reserve_bytes=32 * MIB)]
    values = {"reserve_bytes": 32 * MIB, "saved_unix_s": 5.0}

    let_go = share_of(holder(state="stopped", **values), others, tight)
    runs = share_of(holder(**values), others, tight)

    assert let_go == runs
    assert GIB < runs < GIB + 200 * MIB


def test_where_everybody_stands_still_the_best_protected_goes_on():
    """Otherwise no memory would ever be freed."""
    tight = AvailableMemory(400 * MIB, 2 * GIB)
    worse = holder(state="stopped", reserve_bytes=0)
    better = holder(state="stopped", reserve_bytes=0, agents=1, saved_unix_s=5.0)

    assert GIB == share_of(worse, [better], tight)
    assert GIB + 200 * MIB < share_of(better, [worse], tight)


def test_nobody_is_given_less_than_it_holds():
    """On a full machine the share equals the usage: the program stops at its next page."""
    assert GIB == share_of(holder(), [], AvailableMemory(10 * MIB, GIB))


@pytest.mark.parametrize(
    ("state", "reserve"), [(0, 256 * MIB), (MIB, 256 * MIB), (4 * GIB, GIB), (100 * GIB, 2 * GIB)]
)
def test_the_reserve_grows_with_what_has_to_be_saved(state, reserve):
    """It is never below 256 MiB."""
    assert reserve == reserve_for(state)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The runtime folder of a user."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def a_guard(**more):
    values = {"reserve_bytes": GIB, **more}
    return GuardRecord(
        pid=os.getpid(), start_time=5, name="train.py", kind="cgroup v1", group=None,
        limit_bytes=4 * GIB, **values,
    )  # fmt: skip


def test_a_supervisor_raises_the_reserve_once_it_knows_what_there_is_to_save(folder):
    """It never lowers the reserve, because the table may only be late."""
    guard = a_guard(follows_state=True)
    guard.reserve_bytes = 256 * MIB
    supervisor = Supervisor(Cgroup("", 0), guard)

    supervisor.raise_reserve(0)
    assert 256 * MIB == guard.reserve_bytes
    supervisor.raise_reserve(1200 * MIB)
    assert 300 * MIB == guard.reserve_bytes
    supervisor.raise_reserve(MIB)
    assert 300 * MIB == guard.reserve_bytes


def test_a_reserve_that_somebody_chose_stays(folder):
    """The user's `--reserve` counts."""
    guard = a_guard()

    Supervisor(Cgroup("", 0), guard).raise_reserve(100 * GIB)

    assert GIB == guard.reserve_bytes


@pytest.mark.parametrize(
    ("more", "shown"),
    [({}, 1), ({"seen": True}, 0), ({"notebook": True}, 0), ({"name": "jupyter-lab"}, 0)],
)
def test_a_program_that_trains_nothing_learns_it_after_a_minute(folder, monkeypatch, more, shown):
    """As NumPy loops: at the limit it is too late to write checkpoints. It is said once."""
    said = []
    monkeypatch.setattr(messages, "write_to_terminal", lambda _, text: said.append(text))
    guard = replace(a_guard(), **more)
    supervisor, now = Supervisor(Cgroup("", 0), guard), time.monotonic()

    for passed_s in (50.0, 70.0, 80.0):
        supervisor.report_unseen(now + passed_s)
        assert (shown if passed_s > 60 else 0) == len(said)


def test_what_a_supervisor_writes_is_read_again(folder):
    """This includes every field."""
    guard = a_guard(state="stopped", because="it is within a step", rescues=[SAVED_AT_3])
    record.make_folder(guard.pid, guard.start_time)
    guard.note("stopped", "text")
    guard.write()

    assert [guard] == record.read_all()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "x"}, {"pid": -1}, {"limit_bytes": None}, {"limit_bytes": True}, {"name": 5},
        {"rescues": ["x"]}, {"events": 3}, {"pid": 1}, {"saved_unix_s": "now"}, {"group": 7},
    ],
)  # fmt: skip
def test_a_record_that_holds_nonsense_is_none(folder, change):
    """The daemon reads it too, and must not trust its values."""
    guard = a_guard()
    record.make_folder(guard.pid, guard.start_time)
    guard.write()
    path = os.path.join(guard.folder, "guard.json")
    with open(path) as file:
        found = json.load(file)
    with open(path, "w") as file:
        json.dump({**found, **change}, file)

    assert [] == record.read_all()


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 5000, "x" * 100_000])
def test_what_is_no_record_at_all_is_left_out(folder, text):
    """No exception is raised."""
    guard = a_guard()
    record.make_folder(guard.pid, guard.start_time)
    with open(os.path.join(guard.folder, "guard.json"), "w") as file:
        file.write(text)

    assert [] == record.read_all()


@pytest.mark.parametrize("state", [state.value for state in State])
def test_every_state_can_be_told(state):
    """The name contains terminal control characters."""
    guard = a_guard(state=state, rescues=[CopiedRescue(7, "/r\x1b[2J", 3)], agents=1, saved=1)
    guard.name = "evil\n\x1b]0;x\x07.py"

    told = messages.report(guard)

    assert told
    assert "\x1b" not in told
    assert "evil" in told


@pytest.mark.parametrize(
    ("limit", "text"),
    [(12 * GIB, "16G"), (100 * MIB, "134M"), (3 * GIB, "4G"), (GIB, "1.5G"), (800 * MIB, "1.25G")],
)
def test_the_next_limit_is_one_that_somebody_would_type(limit, text):
    """About a third more, and displayed with the same figure once it is set."""
    assert text == size_above(limit)
    assert float(text[:-1]) == float(format_bytes(parse_bytes(text)).split()[0])


def test_the_next_limit_does_not_depend_on_the_moment_of_the_reading():
    """A program stopped at its limit holds a little more or less from one reading to the next."""
    held = (12 * GIB - 5, 12 * GIB, 12 * GIB + GIB // 2)
    assert {limit_above(12 * GIB, each) for each in held} == {"16G"}
    assert limit_above(4 * GIB, 6 * GIB) == size_above(6 * GIB)


@pytest.mark.parametrize("stage", ["stopped", "refusing", "ending"])
def test_a_limit_that_is_proposed_lets_it_go_on(stage):
    """It may use more than its limit: the reserve, or its usage when the limit was lowered."""
    guard = a_guard(state=stage, used_bytes=6 * GIB)

    assert f" {size_above(6 * GIB)}" in messages.report(guard)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"agents": 0},
         "no training that can be saved was seen in it. If it is ended now, its work is lost."),
        ({"agents": 0, "seen": True},
         "saved: no training runs in it now. If it is ended now, its work is lost."),
        ({"agents": 0, "rescues": [SAVED_AT_3]},
         "No training runs in it now. What was saved before is of step 3, /r."),
        ({"agents": 1, "because": "it is stuck", "trouble": "it is stuck"},
         "could not save its work: it is stuck. If it is ended now, its work may be lost."),
        ({"agents": 1, "trouble": "no", "rescues": [SAVED_AT_3]},
         "Its guard could not save its work: no. What was saved before is of step 3, /r."),
        ({"agents": 1, "saved": 1, "rescues": [SAVED_AT_3]},
         "Its work is saved: step 3, /r."),
        ({"agents": 2, "saved": 1, "rescues": [CopiedRescue(1, "/r", 3, missing=("a", "b"))]},
         "(1 of 2 trainings could not be saved.) A resume will not bring back: a; b."),
    ],
)  # fmt: skip
def test_a_hold_says_what_is_saved_and_all_that_can_be_done(more, said):
    """The report has full sentences, each reason once, and the commands to type."""
    guard = a_guard(state="stopped", **more)

    told = messages.report(guard)

    assert f"{said}\n" in told
    for words in (f"limit {guard.pid} ", f"limit {guard.pid} --go-on", f"limit {guard.pid} --end"):
        assert f"watchdog {words}" in told
    assert "where the shell shows its prompt" in told
    guard.notebook = True
    assert "shell" not in messages.report(guard)  # its terminal belongs to the server


def test_a_kernel_is_started_again_by_its_server():
    """The command of a kernel names a file of a connection that has ended."""
    command = "/venv/bin/python -m ipykernel_launcher -f /tmp/tmp1.json"
    guard = a_guard(state="ending", notebook=True, command=command, rescues=[SAVED_AT_3])

    told = messages.report(guard)

    assert "watchdog exec --kernel --limit 6G   (then shut the kernel down and start" in told
    assert "watchdog.resume() in it resumes its training" in told
    assert "/tmp/tmp1.json" not in messages.describe_ended(guard, "5 s")


@pytest.mark.parametrize("stage", ["refusing", "ending"])
def test_after_a_save_the_next_run_is_said_to_go_on(stage):
    """The report has the command to type."""
    guard = a_guard(state=stage, rescues=[SAVED_AT_3], agents=1, saved=1)

    assert (
        "watchdog exec --limit 6G -- ...   (it resumes from its rescue, or says how or why not)"
        in messages.report(guard)
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["python", "my fit.py", "--lr=1"], "python 'my fit.py' --lr=1"),
        (["python", "fit.py", "--api-key", "abc"], "python fit.py --api-key '***'"),
        (["python", "-c", "x = 1\nfit(x)"], "..."),
        (["python", "fit.py", "x" * 2000], "..."),
    ],
)
def test_the_command_to_start_a_program_again_can_be_pasted(words, shown):
    """It has the quotes of a shell and no secret; a long one is left out."""
    guard = a_guard(state="refusing", command=launch.pasteable_command(words))

    assert f"watchdog exec --limit 6G -- {shown}\n" in messages.report(guard) + "\n"


KERNEL = ["/opt/bin/python", "-m", "ipykernel_launcher", "-f", "k.json"]


@pytest.mark.parametrize(
    ("words", "session", "name"),
    [
        (KERNEL, "/work/train.ipynb", "train.ipynb"),
        (KERNEL, "train-jvsc-5e0f8a9b-1111-2222-3333-444455556666.ipynb", "train.ipynb"),
        (KERNEL, "", "kernel in work"),
        (KERNEL, "console-1", "kernel in work"),
        (["python", "fit.py"], "/work/train.ipynb", "fit.py"),
        (["python", "-m", "proj.train", "--out", "x.py"], "", "proj.train"),
    ],
)
def test_a_guard_has_the_name_that_people_know(words, session, name):
    """Users cannot distinguish several kernels that are all called python."""
    assert name == launch.display_name(words, {"JPY_SESSION_NAME": session}, "/home/me/work")


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("running", None),
        ("stopped", "was stopped there"),
        ("copying", "is stopped for a moment"),
        ("finishing", None),
        ("refusing", None),
    ],
)
def test_who_stands_still_under_a_guard_is_neither_paused_nor_woken(monkeypatch, stage, words):
    """A signal would reach it later; during a copy it runs again within moments."""
    guard, key = a_guard(state=stage), ProcessKey(4711, 99)
    guards = Guards(observer_of(), None)
    monkeypatch.setattr(guards, "refresh", lambda: None)
    monkeypatch.setattr(guards, "get", lambda task: guard if task == key else None)

    said = guards.stopped_reason(key)

    assert (said is None) == (words is None)
    assert words is None or words in said
    assert "\n" not in (said or "")


def test_the_list_says_what_to_do_for_one_that_is_held(folder, capsys):
    """It also explains the other states."""
    guard = a_guard(state="stopped", agents=1, saved=1)
    guard.rescues = [record.CopiedRescue(guard.pid, "/r/rescue-7", 7)]
    record.make_folder(guard.pid, guard.start_time)
    guard.write()
    wanted = {"task": None, "size": None, "go_on": False, "end": False, "json": False}

    limit_command.run(argparse.Namespace(**wanted), Output())
    guard.state = "exiting"
    guard.write()
    limit_command.run(argparse.Namespace(**wanted), Output())

    said = capsys.readouterr().out
    assert f"stopped at its limit; to resume it: watchdog limit {guard.pid} 6G" in said
    assert "Its work is saved: step 7, /r/rescue-7." in said
    assert "interrupted; has the reserve to end or to free memory" in said
    with pytest.raises(UsageError, match="which one"):
        limit_command.run(argparse.Namespace(**{**wanted, "end": True}), Output())


@pytest.mark.parametrize(("processors", "limit_gib"), [(1, 1), (2, 1), (64, 1), (64, 2), (256, 4)])
def test_libraries_may_start_a_thread_for_each_processor_under_any_limit(
    monkeypatch, processors: int, limit_gib: int
):
    """40 MiB per thread on NumPy's import; three times the limit is still refused."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    limit = limit_gib << 30

    slack = reservation.slack_bytes(limit, 256 * MIB)

    assert min(40 * MIB * processors, limit) < slack
    assert limit + slack <= 3 * limit


def test_what_is_refused_memory_is_copied_again_and_goes_on_as_it_did():
    """A library may end it without a message: the newer rescue counts, and nothing else happens."""
    policy = Policy()
    policy.limit_met(1.0)
    policy.copied(2.0, CopyResults(1, 1, 0))
    again = policy.copy_early(3.0)
    copying = policy.is_early_copy, policy.state
    later = policy.copied(3.5, CopyResults(1, 0, 1, "it went on"))
    kept = policy.copies.complete
    met = policy.limit_met(4.0)

    assert (Action.FREEZE, Action.COPY) == again
    assert (True, State.COPYING) == copying
    assert (Action.RESUME,) == later
    assert kept
    assert (Action.FREEZE, Action.COPY) == met


def test_a_rescue_is_renewed_more_seldom_the_longer_and_the_dearer():
    """The intervals start again when memory is refused again."""
    schedule = CopySchedule()

    def copies(until, took):
        found, now = [], 0.0
        while now < until:
            now += 0.05
            if schedule.due(now, 0.9, State.REFUSING, 1):
                found.append(now)
                now += took
                schedule.ended(now, now - took, True)
        return found

    cheap = copies(100.0, 0.01)
    gaps = [b - a for a, b in pairwise(cheap)]
    assert cheap[0] < 1.0
    assert max(gaps) < 12.0
    assert gaps[-1] > 5 * gaps[0]
    assert not schedule.due(101.0, 0.5, State.RUNNING, 1)
    assert 3 < len(copies(100.0, 2.0)) < 13


def test_a_copy_near_the_limit_that_comes_to_nothing_is_not_tried_for_ever():
    """Each copy stops the program and may fill a full disk; the limit holds in every state."""
    schedule = CopySchedule()

    def tries(until, share=0.9):
        found, now = [], 0.0
        while now < until:
            now += 0.02
            schedule.due(now, share, State.COPYING, 1)  # while a copy is under way
            if schedule.due(now, share, State.RUNNING, 1):
                schedule.tried(now)
                found.append(now)
        return found

    first = tries(1000.0)
    gaps = [b - a for a, b in pairwise(first)]

    assert 25 == len(first)
    assert gaps[0] < 0.2
    assert gaps[-1] > 10 * gaps[0]
    assert [] == tries(0.1, share=0.5)
    assert tries(1000.0)


def test_a_training_that_stays_near_its_limit_is_copied_now_and_then_all_day():
    """Successful copies do not count as failed tries."""
    schedule = CopySchedule()
    copies = 0
    for second in range(100 * 125):
        if schedule.due(float(second), 0.9, State.RUNNING, 1):
            schedule.tried(float(second))
            schedule.ended(float(second), float(second), True)
            copies += 1

    assert copies >= 100


def test_a_leak_comes_near_its_limit_and_a_steady_peak_does_not():
    """Each sample of a steady program is taken at another moment of its step."""
    moments = random.Random(1)
    steady, leaks, late = Growth(), Growth(), Growth()
    near = [steady.is_near(n / 10, 150 + 100 * moments.random()) for n in range(6000)]
    rising = [leaks.is_near(n / 10, 1000 - n + 20 * moments.random()) for n in range(1000)]
    late.is_near(0.0, 1000)
    late.is_near(36000.0, 500)

    assert sum(near) < 0.05 * len(near)
    assert all(rising[-200:])
    assert (True, False) == (late.is_near(36000.1, 400), late.is_near(36040.0, 400))


def test_memory_has_just_been_refused_for_some_seconds():
    """A program that trains on for hours then has not every step published."""
    schedule = CopySchedule()
    assert not schedule.has_just_refused(100.0)
    schedule.due(100.0, 1.0, State.REFUSING, 1)
    assert schedule.has_just_refused(105.0)
    assert not schedule.has_just_refused(130.0)
    schedule.due(131.0, 1.0, State.RUNNING, 1)
    assert not schedule.has_just_refused(131.0)


def test_a_notebook_is_not_told_that_an_interrupt_ends_it():
    """An interrupt ends only the cell, and a notebook has no terminal."""
    script, notebook = (messages.choices(a_guard(notebook=each)) for each in (False, True))

    assert "interrupt" not in script
    (line,) = (each for each in notebook.splitlines() if "interrupt" in each)
    assert line.startswith("End the cell")
