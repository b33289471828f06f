"""
Whether a rescue fits the program that would resume from it: one table of rules.

Other modules check first whose rescue it is. They also check names, shapes and types of tensors,
where a user cannot override a mismatch.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from typing import Any

from watchdog_app.base.errors import RescueMismatch
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.identity.run import Json, RunIdentity

_SHOWN_DIFFERENCES = 6
_LONGEST_VALUE = 120
_BYTECODE = "bytecode-"
_REMEDIES = ('Rescue(..., resume="force")', "Rescue(..., resume=False)")


class Decision(Enum):
    """What a difference does to a resume."""

    NEVER = "never"  # not even resume="force" resumes
    REFUSE = "refuse"
    SAY = "say"


@dataclass(frozen=True, slots=True)
class Rule:
    """One property to compare: how to find and describe differences, and the decision."""

    key: str
    decision: Decision
    differences: Callable[[RunIdentity, RunIdentity], Iterator[str]]  # arguments: rescue, program


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference."""

    key: str
    decision: Decision
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All differences between a rescue and a program."""

    found: tuple[Difference, ...] = ()

    def keys(self) -> set[str]:
        """The keys of the rules that found a difference."""
        return {each.key for each in self.found}

    def texts(self, decision: Decision) -> list[str]:
        """The messages with one decision."""
        return [each.text for each in self.found if each.decision is decision]


@dataclass(frozen=True, slots=True)
class Merged:
    """Settings after a three-way merge."""

    values: Mapping[str, Json]  # value of each setting after the resume
    messages: tuple[str, ...] = ()


def compare(saved: object, now: RunIdentity) -> Verdict:
    """
    The differences between the program that saved and this one.

    Args:
        saved: the result of `RunIdentity.to_json`, from an untrusted file.
        now: of this program.
    """
    try:
        before = RunIdentity.read(saved)
        found = [
            Difference(rule.key, rule.decision, text)
            for rule in RULES
            for text in rule.differences(before, now)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        text = "what it was saved by cannot be read from it"
        return Verdict((Difference("identity", Decision.REFUSE, text),))
    return Verdict(tuple(found))


def check_verdict(
    verdict: Verdict, rescue: str, *, forced: bool, remedies: tuple[str, str] = _REMEDIES
) -> list[str]:
    """
    Refuse a rescue that does not fit, or return the lines to report at the resume.

    Args:
        verdict: the result of `compare`.
        rescue: the result of `describe_rescue`.
        forced: `resume="force"` was given.
        remedies: see `mismatch`.

    Raises:
        RescueMismatch: it does not fit.
    """
    never, refused = verdict.texts(Decision.NEVER), verdict.texts(Decision.REFUSE)
    if never:
        raise mismatch(rescue, never + refused, may_be_forced=False, remedies=remedies)
    if refused and not forced:
        raise mismatch(rescue, refused, remedies=remedies)
    messages = verdict.texts(Decision.SAY)
    if refused:
        messages.insert(0, f'resume="force" resumes although {join_differences(refused)}.')
    return messages


def mismatch(
    rescue: str,
    found: Sequence[str],
    *,
    may_be_forced: bool = True,
    remedies: tuple[str, str] = _REMEDIES,
) -> RescueMismatch:
    """
    The error to raise.

    Args:
        rescue: its folder, or the result of `describe_rescue`.
        found: the differences, one phrase each; the message shows the first few.
        may_be_forced: whether `resume="force"` resumes anyway.
        remedies: how to resume all the same, and how to start over.
    """
    force = f"To resume all the same: {remedies[0]}; to" if may_be_forced else "To"
    return RescueMismatch(
        f"The rescue {rescue} does not fit this program: {join_differences(found)}. Nothing was "
        f"loaded or overwritten. {force} start over: {remedies[1]}.",
        tuple(found),
        may_be_forced=may_be_forced,
    )


def describe_rescue(path: str, step: int, created_unix_s: float) -> str:
    """A rescue with its step and age, for an error message."""
    ago = format_duration(max(0.0, time.time() - created_unix_s))
    return f"{path} (step {step}, saved {ago} ago)"


def describe_graph_difference(saved: Sequence[str], now: str) -> str:
    """
    A message about the first steps, which compute something else.

    Args:
        saved: the graphs of the rescue: a hash, and operations with their counts.
        now: the graph of this program.
    """

    def operations(graph: str) -> set[str]:
        return set(graph.split(" ")[1:])

    nearest = min(saved, key=lambda each: len(operations(each) ^ operations(now)))
    before, after = operations(nearest), operations(now)
    text = "the first steps compute something else than those of the rescue"
    if before == after:
        return f"{text}: the same operations in another order"
    new, gone = (", ".join(sorted(each)) or "none" for each in (after - before, before - after))
    return f"{text}: {_format_value(new)} in the program, {_format_value(gone)} in the rescue"


def changed_statements(saved: object, now: Sequence[str]) -> list[int]:
    """The indices of statements of a program that a rescue does not have."""
    left = list(saved) if isinstance(saved, list) else []
    new = []
    for place, statement in enumerate(now):
        if statement in left:
            left.remove(statement)
        else:
            new.append(place)
    return new


def format_lines(lines: Sequence[tuple[int, int]]) -> str:
    """Line ranges as a text, `12, 41-43`; only the first few."""
    shown = ", ".join(
        str(first) if first == last else f"{first}-{last}"
        for first, last in lines[:_SHOWN_DIFFERENCES]
    )
    return f"{shown}, and others" if len(lines) > _SHOWN_DIFFERENCES else shown


def merge_settings(
    base: Mapping[str, Json], theirs: Mapping[str, Json], mine: Mapping[str, Json]
) -> Merged:
    """
    Merge settings like git merges lines: the program or the training may have changed each.

    Args:
        base: as the program set them when the saved run began.
        theirs: as they were at the save.
        mine: as this program sets them.
    """
    values: dict[str, Json] = {}
    messages = []
    for key, moved in theirs.items():
        if key not in mine or key not in base:
            continue
        own = mine[key]
        before, then, now = _format_value(base[key]), _format_value(moved), _format_value(own)
        prefix, mark, what = key.rpartition("'s ")
        shown = f"{prefix}{mark}{what.replace('_', ' ')}"
        as_it_was = _is_json_equal(moved, base[key])
        values[key] = own if as_it_was else moved
        if as_it_was and not _is_json_equal(own, moved):
            messages.append(f"{shown}: {now} of the program is used from here on (was {then}).")
        elif not as_it_was and _is_json_equal(own, base[key]):
            messages.append(
                f"{shown}: {then} of the rescue continues (the program began with {before})."
            )
        elif not as_it_was and not _is_json_equal(own, moved):
            messages.append(
                f"{shown}: {then}, which the training had reached, continues; the program says "
                f"{now}. To set it, do so once the rescue was loaded."
            )
    return Merged(values, tuple(messages))


def _framework(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    if saved.framework != now.framework:
        yield f"it was saved by {saved.framework}, and this is {now.framework}"


def _model(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    classes = (
        [str(each["class"]) for each in saved.model],
        [str(each["class"]) for each in now.model],
    )
    matcher = SequenceMatcher(None, *classes, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            for before, after in zip(saved.model[first:last], now.model[begin:end], strict=True):
                yield from _layer(before, after, same_version=saved.version == now.version)
                yield from _attributes(before, after, saved.moved)
        elif kind == "replace" and last - first == end - begin:
            for before, after in zip(saved.model[first:last], now.model[begin:end], strict=True):
                yield (
                    f"{after['label']} is a {after['class']} in the program, a {before['class']} "
                    "in the rescue"
                )
        else:
            for before in saved.model[first:last]:
                yield f"{before['label']} ({before['class']}) is in the rescue only"
            for after in now.model[begin:end]:
                yield f"{after['label']} ({after['class']}) is in the program only"


def _layer(
    saved: Mapping[str, Any], now: Mapping[str, Any], *, same_version: bool
) -> Iterator[str]:
    label = now["label"]
    yield from _settings(f"{label}'s ", saved["settings"], now["settings"], same_version)
    if saved["inputs"] != now["inputs"]:
        yield f"{label} is given other inputs in the program than in the rescue"


def _attributes(
    saved: Mapping[str, Any], now: Mapping[str, Any], moved: Sequence[str]
) -> Iterator[str]:
    """
    Compare attributes that both sides have.

    If one side lacks an attribute, its code differs, which another rule reports.
    """
    after = now.get("attributes", {})
    before = {
        key: value
        for key, value in saved.get("attributes", {}).items()
        if key in after and key.partition(".")[0] not in moved
    }
    after = {key: after[key] for key in before}
    yield from _settings(f"{now['label']}'s ", before, after, same_version=True)


def _settings(
    prefix: str, saved: Mapping[str, Json], now: Mapping[str, Json], same_version: bool
) -> Iterator[str]:
    for key in dict.fromkeys((*saved, *now)):
        # If one side lacks a key, another version may only name it differently.
        if not same_version and (key not in saved or key not in now):
            continue
        before, after = saved.get(key), now.get(key)
        if not _is_json_equal(before, after):
            yield (
                f"{prefix}{key} is {_format_value(after)} in the program, "
                f"{_format_value(before)} in the rescue"
            )


def changed_functions(
    saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """
    Messages about functions that compute something else.

    Args:
        saved, now: `code` of a `RunIdentity`.
    """
    before, after = list(saved), list(now)
    within = [{each["within"] for each in side if "within" in each} for side in (before, after)]
    if all(within) and within[0] != within[1]:
        # Other variables are known there, so a fingerprint of the same text may differ.
        before, after = ([e for e in side if "within" not in e] for side in (before, after))
    if len(before) != len(after):
        names = {each["name"] for each in before} & {each["name"] for each in after}
        for each in after:
            if each["name"] not in names:
                yield f"the code of {_function_label(each)} is in the program only"
        for each in before:
            if each["name"] not in names:
                yield f"the code of {each['name']} is in the rescue only"
        before = [each for each in before if each["name"] in names]
        after = [each for each in after if each["name"] in names]
        counts = [Counter(each["name"] for each in side) for side in (before, after)]
        for name in sorted(names):
            if counts[0][name] != counts[1][name]:
                uses = f"{counts[1][name]} times in the program, {counts[0][name]} in the rescue"
                yield f"{name} is used {uses}"
    for then, each in zip(before, after, strict=False):
        changed = _changed_function(then["functions"], each["functions"])
        if changed is None:
            continue
        if not each["at"] and then["name"] != each["name"]:  # a function of a library
            yield f"{each['name']} is used in the program, {then['name']} in the rescue"
            continue
        inner = f" ({changed}, which it calls)" if changed != each["name"] else ""
        yield f"the code of {_function_label(each)} has changed{inner}"


def _function_label(function: Mapping[str, Any]) -> str:
    return f"{function['name']} ({function['at']})" if function["at"] else str(function["name"])


def _changed_function(saved: list[Any], now: list[Any]) -> str | None:
    """The name of the first function that computes something else."""
    for then, each in zip(saved, now, strict=False):
        before, after = str(then[1]), str(each[1])
        kinds = before.partition(":")[0], after.partition(":")[0]
        # Bytecode of different Python versions cannot be compared.
        if any(kind.startswith(_BYTECODE) for kind in kinds) and kinds[0] != kinds[1]:
            return None
        if before != after:
            return str(each[0])
    return None if len(saved) == len(now) else str(now[0][0])


def _loss(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    yield from _settings("the ", saved.loss, now.loss, saved.version == now.version)


def _optimizers(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    for name in dict.fromkeys((*saved.optimizers, *now.optimizers)):
        before, after = saved.optimizers.get(name), now.optimizers.get(name)
        if before is None or after is None:
            yield f"{name} is in the {'rescue' if after is None else 'program'} only"
        elif before != after:
            yield f"{name} is {after} in the program, {before} in the rescue"


def _data_difference(key: str, saved: RunIdentity, now: RunIdentity) -> tuple[Json, Json] | None:
    """The values of a data key if both sides know it and they differ."""
    before, after = saved.data.get(key), now.data.get(key)
    return None if before is None or after is None or before == after else (before, after)


def _rows(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    if (found := _data_difference("rows", saved, now)) is not None:
        yield f"the data has {found[1]} rows in the program, {found[0]} in the rescue"


def _elements(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    if (found := _data_difference("elements", saved, now)) is not None:
        yield (
            f"a row of the data is {_format_value(found[1])} in the program, "
            f"{_format_value(found[0])} in the rescue"
        )


def _batches(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    found = _data_difference("batches", saved, now)
    if found is not None and _data_difference("batch_size", saved, now) is None:
        yield f"an epoch has {found[1]} batches in the program, {found[0]} in the rescue"


def _sample(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    same = (
        _data_difference("rows", saved, now) is None
        and _data_difference("elements", saved, now) is None
    )
    if same and _data_difference("sample", saved, now) is not None:
        yield "the rows of the data hold other values than when the rescue was saved."


def _making(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    before, after = saved.data, now.data
    if before.get("kind") != after.get("kind"):
        return
    found = [*changed_functions(before.get("code", []), after.get("code", []))]
    settings = [each.get("settings") for each in (before, after)]
    if settings[0] and settings[1]:
        found += _settings("the data's ", settings[0], settings[1], saved.version == now.version)
    if found:
        yield (
            f"{join_differences(found)}. The batches of this epoch that the rescue had are left "
            "out all the same."
        )


def _kind(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    if (found := _data_difference("kind", saved, now)) is not None:
        yield (
            f"the data comes as {found[1]} (was {found[0]}): the epoch begins at its first batch, "
            "with the state of the rescue."
        )


def _seeds(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    for name, after in now.seeds.items():
        before = saved.seeds.get(name)
        if before is not None and after is not None and before != after:
            yield (
                f"{name} {after} of the program has no effect (was {before}): the random numbers "
                "of the rescue continue."
            )


def _statements(saved: RunIdentity, now: RunIdentity) -> Iterator[str]:
    if not saved.statements or not now.statements or saved.statements == now.statements:
        return
    new = [now.lines[place] for place in changed_statements(saved.statements, now.statements)]
    where = f" (lines {format_lines(new)})" if new else ""
    yield f"the program was edited since the rescue was saved{where}."


RULES = (
    Rule("framework", Decision.NEVER, _framework),
    Rule("model", Decision.REFUSE, _model),
    Rule("code", Decision.REFUSE, lambda saved, now: changed_functions(saved.code, now.code)),
    Rule("loss", Decision.REFUSE, _loss),
    Rule("optimizer", Decision.REFUSE, _optimizers),
    Rule("rows", Decision.REFUSE, _rows),
    Rule("elements", Decision.REFUSE, _elements),
    Rule("batches", Decision.REFUSE, _batches),
    Rule("sample", Decision.SAY, _sample),
    Rule("kind", Decision.SAY, _kind),
    Rule("making", Decision.SAY, _making),
    Rule("seeds", Decision.SAY, _seeds),
    Rule("statements", Decision.SAY, _statements),
)


def _is_json_equal(before: Json, after: Json) -> bool:
    """Equal as JSON: a tuple is a list."""
    return before == after or json.dumps(before, default=str) == json.dumps(after, default=str)


def join_differences(found: Sequence[str]) -> str:
    """Differences as one phrase; only the first few."""
    shown = "; ".join(found[:_SHOWN_DIFFERENCES])
    more = len(found) - _SHOWN_DIFFERENCES
    return f"{shown}; and {more} more" if more > 0 else shown


def _format_value(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
