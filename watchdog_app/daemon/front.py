"""
The daemon as its clients see it: status, settings, explanation; reload and stop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from watchdog_app import __version__, config
from watchdog_app.core.records import Task
from watchdog_app.core.settings import Settings
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.journal import Entry
from watchdog_app.daemon.journal_writer import JournalWriter
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notices import Notices
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.selfcare import OwnCost
from watchdog_app.daemon.server import Server
from watchdog_app.daemon.status import status
from watchdog_app.daemon.watching import Watching
from watchdog_app.daemon.wording import explanation
from watchdog_app.errors import ConfigError

_PUBLISH_S = 0.95  # a status at most once a second


class Front:
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
        watching: Watching,
        observer: Observer,
        agents: Agents,
        pauses: Pauses,
        notices: Notices,
        journal: JournalWriter,
        server: Server,
        faults: Faults,
        log: Log,
    ) -> None:
        self.stopping = False
        self.memory_fault: str | None = None
        self.cost = OwnCost()
        self._settings = settings
        self._sources = sources
        self._config_path = config_path
        self._watching = watching
        self._observer = observer
        self._agents = agents
        self._pauses = pauses
        self._notices = notices
        self._journal = journal
        self._server = server
        self._faults = faults
        self._log = log
        self._host_name = os.uname().nodename if hasattr(os, "uname") else ""
        self._started_mono_s = time.monotonic()
        self._published_mono_s = float("-inf")

    def status(self) -> dict[str, Any]:
        """The status object of docs/protocol.md."""
        faults = [*self._faults.all()]
        if self._journal.fault is not None:
            faults.append(self._journal.fault)
        return status(
            self._watching.look,
            daemon={
                "pid": os.getpid(),
                "version": __version__,
                "uptime_s": time.monotonic() - self._started_mono_s,
                "interval_s": self._watching.interval_s,
                "rss_bytes": self.cost.rss_bytes(),
                "cpu_percent": self.cost.cpu_percent,
                "ticks": self._observer.ticks,
                "locked_memory": self.memory_fault is None,
                "locked_memory_detail": self.memory_fault,
                "notices": {
                    "shown": self._notices.shown,
                    "undelivered": self._notices.undelivered,
                    "last_failure": self._notices.last_failure,
                    "companion": self._server.has_subscribers("notices"),
                },
            },
            host_name=self._host_name,
            paused=[pause.task for pause in self._pauses.all()],
            faults=faults,
            now_unix_s=time.time(),
        )

    def publish(self, now_mono_s: float) -> None:
        """The status to whoever subscribed to it, unless they have one of a moment ago."""
        due = now_mono_s - self._published_mono_s >= _PUBLISH_S
        if due and self._server.has_subscribers("status"):
            self._published_mono_s = now_mono_s
            self._server.publish("status", "status", self.status())

    def tasks(self) -> Sequence[Task]:
        """Those of the last look."""
        return self._watching.tasks

    def explain(self, task: Task | None) -> dict[str, Any]:
        """Text and incidents, for one task or for all."""
        return explanation(self._watching.look, task)

    def settings(self) -> list[dict[str, Any]]:
        """Every setting with its source."""
        return config.describe(self._settings, self._sources)

    def reload(self) -> None:
        """
        Read the configuration again; what is in force stays when it holds a mistake.

        Raises:
            ConfigError: the mistake.
        """
        try:
            settings, sources = config.load(self._config_path)
        except ConfigError as error:
            self._faults.put(
                "config",
                f"The configuration was not read again: {error} The settings of before are kept.",
                "Mend it, then: watchdog reload",
            )
            raise
        self._faults.clear("config")
        self._settings, self._sources = settings, sources
        self._observer.apply(settings)
        self._watching.settings = settings.watch
        self._notices.apply(settings.notify)
        self._agents.interval_s = settings.watch.interval_s
        self._journal.configure(settings.journal.max_age_s, settings.journal.max_bytes)
        self._log.info("the configuration was read again", path=self._config_path)
        self.note("reloaded")
        self.look_soon()

    def stop(self) -> None:
        """End after what is being answered now."""
        self.stopping = True

    def look_soon(self) -> None:
        """Do not wait for the next tick, but do not look more often than allowed."""
        self._watching.look_soon()

    def note(self, what: str) -> None:
        """An entry in the journal on the daemon itself."""
        data = {"what": what, "pid": os.getpid(), "version": __version__}
        self._journal.add(Entry(time.time(), "daemon", data))
