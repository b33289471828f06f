"""
Training loops that a library runs: what it knows of their place, for its own way to resume.

Lightning and the Trainer of Hugging Face keep counts of their own, which a rescue of such a loop
holds as well: `watchdog_app.agent.lightning` and `.transformers` make of it what these resume from.
"""

from __future__ import annotations

import dataclasses
import json
from types import FrameType
from typing import Any

KEY = "library"  # of a rescue's description
LIGHTNING, TRANSFORMERS = "lightning", "transformers"


def of(frame: FrameType | None) -> Any:
    """The library's object that runs the loop in `frame`; None for a loop of the program's own."""
    owner = None if frame is None else frame.f_locals.get("self")
    return owner if _library(owner) is not None else None


def described(owner: Any) -> dict[str, Any] | None:
    """Its counts, as JSON."""
    library = _library(owner)
    if library == TRANSFORMERS:
        state = dataclasses.asdict(owner.state)
        return {"name": library, "state": json.loads(json.dumps(state, default=str))}
    if library == LIGHTNING:
        trainer = owner.trainer
        return {
            "name": library,
            "loops": json.loads(json.dumps(trainer.fit_loop.state_dict(), default=str)),
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
        }
    return None


def _library(owner: Any) -> str | None:
    module = type(owner).__module__.partition(".")[0]
    # A program's own subclass of Trainer is one as well.
    modules = {kind.__module__.partition(".")[0] for kind in type(owner).__mro__} | {module}
    if TRANSFORMERS in modules and hasattr(owner, "state") and hasattr(owner, "args"):
        return TRANSFORMERS
    if modules & {LIGHTNING, "pytorch_lightning"} and hasattr(owner, "trainer"):
        return LIGHTNING
    return None
