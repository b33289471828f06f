"""Tasks that ended while no daemon ran, as the next daemon finds them in the journal."""

from __future__ import annotations

import contextlib

import pytest

from watchdog_app.daemon.log import Log
from watchdog_app.daemon.missed_exits import MissedExits
from watchdog_app.daemon.recorder import StateStore
from watchdog_app.history.journal import Journal
from watchdog_app.machine.sensors.systemd_units import UnitQuery


class Units:
    """A systemd that answers when the test says so."""

    def __init__(self) -> None:
        self.questions: list[UnitQuery] = []

    def ask(self, group: str | None, pid: int, since_unix_s: float) -> UnitQuery:
        self.questions.append(UnitQuery(until_mono_s=100.0))
        return self.questions[-1]

    def collect(self) -> None:
        pass


def found(tmp_path, monkeypatch, *tasks: dict) -> tuple[MissedExits, Units]:
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path))
    units = Units()
    state_store = StateStore(None, None, "boot", Log(False))
    missed = MissedExits(state_store, lambda key: False, units)
    with contextlib.closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        state = {"boot": "boot", "unix_s": 1.0, "host_kills": None, "tasks": list(tasks)}
        journal.save_state("alive", state)
        missed.find(journal)
    return missed, units


def test_each_is_given_once_and_an_answer_is_waited_for_no_longer_than_its_time(
    tmp_path, monkeypatch
):
    """A task that systemd knows comes at once, the other after its timeout."""
    missed, units = found(
        tmp_path,
        monkeypatch,
        {"pid": 7, "start_time": 1, "name": "a.py"},
        {"pid": 8, "start_time": 2, "name": "b.py"},
    )
    assert [] == missed.ended(1.0)
    assert 100.0 == missed.next_deadline_mono_s()

    units.questions[1].answered = True

    assert [8] == [entry.pid for entry in missed.ended(2.0)]
    assert [7] == [entry.pid for entry in missed.ended(100.0)]
    assert [] == missed.ended(200.0)
    assert missed.next_deadline_mono_s() is None


def test_one_that_is_damaged_in_the_journal_hides_no_other(tmp_path, monkeypatch):
    """It raises once: the daemon reports it, and continues with the others."""
    missed, _ = found(
        tmp_path,
        monkeypatch,
        {"pid": 7, "start_time": 1, "name": "a.py", "rescue": {"path": "/r"}},
        {"pid": 8, "start_time": 2, "name": "b.py"},
    )

    with pytest.raises(ValueError, match="RescueRecord"):
        missed.ended(100.0)

    assert [8] == [entry.pid for entry in missed.ended(100.0)]
    assert [] == missed.ended(100.0)
