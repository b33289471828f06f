"""
The life of one tick: look, decide, measure again, write down, act, journal; and when the next is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.decisions import Decision, DecisionKind
from watchdog_app.core.model.machine import Fault, ProcessKey, Task
from watchdog_app.core.model.settings import WatchSettings
from watchdog_app.core.policy import cadence
from watchdog_app.daemon.clocks import Clocks
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.exit_monitor import Exit
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.loop_lag import SOURCE as LATE
from watchdog_app.daemon.loop_lag import LoopLag
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pause_store import PauseStore
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.recorder import Recorder
from watchdog_app.daemon.status import Look
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter

_BUSY_SHARE = 0.25  # looking may take this share of a core, however short the interval
_DEATHS_DURABLE_S = 0.1  # waited for a disk by all deaths of one turn together
_KEPT_S = 1200.0  # a state is of use to the next daemon for an hour


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
        pause_store: PauseStore,
        faults: Faults,
        log: Log,
        followed: Callable[[], bool],
        overslept_s: Callable[[], float],
    ) -> None:
        """
        Args:
            followed: whether somebody wants to see each look.
            overslept_s: by how much the loop's sleeps have outlasted their ends, in all.
        """
        self.settings = settings
        self.look: Look | None = None
        self.interval_s = settings.interval_s
        self.next_look_mono_s = 0.0
        self._began_mono_s = 0.0  # the latest look
        self._followed = followed
        self._boot = boot
        self._observer = observer
        self._journal = journal
        self._pauses = pauses
        self._pause_store = pause_store
        self._faults = faults
        self._log = log
        self._recorder = Recorder(boot)
        self.loop_lag = LoopLag(overslept_s)
        self._clocks = Clocks()
        self._told_late: Fault | None = None
        self._kept: dict[str, Any] | None = None  # of the engine, as it was written down last
        self._kept_mono_s = 0.0
        self._due_mono_s: float | None = None  # when the next look should begin; None: the first

    @property
    def tasks(self) -> Sequence[Task]:
        """Those of the latest look."""
        return self.look.tasks if self.look is not None else ()

    def group_of(self, key: ProcessKey) -> str | None:
        """Folder of the memory group of a process, by the latest look; None: not known."""
        info = None if self.look is None else self.look.snapshot.infos.get(key)
        return None if info is None else info.cgroup

    @property
    def hurries(self) -> bool:
        """Whether it looks more often than usual, since something nears its end."""
        return self.interval_s < self.settings.interval_s

    def tick(
        self, executor: Executor, follow: Callable[[Look], None], publish: Callable[[float], None]
    ) -> None:
        """One look and all that follows from it."""
        began = self._began_mono_s = time.monotonic()
        if self._due_mono_s is not None:
            self.loop_lag.begins(min(self._due_mono_s, began), began, self.interval_s)
        spent_s = time.thread_time()
        self._heed_clocks()
        before, look = self.look, self._observer.look()
        if look is not None:
            self.look = look
            self._faults.guard("deaths", partial(follow, look))
            self._faults.guard("decisions", partial(self._decide, look, executor))
            self._faults.guard("announcements", executor.considered)
            self._faults.guard("journal", partial(self._record, look))
            self._faults.guard("pauses", self._pause_store.review)
            self._faults.guard("status", partial(publish, began))
        # What it computed, not how long it took: without a processor it must not look less often.
        took_s = time.thread_time() - spent_s
        fastest_s = max(self.settings.fast_interval_s, took_s / _BUSY_SHARE)
        self.interval_s = max(fastest_s, self._wanted_s(look, before))
        # From the beginning of this look, so that the rate holds whatever a look takes.
        self._due_mono_s = self.next_look_mono_s = began + self.interval_s
        self._tell_lateness(began)

    def _wanted_s(self, look: Look | None, before: Look | None) -> float:
        """Seconds to the next look, as the policy and people want it."""
        usual_s = self.settings.interval_s
        if look is None:
            return usual_s
        if self._pauses.all() or self._followed():
            return min(usual_s, look.result.next_look_s)
        earlier = () if before is None else before.readings
        return cadence.interval_s(
            look.result,
            look.snapshot,
            look.readings,
            before=earlier,
            agents=self._observer.agents(),
            usual_s=usual_s,
        )

    @property
    def fresh(self) -> bool:
        """Whether the latest look shows the machine as it is."""
        return time.monotonic() - self._began_mono_s < self.settings.interval_s

    def _tell_lateness(self, began: float) -> None:
        late = self.loop_lag.fault(began)
        if late is not self._told_late:
            self._told_late = late
            self._faults.clear(LATE)
            if late is not None:
                self._faults.put(late.source, late.message, late.remedy)

    def _heed_clocks(self) -> None:
        slept_s, set_s = self._clocks.look()
        if slept_s:
            self._observer.ask(lambda engine: engine.reset_trends())
            self._note(f"the machine slept for {format_duration(slept_s)}")
        if set_s:
            way = "forward" if set_s > 0 else "back"
            self._note(f"the clock was set {way} by {format_duration(abs(set_s))}")

    def _note(self, what: str) -> None:
        self._log.info(what)
        self._journal.add(Entry(time.time(), "daemon", {"what": what, "pid": os.getpid()}))

    def look_soon(self) -> None:
        """Do not wait for the next tick, but do not look more often than allowed."""
        last = self.look.snapshot.mono_s if self.look is not None else float("-inf")
        self.next_look_mono_s = min(self.next_look_mono_s, last + self.settings.fast_interval_s)
        self._due_now()

    def look_now(self) -> None:
        """
        Do not wait at all: a save has ended and the next may be due.

        At the very end every step counts, and a step can be shorter than `fast_interval_s`. How
        often this happens is bounded by how often a training can save.
        """
        self.next_look_mono_s = 0.0
        self._due_now()

    def close(self) -> None:
        """Give back what is held open."""
        self.loop_lag.close()

    def _due_now(self) -> None:
        # Asked for in between: not late by the time that nobody had asked.
        if self._due_mono_s is not None:
            asked = max(self.next_look_mono_s, time.monotonic())
            self._due_mono_s = min(self._due_mono_s, asked)

    def write_exits(self, exits: Sequence[Exit]) -> None:
        """Write down who has ended; deaths are on the disk when this returns, unless it is slow."""
        if not exits:
            return
        self._journal.add(*(each.entry for each in exits if each.entry.kind == "end"))
        deaths = [each.entry for each in exits if each.entry.kind != "end"]
        for entry in deaths:
            self._log.warning(str(entry.data["text"]))
        if deaths:
            self._journal.durable(deaths, _DEATHS_DURABLE_S)
        self.look_soon()

    def tell_exit(self, ended: Exit, executor: Executor) -> Decision | None:
        """Notify of a death where the engine says so: the notification. Never of a plain end."""
        look, task = self.look, ended.task
        if ended.entry.kind == "end" or task is None or look is None:
            return None
        decisions: Sequence[Decision] | None = self._observer.ask(
            lambda engine: engine.task_ended(task, ended.view, ended.cause, look.snapshot)
        )
        if not decisions:
            return None
        executor.carry_out(decisions, {task.key: task})
        return decisions[0]

    def recover(self, journal: Journal | None) -> None:
        """Take over what an earlier daemon left: pauses that stand, and what the engine knew."""
        self._pause_store.recover()
        if journal is None:
            return
        try:
            state = journal.state("engine")
        except Exception as error:
            self._log.error("the journal could not be read", error=repr(error))
            return
        if state is not None and state.get("boot") == self._boot:
            self._observer.load(state.get("dump"), self._log)

    def keep_state(self, *, if_new: bool = False) -> None:
        """
        Write down what the next daemon is to know.

        Args:
            if_new: not what was written some minutes ago and is the same but for the clocks.
        """
        dump = self._observer.ask(lambda engine: engine.dump())
        if dump is not None:
            known = {**dump, "mono_s": None, "unix_s": None}
            now = time.monotonic()
            if if_new and known == self._kept and now - self._kept_mono_s < _KEPT_S:
                return
            self._kept, self._kept_mono_s = known, now
            state = {"boot": self._boot, "dump": dump}
            self._journal.submit(partial(Journal.put_state, key="engine", data=state))

    def _decide(self, look: Look, executor: Executor) -> None:
        if not look.result.decisions:
            return
        true, false, tasks = self._observer.still_holds(look.result.decisions)
        before = {task.key: task for task in look.tasks}
        for decision in false:
            task = before.get(decision.task) if decision.task else None
            executor.skip(decision, task, "Measured again, and no longer true.")
        if true:
            executor.carry_out(true, tasks if tasks is not None else before)
        if any(decision.kind is DecisionKind.NOTIFY for decision in true):
            self.keep_state()  # a daemon that is killed now: the next one is not to tell it again

    def _record(self, look: Look) -> None:
        at_rest = look.result.next_look_s >= self.settings.interval_s
        self._journal.add_series(self._recorder.points(look), at_rest)
        entries = self._recorder.incidents(look)
        if entries:
            self._journal.add(*entries)
