"""Whether a rescue fits a program: each rule, with plain records and without a framework."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from watchdog_app.base.errors import RescueMismatch
from watchdog_app.rescue.identity.compare import (
    RULES,
    Decision,
    check_verdict,
    compare,
    describe_rescue,
    merge_settings,
)
from watchdog_app.rescue.identity.run import RunIdentity


def layer(kind: str = "Dense", inputs: Any = None, **settings: Any) -> dict[str, Any]:
    return {"label": kind, "class": kind, "inputs": inputs, "settings": settings}


def function(name: str, *hashes: str) -> dict[str, Any]:
    called = [
        [name if index == 0 else f"helper {index}", each] for index, each in enumerate(hashes)
    ]
    return {"name": name, "at": f"train.py:{len(hashes)}", "functions": called}


NOW = RunIdentity(
    "a fit of Keras on torch",
    "3.15",
    model=[layer(activation="relu"), layer("Dropout", rate=0.2)],
    code=[function("Net.call", "a", "b"), function("loss", "c")],
    loss={"loss": "mse", "loss weights": None},
    optimizers={"the optimizer": "Adam"},
    settings={"learning_rate": 0.1},
    data={"kind": "arrays", "rows": 40, "batch_size": 8, "batches": 5, "elements": ["float32 (3)"]},
    seeds={"the seed": 7},
    statements=["one", "two"],
    lines=[(1, 1), (2, 4)],
)


def saved(**changed: Any) -> Any:
    return json.loads(json.dumps(replace(NOW, **changed).to_json()))


# What the rescue holds, the rule, the decision, and words of the message.
CASES = [
    ({"framework": "a PyTorch loop"}, "framework", Decision.NEVER, "saved by a PyTorch loop"),
    ({"model": [layer(activation="tanh"), layer("Dropout", rate=0.2)]}, "model", Decision.REFUSE,
     "Dense's activation is relu in the program, tanh in the rescue"),
    ({"model": [layer(activation="relu"), layer("Dropout", rate=0.5)]}, "model", Decision.REFUSE,
     "Dropout's rate is 0.2 in the program, 0.5 in the rescue"),
    ({"model": [layer(activation="relu")]}, "model", Decision.REFUSE,
     "Dropout (Dropout) is in the program only"),
    ({"model": [*NOW.model, layer("ReLU")]}, "model", Decision.REFUSE,
     "ReLU (ReLU) is in the rescue only"),
    ({"model": [layer(inputs=[1], activation="relu"), NOW.model[1]]}, "model", Decision.REFUSE,
     "Dense is given other inputs"),
    ({"code": [function("Net.call", "z", "b"), NOW.code[1]]}, "code", Decision.REFUSE,
     "the code of Net.call (train.py:2) has changed"),
    ({"code": [function("Net.call", "a", "z"), NOW.code[1]]}, "code", Decision.REFUSE,
     "has changed (helper 1, which it calls)"),
    ({"code": [NOW.code[0]]}, "code", Decision.REFUSE, "loss (train.py:1) is in the program only"),
    ({"code": [*NOW.code, function("Net.train_step", "a")]}, "code", Decision.REFUSE,
     "the code of Net.train_step is in the rescue only"),
    ({"loss": {"loss": "mae", "loss weights": None}}, "loss", Decision.REFUSE,
     "the loss is mse in the program, mae in the rescue"),
    ({"optimizers": {"the optimizer": "SGD"}}, "optimizer", Decision.REFUSE,
     "the optimizer is Adam in the program, SGD in the rescue"),
    ({"optimizers": {}}, "optimizer", Decision.REFUSE, "the optimizer is in the program only"),
    ({"data": {**NOW.data, "rows": 80}}, "rows", Decision.REFUSE,
     "the data has 40 rows in the program, 80 in the rescue"),
    ({"data": {**NOW.data, "elements": ["int64 (3)"]}}, "elements", Decision.REFUSE,
     "a row of the data is"),
    ({"data": {**NOW.data, "batches": 7}}, "batches", Decision.REFUSE,
     "an epoch has 5 batches in the program, 7 in the rescue"),
    ({"data": {**NOW.data, "kind": "a generator"}}, "kind", Decision.SAY,
     "the data comes as arrays (was a generator)"),
    ({"data": {**NOW.data, "code": [function("augment", "z")]}}, "making", Decision.SAY,
     "the code of augment is in the rescue only"),
    ({"seeds": {"the seed": 8}}, "seeds", Decision.SAY, "the seed 7 of the program has no effect"),
    ({"statements": ["one", "other"]}, "statements", Decision.SAY, "(lines 2-4)"),
]  # fmt: skip


@pytest.mark.parametrize(("held", "rule", "decision", "words"), CASES)
def test_a_difference_is_found_by_its_rule_alone(
    held: dict[str, Any], rule: str, decision: Decision, words: str
):
    """The difference has its decision, and both values in the text."""
    found = compare(saved(**held), NOW).found

    assert [(rule, decision)] == [(each.key, each.decision) for each in found]
    assert words in found[0].text


def test_every_rule_has_a_case():
    """The exception is the rule about a few rows, which Keras's tests cover."""
    assert {rule.key for rule in RULES} - {"sample"} == {rule for _, rule, _, _ in CASES}


SAME = [
    {},
    {"settings": {"learning_rate": 0.2}},
    {"data": {}},
    {"data": {**NOW.data, "batch_size": 4, "batches": 10}},
    {"statements": []},
    {"seeds": {}},
    {"version": "3.8", "model": [layer(activation="relu", later=1), NOW.model[1]]},
    {"version": "3.8", "model": [layer(), NOW.model[1]]},
    {"code": [function("Network.call", "a", "b"), function("criterion", "c")]},
]


@pytest.mark.parametrize("held", SAME)
def test_what_may_differ_is_no_difference(held: dict[str, Any]):
    """Settings, another batch size, function names, texts of another version."""
    assert () == compare(saved(**held), NOW).found


def test_bytecode_of_another_python_is_not_compared():
    """There was no source, and the bytes differ between versions anyway."""
    before, same, other = (
        replace(NOW, code=[function("loss", f"bytecode-{version}:{text}")])
        for version, text in (("3.11", "a"), ("3.12", "b"), ("3.11", "b"))
    )

    assert () == compare(before.to_json(), same).found
    assert compare(before.to_json(), other).found


@pytest.mark.parametrize(
    "held",
    [
        None,
        [],
        {},
        {"framework": 7},
        {**NOW.to_json(), "model": 7},
        {**NOW.to_json(), "model": [7]},
        {**NOW.to_json(), "model": [{"class": 7}]},
        {**NOW.to_json(), "code": [{"name": 1}]},
        {**NOW.to_json(), "code": [{"name": "a", "functions": 7}, {"name": "b", "functions": 7}]},
        {**NOW.to_json(), "loss": []},
        {**NOW.to_json(), "data": "x"},
        {**NOW.to_json(), "statements": None},
    ],
)
def test_an_identity_that_cannot_be_read_is_refused(held: object):
    """A file may hold anything; the only exception is the refusal."""
    found = compare(held, NOW)

    assert {Decision.REFUSE} == {each.decision for each in found.found}
    with pytest.raises(RescueMismatch):
        check_verdict(found, "r", forced=False)


def test_the_error_names_the_first_six_differences_and_both_ways_on():
    """The exception object holds all of them."""
    others = [layer(activation="tanh") for _ in range(8)]
    now = replace(NOW, model=[layer(activation="relu") for _ in range(8)])
    shown = describe_rescue("rescues/rescue-1", 7, 0.0)

    with pytest.raises(RescueMismatch) as caught:
        check_verdict(compare(replace(now, model=others).to_json(), now), shown, forced=False)

    text = str(caught.value)
    assert text.startswith("The rescue rescues/rescue-1 (step 7, saved ")
    assert "; and 2 more. Nothing was loaded or overwritten. To resume all the same: " in text
    assert 'Rescue(..., resume="force"); to start over: Rescue(..., resume=False).' in text
    assert 8 == len(caught.value.differences)


def test_force_says_what_differs_and_never_opens_another_framework():
    """Only differences that the user may decide about."""
    refused = compare(saved(loss={"loss": "mae", "loss weights": None}), NOW)

    said = check_verdict(refused, "r", forced=True)

    assert ["resumes although the loss is mse in the program, mae in the rescue."] == [
        each.removeprefix('resume="force" ') for each in said
    ]
    with pytest.raises(RescueMismatch, match=r"overwritten\. To start over"):
        check_verdict(compare(saved(framework="a PyTorch loop"), NOW), "r", forced=True)


@pytest.mark.parametrize(
    ("base", "theirs", "mine", "value", "said"),
    [
        (0.1, 0.1, 0.1, 0.1, None),
        (0.1, 0.1, 0.5, 0.5, "learning rate: 0.5 of the program is used from here on (was 0.1)."),
        (0.1, 0.02, 0.1, 0.02, "learning rate: 0.02 of the rescue continues (the program began"),
        (0.1, 0.02, 0.02, 0.02, None),
        (0.1, 0.02, 0.5, 0.02, "which the training had reached, continues; the program says 0.5."),
        ([0.9, 0.99], (0.9, 0.99), [0.9, 0.99], [0.9, 0.99], None),
        (None, None, 1.0, 1.0, "learning rate: 1 of the program is used from here on (was null)."),
    ],
)
def test_settings_are_merged_three_ways(
    base: Any, theirs: Any, mine: Any, value: Any, said: str | None
):
    """The program changed the setting or the training moved it; both are reported."""
    found = merge_settings(
        {"learning_rate": base}, {"learning_rate": theirs}, {"learning_rate": mine}
    )

    assert [value] == [
        list(each) if isinstance(each, tuple) else each for each in found.values.values()
    ]
    assert (said is None) == (not found.messages)
    assert said is None or said in found.messages[0]


def test_a_setting_that_one_side_lacks_is_left_as_it_was_loaded():
    """Versions have different settings."""
    assert {} == merge_settings({}, {"momentum": 1}, {"momentum": 2}).values
    assert {} == merge_settings({"momentum": 1}, {"momentum": 1}, {}).values
