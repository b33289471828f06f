"""Text of notifications: what happened, what it means now, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchdog_app.base.text.plain import capitalize_first, clean, shell_argument
from watchdog_app.base.text.quantities import format_bytes, format_duration, format_step
from watchdog_app.core.diagnosis.gpu_faults import TITLES
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.selection import KERNELS, RUN_CELLS
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import (
    Decision,
    Incident,
    Stage,
    Topic,
)
from watchdog_app.core.model.exits import cause_spec
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import SPECS, ResourceKind, Save, Scope
from watchdog_app.core.model.settings import BUSY_CORES
from watchdog_app.core.model.status import Button, Notification

_BRIMFUL = 0.97
# an exhaustion by the trend within this time is shown even with another expected need
_AT_HAND_S = 30.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Input of the sentences."""

    decision: Decision
    task: Task | None
    agent: AgentState | None
    incident: Incident | None
    name: str

    def number(self, key: str) -> float | None:
        """Return a figure of the decision's evidence. None: missing."""
        value = self.decision.evidence.get(key)
        return value if isinstance(value, int | float) else None

    def text(self, key: str, limit: int = 200) -> str | None:
        """
        Return a text of the evidence, safe to show. None: missing.

        Args:
            key: key of the evidence.
            limit: most characters.
        """
        value = self.decision.evidence.get(key)
        return clean(value, limit) if isinstance(value, str) and value else None

    @property
    def label(self) -> str:
        """Name of the resource."""
        return self.text("label") or "memory"

    @property
    def is_hot(self) -> bool:
        """Whether the resource is a temperature."""
        return SPECS[self.decision.resource.kind].scope is Scope.HEAT

    @property
    def heated(self) -> str:
        """The hot device, capitalized for the start of a sentence."""
        return capitalize_first(phrases.heated_device(self.label))

    @property
    def level(self) -> str:
        """Use and limit of the resource."""
        used, limit = self.number("used"), self.number("limit")
        if used is None or limit is None:
            return "an unknown amount"
        return phrases.format_level(used, limit, self.text("unit") or "bytes")

    @property
    def saved(self) -> RescueRecord | None:
        """The newest rescue of the agent."""
        return None if self.agent is None else self.agent.rescue

    @property
    def reason(self) -> str:
        """The reason of the decision as a sentence."""
        return f"{capitalize_first(clean(self.decision.reason, 300)).rstrip('.')}."

    @property
    def rescue(self) -> str | None:
        """The newest rescue as text. None: the task has no rescue."""
        path, step = self.text("path"), self.number("rescue_step") or self.number("step")
        if path is None and self.saved is not None:
            path, step = clean(self.saved.path, 200), self.saved.step
        if path is None:
            return None
        at = "" if step is None else f" of step {step:.0f}"
        return f"a rescue{at} is in {path}"

    @property
    def command(self) -> str:
        """The task as an argument of a command."""
        return "--all" if self.task is None else shell_argument(self.task.name, self.task.key.pid)


def _interval_text(facts: Facts) -> str:
    """Return `, 30 s to 2 min from now`. Empty without a forecast."""
    between = phrases.format_interval(facts.number("low_s"), facts.number("high_s"))
    return f", {between} from now" if between else ""


def _save_lines(facts: Facts) -> Iterator[str]:
    """Yield what has been saved and what will be saved."""
    if facts.task is None:
        return
    if facts.agent is None:
        yield "It has no watchdog agent, so its state cannot be saved."
    elif not facts.number("may_save"):
        yield "Saving is switched off for it."
    elif facts.saved is None:
        yield "It is asked to save its state now."
    else:
        age = facts.number("rescue_age_s")
        yield f"It was saved {phrases.format_age(age)}, and will be saved again."


def _advice(facts: Facts) -> list[str]:
    """Return the first advice only, to keep it short; `watchdog explain` shows the others."""
    return [] if facts.incident is None else list(facts.incident.advice[:1])


def notification(
    decision: Decision,
    task: Task | None = None,
    agent: AgentState | None = None,
    incident: Incident | None = None,
) -> Notification:
    """
    Build the notification of a decision of kind `notify`.

    Args:
        decision: `evidence["topic"]` gives the topic.
        task: the task's current or last state.
        agent: current or last state of its agent.
        incident: for its advice.
    """
    topic = Topic(str(decision.evidence.get("topic", Topic.WARNING.value)))
    known = task.name if task is not None else decision.evidence.get("name")
    name = clean(known) if isinstance(known, str) else "this machine"
    facts = Facts(decision, task, agent, incident, name)
    spec = _TOPICS[topic]
    title, lines = spec.text(facts)
    return Notification(
        id=decision.id,
        incident=decision.incident,
        stage=decision.stage.name.lower(),
        urgency=spec.urgency or _urgency(decision.stage, topic),
        title=title,
        body="\n".join(lines),
        task=None if decision.task is None else decision.task.pid,
        unix_s=decision.at_unix_s,
        actions=tuple(_buttons(spec.buttons, facts)),
        topic=topic.value,
    )


def _warning(facts: Facts) -> tuple[str, list[str]]:
    kind = facts.decision.resource.kind
    spec = SPECS[kind]
    if spec.save is Save.EVERYBODY:
        return _shutdown_warning(facts)
    eta, expected = facts.number("eta_s"), facts.text("expected", 300)
    # Show the trend next to an expected need only if the trend ends soon as well.
    trend = expected is None or (eta is not None and eta < _AT_HAND_S)
    title = f"{spec.title} {phrases.format_eta(eta if trend else None)}: {facts.name}"
    lines = [] if expected is None else [f"{capitalize_first(expected)}."]
    lines.append(
        f"{capitalize_first(facts.label)}: {facts.level}{_interval_text(facts) if trend else ''}."
    )
    growth = facts.number("task_slope_bytes_per_s") if trend else None
    if facts.task is None and trend:
        lines.append(_growth_source(facts))
    elif growth is not None:
        share = facts.number("share") or 0.0
        lines.append(f"{facts.name} grows by {format_bytes(growth)}/s, {share:.0%} of the growth.")
    lines += _save_lines(facts)
    if kind is ResourceKind.GUARD:
        lines.append("There it is saved, then stopped or refused more memory, and not killed.")
    elif facts.number("throttles") and not facts.number("may_pause"):
        lines.append(
            "There its programs stall (memory.high), and systemd-oomd may end them. Raise the "
            "limit, and they continue."
        )
    elif not facts.number("fatal"):
        lines.append("Beyond it the machine gets slow; nothing is killed yet.")
    elif facts.number("may_pause"):
        lines.append("At the very end it is paused, so that it does not die.")
    elif spec.scope is Scope.CARD:
        lines.append("Beyond it the training ends with an error: out of GPU memory.")
    elif facts.task is not None:
        lines.append("If it continues, it dies.")
    return title, lines + _advice(facts)


def _growth_source(facts: Facts) -> str:
    """Return the known source of growth that is not attributed to a task."""
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


def _stalled(facts: Facts) -> tuple[str, list[str]]:
    silent, usual = facts.number("silent_s"), facts.number("step_s")
    at, likely = facts.number("step"), facts.text("likely", 300)
    after = "" if at is None else f" since step {at:.0f}"
    lines = [f"No step for {format_duration(silent)}{after}; one takes {format_step(usual)}."]
    if likely is not None:
        reasons = facts.text("reasons", 300)
        because = "" if reasons is None else f": {reasons}"
        lines.append(f"Most likely {likely}{because}.")
        remedy = facts.text("cure", 300)
        lines += [] if remedy is None else [remedy]
    else:
        lines.append(
            "It computes nothing, and why is not known: it may wait for data or for a lock."
            if (facts.number("cores") or 0.0) <= BUSY_CORES
            else "It still computes: one step may have become very long, or it turns in circles."
        )
        place = facts.text("at")
        lines += [] if place is None else [f"It is at {place}."]
    lines.append(f"See what each thread does: watchdog stacks {facts.command}")
    return f"Stalled: {facts.name}", lines


def _rescued(facts: Facts) -> tuple[str, list[str]]:
    size, seconds = facts.number("bytes"), facts.number("seconds")
    known = size is not None and seconds is not None
    cost = f" ({format_bytes(size)} in {format_duration(seconds)})" if known else ""
    where = capitalize_first(facts.rescue or "a rescue is on the disk")
    return f"Saved: {facts.name}", [
        f"{where}{cost}.",
        f"The training continues. If it dies, {phrases.resume_text(facts.saved)}",
    ]


def _rescue_failed(facts: Facts) -> tuple[str, list[str]]:
    remedy, before = facts.text("remedy", 300), facts.saved
    lines = [facts.reason, *([] if remedy is None else [remedy])]
    lines.append(
        "There is no rescue of this run: if it dies, its work is lost."
        if before is None
        else f"If it dies, it resumes from step {before.step}, in {clean(before.path, 200)}."
    )
    return f"Not saved: {facts.name}", lines


def _paused(facts: Facts) -> tuple[str, list[str]]:
    kind = None if facts.task is None else facts.task.kind
    was, first = f"It was about to fill up {facts.label} ({facts.level}). Its", "Make room"
    if facts.is_hot:
        was = f"{facts.heated} was about to switch off from heat ({facts.level}). The task's"
        first = "Let it cool down"
    lines = [f"{was} state stays in memory."]
    if facts.rescue is not None:
        lines.append(f"Besides, {facts.rescue}.")
    lines.append(f"{first}, then resume it with: watchdog resume {facts.command}")
    if kind in RUN_CELLS:
        lines.append(
            "Do not press Restart or Interrupt in Jupyter: a paused kernel cannot answer, "
            "is killed, and loses its state."
        )
    if kind is not None and kind not in KERNELS:
        lines.append("If it ran in a terminal, type fg there after that.")
    return f"Paused: {facts.name}", lines + _advice(facts)


def _pause_failed(facts: Facts) -> tuple[str, list[str]]:
    lines = [
        clean(facts.decision.reason, 300),
        "It continues, and may be killed for lack of memory.",
    ]
    if facts.rescue is not None:
        lines.append(f"If so, nothing but the last steps is lost: {facts.rescue}.")
    return f"Could not pause: {facts.name}", lines


def _resumed(facts: Facts) -> tuple[str, list[str]]:
    lines = [f"There is room again: {facts.label}, {facts.level}."]
    if facts.is_hot:
        lines = [f"{facts.heated} has cooled down: {facts.level}."]
    if facts.task is not None and facts.task.kind not in KERNELS:
        lines.append("If it ran in a terminal, it is in the background now: type fg there.")
    return f"Running again: {facts.name}", lines


def _resolved(facts: Facts) -> tuple[str, list[str]]:
    label, kind = capitalize_first(facts.label), facts.decision.resource.kind
    if kind is ResourceKind.STALLED:
        return f"Continues: {facts.name}", [facts.reason]
    used, limit = facts.number("used"), facts.number("limit") or 0.0
    if used is None:
        return f"{label} is well again", [facts.reason]
    title = f"No longer in danger: {facts.name}"
    if facts.is_hot:
        return title, [f"{facts.heated} gets no hotter: {facts.level}."]
    if SPECS[kind].scope is Scope.BATTERY:
        return title, [f"The {facts.label} will last: {facts.level}."]
    lines = [f"{label} has stopped filling up: {facts.level}."]
    # a steady level is not safe if the resource is almost full
    if limit and used >= _BRIMFUL * limit:
        title = f"No longer growing: {facts.name}"
        lines.append("It is all but full: the next larger request there fails or ends it.")
    return title, lines


def _exited(facts: Facts) -> tuple[str, list[str]]:
    spec = cause_spec(facts.decision.evidence.get("cause"))
    title, age = f"{spec.title}: {facts.name}", facts.number("rescue_age_s")
    lines = [facts.reason]
    if facts.number("worker") is not None:
        title = f"{spec.title}: a worker of {facts.name}"
        if facts.text("path") is not None:
            lines.append(
                f"{capitalize_first(facts.rescue or '')}, saved {phrases.format_age(age)}."
            )
        return title, lines
    step = facts.number("step")
    if facts.rescue is not None:
        saved = facts.saved
        # Agents report once a second, so the rescue may be of a later step than the last report.
        further = step is not None and (saved is None or step > saved.step)
        at = f" It was at step {step:.0f} when last read." if further else ""
        lines.append(f"{capitalize_first(facts.rescue)}, saved {phrases.format_age(age)}.{at}")
        lines.append(capitalize_first(phrases.resume_text(saved)))
    elif facts.agent is not None or step is not None:
        lines.append("It left no rescue: its work is lost.")
    return title, lines + (_advice(facts) if spec.out_of_memory else [])


def _restarted(facts: Facts) -> tuple[str, list[str]]:
    pid, after = facts.number("restarted_pid"), facts.number("restarted_after_s")
    pid_text = "" if pid is None else f" as process {pid:.0f}"
    when = "" if after is None else f", {format_duration(after)} after it died"
    lines = [
        f"Jupyter has restarted its kernel{pid_text}{when}.",
        "It is empty: what was in its variables is gone.",
    ]
    if facts.rescue is not None:
        lines.append(
            f"{capitalize_first(facts.rescue)}. Run the cells again: it resumes from there."
        )
    return f"Kernel restarted: {facts.name}", lines


def _shutdown_warning(facts: Facts) -> tuple[str, list[str]]:
    """Text for heat that switches a device off, and for a battery that runs empty."""
    when = phrases.format_eta(facts.number("eta_s"))
    label, thing = capitalize_first(facts.label), ""
    if facts.is_hot:
        thing = facts.heated
        whose = "" if facts.task is None else f": {facts.name}"
        title = f"{thing} will switch off from heat {when}{whose}"
        moving = phrases.format_slope(facts.number("slope_per_s"), facts.text("unit") or "")
        used, limit = facts.number("used") or 0.0, facts.number("limit") or 0.0
        rising = f", {moving}" if moving else ""
        lines = [f"{used:.0f} °C{rising}, limit {limit:.0f} °C{_interval_text(facts)}."]
    elif when == "now":
        title = f"{label} at its end: {facts.name}"
        lines = [f"{label}: {facts.level}. The machine may switch off any moment."]
    else:
        title = f"{label} empty {when}: {facts.name}"
        lines = [f"{label}: {facts.level}{_interval_text(facts)}."]
    if thing.startswith("GPU "):
        lines.append("Then what is held on the card is lost, and what runs on it dies.")
        if facts.task is not None:
            lines.append(f"On it: {', '.join(filter(None, (facts.name, _other_names(facts))))}.")
    lines += _save_lines(facts)
    if facts.number("may_pause"):
        lines.append("At the very end it is paused, so that it cools down.")
    return title, lines + _advice(facts)


def _fault(facts: Facts) -> tuple[str, list[str]]:
    """Text for a fault of a GPU or its driver, and for a slowdown."""
    trouble, known = facts.text("trouble") or "", facts.text("name") is not None
    thing = facts.label.partition(" (")[0]
    title = f"{capitalize_first(thing)} {TITLES.get(trouble, 'has a fault')}"
    if trouble == "unplugged":
        title = "Training on battery"
    lines = [f"{capitalize_first(facts.label)}: {clean(facts.decision.reason, 300)}."]
    if known:
        title += f": {facts.name}"
        lines += _affected_lines(facts)
    return title, lines + _advice(facts)


def _other_names(facts: Facts) -> str:
    """Return the names of the other affected tasks."""
    others, more = facts.text("others") or "", facts.number("more") or 0.0
    return others + (f" and {more:.0f} more" if others and more else "")


def _affected_lines(facts: Facts) -> Iterator[str]:
    """Yield the affected tasks, and what is left of their work."""
    others = _other_names(facts)
    if others:
        yield f"With it: {others}."
    if not facts.number("fatal"):
        return
    if facts.number("card_works"):
        # The GPU still works. About the program it is only known that the fault hit it.
        yield (
            f"{facts.name} was on it, and may end with an error of CUDA's at its next step; the "
            "card itself works."
        )
    else:
        yield f"{facts.name} was on it: what it held there is lost, and cannot be saved any more."
    age = facts.number("rescue_age_s")
    if facts.rescue is not None:
        when = "" if age is None else f", saved {phrases.format_age(age)}"
        yield (
            f"{capitalize_first(facts.rescue)}{when}. Start it again elsewhere: it resumes from "
            "there."
        )
    elif facts.number("had_agent"):
        yield "It has left no rescue."
    else:
        yield "It has no watchdog agent: only checkpoints of its own are left."


class _TopicSpec(NamedTuple):
    """One row: the text of a topic's notification and its possible buttons."""

    text: Callable[[Facts], tuple[str, list[str]]]
    buttons: tuple[str, ...]  # most useful first; desktops show three or four
    # "critical" stays on the screen and ignores do-not-disturb. Empty: depends on the incident's
    # stage.
    urgency: str = ""


_TOPICS = {
    Topic.WARNING: _TopicSpec(_warning, ("save", "pause", "snooze", "show")),
    Topic.RESCUED: _TopicSpec(_rescued, ("show",), "normal"),
    Topic.RESCUE_FAILED: _TopicSpec(_rescue_failed, ("save", "snooze", "show")),
    Topic.PAUSED: _TopicSpec(_paused, ("resume", "show"), "critical"),
    Topic.PAUSE_FAILED: _TopicSpec(_pause_failed, ("save", "show"), "critical"),
    Topic.RESUMED: _TopicSpec(_resumed, ("show",), "normal"),
    Topic.RESOLVED: _TopicSpec(_resolved, (), "low"),
    Topic.STALLED: _TopicSpec(_stalled, ("snooze", "show")),
    Topic.EXITED: _TopicSpec(_exited, ("show",), "critical"),
    Topic.RESTARTED: _TopicSpec(_restarted, ("show",)),
    Topic.GPU_LOST: _TopicSpec(_fault, ("show",), "critical"),
    Topic.FAULT: _TopicSpec(_fault, ("snooze", "show")),
    Topic.SLOWED: _TopicSpec(_fault, ("snooze", "show")),
}


def _urgency(stage: Stage, topic: Topic) -> str:
    """Return the urgency: of a fault by its cost, of a resource critical only at stage PAUSE."""
    if topic in (Topic.FAULT, Topic.SLOWED):
        return {Stage.WATCH: "low", Stage.WARN: "normal"}.get(stage, "critical")
    return "critical" if stage >= Stage.PAUSE else "normal"


def _buttons(keys: Sequence[str], facts: Facts) -> Iterator[Button]:
    """Yield the buttons that make sense for this task now."""
    has_task = facts.task is not None
    fits = {
        "save": has_task and facts.agent is not None and facts.number("may_save") != 0,
        "pause": has_task and bool(facts.number("by_hand")),
        "resume": has_task,
    }
    for key in keys:
        if fits.get(key, True):
            yield ACTIONS[key].button(facts.command if has_task else "")
