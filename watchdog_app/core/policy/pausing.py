"""
The last resort: when to pause a task, and when to resume it.

A pause loses no work, because the work stays in memory. But a pause stops the user's work. It
therefore needs a fatal resource that is about to run out (stage PAUSE) and a task that causes the
growth.

A task with an agent is saved first and paused right after, if there is time for a save. The work
then survives even if the user restarts a kernel by mistake. A task is never paused during a save.
Only one task is paused at a time. The next pause comes only after the first one had time to work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Evidence,
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
from watchdog_app.core.policy.schedule import step_s

_ROOM = 2.0  # a task resumes when the headroom is this many times the headroom at the pause
_RESUME_RETRY_S = 60.0
_PAUSE_ANSWER_S = 30.0
_LAST_SAMPLES = 3  # samples until a save has ended and the task is stopped
_UNSEEN_S = 1.0  # a sample right after the signal may still show the old state
_STILL_GROWS = 0.25  # share of the headroom at the last pause


def pause_target(danger: Danger, busy: frozenset[ProcessKey]) -> Task | None:
    """
    Return the task to pause next. None: no task may be paused, or no pause is needed.

    Args:
        danger: one resource.
        busy: tasks that any incident is about to pause.
    """
    incident = danger.incident
    if danger.assessment.stage < Stage.PAUSE or incident.attribution.mostly_unwatched:
        return None
    if incident.paused_mono_s is not None:
        settle = min(danger.tick.settings.stages.settle_s, danger.left_s / 2)
        if danger.tick.mono_s - incident.paused_mono_s < settle:
            return None
        # The forecast needs seconds to see that the growth has stopped. Pause another task only if
        # the resource has used up much of its headroom since the last pause.
        grown = danger.reading.used - incident.paused_used
        if grown < _STILL_GROWS * (danger.reading.limit - incident.paused_used):
            return None
    candidates = []
    for contributor in incident.attribution.actionable:
        task = danger.tasks.get(contributor.task)
        if task is None:
            continue  # the task has ended
        if task.key in busy:
            return None  # this task is the target, and its pause is already under way
        if may_pause(danger, task):
            candidates.append(task)
        elif not danger.is_stopped(task):
            # this task must not be paused, and tasks that grow less must not be paused instead
            break
    # Take the task that grows fastest, unless a rule says to pause other tasks first.
    return max(candidates, key=danger.save_order, default=None)


def may_pause(danger: Danger, task: Task) -> bool:
    """
    Whether a pause of this task is allowed at all under this resource.

    Args:
        danger: one resource.
        task: a task under it.
    """
    return (
        can_pause_manually(danger, task)
        and danger.spec.pause is not Pause.NEVER
        and danger.permits(task).pause
        and task.key not in danger.incident.overruled
        and task.key not in danger.incident.unpausable
    )


def can_pause_manually(danger: Danger, task: Task) -> bool:
    """
    Whether the user could pause the task; the settings for automatic pauses do not matter.

    Args:
        danger: one resource.
        task: a task under it.
    """
    return (
        danger.reading.fatal
        and task.uid == danger.tick.own_uid
        # The kernels of a server are tasks of their own. Stopping the server would only hide them.
        and task.kind is not TaskKind.SERVER
        and not danger.is_stopped(task)
    )


def unsaved_agent(danger: Danger, task: Task) -> AgentState | None:
    """
    Return an agent whose save must end before the pause. None: pause the task now.

    If a save is impossible (it failed, is not permitted, got no answer, or comes too late), pause
    anyway. The task must not die for that: its state is safe in memory while it is paused.

    Args:
        danger: one resource.
        task: the task to pause.
    """
    may_save = danger.permits(task).checkpoint
    for agent in danger.agents.get(task.key, ()):
        schedule = danger.tick.schedules[agent.key]
        if agent.saving:
            return agent
        if not may_save or not agent.training or schedule.failures:
            continue
        # The resource would run out before the save and the signal after it.
        late = danger.left_s < _LAST_SAMPLES * danger.tick.settings.watch.fast_interval_s
        if schedule.pending is None:
            done = late or schedule.ready_for_pause(agent, danger.tick.mono_s)
        else:
            done = late and danger.tick.mono_s - schedule.asked_mono_s > 2 * step_s(agent)
        if not done:
            return agent
    return None


def pause(danger: Danger, task: Task) -> Decision:
    """
    Return the decision to pause the task.

    Args:
        danger: one resource.
        task: the task to pause.
    """
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
    effect = "hot" if danger.spec.scope is Scope.HEAT else "grow"
    reason = f"{near}, {task.name} makes it {effect}, {work}"
    deadline_s = max(1.0, min(danger.tick.settings.stages.settle_s, 10 * danger.left_s))
    decision = danger.decide(DecisionKind.PAUSE, task, reason, deadline_s=deadline_s)
    incident.pausing[decision.id] = task.key
    return decision


def update_paused(danger: Danger) -> list[Decision]:
    """
    Forget tasks that ended or that the user resumed; resume tasks that have room again.

    Room means twice the headroom at the pause. At the pace of that moment, the room must also be
    enough that no warning is due. It must last for `settle_s`.
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
                # The resource was calm because the task was stopped. Restart the calm period now.
                incident.calm_since_mono_s = danger.tick.mono_s
        elif _has_room(danger, paused) and paused.resuming is None:
            reason = f"{danger.reading.label}: there is room again, {task.name} may run"
            more: Evidence = {"paused_s": danger.tick.mono_s - paused.since_mono_s}
            decision = danger.decide(DecisionKind.RESUME, task, reason, more)
            paused.resuming = decision.id
            decisions.append(decision)
    return decisions


def has_stopped_task(
    incident: OpenIncident, tasks: Mapping[ProcessKey, Task], mono_s: float
) -> bool:
    """
    Whether a task that this incident paused is still stopped.

    Args:
        incident: incident of a resource.
        tasks: tasks of the latest sample, by key.
        mono_s: time of that sample.
    """
    return any(
        key in tasks
        and (is_suspended(tasks[key], paused=True) or mono_s - paused.since_mono_s <= _UNSEEN_S)
        for key, paused in incident.paused.items()
    )


def tasks_being_paused(incidents: Iterable[OpenIncident]) -> frozenset[ProcessKey]:
    """Return the tasks that any incident is about to pause."""
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
    Record the outcome of a pause or a resume, and return the topic to report.

    Args:
        incident: incident of the decision.
        decision: the pause or the resume.
        outcome: its outcome.
        now: monotonic seconds.
    """
    task, done = decision.task, outcome.status is OutcomeStatus.DONE
    if task is None:
        return None
    if decision.kind is DecisionKind.RESUME:
        paused = incident.paused.get(task)
        if paused is None or paused.resuming != decision.id:
            return None
        if not done:  # try again later
            paused.resuming = None
            paused.room_since_mono_s = now + _RESUME_RETRY_S
            return None
        del incident.paused[task]
        incident.last_report = None  # "running again" also reports the end of the danger
        return Topic.RESUMED
    if incident.pausing.pop(decision.id, None) is None:
        return None
    if done:
        evidence = decision.evidence
        room = float(evidence["limit"] or 0) - float(evidence["used"] or 0)
        incident.paused[task] = PausedTask(now, max(0.0, room), incident.pace_per_s)
        # the old pace came from the paused task; growth of other tasks sets a new pace
        incident.pace_per_s = 0.0
        return Topic.PAUSED
    if outcome.status is OutcomeStatus.FAILED:
        incident.unpausable.add(task)
        return Topic.PAUSE_FAILED
    incident.paused_mono_s = None  # no pause happened, so there is nothing to wait for
    return None


def _has_room(danger: Danger, paused: PausedTask) -> bool:
    headroom = danger.reading.limit - danger.reading.used
    enough = max(
        _ROOM * paused.headroom,
        paused.pace_per_s * danger.tick.settings.stages.warn_s,
        danger.spec.resume_headroom,
    )
    # A pause also ends if pauses have been forbidden since.
    if headroom < enough:
        paused.room_since_mono_s = None
        return False
    if paused.room_since_mono_s is None:
        paused.room_since_mono_s = danger.tick.mono_s
    return danger.tick.mono_s - paused.room_since_mono_s >= danger.tick.settings.stages.settle_s
