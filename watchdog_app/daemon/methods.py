"""The methods of docs/protocol.md for clients and agents, one function each."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from watchdog_app import __version__
from watchdog_app.base import codec
from watchdog_app.base.errors import NOT_FOUND, RequestError, TaskNotFound, WatchdogError
from watchdog_app.base.text.plain import clean
from watchdog_app.client import jsonrpc, requests
from watchdog_app.core.explain.advice import growth_advice
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.agent import MemoryGrowth, ThreadDump
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.tasks import find_task, name_with_pid
from watchdog_app.daemon.agents import Agent, peer_key
from watchdog_app.daemon.checkpoints import RescueRequest, no_agent_message
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.notify import TEST, Delivery, Offer
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.pauses import Pause, standing_notification
from watchdog_app.daemon.rpc import Connection, Reply
from watchdog_app.daemon.status import fit
from watchdog_app.history.journal import Journal
from watchdog_app.machine.process_control import Paused

_MOST_REFUSED, _REFUSED_S = 20, 3600.0  # answers from a phone that are reported, in this time

Answer = dict[str, Any] | None  # None: the reply is used later
Method = Callable[[Any, Reply], Answer]

_MOST_LIMITS = 64  # most open requests to guards; each is kept until a supervisor answers


class Methods:
    """
    Dispatches the requests of the server.

    Args:
        parts: the parts of the daemon.
        control: the daemon's status and settings.
    """

    def __init__(self, parts: Parts, control: Control) -> None:
        self._parts = parts
        self._control = control
        self._refused_mono_s: deque[float] = deque(maxlen=_MOST_REFUSED)
        # The function of task.pause is called _task_pause; a method without a function fails here.
        self.table: dict[str, Method] = {
            name: getattr(self, f"_{name.replace('.', '_')}") for name in requests.METHODS
        }

    def handle(self, method: str, params: dict[str, Any], reply: Reply) -> None:
        """Carry out one request or notification; every request is answered."""
        function, record = self.table.get(method), requests.METHODS.get(method)
        try:
            if function is None or record is None:
                reply.error(jsonrpc.METHOD_NOT_FOUND, f"There is no method {method[:80]!r}.")
                return
            if not reply.connection.greeted and method != "hello":
                reply.error(jsonrpc.REFUSED, "Say hello first.")
                return
            value = function(record.read(params), reply)
        except TaskNotFound as error:
            reply.error(error.code, str(error), {"candidates": list(error.candidates)})
        except RequestError as error:
            if not reply.wanted:
                self._parts.log.debug("a notification was refused", method=method, error=error)
            reply.error(error.code, str(error))
        except WatchdogError as error:
            reply.error(jsonrpc.REFUSED, str(error))
        except Exception as error:  # a bug of ours: only this client gets the error
            self._parts.log.error("a request failed", method=method, error=repr(error))  # noqa: TRY400
            reply.error(jsonrpc.REFUSED, f"The daemon failed to do this: {error!r}")
        else:
            if value is not None:
                reply.result(value)

    def ready(self, connection: Connection) -> bool:
        """Whether a request may be answered now: clients must see a fresh sample."""
        if connection.role == "agent" or not connection.greeted or self._parts.pace.is_fresh:
            return True
        self._parts.pace.sample_now()
        return False

    def connection_ended(self, connection: Connection) -> None:
        """Handle the end of a connection; an agent's connection may end before its process."""
        self._parts.agents.connection_ended(connection)

    def _hello(self, params: requests.Hello, reply: Reply) -> Answer:
        wanted, role, connection = params.protocol, params.role, reply.connection
        newer = wanted > jsonrpc.PROTOCOL_VERSION
        if newer or (wanted < jsonrpc.PROTOCOL_VERSION and role != "agent"):
            restart = "daemon of the newer version: watchdog stop; watchdog start"
            raise RequestError(
                f"This daemon (watchdog {__version__}) speaks protocol {jsonrpc.PROTOCOL_VERSION}, "
                f"the {role} (watchdog {params.version}) protocol {wanted}. "
                f"Start the {restart if newer else f'{role} of the newer version.'}",
                jsonrpc.VERSIONS_DIFFER,
            )
        connection.greeted = True
        connection.protocol = wanted
        connection.role = role
        return {"protocol": jsonrpc.PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}

    def _status(self, _: requests.Status, reply: Reply) -> None:
        reply.result(self._control.status().to_json(), fit)

    def _subscribe(self, params: requests.Subscribe, reply: Reply) -> Answer:
        reply.connection.topics = frozenset(params.topics)
        self._parts.pace.sample_soon()  # at rest the last sample may be minutes old
        return {}

    def _notification_shown(self, params: requests.NotificationShown, reply: Reply) -> Answer:
        self._parts.dispatcher.acknowledge(
            params.id, params.delivered, params.detail, follower=reply.connection.role == "cli"
        )
        return {}

    def _notification_answer(self, params: requests.NotificationAnswer, reply: Reply) -> Answer:
        """Do what a person was offered elsewhere; the token is good for one time."""
        try:
            offer = self._redeem(params.token)
        except RequestError as error:
            # anybody may be allowed to send to the topic of the answers
            now, before = time.monotonic(), self._refused_mono_s
            if len(before) < _MOST_REFUSED or now - before[0] > _REFUSED_S:
                before.append(now)
                self._control.note(f"an answer from the phone was refused: {error}")
            raise
        if offer.key == TEST:
            self._control.note("the test notification was answered from the phone")
            return {"detail": "The answer has reached watchdog."}
        action, about = ACTIONS[offer.key], offer.notification
        by_incident = offer.key == "snooze" and about.incident
        target = {"incident": about.incident} if by_incident else {"task": str(about.task)}
        self.handle(action.method, {**action.params, **target}, reply)
        return None

    def _redeem(self, token: str) -> Offer:
        """What was offered with the token; refused if its task has ended."""
        offer = self._parts.dispatcher.redeem(token)
        about = offer.notification
        key = None if about.start_time is None else ProcessKey(about.task or 0, about.start_time)
        if key is not None and self._parts.observer.task(key) is None:
            raise RequestError(f"{clean(about.name or 'The task')} has ended.")
        return offer

    def _notify_test(self, params: requests.SendTestNotification, reply: Reply) -> None:
        def done(answers: dict[str, Delivery]) -> None:
            rows = [{"name": name, **codec.encode(each)} for name, each in answers.items()]
            reply.result({"channels": rows})

        self._parts.dispatcher.test(done, params.channels)

    def _task_pause(self, params: requests.PauseTask, reply: Reply) -> None:
        task = self._find_task(params.task)
        self._refuse_stopped_by_guard(task)

        def done(found: Paused | Exception) -> None:
            if isinstance(found, Exception):
                reply.error(jsonrpc.REFUSED, str(found))
                return
            pids = [key.pid for key in found.keys]
            kind, method = task.kind.value, found.method
            reply.result({**_task_fields(task), "kind": kind, "pids": pids, "method": method})
            pause = self._parts.pauses.get(task.key)
            if reply.connection.role == "phone" and pause is not None:
                told = standing_notification(pause, time.time(), is_new=True)
                self._parts.executor.tell(told, task)
            self._parts.pace.sample_soon()

        self._parts.executor.request_pause(task, reply.client, done)

    def _task_resume(self, params: requests.ResumeTask, reply: Reply) -> Answer:
        pauses = self._parts.pauses
        chosen = pauses.all() if params.task is None else [self._find_pause(params.task)]
        if not chosen:
            return {"resumed": []}
        kinds = {task.key: task.kind.value for task in self._parts.observer.tasks()}
        resumed: list[dict[str, Any]] = []
        failures: list[str] = []
        left = len(chosen)

        def end(pause: Pause, found: tuple[ProcessKey, ...] | Exception) -> None:
            nonlocal left
            left -= 1
            if isinstance(found, Exception):
                failures.append(str(found))
            else:
                pids, kind = [key.pid for key in found], kinds.get(pause.task)
                about = {"task": pause.task.pid, "name": pause.name}
                resumed.append({**about, "kind": kind, "pids": pids})
            if left == 0:
                if failures and not resumed:
                    reply.error(jsonrpc.REFUSED, " ".join(failures))
                else:
                    reply.result({"resumed": resumed, "failures": failures})
                self._parts.pace.sample_soon()

        for pause in chosen:
            try:
                self._parts.executor.request_resume(pause, reply.client, partial(end, pause))
            except RequestError as error:
                end(pause, error)
        return None

    def _find_task(self, wanted: str) -> Task:
        """The task with this name or pid in the last sample."""
        return find_task(wanted, self._parts.observer.tasks())

    def _find_pause(self, wanted: str) -> Pause:
        """The pause of a task. Refuses a task that another program has stopped."""
        pauses = self._parts.pauses.all()
        for pause in pauses:
            # The last sample may lack it, and a stopped worker may be a task by now.
            if wanted.strip() in {str(key.pid) for key in (pause.task, *pause.paused.keys)}:
                return pause
        task = self._find_task(wanted)
        for pause in sorted(pauses, key=lambda pause: pause.task != task.key):
            if task.key in (pause.task, *pause.paused.keys):
                return pause
        self._refuse_stopped_by_guard(task)
        if task.paused:
            raise RequestError(
                f"{name_with_pid(task)} was not paused by watchdog, as far as its records say, but "
                "by somebody else, for example with Ctrl-Z. Resume it with: kill -CONT "
                f"{task.key.pid}"
            )
        raise RequestError(f"{name_with_pid(task)} is not paused.")

    def _refuse_stopped_by_guard(self, task: Task) -> None:
        """Refuse a task that its guard has stopped: it handles signals only after that."""
        self._parts.guards.refresh()
        reason = self._parts.guards.stopped_reason(task.key)
        if reason is not None:
            raise RequestError(reason)

    def _is_paused_now(self, task: Task) -> bool:
        """
        Whether the task is paused, measured now: its guard may have stopped it briefly for a copy.
        """
        states = {self._parts.observer.process_state(each.key) or "Z" for each in task.members}
        return bool(states & set("Tt")) and states <= set("TtZ")

    def _task_checkpoint(self, params: requests.CheckpointTask, reply: Reply) -> Answer:
        wanted, tasks = params.task, self._parts.observer.tasks()
        chosen = tasks if wanted is None else [find_task(wanted, tasks)]
        found: list[RescueRequest] = []
        answers: list[dict[str, Any]] = []

        def done(_: RescueRequest) -> None:
            if params.wait and found and all(rescue.status != "requested" for rescue in found):
                reply.result({"requests": [*answers, *(rescue.to_json() for rescue in found)]})

        self._parts.guards.refresh()
        for task in chosen:
            reason = self._parts.guards.stopped_reason(task.key)
            if reason is not None:
                answers.append(_refusal(task, reason))
                continue
            if self._parts.agents.connected_in(task) and self._is_paused_now(task):
                answers.append(_refusal(task, "It is paused and cannot save. Resume it first."))
                continue
            asked = self._parts.executor.request_checkpoint(
                task, reply.client, params.timeout_s, done
            )
            found += asked
            if not asked and wanted is not None:
                view = self._parts.agents.view_of(task)
                answers.append(_refusal(task, no_agent_message(task, time.time(), view)))
        if not found or not params.wait:
            return {"requests": [*answers, *(rescue.to_json() for rescue in found)]}
        return None

    def _task_stacks(self, params: requests.DumpStacks, reply: Reply) -> None:
        task, inspections = self._find_task(params.task), self._parts.inspections

        def done(dump: ThreadDump) -> None:
            reasons = [
                {
                    "kind": each.why.value,
                    "text": each.text,
                    "facts": list(each.reasons),
                    "remedy": each.remedy,
                }
                for each in inspections.reasons(task.key, dump)
            ]
            reply.result({**_task_fields(task), **codec.encode(dump), "reasons": reasons})

        inspections.dump(task, time.monotonic(), done)

    def _task_leaks(self, params: requests.FindLeaks, reply: Reply) -> None:
        task = self._find_task(params.task)

        def done(growth: MemoryGrowth | None) -> None:
            if growth is None:
                reply.error(
                    jsonrpc.REFUSED,
                    f"{clean(task.name)} did not answer: it has ended, or its Python code does not "
                    f"run. See: watchdog stacks {task.key.pid}",
                )
            else:
                advice = list(growth_advice(growth))
                reply.result({**_task_fields(task), **codec.encode(growth), "advice": advice})

        self._parts.inspections.trace(task, params.seconds, time.monotonic(), done)

    def _guard_limit(self, params: requests.LimitGuard, reply: Reply) -> None:
        """Ask the supervisor in a thread: it may be stopped, or short of memory itself."""
        guards = self._parts.guards
        if self._parts.supervisors.waiting >= _MOST_LIMITS:
            raise RequestError("Too many wait for their guards. Ask again.", jsonrpc.REFUSED)
        task, ask = guards.prepare_limit(params)

        def done(answer: Any, error: Exception | None) -> None:
            if error is not None:
                reply.error(jsonrpc.REFUSED, str(error))
            else:
                self._parts.log.info(
                    "a guard was told", task=task.name, pid=task.key.pid, said=answer
                )
                guards.refresh()
                reply.result({**_task_fields(task), "text": answer})

        self._parts.supervisors.submit(ask, done)

    def _protection_set(self, params: requests.SetProtection, reply: Reply) -> Answer:
        if params.on and params.for_s is not None:
            raise RequestError("Parameter for_s goes with on = false.", jsonrpc.INVALID_PARAMS)
        return self._control.protect(params.on, params.for_s, reply.client)

    def _snooze(self, params: requests.SnoozeNotifications, reply: Reply) -> Answer:
        if params.incident is not None and params.task is not None:
            raise RequestError("Give incident or task, not both.", jsonrpc.INVALID_PARAMS)
        task = None if params.task is None else self._find_task(params.task)
        return self._control.snooze(params.incident, task, params.for_s, reply.client)

    def _config(self, *_: object) -> Answer:
        return {"settings": self._control.settings()}

    def _reload(self, *_: object) -> Answer:
        self._control.reload()
        return {}

    def _stop(self, *_: object) -> Answer:
        self._control.stopping = True  # ends the loop after the current requests
        return {}

    # Queries of the journal: run in its own thread

    def _explain(self, params: requests.Explain, reply: Reply) -> None:
        from watchdog_app.history import past_exits  # 0.3 MB that no emergency needs

        tasks = self._parts.observer.tasks()
        task: Task | None = None
        missing: TaskNotFound | None = None
        try:
            task = None if params.task is None else find_task(params.task, tasks)
        except TaskNotFound as error:
            if error.code != NOT_FOUND:
                raise
            missing = error  # the task may have ended

        def done(found: dict[str, Any] | None, error: Exception | None) -> None:
            if missing is None:
                if error is not None:
                    self._parts.log.debug("no exits could be looked up", error=repr(error))
                nothing = {"death": None, "death_text": None, "plot": None}
                reply.result({**self._control.explain(task), **(found or nothing)})
            elif found is not None:
                reply.result({"text": found["death_text"], "incidents": [], **found})
            else:
                reply.error(missing.code, str(missing), {"candidates": list(missing.candidates)})

        job = partial(
            past_exits.explain_death,
            wanted=params.task,
            minutes=params.minutes,
            now_unix_s=time.time(),
            within_s=past_exits.LATELY_S,
            task=task,
            tasks=tasks,
        )
        self._parts.journal.query(job, done, lambda: reply.wanted)

    def _history(self, params: requests.History, reply: Reply) -> None:
        wanted = {**self._journal_query(params), "fold_saves": True}
        self._query_journal(lambda journal: {"entries": journal.history(**wanted)}, reply)

    def _runs_forget(self, params: requests.ForgetRuns, reply: Reply) -> None:
        wanted = params.program
        self._query_journal(lambda journal: {"forgotten": journal.forget_runs(wanted)}, reply)
        for run in self._parts.observer.past.live.values():
            run.asked = False  # look again for what is left

    def _series(self, params: requests.Series, reply: Reply) -> None:
        wanted = self._journal_query(params)
        self._query_journal(lambda journal: {"series": journal.series(**wanted)}, reply)

    def _journal_query(self, params: requests.History | requests.Series) -> dict[str, Any]:
        """The parameters of a query; for a kernel id with its notebook."""
        task = self._parts.observer.kernels.journal_word(params.task)
        return {**params.values(), "task": task}

    def _query_journal(self, job: Callable[[Journal], dict[str, Any]], reply: Reply) -> None:
        self._parts.journal.query(job, reply.finish, lambda: reply.wanted)

    # Messages from agents

    def _agent_register(self, params: requests.RegisterAgent, reply: Reply) -> Answer:
        agent = self._parts.agents.register(reply.connection, params)
        self._parts.exit_monitor.follow_agent(agent.key)
        if params.notebook is not None:
            self._parts.observer.kernels.set_notebook(agent.key, params.notebook)
        self._parts.log.info(
            "an agent connected",
            pid=agent.key.pid,
            framework=agent.view.framework,
            directory=agent.view.directory,
        )
        self._parts.pace.sample_soon()
        if agent.view.outdated:  # it does not know these fields
            return {}
        return {
            "segments": self._parts.agents.out_of_process.socket_path(),
            "grace_s": self._parts.settings.agent.grace_s,
        }

    def _agent_report(self, params: requests.Report, reply: Reply) -> Answer:
        agent = self._agent(reply)
        before = agent.view.expected_number
        self._parts.agents.report(agent, params, time.monotonic())
        if agent.view.expected_number != before:
            # The agent waits before it allocates: sample now, with the limits that apply now.
            self._parts.observer.machine.review(agent.key)
            self._parts.pace.sample_soon()
        return {}

    def _agent(self, reply: Reply) -> Agent:
        return self._parts.agents.registered(reply.connection)

    def _agent_progress(self, params: requests.Progress, reply: Reply) -> Answer:
        agent = self._agent(reply)
        self._parts.agents.set_saving(agent, True)
        if params.request is not None:
            self._parts.checkpoints.accepted(params.request, agent)
        return {}

    def _agent_saved(self, params: requests.Saved, reply: Reply) -> Answer:
        agent = self._agent(reply)
        record = self._parts.agents.record_rescue(agent, params.rescue.values(), time.monotonic())
        self._parts.log.info(
            "a rescue is complete",
            pid=agent.key.pid,
            step=record.step,
            bytes=record.bytes,
            seconds=record.seconds,
            path=record.path,
        )
        self._parts.checkpoints.saved(params.request, agent, record)
        return {}

    def _agent_failed(self, params: requests.Failed, reply: Reply) -> Answer:
        agent = self._agent(reply)
        error, remedy = params.error, params.remedy
        self._parts.agents.set_saving(agent, False, error)
        self._parts.log.warning("a rescue failed", pid=agent.key.pid, error=error, remedy=remedy)
        self._parts.checkpoints.failed(params.request, agent, error, remedy)
        return {}

    def _agent_bye(self, params: requests.Bye, reply: Reply) -> Answer:
        agent = self._agent(reply)
        self._parts.runs.end_cell(agent.key, finished=params.finished)
        self._parts.agents.end_training(agent, params)
        self._parts.checkpoints.agent_ended(agent.key, "The training has ended.")
        return {}

    def _agent_stacked(self, params: requests.Stacked, reply: Reply) -> Answer:
        self._parts.inspections.receive_stacks(self._agent(reply), params)
        return {}

    def _agent_leaked(self, params: requests.Leaked, reply: Reply) -> Answer:
        self._parts.inspections.receive_growth(self._agent(reply), params)
        return {}

    def _agent_notebook(self, params: requests.AgentNotebook, reply: Reply) -> Answer:
        key = peer_key(reply.connection, params.pid, params.start_time)
        self._parts.observer.kernels.set_notebook(key, params.notebook)
        self._parts.pace.sample_soon()
        return {}


def _task_fields(task: Task) -> dict[str, Any]:
    return {"task": task.key.pid, "name": task.name}


def _refusal(task: Task, detail: str) -> dict[str, Any]:
    return {**_task_fields(task), "status": "refused", "detail": detail, "rescue": None}
