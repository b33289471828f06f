"""
Trace one training step of a Keras or PyTorch model without running it. Print the memory of its
weights, gradients, optimizer, activations and data, the peak, and the largest batch that fits.
MODEL is FILE.py:FUNCTION, MODULE:FUNCTION, either with the name of a model instead of a
function, or a .keras file. The file is imported; code under `if __name__ == "__main__"` does
not run. Weights of Keras models are not allocated.

examples:
  watchdog estimate train.py:build_model --batch 64
  watchdog estimate keras.applications:ResNet50 --arg weights=None --batch 128
  watchdog estimate model.py:Net --input 3,224,224 --optimizer sgd --limit 12G
  watchdog estimate best.keras --batch 256 --gpu --limit 24GiB
  watchdog estimate model.py:Encoder --input 512:int64 --precision bfloat16 --json

exit codes: 0 it fits or no limit is known, 1 it does not fit or failure, 2 usage
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import sys
from typing import Any

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_duration, positive_integer, size
from watchdog_app.doctor import children
from watchdog_app.history.past import HistorySource
from watchdog_app.install import trust

_TIMEOUT_S = 300.0
_PLAN_OPTIONS = ("batch", "inputs", "optimizer", "loss", "precision", "jit", "gpu", "framework")
_MAX_ERROR_LINES = 3  # last lines of the child's standard error that an error message quotes

# Import the package of this program in whichever Python runs the child. Do not add our
# environment to sys.path: its packages would hide the packages of that Python.
_BOOTSTRAP = """\
import importlib.util, sys
root = {root!r}
spec = importlib.util.spec_from_file_location(
    "watchdog_app", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["watchdog_app"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from watchdog_app.estimate.child import main
main()
"""


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.positional("MODEL", "FILE.py:FUNCTION, MODULE:FUNCTION or FILE.keras")
    parser.option("-b, --batch N", "examples in a step; 32", positive_integer)
    parser.option(
        "-i, --input SHAPE",
        "one example, without the batch: 224,224,3 or 128:int64; once for each input",
        _parse_shape,
        action="append",
        default=[],
        dest="inputs",
    )
    parser.option("--optimizer NAME", "the model's own, or adam; sgd, momentum, adamw, ...")
    parser.option("--loss NAME", "a Keras model's; default: its own, or one that suits")
    parser.add_argument(
        "--precision", choices=("float32", "float16", "bfloat16"), help="PyTorch's autocast"
    )
    parser.flag("--jit", "compiled by XLA (jit_compile=True)", default=None)
    parser.option("--limit SIZE", "such as 12G; default: what is free here now", size)
    parser.flag("--gpu", "the memory of a card instead of the machine's")
    parser.option(
        "--arg NAME=VALUE",
        "an argument of FUNCTION; VALUE is read as Python (3, None, (2, 2)) or as text",
        _parse_argument,
        action="append",
        default=[],
    )
    parser.option(
        "--framework NAME",
        "keras, tensorflow or torch, where the file does not tell",
        choices=("keras", "tensorflow", "torch"),
    )
    parser.option(
        "--python FILE",
        "the Python that has the framework; default: of the virtual environment, or python",
    )
    parser.option(
        "--timeout TIME",
        "give up after 90s, 10min; default: 5min",
        positive_duration,
        default=_TIMEOUT_S,
    )
    parser.json("as JSON")


def run(args: Args, out: Output) -> int:
    """Run the estimate in a child process and print its result."""
    _check_target(args.model)
    python = find_interpreter(args.python)
    limit, limit_text = args.limit, None
    if limit is None:
        from watchdog_app.estimate.estimating import gpu_limit, tightest_limit

        found = gpu_limit() if args.gpu else tightest_limit()  # the child sees no card
        if found is not None:
            limit, limit_text = found
    plan = {
        **{name: getattr(args, name) for name in _PLAN_OPTIONS},
        "target": args.model,
        "limit": limit,
        "limit_text": limit_text,
        "arguments": dict(args.arg),
    }
    answer = run_child(python, plan, args.timeout, out)
    result = {**answer["estimate"], "runs": past_runs(args.model)}
    before = [f"Measured before: {each['name']} {each['text']}." for each in result["runs"]]
    out.result(result, lambda: map(plain, [*answer["table"], *before]))
    return EXIT_FAILURE if result["fits"] is False else EXIT_OK


def past_runs(target: str) -> list[dict[str, Any]]:
    """The last runs of the program that holds the model; empty: none is known."""
    path = os.path.realpath(target.rpartition(":")[0])
    try:
        found = HistorySource().history(task=path, kinds=["run"], limit=3, all_exits=True)
    except WatchdogError:
        return []
    return found or []


def _check_target(target: str) -> None:
    if target.endswith(".keras"):
        if not os.path.isfile(target):
            raise UsageError(f"There is no file {target}.")
        return
    if target.endswith(".py"):  # also catches C:\\train.py, which contains a colon
        raise UsageError(
            f"{target} alone does not say what the model is. Put what makes it into a function "
            f"that returns it, and name that: watchdog estimate {target}:build_model"
        )
    name, colon, thing = target.rpartition(":")
    if colon and name and thing:
        if name.endswith(".py") and not os.path.isfile(name):
            raise UsageError(f"There is no file {name}.")
        return
    raise UsageError(f"{target} names no model: FILE.py:FUNCTION, MODULE:FUNCTION or FILE.keras.")


def _parse_shape(text: str) -> tuple[tuple[int, ...], str]:
    from watchdog_app.estimate.inputs import parse

    try:
        return parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write 224,224,3 or 128:int64, without the batch"
        ) from None


def _parse_argument(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        read = value
    return name, read


def find_interpreter(named: str | None) -> str:
    """
    Return the Python that has the framework.

    Raises:
        UsageError: the named program does not exist, or no Python was found.
    """
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"--python: there is no program {named}.")
        return found
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        root = os.environ.get(name)
        found = shutil.which(os.path.join(root, "bin", "python")) if root else None
        if found is not None:
            return found
    frozen = getattr(sys, "frozen", False)  # a frozen program cannot run Python code for the child
    if not frozen and _has_framework():
        return sys.executable
    on_path = shutil.which("python") or shutil.which("python3")
    if on_path is not None:
        return on_path
    if frozen:
        raise UsageError("There is no Python on PATH. Name the one that trains: --python PATH")
    return sys.executable


def run_child(python: str, plan: dict[str, Any], timeout_s: float, out: Output) -> dict[str, Any]:
    """
    Run the child process and return its answer.

    Raises:
        WatchdogError: the child reported an error, died or took too long.
        KeyboardInterrupt: Ctrl-C; the child is ended.
    """
    root = trust.importable_package("estimate/child.py")
    command = [python, "-c", _BOOTSTRAP.format(root=root), json.dumps(plan)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        with out.progress("tracing a step"):
            ended = children.run(command, timeout_s, env)
    except OSError as error:
        raise WatchdogError(f"{python} cannot be started: {error.strerror}.") from error
    answer = next(ended.objects(), None)
    if answer is not None and "error" not in answer:
        return answer
    if answer is not None:
        raise WatchdogError(str(answer["error"]))
    if ended.timed_out:
        raise WatchdogError(
            f"No answer within {format_duration(timeout_s)}. --timeout gives it longer."
        )
    if ended.code == -signal.SIGKILL:
        raise WatchdogError("The estimate was killed, most likely because memory ran out.")
    lines = ended.stderr.strip().splitlines()[-_MAX_ERROR_LINES:]
    said = f" It said: {' / '.join(lines)}" if lines else ""
    raise WatchdogError(f"{python} ended with status {ended.code} and no answer.{said}")


def _has_framework() -> bool:
    import importlib.util

    return any(importlib.util.find_spec(name) for name in ("torch", "keras", "tensorflow"))
