"""What is decided at the limit, and how free memory is shared out: values in, values out."""

from __future__ import annotations

import argparse
import json
import os
from itertools import pairwise

import pytest
from support.looks import observer_of

from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.quantities import format_bytes, parse_bytes, size_above
from watchdog_app.cli import limit as limit_command
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.guards import Guards
from watchdog_app.guard import launch, messages, record, reservation
from watchdog_app.guard.limits import Limits
from watchdog_app.guard.policy import ASKED, AtLimit, Copies, Do, Policy, Stage
from watchdog_app.guard.record import GuardRecord
from watchdog_app.guard.renewal import Insurance, Renewal
from watchdog_app.guard.shares import Free, Holder, limit_of, reserve_for

MIB = 1 << 20
GIB = 1 << 30
NOBODY = Copies(0, 0, 0)
SAVED = Copies(1, 1, 0)
IN_STEP = Copies(1, 0, 1, "it is within a step")


def at_limit(policy: Policy, copies: Copies) -> list[Do]:
    assert [Do.FREEZE, Do.COPY] == policy.limit_met(1.0)
    return policy.copied(2.0, copies)


@pytest.mark.parametrize(
    ("choice", "notebook", "copies", "stage", "steps"),
    [
        (AtLimit.AUTO, True, SAVED, Stage.HELD, [Do.TAKE_BACK, Do.REPORT]),
        (AtLimit.AUTO, False, NOBODY, Stage.HELD, [Do.TAKE_BACK, Do.REPORT]),
        (AtLimit.AUTO, False, SAVED, Stage.REFUSING,
         [Do.REFUSE, Do.GIVE_ALL, Do.REPORT, Do.THAW]),
        (AtLimit.HOLD, False, SAVED, Stage.HELD, [Do.TAKE_BACK, Do.REPORT]),
        (AtLimit.END, True, SAVED, Stage.ENDING, [Do.REPORT, Do.END]),
        (AtLimit.REFUSE, False, NOBODY, Stage.REFUSING,
         [Do.REFUSE, Do.GIVE_ALL, Do.REPORT, Do.THAW]),
        (AtLimit.REFUSE, False, Copies(2, 1, 0, "no page"), Stage.HELD,
         [Do.TAKE_BACK, Do.REPORT]),
        (AtLimit.GO_ON, False, SAVED, Stage.OPENED,
         [Do.OPEN, Do.ALLOW, Do.THAW, Do.REPORT]),
    ],
)  # fmt: skip
def test_after_the_copy_comes_what_was_chosen(choice, notebook, copies, stage, steps):
    """And nothing that could cost the work where that is not saved."""
    policy = Policy(choice, notebook)

    assert steps == at_limit(policy, copies)
    assert stage is policy.stage


def test_a_step_that_is_under_way_gets_most_of_the_reserve_to_end():
    """Then it is copied at its boundary, and only then anything else happens."""
    policy = Policy()

    assert [Do.GIVE_MOST, Do.ASK, Do.THAW] == at_limit(policy, IN_STEP)
    assert [Do.FREEZE, Do.COPY] == policy.boundary(3.0)
    assert Do.REFUSE in policy.copied(4.0, SAVED)


def test_a_boundary_that_was_left_before_the_freeze_is_waited_for_again():
    """Without more of the reserve, and not for longer than was set."""
    policy = Policy()
    at_limit(policy, IN_STEP)
    policy.boundary(3.0)

    assert [Do.THAW] == policy.copied(4.0, IN_STEP)
    assert [] == policy.tick(50.0, 10 * MIB, 10 * MIB)
    assert [Do.FREEZE, Do.COPY] == policy.tick(70.0, 10 * MIB, 10 * MIB)
    assert [Do.TAKE_BACK, Do.REPORT] == policy.copied(71.0, IN_STEP)
    assert "its step did not end within a minute" == policy.because


def test_the_end_of_the_reserve_is_the_end_of_waiting():
    """What cannot be copied then is held, and said to be unsaved."""
    policy = Policy()
    at_limit(policy, IN_STEP)

    assert [Do.FREEZE, Do.COPY] == policy.limit_met(3.0)
    assert [Do.TAKE_BACK, Do.REPORT] == policy.copied(4.0, IN_STEP)
    assert (Stage.HELD, "the reserve was used up before its step ended") == (
        policy.stage, policy.because,
    )  # fmt: skip


def test_what_is_held_goes_on_when_there_is_room():
    """By a higher limit, or because memory was given back."""
    policy = Policy()
    at_limit(policy, NOBODY)

    assert [] == policy.tick(3.0, 99 * MIB, 100 * MIB)
    assert Do.THAW in policy.tick(4.0, 50 * MIB, 100 * MIB)
    assert Stage.CALM is policy.stage
    at_limit(policy, NOBODY)
    assert Do.THAW in policy.raised(9.0)


def test_an_interrupt_gives_the_reserve_and_the_end_of_that_is_the_end():
    """Nobody has to press Ctrl-C twice, and nobody is stuck after it."""
    policy = Policy()
    at_limit(policy, NOBODY)

    assert [Do.GIVE_ALL, Do.THAW] == policy.interrupted(3.0)
    assert [Do.FREEZE, Do.REPORT, Do.END] == policy.limit_met(4.0)
    assert [] == policy.limit_met(5.0)
    assert [] == policy.interrupted(6.0)


def test_a_notebook_lives_on_after_an_interrupt():
    """A cell was interrupted, and its memory given back; the next one that grows is held anew."""
    policy = Policy(notebook=True)
    at_limit(policy, NOBODY)
    policy.interrupted(3.0)

    assert [Do.FREEZE, Do.COPY] == policy.limit_met(3.5)  # still more, before it has unwound
    policy.copied(3.6, NOBODY)
    assert Stage.HELD is policy.stage
    policy.interrupted(4.0)
    steps = policy.tick(5.0, 50 * MIB, 100 * MIB)

    assert Stage.CALM is policy.stage
    assert {Do.TAKE_BACK, Do.THAW} <= set(steps)
    assert Do.REPORT not in steps
    assert [Do.FREEZE, Do.COPY] == policy.limit_met(6.0)


def test_a_script_that_was_interrupted_is_calm_once_it_has_had_room_for_a_while():
    """It most often ends right away; one that catches Ctrl-C goes on under its limit."""
    policy = Policy()
    at_limit(policy, NOBODY)
    policy.interrupted(3.0)

    assert [] == policy.tick(4.0, 50 * MIB, 100 * MIB)
    assert Do.TAKE_BACK in policy.tick(9.0, 50 * MIB, 100 * MIB)
    assert Stage.CALM is policy.stage


def test_refusal_that_was_not_enough_ends_a_script_and_holds_a_notebook():
    """A notebook's variables are worth waiting for somebody."""
    script, notebook = Policy(AtLimit.REFUSE), Policy(AtLimit.REFUSE, notebook=True)
    at_limit(script, SAVED)
    at_limit(notebook, SAVED)

    assert [[Do.FREEZE, Do.COPY]] * 2 == [each.limit_met(3.0) for each in (script, notebook)]
    assert Do.END in script.copied(4.0, IN_STEP)
    assert Do.END not in notebook.copied(4.0, SAVED)
    assert SAVED == script.copies
    assert Stage.HELD is notebook.stage


def test_what_was_refused_memory_and_ends_is_not_said_to_go_on():
    """It has room while it goes away; nobody reads that it lives."""
    policy = Policy()
    at_limit(policy, SAVED)

    steps = policy.tick(3.0, 50 * MIB, 100 * MIB)

    assert Do.ALLOW in steps
    assert Do.REPORT not in steps
    assert Stage.CALM is policy.stage


def test_what_runs_is_saved_before_it_is_ended_on_request():
    """At its next boundary. Who asks twice does not wait for that."""
    patient, hurried = Policy(), Policy()

    for policy in (patient, hurried):
        assert [Do.FREEZE, Do.COPY] == policy.told_to_end(1.0)
        assert [Do.GIVE_MOST, Do.ASK, Do.THAW] == policy.copied(2.0, IN_STEP)
    assert [Do.FREEZE, Do.COPY] == patient.boundary(3.0)
    assert [Do.REPORT, Do.END] == patient.copied(4.0, SAVED)
    assert [Do.REPORT, Do.END] == hurried.told_to_end(3.0)
    assert ASKED == patient.because == hurried.because


def test_a_higher_limit_calls_off_an_end_that_waits_for_a_save():
    """It goes on, and the next limit is met as any."""
    policy = Policy()
    policy.told_to_end(1.0)
    policy.copied(2.0, IN_STEP)

    assert Do.THAW in policy.raised(3.0)
    assert Do.REFUSE in at_limit(policy, SAVED)


def test_who_is_ended_far_below_the_limit_is_not_told_to_raise_it():
    """Nor that it was at its limit."""
    low = a_guard(stage="ending", because=ASKED, used_bytes=2 * GIB)
    high = a_guard(stage="ending", because=ASKED, used_bytes=4 * GIB)
    # What it used is read again while it ends.
    held = a_guard(stage="ending", because=ASKED, used_bytes=1, events=[{"kind": "held"}])

    assert "is ended: somebody asked for that." in messages.told(low)
    assert "higher" not in messages.told(low) + messages.past(low)
    for ended in (high, held):
        assert "at its memory limit of 4.00 GiB: somebody asked for that." in messages.told(ended)
        assert "higher" in messages.told(ended)


def test_what_is_ending_is_not_begun_again():
    """Whatever comes: an end stays an end."""
    policy = Policy(AtLimit.END)
    at_limit(policy, SAVED)

    assert [] == [
        *policy.limit_met(3.0), *policy.boundary(3.0), *policy.raised(3.0),
        *policy.told_to_end(3.0),
        *policy.told_to_go_on(3.0), *policy.tick(3.0, 0, MIB), *policy.copied(3.0, SAVED),
    ]  # fmt: skip


FREE = Free(8 * GIB, 16 * GIB)


def holder(key, held=GIB, **more):
    return Holder(key, held, 256 * MIB, more.pop("saved", None), **more)


def test_one_guard_alone_has_what_is_free_less_margin_and_reserve():
    """The desktop is not frozen by it."""
    assert GIB + 8 * GIB - GIB - 256 * MIB == limit_of("a", [holder("a")], FREE)


def test_the_least_protected_has_the_smaller_share():
    """It comes to its limit first: without an agent, then with the older rescue."""
    guards = [
        holder("none"),
        holder("old", agents=1, saved=10.0),
        holder("new", agents=1, saved=20.0),
    ]

    rooms = {guard.key: limit_of(guard.key, guards, FREE) - GIB for guard in guards}

    assert rooms["none"] < rooms["old"] == rooms["new"]
    assert sum(rooms.values()) <= 8 * GIB - FREE.margin_bytes - 3 * 256 * MIB


def test_who_stands_still_leaves_what_is_free_to_those_who_run():
    """Its reserve too."""
    guards = [Holder("held", GIB, 256 * MIB, None, 0, True), holder("runs"), holder("too")]

    assert limit_of("runs", guards[1:], FREE) == limit_of("runs", guards, FREE)


def test_who_was_let_go_while_all_others_stand_still_keeps_what_it_was_given():
    """Else it is held again at once, the next is let go, and all end up held with nothing left."""
    tight = Free(200 * MIB, 2 * GIB)
    others = [Holder("b", GIB, 32 * MIB, None, 0, True)]

    let_go = limit_of("a", [Holder("a", GIB, 32 * MIB, 5.0, 0, True), *others], tight)
    runs = limit_of("a", [Holder("a", GIB, 32 * MIB, 5.0, 0, False), *others], tight)

    assert let_go == runs
    assert GIB < runs < GIB + 200 * MIB


def test_where_everybody_stands_still_the_best_protected_goes_on():
    """Nothing would ever be given back otherwise."""
    tight = Free(400 * MIB, 2 * GIB)
    guards = [Holder("a", GIB, 0, None, 0, True), Holder("b", GIB, 0, 5.0, 1, True)]

    assert GIB == limit_of("a", guards, tight)
    assert GIB + 200 * MIB < limit_of("b", guards, tight)


def test_nobody_is_given_less_than_it_holds():
    """A machine that is full already holds it at its next page, and takes nothing back."""
    assert GIB == limit_of("a", [holder("a")], Free(10 * MIB, GIB))


@pytest.mark.parametrize(
    ("state", "reserve"),
    [(0, 256 * MIB), (MIB, 256 * MIB), (4 * GIB, GIB), (100 * GIB, 2 * GIB)],
)
def test_the_reserve_grows_with_what_has_to_be_saved(state, reserve):
    """Never below 256 MiB."""
    assert reserve == reserve_for(state)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The runtime folder of a user."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def a_guard(**more):
    return GuardRecord(os.getpid(), 5, "train.py", "cgroup v1", None, 4 * GIB, GIB, **more)


class NoGroup:
    """The group of a guard, as far as what the machine has left is asked of it."""

    path = None
    version = 1


def test_a_supervisor_raises_the_reserve_once_it_knows_what_there_is_to_save(folder):
    """And never lowers it, for then the table may only be late."""
    guard = a_guard(follows_state=True)
    guard.reserve_bytes = 256 * MIB
    limits = Limits(NoGroup(), guard)

    limits.keep_for(0)
    assert 256 * MIB == guard.reserve_bytes
    limits.keep_for(1200 * MIB)
    assert 300 * MIB == guard.reserve_bytes
    limits.keep_for(MIB)
    assert 300 * MIB == guard.reserve_bytes


def test_a_reserve_that_somebody_chose_stays(folder):
    """As `--reserve` says."""
    guard = a_guard()

    Limits(NoGroup(), guard).keep_for(100 * GIB)

    assert GIB == guard.reserve_bytes


def test_what_a_supervisor_writes_is_read_again(folder):
    """All of it."""
    guard = a_guard(
        stage="held", because="it is within a step", rescues=[{"path": "/r", "step": 3}]
    )
    record.prepare(guard.pid, guard.start_time)
    guard.note(1.0, "held", "text")
    guard.write()

    assert [guard] == record.every()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "x"}, {"pid": -1}, {"limit_bytes": None}, {"limit_bytes": True}, {"name": 5},
        {"rescues": ["x"]}, {"events": 3}, {"pid": 1}, {"saved_unix_s": "now"}, {"group": 7},
    ],
)  # fmt: skip
def test_a_record_that_holds_nonsense_is_none(folder, change):
    """It is read by the daemon as well, which believes nobody."""
    guard = a_guard()
    record.prepare(guard.pid, guard.start_time)
    guard.write()
    path = os.path.join(guard.folder, "guard.json")
    with open(path) as file:
        found = json.load(file)
    with open(path, "w") as file:
        json.dump({**found, **change}, file)

    assert [] == record.every()


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 5000, "x" * 100_000])
def test_what_is_no_record_at_all_is_left_out(folder, text):
    """And nothing is raised."""
    guard = a_guard()
    record.prepare(guard.pid, guard.start_time)
    with open(os.path.join(guard.folder, "guard.json"), "w") as file:
        file.write(text)

    assert [] == record.every()


@pytest.mark.parametrize("stage", [stage.value for stage in Stage])
def test_every_stage_can_be_told(stage):
    """With a name that a terminal would act on."""
    guard = a_guard(stage=stage, rescues=[{"path": "/r\x1b[2J", "step": 3}], agents=1, saved=1)
    guard.name = "evil\n\x1b]0;x\x07.py"

    told = messages.told(guard)

    assert told
    assert "\x1b" not in told
    assert "evil" in told


@pytest.mark.parametrize(
    ("limit", "text"),
    [(12 * GIB, "16G"), (100 * MIB, "134M"), (3 * GIB, "4G"), (GIB, "1.5G"), (800 * MIB, "1.25G")],
)
def test_the_next_limit_is_one_that_somebody_would_type(limit, text):
    """About a third more, and shown with the same figure once it is in force."""
    assert text == size_above(limit)
    assert float(text[:-1]) == float(format_bytes(parse_bytes(text)).split()[0])


@pytest.mark.parametrize("stage", ["held", "refusing", "ending"])
def test_a_limit_that_is_proposed_lets_it_go_on(stage):
    """It may hold more than its limit: the reserve, or what it held when that was lowered."""
    guard = a_guard(stage=stage, used_bytes=6 * GIB)

    assert f" {size_above(6 * GIB)}" in messages.told(guard)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"agents": 0},
         "no agent of watchdog is in it. If it is ended now, its work is lost."),
        ({"agents": 1, "because": "it is stuck", "trouble": "it is stuck"},
         "Its work could not be saved: it is stuck. If it is ended now, its work is lost."),
        ({"agents": 1, "trouble": "no", "rescues": [{"path": "/r", "step": 3}]},
         "Its work could not be saved: no. What was saved before is of step 3, /r."),
        ({"agents": 1, "saved": 1, "rescues": [{"path": "/r", "step": 3}]},
         "Its work is saved: step 3, /r."),
    ],
)  # fmt: skip
def test_a_hold_says_what_is_saved_and_all_that_can_be_done(more, said):
    """In sentences, each reason once, and with the words to type."""
    guard = a_guard(stage="held", **more)

    told = messages.told(guard)

    assert f"{said}\n" in told
    for words in (f"limit {guard.pid} ", f"limit {guard.pid} --go-on", f"limit {guard.pid} --end"):
        assert f"watchdog {words}" in told
    assert "Ctrl-Z" in told
    guard.notebook = True
    assert "Ctrl-Z" not in messages.told(guard)  # in the terminal of its server


@pytest.mark.parametrize("stage", ["refusing", "ending"])
def test_after_a_save_the_next_run_is_said_to_go_on(stage):
    """With the words to type."""
    guard = a_guard(stage=stage, rescues=[{"path": "/r", "step": 3}], agents=1, saved=1)

    assert (
        "watchdog exec --limit 6G -- ...   (it finds its rescue, and goes on or says how)"
        in messages.told(guard)
    )


KERNEL = ["/opt/bin/python", "-m", "ipykernel_launcher", "-f", "k.json"]


@pytest.mark.parametrize(
    ("words", "session", "name"),
    [
        (KERNEL, "/work/train.ipynb", "train.ipynb"),
        (KERNEL, "train-jvsc-5e0f8a9b-1111-2222-3333-444455556666.ipynb", "train.ipynb"),
        (KERNEL, "", "kernel in work"),
        (KERNEL, "console-1", "kernel in work"),
        (["python", "fit.py"], "/work/train.ipynb", "fit.py"),
    ],
)
def test_a_guard_has_the_name_that_people_know(words, session, name):
    """Several kernels that are all called python are told apart by nobody."""
    assert name == launch.name_of(words, {"JPY_SESSION_NAME": session}, "/home/me/work")


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("calm", None),
        ("held", "is held there"),
        ("copying", "stands still for a moment"),
        ("waiting", None),
        ("refusing", None),
    ],
)
def test_who_stands_still_under_a_guard_is_neither_paused_nor_woken(monkeypatch, stage, words):
    """A signal would reach it later; while it is copied it is a matter of moments."""
    guard, key = a_guard(stage=stage), ProcessKey(4711, 99)
    guards = Guards(observer_of(), None)
    monkeypatch.setattr(guards, "look", lambda: None)
    monkeypatch.setattr(guards, "of", lambda task: guard if task == key else None)

    said = guards.held(key)

    assert (said is None) == (words is None)
    assert words is None or words in said
    assert "\n" not in (said or "")


def test_the_list_says_what_to_do_for_one_that_is_held(folder, capsys):
    """And what another state means."""
    guard = a_guard(stage="held")
    record.prepare(guard.pid, guard.start_time)
    guard.write()
    wanted = {"task": None, "size": None, "go_on": False, "end": False, "json": False}

    limit_command.run(argparse.Namespace(**wanted))
    guard.stage = "leaving"
    guard.write()
    limit_command.run(argparse.Namespace(**wanted))

    said = capsys.readouterr().out
    assert f"stopped at its limit; to resume it: watchdog limit {guard.pid} 6G" in said
    assert "interrupted; has the reserve to end" in said
    with pytest.raises(UsageError, match="which one"):
        limit_command.run(argparse.Namespace(**{**wanted, "end": True}))


@pytest.mark.parametrize(("processors", "limit_gib"), [(1, 1), (2, 1), (64, 1), (64, 2), (256, 4)])
def test_libraries_may_start_a_thread_for_each_processor_under_any_limit(
    monkeypatch, processors: int, limit_gib: int
):
    """40 MiB each as NumPy is imported; three times the limit is refused all the same."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    limit = limit_gib << 30

    slack = reservation.slack_bytes(limit, 256 * MIB)

    assert min(40 * MIB * processors, limit) < slack
    assert limit + slack <= 3 * limit


def test_what_is_refused_memory_is_copied_again_and_goes_on_as_it_did():
    """A library may end it without a word: the newer rescue counts, and nothing else is done."""
    policy = Policy()
    policy.limit_met(1.0)
    policy.copied(2.0, Copies(1, 1, 0))
    again = policy.insure(3.0)
    copying = policy.insuring, policy.stage
    later = policy.copied(3.5, Copies(1, 0, 1, "it went on"))
    kept = policy.copies.complete
    met = policy.limit_met(4.0)

    assert [Do.FREEZE, Do.COPY] == again
    assert (True, Stage.COPYING) == copying
    assert [Do.THAW] == later
    assert kept
    assert [Do.FREEZE, Do.COPY] == met


def test_a_rescue_is_renewed_more_seldom_the_longer_and_the_dearer():
    """And from the beginning where memory was refused anew."""
    renewal = Renewal()

    def copies(until, took):
        found, now = [], 0.0
        while now < until:
            now += 0.05
            if renewal.due(now, Stage.REFUSING):
                found.append(now)
                now += took
                renewal.copied(now, now - took)
        return found

    cheap = copies(100.0, 0.01)
    gaps = [b - a for a, b in pairwise(cheap)]
    assert cheap[0] < 1.0
    assert max(gaps) < 12.0
    assert gaps[-1] > 5 * gaps[0]
    assert not renewal.due(101.0, Stage.CALM)
    assert 3 < len(copies(100.0, 2.0)) < 13


def test_a_copy_near_the_limit_that_comes_to_nothing_is_not_tried_for_ever():
    """Each stands everybody still, and fills a disk that is full; asked in every stage."""
    insurance = Insurance()

    def tries(until, share=0.9):
        found, now = [], 0.0
        while now < until:
            now += 0.02
            insurance.due(now, share, Stage.COPYING, 1)  # while one is under way
            if insurance.due(now, share, Stage.CALM, 1):
                insurance.tried(now)
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
    """Copies that succeed are no tries that came to nothing."""
    insurance = Insurance()
    copies = 0
    for second in range(100 * 125):
        if insurance.due(float(second), 0.9, Stage.CALM, 1):
            insurance.tried(float(second))
            insurance.copied(float(second))
            copies += 1

    assert copies >= 100


def test_a_notebook_is_not_told_that_an_interrupt_ends_it():
    """That ends the cell alone, and a terminal is nowhere near."""
    script, notebook = (messages.choices(a_guard(notebook=each)) for each in (False, True))

    assert "Ctrl-C" in script
    assert "interrupt" not in script
    assert "Ctrl-C" not in notebook
    (line,) = (each for each in notebook.splitlines() if "interrupt" in each)
    assert line.startswith("End the cell")
