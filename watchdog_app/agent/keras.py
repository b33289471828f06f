"""
Rescues for Keras: one callback; a killed `fit` resumes at the batch where it was saved.

    from watchdog_app.agent.keras import Rescue

    model.fit(..., callbacks=[Rescue("rescues/")])

Saves when the watchdog daemon asks, at the next batch boundary, in the training's own thread. The
next run of the same program finds the newest complete rescue automatically. Supports Keras 3 on
TensorFlow, PyTorch or JAX; for Keras 2 see `tf_keras`. See docs/saving.md for what is restored.
"""

from __future__ import annotations

import keras

from watchdog_app.agent.adapters.keras.rescue import FitRescue, LastCallback

__all__ = ["Rescue"]


class _LastCallback(LastCallback, keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """See `LastCallback`."""


class Rescue(FitRescue, keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """
    Saves a `fit` when memory runs out, and resumes it bit for bit.

    Use one folder per training, and give the callback to every `fit` that should be saved. Without
    a watchdog daemon the callback only waits for one.
    """

    _last_callback_class = _LastCallback
