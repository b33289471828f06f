"""
The parts of the daemon, made and joined: who calls whom. What runs them is `app`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from watchdog_app import config
from watchdog_app.base import paths
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.settings import Settings
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.exit_monitor import ExitMonitor
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.inspections import Inspections
from watchdog_app.daemon.instance import boot_id
from watchdog_app.daemon.kernel_state import KernelState
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.missed_exits import MissedExits
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.notify.filter import NotificationFilter
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pause_store import PauseStore
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.poller import Poller, Waker
from watchdog_app.daemon.restarts import Restarts
from watchdog_app.daemon.rpc import Connection, RpcServer
from watchdog_app.daemon.stops import Stops
from watchdog_app.daemon.watching import Watching
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
        self.socket_path = socket_path = os.path.join(folder, os.path.basename(paths.socket_path()))
        self.log = log
        self.faults = Faults(log)
        self.poller = Poller(partial(self.faults.failed, "connections"))
        self.waker = Waker(self.poller)
        self.journal = JournalWriter(
            os.path.abspath(paths.state_dir()),
            settings.journal.max_age_s,
            settings.journal.max_bytes,
            self.waker.wake,
        )
        self.worker = Worker(self.waker.wake)
        self.keepers = Worker(self.waker.wake)  # one that hangs delays no pause
        self.pauses = Pauses()
        machine = open_machine(patience_s=PATIENCE_S)
        self.agents = Agents(
            self.poller, machine.alive, self._agent_ended, settings.watch.interval_s
        )
        self.observer = Observer(
            settings,
            machine,
            self.agents,
            self.faults,
            folder,
            triggers=Triggers(self.poller, self.waker.wake),
            guarded=lambda: self.guards.limits(),  # noqa: PLW0108 - made below
        )
        boot = boot_id()
        self.pause_store = PauseStore(
            (folder, os.path.abspath(paths.state_dir())),
            boot,
            pauses=self.pauses,
            faults=self.faults,
            state_of=self.observer.state_of,
            wake=self.waker.wake,
            log=log,
        )
        units = UnitQuestions(self.waker.wake)
        self.missed_exits = MissedExits(self.journal, boot, machine.alive, units)
        self.watching = Watching(
            settings.watch,
            boot=boot,
            observer=self.observer,
            journal=self.journal,
            pauses=self.pauses,
            pause_store=self.pause_store,
            faults=self.faults,
            log=log,
            followed=lambda: self.server.has_subscribers("status"),
            overslept_s=lambda: self.poller.overslept_s,
        )
        self.server = RpcServer(
            self.poller,
            socket_path,
            self._handle,
            self._connection_ended,
            log,
            ready=self._ready,
        )
        self.dispatcher = Dispatcher(self.server, settings.notify, self.waker.wake, log)
        self.notification_filter = NotificationFilter(settings)
        self.checkpoints = Checkpoints(self.agents, self._send_to_agent)
        self.inspections = Inspections(
            self.agents,
            self._send_to_agent,
            watching=self.watching,
            observer=self.observer,
            pauses=self.pauses,
            wake=self.waker.wake,
            grew=lambda key, growth: self.exit_monitor.grew(key, growth),  # noqa: PLW0108 - made below
            log=log,
        )
        self.stops = Stops(
            boot=boot,
            worker=self.worker,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            pause_store=self.pause_store,
            tasks=lambda: self.watching.tasks,
            kept=self.watching.keep_state,
            log=log,
        )
        self.guards = Guards(
            lambda: self.watching.tasks,
            self.watching.group_of,
            log,
            readings=lambda: () if self.watching.look is None else self.watching.look.readings,
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
            log=log,
        )
        self.exit_monitor = ExitMonitor(
            self.poller,
            agent_of=self.agents.get,
            was_paused=lambda key: self.pauses.get(key) is not None,
            units=units,
            worker_ended=self.watching.look_soon,
            folder=os.path.abspath(paths.state_dir()),
        )
        kernels = self.observer.kernels
        self.kernel_state = KernelState(kernels, boot, self.journal)
        self.control = Control(
            settings,
            sources,
            config_path,
            watching=self.watching,
            observer=self.observer,
            agents=self.agents,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            notification_filter=self.notification_filter,
            guards=self.guards,
            kernels=kernels,
            boot=boot,
            journal=self.journal,
            server=self.server,
            faults=self.faults,
            log=log,
        )
        self.restarts = Restarts(
            kernels,
            note=self.journal.add,
            tell=lambda decision, task: self.executor.carry_out([decision], {task.key: task}),
            moved=self.control.follow,
        )
        self.methods = Methods(
            self.control,
            executor=self.executor,
            agents=self.agents,
            checkpoints=self.checkpoints,
            pauses=self.pauses,
            dispatcher=self.dispatcher,
            inspections=self.inspections,
            kernels=kernels,
            journal=self.journal,
            keepers=self.keepers,
            log=log,
        )

    def take_exits(self, now_mono_s: float) -> None:
        """Write down who has ended and tell of it."""
        for entry in self.missed_exits.ended(now_mono_s):
            self.log.warning(str(entry.data["text"]))
            self.journal.add(entry)
        exits = self.exit_monitor.ended(now_mono_s)
        self.watching.write_exits(exits)
        for each in exits:
            told = self.watching.tell_exit(each, self.executor)
            self.restarts.died(each.task, told, each.mono_s)

    def _ready(self, connection: Connection) -> bool:
        """Whether a request may be answered now: people want to see the machine as it is."""
        if connection.role == "agent" or not connection.greeted or self.watching.fresh:
            return True
        self.watching.look_now()
        return False

    def _handle(
        self, connection: Connection, method: str, params: dict[str, Any], reply: Any
    ) -> None:
        self.methods.handle(connection, method, params, reply)

    def _connection_ended(self, connection: Connection) -> None:
        self.agents.connection_ended(connection, time.monotonic())

    def _send_to_agent(self, agent: Agent, method: str, params: Mapping[str, Any]) -> None:
        if agent.connection is not None:
            self.server.send(
                agent.connection, {"jsonrpc": "2.0", "method": method, "params": dict(params)}
            )

    def _agent_ended(self, agent: Agent) -> None:
        self.checkpoints.agent_gone(agent.key, "The training has ended before it could save.")
        self.exit_monitor.agent_ended(agent)
        self.watching.look_soon()
