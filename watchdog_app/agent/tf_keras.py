"""
Rescues for Keras 2: one callback, as for Keras 3.

    from watchdog_app.agent.tf_keras import Rescue

    model.fit(..., callbacks=[Rescue("rescues/")])

For programs that import `tf_keras`, or `tf.keras` with TF_USE_LEGACY_KERAS=1. See
docs/saving.md for what is restored.
"""

# ruff: noqa: D102 - the hooks and their arguments are Keras's, and documented there

from __future__ import annotations

import time
from typing import Any

import tf_keras

from watchdog_app.agent.adapters.keras.keras2 import OnKeras2, find_handler
from watchdog_app.agent.adapters.keras.rescue import FitRescue, LastCallback

__all__ = ["Rescue"]

_READ_LOSS_EVERY_S = 0.25  # reading the loss may wait for the GPU


class _LastCallback(LastCallback, tf_keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """See `LastCallback`."""

    _supports_tf_logs = True


class Rescue(FitRescue, tf_keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """
    Saves a `fit` when memory runs out, and resumes it bit for bit.

    Use one folder per training, and give the callback to every `fit` that should be saved. Without
    a watchdog daemon the callback only waits for one.
    """

    # else Keras would wait for each batch to convert its tensors to numbers
    _supports_tf_logs = True
    _last_callback_class = _LastCallback
    _backend = OnKeras2
    _find_iterator = staticmethod(find_handler)
    _next_loss_read_mono_s = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = self._loss
        super().on_train_batch_end(batch, logs)
        self._loss = loss
        now = time.monotonic()
        if now >= self._next_loss_read_mono_s and isinstance(logs, dict) and "loss" in logs:
            self._next_loss_read_mono_s = now + _READ_LOSS_EVERY_S
            with self._guard:
                self._loss = float(logs["loss"])
