"""Text of notifications: what happened, what it means now, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import capitalize_first, clean, shell_argument
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.diagnosis.gpu_faults import TITLES
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.agent_lines import pause_advice
from watchdog_app.core.explain.saving import next_start_command, saving_notes, typed_path
from watchdog_app.core.explain.selection import KERNELS, RUN_CELLS
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Decision, Incident, Stage, Topic
from watchdog_app.core.model.exits import cause_spec
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import SPECS, ResourceKind, Save, Scope
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
    def level(self) -> str:
        """Use and limit of the resource."""
        used, limit = self.number("used") or 0.0, self.number("limit") or 0.0
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
    def saved_text(self) -> str:
        """A sentence about the newest rescue and its age."""
        age = phrases.format_age(self.number("rescue_age_s"))
        return f"{capitalize_first(self.rescue or 'a rescue')}, saved {age}."

    @property
    def python(self) -> str | None:
        """Folder of the task's environment, as it is."""
        value = self.decision.evidence.get("python")
        return value if isinstance(value, str) else None

    @property
    def command(self) -> str:
        """The task as an argument of a command."""
        return "--all" if self.task is None else shell_argument(self.task.name, self.task.key.pid)


def _save_lines(facts: Facts) -> Iterator[str]:
    """Yield what has been saved and what will be saved."""
    if facts.task is None:
        return
    if facts.agent is None:
        yield "It has no watchdog agent, so its state cannot be saved."
    elif facts.decision.resource.kind is ResourceKind.WALLTIME:
        yield "Its agent saves it shortly before."
    elif not facts.number("may_save"):
        yield "Saving is switched off for it."
    elif facts.saved is None:
        yield "It is asked to save its state now."
    else:
        age = phrases.format_age(facts.number("rescue_age_s"))
        yield f"It was saved {age}, and will be saved again."


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
    spec = SPECS[facts.decision.resource.kind]
    eta, expected = facts.number("eta_s"), facts.text("expected", 300)
    # Show the trend next to an expected need only if the trend ends soon as well.
    trend = expected is None or (eta is not None and eta < _AT_HAND_S)
    heated = capitalize_first(phrases.heated_device(facts.label))
    end = f"{heated} will switch off from heat" if facts.is_hot else spec.title
    within = phrases.format_eta(eta if trend else None)
    title = f"{end} {within}: {facts.name}"
    lines = []
    if expected is not None:  # it may begin with the name of a file
        named = expected.startswith(facts.name)
        lines = [f"{expected if named else capitalize_first(expected)}."]
    when = quantities.eta(eta, facts.number("low_s"), facts.number("high_s"))
    end = f", {spec.exhausted} in {when}" if trend and eta is not None else ""
    if spec.scope is Scope.BATTERY and within == "now":  # a machine switches off before it is empty
        title = f"{capitalize_first(facts.label)} at its end: {facts.name}"
        end = ". The machine may switch off any moment"
    lines.append(f"{capitalize_first(facts.label)}: {facts.level}{end}.")
    if trend and spec.save is not Save.EVERYBODY and spec.scope is not Scope.TIME:
        lines += _growth_lines(facts)
    if facts.is_hot and heated.startswith("GPU "):
        lines.append("Then what is held on the card is lost, and what runs on it dies.")
        if facts.task is not None:
            lines.append(f"On it: {', '.join(filter(None, (facts.name, _other_names(facts))))}.")
    return title, [*lines, *_save_lines(facts), *_consequence_lines(facts), *_advice(facts)]


def _consequence_lines(facts: Facts) -> Iterator[str]:
    """Yield what happens at the limit."""
    kind = facts.decision.resource.kind
    if kind is ResourceKind.GUARD:
        saved = "saved, then " if facts.agent is not None and facts.number("may_save") else ""
        yield f"There it is {saved}stopped or refused more memory, and not killed."
    elif facts.number("throttles") and not facts.number("may_pause"):
        yield "There its programs stall (memory.high): raise it before systemd-oomd ends them."
    elif SPECS[kind].scope is Scope.TIME:
        yield "Then it is ended."
    elif not facts.number("fatal"):
        yield "Beyond it the machine gets slow; nothing is killed yet."
    elif facts.number("may_pause"):
        why = "it cools down" if facts.is_hot else "it does not die"
        yield f"At the very end it is paused, so that {why}."
    elif SPECS[kind].scope is Scope.CARD:
        yield "Beyond it the training ends with an error: out of GPU memory."
    elif facts.task is not None and SPECS[kind].save is not Save.EVERYBODY:
        yield "If it continues, it dies."


def _growth_lines(facts: Facts) -> Iterator[str]:
    """Yield the growth of the task, or the known source of growth that no task explains."""
    growth, share = facts.number("task_slope_bytes_per_s"), facts.number("share") or 0.0
    others = facts.number("others_share") or 0.0
    unaccounted = facts.number("unaccounted_share") or 0.0
    if facts.task is not None:
        if growth is not None:
            yield f"{facts.name} {quantities.growth(growth, share)}."
    elif others + unaccounted <= 0.5:
        yield "Which program makes it grow is not known yet."
    elif others >= unaccounted:
        yield "Most of the growth comes from programs that watchdog does not watch."
    else:
        yield "Most of the growth is in no process: files in RAM (tmpfs, /dev/shm) or the kernel."


def _stalled(facts: Facts) -> tuple[str, list[str]]:
    why = facts.reason
    if facts.incident is not None:
        why = f"{capitalize_first(clean(facts.incident.why, 600)).rstrip('.')}."
    command = f"See what each thread does: watchdog stacks {facts.command}"
    return f"Stalled: {facts.name}", [why, *_advice(facts), command]


def _rescued(facts: Facts) -> tuple[str, list[str]]:
    size, seconds = facts.number("bytes"), facts.number("seconds")
    cost = "" if size is None else f" ({format_bytes(size)} in {format_duration(seconds)})"
    return f"Saved: {facts.name}", [
        f"{capitalize_first(facts.rescue or 'a rescue is on the disk')}{cost}.",
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
    danger, first = f"fill up {facts.label}", "Make room"
    if facts.is_hot:
        danger, first = f"overheat {phrases.heated_device(facts.label)}", "Let it cool down"
    lines = [f"It was about to {danger} ({facts.level}). Its state stays in memory."]
    if facts.rescue is not None:
        lines.append(f"Besides, {facts.rescue}.")
    lines.append(f"{first}, then resume it with: watchdog resume {facts.command}")
    if facts.task is not None:
        lines += pause_advice(facts.task.kind)
    return f"Paused: {facts.name}", lines + _advice(facts)


def _pause_failed(facts: Facts) -> tuple[str, list[str]]:
    lines = [facts.reason, "It continues, and may be killed for lack of memory."]
    if facts.rescue is not None:
        lines.append(f"If so, nothing but the last steps is lost: {facts.rescue}.")
    return f"Could not pause: {facts.name}", lines


def _resumed(facts: Facts) -> tuple[str, list[str]]:
    lines = [f"There is room again: {facts.label}, {facts.level}."]
    if facts.is_hot:
        device = capitalize_first(phrases.heated_device(facts.label))
        lines = [f"{device} has cooled down: {facts.level}."]
    if facts.task is not None and facts.task.kind not in KERNELS:
        lines.append("If it ran in a terminal, it is in the background now: type fg there.")
    return f"Running again: {facts.name}", lines


def _resolved(facts: Facts) -> tuple[str, list[str]]:
    used, limit = facts.number("used"), facts.number("limit") or 0.0
    if facts.decision.resource.kind is ResourceKind.STALLED:
        return f"Continues: {facts.name}", [facts.reason]
    if used is None:
        return f"{capitalize_first(facts.label)} is well again", [facts.reason]
    lines = [f"{capitalize_first(facts.label)}: {facts.level}."]
    # a steady level is not safe if the resource is almost full
    if facts.text("unit") == "bytes" and used >= _BRIMFUL * limit > 0:
        lines.append("It is all but full: the next larger request fails or ends it.")
        return f"No longer growing: {facts.name}", lines
    return f"No longer in danger: {facts.name}", lines


def _exited(facts: Facts) -> tuple[str, list[str]]:
    spec = cause_spec(facts.decision.evidence.get("cause"))
    of_worker = facts.number("worker") is not None
    title = f"{spec.title}: {'a worker of ' if of_worker else ''}{facts.name}"
    lines = [facts.reason]
    if facts.rescue is not None:
        lines.append(facts.saved_text)
        if not of_worker:
            lines.append(capitalize_first(phrases.resume_text(facts.saved)))
    elif not of_worker and (facts.agent is not None or facts.number("step") is not None):
        lines.append("It left no rescue: its work is lost.")
    if spec.out_of_memory and not of_worker:
        lines += _advice(facts)
    return title, lines


def _restarted(facts: Facts) -> tuple[str, list[str]]:
    lines = [facts.reason, "It is empty: what was in its variables is gone."]
    if facts.rescue is not None:
        lines.append(f"{facts.saved_text} Run the cells again: it resumes from there.")
    return f"Kernel restarted: {facts.name}", lines


def _fault(facts: Facts) -> tuple[str, list[str]]:
    """Text for a fault of a GPU or its driver, and for a slowdown."""
    trouble, known = facts.text("trouble") or "", facts.text("name") is not None
    thing = facts.label.partition(" (")[0]
    title = f"{capitalize_first(thing)} {TITLES.get(trouble, 'has a fault')}"
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
        yield f"{facts.name} was on it, and may end with a CUDA error; the card itself works."
    else:
        yield f"{facts.name} was on it: what it held there is lost, and cannot be saved any more."
    if facts.rescue is None:
        yield "It has left no rescue: only checkpoints of its own are left."
    else:
        yield f"{facts.saved_text} Start it again elsewhere: it resumes from there."


def _past(facts: Facts) -> tuple[str, list[str]]:
    return f"Not enough memory: {facts.name}", [f"{clean(facts.decision.reason, 300)}."]


def _unsaved(facts: Facts) -> tuple[str, list[str]]:
    task = facts.task
    kind, framework = (None, None) if task is None else (task.kind, task.framework)
    change = "turn saving on for new kernels" if kind in RUN_CELLS else "start it next time with"
    command = next_start_command(kind, facts.name, facts.python)
    lines = ["If memory runs out, it can be paused but not saved."]
    lines += [f"If it trains, {change}: {command}", *saving_notes(framework)]
    return f"{facts.name} cannot be saved", lines


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
    Topic.EXITED: _TopicSpec(_exited, ("explain",), "critical"),
    Topic.RESTARTED: _TopicSpec(_restarted, ("explain",)),
    Topic.GPU_LOST: _TopicSpec(_fault, ("show",), "critical"),
    Topic.FAULT: _TopicSpec(_fault, ("snooze", "show")),
    Topic.SLOWED: _TopicSpec(_fault, ("snooze", "show")),
    Topic.PAST: _TopicSpec(_past, ("show",), "normal"),
    Topic.UNSAVED: _TopicSpec(_unsaved, ("enable_saving", "not_now"), "low"),
}


def _urgency(stage: Stage, topic: Topic) -> str:
    """Return the urgency: of a fault by its cost, of a resource critical only at stage PAUSE."""
    if topic in (Topic.FAULT, Topic.SLOWED):
        return {Stage.WATCH: "low", Stage.WARN: "normal"}.get(stage, "critical")
    return "critical" if stage >= Stage.PAUSE else "normal"


def _buttons(keys: Sequence[str], facts: Facts) -> Iterator[Button]:
    """Yield the buttons that make sense for this task now."""
    has_task = facts.task is not None
    in_kernel = facts.task is not None and facts.task.kind in RUN_CELLS
    fits = {
        "save": has_task and facts.agent is not None and facts.number("may_save") != 0,
        "pause": has_task and bool(facts.number("by_hand")),
        "resume": has_task,
        "enable_saving": in_kernel,
        "not_now": in_kernel,
    }
    for key in keys:
        if key == "enable_saving" and in_kernel:
            yield ACTIONS[key].button(typed_path(facts.python or ""))
        elif fits.get(key, True):
            yield ACTIONS[key].button(facts.command if has_task else "")
