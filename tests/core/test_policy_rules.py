"""Which switches apply to which task and resource."""

from __future__ import annotations

import pytest
from support import records

from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings
from watchdog_app.core.policy.rules import allowed_actions

DEFAULTS = ActionSettings()


def task(name: str = "train.ipynb"):
    path = f"/home/ann/{name}"
    return records.task(records.process(10), name=name, notebook=path)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (RuleSettings(pause=False), True),
        (RuleSettings(task="train.ipynb", pause=False), True),
        (RuleSettings(task="*.ipynb", pause=False), True),
        (RuleSettings(task="/home/ann/*", pause=False), True),
        (RuleSettings(task="TRAIN.ipynb", pause=False), False),
        (RuleSettings(task="train", pause=False), False),
        (RuleSettings(resource="ram*", pause=False), True),
        (RuleSettings(resource="ram_swap", pause=False), False),
        (RuleSettings(resource="gpu_*", pause=False), False),
        (RuleSettings(task="*.py", resource="ram", pause=False), False),
        (RuleSettings(task="[", pause=False), False),
    ],
)
def test_a_rule_holds_where_both_of_its_patterns_match(rule, matches):
    """Name or path of the task, and kind of the resource."""
    found = allowed_actions(DEFAULTS, [rule], task(), ResourceKind.RAM)

    assert found.pause is not matches
    assert found.notify
    assert found.checkpoint


def test_the_first_rule_that_matches_wins():
    """Later rules are not merged; what it leaves open follows [actions]."""
    rules = [
        RuleSettings(task="other*", notify=False),
        RuleSettings(task="train*", pause=False),
        RuleSettings(checkpoint=False, notify=False),
    ]

    assert ActionSettings(pause=False) == allowed_actions(DEFAULTS, rules, task(), ResourceKind.RAM)


def test_what_concerns_the_machine_is_met_by_rules_for_every_task_alone():
    """A notice without a task has no name that a pattern could match."""
    rules = [RuleSettings(task="train*", notify=False)]

    assert allowed_actions(DEFAULTS, rules, None, ResourceKind.RAM).notify
    assert not allowed_actions(
        DEFAULTS, [RuleSettings(notify=False)], None, ResourceKind.RAM
    ).notify


def test_a_name_with_brackets_and_line_ends_is_matched_as_text():
    """File names are data, never patterns."""
    rules = [RuleSettings(task="a[[]1]*", pause=False)]

    assert not allowed_actions(DEFAULTS, rules, task("a[1]\n.ipynb"), ResourceKind.RAM).pause


# Two daemons do not act on one training

ALL = ActionSettings(notify=True, checkpoint=True, pause=True)
NONE = ActionSettings(notify=False, checkpoint=False, pause=False)


@pytest.mark.parametrize(
    ("named", "switches"),
    [("run", ALL), (None, ALL), ("link", ALL), ("/run/", ALL), ("other", NONE)],
    ids=["its own", "none", "through a link", "with slashes too many", "another daemon's"],
)
def test_a_task_of_another_daemon_is_left_to_it(tmp_path, named, switches):
    """The switches are all off then, whatever a rule says."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    theirs = None if named is None else f"{tmp_path}/{named}"
    there = records.task(records.process(10), name="train.py", runtime_dir=theirs)
    rules = (RuleSettings(task="train.py", pause=True),)

    assert switches == allowed_actions(ALL, rules, there, ResourceKind.RAM, f"{tmp_path}/run")
