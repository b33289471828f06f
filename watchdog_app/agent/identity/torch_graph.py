"""
What the first steps of a PyTorch loop compute, read off the autograd graph of their loss.

The loop itself is not compared otherwise: its loss, and what it does to the outputs of modules.
A graph is a text: a hash of its operations in order and of the parameters that they end in, and
the operations with their numbers. A training may have several (a GAN, layers that are thawed).
Nothing of a graph is kept alive. Batch size, precision and values of constants are not seen.
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

FIRST_STEPS = 3  # are compared; all of them must be foreign for a refusal
_MOST_GRAPHS = 8  # of one training; more are made anew by each batch, such as of texts
_MOST_NODES = 50_000
_SHARE = 1 / 400  # of the time that may go into looks after the first steps
_REST_S = 0.5  # between two looks as a state is taken
_PRECISION = frozenset(("ToCopyBackward0", "CloneBackward0"))
# Behind these the operations cannot be seen.
_HIDDEN = ("CompiledFunction", "CheckpointFunction")
_HASH_DIGITS = 16


class Graphs:
    """The graphs that a training was seen to have, and those of the rescue that it resumes from."""

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
        self._looked_at = 0  # the step of the last look
        self._last_look_s = self._next_look_s = 0.0
        self._comparable = True
        self._loss: Callable[[], Any] = lambda: None  # of the last step, as long as it is there

    def set_saved(self, saved: object) -> None:
        """The training resumes from a rescue with these graphs; None: they are not known."""
        told = isinstance(saved, list) and all(isinstance(each, str) for each in saved)
        self._saved = saved if told and isinstance(saved, list) else ()

    def compare_step(self, loss: Any) -> str | None:
        """
        A step with this loss has ended.

        Returns:
            What differs from the rescue, in words, once that is sure.
        """
        self._steps += 1
        self._loss = lambda: None
        if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
            return None
        self._loss = weakref.ref(loss)
        first = self._steps <= FIRST_STEPS
        if not self._comparable or not (first or time.monotonic() >= self._next_look_s):
            return None
        found = self._record_graph(loss)
        if found is None or not first or not self._saved or found in self._saved:
            return None
        self._foreign += 1
        return (
            None if self._foreign < FIRST_STEPS else describe_graph_difference(self._saved, found)
        )

    def to_json(self) -> list[str] | None:
        """Those seen so far, for a rescue; None where the one of the last step is not known."""
        loss = self._loss()
        # Near a limit each step is shown to the watcher: no look at each of them.
        rested = time.monotonic() >= self._last_look_s + _REST_S
        if self._comparable and self._looked_at != self._steps and rested and loss is not None:
            self._record_graph(loss)
        looked = self._looked_at == self._steps or (loss is not None and not rested)
        known = self._comparable and self._steps > 0 and looked
        return [*dict.fromkeys((*self._saved, *self._seen))] if known else None

    def _record_graph(self, loss: Any) -> str | None:
        began = time.monotonic()
        found = signature(loss, self._names)
        now = time.monotonic()
        self._last_look_s, self._next_look_s = now, now + (now - began) / _SHARE
        self._looked_at = self._steps
        if found is not None:
            self._seen[found] = None
        if found is None or len(self._seen) > _MOST_GRAPHS:
            self._comparable = False
            return None
        return found


def signature(loss: torch.Tensor, names: Mapping[int, str]) -> str | None:
    """
    The graph behind a loss as a text; None where it cannot be seen.

    Args:
        loss: with a graph, also after its backward pass.
        names: of parameters, by their ids.
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
