"""Pauses across the end of a daemon, and across other events of the process."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.pauses import standing_pauses

from watchdog_app.base.errors import WatchdogError
from watchdog_app.core.model.machine import ProcessKey, ProcessSample, Task, TaskKind
from watchdog_app.daemon import pauses as file
from watchdog_app.daemon.observer import mark_stopping
from watchdog_app.daemon.pauses import Pause, still_paused
from watchdog_app.machine.process_control import Paused, linux

ROOT, WORKER = ProcessKey(10, 100), ProcessKey(11, 101)
PAUSE = Pause(ROOT, "train.py", "asked for", Paused((ROOT, WORKER), "sigstop", 5.0))
INTENT = Pause(ROOT, "train.py", "why", intended=(ROOT, WORKER))


def states(**found):
    """A function from key to state; None for a process that is gone."""
    return lambda key: found.get(f"p{key.pid}")


class Standing:
    """Pauses whose processes are in the states that the test sets."""

    def __init__(self, folder, *made: Pause) -> None:
        self._states = {}
        self.pauses = standing_pauses(folder, lambda key: self._states.get(f"p{key.pid}"))
        for pause in made:
            self.pauses.add(pause)

    def ended(self, **found):
        """Pauses that have ended in these states."""
        self._states = found
        return self.pauses.remove_ended()


def test_a_pause_that_stands_is_remembered_as_it_was(tmp_path):
    """The record keeps every process, the method and the reason."""
    file.write(str(tmp_path), file.encode_file("boot", [PAUSE]))
    where = str(tmp_path), str(tmp_path / "none")

    assert (PAUSE,) == file.read(where, "boot")
    assert file.read(where, "other") is None, "a pause does not outlive the boot"
    assert PAUSE == still_paused(PAUSE, states(p10="T", p11="T"))


@pytest.mark.parametrize(
    ("stored", "now"),
    [
        (PAUSE, states()),
        (PAUSE, states(p10="S", p11="R")),
        (INTENT, states(p10="S", p11="S")),
        (INTENT, states(p10="D")),
    ],
)
def test_a_pause_that_does_not_stand_is_forgotten(stored, now):
    """The process is gone or runs again."""
    assert still_paused(stored, now) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"pauses": [{}]},
        {"pauses": [{"task": "x", "name": "a", "reason": ""}]},
        {"pauses": [{"task": {"pid": 1}, "name": "a", "reason": ""}]},
        {"pauses": {"a": 5}},
        {"mono_ns": None},
    ],
)
def test_a_copy_of_nonsense_is_not_believed(tmp_path, damage):
    """Any content of the file raises an error that says it cannot be read."""
    value = json.loads(file.encode_file("boot", [PAUSE]))
    (tmp_path / file.FILE).write_text(json.dumps({**value, **damage}))

    with pytest.raises(WatchdogError, match="cannot be read"):
        file.read((str(tmp_path), str(tmp_path / "none")), "boot")


def test_a_pause_cut_short_is_known_by_what_it_stopped():
    """The daemon was killed between two signals: the next one may resume what is stopped."""
    found = still_paused(INTENT, states(p10="T", p11="S"))
    assert (ROOT,) == found.paused.keys


@pytest.mark.parametrize(("pause", "freed"), [(INTENT, [10]), (PAUSE, [])])
def test_a_freeze_cut_short_is_undone_before_anything_is_resumed(monkeypatch, pause, freed):
    """In a frozen group (cgroup v1) not even SIGKILL ends a process."""
    thawed = []
    monkeypatch.setattr(
        linux, "find_freezer", lambda pid, _: SimpleNamespace(thaw=lambda: thawed.append(pid))
    )

    file.thaw_unfinished(pause)

    assert freed == thawed


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file takes root")
def test_a_copy_of_another_user_names_nobody_to_resume(tmp_path):
    """It could name any process of this user."""
    file.write(str(tmp_path), file.encode_file("boot", [PAUSE]))
    os.chown(tmp_path / file.FILE, 65534, 65534)

    with pytest.raises(WatchdogError, match="not a file of this user alone"):
        file.read((str(tmp_path), str(tmp_path / "none")), "boot")


def test_a_process_that_waits_for_the_disk_is_still_paused(tmp_path):
    """It stops when the disk answers; the pause is kept until then."""
    held = Standing(tmp_path, PAUSE)

    assert [] == held.ended(p10="D", p11="S")
    assert [] == held.ended(p10="T", p11="T")
    assert [PAUSE] == held.ended(p10="D", p11="S")
    assert held.pauses.get(ROOT) is None


def test_what_had_stopped_and_was_frozen_then_is_still_paused(tmp_path):
    """A guard's group in cgroup v1: all of it seems to wait in the kernel."""
    held = Standing(tmp_path, PAUSE)

    assert [] == held.ended(p10="T", p11="T")
    assert [] == held.ended(p10="D", p11="D")
    assert [PAUSE] == held.ended(p10="S", p11="D")


def test_a_worker_alone_that_is_stopped_keeps_the_pause(tmp_path):
    """The user resumed the root by hand: watchdog may still resume the rest."""
    held = Standing(tmp_path, PAUSE)

    assert [] == held.ended(p10="S", p11="T")
    assert PAUSE == held.pauses.get(ROOT)


def test_a_second_pause_adds_what_it_stopped(tmp_path):
    """Workers that appeared later are resumed with the others."""
    held = Standing(tmp_path, PAUSE)
    late = ProcessKey(12, 102)

    held.pauses.add(Pause(ROOT, "train.py", "again", Paused((late,), "sigstop", 9.0)))

    assert (ROOT, WORKER, late) == held.pauses.get(ROOT).paused.keys
    assert "asked for" == held.pauses.get(ROOT).reason


TASK = Task(ROOT, "train.py", TaskKind.SCRIPT, 0, (), 0, None, 0.0, None)
CHILD = ProcessKey(12, 102)
FAMILY = [(ROOT, False), (WORKER, True), (CHILD, False)]


def intended(folder, *before: Pause) -> Pause:
    """The record that is written before the first signal of a pause."""
    held = Standing(folder, *before)
    assert held.pauses.record_intent(TASK, FAMILY, "why", 1.0)
    (found,) = file.read((str(folder / "run"), str(folder / "none")), "boot")
    return found


def test_a_pause_cut_short_wakes_whom_it_stopped_and_no_other(tmp_path):
    """A child that is not Python is included; a process that was stopped before is not."""
    stored = intended(tmp_path)

    found = still_paused(stored, states(p10="T", p11="T", p12="T"))

    assert (ROOT, CHILD) == found.paused.keys


def test_a_second_pause_cut_short_forgets_nothing_of_the_first(tmp_path):
    """The intent keeps the processes of the first pause, and adds those found stopped."""
    stored = intended(tmp_path, PAUSE)

    found = still_paused(stored, states(p10="S", p11="T", p12="T"))

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
    """A frozen process (cgroup v2) stops only after the freeze: it was not resumed."""
    sample = ProcessSample(ROOT, 1, state, 0, None, 0, None, 0.0)
    other = replace(TASK, key=WORKER, members=(replace(sample, key=WORKER, state="S"),))

    found = mark_stopping(
        (replace(TASK, members=(sample,)), other), {ROOT} if held else set(), lambda _: stopping
    )

    assert shown == found[0].members[0].state
    assert other is found[1]


def test_a_debugger_ends_no_pause(tmp_path):
    """In state t the task stays paused by watchdog, now and after a restart."""
    held = Standing(tmp_path, PAUSE)

    assert [] == held.ended(p10="t", p11="t")
    assert PAUSE == still_paused(PAUSE, states(p10="t", p11="t"))
