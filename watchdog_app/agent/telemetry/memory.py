"""
The memory of this training by purpose: weights, gradients, optimizer, activations, buffers.

Weights and the optimizer's state are counted from the objects themselves. Activations are measured:
the peak of the process while it trains, minus the memory before the training and the other known
parts. This module imports no framework, initialises no device and reads no values.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from watchdog_app.agent.telemetry.parts import Parts, parts_of_keras, parts_of_torch
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import status_bytes

Figures = dict[str, Any]

_EVERY_S = 1.0
_COUNT_EVERY_S = 10.0  # counting Python objects takes 40 us
# Weights and optimizer state: measured 5.6 ms for 400 weights with Adam.
_PARTS_EVERY_S = 60.0
# The first step of a framework adds kernels, threads and traces: measured 40 to 120 MB on a CPU.
# Smaller activations cannot be distinguished from it.
_LEAST_BYTES = 64 * 2**20
_MEASURED_STEPS = 20  # growth after these steps does not come from activations
_MEASURED_S = 60.0
_MOST_BUFFERS = 8
_TEXT = 100

Memory = Callable[[], tuple[int, int] | None]


def resident() -> tuple[int, int] | None:
    """Resident bytes of this process now and at most so far; None: not available here."""
    status = read_or_empty("/proc/self/status")
    now, most = status_bytes(status, b"VmRSS"), status_bytes(status, b"VmHWM")
    return None if now is None or most is None else (now, most)


class Breakdown:
    """
    The memory parts of one training. Use it only in the thread that trains.

    Args:
        clock: monotonic seconds.
        memory: `resident`, or a replacement in tests.
    """

    def __init__(self, clock: Callable[[], float], memory: Memory = resident) -> None:
        self._clock = clock
        self._memory = memory
        self._things: list[weakref.ref[Any]] = []
        self._batch: int | None = None
        self._base: int | None = None  # resident before the first step
        self._base_peak = 0
        self._began_s = 0.0
        self._first_step: int | None = None
        self._activations: int | None = None
        self._buffers: list[Figures] = []
        self._parts: Parts | None = None
        self._blocks: tuple[int, int] | None = None  # step, blocks
        self._objects: Figures = {}
        self._figures: Figures = {}
        self._next_s = self._next_count_s = self._next_parts_s = 0.0

    def set_objects(self, things: Iterable[Any]) -> None:
        """Set the trained objects: models or modules, and optimizers; ignore all others."""
        # Weak references: objects that the program drops must be freed.
        self._things = [ref for ref in map(_weak_reference, things) if ref is not None]
        self._next_parts_s = 0.0

    def set_dataset(self, dataset: Any) -> None:
        """Set the training data, which gives the number of examples per step."""
        try:
            size = _batch_size(dataset)
        except Exception:  # data of the program may raise on any access
            return
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            self._batch = size

    def add_buffer(self, bytes_: int, what: str) -> None:
        """Add a buffer that is about to fill."""
        self._buffers = self._buffers[1 - _MOST_BUFFERS :]
        self._buffers.append({"what": what[:_TEXT], "bytes": bytes_})

    def start(self) -> None:
        """Record the memory before the first step."""
        now = self._memory()
        if now is not None:
            self._base, self._base_peak = now
        self._began_s = self._clock()

    def read(self, step: int, allocators: Iterable[Figures] = ()) -> Figures:
        """
        The figures of `agent.report`, updated at most once a second.

        Args:
            step: the step that has just ended.
            allocators: the reported figures of the GPUs.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return self._figures
        self._next_s = now_s + _EVERY_S
        if self._first_step is None:
            self._first_step = step
        if now_s >= self._next_count_s:
            self._next_count_s = now_s + _COUNT_EVERY_S
            self._objects = self._python_objects(step)
        # An optimizer may make its state later than in the first step, and activations are measured
        # in the first steps.
        if now_s >= self._next_parts_s or step - self._first_step <= _MEASURED_STEPS:
            self._next_parts_s = now_s + _PARTS_EVERY_S
            try:
                self._parts = self._count()
            except Exception:  # a model of the program may raise, and would do so again
                self._parts, self._things = None, []
        memory = self._memory()
        self._measure(step, now_s, memory, allocators)
        parts = self._parts
        self._figures = {
            "batch_size": self._batch,
            "weights_bytes": None if parts is None else parts.weights_bytes,
            "gradients_bytes": None if parts is None else parts.gradients_bytes,
            "optimizer_bytes": None if parts is None else parts.optimizer_bytes,
            "activations_bytes": self._activations,
            "resident_bytes": None if memory is None else memory[0],
            "base_bytes": self._base,
            "buffers": list(self._buffers),  # full: a step has been made
            **self._objects,
        }
        return self._figures

    def _count(self) -> Parts | None:
        things = [each for each in (ref() for ref in self._things) if each is not None]
        models = [each for each in things if _is_model(each)]
        modules = [each for each in things if not _is_model(each) and _is_module(each)]
        optimizers = [each for each in things if hasattr(each, "param_groups")]
        if modules:
            return parts_of_torch(modules, optimizers)
        keras_optimizer = next(filter(_is_keras_optimizer, things), None)
        if models:
            return parts_of_keras(models[0], optimizer=keras_optimizer)
        return None

    def _measure(
        self,
        step: int,
        now_s: float,
        memory: tuple[int, int] | None,
        allocators: Iterable[Figures],
    ) -> None:
        on_cards = [
            max(0, each["peak_bytes"] - each["used_bytes"])
            for each in allocators
            if each.get("peak_bytes") is not None
        ]
        if on_cards:
            self._activations = sum(on_cards) or None
            return
        first = step if self._first_step is None else self._first_step
        if memory is None or self._base is None:
            return
        if step - first > _MEASURED_STEPS or now_s - self._began_s > _MEASURED_S:
            return  # later, growth from a leak would count as activations
        peak = max(memory[0], memory[1] if memory[1] > self._base_peak else 0)
        rest = peak - self._base - sum(each["bytes"] for each in self._buffers)
        if self._parts is not None:
            rest -= self._parts.gradients_bytes + (self._parts.optimizer_bytes or 0)
        if rest >= _LEAST_BYTES:
            self._activations = max(rest, self._activations or 0)

    def _python_objects(self, step: int) -> Figures:
        """The number of small Python objects, and their growth per step."""
        blocks = sys.getallocatedblocks()
        before, self._blocks = self._blocks, (step, blocks)
        rate = None
        if before is not None and step > before[0]:
            rate = (blocks - before[1]) / (step - before[0])
        return {"python_blocks": blocks, "python_blocks_per_step": rate}


def _batch_size(dataset: Any) -> Any:
    """The batch size that a loader or a pipeline reports."""
    size = getattr(dataset, "batch_size", None)
    # Keras's wrapper of a tf.data pipeline does not report it.
    pipeline = getattr(dataset, "_dataset", dataset)
    if not isinstance(size, int) and hasattr(pipeline, "_inputs") and "tensorflow" in sys.modules:
        # imports TensorFlow, which is loaded already
        from watchdog_app.agent.telemetry import dataset_buffers

        size = dataset_buffers.batch_rows(pipeline)
    return size


def _weak_reference(thing: Any) -> weakref.ref[Any] | None:
    """A weak reference to an object that is counted; None for any other object."""
    try:
        known = _is_model(thing) or _is_module(thing) or _is_keras_optimizer(thing)
        return weakref.ref(thing) if known or hasattr(thing, "param_groups") else None
    except Exception:  # no weak reference is possible, or a property raises
        return None


def _is_model(thing: Any) -> bool:
    """Whether this is a Keras model or layer, of any version and backend."""
    return (
        hasattr(thing, "trainable_variables")
        and hasattr(thing, "variables")
        and not (_is_keras_optimizer(thing))
    )


def _is_keras_optimizer(thing: Any) -> bool:
    return hasattr(thing, "apply_gradients") and hasattr(thing, "variables")


def _is_module(thing: Any) -> bool:
    """Whether this is a PyTorch module."""
    return callable(getattr(thing, "named_parameters", None)) and callable(
        getattr(thing, "buffers", None)
    )
