"""Notifications of heat, batteries, and cards that are lost or out of order, in words."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.base.text.plain import plain
from watchdog_app.core.diagnosis.gpu_faults import TITLES
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.facts import Facts, advice, capital, span, work
from watchdog_app.core.model.resource import SPECS, Scope


def ends_all(facts: Facts) -> tuple[str, list[str]]:
    """Heat that slows down or switches off, and a battery that runs empty."""
    when = phrases.when(facts.number("eta_s"))
    moving = phrases.movement(facts.number("slope_per_s"), facts.text("unit") or "")
    label = facts.text("label") or "it"
    fatal = bool(facts.number("lethal"))
    thing = ""
    if SPECS[facts.decision.resource.kind].scope is Scope.BATTERY:
        if when == "now":
            title = f"{capital(label)} at its end: {facts.name}"
            lines = [f"{capital(label)}: {facts.level}. The machine may switch off any moment."]
        else:
            title = f"{capital(label)} empty {when}: {facts.name}"
            lines = [f"{capital(label)}: {facts.level}{span(facts)}."]
    else:
        thing = capital(phrases.heated(label))
        does = "will switch off" if fatal else "will slow down"
        whose = "" if facts.task is None else f": {facts.name}"
        title = f"{thing} {does} from heat {when}{whose}"
        used, limit = facts.number("used") or 0.0, facts.number("limit") or 0.0
        rising = f", {moving}" if moving else ""
        lines = [f"{used:.0f} °C{rising}, limit {limit:.0f} °C{span(facts)}."]
    if not fatal:
        lines.append("Beyond it everything gets slower; nothing is lost.")
    else:
        if thing.startswith("GPU "):
            with_it = _names(facts)
            lines.append("Then what is held on the card is lost, and what runs on it dies.")
            if facts.task is not None:
                lines.append(f"On it: {facts.name}{', ' if with_it else ''}{with_it}.")
        lines += work(facts)
        if facts.number("may_pause"):
            lines.append("At the very end it is paused, so that it cools down.")
    return title, lines + advice(facts)


def fault(facts: Facts) -> tuple[str, list[str]]:
    """A card or its driver that is out of order, or something that brakes."""
    label, trouble = facts.text("label") or "a graphics card", facts.text("trouble") or ""
    known = facts.text("name") is not None
    thing = label.partition(" (")[0]
    title = f"{capital(thing)} {TITLES.get(trouble, 'has a fault')}"
    if trouble == "unplugged":
        title = "Training on battery"
    lines = [f"{capital(label)}: {plain(facts.decision.reason, 300)}."]
    if known:
        title += f": {facts.name}"
        lines += _struck(facts)
    return title, lines + advice(facts)


def _names(facts: Facts) -> str:
    """Who else is hit."""
    others, more = facts.text("others") or "", facts.number("more") or 0.0
    return others + (f" and {more:.0f} more" if others and more else "")


def _struck(facts: Facts) -> Iterator[str]:
    """Who was on it, and what is left of their work."""
    others = _names(facts)
    if others:
        yield f"With it: {others}."
    if not facts.number("fatal"):
        return
    if facts.number("card_works"):
        # The card goes on; of the program nobody has said more than that it was hit.
        yield (
            f"{facts.name} was on it, and may end with an error of CUDA's at its next step; the "
            "card itself goes on."
        )
    else:
        yield f"{facts.name} was on it: what it held there is lost, and cannot be saved any more."
    age = facts.number("rescue_age_s")
    if facts.rescue is not None:
        when = "" if age is None else f", saved {phrases.ago(age)}"
        yield f"{capital(facts.rescue)}{when}. Start it again elsewhere: it goes on from there."
    elif facts.number("had_agent"):
        yield "It has left no rescue."
    else:
        yield "It holds no watchdog agent: only checkpoints of its own are left."
