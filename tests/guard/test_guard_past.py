"""The end of a program under a guard, reported later: by the daemon, and without one."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import pytest
from support.observers import observer_of

from watchdog_app.base.text.quantities import AUTOMATIC_LIMIT
from watchdog_app.cli import offline_status
from watchdog_app.cli.status_text import guard_remarks
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import collect_evidence, journal_level, should_notify
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.advice import Shortage, build_advice
from watchdog_app.core.explain.exits import describe_death
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Attribution, Regime
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, LastError
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import (
    CgroupMemory,
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    TaskKind,
)
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.tasks import group_processes as tasks_of
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.guards import Guards, guard_end
from watchdog_app.daemon.log import Log
from watchdog_app.guard import messages, record
from watchdog_app.guard.record import CopiedRescue, GuardRecord, make_folder
from watchdog_app.history import entries
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.store import RescueStore

MIB = 1 << 20
KEY = ProcessKey(4711, 99)
GROUP = "/sys/fs/cgroup/memory/watchdog-guard-4711-99"


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folders of this test."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def a_guard(**more) -> GuardRecord:
    values = {"pid": 4711, "start_time": 99, "group": GROUP, **more}
    return GuardRecord(
        **values, name="fit.py", kind="cgroup v1", limit_bytes=800 * MIB, reserve_bytes=256 * MIB,
        supervisor_pid=1234,
    )  # fmt: skip


def written(places, **more) -> GuardRecord:
    """A guard whose group exists, with its supervisor's record."""
    group = places / "watchdog-guard-4711-99"
    group.mkdir()
    guard = a_guard(group=str(group), **more)
    make_folder(guard.pid, guard.start_time)
    guard.write()
    return guard


def past(**more) -> None:
    """A guard that has ended, as its supervisor left it."""
    a_guard(**more).remove()


def test_what_the_guard_ended_is_told_exactly_and_not_as_a_kill(places):
    """Whatever signal or status it had; it is always recorded, and causes no second notice."""
    past(state="ending", because="that is what --at-limit end asks for")
    guard = guard_end(KEY, None)

    causes = [diagnose(ExitFacts(wait_status=status, guard=guard)) for status in (15, 9, 256, None)]

    assert {CauseKind.GUARD} == {each.kind for each in causes}
    assert {Certainty.EXACT} == {each.certainty for each in causes}
    assert (
        "ended by its guard at its memory limit of 800 MiB: that is what --at-limit end asks for"
        == causes[0].text
    )
    assert not should_notify(causes[0], None)
    facts = ExitFacts(wait_status=15, guard=guard)
    assert journal_level(facts, causes[0], seen=True, kernel=False, age_s=1, cared_for=False)


def test_an_end_by_another_cause_under_a_guard_keeps_its_cause(places):
    """A crash is a crash; a MemoryError is reported with the limit that refused."""
    past()
    guard = guard_end(KEY, None)
    words = LastError(error="MemoryError", frames=("fit.py:3 in load",))

    crash = diagnose(ExitFacts(wait_status=11, guard=guard))
    refused = diagnose(ExitFacts(wait_status=256, words=words, guard=guard))
    full = ExitFacts(9, guard=guard, group_used_bytes=900 * MIB, group_limit_bytes=800 * MIB)
    without = diagnose(ExitFacts(wait_status=256, words=words))

    assert CauseKind.SIGNAL is crash.kind
    assert CauseKind.PROGRAM_MEMORY is refused.kind
    assert "its guard refuses what does not fit into its limit of 800 MiB" in refused.text
    assert "guard" not in without.text
    assert any(
        "a limit of 800 MiB" in each.text for each in collect_evidence(ExitFacts(guard=guard))
    )
    held = "900 MiB: its guard had given it the reserve besides its limit of 800 MiB"
    assert any(held in each.text for each in collect_evidence(full))


@pytest.mark.parametrize("finished", [False, True])
def test_a_training_killed_under_a_launcher_is_explained_with_its_rescue(places, finished):
    """Without a daemon, and below the limit: by the name of the training's folder, or its pid."""
    saved = RescueStore(str(places / "train.py")).save([], {"step": 145})
    past(rescues=[CopiedRescue(4712, saved.path, 145)])
    if finished:
        names.mark_finished(saved.path)

    found = {task: offline_status.explain_guards(task) for task in ("train.py", "4712", "4713")}
    at_limit = a_guard(state="stopped", rescues=[CopiedRescue(4712, saved.path, 145)])

    assert finished is not any("step 145" in line for line in found["train.py"])
    assert finished is ("resumed from its rescue and ended well" in messages.past_summary(at_limit))
    assert finished is not ("step 145" in messages.past_summary(at_limit))
    assert found["train.py"] == found["4712"]
    assert [] == found["4713"]


def test_a_program_of_another_folder_with_the_same_name_is_not_explained(tmp_path, monkeypatch):
    """A file is the program in the command, or the one beside its rescues below a launcher."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fit.py").touch()
    rescue = CopiedRescue(4712, str(tmp_path / "here" / "rescues" / "fit.py" / "rescue-1"), 145)
    guards = [
        a_guard(command="python fit.py", directory=str(tmp_path / "there")),
        a_guard(command="sh run.sh", directory=str(tmp_path), rescues=[rescue]),
    ]
    monkeypatch.chdir(tmp_path / "here")

    words = ("fit.py", "../there/fit.py", "/no/file/fit.py")
    found = [
        [one.command for one in guards if offline_status._matches(one, word)] for word in words
    ]

    assert [["sh run.sh"], ["python fit.py"], ["python fit.py", "sh run.sh"]] == found


@pytest.mark.parametrize(("status", "refused"), [(256, True), (6, True), (0, False), (2, False)])
def test_an_error_right_after_a_refusal_is_most_likely_that(places, status, refused):
    """The error itself was not read: a program without an agent, or a library in C."""
    past(refused_unix_s=time.time() - 1)

    cause = diagnose(ExitFacts(wait_status=status, guard=guard_end(KEY, None)))

    assert refused is (cause.kind is CauseKind.PROGRAM_MEMORY)
    assert refused is ("its guard refused it further memory" in cause.text)


def test_the_next_start_is_told_with_a_higher_limit_and_goes_on_from_the_copy(places):
    """The copied rescue is used if it is the newest."""
    rescue = CopiedRescue(4711, str(places), 145)
    past(state="ending", agents=1, saved=1, rescues=[rescue], saved_unix_s=50.0)
    guard = guard_end(KEY, None)
    found = guard.rescue

    assert (str(places), 145, 50.0) == (found.path, found.step, found.saved_unix_s)
    entry = {"pid": 4711, "name": "fit.py", "cause": "guard", "next_limit": guard.next_limit,
     "argv": ["/usr/bin/python3", "fit.py"], "cwd": "/w", "reason": guard.ended}  # fmt: skip
    told = describe_death(entry, at="12:00", now_unix_s=60.0, advice=("Halve the batch",))
    assert "  cd /w && watchdog exec --limit 1.25G -- python3 fit.py" in told
    assert "Halve the batch" in told


@pytest.mark.parametrize(("copied_unix_s", "step"), [(50.0, 145), (10.0, 100), (20.4, 100)])
def test_a_living_training_has_the_newer_of_its_own_rescue_and_the_copied_one(
    places, copied_unix_s, step
):
    """As status, explain and the policy know it while the training lives."""
    rescue = CopiedRescue(4711, str(places), 145)
    written(places, state="stopped", rescues=[rescue], saved_unix_s=copied_unix_s)
    guards = Guards(observer_of(), Log())
    guards.refresh()
    nothing = SimpleNamespace()
    agents = Agents(nothing, nothing, lambda _: True)
    own = RescueRecord("/r/own", 100, 5, 0.1, 20.0, by_lines=True)
    agents._agents[KEY] = Agent(KEY, None, AgentState(KEY, "keras", "/r", rescue=own), None)

    agents.record_guard_copies(guards.rescues())

    found = agents.get(KEY).view.rescue
    assert (step, True) == (found.step, found.by_lines)


@pytest.mark.parametrize(
    ("kind", "follows_machine", "limit"),
    [
        (CauseKind.SIGNAL, False, "800M"),
        (CauseKind.SIGNAL, True, ""),
        (CauseKind.PROGRAM_MEMORY, False, "1.25G"),
        (CauseKind.GPU_MEMORY, True, ""),  # no guard limits the memory of a card
    ],
)
def test_a_higher_limit_is_proposed_only_after_a_lack_of_memory(
    places, kind, follows_machine, limit
):
    """A program that ended by a signal starts again with the same limit."""
    past(follows_machine=follows_machine)
    facts = ExitFacts(guard=guard_end(KEY, None))

    found = entries.exit_context(facts, Cause(kind, "", Certainty.EXACT), (), {})

    assert limit == found["next_limit"]


def test_the_guard_of_what_was_started_in_one_is_found_by_its_group(places):
    """When a kernel below a server ends, its guard is the server's."""
    past(state="ending")

    assert guard_end(ProcessKey(5000, 3), None) is None
    for group in (
        "/sys/fs/cgroup/memory/watchdog-guard-4711-99",
        "/u/watchdog-guard-4711-99.scope",
    ):
        assert guard_end(ProcessKey(5000, 3), group).limit_bytes == 800 * MIB


def test_only_the_newest_are_kept_and_what_is_no_record_is_passed_over(places):
    """The folder stays bounded, and a broken file causes no error."""
    for number in range(60):
        past(start_time=number)
    for name, text in (("1.2.json", "{"), ("3.4.json", json.dumps({"pid": "x"}))):
        (places / "state" / "guards" / name).write_text(text)

    assert len(record.read_past()) <= 50
    assert {4711} == {guard.pid for guard in record.read_past()}


@pytest.mark.parametrize(
    ("stage", "kinds", "said"),
    [
        ("running", (), ""),
        ("running", ("limit",), "reached its memory limit, continued, and has ended"),
        ("running", ("limit", "refusing"), "was refused more memory, and ended"),
        ("stopped", ("limit", "stopped"), "ended while it was stopped"),
        ("exiting", ("limit", "stopped"), "was interrupted while it was stopped"),
        ("unlimited", ("limit", "unlimited"), "continued without one"),
        ("ending", ("limit", "ending"), "was ended by its guard at its memory limit of 800 MiB"),
    ],
)
def test_what_came_of_it_is_said_for_every_stage(stage, kinds, said):
    """Without an event there is no text."""
    guard = a_guard(state=stage)
    for kind in kinds:
        guard.note(kind, "text")

    told = messages.past_summary(guard)

    assert said in told
    assert bool(said) == bool(told)


@pytest.mark.parametrize(
    ("stage", "topic", "too_late"),
    [("running", "warning", False), ("stopped", "warning", True), ("refusing", "warning", True),
     ("stopped", "rescued", False)],
)  # fmt: skip
def test_nobody_is_warned_of_a_limit_that_the_guard_has_met_and_told_of(
    places, stage, topic, too_late
):
    """One notice with the choices is enough; a second one would only repeat the risk."""
    guard = written(places, state=stage)
    guards = Guards(observer_of(), Log())
    decision = SimpleNamespace(
        resource=ResourceKey(ResourceKind.GUARD, guard.group), evidence={"topic": topic}
    )

    assert too_late is (guards.already_reported(decision) is not None)
    decision.resource = ResourceKey(ResourceKind.CGROUP, "/sys/fs/cgroup/another")
    assert guards.already_reported(decision) is None


@pytest.mark.parametrize(("stage", "high_mib"), [("finishing", 1056), ("running", 850)])
def test_a_limit_and_the_next_one_have_the_same_figures_on_every_screen(places, stage, high_mib):
    """Also during a save on the reserve, and with a sample that is older than the record."""
    automatic = stage == "running"
    folder = written(places, state=stage, used_bytes=700 * MIB, follows_machine=automatic).group
    info = ProcessInfo(KEY, 1, 1000, "ann", None, (), None, TaskKind.SCRIPT, "fit.py",
                       script="/x", cgroup=folder)  # fmt: skip
    host = HostMemory(8 << 30, 7 << 30, 0, 0, None, None, None, None, None)
    group = CgroupMemory(folder, 2, 780 * MIB, 0, 0, 1200 * MIB, high_mib * MIB, 0, 0, 0)
    sample = ProcessSample(KEY, 1, "S", 780 * MIB, 0, 0, 800 * MIB, 1.0)
    snapshot = Snapshot(1.0, 1.0, host, (sample,), (group,), infos={KEY: info})
    tasks = tasks_of(snapshot.processes, snapshot.infos)
    seen = readings(snapshot, tasks)
    guards = Guards(observer_of(tasks, lambda _: folder, lambda: seen), Log())
    for _ in range(2):
        guards.refresh()
        seen = readings(snapshot, tasks, (), guards.limits())

    (reading,) = [each for each in seen if each.key.subject == folder]
    limit = "800 MiB"
    danger = Shortage(reading, Attribution((), 0, 0), Regime.LINEAR, 1.0, {KEY: tasks[0]}, {},
                      SwapTraffic())  # fmt: skip
    assert f"780 MiB of {limit}" == phrases.format_level(reading.used, reading.limit, "bytes")
    assert f"780 MiB of {limit}" in (guards.explanation(KEY) or "")
    shown = guards.status_records()[KEY]
    assert (reading.used, reading.limit) == (shown.used_bytes, shown.limit_bytes)
    level = "780 MiB of 800 MiB"
    level += f" ({AUTOMATIC_LIMIT}), reserve " if stage == "running" else " and the reserve of "
    for screen in (
        guards.explanation(KEY),
        guard_remarks(shown)[0],
        offline_status.format_guard(guards.get(KEY)),
    ):
        assert f"{level}256 MiB" in screen
    more = f"watchdog limit 4711 {messages.next_limit(guards.get(KEY))}"
    assert more in " ".join(build_advice(danger))
    shown.state, shown.stopped = "stopped", True
    assert more in " ".join(guard_remarks(shown))


def test_without_a_daemon_a_hold_and_its_end_are_known_to_status_explain_and_history(
    desk, monkeypatch
):
    """Neither the guard nor these commands need a daemon."""
    hog = desk.hog(300, 0, limit="60M", options=("--no-refuse",))
    desk.stage(hog, "stopped")

    status, explain, history = (desk.run(word) for word in ("status", "explain", "history"))
    for name in ("WATCHDOG_RUNTIME_DIR", "WATCHDOG_STATE_DIR"):
        monkeypatch.setenv(name, desk.env[name])
    strangers, known = (
        offline_status.explain_guards("nobody.py"),
        offline_status.explain_guards(str(hog.pid)),
    )
    (old,) = record.read_all()
    old.used_bytes = 1  # as a supervisor recorded it some seconds ago
    with monkeypatch.context() as earlier:
        earlier.setattr(record, "read_all", lambda: [old])
        (now,) = offline_status.running_guards()
    desk.run("limit", str(hog.pid), "--end")
    desk.end(hog)
    desk.until(lambda: not os.path.exists(f"/proc/{hog.pid}"), "it lives")
    desk.until(lambda: desk.record(hog) is None, "its guard is there")
    after = desk.run("explain", str(hog.pid))
    deaths = offline_status.merge_guard_entries([], {"kinds": ["exit"]})

    assert 3 == status.returncode
    assert f"watchdog limit {hog.pid} 80M" in status.stderr
    assert 0 == explain.returncode
    assert now.used_bytes > 50 * MIB
    assert f"(pid {hog.pid}) is stopped. It runs under a guard" in " ".join(explain.stdout.split())
    assert "was stopped there: it loses nothing" in " ".join(explain.stdout.split())
    assert "No daemon runs" in explain.stdout
    assert "hold: " in history.stdout
    assert ([], 1) == (strangers, len(known))
    assert "was ended by its guard" in " ".join(after.stdout.split())
    assert ["ended by its guard at its memory limit of 60.0 MiB: somebody asked for that"] == [
        each["reason"] for each in deaths
    ]
