"""
Carrying out what was decided, by the policy or by a person: write it down, do it, say how it ended.

Nothing here waits: a pause runs in a thread (`Stops`), a checkpoint in the training, a
notification in a helper. Each decision gets exactly one outcome.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Notification,
    Outcome,
    OutcomeStatus,
)
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.tasks import named
from watchdog_app.daemon.checkpoints import MOST_FOLLOWING, Checkpoints, Rescue
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.notify.filter import NotificationFilter
from watchdog_app.daemon.pauses import Pause, Pauses, StateOf
from watchdog_app.history.entries import decision_entry, outcome_entry, request_entry
from watchdog_app.history.journal import Entry
from watchdog_app.history.writer import JournalWriter
from watchdog_app.machine import process_control
from watchdog_app.machine.process_control.paused import Paused, Resumed

# A decision is given this long to reach the disk, many times what a sync takes on one that is well.
# Then it is acted on anyhow: beside memory that runs out a disk that swaps takes seconds.
DURABLE_S = 0.04
_RECORD_S = 1.0  # for a pause to be written down before its first signal

Ended = Callable[[OutcomeStatus, str, Mapping[str, Any]], None]


class Stops:
    """
    Stops tasks and lets them go on: written down first, done in a thread, told when it is done.

    One task at a time is stopped or let go on by one hand.

    Args:
        tasks: those of the last look; the pause of one leaves the others running.
        kept: called when a pause or its end is to be known to the next daemon.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        checkpoints: Checkpoints,
        pauses: Pauses,
        tasks: Callable[[], Sequence[Task]],
        kept: Callable[[], None],
        log: Log,
    ) -> None:
        self._worker = worker
        self._checkpoints = checkpoints
        self._pauses = pauses
        self._tasks = tasks
        self._kept = kept
        self._log = log
        self._moving: set[ProcessKey] = set()  # being paused or resumed right now

    def moves(self, task: ProcessKey) -> bool:
        """Whether it is being paused or resumed right now."""
        return task in self._moving

    def refuse_moving(self, task: ProcessKey, name: str) -> None:
        """
        Raises:
            RequestError: it is being paused or resumed right now.
        """
        if task in self._moving:
            raise RequestError(f"{name} is being paused or resumed right now; ask again.")

    def pause(self, task: Task, reason: str, ended: Ended) -> None:
        """Stop a task that is neither being paused nor resumed right now."""
        keys = [member.key for member in task.members]
        others = {other.key for other in self._tasks()} - {task.key}
        family = process_control.family(keys, others=others)
        self._moving.add(task.key)
        if not self._pauses.intend(task, family, reason, _RECORD_S):
            self._log.warning(
                f"{clean(task.name)} is about to be paused, and that can be written down nowhere. "
                f"Should the daemon end, let it go on with: kill -CONT {task.key.pid}"
            )

        def finish(value: Any, error: Exception | None) -> None:
            self._moving.discard(task.key)
            paused: Paused | None = value
            if paused is None or not paused.keys:
                self._pauses.cancel(task.key)
                if paused is None:
                    detail = str(error)
                elif self._pauses.has(task.key):
                    detail = f"{clean(task.name)} is paused by watchdog already."
                else:
                    detail = (
                        f"{clean(task.name)} was stopped already, by somebody else: leave it to "
                        f"them, or let it go on with: kill -CONT {task.key.pid}"
                    )
                ended(OutcomeStatus.FAILED, detail, {})
                return
            self._pauses.add(Pause(task.key, task.name, reason, paused))
            count = len(paused.keys)
            ended(
                OutcomeStatus.DONE,
                f"{count} process{'es' if count > 1 else ''} stopped ({paused.method}). "
                f"Let it go on with: watchdog resume {task.key.pid}",
                {"method": paused.method, "processes": count},
            )
            self._kept()  # the engine has just learned whom to let go when there is room again
            self._checkpoints.stopped(task)

        self._worker.submit(lambda: process_control.pause(keys, others=others), finish)

    def resume(
        self, pause: Pause, ended: Ended, done: Callable[[Resumed | Exception], None] | None
    ) -> None:
        """Let a task go on that is neither being paused nor resumed right now."""
        self._moving.add(pause.task)

        def finish(value: Any, error: Exception | None) -> None:
            self._moving.discard(pause.task)
            if error is not None:
                ended(OutcomeStatus.FAILED, str(error), {})
            else:
                self._pauses.remove(pause.task)
                count = len(value.keys)
                ended(OutcomeStatus.DONE, f"{count} of its processes run again.", {})
                self._kept()
            if done is not None:
                done(error if error is not None else value)

        self._worker.submit(lambda: process_control.resume(pause.paused), finish)


class Executor:
    """
    The one place from which the machine is changed.

    Args:
        state_of: one letter as in /proc; None when that process is gone.
        recorded: called with the outcome of each decision of the policy.
        settled: why a notice would come too late; None: it would not.
        may_notify: whether the rules allow a notification about the memory group of a task.
    """

    def __init__(
        self,
        *,
        journal: JournalWriter,
        stops: Stops,
        checkpoints: Checkpoints,
        pauses: Pauses,
        dispatcher: Dispatcher,
        notification_filter: NotificationFilter,
        state_of: StateOf,
        recorded: Callable[[Outcome], None],
        settled: Callable[[Decision], str | None],
        may_notify: Callable[[Task | None], bool],
        log: Log,
    ) -> None:
        self._journal = journal
        self._stops = stops
        self._checkpoints = checkpoints
        self._pauses = pauses
        self._dispatcher = dispatcher
        self._notification_filter = notification_filter
        self._state_of = state_of
        self._recorded = recorded
        self._settled = settled
        self._may_notify = may_notify
        self._log = log
        self._request_numbers = itertools.count(1)

    def carry_out(self, decisions: Sequence[Decision], tasks: Mapping[ProcessKey, Task]) -> None:
        """Do these, each written down before the first of them is begun."""
        entries = []
        for decision in decisions:
            task = tasks.get(decision.task) if decision.task else None
            entries.append(decision_entry(decision, *_named(task)))
            self._log.info(
                f"decided: {decision.kind.value}",
                task=task.name if task else None,
                pid=decision.task.pid if decision.task else None,
                stage=decision.stage.name.lower(),
                reason=decision.reason,
            )
        if not self._journal.durable(entries, DURABLE_S):
            self._log.info("decisions are acted on before they are on the disk")
        for decision in decisions:
            task = tasks.get(decision.task) if decision.task else None
            ended = self._decision_ender(decision, task)
            try:
                self._begin(decision, task, ended)
            except Exception as error:  # one decision must not keep the others from being done
                self._log.error("a decision could not be begun", error=repr(error))
                ended(OutcomeStatus.FAILED, f"{error}", {})

    def carry_out_one(self, decision: Decision, task: Task) -> None:
        """Do one that concerns this task, also if the task has ended."""
        self.carry_out([decision], {task.key: task})

    def announce(self, notification: Notification, entry: Entry, task: Task | None) -> None:
        """
        Notify people of what has happened already.

        Args:
            entry: for the journal; its `id` is that of the notification.
            task: whom it concerns, for the rules; None if that is not known.
        """
        self._journal.add(entry)
        kind = str(entry.data.get("decision_kind"))
        key = None if task is None else task.key
        ended = self._ender(notification.id, kind, key, entry.name, entry.path)
        if not self._may_notify(task):
            ended(OutcomeStatus.SKIPPED, "Suppressed: a [[rule]] switches notifications off.", {})
        else:
            self._send(notification, task, ended)

    def considered(self) -> None:
        """What follows from a look is under way: whoever waits for that need not any more."""
        self._checkpoints.considered()

    def skip(self, decision: Decision, task: Task | None, detail: str) -> None:
        """It is not true any more: nothing is done, and that is written down."""
        self._journal.add(decision_entry(decision, *_named(task)))
        self._decision_ender(decision, task)(OutcomeStatus.SKIPPED, detail, {})

    def request_pause(
        self, task: Task, by: str, done: Callable[[Paused | Exception], None]
    ) -> None:
        """
        A person wants a task paused.

        Raises:
            RequestError: it is paused already, or being paused or resumed right now.
        """
        held = self._pauses.get(task.key)
        # The last look may be older than the pause: ask the processes themselves.
        if held is not None and not any(
            (self._state_of(key) or "Z") in "RSI" for key in held.paused.keys
        ):
            raise RequestError(f"{named(task)} is paused already.")
        self._stops.refuse_moving(task.key, task.name)
        ended = self._request(DecisionKind.PAUSE, task.key, *_named(task), by)

        def finish(status: OutcomeStatus, detail: str, evidence: Mapping[str, Any]) -> None:
            ended(status, detail, evidence)
            if status is not OutcomeStatus.DONE:
                done(RequestError(detail))
                return
            pause = self._pauses.get(task.key)
            done(pause.paused if pause else Paused((), "none", time.time()))

        self._stops.pause(task, f"asked for by {by}", finish)

    def request_resume(
        self, pause: Pause, by: str, done: Callable[[Resumed | Exception], None]
    ) -> None:
        """
        A person wants a task to go on.

        Raises:
            RequestError: it is being paused or resumed right now.
        """
        self._stops.refuse_moving(pause.task, pause.name)
        ended = self._request(DecisionKind.RESUME, pause.task, pause.name, None, by)
        self._stops.resume(pause, ended, done)

    def request_checkpoint(
        self, task: Task, by: str, deadline_s: float | None, done: Callable[[Rescue], None]
    ) -> list[Rescue]:
        """
        A person wants a rescue; empty when nobody in the task could save.

        Raises:
            RequestError: too many wait for one already.
        """
        if self._checkpoints.crowded(task):
            raise RequestError(
                f"{named(task)} was asked for a rescue {MOST_FOLLOWING} times and has not saved "
                "yet. It saves at its next step; see: watchdog status"
            )
        id_ = f"wish-{next(self._request_numbers)}-{int(time.time())}"
        key, (name, path) = task.key, _named(task)
        ended = self._ender(id_, DecisionKind.CHECKPOINT.value, key, name, path)
        found: list[Rescue] = []

        def follow(rescue: Rescue) -> None:
            done(rescue)
            result = _result(found)
            if result is not None:
                ended(*result)

        asked = self._checkpoints.request(
            task,
            id_,
            f"asked for by {by}",
            time.monotonic(),
            deadline_s=deadline_s,
            follower=follow,
        )
        if asked:
            now = time.time()
            self._journal.add(
                request_entry(
                    id_,
                    DecisionKind.CHECKPOINT.value,
                    key,
                    name or "",
                    path,
                    by=by,
                    unix_s=now,
                )
            )
            found += asked
            result = _result(found)  # all may have ended at once
            if result is not None:
                ended(*result)
        return asked

    def _begin(self, decision: Decision, task: Task | None, ended: Ended) -> None:
        if decision.kind is DecisionKind.NOTIFY:
            self._notify(decision, task, ended)
        elif decision.task is None or (task is None and decision.kind is not DecisionKind.RESUME):
            ended(OutcomeStatus.SKIPPED, "The task has ended.", {})
        elif decision.kind is DecisionKind.CHECKPOINT and task is not None:
            self._checkpoint(decision, task, ended)
        elif decision.kind is DecisionKind.PAUSE and task is not None:
            if self._stops.moves(task.key):
                ended(OutcomeStatus.SKIPPED, "It is being paused or resumed already.", {})
            else:
                self._stops.pause(task, decision.reason, ended)
        elif decision.kind is DecisionKind.RESUME:
            pause = self._pauses.get(decision.task)
            if pause is None or self._stops.moves(decision.task):
                ended(OutcomeStatus.SKIPPED, "It is not paused by watchdog any more.", {})
            else:
                self._stops.resume(pause, ended, None)

    def _notify(self, decision: Decision, task: Task | None, ended: Ended) -> None:
        too_late = self._settled(decision)
        if too_late is not None:
            ended(OutcomeStatus.SKIPPED, too_late, {})
        elif decision.notification is None:
            ended(OutcomeStatus.FAILED, "Its text could not be made.", {})
        else:
            self._send(decision.notification, task, ended)

    def _send(self, notification: Notification, task: Task | None, ended: Ended) -> None:
        """Filter a notification and show it. Every notification of the daemon comes here."""
        suppressed = self._notification_filter.reason(notification)
        if suppressed is not None:
            ended(OutcomeStatus.SKIPPED, suppressed, {})
            return
        self._dispatcher.show(
            notification,
            lambda delivered, detail: ended(
                OutcomeStatus.DONE if delivered else OutcomeStatus.UNDELIVERED, detail, {}
            ),
            task,
        )

    def _checkpoint(self, decision: Decision, task: Task, ended: Ended) -> None:
        waiting: list[Rescue] = []
        begun = False

        def follow(_: Rescue) -> None:
            result = _result(waiting) if begun else None
            if result is not None:
                ended(*result)

        agent_pid = decision.evidence.get("agent_pid")
        waiting += self._checkpoints.request(
            task,
            decision.id,
            decision.reason,
            time.monotonic(),
            agent_pid=agent_pid if isinstance(agent_pid, int) else None,
            deadline_s=decision.deadline_s,
            follower=follow,
        )
        begun = True
        if not waiting:
            ended(OutcomeStatus.FAILED, "The task's agent is not connected any more.", {})
        else:
            follow(waiting[0])

    def _request(
        self, kind: DecisionKind, task: ProcessKey, name: str | None, path: str | None, by: str
    ) -> Ended:
        id_ = f"wish-{next(self._request_numbers)}-{int(time.time())}"
        entry = request_entry(id_, kind.value, task, name or "", path, by=by, unix_s=time.time())
        self._journal.durable([entry], DURABLE_S)
        self._log.info(f"{kind.value} asked for", task=name, pid=task.pid, by=by)
        return self._ender(id_, kind.value, task, name, path)

    def _ender(
        self,
        id_: str,
        kind: str,
        key: ProcessKey | None,
        name: str | None,
        path: str | None,
        *,
        recorded: Callable[[Outcome], None] | None = None,
    ) -> Ended:
        """
        Return what writes the outcome down, whoever decided.

        Args:
            id_: of the decision, the request or the notification.
            kind: a value of `DecisionKind`.
            key: the task that it concerns.
            name: of that task.
            path: of its notebook or script.
            recorded: called with the outcome.
        """
        began = time.monotonic()

        def ended(status: OutcomeStatus, detail: str, evidence: Mapping[str, Any]) -> None:
            now = time.monotonic()
            outcome = Outcome(
                id_, status, time.time(), now - began, detail, evidence, at_mono_s=now
            )
            self._journal.add(outcome_entry(outcome, kind, key, name, path))
            whom = {} if key is None else {"pid": key.pid}
            self._log.info(f"{kind} {status.value}", task=name, **whom, detail=detail)
            if recorded is not None:
                recorded(outcome)

        return ended

    def _decision_ender(self, decision: Decision, task: Task | None) -> Ended:
        kind, (name, path) = decision.kind.value, _named(task)
        return self._ender(decision.id, kind, decision.task, name, path, recorded=self._recorded)


def _named(task: Task | None) -> tuple[str | None, str | None]:
    """Name and path, for looking an entry up by its task."""
    if task is None:
        return None, None
    return task.name, task.info.notebook or task.info.script


def _result(
    rescues: Sequence[Rescue],
) -> tuple[OutcomeStatus, str, Mapping[str, Any]] | None:
    """What became of one request to all agents of a task; None while one is under way."""
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
