"""
Rescues for Keras: one callback, and a `fit` that was killed resumes from its very batch.

    from watchdog_app.agent.keras import Rescue

    model.fit(..., callbacks=[Rescue("rescues/")])

Saves when the watchdog daemon asks, at the next batch boundary, in the
training's own thread. The next run of the same program finds the newest
complete rescue by itself. Keras 3 on TensorFlow, PyTorch or JAX; of Keras 2 see
`tf_keras`. See docs/agent.md for what is restored.
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

    Use one folder a training, and give the callback to every `fit` that should
    be saved. Without a watchdog daemon it does nothing but wait for one.
    """

    _last_callback_class = _LastCallback
