"""The estimate command: the child in the user's Python, its answer, and the errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from watchdog_app.cli import estimate
from watchdog_app.cli.dispatch import main
from watchdog_app.estimate.estimating import gpu_limit
from watchdog_app.estimate.inputs import parse
from watchdog_app.estimate.record import Estimate, format_table

SCRIPT = """
import torch
from torch import nn

def build(width=50):
    print("noise on standard output")
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 1))

ready = build()

if __name__ == "__main__":
    raise SystemExit("it trains")
"""
# The child finds a missing model without importing a framework.
NO_MODEL = """
import json

def broken():
    raise RuntimeError("no data\\x1b[31m here")

def number():
    return 3

def card():
    raise RuntimeError("No CUDA GPUs are available")
"""


# Two GPUs, with 1,000 and 2,000 MiB free.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--id=0) echo 1000 ;;
--id=1 | --id=GPU-b) echo 2000 ;;
--id=*) echo "No devices were found"; exit 6 ;;
*) echo 1000; echo 2000 ;;
esac
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A fake nvidia-smi on the PATH."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(SCRIPT)
    return str(path)


def run(*words):
    return main(["estimate", "--python", sys.executable, *words])


@pytest.mark.torch
def test_a_function_of_a_script_is_estimated_as_json(script, capsys):
    """
    The function gets its arguments, its output does not corrupt the JSON, and the limit decides the
    exit code.
    """
    code = run(f"{script}:build", "--arg", "width=1000", "-b", "16", "--limit", "4G", "--json")

    told = json.loads(capsys.readouterr().out)
    assert 0 == code
    assert 4 * (10 * 1000 + 1000 + 1000 + 1) == told["parts"]["weights"]
    assert (16, True, 4 * 2**30) == (told["batch_size"], told["fits"], told["limit_bytes"])
    assert any("Adam is assumed" in each for each in told["notes"])
    assert (1, [], "the limit that was given") == (
        told["schema_version"], told["runs"], told["limit_text"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "free_mib"),
    [
        *((None, 1000), ("0", 1000), ("1,0", 2000), ("GPU-b", 2000)),
        *(("", None), ("-1", None), ("MIG-c", None)),
    ],
)
def test_the_first_card_that_cuda_may_use_is_the_limit(cards, monkeypatch, visible, free_mib):
    """CUDA_VISIBLE_DEVICES selects it. A GPU that the driver does not list sets no limit."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    limit = gpu_limit()

    assert (free_mib and free_mib * 2**20) == (limit and limit.bytes)


@pytest.mark.torch
def test_the_child_that_sees_no_card_estimates_for_the_users(cards, script, monkeypatch, capsys):
    """The command hides every GPU from the child, so it must read the user's own variable."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    assert 0 == run(f"{script}:ready", "--gpu", "--json")

    told = json.loads(capsys.readouterr().out)
    assert (2000 * 2**20, "free on the card now") == (told["limit_bytes"], told["limit_text"])


@pytest.mark.torch
def test_what_does_not_fit_ends_with_1(script, capsys):
    """A script can use the exit status."""
    code = run(f"{script}:ready", "--limit", "50M", "--optimizer", "sgd")

    out = capsys.readouterr().out
    assert 1 == code
    assert "Does not fit into 50.0 MiB" in out
    assert "activations" in out


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ("nothing", "There is no nothing in"),
        ("nothing", "It has: broken, card, number."),
        ("number", "returns a value of type int"),
        ("broken", "RuntimeError in net.py"),
        ("card", "without .cuda()"),
        ("json", "no model and no function"),
    ],
)
def test_what_is_no_model_is_said(tmp_path, capsys, thing, said):
    """The message lists the script's other names, without their control characters."""
    path = tmp_path / "net.py"
    path.write_text(NO_MODEL)

    assert 1 == run(f"{path}:{thing}")

    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py:build"], "There is no file missing.py"),
        (["best.keras"], "There is no file best.keras"),
        (["justaword"], "names no model"),
        (["a.b:c", "--input", "3,y"], "is no shape"),
        (["a.b:c", "--batch", "0"], "no whole number above 0"),
        (["a.b:c", "--limit", "much"], "is no size"),
        (["a.b:c", "--arg", "3"], "is not NAME=VALUE"),
        (["a.b:c", "--python", "/no/such/python"], "no program /no/such/python"),
    ],
)
def test_words_that_make_no_sense_are_usage_errors(capsys, words, said):
    """The command reports the error before it starts a child."""
    try:
        code = main(["estimate", *words])
    except SystemExit as end:
        code = end.code

    assert 2 == code
    assert said in capsys.readouterr().err


def test_a_script_without_a_function_says_how(tmp_path, capsys):
    """The message says what to write and what to call."""
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")

    assert 2 == main(["estimate", str(path)])
    assert f"watchdog estimate {path}:build_model" in capsys.readouterr().err


def test_a_python_without_the_module_is_named(capsys):
    """Only the user knows which Python has the module."""
    assert 1 == run("no_such_package_of_anyone:build")
    assert "--python names one" in capsys.readouterr().err


def test_a_child_that_takes_too_long_is_ended(tmp_path, capsys):
    """The command also ends the processes that the child started."""
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(60)\n")

    begun = time.monotonic()
    assert 1 == run(f"{path}:build", "--timeout", "2s")
    assert time.monotonic() - begun < 30
    assert "--timeout gives it longer" in capsys.readouterr().err


def test_ctrl_c_ends_the_child_too(tmp_path):
    """The command leaves no process behind."""
    path, mark = tmp_path / "slow.py", tmp_path / "pid"
    path.write_text(f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
                    "time.sleep(60)\n")  # fmt: skip
    command = subprocess.Popen(
        [sys.executable, "-m", "watchdog_app", "estimate", "--python", sys.executable, f"{path}:x"],
        stderr=subprocess.PIPE,
    )
    end = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)

    assert 130 == command.wait(30)
    assert b"Traceback" not in command.stderr.read()
    command.stderr.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_the_virtual_environment_comes_first(tmp_path, monkeypatch):
    """As in other tools, the activated environment wins."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))

    assert str(python) == estimate.find_interpreter(None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("224,224,3", ((224, 224, 3), "")),
        ("128:int64", ((128,), "int64")),
        ("3x32x32", ((3, 32, 32), "")),
        ("(10,)", ((10,), "")),
    ],
)
def test_shapes_as_people_write_them(text, expected):
    """Shapes may use commas, crosses or a tuple."""
    assert expected == parse(text)


@pytest.mark.parametrize(
    ("largest", "said"),
    [
        (96, "Largest batch: 96, with"),
        (999, "Largest batch: 999, with"),
        (65_537, "Largest batch: about 65 500, with"),
        (9_999_999, "Largest batch: about 9 990 000, with"),
        (165_656_481, "Largest batch: more than most data sets hold, with"),
    ],
)
def test_the_largest_batch_is_no_more_exact_than_it_can_be(largest, said):
    """Nine digits for a tiny model would be noise; the JSON has the exact number."""
    numbers = {name: 1000 for name in Estimate.__dataclass_fields__ if name.endswith("_bytes")}
    estimate = Estimate(
        **numbers | {
            "framework": "torch", "batch_size": 32, "optimizer": "Adam", "limit_bytes": 10**9,
            "limit_text": "RAM", "largest_batch": largest, "savings": (), "notes": (),
        }
    )  # fmt: skip

    assert 1 == sum(said in line for line in format_table(estimate))
    assert largest == estimate.to_json()["largest_batch"]
