"""What the next daemon is to know, kept in the journal: of the engine, and of kernels."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from watchdog_app.core.model.tasks import KernelRegistry
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.history.journal import Journal
from watchdog_app.history.writer import JournalWriter

_ENGINE, _KERNELS = "engine", "kernels"  # keys in the journal
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
            state = journal.state(_ENGINE)
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
        self._journal.submit(partial(Journal.put_state, key=_ENGINE, data=state))


class KernelState:
    """
    Keeps which process of a kernel came after which, and the names that agents gave.

    Args:
        boot: of this start of the machine: pids of an earlier one say nothing.
    """

    def __init__(self, kernels: KernelRegistry, boot: str, journal: JournalWriter) -> None:
        self._kernels = kernels
        self._boot = boot
        self._journal = journal
        self._kept = 0

    def recover(self, journal: Journal | None, log: Log) -> None:
        """Take over what an earlier daemon knew."""
        if journal is None:
            return
        try:
            state = journal.state(_KERNELS)
            if state is not None and state.get("boot") == self._boot:
                self._kernels.load(state.get("kernels"))
        except Exception as error:  # what is on the disk may be anything
            log.warning("restarts of kernels before now are not known", error=repr(error))

    def keep(self) -> None:
        """Write down what is new. At every look: mostly nothing is."""
        if self._kernels.revision == self._kept:
            return
        self._kept = self._kernels.revision
        state = {"boot": self._boot, "kernels": self._kernels.dump()}
        self._journal.submit(partial(Journal.put_state, key=_KERNELS, data=state))
