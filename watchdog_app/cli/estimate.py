"""`watchdog estimate`: the memory that a training is going to need, before it is started."""

from __future__ import annotations

import argparse
import os

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError
from watchdog_app.cli.parser import positive_duration, positive_integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "estimate"
HELP = "estimate the memory of a training: will this batch fit?"
DESCRIPTION = """\
Trace one training step of a Keras or PyTorch model without running it. Print the memory of its
weights, gradients, optimizer, activations and data, the peak, and the largest batch that fits.
MODEL is FILE.py:FUNCTION, MODULE:FUNCTION, either with the name of a model instead of a
function, or a .keras file. The file is imported; code under `if __name__ == "__main__"` does
not run. Weights of Keras models are not allocated."""
EPILOG = """\
examples:
  watchdog estimate train.py:build_model --batch 64
  watchdog estimate keras.applications:ResNet50 --arg weights=None --batch 128
  watchdog estimate model.py:Net --input 3,224,224 --optimizer sgd --limit 12G
  watchdog estimate best.keras --batch 256 --gpu --limit 24GiB
  watchdog estimate model.py:Encoder --input 512:int64 --precision bfloat16 --json

exit codes: 0 it fits or no limit is known, 1 it does not fit or failure, 2 usage"""

_TIMEOUT_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="FILE.py:FUNCTION, MODULE:FUNCTION or FILE.keras")
    add("-b", "--batch", type=positive_integer, metavar="N", help="examples in a step; 32")
    add(
        "-i", "--input", type=_shape, action="append", default=[], metavar="SHAPE", dest="inputs",
        help="one example, without the batch: 224,224,3 or 128:int64; once for each input",
    )  # fmt: skip
    add("--optimizer", metavar="NAME", help="the model's own, or adam; sgd, momentum, adamw, ...")
    add("--loss", metavar="NAME", help="a Keras model's; default: its own, or one that suits")
    add("--precision", choices=("float32", "float16", "bfloat16"), help="PyTorch's autocast")
    add("--jit", action="store_true", default=None, help="compiled by XLA (jit_compile=True)")
    add("--limit", type=_size, metavar="SIZE", help="such as 12G; default: what is free here now")
    add("--gpu", action="store_true", help="the memory of a card instead of the machine's")
    add(
        "--arg", type=_argument, action="append", default=[], metavar="NAME=VALUE",
        help="an argument of FUNCTION; VALUE is read as Python (3, None, (2, 2)) or as text",
    )  # fmt: skip
    add(
        "--framework", choices=("keras", "tensorflow", "torch"), metavar="NAME",
        help="keras, tensorflow or torch, where the file does not tell",
    )  # fmt: skip
    add(
        "--python", metavar="FILE",
        help="the Python that has the framework; default: of the virtual environment, or python",
    )  # fmt: skip
    add("--measure", action="store_true", help="run some real steps too, and say what they took")
    add(
        "--timeout", type=positive_duration, default=_TIMEOUT_S, metavar="TIME",
        help="give up after 90s, 10min; default: 5min",
    )  # fmt: skip
    add("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask a child, show what it says."""
    from watchdog_app.cli.estimate_child import ask, interpreter

    _check(args.model)
    python = interpreter(args.python)
    limit, limit_text = args.limit, "the limit that was given"
    if limit is None and not args.gpu:
        from watchdog_app.estimate import limits

        found = limits.tightest()
        if found is not None:
            limit, limit_text = found
    plan = {
        "target": args.model,
        "batch": args.batch,
        "inputs": args.inputs,
        "optimizer": args.optimizer,
        "loss": args.loss,
        "precision": args.precision,
        "jit": args.jit,
        "limit": limit,
        "gpu": args.gpu,
        "arguments": dict(args.arg),
        "framework": args.framework,
    }
    result = ask(python, plan, args.timeout)["estimate"]
    if result["limit_bytes"] is not None and not args.gpu:
        result["limit_text"] = limit_text
    if args.measure:
        measured = ask(python, {**plan, "measure": True, "limit": limit}, args.timeout)
        result["measured"] = measured["measured"]
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(result))
    else:
        _show(result)
    return EXIT_FAILURE if result["fits"] is False else EXIT_OK


def _show(result: dict[str, Any]) -> None:
    from watchdog_app.base.text.quantities import format_bytes
    from watchdog_app.base.text.terminal import plain
    from watchdog_app.estimate.record import Estimate, lines_of

    for line in lines_of(Estimate.from_json(result)):
        print(plain(line))
    measured = result.get("measured")
    if measured:
        took, said = measured["peak_bytes"], result["peak_bytes"]
        print(
            f"\nMeasured over {measured['steps']} steps: {format_bytes(took)}; "
            f"the estimate is {abs(said - took) / max(1, took):.0%} "
            f"{'above' if said >= took else 'below'} that."
        )


def _check(target: str) -> None:
    if target.endswith(".keras"):
        if not os.path.isfile(target):
            raise UsageError(f"There is no file {target}.")
        return
    if target.endswith(".py"):  # C:\\train.py has a colon too
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


def _shape(text: str) -> tuple[tuple[int, ...], str]:
    from watchdog_app.estimate.inputs import parse

    try:
        return parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write 224,224,3 or 128:int64, without the batch"
        ) from None


def _size(text: str) -> int:
    from watchdog_app.base.text.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _argument(text: str) -> tuple[str, object]:
    import ast

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        read = value
    return name, read
