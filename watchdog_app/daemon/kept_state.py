"""What the next daemon is to know, kept in the journal under a key each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.history.journal import Journal
from watchdog_app.history.writer import JournalWriter

_ENGINE, _KERNELS = "engine", "kernels"
_KEPT_S = 1200.0  # a state is of use to the next daemon for an hour


class KeptState:
    """
    Keeps the state of the engine, the names and restarts of kernels, and what others `put`.

    Args:
        observer: has the engine and the kernels.
        journal: of the daemon.
        boot: of this start of the machine: pids and monotonic times of an earlier one say nothing.
        log: of the daemon.
    """

    def __init__(self, observer: Observer, journal: JournalWriter, boot: str, log: Log) -> None:
        self._observer = observer
        self._journal = journal
        self._boot = boot
        self._log = log
        self._engine: dict[str, Any] | None = None  # as it was written down last
        self._engine_mono_s = 0.0
        self._kernels = 0  # the revision that was written down last

    def put(self, key: str, **data: Any) -> None:
        """Write a state down; it replaces the one of this key."""
        state = {"boot": self._boot, **data}
        self._journal.submit(partial(Journal.put_state, key=key, data=state))

    def take(
        self,
        journal: Journal | None,
        key: str,
        load: Callable[[Mapping[str, Any], bool], object],
    ) -> None:
        """
        Take over what an earlier daemon kept.

        Args:
            journal: as that daemon left it; None: it cannot be read.
            key: of the state.
            load: gets it, and whether it is of this boot. It may raise anything.
        """
        if journal is None:
            return
        try:
            state = journal.state(key)
            if state is not None:
                load(state, state.get("boot") == self._boot)
        except Exception as error:  # what is on the disk may be anything
            self._log.error("what was known before is lost", of=key, error=repr(error))

    def recover(self, journal: Journal | None) -> None:
        """Take over what an earlier daemon knew of the engine and of kernels."""

        def engine(state: Mapping[str, Any], same_boot: bool) -> None:
            if same_boot:
                self._observer.load(state.get("dump"), self._log)

        def kernels(state: Mapping[str, Any], same_boot: bool) -> None:
            if same_boot:
                self._observer.kernels.load(state.get("kernels"))

        self.take(journal, _ENGINE, engine)
        self.take(journal, _KERNELS, kernels)

    def keep_engine(self, *, if_new: bool = False) -> None:
        """
        Write down what the engine knows.

        Args:
            if_new: not what was written some minutes ago and is the same but for the clocks.
        """
        dump = self._observer.ask(lambda engine: engine.dump())
        if dump is None:
            return
        known = {**dump, "mono_s": None, "unix_s": None}
        now = time.monotonic()
        if if_new and known == self._engine and now - self._engine_mono_s < _KEPT_S:
            return
        self._engine, self._engine_mono_s = known, now
        self.put(_ENGINE, dump=dump)

    def keep_kernels(self) -> None:
        """Write down what is new of kernels. At every look: mostly nothing is."""
        kernels = self._observer.kernels
        if kernels.revision != self._kernels:
            self._kernels = kernels.revision
            self.put(_KERNELS, kernels=kernels.dump())
