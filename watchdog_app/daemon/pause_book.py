"""
What we paused, written down where the next daemon, or a person without one, finds it.

Twice: in the ledger beside the socket, at once, and in the journal when the disk takes it. No
process is stopped before one of both has it; where neither can be written it is stopped all the
same, since it would die otherwise, and that is said.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from watchdog_app.daemon import pause_ledger
from watchdog_app.daemon import pauses as pausing
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.journal import Journal
from watchdog_app.daemon.journal_writer import JournalWriter
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.pauses import Pause, Pauses, StateOf

_SOURCE = "pauses"


class PauseBook:
    """
    Keeps `pauses` over the end of the daemon.

    Args:
        folder: of the socket.
        boot: of this start of the machine.
        state_of: one letter as in /proc; None when that process is gone.
    """

    def __init__(
        self,
        folder: str,
        boot: str,
        *,
        journal: JournalWriter,
        pauses: Pauses,
        faults: Faults,
        state_of: StateOf,
        log: Log,
    ) -> None:
        self.adopted: list[Pause] = []  # of an earlier daemon; who tells of them clears it
        self._folder = folder
        self._boot = boot
        self._journal = journal
        self._pauses = pauses
        self._faults = faults
        self._state_of = state_of
        self._log = log
        self._held: dict[str, dict[str, Any]] = {}  # what the ledger says, or should
        self._behind = False  # the ledger does not say it
        self._found: pause_ledger.Ledger | None = None  # as the last daemon left it
        self._journal_read = False

    def intend(self, ident: str, data: Mapping[str, Any], timeout_s: float) -> bool:
        """
        Write down that a task is about to be stopped; False: nothing could be written in time.

        Args:
            ident: from `pauses.ident`.
            data: from `pauses.intent`.
            timeout_s: to wait for the journal, where the ledger cannot be written.
        """
        written = self._put(ident, data)
        job = partial(Journal.put_pause, ident=ident, data=self._held[ident])
        if written:
            self._journal.submit(job)
            return True
        return self._journal.settle(job, timeout_s)

    def note(self, pause: Pause) -> None:
        """It stands."""
        ident = pause.ident(self._boot)
        self._put(ident, pausing.outcome(pause, self._boot))
        self._journal.submit(partial(Journal.put_pause, ident=ident, data=self._held[ident]))

    def forget(self, ident: str) -> None:
        """It runs again, is gone, or was not stopped after all."""
        if self._held.pop(ident, None) is not None or self._behind:
            self._write()
        self._journal.submit(partial(Journal.drop_pause, ident=ident))

    def recover(self, journal: Journal | None) -> None:
        """
        Take over the pauses that an earlier daemon left standing.

        Args:
            journal: None where it cannot be read: then what it alone knows follows later.
        """
        self._found = pause_ledger.read(self._folder, self._boot)
        stored: Mapping[str, Mapping[str, Any]] = {}
        if journal is not None:
            try:
                stored = journal.pauses()
                self._journal_read = True
            except Exception as error:  # what is on the disk may be anything
                self._log.error("the journal could not be read", error=repr(error))
        self._take_over(pause_ledger.merged(self._found, stored))
        if self._held.keys() != stored.keys():  # a new journal in the place of a damaged one, too
            self._write_all()

    def journal_reopened(self) -> None:
        """It works again: it is to say what is paused, and nothing else."""
        if self._journal_read:
            self._write_all()
        else:
            self._journal.submit(Journal.pauses, self._recover_late)

    def review(self) -> None:
        """Forget those that somebody else ended, or whose processes are gone."""
        for pause in self._pauses.ended(self._state_of):
            self._log.info("a paused task runs again or is gone", pid=pause.task.pid)
            self.forget(pause.ident(self._boot))

    def keep(self) -> None:
        """Write the ledger again where that failed, or where somebody has cleaned the folder."""
        if self._behind or (self._held and pause_ledger.gone(self._folder)):
            self._write()

    def _recover_late(self, stored: dict[str, dict[str, Any]] | None, _: Exception | None) -> None:
        if stored is not None:
            self._journal_read = True
            later = pause_ledger.merged(self._found, stored)
            self._take_over({key: each for key, each in later.items() if key not in self._held})
            self._write_all()

    def _take_over(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        for ident, data in found.items():
            pausing.thaw_unfinished(data, self._boot)
            pause = pausing.remembered(data, self._boot, self._state_of)
            if pause is None:
                continue
            self._pauses.add(pause)
            self._held[ident] = self._dated(pausing.outcome(pause, self._boot))
            self.adopted.append(pause)
            self._log.info("still paused since before", task=pause.name, pid=pause.task.pid)
        if self._held or self._found is not None:
            self._write()

    def _put(self, ident: str, data: Mapping[str, Any]) -> bool:
        self._held[ident] = self._dated(data)
        return self._write()

    @staticmethod
    def _dated(data: Mapping[str, Any]) -> dict[str, Any]:
        return {**data, pause_ledger.WRITTEN: time.monotonic_ns()}

    def _write(self) -> bool:
        try:
            pause_ledger.write(self._folder, self._boot, self._held)
        except OSError as error:
            self._behind = True
            self._faults.put(
                _SOURCE,
                f"What is paused cannot be written to {self._folder}: {error.strerror or error}. "
                "The journal holds it as well, where that can be written.",
                "Make room there. Should the daemon end before, stopped processes go on with: "
                "kill -CONT PID",
            )
            return False
        self._behind = False
        self._faults.clear(_SOURCE)
        return True

    def _write_all(self) -> None:
        self._journal.submit(partial(Journal.set_pauses, pauses=dict(self._held)))
