"""
The last resort: when a task is paused, and when it may run again.

A pause loses nothing by itself: the work stays in memory. But it stops the
user's work, so it needs a fatal resource at the very end (stage hold), and a
task that makes the growth. A task with an agent is saved first and paused
right after, so that even a kernel restarted by mistake loses nothing; never
while a save runs. One task at a time: the next only when the first pause has
had time to work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Outcome,
    OutcomeStatus,
    Stage,
    Topic,
)
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import Pause, Scope
from watchdog_app.core.model.tasks import is_suspended
from watchdog_app.core.policy.danger import Danger
from watchdog_app.core.policy.incidents import OpenIncident, PausedTask
from watchdog_app.core.policy.schedule import CheckpointSchedule, step_s

_ROOM = 2.0  # a task runs again when the headroom is this many times what it was
_RESUME_RETRY_S = 60.0
_PAUSE_ANSWER_S = 30.0
_UNSEEN_S = 1.0  # a look right after the signal may come too early to see it
_STILL_GROWS = 0.25  # of the headroom at the last pause


def pause_target(danger: Danger, busy: frozenset[ProcessKey]) -> Task | None:
    """
    The task to pause next, None when none may or need be.

    Args:
        danger: one resource.
        busy: tasks that any incident is about to pause.
    """
    incident = danger.incident
    if (
        danger.assessment.stage < Stage.PAUSE
        or not _pause_helps(danger)
        or incident.attribution.mostly_unwatched
    ):
        return None
    if incident.paused_mono_s is not None:
        settle = min(danger.tick.settings.stages.settle_s, danger.left_s / 2)
        if danger.tick.mono_s - incident.paused_mono_s < settle:
            return None
        # The forecast takes seconds to see that the growth has stopped. Another task is paused
        # only when what was left at the first pause is being eaten all the same.
        grown = danger.reading.used - incident.paused_used
        if grown < _STILL_GROWS * (danger.reading.limit - incident.paused_used):
            return None
    candidates = []
    for contributor in incident.attribution.actionable:
        task = danger.tasks.get(contributor.task)
        if task is None:
            continue  # it has ended
        if task.key in busy:
            return None  # it is the one, and on its way to its pause
        if may_pause(danger, task):
            candidates.append(task)
        elif not danger.is_stopped(task):
            break  # it must not be touched: its pause must not fall on those who grow less
    # The one that grows fastest, unless somebody said that others are to be paused before it.
    return max(candidates, key=danger.save_order, default=None)


def may_pause(danger: Danger, task: Task) -> bool:
    """
    Whether a pause of this task is allowed at all under this resource.

    Args:
        danger: the resource.
        task: under it.
    """
    return (
        can_pause_manually(danger, task)
        and _pause_helps(danger)
        and danger.permits(task).pause
        and task.key not in danger.incident.overruled
        and task.key not in danger.incident.unpausable
    )


def can_pause_manually(danger: Danger, task: Task) -> bool:
    """Whether the user could pause it; the settings for automatic pauses do not matter."""
    return (
        danger.tick.can_pause
        and danger.reading.fatal
        and task.uid == danger.tick.own_uid
        # Its kernels are tasks of their own; stopping the server would only hide them.
        and task.kind is not TaskKind.SERVER
        and not danger.is_stopped(task)
    )


def _pause_helps(danger: Danger) -> bool:
    return danger.reading.fatal and danger.spec.pause is not Pause.NEVER


def unsaved_agent(danger: Danger, task: Task) -> tuple[AgentState, CheckpointSchedule] | None:
    """
    An agent of the task whose save the pause has to wait for; None: pause it now.

    A save that could not be had (failed, not permitted, no answer) is no reason to let the task
    die: its state is safe in memory while it is paused.

    Args:
        danger: the resource.
        task: to be paused.
    """
    may_save = danger.permits(task).checkpoint
    for agent in danger.agents.get(task.key, ()):
        schedule = danger.tick.schedules[agent.key]
        if agent.saving:
            return agent, schedule
        if not may_save or not agent.training or schedule.failures:
            continue
        if schedule.pending is not None:
            too_late = danger.left_s < danger.tick.settings.watch.fast_interval_s
            if too_late and danger.tick.mono_s - schedule.asked_mono_s > 2 * step_s(agent):
                continue  # the step takes longer than there is time
            return agent, schedule
        if not schedule.ready_for_pause(agent, danger.tick.mono_s):
            return agent, schedule
    return None


def pause(danger: Danger, task: Task) -> Decision:
    """The decision to pause it."""
    incident = danger.incident
    incident.paused_mono_s = danger.tick.mono_s
    incident.paused_used = danger.reading.used
    agents = danger.agents.get(task.key, ())
    saved = [danger.tick.schedules[agent.key].saved_mono_s for agent in agents]
    at = max((each for each in saved if each is not None), default=None)
    if at is not None:
        work = f"its rescue is {format_duration(max(0.0, danger.tick.mono_s - at))} old"
    elif agents:
        work = "it could not be saved, and would otherwise die"
    else:
        work = "it has no agent, and would otherwise die"
    near = phrases.nearness_text(danger.reading.key.kind, danger.reading.label)
    hot = danger.spec.scope is Scope.HEAT
    decision = danger.decide(
        DecisionKind.PAUSE,
        task,
        f"{near}, {task.name} makes it {'hot' if hot else 'grow'}, {work}",
        deadline_s=max(1.0, min(danger.tick.settings.stages.settle_s, 10 * danger.left_s)),
    )
    incident.pausing[decision.id] = task.key
    return decision


def update_paused(danger: Danger) -> list[Decision]:
    """
    Forget who runs again by a person's hand or has ended; let run who has room again.

    Room means: twice the headroom of the moment of the pause, and time enough, at the pace of
    that moment, that no warning would be due. It must have lasted `settle_s`.
    """
    incident, decisions = danger.incident, []
    for key, paused in list(incident.paused.items()):
        task = danger.tasks.get(key)
        if task is None:
            del incident.paused[key]
        elif not danger.is_stopped(task):
            if paused.resuming is None and danger.tick.mono_s - paused.since_mono_s > _UNSEEN_S:
                del incident.paused[key]
                incident.overruled.add(key)
                # What stood still was calm; whether it stays so is seen from now on.
                incident.calm_since_mono_s = danger.tick.mono_s
        elif _has_room(danger, paused) and paused.resuming is None:
            decision = danger.decide(
                DecisionKind.RESUME,
                task,
                f"{danger.reading.label}: there is room again, {task.name} may run",
                {"paused_s": danger.tick.mono_s - paused.since_mono_s},
            )
            paused.resuming = decision.id
            decisions.append(decision)
    return decisions


def has_stopped_task(
    incident: OpenIncident, tasks: Mapping[ProcessKey, Task], mono_s: float
) -> bool:
    """Whether a task that was paused on this account still stands."""
    return any(
        key in tasks
        and (is_suspended(tasks[key], held=True) or mono_s - paused.since_mono_s <= _UNSEEN_S)
        for key, paused in incident.paused.items()
    )


def tasks_being_paused(incidents: Iterable[OpenIncident]) -> frozenset[ProcessKey]:
    """Tasks that any incident is about to pause."""
    return frozenset(key for incident in incidents for key in incident.pausing.values())


def expire_pauses(danger: Danger) -> None:
    """Drop pauses without an outcome: a pause takes a fraction of a second."""
    incident = danger.incident
    asked = incident.paused_mono_s
    if incident.pausing and (asked is None or danger.tick.mono_s - asked > _PAUSE_ANSWER_S):
        incident.pausing.clear()


def record_outcome(
    incident: OpenIncident, decision: Decision, outcome: Outcome, now: float
) -> Topic | None:
    """
    Learn how a pause or a resume ended; what is to be reported of it.

    Args:
        incident: of the decision.
        decision: to pause or to resume.
        outcome: of it.
        now: monotonic seconds.
    """
    done = outcome.status is OutcomeStatus.DONE
    if decision.kind is DecisionKind.RESUME:
        paused = incident.paused.get(decision.task) if decision.task is not None else None
        if paused is None or paused.resuming != decision.id:
            return None
        if not done or decision.task is None:  # it is tried again later
            paused.resuming = None
            paused.room_since_mono_s = now + _RESUME_RETRY_S
            return None
        del incident.paused[decision.task]
        incident.last_report = None  # "running again" says that it is over, too
        return Topic.RESUMED
    task = incident.pausing.pop(decision.id, None)
    if task is None:
        return None
    if done:
        evidence = decision.evidence
        room = float(evidence["limit"] or 0) - float(evidence["used"] or 0)
        incident.paused[task] = PausedTask(now, max(0.0, room), incident.pace_per_s)
        incident.pace_per_s = 0.0  # that was its pace: what still grows shows anew
        return Topic.PAUSED
    if outcome.status is OutcomeStatus.FAILED:
        incident.unpausable.add(task)
        return Topic.PAUSE_FAILED
    incident.paused_mono_s = None  # nothing happened: there is nothing to wait for
    return None


def _has_room(danger: Danger, paused: PausedTask) -> bool:
    headroom = danger.reading.limit - danger.reading.used
    enough = max(
        _ROOM * paused.headroom,
        paused.pace_per_s * danger.tick.settings.stages.warn_s,
        danger.spec.resume_headroom,
    )
    # Also where pauses have been forbidden since: one that was made must end all the same.
    if headroom < enough:
        paused.room_since_mono_s = None
        return False
    if paused.room_since_mono_s is None:
        paused.room_since_mono_s = danger.tick.mono_s
    return danger.tick.mono_s - paused.room_since_mono_s >= danger.tick.settings.stages.settle_s
