"""Those that ended while no daemon ran, as the next one finds them in the journal."""

from __future__ import annotations

import contextlib

from watchdog_app.daemon.log import Log
from watchdog_app.daemon.missed_exits import MissedExits
from watchdog_app.daemon.recorder import KeptState
from watchdog_app.history.journal import Journal


def test_one_that_is_damaged_in_the_journal_hides_no_other(tmp_path, monkeypatch):
    """Before it and behind it: each that is gone is written down."""
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path))
    alive = [
        {"pid": 6, "start_time": 3, "name": "first.py"},
        {"pid": 7, "start_time": 1, "name": "a.py", "rescue": {"path": "/r"}},
        {"pid": "x"},
        {"pid": 8, "start_time": 2, "name": "b.py"},
        {"pid": 9, "start_time": 2, "name": "lives.py"},
    ]
    missed = MissedExits(KeptState(None, None, "boot", Log(False)), lambda key: key.pid == 9)
    with contextlib.closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        journal.put_state("alive", {"boot": "boot", "unix_s": 1.0, "tasks": alive})

        found = missed.found(journal)

    assert [6, 8] == [entry.pid for entry in found]
    assert "while no watchdog ran" in found[0].data["reason"]
    assert [] == missed.found(None)
