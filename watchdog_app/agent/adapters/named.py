"""The part of a loop's state that is the same in all frameworks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.identity import attributes
from watchdog_app.agent.identity.attributes import Attributes, Values
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.agent.state import own_random, randomness
from watchdog_app.rescue.checkpoint.format import Capture, Row
from watchdog_app.rescue.identity.compare import mismatch
from watchdog_app.rescue.identity.run import RunIdentity


class NamedState(ABC):
    """The named objects of one loop: their identity, and what a resume restores of them."""

    sharded = False  # whether each process of the training holds other parts of the tensors

    def __init__(
        self,
        objects: Mapping[str, Any],
        passes: Passes,
        identity: RunIdentity,
        kept: Attributes,
    ) -> None:
        """
        Args:
            objects: the objects by the user's names.
            passes: passes over the loop's data.
            identity: identity of the training.
            kept: plain attributes of the program's own modules.
        """
        self.identity = identity
        self.lost: list[str] = []  # values that the last capture could not hold, as texts
        self.never_restored: list[str] = []  # values that no capture can hold, as texts
        self._lost_before: list[str] = []  # `not_restored` at the last capture
        self._objects = dict(objects)
        self._passes = passes
        self.attributes = kept
        self._identity = identity.to_json()

    @abstractmethod
    def build(self, saved: Any) -> None:
        """Create what the rescue has and the program makes later: slots, layers."""

    @abstractmethod
    def check(self, saved: Any) -> None:
        """Compare with a rescue; raises RescueMismatch if it does not fit."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Set everything to the values in a rescue; raises RescueMismatch as `check` does."""

    @abstractmethod
    def merge_settings(self, saved: Any) -> tuple[str, ...]:
        """Apply settings that the user edited, after `restore`; returns messages about them."""

    @abstractmethod
    def capture(self) -> Capture:
        """Capture everything, as tensors to read one by one and as JSON."""

    @abstractmethod
    def marker(self) -> ChangeMarker:
        """The marker that shows other processes that a step has begun to change the weights."""

    def not_restored(self) -> list[str]:
        """The values that a resume will not restore, as far as known, as texts."""
        return [*self.never_restored, *self._passes.lost, *self.attributes.lost()]

    def capture_random(self) -> dict[str, Any]:
        """The states of the global and the named random generators, as JSON."""
        own = {
            name: own_random.capture(thing)
            for name, thing in self._objects.items()
            if own_random.is_generator(thing)
        }
        return {"random": randomness.capture(), "own": own}

    def restore_random(self, state: Mapping[str, Any]) -> None:
        """Restore the random states that `capture_random` returned."""
        randomness.restore(state["random"])
        self._restore_own(state["own"])

    def capture_before_step(self) -> tuple[dict[str, Any], list[Values]]:
        """What else a step may change: random states and attributes of modules."""
        return self.capture_random(), self.attributes.kept_values()

    def restore_before_step(self, state: tuple[Mapping[str, Any], list[Values]]) -> None:
        """Restore what `capture_before_step` returned."""
        random_states, kept = state
        self.restore_random(random_states)
        for each in kept:
            self.attributes.restore(each)

    def _restore_own(self, states: Mapping[str, Any]) -> None:
        for name in states.keys() & self._objects.keys():
            own_random.restore(self._objects[name], states[name])

    def _loses_more(self) -> bool:
        """Whether a resume would restore something else than at the last capture."""
        return self.not_restored() != self._lost_before

    def _common_meta(self) -> dict[str, Any]:
        """The JSON that rescues of loops share in all frameworks; completes the list `lost`."""
        self._lost_before = self.not_restored()
        self.lost += self._lost_before
        return {
            "identity": self.attributes.identity(self._identity),
            attributes.KEY: self.attributes.changed_values(),
            "random": randomness.capture(),
            "not_restored": self.lost,
        }

    def _restore_common(self, saved: SavedState) -> None:
        """Restore attributes and random states; call it after the objects are restored."""
        self.attributes.restore(saved.meta.get(attributes.KEY))
        randomness.restore(saved.meta["random"])
        self._restore_own(saved.meta["random"].get("own", {}))


class SavedState:
    """A rescue of a training, opened to restore from it."""

    kind: ClassVar[tuple[str, str]]  # the kind in `meta`, and a text for the user
    rows_key: ClassVar[str]  # key in `meta` of the list of tensors

    def __init__(self, path: str, meta: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        """
        Args:
            path: folder of the rescue.
            meta: its meta.
            read: reads the raw bytes of a tensor by name.

        Raises:
            RescueMismatch: the rescue is of another kind.
        """
        if meta.get("kind") != self.kind[0]:
            raise mismatch(path, [f"it was not saved by {self.kind[1]}"], may_be_forced=False)
        self.path = path
        self.meta = meta
        self.position: dict[str, Any] = meta["position"]
        self._rows: dict[str, Row] = {
            name: (name, dtype, tuple(shape)) for name, dtype, shape in meta[self.rows_key]
        }
        self._read_raw = read

    def variables(self) -> dict[str, Any]:
        """The variables of a loop, by keyword of `step`."""
        return {}
