"""Which deaths people hear of, and the decision to tell them. Pure."""

from __future__ import annotations

from watchdog_app.core.death_records import Cause, CauseKind, DeathFacts
from watchdog_app.core.exit_status import crashed
from watchdog_app.core.outlook import CeilingKey, CeilingKind, Decision, DecisionKind, Stage
from watchdog_app.core.records import AgentView, Snapshot, Task
from watchdog_app.core.telling import Topic

_NOTED_S = 10.0  # of what ran for less than that a good end is not even noted ...
_NEWS_S = 60.0  # ... and a failure sooner than that is what its user looks at anyway


def death_notice(
    ident: str,
    task: Task,
    agent: AgentView | None,
    cause: Cause,
    *,
    snapshot: Snapshot,
    incident: tuple[str, CeilingKey, Stage] | None,
) -> Decision:
    """The decision to tell of a death; `incident` is the one that it ended, if any."""
    rescue = None if agent is None else agent.rescue
    return Decision(
        id=ident,
        kind=DecisionKind.NOTIFY,
        incident="" if incident is None else incident[0],
        ceiling=CeilingKey(CeilingKind.RAM) if incident is None else incident[1],
        stage=Stage.OK if incident is None else incident[2],
        task=task.key,
        at_mono_s=snapshot.mono_s,
        at_unix_s=snapshot.unix_s,
        reason=cause.text,
        evidence={
            "topic": Topic.DIED.value,
            "cause": cause.kind.value,
            "worker": cause.worker,
            "name": task.name,
            "rss_bytes": task.rss_bytes,
            "step": None if agent is None else agent.step,
            "path": None if rescue is None else rescue.path,
            "rescue_step": None if rescue is None else rescue.step,
            "rescue_age_s": None
            if rescue is None
            else max(0.0, snapshot.unix_s - rescue.saved_unix_s),
        },
    )


def worth_telling(cause: Cause, agent: AgentView | None) -> bool:
    """
    Whether people want to hear of it.

    They end their own programs all day: without a sign of memory only a training that was
    under way, and neither ended by itself nor by Ctrl-C or a plain kill, is news.
    """
    if cause.kind is CauseKind.AIRBAG:
        return False  # it has told of that itself, as it did it
    if cause.news or cause.spec.told:
        return True
    return (
        agent is not None
        and agent.training
        and not cause.spec.by_itself
        and not any(name in cause.text for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    )


def worth_noting(
    facts: DeathFacts, cause: Cause, *, seen: bool, kernel: bool, age_s: float, cared_for: bool
) -> bool | None:
    """
    What an end is for the journal.

    Args:
        seen: it was in a look.
        kernel: it was a Jupyter kernel.
        age_s: how long it ran; 0 where that is not known.
        cared_for: an agent in it had not said that its training is over.

    Returns:
        True: a death. False: an end that is noted for who asks. None: not worth a line.
    """
    if (cared_for and not cause.spec.by_itself) or cause.news or cause.spec.noted:
        return True
    if not seen:
        return None
    failed = crashed(facts.wait_status) or cause.kind in (CauseKind.FAILED, CauseKind.KILLED)
    if failed and (kernel or age_s >= _NEWS_S):
        return True
    odd = cause.kind is not CauseKind.ENDED
    return False if odd or kernel or age_s >= _NOTED_S else None
