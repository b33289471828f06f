"""
The process-wide random numbers of Python, NumPy and TensorFlow: taken, put back.

Random numbers that belong to a model (Keras seed generators) are variables and
travel with it. These here belong to nobody, so a resumed process starts them
anew unless they are put back.
"""

from __future__ import annotations

import random
import sys
from typing import Any

State = dict[str, Any]
Look = tuple[tuple[Any, ...], tuple[Any, ...] | None]


def look() -> Look:
    """Python's and NumPy's global generators, to be compared; 50 microseconds."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate(), None
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, keys.tobytes(), *rest)


def of_look(seen: Look) -> State:
    """What `look` saw, as `take` has it."""
    python, numpy = seen
    state: State = {"python": _take_random(python)}
    if numpy is not None:
        kind, keys, *rest = numpy
        state["numpy"] = [kind, memoryview(keys).cast("I").tolist(), *rest]
    return state


def take() -> State:
    """
    The global generators as they are now, as plain JSON values.

    Keys: `python`, and `numpy`, `tensorflow_seed`, `tensorflow_rng`,
    `tensorflow_generator` where those libraries are loaded and have one.
    """
    state = of_look(look())
    context = _eager_context()
    if context is not None:
        state["tensorflow_seed"] = context._seed
        # Draws the seeds of operations that name none, e.g. a tf.random.normal run eagerly.
        if getattr(context, "_rng", None) is not None:
            state["tensorflow_rng"] = _take_random(context._rng.getstate())
    generator = _tensorflow_generator()
    if generator is not None:
        state["tensorflow_generator"] = generator.state.numpy().tolist()
    return state


def put(state: State, *, python_and_numpy: bool = True) -> None:
    """
    Set the global generators to what `take` returned.

    `python_and_numpy=False` leaves those two alone: a data pipeline written in
    Python draws from them in the background, ahead of the training.
    """
    if python_and_numpy:
        put_python(state["python"])
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in state:
            kind, keys, position, has_gauss, gauss = state["numpy"]
            words = numpy.array(keys, dtype=numpy.uint32)
            numpy.random.set_state((kind, words, position, has_gauss, gauss))
    context = _eager_context()
    if context is not None and "tensorflow_rng" in state and context._rng is not None:
        context._rng.setstate(_random_state(state["tensorflow_rng"]))
    generator = _tensorflow_generator()
    if generator is not None and "tensorflow_generator" in state:
        generator.state.assign(state["tensorflow_generator"])


def take_python() -> list[Any]:
    """Python's `random` alone: what Keras shuffles the batches of a PyDataset with."""
    return _take_random(random.getstate())


def put_python(state: list[Any]) -> None:
    """Set Python's `random` to what `take_python` returned."""
    random.setstate(_random_state(state))


def _take_random(state: tuple[Any, ...]) -> list[Any]:
    version, words, gauss = state
    return [version, list(words), gauss]


def _random_state(state: list[Any]) -> tuple[Any, ...]:
    version, words, gauss = state
    return version, tuple(words), gauss


def _eager_context() -> Any:
    """TensorFlow's eager context where TensorFlow is loaded and it looks as expected."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if module is None:
        return None
    context = module.context()
    return context if hasattr(context, "_seed") else None


def _tensorflow_generator() -> Any:
    """The global tf.random.Generator if the program made one; asking TensorFlow would make it."""
    module = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    return getattr(module, "global_generator", None)
