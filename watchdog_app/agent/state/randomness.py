"""
Capture and restore the global random generators of Python, NumPy, TensorFlow and PyTorch.

A framework's generators are captured if the program has loaded it; none is imported. The seed
generators of a Keras model are variables and are saved with it. `own_random` captures the
generators that data holds. The global generators belong to no object, so a resumed process must
restore them.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

State = dict[str, Any]
# States of Python, NumPy and PyTorch (on the CPU); None: not loaded.
Snapshot = tuple[tuple[Any, ...], tuple[Any, ...] | None, bytes | None]


def snapshot() -> Snapshot:
    """The states of the global generators, for a later comparison; takes 50 microseconds."""
    numpy, torch = sys.modules.get("numpy"), _torch()
    of_torch = None if torch is None else torch.get_rng_state().numpy().tobytes()
    if numpy is None:
        return random.getstate(), None, of_torch
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, keys.tobytes(), *rest), of_torch


def state_of_snapshot(seen: Snapshot) -> State:
    """The states of a `snapshot` in the form of `capture`."""
    python, numpy, torch = seen
    state: State = {"python": random_to_json(python)}
    if numpy is not None:
        kind, keys, *rest = numpy
        state["numpy"] = [kind, _words(keys), *rest]
    if torch is not None:
        state["torch"] = base64.b64encode(torch).decode("ascii")
    return state


def capture() -> State:
    """
    The current states of the global generators, as plain JSON values.

    Keys: `python`, and `numpy`, `torch`, `devices`, `tensorflow_seed`, `tensorflow_rng`,
    `tensorflow_generator` if those libraries are loaded and have one.
    """
    state = state_of_snapshot(snapshot())
    if "torch" in state:
        state["devices"] = dict(_devices())
    context = _eager_context()
    if context is not None:
        state["tensorflow_seed"] = context._seed
        # Draws the seeds of operations without a seed, e.g. a tf.random.normal run eagerly.
        if getattr(context, "_rng", None) is not None:
            state["tensorflow_rng"] = random_to_json(context._rng.getstate())
    generator = _tensorflow_generator()
    if generator is not None:
        state["tensorflow_generator"] = generator.state.numpy().tolist()
    return state


def restore(state: State, *, python_and_numpy: bool = True) -> None:
    """
    Set the global generators to what `capture` returned; skip devices that do not exist here.

    `python_and_numpy=False` leaves those two alone: a data pipeline written in Python draws from
    them in the background, ahead of the training.
    """
    if python_and_numpy:
        random.setstate(random_from_json(state["python"]))
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in state:
            kind, keys, position, has_gauss, gauss = state["numpy"]
            words = numpy.array(keys, dtype=numpy.uint32)
            numpy.random.set_state((kind, words, position, has_gauss, gauss))
    context = _eager_context()
    if context is not None and "tensorflow_rng" in state and context._rng is not None:
        context._rng.setstate(random_from_json(state["tensorflow_rng"]))
    generator = _tensorflow_generator()
    if generator is not None and "tensorflow_generator" in state:
        generator.state.assign(state["tensorflow_generator"])
    if state.get("torch") is not None and _torch() is not None:
        _restore_torch(state["torch"], state.get("devices") or {})


def torch_state(text: str) -> Any:
    """The state of a PyTorch generator, a tensor of bytes, from a text of `capture`."""
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def random_to_json(state: tuple[Any, ...]) -> list[Any]:
    """What `getstate` of Python's generator returned, as JSON."""
    version, words, gauss = state
    return [version, _words(words), gauss]


@lru_cache(maxsize=8)
def _words(words: tuple[int, ...] | bytes) -> list[int]:
    """
    The words of a generator.

    The same words give the same list, so that a later comparison is fast; no code changes it.
    """
    return memoryview(words).cast("I").tolist() if isinstance(words, bytes) else list(words)


def random_from_json(state: list[Any]) -> tuple[Any, ...]:
    """A state of Python's generator, in the form that `setstate` takes."""
    version, words, gauss = state
    return version, tuple(words), gauss


def _torch() -> Any:
    """PyTorch, if the program has imported it completely."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") else None


def _devices() -> Iterator[tuple[str, list[str]]]:
    """Kind of device -> state of each device."""
    torch = _torch()
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        # Reading the random state of an unused device would initialise the device.
        if module is not None and module.is_initialized():
            yield (
                kind,
                [torch_text(module.get_rng_state(i)) for i in range(module.device_count())],
            )
    if has_mps(torch):
        yield "mps", [torch_text(torch.mps.get_rng_state())]


def _restore_torch(cpu: str, devices: dict[str, list[str]]) -> None:
    torch = _torch()
    torch.set_rng_state(torch_state(cpu))
    for kind, states in devices.items():
        if kind == "mps":
            if has_mps(torch):
                torch.mps.set_rng_state(torch_state(states[0]))
            continue
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        for index, text in enumerate(states[: module.device_count()]):
            module.set_rng_state(torch_state(text), index)


def has_mps(torch: Any) -> bool:
    """Whether PyTorch can use the GPU of an Apple machine."""
    mps = getattr(torch.backends, "mps", None)
    return mps is not None and bool(mps.is_available())


def torch_text(state: Any) -> str:
    """The text that `torch_state` reads."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _eager_context() -> Any:
    """TensorFlow's eager context, if TensorFlow is loaded and has the expected attributes."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if module is None:
        return None
    context = module.context()
    return context if hasattr(context, "_seed") else None


def _tensorflow_generator() -> Any:
    """The global tf.random.Generator, if the program made one; asking TensorFlow would make it."""
    module = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    return getattr(module, "global_generator", None)
