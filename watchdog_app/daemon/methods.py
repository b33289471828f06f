"""
What clients and agents can ask for: the methods of docs/protocol.md, one function each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from watchdog_app import __version__
from watchdog_app.base.errors import RequestError, TaskNotFound, WatchdogError
from watchdog_app.base.threads import Worker
from watchdog_app.client import jsonrpc, requests
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.tasks import KernelRegistry, find, named
from watchdog_app.daemon.agent_methods import AgentMethods
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.checkpoints import Checkpoints, Rescue, no_agent
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.inspections import Inspections
from watchdog_app.daemon.journal_methods import JournalMethods, Method
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.pace import Pace
from watchdog_app.daemon.pauses import Pause, Pauses
from watchdog_app.daemon.rpc import Connection, Reply
from watchdog_app.daemon.status_limit import fit
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine.process_control.paused import Paused, Resumed

_MOST_LIMITS = 64  # wishes for airbags that wait: each is kept until a keeper answers
_PROGRAM = sys.executable if getattr(sys, "frozen", False) else f"{sys.executable} -m watchdog_app"
_UPDATES = {
    "cli": f"Use the newer one: {_PROGRAM}, or update this environment.",
    "tray": "End the tray and start it anew with the newer version: watchdog tray",
}


class Daemon(Protocol):
    """What the methods need of the daemon as a whole."""

    def status(self) -> dict[str, Any]:
        """The status object."""

    def tasks(self) -> Sequence[Task]:
        """Those of the last look."""

    def explain(self, task: Task | None) -> dict[str, Any]:
        """Text and incidents."""

    def settings(self) -> list[dict[str, Any]]:
        """Every setting with its source."""

    def reload(self) -> None:
        """Read the configuration again. Raises ConfigError."""

    def protect(self, on: bool, for_s: float | None, by: str) -> dict[str, Any]:
        """Switch protection on or off."""

    def snooze(
        self, incident: str | None, task: Task | None, for_s: float, by: str
    ) -> dict[str, Any]:
        """Hold notices back. Raises RequestError."""

    def stop(self) -> None:
        """End soon."""

    @property
    def guards(self) -> Guards:
        """The airbags of this user."""

    def look_soon(self) -> None:
        """Something changed: do not wait for the next tick."""

    def announced(self, process: ProcessKey) -> None:
        """It is about to grow: look now, at the limits that it has now."""


class Methods:
    """Dispatches what the server receives."""

    def __init__(
        self,
        daemon: Daemon,
        *,
        pace: Pace,
        executor: Executor,
        agents: Agents,
        checkpoints: Checkpoints,
        pauses: Pauses,
        dispatcher: Dispatcher,
        inspections: Inspections,
        kernels: KernelRegistry,
        journal: JournalWriter,
        keepers: Worker,
        log: Log,
    ) -> None:
        self._daemon = daemon
        self._keepers = keepers
        self._pace = pace
        self._executor = executor
        self._agents = agents
        self._pauses = pauses
        self._dispatcher = dispatcher
        self._log = log
        self.table: dict[str, Method] = {
            "hello": self._hello,
            "status": self._status,
            "subscribe": self._subscribe,
            "notification.shown": self._notice_shown,
            "task.pause": self._pause,
            "task.resume": self._resume,
            "task.checkpoint": self._checkpoint,
            "config": lambda *_: {"settings": self._daemon.settings()},
            "reload": self._reload,
            "protection.set": self._protect,
            "snooze": self._snooze,
            "stop": self._stop,
            "guard.limit": self._limit,
            "guard.changed": lambda *_: self._daemon.guards.changed(),
            **JournalMethods(daemon, kernels, journal, log).table,
            **AgentMethods(agents, checkpoints, self._look_soon, self._announced, log).table,
            **inspections.table,
        }

    def handle(
        self, connection: Connection, method: str, params: dict[str, Any], reply: Reply
    ) -> None:
        """Carry out one request or notification; every request is answered."""
        function, record = self.table.get(method), requests.METHODS.get(method)
        try:
            if function is None or record is None:
                reply.error(jsonrpc.NO_SUCH_METHOD, f"There is no method {method[:80]!r}.")
                return
            if not connection.greeted and method != "hello":
                reply.error(jsonrpc.REFUSED, "Say hello first.")
                return
            if connection.protocol < jsonrpc.PROTOCOL_VERSION:
                params = _of_protocol_1(method, params)
            value = function(connection, record.read(params), reply)
        except TaskNotFound as error:
            reply.error(error.code, str(error), {"candidates": list(error.candidates)})
        except RequestError as error:
            if not reply.wanted:
                self._log.debug("a notification was refused", method=method, error=error)
            reply.error(error.code, str(error))
        except WatchdogError as error:
            reply.error(jsonrpc.REFUSED, str(error))
        except Exception as error:  # a fault of ours: this client hears of it, the others do not
            self._log.error("a request failed", method=method, error=repr(error))
            reply.error(jsonrpc.REFUSED, f"The daemon failed to do this: {error!r}")
        else:
            if value is not None:
                reply.result(value)

    def ready(self, connection: Connection) -> bool:
        """Whether a request may be answered now: people want to see the machine as it is."""
        if connection.role == "agent" or not connection.greeted or self._pace.fresh:
            return True
        self._pace.look_now()
        return False

    def connection_ended(self, connection: Connection) -> None:
        """An agent's connection may end before its process does."""
        self._agents.connection_ended(connection, time.monotonic())

    def _look_soon(self) -> None:
        self._daemon.look_soon()

    def _announced(self, process: ProcessKey) -> None:
        self._daemon.announced(process)

    def _hello(self, connection: Connection, params: requests.Hello, _: Reply) -> dict[str, Any]:
        wanted, role, version = params.protocol, params.role, params.version
        if wanted > jsonrpc.PROTOCOL_VERSION:
            raise RequestError(
                f"This daemon (watchdog {__version__}) speaks protocol "
                f"{jsonrpc.PROTOCOL_VERSION}, the {role} (watchdog {version}) protocol {wanted}. "
                "Restart the daemon with the newer version: watchdog stop; watchdog start",
                jsonrpc.VERSIONS_DIFFER,
            )
        if wanted < jsonrpc.PROTOCOL_VERSION and role != "agent":
            raise RequestError(
                f"This {role} (watchdog {version}) speaks protocol {wanted}, the daemon (watchdog "
                f"{__version__}) protocol {jsonrpc.PROTOCOL_VERSION}. {_UPDATES[role]}",
                jsonrpc.VERSIONS_DIFFER,
            )
        connection.greeted = True
        connection.protocol = wanted
        connection.role = role
        return {
            "protocol": jsonrpc.PROTOCOL_VERSION,
            "version": __version__,
            "pid": os.getpid(),
        }

    def _status(self, _: Connection, __: requests.Params, reply: Reply) -> None:
        reply.result(self._daemon.status(), fit)

    def _subscribe(
        self, connection: Connection, params: requests.Subscribe, _: Reply
    ) -> dict[str, Any]:
        connection.topics = frozenset(params.topics)
        self._daemon.look_soon()  # at rest it would tell what it saw minutes ago
        return {}

    def _notice_shown(
        self, connection: Connection, params: requests.NotificationShown, __: Reply
    ) -> dict[str, Any]:
        self._dispatcher.acknowledge(
            params.id,
            params.delivered,
            params.detail,
            follower=connection.role == "cli",
        )
        return {}

    def _pause(self, connection: Connection, params: requests.PauseTask, reply: Reply) -> None:
        task = find(params.task, self._daemon.tasks())
        self._not_held(task)

        def done(found: Paused | Exception) -> None:
            if isinstance(found, Exception):
                reply.error(jsonrpc.REFUSED, str(found))
                return
            reply.result(
                {
                    "task": task.key.pid,
                    "name": task.name,
                    "pids": [key.pid for key in found.keys],
                    "method": found.method,
                }
            )
            self._daemon.look_soon()

        self._executor.request_pause(task, _who(connection), done)

    def _resume(
        self, connection: Connection, params: requests.ResumeTask, reply: Reply
    ) -> dict[str, Any] | None:
        wanted = params.task
        chosen = self._pauses.all() if wanted is None else [self._paused(wanted)]
        if not chosen:
            return {"resumed": []}
        resumed: list[dict[str, Any]] = []
        failures: list[str] = []
        left = len(chosen)

        def end(pause: Pause, found: Resumed | Exception) -> None:
            nonlocal left
            left -= 1
            if isinstance(found, Exception):
                failures.append(str(found))
            else:
                resumed.append(
                    {
                        "task": pause.task.pid,
                        "name": pause.name,
                        "pids": [key.pid for key in found.keys],
                    }
                )
            if left == 0:
                if failures and not resumed:
                    reply.error(jsonrpc.REFUSED, " ".join(failures))
                else:
                    reply.result({"resumed": resumed, "failures": failures})
                self._daemon.look_soon()

        for pause in chosen:
            try:
                self._executor.request_resume(pause, _who(connection), partial(end, pause))
            except RequestError as error:
                end(pause, error)
        return None

    def _paused(self, wanted: str) -> Pause:
        """The pause of the task that was meant; what we did not pause is not ours to wake."""
        for held in self._pauses.all():
            # Also where the last look did not see it, and for a worker that is a task by now.
            if wanted.strip() in {str(held.task.pid), *(str(key.pid) for key in held.paused.keys)}:
                return held
        task = find(wanted, self._daemon.tasks())
        pause = self._pauses.get(task.key)
        if pause is not None:
            return pause
        for held in self._pauses.all():
            if task.key in held.paused.keys:
                return held
        self._not_held(task)
        if task.paused:
            raise RequestError(
                f"{named(task)} was not paused by watchdog, as far as is written down, but by "
                "somebody else, for example with Ctrl-Z. Let it go on with: kill -CONT "
                f"{task.key.pid}"
            )
        raise RequestError(f"{named(task)} is not paused.")

    def _not_held(self, task: Task) -> None:
        """What stands still in its airbag would take a signal only after it, unexpectedly."""
        self._daemon.guards.look()
        held = self._daemon.guards.held(task.key)
        if held is not None:
            raise RequestError(held)

    def _checkpoint(
        self, connection: Connection, params: requests.CheckpointTask, reply: Reply
    ) -> dict[str, Any] | None:
        wanted, wait, timeout_s = params.task, params.wait, params.timeout_s
        tasks = self._daemon.tasks()
        chosen = list(tasks) if wanted is None else [find(wanted, tasks)]
        found: list[Rescue] = []
        answers: list[dict[str, Any]] = []

        def done(_: Rescue) -> None:
            if wait and found and all(rescue.status != "requested" for rescue in found):
                reply.result({"requests": [*answers, *(rescue.to_json() for rescue in found)]})

        waiting: list[Rescue] = []
        self._daemon.guards.look()
        for task in chosen:
            held = self._daemon.guards.held(task.key)
            if held is not None:
                answers.append(_refused(task, held))
                continue
            if task.paused and self._agents.within({m.key for m in task.members}):
                answers.append(_refused(task, "It is paused and cannot save. Resume it first."))
                continue
            asked = self._executor.request_checkpoint(task, _who(connection), timeout_s, done)
            waiting += asked
            if not asked and wanted is not None:
                view = self._agents.view_of({member.key for member in task.members})
                answers.append(_refused(task, no_agent(task, time.time(), view)))
        found += waiting
        if not found or not wait:
            return {"requests": [*answers, *(rescue.to_json() for rescue in found)]}
        done(found[0])  # all may have ended at once
        return None

    def _limit(self, _: Connection, params: requests.LimitGuard, reply: Reply) -> None:
        """A keeper may stand still, or be short of memory itself: nobody else waits for it."""
        guards = self._daemon.guards
        if self._keepers.waiting >= _MOST_LIMITS:
            raise RequestError("Too many wait for keepers of airbags. Ask again.", jsonrpc.REFUSED)
        task, ask = guards.limit(params)

        def done(said: Any, error: Exception | None) -> None:
            if error is not None:
                reply.error(jsonrpc.REFUSED, str(error))
            else:
                reply.result(guards.limited(task, said))

        self._keepers.submit(ask, done)

    def _protect(
        self, connection: Connection, params: requests.SetProtection, _: Reply
    ) -> dict[str, Any]:
        if params.on and params.for_s is not None:
            raise RequestError("Parameter for_s goes with on = false.", jsonrpc.BAD_PARAMS)
        return self._daemon.protect(params.on, params.for_s, _who(connection))

    def _snooze(
        self, connection: Connection, params: requests.SnoozeNotifications, _: Reply
    ) -> dict[str, Any]:
        incident, wanted = params.incident, params.task
        if incident is not None and wanted is not None:
            raise RequestError("Give incident or task, not both.", jsonrpc.BAD_PARAMS)
        task = None if wanted is None else find(wanted, self._daemon.tasks())
        return self._daemon.snooze(incident, task, params.for_s, _who(connection))

    def _reload(self, *_: object) -> dict[str, Any]:
        self._daemon.reload()
        return {}

    def _stop(self, *_: object) -> dict[str, Any]:
        self._daemon.stop()
        return {}


def _of_protocol_1(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """What an agent of protocol 1 says, in the words of this one."""
    if method == "agent.saved":
        return {"request": params.get("request"), "rescue": params}
    if method == "agent.register":
        return {**params, "resumes_itself": params.get("by_lines") is not True}
    return params


def _who(connection: Connection) -> str:
    pid = f" (pid {connection.peer.pid})" if connection.peer.pid else ""
    return f"the {connection.role}{pid}"


def _refused(task: Task, detail: str) -> dict[str, Any]:
    return {"task": task.key.pid, "name": task.name, "status": "refused", "detail": detail,
            "rescue": None}  # fmt: skip
