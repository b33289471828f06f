"""Which command lines belong to the same training, and that no secret of them is stored."""

from __future__ import annotations

import json

import pytest

from watchdog_app.rescue.identity import arguments

SALT = b"0123456789abcdef"


def same(before: str, now: str) -> bool:
    saved = arguments.record(arguments.parse(before.split()), SALT)
    return not arguments.differing_options(saved, arguments.parse(now.split()))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--lr 0.1 --seed 1", "--seed=1 --lr=0.1"),
        ("--num-gpus 1", "--num-gpus 2"),
        ("--niter 5", "--niter 9"),
        ("trainer.devices=[0]", "trainer.devices=[0,1]"),
        ("-v 1", "-v 2"),
        ("-o runs/a", "-o runs/b"),
        ("--log a.txt --save runs/a", "--log b.txt --save runs/b"),
        ("results=res/a --tensorboard tb/a", "results=res/b --tensorboard tb/b"),
        ("--checkpoint runs/a.pt", "--checkpoint runs/b.pt"),
        ("--rescues a --rescue-dir a", "--rescues b --rescue-dir b"),
        ("--wd 1e-4 --decay .5", "--wd 0.0001 --decay 0.5"),
        ("--wd 1.0 100", "--wd=1 1e2"),
        ("-wd 1", "-wd=1"),
        ("-s1", "-s 1"),
        ("-lr 0.1 -epochs 3", "-epochs 4 -lr 0.1"),
        ("--num-workers 4", "--num-workers -1"),
        ("--nworkers 2 --nthreads 2 --njobs 2", "--nworkers 4 --nthreads 4 --njobs 4"),
        ("data/a", "--resume data/a"),
        ("data/a --resume runs/exp1", "--resume=runs/exp2 data/a"),
        ("--resume-from old/a", "--resume-from old/b"),
        ("--use-cuda true --no-gpu=1", "--use-cuda false --no-gpu=0"),
        ("--n-jobs 2 --threads 4", "--n-jobs 4 --threads auto"),
        ("lr0=0.1 --lr-init 1e-3", "lr0=0.2 --lr-init 1e-2"),
    ],
)
def test_options_that_make_no_other_training(before, now):
    """The training continues, and the differing options are named."""
    assert same(before, now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("-o Global.seed=1", "-o Global.seed=2"),
        ("-o cifar", "-o mnist"),
        ("--no-cuda 1", "--no-cuda 2"),
        ("-q 3", "-q 4"),
        ("--cpu 3", "--cpu 4"),
        ("--auto-resume data/a", "--auto-resume data/b"),
        ("--save cifar", "--save mnist"),
        ("--checkpoint bert-base-cased", "--checkpoint roberta-base"),
        ("~aug=x", "aug=x"),
        ("-src a -dst b", "-src b -dst a"),
        ("-src a -dst b", "-dst a -src b"),
        ("--id 12345678901234567890", "--id 12345678901234567891"),
        ("--commit 1e99999", "--commit 2e99999"),
        ("--split 1_1", "--split 11"),
        ("--data-version 1.10", "--data-version 1.1"),
        ("--id 007", "--id 7"),
        ("--token abc==", "--token def=="),
        (" ".join(f"a{n}.jpg" for n in range(50)), " ".join(f"b{n}.jpg" for n in range(50))),
    ],
)
def test_options_that_make_another_training(before, now):
    """It is not certain that they change nothing but the course of a training."""
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
        "--logs https://hooks.host/T0/c2VjcmV0aHVudGVy",
        "-pc2VjcmV0aHVudGVy",
        "-pc2VjcmV0aHVudGVy data",
        "-pc2VjcmV0aHVudGVy=x",
        "-oc2VjcmV0aHVudGVy",
    ],
)
def test_no_value_that_may_be_a_secret_is_kept(line):
    """Neither as a value nor as the name of an option."""
    kept = json.dumps(arguments.record(arguments.parse(line.split()), SALT))

    assert "c2VjcmV0aHVudGVy" not in kept


@pytest.mark.parametrize("there", [True, False])
def test_weights_to_begin_from_are_no_checkpoint_that_is_written(tmp_path, there):
    """A file that exists before the training begins is an input."""
    for name in ("bert.pt", "roberta.pt") if there else ():
        (tmp_path / name).touch()

    assert there is not same(
        f"--checkpoint {tmp_path}/bert.pt", f"--checkpoint {tmp_path}/roberta.pt"
    )
    assert same(f"--checkpoint {tmp_path}/bert.pt", f"--checkpoint {tmp_path}/bert.pt")


def test_a_relative_path_counts_as_what_it_names(tmp_path, monkeypatch):
    """From another folder it may be other data; another spelling is the same."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").touch()
    monkeypatch.chdir(tmp_path / "a")
    saved = arguments.record(arguments.parse(["--data", "train.csv"]), SALT)

    def differing(data: str) -> list[str]:
        return arguments.differing_options(saved, arguments.parse(["--data", data]))

    assert [] == differing("train.csv") == differing(str(tmp_path / "a" / "train.csv"))
    monkeypatch.chdir(tmp_path / "b")
    assert ["--data"] == differing("train.csv")
    assert [] == differing("../a/train.csv")


@pytest.mark.parametrize("first", [True, False])
def test_a_path_that_appears_or_vanishes_makes_no_other_training(tmp_path, monkeypatch, first):
    """The program may create it, and may remove it."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "made"
    if first:
        made.touch()
    saved = arguments.record(arguments.parse(["--name", "made"]), SALT)
    made.unlink() if first else made.touch()

    assert [] == arguments.differing_options(saved, arguments.parse(["--name", "made"]))
