"""What a TensorFlow loop computes: its Keras models and optimizers, and the program's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from watchdog_app.agent.identity import code, data_facts, keras_facts
from watchdog_app.rescue.identity.run import RunIdentity

FRAMEWORK = "a TensorFlow loop"


def gather(objects: Mapping[str, Any], *, begins: bool) -> RunIdentity:
    """
    The identity of a loop.

    Args:
        objects: by the names that the program gave them.
        begins: whether the training starts now. If not, its initial values are unknown.
    """
    models = [each for each in objects.values() if isinstance(each, keras.Layer)]
    others = [each for each in objects.values() if isinstance(each, tf.Module | keras.Layer)]
    optimizers = optimizers_of(objects)
    return data_facts.gather(
        FRAMEWORK,
        f"{keras.__version__}, {tf.__version__}",
        model=lambda: (
            [layer for model in models for layer in keras_facts.layers(model, begins=begins)]
            + list(_modules(objects, begins))
        ),
        code=lambda: keras_facts.functions(
            others, [each.loss for each in models if getattr(each, "loss", None) is not None]
        ),
        optimizers=lambda: keras_facts.optimizer_classes(optimizers),
        settings=lambda: keras_facts.settings_of(optimizers) if begins else {},
    )


def _modules(objects: Mapping[str, Any], begins: bool) -> Iterator[dict[str, Any]]:
    """Modules of the program that are not Keras layers."""
    for name, thing in objects.items():
        own = code.is_own(type(thing)) and isinstance(thing, tf.Module)
        if own and not isinstance(thing, keras.Layer):
            found = {"label": name, "class": keras_facts.class_of(thing), "inputs": None}
            attributes = code.plain_attributes(thing, begins=begins)
            yield {**found, "settings": {}, "attributes": attributes}


def holders_of(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Objects that may have attributes of the program's own, with labels for messages."""
    for name, thing in objects.items():
        if isinstance(thing, keras.Layer):
            for index, layer in enumerate(thing._flatten_layers()):
                yield f"{name} {index}", layer
        elif isinstance(thing, tf.Module):
            yield name, thing


def optimizers_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Keras optimizers, including those of compiled models, by labels for messages."""
    found: dict[str, Any] = {}
    for name, thing in objects.items():
        if isinstance(thing, keras.optimizers.Optimizer):
            found[name] = thing
        elif isinstance(thing, keras.Model):
            named = keras_facts.named_optimizers(thing)
            found |= {f"{label} of {name}": each for label, each in named.items()}
    return found
