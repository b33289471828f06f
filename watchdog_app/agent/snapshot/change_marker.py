"""
The interface between the publisher and the adapter of a framework.

An adapter marks the moment when a step begins to change tensors. It also refreshes later states at
a fraction of the cost of a full capture.

Keras on PyTorch: the optimizer is Python code, so a wrapper sees that it begins. On TensorFlow the
step increments a counter, see `tensorflow_marker`. On JAX the step takes over the state and draws
its data itself, so our code cannot see when it begins.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchdog_app.agent.snapshot.contents import Contents
from watchdog_app.agent.state.rows import split_variables
from watchdog_app.agent.state.values import PLAIN
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.rescue.segment.snapshot import Marker, News

Bytes = bytes | bytearray | memoryview
_SHORT_LIST = 8
_NO_REFERENCES = 2  # version of marshal whose result depends on the values only


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A later state that has the same tensors as the last full capture."""

    news: Sequence[News]  # values of the meta that changed since the full capture
    values: Bytes  # bytes of the small tensors
    samples: Bytes  # sampled elements of the large tensors
    addresses: bytes  # addresses of the large tensors
    markers: Sequence[Marker] = ()


Refresh = Callable[[int], Refreshed | None]  # takes the number of the last complete step


def changed_values(before: Any, now: Any, path: tuple[str | int, ...]) -> Iterator[News]:
    """
    The JSON values below a place in the meta that have changed since the full capture.

    Of a list that has only grown, they are the new items.
    """
    kind = type(now)
    pairs: Iterable[tuple[Any, Any]] = ()
    if kind is dict is type(before) and list(now) == list(before):
        pairs = now.items()
    elif kind is list is type(before) and len(now) == len(before) <= _SHORT_LIST:
        pairs = enumerate(now)
    elif kind is list is type(before) and _are_same(before, now[: len(before)]):
        if len(now) > len(before):
            yield (*path, [len(before)]), now[len(before) :]
    elif not _are_same(before, now):
        yield path, now
    for key, value in pairs:
        old = before[key]
        if value is old:
            continue
        if type(value) is type(old) in PLAIN:
            if value != old:
                yield (*path, key), value
        else:
            yield from changed_values(old, value, (*path, key))


def _are_same(before: Any, now: Any) -> bool:
    """Whether JSON values are equal in their types and bits; `==` takes 0.0 for -0.0 and for 0."""
    return marshal.dumps(before, _NO_REFERENCES) == marshal.dumps(now, _NO_REFERENCES)


class ChangeMarker:
    """
    Marks that a step has begun to change the large tensors. This base class marks nothing.

    The marker of a framework sets the mark of the segment or increments a number in memory.
    """

    # Whether a step that begins after this boundary sets the mark. If not, the published state
    # is valid only at the boundary.
    trusted = True
    # Whether the framework lets us see that a step begins. If not, nothing is published.
    is_supported = True

    def prepare(self) -> None:
        """Prepare the training before its first step, perhaps before a segment exists."""

    def update(self, step: int) -> None:
        """Update the set of covered tensors; called at a boundary, before `covers`."""

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """Whether a step changes this tensor only after it sets the mark."""
        return False

    def markers(self) -> Iterable[Marker]:
        """Numbers in memory that change before a large tensor does."""
        return ()

    def begin(self, step_begins: Callable[..., None]) -> None:
        """Call `step_begins` from now on, perhaps with arguments, before a step changes tensors."""

    def refresh(
        self,
        meta: Mapping[str, Any],  # noqa: ARG002
        contents: Contents,  # noqa: ARG002
    ) -> Refresh | None:
        """
        A function that captures later states cheaply; None if only full captures are possible.

        Args:
            meta: the meta of the full capture that is being published.
            contents: its tensors.
        """
        return None

    def end(self) -> None:
        """Remove the hooks."""


class NoMarker(ChangeMarker):
    """For a training that no other process can copy; the training can still save itself."""

    is_supported = False


class FitMarker(ChangeMarker):
    """For a training whose step does not show that it begins (JAX, Keras 2): never published."""

    is_supported = False

    def __init__(self, training: Any) -> None:
        self._training = training
        self._names: set[str] = set()

    def update(self, step: int) -> None:  # noqa: ARG002
        """See `ChangeMarker`: collect the names of tensors that only optimizers change."""
        trained = [
            each
            for optimizer in self._training.optimizers()
            for each in getattr(optimizer, "_trainable_variables", None) or ()
        ]
        _, changed = split_variables(self._training.variables(), trained)
        self._names = {item.name for item in changed}

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """See `ChangeMarker`."""
        return name in self._names


class OnTorch(FitMarker):
    """For Keras on PyTorch, where Python code calls the optimizers in each step."""

    is_supported = True

    def __init__(self, training: Any) -> None:
        super().__init__(training)
        self._applies = Wrapped()

    def begin(self, step_begins: Callable[[], None]) -> None:
        """See `ChangeMarker`."""

        def make(apply: Callable[..., Any]) -> Callable[..., Any]:
            def observed(*args: Any, **others: Any) -> Any:
                step_begins()
                return apply(*args, **others)

            return observed

        for optimizer in self._training.optimizers():
            self._applies.wrap(optimizer, "apply", make)

    def end(self) -> None:
        """See `ChangeMarker`."""
        self._applies.unwrap()
