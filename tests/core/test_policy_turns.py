"""Which task is saved and paused first: the `priority` of a rule."""

from __future__ import annotations

import pytest
from simulation import Machine, Program, flat, leak

from watchdog_app.core.model.decisions import DecisionKind
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import Priority, RuleSettings, Settings
from watchdog_app.core.policy.rules import rule_priority

CHECKPOINT, PAUSE = DecisionKind.CHECKPOINT, DecisionKind.PAUSE


def two(*rules: RuleSettings, slower: float = 20.0, seconds: float = 120) -> Machine:
    """Two tasks that leak under one limit, the first one faster."""
    first = Program(10, "fast.py", leak(30.0, 50.0), save_s=0.02, group="g")
    second = Program(20, "slow.py", leak(slower, 50.0), save_s=0.02, group="g")
    return Machine(first, second, groups={"g": 1200}, settings=Settings(rules=rules)).run(seconds)


FIRST = RuleSettings(task="fast.py", priority=Priority.HIGH)
LAST = RuleSettings(task="slow.py", priority=Priority.LOW)


def test_without_a_rule_the_guiltiest_goes_first():
    """The rules below change this order."""
    machine = two()

    assert "pause:fast.py" == machine.kinds(PAUSE)[0]
    assert "checkpoint:fast.py" == machine.kinds(CHECKPOINT)[0]


@pytest.mark.parametrize("rule", [FIRST, LAST], ids=["the one first", "the other last"])
def test_what_is_protected_is_paused_after_others_and_when_need_be(rule):
    """The other's pause was not enough: a paused training is better than a killed one."""
    machine = two(rule)

    assert ["pause:slow.py", "pause:fast.py"] == machine.kinds(PAUSE)
    assert not any(program.dead for program in machine.programs)


def test_what_is_to_be_saved_last_is_saved_after_the_others():
    """In one sample, in this order."""
    machine = two(RuleSettings(task="fast.py", priority=Priority.LOW))
    first = next(each for each in machine.log if each.kind is CHECKPOINT)
    together = [
        each.evidence["name"]
        for each in machine.log
        if each.kind is CHECKPOINT and each.at_mono_s == first.at_mono_s
    ]

    assert sorted(together, reverse=True) == together
    assert "slow.py" in machine.kinds(CHECKPOINT)[0]


def test_nobody_who_grows_little_is_paused_in_its_stead():
    """Protecting one task is not a reason to stop one that does not grow."""
    leaking = Program(10, "fast.py", leak(30.0, 50.0), save_s=0.02, group="g")
    calm = Program(20, "calm.py", flat(200.0), save_s=0.02, group="g")
    machine = Machine(leaking, calm, groups={"g": 1200}, settings=Settings(rules=(FIRST,))).run(120)

    assert ["pause:fast.py"] == machine.kinds(PAUSE)


def test_where_the_guiltiest_may_not_be_paused_its_turn_changes_nothing():
    """`pause = false` and `priority` together do not pause another task."""
    never = RuleSettings(task="fast.py", pause=False, priority=Priority.HIGH)

    machine = two(never, slower=10.0, seconds=20)
    while not machine.programs[0].dead:
        assert [] == machine.kinds(PAUSE)
        machine.run(0.5)


def test_the_first_rule_that_matches_says_the_turn():
    """As with the switches, what the first rule leaves open is normal."""
    task = Machine()._task(Program(10, "a.py", flat(1)))
    rules = [
        RuleSettings(task="b*", priority=Priority.LOW),
        RuleSettings(resource="disk", priority=Priority.LOW),
        RuleSettings(task="a*", pause=False),
        RuleSettings(priority=Priority.HIGH),
    ]

    assert Priority.NORMAL is rule_priority(rules, task, ResourceKind.RAM)
    assert Priority.LOW is rule_priority(rules, task, ResourceKind.DISK)
    assert Priority.HIGH is rule_priority(rules[3:], task, ResourceKind.RAM)
    assert Priority.NORMAL is rule_priority([], task, ResourceKind.RAM)


def test_while_protection_is_off_nothing_is_decided_and_it_is_when_it_is_on_again():
    """The incident is open, and the warning comes at once."""
    program = Program(10, "train.ipynb", leak(6.0), save_s=0.1, group="g")
    machine = Machine(program, groups={"g": 1200})
    machine.engine.protecting = False
    machine.run(140)
    assert [] == machine.log
    assert machine.result.incidents

    machine.engine.protecting = True
    machine.run(3)

    assert "notify:warning" in machine.kinds()
    assert machine.kinds(CHECKPOINT)
