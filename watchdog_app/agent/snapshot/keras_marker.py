"""
Keras fits: what of their state a step changes, how it tells that it has begun, what has changed.

On TensorFlow the step counts in memory before it applies gradients. On PyTorch the optimizer is
Python and tells before it begins. On JAX the step takes the state over, and draws its data itself:
there is no moment that could be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from watchdog_app.agent.adapters.keras.backend import TENSORFLOW
from watchdog_app.agent.snapshot.change_marker import (
    ChangeMarker,
    KerasTraining,
    Refresh,
    Refreshed,
)
from watchdog_app.agent.snapshot.contents import Contents
from watchdog_app.agent.state.rows import OPTIMIZER
from watchdog_app.rescue.segment.snapshot import Marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.snapshot.tensorflow_marker import TensorFlowRefresh


class FitMarker(ChangeMarker):
    """Of a training whose step tells nothing before it begins (JAX, Keras 2): none is published."""

    is_supported = False

    def __init__(self, training: KerasTraining) -> None:
        self._training = training
        self._names: set[str] = set()

    def update(self, step: int) -> None:  # noqa: ARG002
        """See `ChangeMarker`: the names of what is changed by optimizers alone."""
        trained: set[int] = set()
        for optimizer in self._training.optimizers():
            for each in getattr(optimizer, "_trainable_variables", None) or ():
                trained |= {id(each), id(getattr(each, "value", each))}
        self._names = {
            item.name
            for item in self._training.variables()
            if (item.group == OPTIMIZER and item.row[2] != ()) or id(item.holder) in trained
        }

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """See `ChangeMarker`."""
        return name in self._names


class OnTorch(FitMarker):
    """The optimizers of Keras are called by Python for each step."""

    is_supported = True

    def __init__(self, training: KerasTraining) -> None:
        super().__init__(training)
        self._wrapped: list[tuple[Any, Any]] = []

    def begin(self, step_begins: Callable[[], None]) -> None:
        """See `ChangeMarker`."""
        for optimizer in self._training.optimizers():
            apply = optimizer.apply

            def observed(*args: Any, _apply: Any = apply, **others: Any) -> Any:
                step_begins()
                return _apply(*args, **others)

            optimizer.apply = observed
            self._wrapped.append((optimizer, observed))

    def end(self) -> None:
        """See `ChangeMarker`."""
        for optimizer, observed in self._wrapped:
            if vars(optimizer).get("apply") is observed:
                del optimizer.apply
        self._wrapped = []


class OnTensorFlow(FitMarker):
    """The step counts, see `tensorflow_marker`; whether it does is seen at each look."""

    is_supported = True

    def __init__(self, training: KerasTraining) -> None:
        super().__init__(training)
        self._marker: Marker | None = None
        self._step = -1
        self._counts = False
        self._refresh: TensorFlowRefresh | None = None

    def prepare(self) -> None:
        """See `ChangeMarker`."""
        from watchdog_app.agent.snapshot import tensorflow_marker

        if not self._training.compiled:
            for optimizer in self._training.optimizers():
                tensorflow_marker.add_counter(optimizer)

    def update(self, step: int) -> None:
        """See `ChangeMarker`."""
        super().update(step)
        self.update_marker(step)

    def update_marker(self, step: int) -> None:
        """Whether the steps since the last look have counted, and where."""
        from watchdog_app.agent.snapshot import tensorflow_marker

        before, self._marker = self._marker, tensorflow_marker.APPLIED.read()
        if step != self._step:
            now = self._marker
            self._counts = (
                before is not None
                and before.address == now.address
                and before.value < now.value
                and not self._training.compiled
            )
        self._step = step

    def markers(self) -> Iterable[Marker]:
        """See `ChangeMarker`."""
        return () if self._marker is None else (self._marker,)

    @property
    def trusted(self) -> bool:  # type: ignore[override]  # known only when it is asked
        """See `ChangeMarker`."""
        return self._counts

    def end(self) -> None:
        """See `ChangeMarker`."""
        from watchdog_app.agent.snapshot import tensorflow_marker

        for optimizer in self._training.optimizers():
            tensorflow_marker.remove_counter(optimizer)

    def refresh(self, meta: Mapping[str, Any], contents: Contents) -> Refresh | None:
        """See `ChangeMarker`."""
        from watchdog_app.agent.snapshot.tensorflow_marker import TensorFlowRefresh

        if self._refresh is None or not self._refresh.matches(contents):
            self._refresh = TensorFlowRefresh(self._training, contents)
        known = self._refresh
        known.meta = meta

        def take(step: int) -> Refreshed | None:
            self.update_marker(step)
            found = known.capture()
            return None if found is None else replace(found, markers=tuple(self.markers()))

        return take


def marker_for(training: KerasTraining, backend: str) -> ChangeMarker:
    """
    Those of the backend that a training runs on.

    Args:
        training: what the fit trains.
        backend: as Keras says it.
    """
    kinds: dict[str, type[FitMarker]] = {TENSORFLOW: OnTensorFlow, "torch": OnTorch}
    return kinds.get(backend, FitMarker)(training)
