"""
What is known of kernels alone by having watched them: kept in the journal for the next daemon.
"""

from __future__ import annotations

from functools import partial

from watchdog_app.core.model.tasks import KernelRegistry
from watchdog_app.daemon.log import Log
from watchdog_app.history.journal import Journal
from watchdog_app.history.writer import JournalWriter

_STATE = "kernels"


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
            state = journal.state(_STATE)
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
        self._journal.submit(partial(Journal.put_state, key=_STATE, data=state))
