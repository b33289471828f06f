"""Notices about a kernel that died and was restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.decisions import Decision
from watchdog_app.core.model.exits import Cause, CauseKind
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    Task,
    TaskKind,
)
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import KernelRegistry, group_processes
from watchdog_app.core.policy.engine import Engine
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.recorder import StateStore
from watchdog_app.daemon.restarts import Restarts
from watchdog_app.history.journal import Entry, Journal

HOST = HostMemory(8, 4, 0, 0, None, None, None, None, None)


def kernel(pid: int, notebook: str | None = None) -> Task:
    """A task of the kernel k1 in this process."""
    key = ProcessKey(pid, pid * 10)
    kind = TaskKind.KERNEL if notebook is None else TaskKind.NOTEBOOK
    name = f"p{pid}" if notebook is None else notebook.rpartition("/")[2]
    sample = ProcessSample(key, 1, "S", 1000, None, None, None, 0.0)
    info = ProcessInfo(
        key, 1, 1000, None, None, (), None, kind, name, notebook=notebook, kernel_id="k1"
    )
    return group_processes([sample], {key: info})[0]


class Told:
    """The results of a `Restarts` object, collected."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.notifications: list[tuple[Decision, Task]] = []
        self.moved: list[tuple[int, int]] = []
        self.kernels = KernelRegistry()
        self.restarts = Restarts(self.kernels)

    def take(self, tasks: list[Task]) -> None:
        """Take one more sample."""
        for restart in self.restarts.update(tasks):
            self.entries.append(restart.entry)
            self.moved.append((restart.before.pid, restart.now.pid))
            self._tell(restart.notified)

    def died(self, *words) -> None:
        """Report the end of a task."""
        self._tell(self.restarts.task_ended(*words))

    def _tell(self, told) -> None:
        if told is not None:
            self.notifications.append(told)


@pytest.fixture
def first() -> Task:
    """A notebook's kernel."""
    return kernel(10, "/p/a\x1b.ipynb")


def death_of(task: Task) -> Decision:
    """The notice of its death, with a rescue."""
    cause = Cause(CauseKind.GROUP_LIMIT, "killed by the kernel: its group was full")
    engine = Engine(Settings(), own_uid=0)
    (told,) = engine.task_ended(task, None, cause, Snapshot(5.0, 7e8, HOST, ()))
    return replace(told, evidence={**told.evidence, "path": "/p/rescues/r", "rescue_step": 41})


def test_restart_after_a_death_is_told_with_what_is_left(first: Task):
    """The second notice says that the kernel is empty, and where the rescue is."""
    told = Told()
    told.take([first])
    told.died(first, death_of(first))
    told.take([])

    told.take([kernel(11)])

    (decision, task), *more = told.notifications
    shown = notification(decision, task)
    assert [] == more
    assert ("restarted", "normal", 10) == (shown.topic, shown.urgency, shown.task)
    assert shown.title.startswith("Kernel restarted: ")
    assert "as process 11" in shown.body
    assert "a rescue of step 41 is in /p/rescues/r" in shown.body.lower()
    assert "\x1b" not in shown.title + shown.body
    assert [(10, 11)] == told.moved
    assert ("restart", 11) == (told.entries[0].kind, told.entries[0].pid)


def test_restart_before_the_cause_of_the_death_is_known_is_told_all_the_same(first: Task):
    """Jupyter restarts a kernel within seconds; the cause may be known a little later."""
    told = Told()
    told.take([first])
    told.take([kernel(11)])
    assert [] == told.notifications

    told.died(first, death_of(first), time.monotonic() - 3.0)

    ((decision, task),) = told.notifications
    assert ("restarted", first.key) == (notification(decision, task).topic, task.key)
    assert "as process 11" in decision.reason


@pytest.mark.parametrize("written_down", [True, False])
def test_restart_that_nobody_was_told_a_death_of_is_only_written_down(
    first: Task, *, written_down: bool
):
    """The user restarted it, or a rule suppresses notices."""
    told = Told()
    told.take([first])
    if written_down:
        told.died(first, None)
    told.died(None, None)

    told.take([kernel(11)])

    assert [] == told.notifications
    assert [10] == [entry.data["before"] for entry in told.entries]


def test_the_history_of_a_kernel_is_found_by_its_id(first: Task):
    """The journal has the names of notebooks, also of earlier processes."""
    told = Told()
    second = kernel(11)
    told.take([first])
    told.take([second])

    assert "p11" == told.kernels.journal_word("k1")
    assert ["11", "x", None] == [told.kernels.journal_word(one) for one in (" 11 ", "x", None)]


class Desk:
    """A journal writer that works at once."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.written = 0

    def submit(self, work: Callable[[Journal], object]) -> None:
        self.written += 1
        work(self.journal)


@pytest.mark.parametrize(("boot", "restarts"), [("b1", 1), ("b2", 0)])
def test_restart_while_no_daemon_runs_is_seen_by_the_next(
    first: Task, tmp_path: Path, boot: str, restarts: int
):
    """Unless the machine was rebooted, so that equal pids mean other processes."""
    journal = Journal(str(tmp_path), 1e6, 1 << 20)
    desk = Desk(journal)
    before, after = Told(), Told()
    memory = StateStore(
        SimpleNamespace(kernels=before.kernels, offered=set()), desk, "b1", Log(False)
    )
    before.take([first])
    for _ in range(3):
        memory.save_known()

    StateStore(
        SimpleNamespace(kernels=after.kernels, offered=set()), desk, boot, Log(False)
    ).recover(journal)
    after.take([kernel(11)])

    journal.close()
    assert 1 == desk.written
    assert restarts == len(after.entries)
    assert [(10, 11)][:restarts] == after.moved


@pytest.mark.parametrize("boot", ["b1", "b2"])
def test_an_offer_that_was_shown_is_never_made_again(tmp_path: Path, boot: str):
    """Also after a restart of the daemon or of the machine."""
    journal = Journal(str(tmp_path), 1e6, 1 << 20)
    desk = Desk(journal)
    seen, next_seen = (
        SimpleNamespace(kernels=Told().kernels, offered=set(), load=lambda *_: None) for _ in "12"
    )
    memory = StateStore(seen, desk, "b1", Log(False))
    memory.save_known()
    seen.offered.add("/venvs/tf")
    for _ in range(3):
        memory.save_known()

    StateStore(next_seen, desk, boot, Log(False)).recover(journal)

    journal.close()
    assert 1 == desk.written
    assert {"/venvs/tf"} == next_seen.offered
