"""
Carries out decisions of the policy and of people: records them, acts, and reports the outcome.

Nothing here blocks: a pause runs in a thread, a checkpoint in the training, a notification in a
helper. Each decision gets exactly one outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.status import Notification
from watchdog_app.core.model.tasks import name_with_pid
from watchdog_app.daemon.checkpoints import MOST_FOLLOWERS, Checkpoints, RescueRequest
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify.dispatcher import Dispatcher, NotificationFilter
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pauses import Pause, Pauses
from watchdog_app.daemon.recorder import StateStore
from watchdog_app.history.entries import TaskRef, decision_entry, outcome_entry, request_entry
from watchdog_app.history.journal import Entry
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine import process_control
from watchdog_app.machine.process_control import Paused

# Time for a decision to reach the disk; a sync on a healthy disk takes far less. Afterwards the
# daemon acts anyway: when memory runs out, a disk that swaps takes seconds.
DURABLE_TIMEOUT_S = 0.04
_INTENT_TIMEOUT_S = 1.0  # time to record a pause before its first signal


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of the policy or of a person, with the fields that its outcome needs."""

    id: str
    kind: str  # a value of `DecisionKind`, or an event of a guard
    task: TaskRef
    began_mono_s: float
    by_policy: bool = False
    done: Callable[[Any], None] = lambda _: None  # called with the result or the error


@dataclass(kw_only=True, slots=True, eq=False)
class Executor:
    """The only part that changes the machine and notifies people."""

    journal: JournalWriter
    worker: Worker
    checkpoints: Checkpoints
    pauses: Pauses
    dispatcher: Dispatcher
    notification_filter: NotificationFilter
    observer: Observer
    guards: Guards
    state_store: StateStore
    log: Log
    _in_transition: set[ProcessKey] = field(
        default_factory=set, init=False
    )  # tasks being paused or resumed
    _requests: int = field(default=0, init=False)

    # Decisions of the policy

    def carry_out(self, decisions: Sequence[Decision], tasks: Mapping[ProcessKey, Task]) -> None:
        """
        Carry out decisions, after all of them are in the journal.

        Args:
            decisions: decisions of the policy.
            tasks: the running tasks by key.
        """
        entries = []
        for decision in decisions:
            task = tasks.get(decision.task) if decision.task else None
            entries.append(decision_entry(decision, _task_ref(decision, task)))
            self.log.info(
                f"decided: {decision.kind.value}",
                task=task.name if task else None,
                pid=decision.task.pid if decision.task else None,
                stage=decision.stage.name.lower(),
                reason=decision.reason,
            )
        if not self.journal.write_durably(entries, DURABLE_TIMEOUT_S):
            self.log.info("the disk is slow: decisions are carried out before they are written")
        for decision in decisions:
            task = tasks.get(decision.task) if decision.task else None
            operation = _operation_for(decision, task)
            try:
                self._start(decision, task, operation)
            except Exception as error:  # one decision must not prevent the others
                self.log.error("a decision could not be begun", error=f"{error!r}")  # noqa: TRY400
                self._finish(operation, OutcomeStatus.FAILED, f"{error}")

    def skip(self, decision: Decision, task: Task | None, detail: str) -> None:
        """
        Record that a decision was skipped because it no longer applies.

        Args:
            decision: the decision of the policy.
            task: the task that it concerns; None: no task, or the task has ended.
            detail: the reason.
        """
        self.journal.add(decision_entry(decision, _task_ref(decision, task)))
        self._finish(_operation_for(decision, task), OutcomeStatus.SKIPPED, detail)

    def tell(self, notification: Notification, task: Task | None = None) -> None:
        """
        Notify people of something that no decision of the policy reports.

        Args:
            task: the task that it concerns, for the rules; None: no task, or unknown.
        """
        data = {
            "id": notification.id,
            "decision_kind": DecisionKind.NOTIFY.value,
            "pid": notification.task,
            "reason": notification.title,
        }
        pid, name = notification.task, notification.name
        self.announce(notification, Entry(time.time(), "decision", data, pid, name), task)

    def announce(self, notification: Notification, entry: Entry, task: Task | None) -> None:
        """
        Notify people of an event that has already happened.

        Args:
            entry: its entry for the journal, with the id of the notification.
            task: the task that it concerns, for the rules; None: unknown.
        """
        self.journal.add(entry)
        about = TaskRef(None if task is None else task.key, entry.name, entry.path)
        kind = str(entry.data.get("decision_kind"))
        operation = _Operation(notification.id or "", kind, about, time.monotonic())
        if not self.observer.may_notify(task):
            detail = "Suppressed: a [[rule]] switches notifications off."
            text = {"title": notification.title, "body": notification.body}
            self._finish(operation, OutcomeStatus.SKIPPED, detail, text)
        else:
            self._send(notification, task, operation)

    # Requests of people

    def request_pause(
        self, task: Task, by: str, done: Callable[[Paused | Exception], None]
    ) -> None:
        """
        Pause a task for a person.

        Args:
            task: the task to pause.
            by: the client that asks.
            done: called with the stopped processes or the error.

        Raises:
            RequestError: the task is paused, or is being paused or resumed right now.
        """
        pause, state_of = self.pauses.get(task.key), self.observer.process_state
        # The last sample may be older than the pause, so read the states of the processes.
        if pause is not None and not any(
            (state_of(key) or "Z") in "RSI" for key in pause.paused.keys
        ):
            raise RequestError(f"{name_with_pid(task)} is already paused.")
        self._refuse_in_transition(task.key, task.name)
        operation = self._record_request(DecisionKind.PAUSE, TaskRef.of(task), by, done)
        self._pause(operation, task, f"asked for by {by}")

    def request_resume(
        self, pause: Pause, by: str, done: Callable[[tuple[ProcessKey, ...] | Exception], None]
    ) -> None:
        """
        Resume a paused task for a person.

        Args:
            pause: the pause to end.
            by: the client that asks.
            done: called with the resumed processes or the error.

        Raises:
            RequestError: the task is being paused or resumed right now.
        """
        self._refuse_in_transition(pause.task, pause.name)
        paused = TaskRef(pause.task, pause.name, None)
        operation = self._record_request(DecisionKind.RESUME, paused, by, done)
        self._resume(operation, pause)

    def request_checkpoint(
        self, task: Task, by: str, deadline_s: float | None, done: Callable[[RescueRequest], None]
    ) -> list[RescueRequest]:
        """
        Request a rescue for a person; returns an empty list if the task has no agent that can save.

        Args:
            task: the task to save.
            by: the client that asks.
            deadline_s: time limit; None: derived from the measured duration of a save.
            done: called with each request that has ended.

        Raises:
            RequestError: too many requests wait for this task.
        """
        if self.checkpoints.is_full(task):
            raise RequestError(
                f"{name_with_pid(task)} was asked for a rescue {MOST_FOLLOWERS} times and has not "
                "saved yet. It saves when a step ends. See where it stands: watchdog stacks "
                f"{task.key.pid}"
            )
        if not self.checkpoints.agents.connected_in(task):
            return []
        operation = self._record_request(DecisionKind.CHECKPOINT, TaskRef.of(task), by)
        return self._checkpoint(
            operation, task, f"asked for by {by}", deadline_s=deadline_s, done=done
        )

    def _record_request(
        self,
        kind: DecisionKind,
        task: TaskRef,
        by: str,
        done: Callable[[Any], None] = lambda _: None,
    ) -> _Operation:
        """Record a request of a person in the journal, before it is carried out."""
        now_unix_s = time.time()
        self._requests += 1
        id_ = f"request-{self._requests}-{int(now_unix_s)}"
        entry = request_entry(id_, kind.value, task, by=by, unix_s=now_unix_s)
        self.journal.write_durably([entry], DURABLE_TIMEOUT_S)
        self.log.info(f"{kind.value} asked for", task=task.name, pid=entry.pid, by=by)
        return _Operation(id_, kind.value, task, time.monotonic(), done=done)

    def _refuse_in_transition(self, task: ProcessKey, name: str) -> None:
        if task in self._in_transition:
            raise RequestError(f"{name} is being paused or resumed right now; ask again.")

    # Actions

    def _start(self, decision: Decision, task: Task | None, operation: _Operation) -> None:
        skip = partial(self._finish, operation, OutcomeStatus.SKIPPED)
        if decision.kind is DecisionKind.NOTIFY:
            self._notify(decision, task, operation)
        elif decision.kind is DecisionKind.RESUME:
            pause = None if decision.task is None else self.pauses.get(decision.task)
            if pause is None or pause.task in self._in_transition:
                skip("It is not paused by watchdog any more.")
            else:
                self._resume(operation, pause)
        elif task is None:
            skip("The task has ended.")
        elif decision.kind is DecisionKind.PAUSE:
            if task.key in self._in_transition:
                skip("It is already being paused or resumed.")
            else:
                self._pause(operation, task, decision.reason)
        elif decision.kind is DecisionKind.CHECKPOINT:
            agent_pid, deadline_s = decision.evidence.get("agent_pid"), decision.deadline_s
            asked = self._checkpoint(
                operation, task, decision.reason, agent_pid=agent_pid, deadline_s=deadline_s
            )
            if not asked:
                detail = "The task's agent is not connected any more."
                self._finish(operation, OutcomeStatus.FAILED, detail)

    def _notify(self, decision: Decision, task: Task | None, operation: _Operation) -> None:
        too_late = self.guards.already_reported(decision)
        if too_late is not None:
            self._finish(operation, OutcomeStatus.SKIPPED, too_late)
        elif decision.notification is None:
            self._finish(operation, OutcomeStatus.FAILED, "Its text could not be made.")
        else:
            self._send(decision.notification, task, operation)

    def _send(self, notification: Notification, task: Task | None, operation: _Operation) -> None:
        """Filter a notification and show it. Every notification of the daemon goes through here."""
        about = {"title": notification.title, "body": notification.body}
        suppressed = self.notification_filter.reason(notification)
        if suppressed is not None:
            self._finish(operation, OutcomeStatus.SKIPPED, suppressed, about)
            return

        def ended(delivered: bool, detail: str) -> None:
            status = OutcomeStatus.DONE if delivered else OutcomeStatus.UNDELIVERED
            self._finish(operation, status, detail, {} if delivered else about)

        self.dispatcher.show(notification, ended, task)

    def _pause(self, operation: _Operation, task: Task, reason: str) -> None:
        """Stop a task that is neither being paused nor resumed right now."""
        keys = [member.key for member in task.members]
        others = {other.key for other in self.observer.tasks()} - {task.key}
        family = process_control.process_tree(keys, others=others)
        self._in_transition.add(task.key)
        if not self.pauses.record_intent(task, family, reason, _INTENT_TIMEOUT_S):
            self.log.warning(
                f"{clean(task.name)} is about to be paused, and no record of that can be written. "
                f"Should the daemon end, resume it with: kill -CONT {task.key.pid}"
            )

        def finish(paused: Paused | None, error: Exception | None) -> None:
            self._in_transition.discard(task.key)
            if paused is None or not paused.keys:
                self.pauses.cancel(task.key)
                if paused is None:
                    detail = str(error)
                elif self.pauses.has(task.key):
                    detail = f"{clean(task.name)} is already paused by watchdog."
                else:
                    detail = (
                        f"{clean(task.name)} was already stopped by somebody else: leave it to "
                        f"them, or resume it with: kill -CONT {task.key.pid}"
                    )
                self._finish(operation, OutcomeStatus.FAILED, detail, result=RequestError(detail))
                return
            pause = self.pauses.add(Pause(task.key, task.name, reason, paused))
            count = len(paused.keys)
            self._finish(
                operation,
                OutcomeStatus.DONE,
                f"{count} process{'es' if count > 1 else ''} stopped ({paused.method}). "
                f"Resume it with: watchdog resume {task.key.pid}",
                {"method": paused.method, "processes": count},
                result=pause.paused,
            )
            # the engine has just recorded which task to resume when memory is free again
            self.state_store.save_engine()
            self.checkpoints.copy_stopped(task)

        self.worker.submit(lambda: process_control.pause(keys, others=others), finish)

    def _resume(self, operation: _Operation, pause: Pause) -> None:
        """Resume a task that is neither being paused nor resumed right now."""
        self._in_transition.add(pause.task)

        def finish(resumed: Any, error: Exception | None) -> None:
            self._in_transition.discard(pause.task)
            if error is not None:
                self._finish(operation, OutcomeStatus.FAILED, str(error), result=error)
                return
            self.pauses.remove(pause.task)
            detail = f"{len(resumed)} of its processes run again."
            self._finish(operation, OutcomeStatus.DONE, detail, result=resumed)
            self.state_store.save_engine()

        self.worker.submit(lambda: process_control.resume(pause.paused), finish)

    def _checkpoint(
        self,
        operation: _Operation,
        task: Task,
        reason: str,
        *,
        agent_pid: Any = None,
        deadline_s: float | None = None,
        done: Callable[[RescueRequest], None] = lambda _: None,
    ) -> list[RescueRequest]:
        """
        Ask the agents of a task for a rescue. Records the outcome once all have answered.

        Args:
            operation: the operation that gets the outcome.
            task: the task.
            reason: the reason sent to the agents.
            agent_pid: ask only this agent; None: all of the task.
            deadline_s: time limit; None: derived from the measured duration of a save.
            done: called with each request that has ended.
        """
        asked: list[RescueRequest] = []

        def follow(rescue: RescueRequest) -> None:
            done(rescue)
            result = _combined_outcome(asked)
            if result is not None:
                self._finish(operation, *result)

        asked += self.checkpoints.request(
            task,
            operation.id,
            reason,
            time.monotonic(),
            agent_pid=agent_pid,
            deadline_s=deadline_s,
            follower=follow,
        )
        return asked

    def _finish(
        self,
        operation: _Operation,
        status: OutcomeStatus,
        detail: str,
        evidence: Mapping[str, Any] | None = None,
        *,
        result: Any = None,
    ) -> None:
        """Record the outcome. Report it to the engine or to the person who asked."""
        now_mono_s = time.monotonic()
        seconds = now_mono_s - operation.began_mono_s
        outcome = Outcome(
            operation.id, status, time.time(), seconds, detail, evidence or {}, at_mono_s=now_mono_s
        )
        entry = outcome_entry(outcome, operation.kind, operation.task)
        self.journal.add(entry)
        pid_field = {} if entry.pid is None else {"pid": entry.pid}
        self.log.info(
            f"{operation.kind} {status.value}", task=entry.name, **pid_field, detail=detail
        )
        if operation.by_policy:
            self.observer.call_engine(lambda engine: engine.record(outcome))
        operation.done(result)


def _operation_for(decision: Decision, task: Task | None) -> _Operation:
    about = _task_ref(decision, task)
    return _Operation(decision.id, decision.kind.value, about, time.monotonic(), by_policy=True)


def _task_ref(decision: Decision, task: Task | None) -> TaskRef:
    """The task of a decision; without a name if it has ended."""
    return TaskRef.of(task)._replace(key=decision.task)


def _combined_outcome(
    rescues: Sequence[RescueRequest],
) -> tuple[OutcomeStatus, str, Mapping[str, Any]] | None:
    """The outcome of one request to all agents of a task; None while one is open."""
    if not rescues or any(rescue.status == "requested" for rescue in rescues):
        return None
    good = [rescue for rescue in rescues if rescue.status == "done"]
    evidence: dict[str, Any] = {}
    if good and good[0].rescue is not None:
        record = good[0].rescue
        evidence = {
            "path": record.path,
            "step": record.step,
            "bytes": record.bytes,
            "seconds": record.seconds,
        }
    remedies = [rescue.remedy for rescue in rescues if rescue.remedy]
    if remedies:
        evidence["remedy"] = remedies[0]
    status = OutcomeStatus.DONE if len(good) == len(rescues) else OutcomeStatus.FAILED
    return status, " ".join(rescue.detail for rescue in rescues), evidence
