"""
What runs in the Python that has the framework: builds the model, traces it, tells the result.

Started by `cli/estimate.py` with a plan in JSON as its only word; what is for the parent goes as
JSON, a line each, to the descriptor that the plan names, so that whatever a script prints is its
own. The order of things matters: what the process holds after the import of the framework is
measured before anything is built.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB
from watchdog_app.estimate import script
from watchdog_app.estimate.estimating import estimate, resident_bytes

_NO_CARD = " (The estimate runs without cards: make the model without .cuda() or a device.)"
# What a name or a script has in it, and the framework that it then imports.
_FRAMEWORK_MARKS = {
    "keras": "keras",
    ".h5": "keras",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "timm": "torch",
    "transformers": "torch",
}


def main() -> None:
    """Carry out the plan; the exit status says only whether an answer was told."""
    plan = json.loads(sys.argv[1])
    with os.fdopen(int(plan["answer_fd"]), "w", encoding="utf-8") as out:

        def send(**message: Any) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        try:
            _run_plan(plan, send)
        except WatchdogError as error:
            send(error=str(error))
        except MemoryError:
            send(error="The memory limit was reached before the estimate was done.")
        except ImportError as error:
            send(
                error=f"{plan['target']}: {error}. Is {sys.executable} the right Python? "
                "--python names one."
            )
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            place = _error_location(error.__traceback__, plan["target"])
            hint = _NO_CARD if "CUDA" in str(error) else ""
            send(error=f"{plan['target']}: {type(error).__name__} in {place}: {error}{hint}")


def _run_plan(plan: dict[str, Any], send: Callable[..., None]) -> None:
    name, _, thing = plan["target"].rpartition(":")
    if plan["target"].endswith(".keras"):
        name, thing = plan["target"], ""
    send(progress="loading the framework")
    base = _framework_bytes(name, plan["framework"])
    send(progress="building the model")
    found = script.load_model(name, thing, plan["arguments"], hollow=not plan.get("measure"))
    model, batch = found.model, plan["batch"] or found.batch
    if plan.get("measure"):
        from watchdog_app.estimate import measuring

        send(progress="running some steps")
        send(measured=measuring.measure_steps(model, {**plan, "batch": batch}))
        return
    send(progress="tracing a step")
    optimizer = plan["optimizer"]
    if optimizer is None and getattr(model, "optimizer", None) is None:
        optimizer = "adam"
    result = estimate(
        model,
        batch,
        input_shape=[(tuple(shape), dtype) for shape, dtype in plan["inputs"]] or None,
        optimizer=optimizer,
        loss=plan["loss"],
        limit_bytes=plan["limit"],
        precision=plan["precision"],
        gpu=plan["gpu"],
        jit_compile=plan["jit"],
        own_bytes=resident_bytes(),
        base_bytes=base,
    )
    message = result.to_json()
    message["notes"] += found.notes
    if plan["optimizer"] is None and optimizer == "adam":
        message["notes"].append("no optimizer was named: Adam is assumed; --optimizer names one.")
    send(estimate=message)


def _error_location(trace: TracebackType | None, target: str) -> str:
    """Where it went wrong: the last line of the user's own file, else the last of all."""
    import traceback

    frames = traceback.extract_tb(trace)
    own = os.path.abspath(target.rpartition(":")[0])
    where = next((each for each in reversed(frames) if each.filename == own), frames[-1])
    return f"{os.path.basename(where.filename)}:{where.lineno}"


def _framework_bytes(name: str, framework: str | None) -> int | None:
    """What this process holds with the framework imported; None: it is not known which."""
    chosen = framework or _detect_framework(name)
    if chosen is None:
        return None
    before = resident_bytes()
    try:
        importlib.import_module(chosen)
    except ImportError:
        return None  # only a word of the script; or its own import says so
    held = resident_bytes()
    return held if held > before + 10 * MIB else None


def _detect_framework(name: str) -> str | None:
    """The framework that a module or a script imports, by its name or its text."""
    text = name
    if name.endswith(".py") and os.path.isfile(name):
        with open(name, encoding="utf-8", errors="replace") as file:
            text = file.read()
    return next((framework for word, framework in _FRAMEWORK_MARKS.items() if word in text), None)
