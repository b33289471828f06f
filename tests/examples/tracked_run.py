"""
Run an example; save after one step of it, and kill it after another.

    python tracked_run.py EXAMPLE SAVE_AFTER KILL_AFTER [ARGUMENT]    # 0: never
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

EXAMPLE, SAVE_AFTER, KILL_AFTER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv[1:] = sys.argv[4:]


def ended(rescue: Any) -> None:
    """What happens between two steps."""
    if rescue.step_number == SAVE_AFTER:
        rescue.save()
    if rescue.step_number == KILL_AFTER:
        os.kill(os.getpid(), signal.SIGKILL)


if "fit" in EXAMPLE:
    import keras

    fit = keras.Model.fit

    def fit_and_end(self: Any, *args: Any, callbacks: list[Any], **more: Any) -> Any:
        ends = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ended(callbacks[0])
        )
        return fit(self, *args, callbacks=[*callbacks, ends], **more)

    keras.Model.fit = fit_and_end
else:
    from watchdog_app.agent.torch import Rescue

    step = Rescue.step

    def step_and_end(self: Any, *args: Any, **more: Any) -> None:
        step(self, *args, **more)
        ended(self)

    Rescue.step = step_and_end  # type: ignore[method-assign]

runpy.run_path(EXAMPLE, run_name="__main__")
