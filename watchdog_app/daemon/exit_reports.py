"""What follows from an end: the journal's entry, the engine's judgement, the notification."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from watchdog_app.core.model.decisions import Decision
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.exit_monitor import Exit
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.restarts import Restarts
from watchdog_app.history.writer import JournalWriter

_DURABLE_S = 0.1  # waited for a disk by all deaths of one turn


class ExitReports:
    """Writes each end down and tells people of it."""

    def __init__(
        self,
        *,
        observer: Observer,
        pace: Pace,
        executor: Executor,
        restarts: Restarts,
        journal: JournalWriter,
        faults: Faults,
        log: Log,
    ) -> None:
        self._observer = observer
        self._pace = pace
        self._executor = executor
        self._restarts = restarts
        self._journal = journal
        self._faults = faults
        self._log = log

    def report(self, exits: Sequence[Exit]) -> None:
        """Write down who has ended in this turn, then tell people where the engine says so."""
        if not exits:
            return
        self._journal.add(*(each.entry for each in exits if each.entry.kind == "end"))
        deaths = [each.entry for each in exits if each.entry.kind != "end"]
        for entry in deaths:
            self._log.warning(str(entry.data["text"]))
        if deaths:  # on the disk when this returns, unless it is slow
            self._journal.durable(deaths, _DURABLE_S)
        self._pace.look_soon()
        for each in exits:  # one that cannot be told keeps no other from being told
            self._faults.guard("exits", partial(self._tell, each))

    def _tell(self, ended: Exit) -> None:
        self._restarts.died(ended.task, self._notified(ended), ended.mono_s)

    def _notified(self, ended: Exit) -> Decision | None:
        """Return the notification's decision; None if people are not told."""
        look, task = self._observer.latest, ended.task
        if ended.entry.kind == "end" or task is None or look is None:
            return None
        decisions: Sequence[Decision] | None = self._observer.ask(
            lambda engine: engine.task_ended(task, ended.view, ended.cause, look.snapshot)
        )
        if not decisions:
            return None
        self._executor.carry_out(decisions, {task.key: task})
        return decisions[0]
