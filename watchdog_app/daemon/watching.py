"""
The life of one tick: look, decide, measure again, write down, act, journal; and when the next is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from watchdog_app.core.outlook import DecisionKind
from watchdog_app.core.records import Task
from watchdog_app.core.settings import WatchSettings
from watchdog_app.daemon import pauses as pausing
from watchdog_app.daemon.acts import Acts
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.journal import Journal
from watchdog_app.daemon.journal_writer import JournalWriter
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.obituaries import Death, Obituaries
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.recorder import Recorder
from watchdog_app.daemon.status import Look

_BUSY_SHARE = 0.25  # looking may take this share of the time, however short the interval
_DEATH_DURABLE_S = 0.2


class Watching:
    """What happens at each look. `look` is the latest one, None before the first."""

    def __init__(
        self,
        settings: WatchSettings,
        *,
        boot: str,
        observer: Observer,
        journal: JournalWriter,
        pauses: Pauses,
        faults: Faults,
        log: Log,
    ) -> None:
        self.settings = settings
        self.look: Look | None = None
        self.interval_s = settings.interval_s
        self.next_look_mono_s = 0.0
        self._boot = boot
        self._observer = observer
        self._journal = journal
        self._pauses = pauses
        self._faults = faults
        self._log = log
        self._recorder = Recorder(boot)
        self._recovered = False

    @property
    def tasks(self) -> Sequence[Task]:
        """Those of the latest look."""
        return self.look.tasks if self.look is not None else ()

    def tick(self, acts: Acts, obituaries: Obituaries, publish: Callable[[float], None]) -> None:
        """One look and all that follows from it."""
        began = time.monotonic()
        look = self._observer.look()
        if look is not None:
            self.look = look
            self._faults.guard("deaths", partial(obituaries.take, look))
            self._faults.guard("decisions", partial(self._decide, look, acts))
            self._faults.guard("journal", partial(self._record, look))
            self._faults.guard("pauses", self._review_pauses)
            self._faults.guard("status", partial(publish, began))
        slow_s, fast_s = self.settings.interval_s, self.settings.fast_interval_s
        wanted_s = look.result.next_look_s if look is not None else slow_s
        took_s = time.monotonic() - began
        self.interval_s = max(fast_s, min(slow_s, wanted_s), took_s / _BUSY_SHARE)
        # From the beginning of this look, so that the rate holds whatever a look takes.
        self.next_look_mono_s = began + self.interval_s

    def look_soon(self) -> None:
        """Do not wait for the next tick, but do not look more often than allowed."""
        last = self.look.snapshot.mono_s if self.look is not None else float("-inf")
        self.next_look_mono_s = min(self.next_look_mono_s, last + self.settings.fast_interval_s)

    def look_now(self) -> None:
        """
        Do not wait at all: a save has ended and the next may be due.

        At the very end every step counts, and a step can be shorter than `fast_interval_s`. How
        often this happens is bounded by how often a training can save.
        """
        self.next_look_mono_s = 0.0

    def died(self, death: Death, acts: Acts) -> None:
        """Write a death down and tell it."""
        self._log.warning(str(death.entry.data["text"]))
        self._journal.durable([death.entry], _DEATH_DURABLE_S)
        self.look_soon()
        look, task = self.look, death.task
        if task is None or look is None:
            return
        decisions = self._observer.ask(
            lambda engine: engine.death(task, death.view, death.cause, look.snapshot)
        )
        if decisions:
            acts.carry_out(decisions, {task.key: task})

    def recover(self, journal: Journal | None) -> None:
        """Take over what an earlier daemon left: pauses that stand, and what the engine knew."""
        if journal is None:
            return
        try:
            stored, state = journal.pauses(), journal.state("engine")
        except Exception as error:
            self._log.error("the journal could not be read", error=repr(error))
            return
        self._take_over(stored)
        if state is not None and state.get("boot") == self._boot:
            self._observer.load(state.get("dump"), self._log)

    def journal_reopened(self) -> None:
        """What is paused must be in the journal that can be written now, and what it says here."""
        if not self._recovered:
            self._journal.submit(Journal.pauses, self._recover_late)
        for pause in self._pauses.all():
            ident, data = pause.ident(self._boot), pausing.outcome(pause, self._boot)
            self._journal.submit(partial(Journal.put_pause, ident=ident, data=data))
        self.keep_state()

    def _recover_late(self, stored: dict[str, dict[str, Any]] | None, _: Exception | None) -> None:
        if stored is not None:
            known = {pause.ident(self._boot) for pause in self._pauses.all()}
            self._take_over({key: data for key, data in stored.items() if key not in known})

    def _take_over(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        self._recovered = True
        for ident, data in stored.items():
            pausing.thaw_unfinished(data, self._boot)
            pause = pausing.remembered(data, self._boot, self._observer.state_of)
            if pause is None:
                self._journal.submit(partial(Journal.drop_pause, ident=ident))
                continue
            self._pauses.add(pause)
            self._log.info("still paused since before", task=pause.name, pid=pause.task.pid)

    def keep_state(self) -> None:
        """Write down what the next daemon is to know."""
        dump = self._observer.ask(lambda engine: engine.dump())
        if dump is not None:
            state = {"boot": self._boot, "dump": dump}
            self._journal.submit(partial(Journal.put_state, key="engine", data=state))

    def _decide(self, look: Look, acts: Acts) -> None:
        if not look.result.decisions:
            return
        true, false, tasks = self._observer.still_true(look.result.decisions)
        before = {task.key: task for task in look.tasks}
        for decision in false:
            task = before.get(decision.task) if decision.task else None
            acts.skip(decision, task, "Measured again, and no longer true.")
        if true:
            acts.carry_out(true, tasks if tasks is not None else before)
        if any(decision.kind is DecisionKind.NOTIFY for decision in true):
            self.keep_state()  # a daemon that is killed now: the next one is not to tell it again

    def _record(self, look: Look) -> None:
        self._journal.add_series(self._recorder.points(look))
        entries = self._recorder.incidents(look)
        if entries:
            self._journal.add(*entries)

    def _review_pauses(self) -> None:
        for pause in self._pauses.ended(self._observer.state_of):
            self._log.info("a paused task runs again or is gone", pid=pause.task.pid)
            self._journal.submit(partial(Journal.drop_pause, ident=pause.ident(self._boot)))
