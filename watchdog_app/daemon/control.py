"""The daemon for its clients: status, explanation, settings, reload, protection and snoozes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app import __version__, config
from watchdog_app.base.errors import ConfigError, RequestError
from watchdog_app.base.linux.process import read_statm
from watchdog_app.core.model import status as records
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon.notify.dispatcher import summary
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.status import fit, status
from watchdog_app.history.journal import Entry, Journal

_PUBLISH_S = 0.95  # a status at most once a second
_QUIET = "quiet"  # key of protection and snoozes among the states in the journal


class OwnCost:
    """CPU time of this process."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._mono_s = time.monotonic()
        self.cpu_percent: float | None = None  # percent of one core over the last minute

    def update(self, now_mono_s: float) -> None:
        """Update `cpu_percent` once a minute; call it with every sample."""
        span_s = now_mono_s - self._mono_s
        if span_s < (5 if self.cpu_percent is None else 60):
            return
        now_cpu_s = time.process_time()
        self.cpu_percent = 100 * (now_cpu_s - self._cpu_s) / span_s
        self._cpu_s, self._mono_s = now_cpu_s, now_mono_s


class Control:
    """
    Requests of clients about the daemon as a whole.

    `stopping` ends the loop; `reloading` lets it call `reload`. `memory_fault` says why our memory
    is not locked; None: it is locked.

    Args:
        parts: the parts of the daemon.
        sources: source of each setting.
        config_path: the configuration file.
    """

    def __init__(self, parts: Parts, sources: config.Sources, config_path: str) -> None:
        self.stopping = False
        self.reloading = False
        self.memory_fault: str | None = None
        self.cost = OwnCost()
        self._parts = parts
        self._sources = sources
        self._config_path = config_path
        self._host_name = os.uname().nodename
        self._started_mono_s = time.monotonic()
        self._sent_mono_s = float("-inf")

    # Status and explanation

    def status(self) -> records.Status:
        """The status for clients."""
        parts = self._parts
        faults = [*parts.faults.all()]
        faults += [each for each in (parts.journal.fault, *parts.dispatcher.faults()) if each]
        return status(
            parts.observer.latest,
            daemon=self._daemon(),
            host_name=self._host_name,
            # with its workers, which are tasks once their parent has ended
            paused=[key for each in parts.pauses.all() for key in (each.task, *each.paused.keys)],
            guards=parts.guards.status_records(),
            faults=faults,
            now_unix_s=time.time(),
        )

    def _daemon(self) -> records.Daemon:
        parts, now_mono_s = self._parts, time.monotonic()
        quiet, statm = parts.notification_filter, read_statm()
        return records.Daemon(
            pid=os.getpid(),
            version=__version__,
            uptime_s=now_mono_s - self._started_mono_s,
            interval_s=parts.pace.interval_s,
            rss_bytes=None if statm is None else statm.resident_bytes,
            cpu_percent=self.cost.cpu_percent,
            samples=parts.observer.ticks,
            missed_samples=parts.pace.loop_lag.missed,
            max_lag_s=parts.pace.loop_lag.latest_s(now_mono_s),
            locked_memory=self.memory_fault is None,
            locked_memory_detail=self.memory_fault,
            notifications=records.Delivery.from_object(
                parts.dispatcher,
                suppressed=quiet.suppressed,
                tray_connected=parts.server.has_subscribers("notifications", "tray"),
                quiet_hours=quiet.quiet_hours(),
            ),
            protection=quiet.protection,
            snoozed=quiet.snoozed,
            actions=_counts(parts.journal.actions),
            deaths=_counts(parts.journal.deaths),
        )

    def publish(self, now_mono_s: float) -> None:
        """Send the status to subscribers, at most once a second."""
        parts = self._parts
        parts.faults.run_step("guards", parts.guards.refresh)
        parts.agents.record_guard_copies(parts.guards.rescues())
        due = now_mono_s - self._sent_mono_s >= _PUBLISH_S
        if due and parts.server.has_subscribers("status"):
            self._sent_mono_s = now_mono_s
            parts.server.publish("status", "status", self.status().to_json(), fit)
        parts.textfile.follow(parts.settings.metrics.textfile, self.status, now_mono_s)

    def explain(self, task: Task | None) -> dict[str, Any]:
        """Text and incidents, for one task or for all."""
        from watchdog_app.core.explain import status as explanation

        guards, now_unix_s = self._parts.guards, time.time()
        texts: list[str | None]
        found = self.status()
        about = None if task is None else found.task(task.key.pid)
        if task is None or about is None:
            incidents = list(found.incidents)
            texts = [*guards.active_reports(), explanation.describe_machine(found, now_unix_s)]
        else:
            incidents = explanation.task_incidents(found, about)
            texts = [
                explanation.describe_task(found, about, now_unix_s),
                guards.explanation(task.key),
            ]
        return {
            "text": "\n\n".join(text for text in texts if text),
            "incidents": [each.to_json() for each in incidents],
            "pid": None if about is None else about.pid,
        }

    # The configuration

    def settings(self) -> list[dict[str, Any]]:
        """Every setting with its source."""
        return config.describe(self._parts.settings, self._sources)

    def reload(self) -> None:
        """
        Read the configuration again. If it has a mistake, the present settings stay in force.

        Raises:
            ConfigError: the mistake.
        """
        parts = self._parts
        old_keys: list[str] = []
        try:
            settings, sources = config.load(self._config_path, warn=old_keys.append)
            parts.dispatcher.apply(settings.notify)
        except ConfigError as error:
            parts.faults.put(
                "config",
                f"The configuration was not reloaded: {error} The previous settings stay in force.",
                "Fix it, then: watchdog reload",
            )
            raise
        parts.faults.clear("config")
        self.report_old_keys(old_keys)
        parts.settings, self._sources = settings, sources
        parts.observer.apply(settings)
        parts.pace.settings = settings.watch
        parts.notification_filter.apply(settings)
        parts.journal.configure(settings.journal.max_age_s, settings.journal.max_bytes)
        self.note("the configuration was reloaded")
        parts.pace.sample_soon()

    def report_old_keys(self, messages: Sequence[str]) -> None:
        """
        Show a fault if the configuration has keys of an earlier version.

        Args:
            messages: one per such key, with its current name; may be empty.
        """
        if not messages:
            self._parts.faults.clear("config.old_keys")
            return
        self._parts.faults.put(
            "config.old_keys",
            f"The configuration has keys of an earlier version, which are still used: "
            f"{'; '.join(messages)}.",
            "Rename them: watchdog config edit",
        )

    # Protection and snoozes

    def protect(self, on: bool, for_s: float | None, by: str) -> dict[str, Any]:
        """
        Turn protection on, or turn it off for a time.

        Args:
            on: True: watchdog acts.
            for_s: seconds until it turns on again; None: until a user turns it on.
            by: the client that asks.
        """
        quiet = self._parts.notification_filter
        quiet.protect(on, for_s)
        self._parts.observer.set_protecting(on)
        found = quiet.protection.to_json()
        self.note(f"protection switched {'on' if on else 'off'} by {by}", **found)
        self._apply_quiet()
        return found

    def snooze(
        self, incident: str | None, task: Task | None, for_s: float, by: str
    ) -> dict[str, Any]:
        """
        Suppress notifications for some seconds; 0 ends that.

        Args:
            incident: id of an incident; None: any.
            task: a task; None: any.
            for_s: duration; 0: end it.
            by: the client that asks.

        Raises:
            RequestError: no such incident is open, and none was reported.
        """
        if incident is not None and for_s > 0 and not self._is_known_incident(incident):
            raise RequestError(
                f"There is no incident {incident[:80]!r} now. Those that are open: watchdog status"
            )
        pid, name = (None, None) if task is None else (task.key.pid, task.name)
        found = self._parts.notification_filter.snooze(incident, pid, name, for_s)
        subject = incident if incident is not None else name or "everything"
        self.note(
            f"notifications of {subject} {'snoozed' if found else 'no longer snoozed'} by {by}"
        )
        self._apply_quiet()
        until_unix_s = None if found is None else found.until.unix_s
        return {"incident": incident, "task": pid, "name": name, "until_unix_s": until_unix_s}

    def move_snoozes(self, before: ProcessKey, now: ProcessKey) -> None:
        """
        Move the snoozes of a restarted kernel to its new process.

        Args:
            before: the earlier process of the kernel.
            now: the new process of the kernel.
        """
        if self._parts.notification_filter.move_snoozes(before.pid, now.pid):
            self._apply_quiet()

    def restore_quiet(self, journal: Journal | None) -> None:
        """Restore the protection and the snoozes that users set in an earlier daemon."""
        quiet = self._parts.notification_filter
        self._parts.state_store.restore(
            journal, _QUIET, lambda state, same_boot: quiet.load(state["quiet"], same_boot)
        )
        self._parts.observer.set_protecting(quiet.protecting)
        if not quiet.protecting:
            self._parts.log.warning("protection is still switched off: watchdog protect on")

    def expire_quiet(self) -> None:
        """End protection pauses and snoozes whose time has passed; tell what was suppressed."""
        parts = self._parts
        back_on, suppressed = parts.notification_filter.expire()
        if back_on:
            parts.observer.set_protecting(True)
            self.note("protection on again")
        if suppressed:
            parts.executor.tell(summary(suppressed, self.status(), time.time()))
        if back_on or suppressed or parts.notification_filter.changed:
            self._apply_quiet()

    def _is_known_incident(self, incident: str) -> bool:
        sample = self._parts.observer.latest
        open_incidents = () if sample is None else sample.result.incidents
        return self._parts.notification_filter.knows_incident(incident) or any(
            each.id == incident for each in open_incidents
        )

    def save_quiet(self) -> None:
        """Save protection, snoozes and suppressed incidents for the next daemon."""
        self._parts.state_store.put(_QUIET, quiet=self._parts.notification_filter.dump())

    def _apply_quiet(self) -> None:
        self.save_quiet()
        self._parts.pace.sample_soon()

    def note(self, what: str, **more: Any) -> None:
        """Write an entry about the daemon itself to the journal and the log."""
        self._parts.log.info(what)
        data = {"what": what, "pid": os.getpid(), "version": __version__, **more}
        self._parts.journal.add(Entry(time.time(), "daemon", data))


def _counts(counter: Mapping[tuple[str, str | None], int]) -> tuple[records.Count, ...]:
    return tuple(
        records.Count(what=what, result=result, count=count)
        for (what, result), count in sorted(counter.items(), key=str)
    )
