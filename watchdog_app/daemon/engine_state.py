"""What the engine knows: kept in the journal for the next daemon."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.history.journal import Journal
from watchdog_app.history.writer import JournalWriter

_KEPT_S = 1200.0  # a state is of use to the next daemon for an hour


class EngineState:
    """
    Keeps the state of the engine.

    Args:
        boot: of this start of the machine: monotonic times of an earlier one say nothing.
    """

    def __init__(self, observer: Observer, journal: JournalWriter, boot: str, log: Log) -> None:
        self._observer = observer
        self._journal = journal
        self._boot = boot
        self._log = log
        self._kept: dict[str, Any] | None = None  # as it was written down last
        self._kept_mono_s = 0.0

    def recover(self, journal: Journal | None) -> None:
        """Take over what an earlier daemon knew."""
        if journal is None:
            return
        try:
            state = journal.state("engine")
        except Exception as error:  # what is on the disk may be anything
            self._log.error("the journal could not be read", error=repr(error))
            return
        if state is not None and state.get("boot") == self._boot:
            self._observer.load(state.get("dump"), self._log)

    def keep(self, *, if_new: bool = False) -> None:
        """
        Write down what the next daemon is to know.

        Args:
            if_new: not what was written some minutes ago and is the same but for the clocks.
        """
        dump = self._observer.ask(lambda engine: engine.dump())
        if dump is None:
            return
        known = {**dump, "mono_s": None, "unix_s": None}
        now = time.monotonic()
        if if_new and known == self._kept and now - self._kept_mono_s < _KEPT_S:
            return
        self._kept, self._kept_mono_s = known, now
        state = {"boot": self._boot, "dump": dump}
        self._journal.submit(partial(Journal.put_state, key="engine", data=state))
