"""Allowed actions for a task under a resource: `[actions]` and the first rule that matches."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import SPECS, Pause, ResourceKind
from watchdog_app.core.model.settings import ActionSettings, Priority, RuleSettings

NO_ACTIONS = ActionSettings(notify=False, checkpoint=False, pause=False)


def allowed_actions(
    actions: ActionSettings,
    rules: Sequence[RuleSettings],
    task: Task | None,
    kind: ResourceKind,
    runtime_dir: str | None = None,
) -> ActionSettings:
    """
    Return the three switches for this task and this kind of resource.

    The first rule that matches the task and the resource wins. Switches that the rule leaves open
    keep their value in `actions`. A pattern is matched with the task's name, and with the full path
    of its notebook and its script. Without a task (a notification about the machine) only rules for
    every task match.

    If a task's environment names another daemon's runtime folder, all switches are off. Two daemons
    must not control one training.

    For GPU memory, a task is paused only if a rule that names this resource allows it.

    Args:
        actions: switches of `[actions]`.
        rules: the `[[rule]]` tables in their order.
        task: the task; None: the machine.
        kind: kind of the resource.
        runtime_dir: runtime folder of this daemon; None: handle every task.
    """
    if task is not None and runtime_dir is not None:
        theirs = task.info.runtime_dir
        if theirs is not None and runtime_dir not in (theirs, _real_path(theirs)):
            return NO_ACTIONS
    rule = _first_match(rules, task, kind)
    pause = actions.pause if rule.pause is None else rule.pause
    if SPECS[kind].pause is Pause.BY_RULE:
        pause = rule.pause is True and rule.resource != "*"
    return ActionSettings(
        notify=actions.notify if rule.notify is None else rule.notify,
        checkpoint=actions.checkpoint if rule.checkpoint is None else rule.checkpoint,
        pause=pause,
    )


def rule_priority(rules: Sequence[RuleSettings], task: Task, kind: ResourceKind) -> Priority:
    """
    Return the task's priority under this kind of resource. Its rule gives it.

    Args:
        rules: the `[[rule]]` tables in their order.
        task: a task.
        kind: kind of the resource.
    """
    return _first_match(rules, task, kind).priority or Priority.NORMAL


def _first_match(
    rules: Sequence[RuleSettings], task: Task | None, kind: ResourceKind
) -> RuleSettings:
    """Return the first rule that matches; if none does, a rule that changes nothing."""
    for rule in rules:
        if _matches(rule.resource, kind.value) and _matches_task(rule.task, task):
            return rule
    return RuleSettings()


@lru_cache(maxsize=64)
def _real_path(path: str) -> str:
    """Resolve links, because two paths of one folder name the same daemon."""
    return os.path.realpath(path)


def _matches_task(pattern: str, task: Task | None) -> bool:
    if pattern == "*":
        return True
    if task is None:
        return False
    info = task.info
    # The name of a kernel with several notebooks is not the file name of one of them.
    notebooks = [path for path in (info.notebook, *info.other_notebooks) if path is not None]
    names = (task.name, info.script, *notebooks, *map(os.path.basename, notebooks))
    return any(name is not None and _matches(pattern, name) for name in names)


def _matches(pattern: str, text: str) -> bool:
    return _compile_pattern(pattern).match(text) is not None


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    # fnmatch.fnmatch ignores case on some systems. A rule must mean the same everywhere.
    return re.compile(translate(pattern))
