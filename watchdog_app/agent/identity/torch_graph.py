"""
What the first steps of a PyTorch loop compute, read from the autograd graph of their loss.

The rest of the identity does not compare the loop itself: its loss, and its operations on the
outputs of modules.

A graph is recorded as a text. The text starts with a hash of the operations in order and of the
parameters at the leaves; the count of each operation follows. A training may have several graphs (a
GAN, layers that are unfrozen). The text keeps no graph alive. Batch size, precision and values of
constants do not show in it.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from watchdog_app.rescue.identity.compare import describe_graph_difference

FIRST_STEPS = 3  # steps to compare; a refusal needs a difference in all of them
# graphs of one training; more come from graphs that depend on the batch, such as of texts
_MOST_GRAPHS = 8
_MOST_NODES = 50_000
_SHARE = 1 / 400  # share of time to spend on graphs after the first steps
_PRECISION = frozenset(("ToCopyBackward0", "CloneBackward0"))
# operations that hide the graph behind them
_HIDDEN = ("CompiledFunction", "CheckpointFunction")
_HASH_DIGITS = 16


class Graphs:
    """The graphs seen in a training, and those of the rescue that it resumes from."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._names = {
            id(parameter): f"{name}.{key}"
            for name, module in modules.items()
            for key, parameter in module.named_parameters()
        }
        self._seen: dict[str, None] = {}
        self._saved: Sequence[str] = ()
        self._foreign = 0
        self._steps = 0
        self._read_step = 0  # step of the last graph read
        self._next_read_s = 0.0
        self._comparable = True
        self._loss: Callable[[], Any] = lambda: None  # loss of the last step, while it exists

    def set_saved(self, saved: object) -> None:
        """Set the graphs of the rescue that the training resumes from; None: unknown."""
        told = isinstance(saved, list) and all(isinstance(each, str) for each in saved)
        self._saved = saved if told and isinstance(saved, list) else ()

    def compare_step(self, loss: Any) -> str | None:
        """
        Record the end of a step with this loss.

        Returns:
            The difference from the rescue as a message, once it is sure.
        """
        self._steps += 1
        self._loss = lambda: None
        if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
            return None
        self._loss = weakref.ref(loss)
        first = self._steps <= FIRST_STEPS
        if not self._comparable or not (first or time.monotonic() >= self._next_read_s):
            return None
        found = self._record_graph(loss)
        if found is None or not first or not self._saved or found in self._saved:
            return None
        self._foreign += 1
        return (
            None if self._foreign < FIRST_STEPS else describe_graph_difference(self._saved, found)
        )

    @property
    def has_several(self) -> bool:
        """Whether the training of the rescue had several graphs, so that one more is no edit."""
        return len(self._saved) > 1

    def to_json(self) -> list[str] | None:
        """All graphs seen so far, for a rescue; None if that of the last step is unknown."""
        loss = self._loss()
        if self._comparable and self._read_step != self._steps and loss is not None:
            self._record_graph(loss)
        known = self._comparable and self._steps > 0 and self._read_step == self._steps
        return [*dict.fromkeys((*self._saved, *self._seen))] if known else None

    def _record_graph(self, loss: Any) -> str | None:
        began = time.monotonic()
        found = signature(loss, self._names)
        now = time.monotonic()
        self._next_read_s = now + (now - began) / _SHARE
        self._read_step = self._steps
        if found is not None:
            self._seen[found] = None
        if found is None or len(self._seen) > _MOST_GRAPHS:
            self._comparable = False
            return None
        return found


def signature(loss: torch.Tensor, names: Mapping[int, str]) -> str | None:
    """
    The graph of a loss as a text; None if the graph cannot be read.

    Args:
        loss: a loss with a graph, also after its backward pass.
        names: names of parameters, by their ids.
    """
    places: dict[Any, int] = {}
    lines: list[str] = []
    counted: Counter[str] = Counter()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if node in places:
            lines.append(f"again {places[node]}")
            continue
        if len(places) >= _MOST_NODES:
            return None
        places[node] = len(lines)
        name = node.name()
        if name.startswith(_HIDDEN):
            return None
        if name not in _PRECISION:
            variable = getattr(node, "variable", None)
            leaf = "" if variable is None else names.get(id(variable), "?")
            lines.append(f"{name} {leaf} {len(node.next_functions)}")
            counted[name] += 1
        waiting.extend(inner for inner, _ in reversed(node.next_functions))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_HASH_DIGITS]
    return " ".join((digest, *(f"{name}*{count}" for name, count in sorted(counted.items()))))
