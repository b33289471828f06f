"""Explain an exit, and what to change after it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from watchdog_app.base.codec import objects
from watchdog_app.base.text.plain import HIDDEN, capitalize_first, clean
from watchdog_app.base.text.quantities import (
    format_bytes,
    format_duration,
    format_rate,
    number_or_none,
)
from watchdog_app.core.diagnosis.evidence import NO_KILL, lost_worker
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.saving import MAGIC, enable_command
from watchdog_app.core.explain.selection import RUN_CELLS
from watchdog_app.core.model.exits import CauseKind, Certainty, cause_spec


def advice_after_exit(entry: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield advice, most useful first. Empty unless an out-of-memory error or a lost worker ended it.

    Args:
        entry: journal entry of kind "exit".
    """
    cause = entry.get("cause")
    evidence = objects(entry, "evidence")
    errors = (str(each.get("text")) for each in evidence if each.get("source") == "python")
    if cause == "failed" and any(map(lost_worker, errors)):
        sources = {each.get("source") for each in evidence}
        if NO_KILL in sources and "worker" not in sources:
            yield "The kernel counted no kill for memory: a worker crashed, or somebody killed it."
            return
        yield (
            "A worker process was killed, most often for memory: use fewer workers (num_workers, "
            "prefetch_factor), keep no cache in the data set, and arrays instead of lists."
        )
    spec = cause_spec(cause)
    if not (spec.out_of_memory and spec.own):
        return
    agent = entry.get("agent")
    if isinstance(agent, Mapping):
        yield "Make the batch smaller: the step that failed needs memory in proportion."
        yield 'Or let the agent train in parts what does not fit: Rescue(..., on_oom="shrink").'
        where = " --gpu" if spec.of_card else ""
        yield f"See before the start what fits: watchdog estimate MODEL --batch N{where}"
    else:
        yield "Smaller batches or chunks; look for what is kept in a list or dict, too."
    if cause == "address_space":
        yield "The shell's own limit stopped it: see `ulimit -v`, and raise it before the start."
    elif spec.of_card:
        yield "Or train in mixed precision, and close what else is on that card."


def growth_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield the lines and tensors that grew, as the agent reported before the end.

    Args:
        entry: journal entry. The result is empty after a normal exit.
    """
    grew = entry.get("grew")
    if cause_spec(entry.get("cause")).by_itself or not isinstance(grew, list):
        return
    yield from (line for line in grew if isinstance(line, str))


_SURE = {
    Certainty.EXACT.value: "That is exact.",
    Certainty.LIKELY.value: "That is what all the evidence points to; it is not proven.",
    Certainty.UNKNOWN.value: "More than that is not known.",
}
_MOST_ADVICE = 4
_LONG = 300


def describe_death(
    entry: Mapping[str, Any],
    *,
    at: str,
    now_unix_s: float,
    advice: Sequence[str] = (),
    successor: Mapping[str, Any] | None = None,
) -> str:
    """
    Explain one exit: what happened, the evidence, the use of memory, the rescue, how to resume.

    Args:
        entry: journal entry of kind "exit".
        at: time of the exit, as text for people.
        now_unix_s: current time, for the age of the exit.
        advice: advice of the last incident that named the task.
        successor: the task that replaced it: "pid" and "name".
    """
    death = _Death(entry)
    lines = list(_headline(death, at, now_unix_s))
    for part in (
        _evidence_lines(entry),
        _memory_holder_lines(entry),
        _saved_lines(death),
        resume_lines(entry, successor),
        _advice_lines(advice),
    ):
        found = list(part)
        lines += ["", *found] if found else []
    return "\n".join(lines)


class _Death:
    """Parsed fields of a journal entry."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.by_itself = cause_spec(entry.get("cause")).by_itself
        self.unix_s = number_or_none(entry.get("unix_s")) or 0.0
        self.worker = entry.get("worker")
        rescue, agent = entry.get("rescue"), entry.get("agent")
        self.rescue: Mapping[str, Any] | None = rescue if isinstance(rescue, Mapping) else None
        self.agent: Mapping[str, Any] | None = agent if isinstance(agent, Mapping) else None
        self.had_agent = bool(entry.get("had_agent")) or self.agent is not None

    @property
    def of_worker_alone(self) -> bool:
        """Whether only a worker ended, and its task has not saved anything."""
        return self.worker is not None and self.rescue is None

    def since(self, moment: object) -> float | None:
        """Return the seconds from a moment to the end. None: the moment is unknown."""
        begin = number_or_none(moment)
        return None if begin is None else max(0.0, self.unix_s - begin)


def _headline(death: _Death, at: str, now_unix_s: float) -> Iterator[str]:
    entry = death.entry
    who = clean(str(entry.get("name") or f"process {entry.get('pid')}"))
    who = f"{who} ({phrases.kind_text(entry.get('task_kind'))}, pid {entry.get('pid')})"
    ago = phrases.format_age(max(0.0, now_unix_s - death.unix_s))
    ran_s = death.since(entry.get("started_unix_s"))
    ran = f", after {format_duration(ran_s)}" if ran_s else ""
    verb, lives = "ended" if death.by_itself else "died", ""
    if death.worker is not None:
        ran_file = os.path.basename(clean(str(entry.get("worker_path") or ""), _LONG))
        which = f"{ran_file}, " if ran_file and ran_file != entry.get("name") else ""
        who = f"A worker ({which}process {death.worker}) of {who}"
        lives = " The task itself lived on."
    yield f"{who} {verb} at {at}, {ago}{ran}.{lives}"
    reason = str(entry.get("reason") or entry.get("text") or "unknown")
    if entry.get("cause") == CauseKind.ENDED:
        reason = "it finished"
    reason = capitalize_first(clean(reason, _LONG)).rstrip(".")
    yield f"Why: {reason}. {_SURE.get(str(entry.get('certainty')), '')}".rstrip()
    rss = number_or_none(entry.get("rss_bytes"))
    if rss is not None:
        yield f"It held {format_bytes(rss)} of RAM when it was last seen."


def _evidence_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    found = objects(entry, "evidence")
    if found:
        yield "How we know:"
    for each in found:
        known = each.get("certainty")
        word = str(known).replace("_", " ") if known in _SURE else "unknown"
        yield f"  [{word}] {clean(str(each.get('text')), _LONG)}"


def _memory_holder_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    takers = entry.get("takers")
    growth = {each.get("pid"): each for each in objects(takers, "watched")}
    table = objects(takers, "kernel_table")
    rows = table or list(growth.values())
    if not rows:
        return
    source = "the kernel's own list" if table else "of the watched programs alone"
    yield f"Who held the memory then ({source}):"
    dead = entry.get("worker") or entry.get("pid")
    for row in rows:
        rate = number_or_none(growth.get(row.get("pid"), {}).get("bytes_per_s"))
        rises = f", growing by {format_rate(rate)}" if rate is not None and rate > 1 << 20 else ""
        own = ", this one" if row.get("pid") == dead else ""
        foreign = ", not watched" if row.get("watched") is False else ""
        yield (
            f"  {format_bytes(number_or_none(row.get('bytes'))):>9}  {clean(str(row.get('name')))} "
            f"(process {row.get('pid')}{own}{foreign}{rises})"
        )


def _saved_lines(death: _Death) -> Iterator[str]:
    if death.of_worker_alone:
        return
    agent = death.agent or {}
    step, age_s = agent.get("step"), number_or_none(agent.get("report_age_s"))
    # Agents report once a second, so the training had made further steps.
    read = "" if age_s is None else f", {format_duration(age_s)} before the end"
    at = f"It was at step {step} when last read{read}"
    not_saved = agent.get("not_saved")
    if isinstance(not_saved, str):
        yield f"Its last save failed: {clean(not_saved, _LONG).rstrip('.')}."
    if death.rescue is not None:
        done, saved_s = death.rescue.get("step"), death.since(death.rescue.get("saved_unix_s"))
        age = "" if saved_s is None else f", saved {format_duration(saved_s)} before the end"
        size = format_bytes(number_or_none(death.rescue.get("bytes")))
        yield f"What was saved: step {done} ({size}{age}) in"
        yield f"  {clean(str(death.rescue.get('path')), _LONG)}"
        missing = death.rescue.get("missing")
        if isinstance(missing, list) and missing:
            lacks = "; ".join(clean(str(each), _LONG) for each in missing)
            yield f"  A resume will not bring back: {lacks}."
        if isinstance(step, int) and isinstance(done, int) and step > done:
            again = "1 step is" if step - done == 1 else f"{step - done} steps are"
            yield f"{at}: at least {again} to be repeated."
        return
    if death.had_agent:
        text = "What was saved: nothing that its agent reported."
        yield text if step is None else f"{text} {at}."
    elif not death.by_itself:
        yield "What was saved: nothing; no agent saw a training in it at its end."


def resume_lines(
    entry: Mapping[str, Any], successor: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """
    Yield lines on how to run an ended task again; nothing if nothing is left to resume.

    Args:
        entry: journal entry of kind "exit".
        successor: the task that replaced it: "pid" and "name".
    """
    death = _Death(entry)
    if death.of_worker_alone:
        yield "To continue: the task may wait for that worker for ever. Interrupt it, and use fewer"
        yield "  workers or smaller batches (DataLoader: num_workers, prefetch_factor)."
        return
    if successor is not None:
        name = clean(str(successor.get("name")))
        yield f"Its place was taken: {name} runs again, with pid {successor.get('pid')}."
    saved = death.rescue is not None
    by_lines = death.rescue is not None and death.rescue.get("by_lines") is True
    if death.by_itself and not saved:
        return
    if death.entry.get("task_kind") in RUN_CELLS:
        python = death.entry.get("python")
        way = enable_command(python) if isinstance(python, str) else MAGIC
        yield from _notebook_resume_lines(saved, by_lines, way, restarted=successor is not None)
        return
    command = _command(death.entry)
    if command is None or successor is not None:
        return
    if by_lines:
        yield "To continue, run it again: it starts over and says which lines to write:"
    elif saved:
        yield "To continue its training:"
    elif death.had_agent or "next_limit" in death.entry:  # only entries of a guard have next_limit
        yield "To start it again:"
    else:
        yield "To start it again, with its work saved next time:"
    yield f"  {command}"
    if HIDDEN in command:
        yield f"  ({HIDDEN} stands for what looked like a secret: put it back)"


def _notebook_resume_lines(
    saved: bool, by_lines: bool, way: str, *, restarted: bool
) -> Iterator[str]:
    """Yield what to type to resume the training of a notebook, or to have the next one saved."""
    if not saved:
        # A command works for every way of installation, a line in a cell only for some.
        where = "in a cell before the training" if way == MAGIC else "before you restart the kernel"
        yield f"To have the next training saved, type {where}:"
        yield f"  {way}"
        begin = "run" if restarted and way == MAGIC else "restart the kernel and run"
        yield f"Then {begin} its cells."
        return
    yield f"To continue, {'' if restarted else 'restart the kernel, and '}in its first cell:"
    yield f"  {MAGIC}"
    yield "  watchdog.resume()"
    if by_lines:
        yield "It runs the cells before the training, and says which lines resume it."
    else:
        yield "It runs the cells up to the training, which resumes from there. Where"
        yield "IPython keeps no history, run them yourself."


def _advice_lines(advice: Sequence[str]) -> Iterator[str]:
    if advice:
        yield "What to change:"
        yield from (f"  {clean(line, _LONG)}" for line in advice[:_MOST_ADVICE])


def _command(entry: Mapping[str, Any]) -> str | None:
    """Return `cd FOLDER && watchdog exec -- python train.py`, ready to paste. None: unknown."""
    argv = entry.get("argv")
    if not isinstance(argv, list) or not argv:
        return None
    words = [str(word) for word in argv]
    if os.path.basename(words[0]).startswith("python"):
        python, name = entry.get("python"), os.path.basename(words[0])
        # Started by its path: the environment may not be active in the user's shell.
        by_path = os.sep in words[0] and isinstance(python, str)
        words[0] = os.path.join(str(python), "bin", name) if by_path else name
    if any(not word.isprintable() for word in words):
        return None
    cwd, limit = entry.get("cwd"), entry.get("next_limit")
    place = f"cd {shlex.quote(cwd)} && " if isinstance(cwd, str) and cwd.isprintable() else ""
    known = isinstance(limit, str) and limit == shlex.quote(limit)
    return f"{place}watchdog exec {f'--limit {limit} ' if known else ''}-- {shlex.join(words)}"
