"""Which command lines are of the same training, and that no secret of them is kept."""

from __future__ import annotations

import json

import pytest

from watchdog_app.agent.saving import arguments

SALT = b"0123456789abcdef"


def same(before: str, now: str) -> bool:
    saved = arguments.record(arguments.parse(before.split()), SALT)
    return not arguments.differing(saved, arguments.parse(now.split()))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--lr 0.1 --seed 1", "--seed=1 --lr=0.1"),
        ("--num-gpus 1", "--num-gpus 2"),
        ("--niter 5", "--niter 9"),
        ("trainer.devices=[0]", "trainer.devices=[0,1]"),
        ("-v 1", "-v 2"),
        ("-o runs/a", "-o runs/b"),
        ("--checkpoint runs/a.pt", "--checkpoint runs/b.pt"),
    ],
)
def test_options_that_make_no_other_training(before, now):
    """They are named when they differ, and the training goes on."""
    assert same(before, now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("-o Global.seed=1", "-o Global.seed=2"),
        ("-o cifar", "-o mnist"),
        ("--checkpoint bert-base-cased", "--checkpoint roberta-base"),
        ("~aug=x", "aug=x"),
        ("--token abc==", "--token def=="),
        (" ".join(f"a{n}.jpg" for n in range(50)), " ".join(f"b{n}.jpg" for n in range(50))),
    ],
)
def test_options_that_make_another_training(before, now):
    """Where it is not certain that nothing but the course of a training changes."""
    assert same(before, before)
    assert not same(before, now)


@pytest.mark.parametrize(
    "line",
    [
        "--token c2VjcmV0aHVudGVy==",
        "c2VjcmV0aHVudGVy=",
        "--token c2VjcmV0aHVudGVy=x",
        "-o password=c2VjcmV0aHVudGVy",
        "--output-dir s3://me:c2VjcmV0aHVudGVy@bucket/x",
        "--logs https://host/?X-Signature=c2VjcmV0aHVudGVy",
    ],
)
def test_no_value_that_may_be_a_secret_is_kept(line):
    """Neither as a value nor as the name of an option."""
    kept = json.dumps(arguments.record(arguments.parse(line.split()), SALT))

    assert "c2VjcmV0aHVudGVy" not in kept
