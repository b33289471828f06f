"""
The parts of the daemon. Each is made with finished objects; what runs them is `loop`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from watchdog_app import config
from watchdog_app.base import paths
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.settings import Settings
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.executor import Executor, Stops
from watchdog_app.daemon.exit_monitor import ExitMonitor
from watchdog_app.daemon.exit_reports import ExitReports
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.inspections import Inspections
from watchdog_app.daemon.instance import boot_id
from watchdog_app.daemon.kept_state import EngineState, KernelState
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.missed_exits import MissedExits
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.notify.filter import NotificationFilter
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.poller import Poller, Waker
from watchdog_app.daemon.recorder import Recorder
from watchdog_app.daemon.restarts import Restarts
from watchdog_app.daemon.rpc import RpcServer
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine.sensors.machine import PATIENCE_S, open_machine
from watchdog_app.machine.sensors.systemd_units import UnitQuestions
from watchdog_app.machine.sensors.triggers import Triggers


class Parts:
    """Made once a process; everything is known by the name of its module."""

    def __init__(
        self,
        settings: Settings,
        sources: config.Sources,
        config_path: str,
        folder: str,
        log: Log,
    ) -> None:
        """
        Args:
            settings: from the configuration.
            sources: where each setting comes from.
            config_path: of the configuration's file.
            folder: of the socket.
            log: what people read.
        """
        self._settings = settings
        self._log = log
        self._boot = boot_id()
        self._make_connections(folder)
        self._make_observer(folder)
        self._make_executor(folder)
        self._make_control(sources, config_path)
        self._make_exits()
        self._make_methods()

    def _make_connections(self, folder: str) -> None:
        """What waits and wakes, the socket, the journal, the threads."""
        settings = self._settings
        self.faults = Faults(self._log)
        self.poller = poller = Poller(partial(self.faults.failed, "connections"))
        self.waker = Waker(poller)
        self.socket_path = os.path.join(folder, os.path.basename(paths.socket_path()))
        self.server = RpcServer(poller, self.socket_path, self._log)
        self.journal = JournalWriter(
            os.path.abspath(paths.state_dir()),
            settings.journal.max_age_s,
            settings.journal.max_bytes,
            self.waker.wake,
        )
        self.worker = Worker(self.waker.wake)
        self.keepers = Worker(self.waker.wake)  # one that hangs delays no pause
        self.pace = Pace(settings.watch, lambda: poller.overslept_s)

    def _make_observer(self, folder: str) -> None:
        """What is known of the machine: samples, agents, guards, the state of the engine."""
        machine = open_machine(patience_s=PATIENCE_S)
        self.agents = Agents(
            self.poller,
            machine.alive,
            self._settings.watch.interval_s,
        )
        self.observer = Observer(
            self._settings,
            machine,
            self.agents,
            self.faults,
            folder,
            triggers=Triggers(self.poller, self.waker.wake),
        )
        self.guards = Guards(
            self.observer.tasks, self.observer.group_of, self._log, readings=self.observer.readings
        )
        self.engine_state = EngineState(self.observer, self.journal, self._boot, self._log)
        self.kernel_state = KernelState(self.observer.kernels, self._boot, self.journal)
        self.recorder = Recorder(self._boot)

    def _make_executor(self, folder: str) -> None:
        """What is done: pauses, checkpoints, notifications."""
        self.pauses = Pauses(
            (folder, os.path.abspath(paths.state_dir())),
            self._boot,
            faults=self.faults,
            state_of=self.observer.state_of,
            wake=self.waker.wake,
            log=self._log,
        )
        self.dispatcher = Dispatcher(self.server, self._settings.notify, self.waker.wake, self._log)
        self.notification_filter = NotificationFilter(self._settings)
        self.checkpoints = Checkpoints(self.agents, _to_agents(self.server))
        self.stops = Stops(
            worker=self.worker,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            tasks=self.observer.tasks,
            kept=self.engine_state.keep,
            log=self._log,
        )
        self.executor = Executor(
            journal=self.journal,
            stops=self.stops,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            notification_filter=self.notification_filter,
            state_of=self.observer.state_of,
            recorded=self.observer.record,
            settled=self.guards.settled,
            may_notify=self.observer.may_notify,
            log=self._log,
        )

    def _make_control(self, sources: config.Sources, config_path: str) -> None:
        """What people ask of the daemon as a whole."""
        self.control = Control(
            self._settings,
            sources,
            config_path,
            observer=self.observer,
            pace=self.pace,
            agents=self.agents,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            notification_filter=self.notification_filter,
            guards=self.guards,
            kernels=self.observer.kernels,
            boot=self._boot,
            journal=self.journal,
            server=self.server,
            faults=self.faults,
            log=self._log,
        )

    def _make_exits(self) -> None:
        """Who has ended, why, and what follows from it."""
        units = UnitQuestions(self.waker.wake)
        self.missed_exits = MissedExits(
            self.journal, self._boot, self.observer.machine.alive, units
        )
        self.restarts = Restarts(
            self.observer.kernels,
            note=self.journal.add,
            tell=self.executor.carry_out_one,
            moved=self.control.follow,
        )
        self.exit_reports = ExitReports(
            observer=self.observer,
            pace=self.pace,
            executor=self.executor,
            restarts=self.restarts,
            journal=self.journal,
            faults=self.faults,
            log=self._log,
        )
        self.exit_monitor = ExitMonitor(
            self.poller,
            agent_of=self.agents.get,
            was_paused=self.pauses.has,
            units=units,
            worker_ended=self.pace.look_soon,
            folder=os.path.abspath(paths.state_dir()),
        )

    def _make_methods(self) -> None:
        """What clients and agents can ask for."""
        self.inspections = Inspections(
            self.agents,
            _to_agents(self.server),
            observer=self.observer,
            pace=self.pace,
            pauses=self.pauses,
            wake=self.waker.wake,
            grew=self.exit_monitor.grew,
            log=self._log,
        )
        self.methods = Methods(
            self.control,
            pace=self.pace,
            executor=self.executor,
            agents=self.agents,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            inspections=self.inspections,
            kernels=self.observer.kernels,
            journal=self.journal,
            keepers=self.keepers,
            log=self._log,
        )


def _to_agents(server: RpcServer) -> Callable[[Agent, str, Mapping[str, Any]], None]:
    """Return what sends a notification to an agent, if it is connected."""

    def send(agent: Agent, method: str, params: Mapping[str, Any]) -> None:
        if agent.connection is not None:
            message = {"jsonrpc": "2.0", "method": method, "params": dict(params)}
            server.send(agent.connection, message)

    return send
