"""
Capture and restore the state of a PyTorch loop: the objects that the user names.

It supports modules, optimizers, tensors, random generators, NumPy arrays, and dicts and lists of
plain values. It also supports objects with state_dict and load_state_dict: schedulers, gradient
scalers, averaged models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from watchdog_app.agent.adapters.named import NamedState, SavedState
from watchdog_app.agent.adapters.torch_data import LoaderPasses
from watchdog_app.agent.identity import attributes, environment, torch_facts
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.identity.torch_graph import Graphs
from watchdog_app.agent.state import randomness, torch_parts, torch_tensors, values
from watchdog_app.agent.state.torch_parts import Part
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.rescue.checkpoint.format import Capture, Row
from watchdog_app.rescue.identity.compare import merge_settings, mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.snapshot.change_marker import ChangeMarker

KIND = "torch"


class TorchState(NamedState):
    """The state of the named objects of one loop."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        position: Callable[[Tensors], dict[str, Any]],
        passes: LoaderPasses,
        waiting: Callable[[], set[int]] | None = None,
        holds: Callable[[Any], bool] | None = None,
    ) -> None:
        """
        Args:
            objects: the objects by the user's names.
            position: gives the position of the loop as JSON; adds its tensors to the argument.
            passes: passes over its data; they know what a resume cannot restore.
            waiting: gives ids of the parameters whose gradients wait for their optimizer's step;
                None: hooks on the optimizers show it.
            holds: whether the position has a container in an attribute of a module; None: it
                has none, and this state holds containers itself.

        Raises:
            TypeError: the state of an object cannot be captured.
            RescueError: an optimizer trains tensors of no named object.
        """
        self.parts: dict[str, Part] = {
            name: torch_parts.build_part(name, thing) for name, thing in objects.items()
        }
        torch_parts.check_owners(self.parts)
        modules = {
            name: each for name, each in objects.items() if isinstance(each, torch.nn.Module)
        }
        weights = [each for module in modules.values() for each in module.parameters()]
        buffers = {id(each) for module in modules.values() for each in module.buffers()}
        self.sharded = any(map(torch_tensors.is_sharded, weights))
        begins = waiting is None
        super().__init__(
            objects,
            passes,
            torch_facts.gather(objects, begins=begins),
            Attributes(
                torch_facts.modules_of(objects),
                begins=begins,
                holds=holds or partial(_is_held_attribute, buffers=buffers),
                elsewhere=holds is not None,
            ),
        )
        self.never_restored = torch_parts.unnamed_schedulers(objects)
        if torch_parts.process_count() > 1:
            self.never_restored += torch_parts.check_spread(modules)
        self._position = position
        self.graphs = Graphs(modules)
        self._stepped = torch_parts.StepTracker(() if waiting else objects.values())
        self.waiting = waiting or self._stepped.accumulating_ids

    def capture(self) -> Capture:
        """Capture everything, as tensors to read one by one and as JSON."""
        torch_tensors.synchronize_devices()
        tensors = Tensors()
        parts = {name: part.capture(tensors) for name, part in self.parts.items()}
        waiting = self.waiting()
        gradients = {name: part.gradients(tensors, waiting) for name, part in self.parts.items()}
        self.lost = []
        position = encoded_position(self._position(tensors), tensors, self.lost)
        common = self._common_meta()
        meta = {
            **common,
            **attributes_meta(self.attributes, tensors),
            "kind": KIND,
            "position": position,
            "tensors": tensors.rows,
            "parts": parts,
            "gradients": gradients,
            "identity": {**common["identity"], "graph": self.graphs.to_json()},
            "programs": {name: part.signature() for name, part in self.parts.items()},
            "environment": environment_record(),
        }
        return Capture(tensors.entries, meta)

    def marker(self) -> ChangeMarker:
        """The marker that shows other processes that a step has begun to change the weights."""
        if torch_parts.process_count() > 1:  # a copy of one process is of no use
            from watchdog_app.agent.snapshot.change_marker import NoMarker

            return NoMarker()
        from watchdog_app.agent.snapshot.torch_marker import TorchMarker

        return TorchMarker(self)

    def not_restored(self) -> list[str]:
        """See `NamedState`."""
        return [*super().not_restored(), *self._stepped.replaced]

    def optimizers(self) -> list[Any]:
        """The optimizers among the objects."""
        things = [part.thing for part in self.parts.values()]
        return [each for each in things if isinstance(each, torch.optim.Optimizer)]

    def changing(self, tensors: Tensors) -> dict[str, Any] | None:
        """See `TorchTraining`."""
        if self._loses_more():
            return None
        return {
            "position": encoded_position(self._position(tensors), tensors, []),
            "random": randomness.capture(),
            **attributes_meta(self.attributes, tensors),
        }

    def build(self, saved: SavedTorch) -> None:
        """Make the slots of Keras optimizers; others make them when they load their state."""
        for name, state in saved.meta["parts"].items():
            if name in self.parts:
                self.parts[name].build(state)

    def check(self, saved: SavedTorch) -> None:
        """
        Compare the objects in the rescue with the program's.

        Raises:
            RescueMismatch: the rescue does not fit; no value was changed.
        """
        before = saved.meta["parts"]
        found = [f"{name} is in the rescue only" for name in before if name not in self.parts]
        found += [f"{name} is in the program only" for name in self.parts if name not in before]
        for name, part in self.parts.items():
            if name in before:
                program = saved.meta["programs"][name]
                found += part.differences(before[name], program, saved.row)
        if found:
            raise mismatch(saved.path, found, may_be_forced=False)

    def restore(self, saved: SavedTorch) -> None:
        """
        Set everything to the values in the rescue.

        Raises:
            RescueMismatch: the rescue does not fit; no value was changed.
        """
        self.check(saved)
        for name, part in self.parts.items():
            part.materialize(saved.meta["parts"][name], saved.row)
        for name, part in self.parts.items():
            part.restore(saved.meta["parts"][name], saved.read)
            self.never_restored += [each for each in part.lost if each not in self.never_restored]
        for name, held in saved.meta["gradients"].items():
            if held is not None:
                self.parts[name].restore_gradients(held, saved.read)
        self.attributes.restore(
            torch_tensors.decode(saved.meta.get(attributes.HELD, {}), saved.read)
        )
        self._restore_common(saved)

    def merge_settings(self, saved: SavedTorch) -> tuple[str, ...]:
        """
        Apply settings that the user edited, after `restore`; returns messages about them.

        A schedule takes its base value from the program only if the learning rate is the program's.
        """
        mine = self.identity.settings
        base = dict((saved.meta.get("identity") or {}).get("settings", {}))
        # The rescue's value continues: its slots may not fit the program's.
        kept = torch_facts.slot_settings(self._objects) & mine.keys() & base.keys()
        base |= {key: mine[key] for key in kept}
        theirs = torch_facts.settings_of(self._objects)
        beginnings = {
            key: value for key, value in theirs.items() if torch_facts.is_schedule_base(key)
        }
        others = {key: value for key, value in theirs.items() if key not in beginnings}
        merged = merge_settings(base, others, mine)
        values = dict(merged.values)
        moved = [key for key in values if torch_facts.is_rate(key) and values[key] != mine[key]]
        if not moved:
            values |= merge_settings(base, beginnings, mine).values
        torch_facts.apply_settings(self._objects, values)
        return merged.messages

    def close(self) -> None:
        """Remove our hooks from the optimizers."""
        self._stepped.close()


class SavedTorch(SavedState):
    """A rescue of a PyTorch loop."""

    kind = KIND, "a PyTorch training loop"
    rows_key = "tensors"

    def row(self, name: str) -> Row:
        """Name, type and shape of one tensor."""
        return self._rows[name]

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor, which has its own memory on the CPU."""
        _name, dtype, shape = self._rows[name]
        return torch_tensors.from_bytes(dtype, shape, self._read_raw(name))

    def variables(self) -> dict[str, Any]:
        """The variables of the loop, by keyword of `step`."""
        found: dict[str, Any] = torch_tensors.decode(self.position.get("variables", {}), self.read)
        return found


def encoded_position(
    position: Mapping[str, Any], tensors: Tensors, lost: list[str]
) -> dict[str, Any]:
    """The position of a loop as JSON, with the variables in it."""
    encode = partial(torch_tensors.encode, tensors=tensors)
    return {**position, "variables": values.encode_each(position["variables"], encode, lost)}


def attributes_meta(kept: Attributes, tensors: Tensors) -> dict[str, Any]:
    """The attributes of modules as JSON, by their keys in the metadata of a rescue."""
    held = torch_tensors.encode(kept.held_values(), attributes.HELD, tensors)
    return {attributes.KEY: kept.changed_values(), attributes.HELD: held}


def _is_held_attribute(value: Any, buffers: set[int]) -> bool:
    """Whether a rescue has a container, which shares no tensor with the buffers of these ids."""
    if not isinstance(value, list | tuple | dict | set | deque):
        return False
    items = value.values() if isinstance(value, dict) else value
    is_held = torch_tensors.is_held(value) and buffers.isdisjoint(map(id, items))
    return is_held or attributes.is_many_floats(value)


def environment_record() -> dict[str, Any]:
    """Facts that decide whether the last digits repeat; see `environment.differences`."""
    found = {
        **environment.record(),
        "PyTorch": torch.__version__,
        "PyTorch's threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "default element type": str(torch.get_default_dtype()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
    }
    if torch.cuda.is_initialized():
        found["CUDA"] = torch.version.cuda
        found["GPUs"] = [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ]
        found["cuDNN benchmark"] = torch.backends.cudnn.benchmark
        found["cuDNN deterministic"] = torch.backends.cudnn.deterministic
    return found
