"""
The daemon as its clients see it: status, settings, explanation; reload and stop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from watchdog_app import __version__, config
from watchdog_app.base.errors import ConfigError, RequestError
from watchdog_app.base.own_process import OwnCost
from watchdog_app.core.model import status as records
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import KernelRegistry
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.notify.filter import NotificationFilter
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.rpc import RpcServer
from watchdog_app.daemon.status import Look, incident, status
from watchdog_app.daemon.status_limit import fit
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter

_PUBLISH_S = 0.95  # a status at most once a second


class Control:
    """
    What clients ask of the daemon as a whole.

    `stopping` is set by `stop`; `memory_fault` says why our memory is not locked, None: it is.
    """

    def __init__(
        self,
        settings: Settings,
        sources: config.Sources,
        config_path: str,
        *,
        observer: Observer,
        pace: Pace,
        agents: Agents,
        pauses: Pauses,
        dispatcher: Dispatcher,
        notification_filter: NotificationFilter,
        guards: Guards,
        kernels: KernelRegistry,
        boot: str,
        journal: JournalWriter,
        server: RpcServer,
        faults: Faults,
        log: Log,
    ) -> None:
        self.stopping = False
        self.memory_fault: str | None = None
        self.cost = OwnCost()
        self._settings = settings
        self._sources = sources
        self._config_path = config_path
        self._pace = pace
        self._observer = observer
        self._agents = agents
        self._pauses = pauses
        self._dispatcher = dispatcher
        self._notification_filter = notification_filter
        self._kernels = kernels
        self._boot = boot
        self._journal = journal
        self._server = server
        self._faults = faults
        self._log = log
        self.guards = guards
        self._host_name = os.uname().nodename if hasattr(os, "uname") else ""
        self._started_mono_s = time.monotonic()
        self._published_mono_s = float("-inf")

    def status(self) -> dict[str, Any]:
        """The status as clients read it."""
        faults = [*self._faults.all()]
        faults += [one for one in (self._journal.fault, self._dispatcher.fault) if one is not None]
        return status(
            self._observer.latest,
            daemon=self._daemon(),
            host_name=self._host_name,
            paused=[pause.task for pause in self._pauses.all()],
            guards=self.guards.shown(),
            faults=faults,
            now_unix_s=time.time(),
        ).to_json()

    def _daemon(self) -> records.Daemon:
        now_mono_s, quiet = time.monotonic(), self._notification_filter
        return records.Daemon(
            pid=os.getpid(),
            version=__version__,
            uptime_s=now_mono_s - self._started_mono_s,
            interval_s=self._pace.interval_s,
            rss_bytes=self.cost.rss_bytes(),
            cpu_percent=self.cost.cpu_percent,
            samples=self._observer.ticks,
            missed_samples=self._pace.loop_lag.missed,
            max_lag_s=self._pace.loop_lag.latest_s(now_mono_s),
            locked_memory=self.memory_fault is None,
            locked_memory_detail=self.memory_fault,
            notifications=records.Delivery.of(
                self._dispatcher,
                suppressed=quiet.suppressed,
                tray_connected=self._server.has_subscribers("notifications", "tray"),
                quiet_hours=quiet.hours(),
            ),
            protection=records.Protection(**quiet.protection),
            snoozed=tuple(records.Snooze(**each) for each in quiet.snoozed),
        )

    def publish(self, now_mono_s: float) -> None:
        """The status to whoever subscribed to it, unless they have one of a moment ago."""
        self._faults.guard("airbags", self.guards.look)
        due = now_mono_s - self._published_mono_s >= _PUBLISH_S
        if due and self._server.has_subscribers("status"):
            self._published_mono_s = now_mono_s
            self._server.publish("status", "status", self.status(), fit)

    def tasks(self) -> Sequence[Task]:
        """Those of the last look."""
        return self._observer.tasks()

    def explain(self, task: Task | None) -> dict[str, Any]:
        """Text and incidents, for one task or for all."""
        found = _explanation(self._observer.latest, task)
        if task is None:
            return {**found, "text": "\n\n".join([*self.guards.acting(), found["text"]])}
        text = found["text"]
        bag = self.guards.of(task.key)
        if bag is not None and bag.held:  # as the kernel has it, it sleeps in a page fault
            text = text.replace(": waiting for the disk.", ": held at the limit of its airbag.", 1)
        told = [text, self.guards.sentence(task.key), self._kernels.sentence(task.key)]
        return {**found, "text": "\n\n".join(part for part in told if part)}

    def follow(self, before: ProcessKey, now: ProcessKey) -> None:
        """A kernel goes on in another process: what people asked for it goes with it."""
        if self._notification_filter.follow(before.pid, now.pid):
            self._keep_quiet()

    def settings(self) -> list[dict[str, Any]]:
        """Every setting with its source."""
        return config.describe(self._settings, self._sources)

    def reload(self) -> None:
        """
        Read the configuration again; what is in force stays when it holds a mistake.

        Raises:
            ConfigError: the mistake.
        """
        old_keys: list[str] = []
        try:
            settings, sources = config.load(self._config_path, warn=old_keys.append)
        except ConfigError as error:
            self._faults.put(
                "config",
                f"The configuration was not read again: {error} The settings of before are kept.",
                "Mend it, then: watchdog reload",
            )
            raise
        self._faults.clear("config")
        self.report_old_keys(old_keys)
        self._settings, self._sources = settings, sources
        self._observer.apply(settings)
        self._pace.settings = settings.watch
        self._dispatcher.apply(settings.notify)
        self._notification_filter.apply(settings)
        self._agents.interval_s = settings.watch.interval_s
        self._journal.configure(settings.journal.max_age_s, settings.journal.max_bytes)
        self._log.info("the configuration was read again", path=self._config_path)
        self.note("reloaded")
        self.look_soon()

    def report_old_keys(self, messages: Sequence[str]) -> None:
        """
        Show that the configuration has keys of an earlier version.

        Args:
            messages: one for each such key, which says what it is called now; may be empty.
        """
        if not messages:
            self._faults.clear("config.old_keys")
            return
        self._faults.put(
            "config.old_keys",
            f"The configuration has keys of an earlier version, which are still used: "
            f"{'; '.join(messages)}.",
            "Rename them: watchdog config edit",
        )

    def protect(self, on: bool, for_s: float | None, by: str) -> dict[str, Any]:
        """Switch protection on, or off: for so many seconds, or until it is switched on."""
        self._notification_filter.protect(on, for_s)
        self._observer.protect(on)
        found = self._notification_filter.protection
        self._log.info(f"protection switched {'on' if on else 'off'}", by=by, for_s=for_s)
        self.note(f"protection switched {'on' if on else 'off'} by {by}", **found)
        self._keep_quiet()
        self.look_soon()
        return found

    def snooze(
        self, incident: str | None, task: Task | None, for_s: float, by: str
    ) -> dict[str, Any]:
        """
        Hold notices back for so many seconds; 0: no longer.

        Raises:
            RequestError: no incident of that name is open, and none was told of.
        """
        if incident is not None and for_s > 0 and not self._known(incident):
            raise RequestError(
                f"There is no incident {incident[:80]!r} now. Those that are open: watchdog status"
            )
        pid, name = (None, None) if task is None else (task.key.pid, task.name)
        found = self._notification_filter.snooze(incident, pid, name, for_s)
        whom = incident if incident is not None else name or "everything"
        self._log.info("notices snoozed" if found else "a snooze ended", of=whom, by=by)
        self.note(f"notices of {whom} {'snoozed' if found else 'no longer snoozed'} by {by}")
        self._keep_quiet()
        self.look_soon()
        if found is None:
            return {"incident": incident, "task": pid, "name": name, "until_unix_s": None}
        return found.to_json()

    def recover_quiet(self, journal: Journal | None) -> None:
        """Take over what people had asked an earlier daemon for."""
        if journal is None:
            return
        try:
            state = journal.state("quiet")
            if state is not None:
                self._notification_filter.load(
                    state["quiet"], same_boot=state.get("boot") == self._boot
                )
        except Exception as error:  # what is on the disk may be anything
            self._log.error("what was switched off before is not known", error=repr(error))
        self._observer.protect(self._notification_filter.protecting)
        if not self._notification_filter.protecting:
            self._log.warning("protection is still switched off: watchdog protect on")

    def look_quiet(self) -> None:
        """End what is over: protection off for a while, snoozes, quiet hours."""
        back_on, incidents = self._notification_filter.look()
        if back_on:
            self._observer.protect(True)
            self._log.info("protection is on again")
            self.note("protection on again")
        if incidents:
            self._observer.ask(lambda engine: engine.report_again(incidents))
        if back_on or incidents:
            self._keep_quiet()
            self.look_soon()

    def _known(self, incident: str) -> bool:
        look = self._observer.latest
        open_ones = () if look is None else look.result.incidents
        return self._notification_filter.knows(incident) or any(
            one.id == incident for one in open_ones
        )

    def _keep_quiet(self) -> None:
        state = {"boot": self._boot, "quiet": self._notification_filter.dump()}
        self._journal.submit(lambda journal: journal.put_state("quiet", state))

    def stop(self) -> None:
        """End after what is being answered now."""
        self.stopping = True

    def look_soon(self) -> None:
        """Do not wait for the next tick, but do not look more often than allowed."""
        self._pace.look_soon()

    def announced(self, process: ProcessKey) -> None:
        """It is about to grow: look now, at the limits that it has now."""
        self._observer.machine.review(process)
        self.look_soon()

    def note(self, what: str, **more: Any) -> None:
        """An entry in the journal on the daemon itself."""
        data = {"what": what, "pid": os.getpid(), "version": __version__, **more}
        self._journal.add(Entry(time.time(), "daemon", data))


def _explanation(look: Look | None, task: Task | None) -> dict[str, Any]:
    """The answer to `explain`: for one task, or for the machine."""
    if look is None:
        return {"text": "The machine has not been looked at yet. Ask again.", "incidents": []}
    from watchdog_app.core.explain import status

    readings, result = look.readings, look.result
    if task is None:
        text = status.about_machine(
            look.snapshot.host,
            look.tasks,
            readings=readings,
            assessments=result.assessments,
            incidents=result.incidents,
            now_unix_s=time.time(),
        )
        return {"text": text, "incidents": [incident(each).to_json() for each in result.incidents]}
    text = status.about_task(
        task,
        result.tasks.get(task.key),
        look.agents.get(task.key),
        hardware=look.snapshot.hardware,
        readings=readings,
        assessments=result.assessments,
        incidents=result.incidents,
        now_unix_s=time.time(),
    )
    reasons = result.stall_reasons.get(task.key)
    if reasons is not None:
        text = "\n".join((text, "", *status.stall_lines(reasons, task)))
    above = {reading.key for reading in readings if task.key in reading.tasks}
    concerns = [
        each
        for each in result.incidents
        if each.resource in above
        or any(contributor.task == task.key for contributor in each.contributors)
    ]
    return {"text": text, "incidents": [incident(each).to_json() for each in concerns]}
