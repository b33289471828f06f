"""What the sentences of a notification are made of, and those that several share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watchdog_app.base.text.plain import argument, plain
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    Incident,
)
from watchdog_app.core.model.machine import Task


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sentences are made of."""

    decision: Decision
    task: Task | None
    agent: AgentState | None
    incident: Incident | None
    name: str

    def number(self, key: str) -> float | None:
        """A figure of the decision's evidence; None where there is none."""
        value = self.decision.evidence.get(key)
        return value if isinstance(value, int | float) else None

    def text(self, key: str, limit: int = 200) -> str | None:
        """A text of the evidence, safe to show."""
        value = self.decision.evidence.get(key)
        return plain(value, limit) if isinstance(value, str) and value else None

    @property
    def level(self) -> str:
        """Use and limit of the resource."""
        used, limit = self.number("used"), self.number("limit")
        if used is None or limit is None:
            return "an unknown amount"
        return phrases.level(used, limit, self.text("unit") or "bytes")

    @property
    def rescue(self) -> str | None:
        """The newest rescue in words."""
        path, step = self.text("path"), self.number("rescue_step") or self.number("step")
        if path is None and self.agent is not None and self.agent.rescue is not None:
            path, step = plain(self.agent.rescue.path, 200), self.agent.rescue.step
        if path is None:
            return None
        at = "" if step is None else f" of step {step:.0f}"
        return f"a rescue{at} is in {path}"

    @property
    def command(self) -> str:
        """The task as an argument."""
        return "--all" if self.task is None else argument(self.task.name, self.task.key.pid)


def span(facts: Facts) -> str:
    """`, 30 s to 2 min from now`; nothing where no end is foreseen."""
    between = phrases.interval(facts.number("low_s"), facts.number("high_s"))
    return f", {between} from now" if between else ""


def work(facts: Facts) -> Iterator[str]:
    """What is and will be saved."""
    if facts.task is None:
        return
    if facts.agent is None:
        yield "It holds no watchdog agent, so its state cannot be saved."
    elif not facts.number("may_save"):
        yield "Saving is switched off for it."
    elif facts.agent.rescue is None:
        yield "It is asked to save its state now."
    else:
        age = facts.number("rescue_age_s")
        yield f"It was saved {phrases.ago(age)}, and will be saved again."


def advice(facts: Facts) -> list[str]:
    """The first sentence: a notification is short, `watchdog explain` has the others."""
    return [] if facts.incident is None else list(facts.incident.advice[:1])


def capital(text: str) -> str:
    """With a capital at its beginning, the rest as it is."""
    return text[:1].upper() + text[1:]
