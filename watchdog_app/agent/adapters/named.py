"""The objects that a user named in a loop, as far as all frameworks treat them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.identity import attributes
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.state import own_random, randomness
from watchdog_app.rescue.checkpoint.format import Row
from watchdog_app.rescue.identity.compare import mismatch
from watchdog_app.rescue.identity.run import RunIdentity


class NamedState:
    """The named objects of one loop: what they are, and what of them a resume brings back."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        passes: Passes,
        identity: RunIdentity,
        kept: Attributes,
    ) -> None:
        """
        Args:
            objects: as the user named them.
            passes: over the loop's data.
            identity: of the training.
            kept: plain attributes of the program's own modules.
        """
        self.identity = identity
        self.lost: list[str] = []  # what the last capture could not take, in words
        self.never_restored: list[str] = []  # what no capture can take, in words
        self._objects = dict(objects)
        self._passes = passes
        self._attributes = kept
        self._identity = identity.to_json()

    def not_restored(self) -> list[str]:
        """What a resume will not bring back, as far as it is known, in words."""
        return [*self.never_restored, *self._passes.lost, *self._attributes.lost()]

    def capture_random(self) -> dict[str, Any]:
        """The global random numbers and those of the named generators, as JSON."""
        own = {
            name: own_random.capture(thing)
            for name, thing in self._objects.items()
            if own_random.is_generator(thing)
        }
        return {"random": randomness.capture(), "own": own}

    def restore_random(self, state: Mapping[str, Any]) -> None:
        """Set them to what `capture_random` returned."""
        randomness.restore(state["random"])
        for name, held in state["own"].items():
            own_random.restore(self._objects[name], held)

    def _common_meta(self) -> dict[str, Any]:
        """What a rescue says of a loop of any framework, as JSON."""
        return {
            "identity": self._attributes.identity(self._identity),
            attributes.KEY: self._attributes.changed_values(),
            "random": randomness.capture(),
            "not_restored": self.lost,
        }

    def _restore_common(self, saved: SavedState) -> None:
        """Set attributes and random numbers, once the objects are set."""
        self._attributes.restore(saved.meta.get(attributes.KEY))
        randomness.restore(saved.meta["random"])


class SavedState:
    """A rescue of a loop."""

    kind: ClassVar[tuple[str, str]]  # as `meta` has it, and in words
    rows_key: ClassVar[str]  # where `meta` lists the tensors

    def __init__(self, path: str, meta: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        """
        Args:
            path: of the rescue.
            meta: what it says.
            read: name of a tensor to its raw bytes.

        Raises:
            RescueMismatch: it is of another kind.
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
