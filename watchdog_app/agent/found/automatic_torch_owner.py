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

from watchdog_app.agent.found import found_names

KEY = "library"  # of a rescue's description
LIGHTNING, TRANSFORMERS = "lightning", "transformers"
_LIGHTNING = {LIGHTNING, "pytorch_lightning"}


def of(frame: FrameType | None) -> Any:
    """The library's object that runs the loop around `frame`; None for the program's own loop."""
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",) and _is_library(frame.f_globals):
            owner = found_names.locals_of(frame).get("self")
            if _library(owner) is not None:
                return owner
        frame = frame.f_back
    return None


def held(owner: Any) -> list[Any]:
    """The modules and schedulers that it trains with, as its library tells them."""
    library = _library(owner)
    if library == TRANSFORMERS:
        return [each for each in (owner.model, owner.lr_scheduler) if each is not None]
    if library == LIGHTNING:
        trainer = owner.trainer
        return [
            trainer.lightning_module,
            *(each.scheduler for each in trainer.lr_scheduler_configs),
        ]
    return []


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
    if modules & _LIGHTNING and hasattr(owner, "trainer"):
        return LIGHTNING
    return None


def _is_library(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in {TRANSFORMERS, *_LIGHTNING}
