"""
Loops over Keras's `train_on_batch` that name no Rescue: told once how they can be saved.

Nobody sees from outside where such a loop begins and which batch comes next, so it is
not saved by itself. It is met where Keras resets the metrics for its batch.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from watchdog_app.agent.contain import Guard, say

_guard = Guard("the agent that was switched on")
_attached: tuple[Any, Any, Any] | None = None  # the class, its reset_metrics before, ours

_ON_TENSORFLOW = (
    "from watchdog_app.agent.tensorflow import Rescue, then "
    'rescue = Rescue("rescues/", model=model) before the loop and rescue.step() in it.'
)
_ON_OTHERS = 'a fit with callbacks=[Rescue("rescues/")] of watchdog_app.agent.keras is.'


def attach(module: ModuleType) -> None:
    """
    Stand where `train_on_batch` comes by, until it has once. Does nothing where that was done.

    Args:
        module: `keras.src.trainers.trainer`.
    """
    global _attached
    if _attached is not None:
        return
    kind: Any = module.Trainer
    before = kind.reset_metrics

    @functools.wraps(before)
    def reset_metrics(self: Any) -> Any:
        if _attached is not None:
            with _guard:
                caller = sys._getframe(1)
                inside_keras = str(caller.f_globals.get("__name__")).startswith("keras.src.")
                if inside_keras and caller.f_code.co_name == "train_on_batch":
                    _tell(self)
        return before(self)

    kind.reset_metrics = reset_metrics
    _attached = kind, before, reset_metrics


def detach() -> None:
    """As it was before, unless somebody else has changed it since: then ours does nothing."""
    global _attached
    if _attached is None:
        return
    kind, before, ours = _attached
    _attached = None
    if kind.reset_metrics is ours:
        kind.reset_metrics = before


def _tell(model: Any) -> None:
    detach()
    import keras

    if "watchdog_app.agent.tensorflow" in sys.modules:
        return  # the program has a Rescue for its loops
    backend = keras.backend.backend()
    say(
        f"this program trains {type(model).__name__} with train_on_batch: it is watched, but not "
        f"saved. To be saved: {_ON_TENSORFLOW if backend == 'tensorflow' else _ON_OTHERS}"
    )
