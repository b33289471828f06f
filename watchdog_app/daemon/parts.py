"""The parts of the daemon. Each gets its dependencies as finished objects; `loop` runs them."""

from __future__ import annotations

import os
from functools import partial

from watchdog_app.base import paths
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.settings import Settings
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.exit_monitor import ExitMonitor
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.inspections import Inspections
from watchdog_app.daemon.instance import boot_id
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.missed_exits import MissedExits
from watchdog_app.daemon.notify.cells import Cells
from watchdog_app.daemon.notify.dispatcher import Dispatcher, NotificationFilter
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.poller import Poller, Waker
from watchdog_app.daemon.recorder import Recorder, RunStore, StateStore
from watchdog_app.daemon.restarts import Restarts
from watchdog_app.daemon.rpc import RpcServer
from watchdog_app.daemon.textfile import Textfile
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine.sensors import open_machine
from watchdog_app.machine.sensors.machine import PATIENCE_S
from watchdog_app.machine.sensors.systemd_units import UnitQueries
from watchdog_app.machine.sensors.triggers import Triggers


class Parts:
    """The parts of the daemon, created once per process, each named like its module."""

    def __init__(self, settings: Settings, folder: str, log: Log) -> None:
        """
        Args:
            settings: from the configuration.
            folder: the folder of the socket.
            log: the daemon's log.
        """
        self.settings = settings
        self.log = log
        self._boot = boot_id()
        self._make_connections(folder)
        self._make_observer(folder)
        self._make_executor(folder)
        self._make_exits()

    def _make_connections(self, folder: str) -> None:
        """Create the poller, the socket, the journal and the threads."""
        settings = self.settings
        self.faults = Faults(self.log)
        self.poller = poller = Poller(partial(self.faults.report_failure, "connections"))
        self.waker = Waker(poller)
        self.socket_path = os.path.join(folder, os.path.basename(paths.socket_path()))
        self.server = RpcServer(poller, self.socket_path, self.log)
        self.journal = JournalWriter(
            os.path.abspath(paths.state_dir()),
            settings.journal.max_age_s,
            settings.journal.max_bytes,
            self.waker.wake,
        )
        self.worker = Worker(self.waker.wake)
        # for requests to supervisors: one that hangs delays no pause
        self.supervisors = Worker(self.waker.wake)
        self.pace = Pace(settings.watch)

    def _make_observer(self, folder: str) -> None:
        """Create the parts that observe: samples, agents, guards, the state of the engine."""
        machine = open_machine(patience_s=PATIENCE_S)
        self.copies = OutOfProcessCopies(self.poller, folder, self.waker.wake)
        self.agents = Agents(self.server, self.copies, machine.alive)
        self.observer = Observer(
            self.settings,
            machine,
            self.agents,
            self.faults,
            folder,
            triggers=Triggers(self.poller, self.waker.wake),
        )
        self.guards = Guards(self.observer, self.log)
        self.state_store = StateStore(self.observer, self.journal, self._boot, self.log)
        self.recorder = Recorder(self._boot)
        self.textfile = Textfile(self.faults, self.waker.wake)
        wake, sample_now = self.waker.wake, self.pace.sample_now
        self.runs = RunStore(self.observer, self.journal, wake, sample_now)

    def _make_executor(self, folder: str) -> None:
        """Create the parts that act: pauses, checkpoints, notifications."""
        self.pauses = Pauses(
            (folder, os.path.abspath(paths.state_dir())),
            self._boot,
            faults=self.faults,
            state_of=self.observer.process_state,
            wake=self.waker.wake,
            log=self.log,
        )
        self.dispatcher = Dispatcher(
            self.server, self.settings.notify, self.waker.wake, self.log, Cells(self.agents)
        )
        self.notification_filter = NotificationFilter(self.settings)
        self.checkpoints = Checkpoints(self.agents, self.log)
        self.executor = Executor(
            journal=self.journal,
            worker=self.worker,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            notification_filter=self.notification_filter,
            observer=self.observer,
            guards=self.guards,
            state_store=self.state_store,
            log=self.log,
        )

    def _make_exits(self) -> None:
        """Create the parts for exits, and those that ask agents."""
        units = UnitQueries(self.waker.wake)
        self.missed_exits = MissedExits(self.state_store, self.observer.machine.alive, units)
        self.restarts = Restarts(self.observer.kernels)
        self.exit_monitor = ExitMonitor(
            self.poller,
            agents=self.agents,
            was_paused=self.pauses.has,
            units=units,
            worker_ended=self.pace.sample_soon,
            on_end=self.runs.end,
            folder=os.path.abspath(paths.state_dir()),
        )
        self.inspections = Inspections(
            agents=self.agents,
            observer=self.observer,
            pauses=self.pauses,
            worker=Worker(self.waker.wake),
            on_growth=self.exit_monitor.last_seen.update_growth,
            log=self.log,
        )
