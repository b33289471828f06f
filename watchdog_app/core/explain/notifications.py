"""Notifications in words: what happened, what it means now, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.device_notifications import ends_all, fault
from watchdog_app.core.explain.facts import Facts, advice, capital, span, work
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import (
    Decision,
    Incident,
    Notification,
    NotificationAction,
    Topic,
    urgency,
)
from watchdog_app.core.model.exits import cause_spec
from watchdog_app.core.model.machine import Task, TaskKind
from watchdog_app.core.model.readings import AIRBAG_LIMIT
from watchdog_app.core.model.resource import SPECS, ResourceKind, Save, Scope

_BRIMFUL = 0.97
_NOTEBOOKS = frozenset((TaskKind.NOTEBOOK, TaskKind.KERNEL))
_AT_HAND_S = 30.0  # the end of a trend, which is told though something else was foretold


def notification(
    decision: Decision,
    task: Task | None = None,
    agent: AgentState | None = None,
    incident: Incident | None = None,
) -> Notification:
    """
    The notification that a decision of kind `notify` asks for.

    Args:
        decision: `evidence["topic"]` says what it is about.
        task: the one that it concerns, as it is or was last seen.
        agent: the one that the task holds or held.
        incident: for its advice.
    """
    topic = Topic(str(decision.evidence.get("topic", Topic.WARNING.value)))
    known = task.name if task is not None else decision.evidence.get("name")
    name = plain(known) if isinstance(known, str) else "this machine"
    facts = Facts(decision, task, agent, incident, name)
    title, lines = _TEXTS[topic](facts)
    return Notification(
        id=decision.id,
        incident=decision.incident,
        stage=decision.stage.name.lower(),
        urgency=urgency(decision.stage, topic),
        title=title,
        body="\n".join(lines),
        task=None if decision.task is None else decision.task.pid,
        unix_s=decision.at_unix_s,
        actions=tuple(_buttons(topic, facts)),
        topic=topic.value,
    )


def _warning(facts: Facts) -> tuple[str, list[str]]:
    kind = facts.decision.resource.kind
    spec = SPECS[kind]
    if spec.save is Save.EVERYBODY:
        return ends_all(facts)
    eta, expected = facts.number("eta_s"), facts.text("foretold", 300)
    # What is foretold is no matter of the trend until now, unless that is about to end as well.
    trend = expected is None or (eta is not None and eta < _AT_HAND_S)
    title = f"{spec.title} {phrases.when(eta if trend else None)}: {facts.name}"
    label = facts.text("label") or spec.title
    lines = [] if expected is None else [f"{capital(expected)}."]
    lines.append(f"{capital(label)}: {facts.level}{span(facts) if trend else ''}.")
    growth = facts.number("task_slope_bytes_per_s") if trend else None
    if facts.task is None and trend:
        lines.append(_whose(facts))
    elif growth is not None:
        share = facts.number("share") or 0.0
        lines.append(f"{facts.name} grows by {format_bytes(growth)}/s, {share:.0%} of the growth.")
    lines += work(facts)
    if label.startswith(AIRBAG_LIMIT):
        lines.append("There it is held, and not killed.")
    elif facts.number("throttles") and not facts.number("may_pause"):
        lines.append(
            "There its programs stand still (memory.high), and systemd-oomd may end them. Raise "
            "the limit to let them go on."
        )
    elif not facts.number("lethal"):
        lines.append("Beyond it the machine gets slow; nothing is killed yet.")
    elif facts.number("may_pause"):
        lines.append("At the very end it is paused, so that it does not die.")
    elif spec.scope is Scope.CARD:
        lines.append("Beyond it the training ends with an error: out of GPU memory.")
    elif facts.task is not None:
        lines.append("If it goes on, it dies.")
    return title, lines + advice(facts)


def _whose(facts: Facts) -> str:
    """Where growth comes from that is put on no task, as far as it was seen."""
    others = facts.number("others_share") or 0.0
    unaccounted = facts.number("unaccounted_share") or 0.0
    if others + unaccounted <= 0.5:
        return "Which program makes it grow is not known yet."
    if others >= unaccounted:
        return "Most of the growth comes from programs that watchdog does not watch."
    return (
        "Most of the growth is in no process: files in RAM (tmpfs, /dev/shm), or memory of the "
        "kernel's own."
    )


def _saving(facts: Facts) -> tuple[str, list[str]]:
    label = capital(facts.text("label") or "memory")
    size, seconds = facts.number("state_bytes"), facts.number("expected_s")
    what = "Its state" if size is None else f"Its state of {format_bytes(size)}"
    cost = "" if seconds is None else f"; the last time that took {format_duration(seconds)}"
    return f"Saving: {facts.name}", [
        f"{label}: {facts.level}.",
        f"{what} is being written{cost}. The training goes on when that is done.",
    ]


def _stalled(facts: Facts) -> tuple[str, list[str]]:
    silent, usual = facts.number("silent_s"), facts.number("step_s")
    at, likely = facts.number("step"), facts.text("likely", 300)
    after = "" if at is None else f" since step {at:.0f}"
    lines = [f"No step for {format_duration(silent)}{after}; one takes {phrases.step_time(usual)}."]
    if likely is not None:
        reasons = facts.text("reasons", 300)
        because = "" if reasons is None else f": {reasons}"
        lines.append(f"Most likely {likely}{because}.")
        remedy = facts.text("cure", 300)
        lines += [] if remedy is None else [remedy]
    else:
        lines.append(
            "It computes nothing, and why is not known: it may wait for data or for a lock."
            if (facts.number("cores") or 0.0) < 0.1
            else "It still computes: one step may have become very long, or it turns in circles."
        )
        place = facts.text("at")
        lines += [] if place is None else [f"It is at {place}."]
    lines.append(f"See what each thread does: watchdog stacks {facts.command}")
    return f"Stalled: {facts.name}", lines


def _rescued(facts: Facts) -> tuple[str, list[str]]:
    size, seconds = facts.number("bytes"), facts.number("seconds")
    cost = (
        ""
        if size is None or seconds is None
        else (f" ({format_bytes(size)} in {format_duration(seconds)})")
    )
    where = capital(facts.rescue or "a rescue is on the disk")
    return f"Saved: {facts.name}", [
        f"{where}{cost}.",
        f"The training goes on. If it dies, {phrases.onwards(_rescue_of(facts))}",
    ]


def _rescue_of(facts: Facts) -> RescueRecord | None:
    return None if facts.agent is None else facts.agent.rescue


def _rescue_failed(facts: Facts) -> tuple[str, list[str]]:
    lines = [f"{capital(plain(facts.decision.reason, 300)).rstrip('.')}."]
    remedy = facts.text("remedy", 300)
    if remedy is not None:
        lines.append(remedy)
    before = facts.agent.rescue if facts.agent is not None else None
    lines.append(
        "There is no rescue of this run: if it dies, its work is lost."
        if before is None
        else f"If it dies, it goes on from step {before.step}, in {plain(before.path, 200)}."
    )
    return f"Not saved: {facts.name}", lines


def _paused(facts: Facts) -> tuple[str, list[str]]:
    label = facts.text("label") or "memory"
    hot = SPECS[facts.decision.resource.kind].scope is Scope.HEAT
    lines = [
        f"{capital(phrases.heated(label))} was about to switch off from heat ({facts.level}). "
        "The task's state stays in memory."
        if hot
        else f"It was about to fill up {label} ({facts.level}). Its state stays in memory."
    ]
    if facts.rescue is not None:
        lines.append(f"Besides, {facts.rescue}.")
    first = "Let it cool down" if hot else "Make room"
    lines.append(f"{first}, then resume it with: watchdog resume {facts.command}")
    lines += _beware(facts)
    return f"Paused: {facts.name}", lines + advice(facts)


def _beware(facts: Facts) -> Iterator[str]:
    """What not to do to a paused task, and what a terminal needs afterwards."""
    kind = None if facts.task is None else facts.task.kind
    if kind in _NOTEBOOKS:
        yield (
            "Do not press Restart or Interrupt in Jupyter: a paused kernel cannot answer, "
            "is killed, and loses its state."
        )
    elif kind is not None:
        yield "If it ran in a terminal, type fg there after that."


def _pause_failed(facts: Facts) -> tuple[str, list[str]]:
    lines = [plain(facts.decision.reason, 300), "It goes on, and may be killed for lack of memory."]
    if facts.rescue is not None:
        lines.append(f"If so, nothing but the last steps is lost: {facts.rescue}.")
    return f"Could not pause: {facts.name}", lines


def _resumed(facts: Facts) -> tuple[str, list[str]]:
    label = facts.text("label") or "memory"
    lines = [f"There is room again: {label}, {facts.level}."]
    if SPECS[facts.decision.resource.kind].scope is Scope.HEAT:
        lines = [f"{capital(phrases.heated(label))} has cooled down: {facts.level}."]
    if facts.task is not None and facts.task.kind not in _NOTEBOOKS:
        lines.append("If it ran in a terminal, it is in the background now: type fg there.")
    return f"Running again: {facts.name}", lines


def _over(facts: Facts) -> tuple[str, list[str]]:
    label, kind = facts.text("label") or "memory", facts.decision.resource.kind
    if kind is ResourceKind.STALLED:
        return f"Goes on: {facts.name}", [f"{capital(plain(facts.decision.reason))}."]
    if facts.number("used") is None:
        return f"{capital(label)} is well again", [f"{capital(plain(facts.decision.reason))}."]
    text = f"{capital(label)} has stopped filling up: {facts.level}."
    if SPECS[kind].scope is Scope.HEAT:
        text = f"{capital(phrases.heated(label))} gets no hotter: {facts.level}."
    elif SPECS[kind].scope is Scope.BATTERY:
        text = f"The {label} will last: {facts.level}."
    used, limit = facts.number("used") or 0.0, facts.number("limit") or 0.0
    if text.endswith(f"filling up: {facts.level}.") and limit and used >= _BRIMFUL * limit:
        # Steady is not safe where nothing is left.
        return f"No longer growing: {facts.name}", [
            text,
            "It is all but full: the next larger request there fails or ends it.",
        ]
    return f"No longer in danger: {facts.name}", [text]


def _died(facts: Facts) -> tuple[str, list[str]]:
    spec = cause_spec(facts.decision.evidence.get("cause"))
    title = f"{spec.title}: {facts.name}"
    lines = [f"{capital(plain(facts.decision.reason, 300)).rstrip('.')}."]
    if facts.number("worker") is not None:
        title = f"{spec.title}: a worker of {facts.name}"
        if facts.text("path") is not None:
            lines.append(f"{capital(facts.rescue or '')}, saved {_age(facts)}.")
        return title, lines
    step, age = facts.number("step"), facts.number("rescue_age_s")
    if facts.rescue is not None:
        saved = _rescue_of(facts)
        # Agents report once a second: the rescue may be of a later step than the last report.
        further = step is not None and (saved is None or step > saved.step)
        at = f" It was at step {step:.0f}." if further else ""
        lines.append(f"{capital(facts.rescue)}, saved {phrases.ago(age)}.{at}")
        lines.append(capital(phrases.onwards(saved)))
    elif facts.agent is not None or step is not None:
        lines.append("It left no rescue: its work is lost.")
    return title, lines + (advice(facts) if spec.out_of_memory else [])


def _age(facts: Facts) -> str:
    return phrases.ago(facts.number("rescue_age_s"))


def _restarted(facts: Facts) -> tuple[str, list[str]]:
    pid, after = facts.number("restarted_pid"), facts.number("restarted_after_s")
    pid_text = "" if pid is None else f" as process {pid:.0f}"
    when = "" if after is None else f", {format_duration(after)} after it died"
    lines = [
        f"Jupyter has restarted its kernel{pid_text}{when}.",
        "It is empty: what was in its variables is gone.",
    ]
    if facts.rescue is not None:
        lines.append(f"{capital(facts.rescue)}. Run the cells again: it goes on from there.")
    return f"Kernel restarted: {facts.name}", lines


_TEXTS: dict[Topic, Callable[[Facts], tuple[str, list[str]]]] = {
    Topic.WARNING: _warning,
    Topic.SAVING: _saving,
    Topic.RESCUED: _rescued,
    Topic.RESCUE_FAILED: _rescue_failed,
    Topic.PAUSED: _paused,
    Topic.PAUSE_FAILED: _pause_failed,
    Topic.RESUMED: _resumed,
    Topic.OVER: _over,
    Topic.STALLED: _stalled,
    Topic.DIED: _died,
    Topic.RESTARTED: _restarted,
    Topic.GPU_LOST: fault,
    Topic.FAULT: fault,
    Topic.SLOWED: fault,
}


def _buttons(topic: Topic, facts: Facts) -> Iterator[NotificationAction]:
    """What makes sense now, the most useful first; desktops show three or four."""
    about = facts.command
    worrying = topic in (Topic.WARNING, Topic.RESCUE_FAILED, Topic.PAUSE_FAILED)
    if facts.task is not None:
        if worrying and facts.agent is not None and facts.number("may_save") != 0:
            yield NotificationAction("checkpoint", "Save now", f"watchdog checkpoint {about}")
        if topic in (Topic.WARNING, Topic.SAVING) and facts.number("by_hand"):
            yield NotificationAction("pause", "Pause", f"watchdog pause {about}")
        if topic is Topic.PAUSED:
            yield NotificationAction("resume", "Resume", f"watchdog resume {about}")
    if topic in (Topic.WARNING, Topic.RESCUE_FAILED, Topic.STALLED, Topic.FAULT, Topic.SLOWED):
        whom = "" if facts.task is None else f" {about}"
        yield NotificationAction("snooze", "Snooze 15 min", f"watchdog snooze{whom} --for 15m")
    if topic is not Topic.OVER:
        yield NotificationAction("show", "Show", "watchdog top")
