"""
The child in the user's Python: builds the model, traces it and reports the result.

`cli/estimate.py` starts it with a plan in JSON as its only argument. Its standard output has one
line of JSON and nothing that a script prints. The order matters: the process measures its memory
after the import of the framework and before it builds anything.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import replace
from types import TracebackType
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB
from watchdog_app.estimate import script
from watchdog_app.estimate.estimating import estimate, resident_bytes
from watchdog_app.estimate.record import format_table

_NO_CARD = " (The estimate runs without cards: make the model without .cuda() or a device.)"
# A word in a name or a script, and the framework that it suggests.
_FRAMEWORK_MARKS = {
    "keras": "keras",
    ".h5": "keras",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "timm": "torch",
    "transformers": "torch",
}


def main() -> None:
    """Run the plan, print the answer, and exit at once, even if a script has started threads."""
    plan = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        answer = _run_plan(plan)
    except WatchdogError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": "The memory limit was reached before the estimate was done."}
    except ImportError as error:
        hint = f"Is {sys.executable} the right Python? --python names one."
        answer = {"error": f"{plan['target']}: {error}. {hint}"}
    except Exception as error:
        place = _error_location(error.__traceback__, plan["target"])
        hint = _NO_CARD if "CUDA" in str(error) else ""
        text = f"{plan['target']}: {type(error).__name__} in {place}: {error}{hint}"
        answer = {"error": text}
    out.write(json.dumps(answer) + "\n")
    out.flush()
    os._exit(0)


def _run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    name, _, thing = plan["target"].rpartition(":")
    if plan["target"].endswith(".keras"):
        name, thing = plan["target"], ""
    base = _framework_bytes(name, plan["framework"])
    found = script.load_model(name, thing, plan["arguments"])
    model, batch = found.model, plan["batch"] or found.batch
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
    notes = [*result.notes, *found.notes]
    if plan["optimizer"] is None and optimizer == "adam":
        notes.append("no optimizer was named: Adam is assumed; --optimizer names one.")
    limit_text = plan["limit_text"] or result.limit_text
    result = replace(result, notes=tuple(notes), limit_text=limit_text)
    return {"estimate": result.to_json(), "table": format_table(result)}


def _error_location(trace: TracebackType | None, target: str) -> str:
    """
    Find where an error arose: the last line in the user's own file, else the last line of all.
    """
    import traceback

    frames = traceback.extract_tb(trace)
    own = os.path.abspath(target.rpartition(":")[0])
    where = next((each for each in reversed(frames) if each.filename == own), frames[-1])
    return f"{os.path.basename(where.filename)}:{where.lineno}"


def _framework_bytes(name: str, framework: str | None) -> int | None:
    """Measure this process's memory with the framework imported; None: the framework is unknown."""
    chosen = framework or _detect_framework(name)
    if chosen is None:
        return None
    before = resident_bytes()
    try:
        importlib.import_module(chosen)
    except ImportError:
        return None  # the script only mentions the name, or its own import will report the error
    held = resident_bytes()
    return held if held > before + 10 * MIB else None


def _detect_framework(name: str) -> str | None:
    """Detect the framework that a module or a script imports, by its name or its text."""
    text = name
    if name.endswith(".py") and os.path.isfile(name):
        with open(name, encoding="utf-8", errors="replace") as file:
            text = file.read()
    return next((framework for word, framework in _FRAMEWORK_MARKS.items() if word in text), None)
