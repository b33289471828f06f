"""
Capture and restore each kind of object that a user named in a PyTorch loop.

Tensors of modules are filled in place, one at a time, so that a resume needs no second copy of the
model. Optimizers load their state with their own `load_state_dict`.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from watchdog_app.agent.contain import describe
from watchdog_app.agent.state import keras_model, optimizer_state, own_random, torch_tensors
from watchdog_app.agent.state.rows import format_row, row_differences
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.format import Row

Read = Callable[[str], torch.Tensor]
RowOf = Callable[[str], Row]

GRADIENT = "gradient"
_ACCEPTED = (
    "a module, an optimizer, a tensor, a NumPy array, a random generator, a dict or list, or an "
    "object with state_dict() and load_state_dict()"
)


class Part:
    """A named dict or list, whose state consists of plain values and tensors."""

    lost: Sequence[str] = ()  # what `restore` could not restore, as texts
    known: Sequence[Any] = ()  # variables of the named Keras models

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def capture(self, tensors: Tensors) -> Any:
        """Capture the state as JSON; adds its tensors to `tensors`."""
        return torch_tensors.encode(self.thing, self.name, tensors)

    def build(self, _state: Any) -> None:
        """Make the tensors of the rescue that the program makes later."""

    def materialize(self, _state: Any, _row: RowOf) -> None:
        """Give lazy tensors the shapes of the rescue."""

    def restore(self, state: Any, read: Read) -> None:
        """Restore the state that `capture` returned."""
        value = torch_tensors.decode(state, read)
        if isinstance(self.thing, list):
            self.thing[:] = value
        else:
            self.thing.clear()
            self.thing.update(value)

    def signature(self) -> Any:
        """The properties that an object must share with a rescue to fit it, as JSON."""
        return type(self.thing).__name__

    def differences(self, _state: Any, program: Any, _row: RowOf) -> list[str]:
        """The reasons why a rescue does not fit this object, as texts."""
        now = self.signature()
        if program != now:
            return [f"{self.name} is {now} in the program, {program} in the rescue"]
        return []

    def gradients(self, _tensors: Tensors, _of: set[int]) -> Any:
        """Capture the gradients of the parameters with these ids; None if there are none."""
        return None

    def restore_gradients(self, saved: Any, read: Read) -> None:
        """Restore the gradients that `gradients` returned."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors of this part that an optimizer may train."""
        return iter(())


class StatefulPart(Part):
    """A scheduler, a gradient scaler, or another object with `state_dict`."""

    def capture(self, tensors: Tensors) -> Any:
        """See `Part.capture`."""
        return torch_tensors.encode(_plain_state(self.thing), self.name, tensors)

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        value = torch_tensors.decode(state, read)
        saved = self._content(value)
        self.thing.load_state_dict(value)
        if self._content(_plain_state(self.thing)) != saved:
            self.lost = [f"what load_state_dict() of {self.name} does not restore"]

    def _content(self, value: Any) -> Any:
        """A state as JSON, and the checksums of its tensors."""
        tensors = Tensors()
        encoded = torch_tensors.encode(value, self.name, tensors)
        return encoded, [zlib.crc32(each.view()) for each in tensors.entries]

    def differences(self, state: Any, program: Any, row: RowOf) -> list[str]:
        """See `Part.differences`."""
        found = super().differences(state, program, row)
        if found or not isinstance(state, dict):
            return found
        now = torch_tensors.encode(_plain_state(self.thing), self.name, Tensors())
        # A disabled gradient scaler has an empty state, which does not fit an enabled one.
        if isinstance(now, dict) and bool(now) != bool(state):
            side = "rescue" if state else "program"
            return [f"{self.name} has a state in the {side} only"]
        return []


class TensorPart(Part):
    """One tensor, filled in place."""

    def capture(self, tensors: Tensors) -> Any:
        """See `Part.capture`."""
        return tensors.add(self.name, self.thing.detach())

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        torch_tensors.copy_into(self.thing, read(state))

    def signature(self) -> Any:
        """See `Part.signature`."""
        return format_row(torch_tensors.row(self.name, self.thing))

    def gradients(self, tensors: Tensors, of: set[int]) -> Any:
        """See `Part.gradients`."""
        if id(self.thing) not in of or self.thing.grad is None:
            return None
        return tensors.add_gradient(f"{self.name}:{GRADIENT}", self.thing.grad)

    def restore_gradients(self, saved: Any, read: Read) -> None:
        """See `Part.restore_gradients`."""
        if self.thing.is_leaf:
            _set_gradient(self.thing, saved, read)

    def tensors(self) -> Iterator[torch.Tensor]:
        """See `Part.tensors`."""
        yield self.thing


class KerasPart(Part):
    """A metric or an optimizer of Keras on PyTorch: the tensors of its variables."""

    def capture(self, tensors: Tensors) -> Any:
        """See `Part.capture`."""
        held = self.thing.variables
        return {
            "variables": [tensors.add(f"{self.name}/{v.path}", v.value.detach()) for v in held],
            "trained": keras_model.targets_of(self.thing, self.known),
        }

    def build(self, state: Any) -> None:
        """See `Part.build`: an optimizer makes its slots at its first step."""
        trained = isinstance(state, dict) and state.get("trained")
        if trained and not self.thing.built and max(trained) < len(self.known):
            self.thing.build([self.known[index] for index in trained])

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        if not self.thing.variables and state["variables"]:
            self.lost = [f"{self.name}, which has no variables before its first update"]
            return
        for variable, name in zip(self.thing.variables, state["variables"], strict=True):
            torch_tensors.copy_into(variable.value, read(name))

    def differences(self, state: Any, program: Any, row: RowOf) -> list[str]:
        """See `Part.differences`."""
        found = super().differences(state, program, row)
        now = [torch_tensors.row("", each.value)[1:] for each in self.thing.variables]
        if not found and now and now != [row(name)[1:] for name in state["variables"]]:
            found = [f"the variables of {self.name} have other types or shapes in the rescue"]
        return found


class ArrayPart(Part):
    """A NumPy array, filled in place."""

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        self.thing[...] = torch_tensors.decode(state, read)

    def signature(self) -> Any:
        """See `Part.signature`."""
        return format_row((self.name, self.thing.dtype.name, self.thing.shape))


class GeneratorPart(Part):
    """A random generator."""

    def capture(self, _tensors: Tensors) -> Any:
        """See `Part.capture`."""
        return own_random.capture(self.thing)

    def restore(self, state: Any, _read: Read) -> None:
        """See `Part.restore`."""
        own_random.restore(self.thing, state)

    def signature(self) -> Any:
        """See `Part.signature`."""
        return own_random.capture(self.thing)[0]


class ModulePart(Part):
    """A module: a model, a layer, or an averaged model."""

    def capture(self, tensors: Tensors) -> Any:
        """See `Part.capture`."""
        state = self._state()
        states = {
            key: torch_tensors.encode(value, f"{self.name}/{key}", tensors)
            for key, value in state.items()
        }
        unsaved_buffers = {
            key: torch_tensors.encode(value.detach(), f"{self.name}/{key}", tensors)
            for key, value in self.thing.named_buffers()
            if key not in state and not is_lazy(value)
        }
        return {
            "state": states,
            "beside": unsaved_buffers,  # buffers that are not in state_dict
            "asleep": [key for key, value in self.thing.named_modules() if not value.training],
            "frozen": [
                key for key, value in self.thing.named_parameters() if not value.requires_grad
            ],
        }

    def materialize(self, state: Any, row: RowOf) -> None:
        """See `Part.materialize`; the first batch then leaves the values as they are."""
        for key, tensor in self._lazy().items():
            tensor.materialize(row(torch_tensors.tensor_name(state["state"][key]))[2])

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        self._restore_tensors(state["state"], read)
        self._restore_buffers(state["beside"], read)
        asleep, frozen = set(state["asleep"]), set(state["frozen"])
        for key, module in self.thing.named_modules():
            module.training = key not in asleep
        for key, parameter in self.thing.named_parameters():
            if parameter.requires_grad == (key in frozen):
                parameter.requires_grad_(key not in frozen)

    def signature(self) -> Any:
        """See `Part.signature`; `identity.torch_facts` describes the computation of a module."""
        return "module"

    def differences(self, state: Any, _program: Any, row: RowOf) -> list[str]:
        """See `Part.differences`."""
        now_tensors = Tensors()
        now = {
            key: torch_tensors.encode(value, f"{self.name}/{key}", now_tensors)
            for key, value in self._state().items()
        }
        rows = {each[0]: each for each in now_tensors.rows}
        lazy, held = self._lazy().keys(), state["state"]
        found = [f"{self.name}/{key} is in the program only" for key in lazy - held.keys()]
        saved = self._rows_by_path({key: held[key] for key in held.keys() - lazy}, row)
        return found + row_differences(saved, self._rows_by_path(now, rows.__getitem__))

    def _state(self) -> dict[str, Any]:
        """The state without lazy tensors, which get a shape with the first batch."""
        return {key: each for key, each in self.thing.state_dict().items() if not is_lazy(each)}

    def _lazy(self) -> dict[str, Any]:
        """The parameters and buffers that have no shape yet."""
        tensors = (*self.thing.named_parameters(), *self.thing.named_buffers())
        return {key: each for key, each in tensors if is_lazy(each)}

    def _rows_by_path(self, held: Any, row: RowOf) -> dict[str, Row]:
        """The rows of the tensors in an encoded `state_dict`, with the names for messages."""
        found = {}
        for path, name in torch_tensors.tensor_names(held):
            _name, dtype, shape = row(name)
            found[path] = (f"{self.name}{path}", dtype, shape)
        return found

    def gradients(self, tensors: Tensors, of: set[int]) -> Any:
        """See `Part.gradients`."""
        return {
            key: tensors.add_gradient(f"{self.name}/{key}:{GRADIENT}", parameter.grad)
            for key, parameter in self.thing.named_parameters()
            if parameter.grad is not None and id(parameter) in of
        }

    def restore_gradients(self, saved: Any, read: Read) -> None:
        """See `Part.restore_gradients`."""
        for key, parameter in self.thing.named_parameters():
            _set_gradient(parameter, saved.get(key), read)

    def tensors(self) -> Iterator[torch.Tensor]:
        """See `Part.tensors`."""
        yield from self.thing.parameters()

    def _restore_tensors(self, saved: Mapping[str, Any], read: Read) -> None:
        state = self._state()
        own = {
            torch_tensors.memory_key(tensor.detach())
            for tensor in (*self.thing.parameters(), *self.thing.buffers())
            if not is_lazy(tensor)
        }
        in_place = {
            key: value
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and torch_tensors.memory_key(value.detach()) in own
        }
        others = {key: value for key, value in saved.items() if key not in in_place}
        for key, target in in_place.items():
            # Copy from the CPU in place, so that the device needs no second tensor.
            torch_tensors.copy_into(target, read(torch_tensors.tensor_name(saved[key])))
        if others:  # a module's extra state, or entries that its own hook adds
            self.thing.load_state_dict(torch_tensors.decode(others, read), strict=False)

    def _restore_buffers(self, saved: Mapping[str, Any], read: Read) -> None:
        now = dict(self.thing.named_buffers())
        for key, state in saved.items():
            value = torch_tensors.decode(state, read)
            current = now.get(key)
            if (
                current is not None
                and current.shape == value.shape
                and current.dtype == value.dtype
            ):
                torch_tensors.copy_into(current, value)
                continue
            path, _, last = key.rpartition(".")
            self.thing.get_submodule(path).register_buffer(last, value, persistent=False)


def _set_gradient(parameter: Any, saved: Any, read: Read) -> None:
    """Set a gradient to what `Tensors.add_gradient` recorded; None: there was none."""
    if saved is None:
        parameter.grad = None
        return
    gradient = torch_tensors.join_gradient(saved, read, parameter.device)
    parameter.grad = torch_tensors.shard_like(parameter, gradient)


class OptimizerPart(StatefulPart):
    """An optimizer of `torch.optim`, or a subclass: loaded by its own `load_state_dict`."""

    def restore(self, state: Any, read: Read) -> None:
        """See `Part.restore`."""
        # Free the existing slots first, so that memory never holds two sets of them.
        self.thing.state.clear()
        value = torch_tensors.decode(state, read)
        numbers = {each for group in value["param_groups"] for each in group["params"]}
        for key in value["state"]:
            if isinstance(key, int) and key not in numbers:  # PyTorch would ignore it silently
                raise ValueError(
                    f"{self.name} has a state for parameter {key}, which is in no group"
                )
        self.thing.load_state_dict(value)
        trained = parameters(self.thing)
        for index, slots in value["state"].items():
            if not isinstance(index, int) or index >= len(trained):
                continue
            now = self.thing.state[trained[index]]
            for key, saved in slots.items():
                current = now.get(key)
                if torch_tensors.is_sharded(trained[index]):
                    whole = torch_tensors.local(trained[index])
                    if isinstance(saved, torch.Tensor) and saved.shape == whole.shape:
                        now[key] = torch_tensors.shard_like(trained[index], current)
                    continue
                if not isinstance(saved, torch.Tensor) or not isinstance(current, torch.Tensor):
                    continue
                # load_state_dict casts slots to the type of the weight. Slots of higher precision
                # would lose their last bits, so set them again.
                if current.dtype != saved.dtype:
                    now[key] = saved.to(current.device)

    def signature(self) -> Any:
        """See `Part.signature`."""
        return [
            [None if is_lazy(each) else list(each.shape) for each in group["params"]]
            for group in self.thing.param_groups
        ]

    def differences(self, state: Any, program: Any, row: RowOf) -> list[str]:
        """See `Part.differences`."""
        groups, groups_then = self.signature(), program
        if len(groups) != len(groups_then):
            count = f"{len(groups)} parameter group{'' if len(groups) == 1 else 's'}"
            text = f"{self.name} has {count} in the program, {len(groups_then)} in the rescue"
            # A program that unfreezes layers step by step adds groups while it trains.
            later = ": add those that came later before Rescue(...)"
            return [text + later if len(groups) < len(groups_then) else text]
        for index, (group, then) in enumerate(zip(groups, groups_then, strict=True)):
            where = f"group {index} of {self.name}"
            if len(group) != len(then):
                return [
                    f"{where} trains {len(group)} tensors in the program, {len(then)} in the rescue"
                ]
            for at, (shape, shape_then) in enumerate(zip(group, then, strict=True)):
                if shape != shape_then and None not in (shape, shape_then):
                    shape_now, saved_shape = tuple(shape), tuple(shape_then)
                    which = f"tensor {at} in {where}"
                    return [
                        f"{which} has shape {shape_now} in the program, {saved_shape} in the rescue"
                    ]
        outline = torch_tensors.decode(state, lambda name: torch.empty(row(name)[2], device="meta"))
        reason = optimizer_state.unusable_reason(self.thing, outline)
        return [f"{self.name} cannot use its state in the rescue: {reason}"] if reason else []


_REPLACED = (
    "the optimizer that steps in place of the one in Rescue(...): make all optimizers before it, "
    "and give it all"
)


class StepTracker:
    """Records which optimizers have stepped since the last boundary and used their gradients."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._stepped: set[int] = set()
        self.all_stepped = False
        self._optimizers = [each for each in things if isinstance(each, torch.optim.Optimizer)]
        optimizer_state.saved_optimizers.update(self._optimizers)
        self._hooks = [each.register_step_post_hook(self._record_step) for each in self._optimizers]
        # Steps of another optimizer with weights of one of these, by its id, since its own step.
        self._others = dict.fromkeys(map(id, self._optimizers), 0)
        self.replaced: list[str] = []  # texts about other optimizers that step in place of these
        me = weakref.ref(self)

        def stepped(optimizer: Any, *_: Any) -> None:
            if (one := me()) is not None and not torch.compiler.is_dynamo_compiling():
                with suppress(Exception):
                    one._see_other(optimizer)

        if self._optimizers:
            self._hooks.append(register_optimizer_step_post_hook(stepped))

    def accumulating_ids(self) -> set[int]:
        """Ids of the parameters whose gradients still wait for a step of their optimizer."""
        return {
            id(item)
            for each in self._optimizers
            if id(each) not in self._stepped
            for item in parameters(each)
        }

    def clear(self) -> None:
        """Forget the steps, after a boundary."""
        self._stepped.clear()
        self.all_stepped = False

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _record_step(self, optimizer: Any, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        self._others[id(optimizer)] = 0
        self.all_stepped = len(self._stepped) == len(self._optimizers)

    def _see_other(self, optimizer: Any) -> None:
        """Record that another optimizer steps; one that is a part of these steps with them."""
        if self.replaced or optimizer in optimizer_state.saved_optimizers:
            return
        trained = set(map(id, parameters(optimizer)))
        for each in self._optimizers:
            if any(one is optimizer for one in vars(each).values()):
                return  # a wrapper around it is saved
            if not trained.isdisjoint(map(id, parameters(each))):
                self._others[id(each)] += 1
                if self._others[id(each)] > 1:
                    self.replaced = [_REPLACED]
                    optimizer_state.saved_optimizers.add(optimizer)  # no training of its own


def unnamed_schedulers(objects: Mapping[str, Any]) -> list[str]:
    """Texts about optimizers with a scheduler that the user did not name."""
    found = []
    for name, thing in objects.items():
        if not isinstance(thing, torch.optim.Optimizer):
            continue
        # A scheduler gives its optimizer a step of its own and notes the learning rates.
        scheduled = "step" in vars(thing) and "initial_lr" in thing.param_groups[0]
        if scheduled and not any(is_scheduler_of(other, thing) for other in objects.values()):
            found.append(f"the learning-rate scheduler of {name}, which Rescue(...) was not given")
    return found


def is_scheduler_of(thing: Any, optimizer: Any) -> bool:
    """Whether `thing` is a scheduler of this optimizer, or holds one."""
    if not hasattr(thing, "load_state_dict") or not hasattr(thing, "step"):
        return False
    driven = [
        getattr(each, "optimizer", None)
        for each in (thing, *(getattr(thing, "_schedulers", None) or ()))
    ]
    # Accelerate gives schedulers a wrapper around the optimizer.
    return any(
        optimizer is one for each in driven for one in (each, getattr(each, "optimizer", None))
    )


def _plain_state(thing: Any) -> Any:
    """The state of an object; a scheduler keeps its own function between learning rates."""
    state = thing.state_dict()
    if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        # OneCycleLR before PyTorch 2.4 and SWALR list that function; both load without it.
        for each in (state, *state.get("_schedulers", ())):
            each.pop("anneal_func", None)
    return state


def process_count() -> int:
    """The number of processes that share this training."""
    spread = torch.distributed
    return spread.get_world_size() if spread.is_available() and spread.is_initialized() else 1


def check_spread(modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """
    What a resume in several processes will not restore, as texts.

    Raises:
        RescueError: the state of a module takes all processes to be read (FSDP1).
    """
    lost = []
    for name, module in modules.items():
        if any(type(each).__name__ == "FullyShardedDataParallel" for each in module.modules()):
            raise RescueError(
                f"{name} is spread by FullyShardedDataParallel, whose state cannot be read in one "
                "process. Use torch.distributed.fsdp.fully_shard in its place."
            )
        spread = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        if spread and process_count() > 2 and not module.find_unused_parameters:
            lost.append(
                f"the last digits of sums over {process_count()} processes, which {name} adds in "
                "another order after its first step (find_unused_parameters=True prevents that)"
            )
    return lost


def parameters(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that an optimizer trains, in the order of its state."""
    return [item for group in optimizer.param_groups for item in group["params"]]


def slots(optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors that an optimizer keeps for its parameters."""
    held = (each for slots in optimizer.state.values() for each in slots.values())
    return (each for each in held if isinstance(each, torch.Tensor))


def submodules(root: torch.nn.Module) -> list[torch.nn.Module]:
    """A module and all modules in it; `modules()` also builds the name of each."""
    found, seen = [root], {id(root)}
    for each in found:
        new = [one for one in each._modules.values() if one is not None and id(one) not in seen]
        seen.update(map(id, new))
        found += new
    return found


def build_part(name: str, thing: Any) -> Part:
    """
    Make the part for a named object.

    Raises:
        TypeError: the state of the object cannot be captured.
    """
    kind = _part_class(name, thing)
    made = kind(name, thing)
    tensors = Tensors()
    try:
        made.capture(tensors)
        made.signature()
    except TypeError as error:
        raise TypeError(f"the state of {name} cannot be saved: {error}.") from error
    except Exception as error:
        raise TypeError(f"the state of {name} cannot be taken ({describe(error)}).") from error
    # A dict or list is restored with new tensors, which the optimizer and the graph do not know.
    if kind is Part and tensors.any_trained():
        raise TypeError(
            f"{name} holds tensors that are trained: give each to Rescue(...) under a name of "
            "its own."
        )
    return made


def check_owners(parts: Mapping[str, Part]) -> None:
    """
    Check that the parts include the weights of all optimizers, and tell them to those of Keras.

    Raises:
        RescueError: an optimizer trains tensors of no part; names it and their number.
    """
    owned = {id(tensor) for each in parts.values() for tensor in each.tensors()}
    models = [each.thing for each in parts.values() if isinstance(each, ModulePart)]
    known = [one for each in models if is_of_keras(each, "Layer") for one in each.variables]
    for name, each in parts.items():
        each.known = known
        if not isinstance(each, OptimizerPart):
            continue
        strays = [item for item in parameters(each.thing) if id(item) not in owned]
        if strays:
            raise RescueError(
                f"{name} trains {len(strays)} tensors that were not given to Rescue(...), so their "
                "values would be lost. Give their module too: Rescue(..., model=model)."
            )


def is_of_keras(thing: Any, *classes: str) -> bool:
    """Whether Keras on PyTorch made this metric, optimizer or layer."""
    if not keras_model.is_keras_instance(thing, *(classes or ("Metric", "Optimizer"))):
        return False
    return all(isinstance(each.value, torch.Tensor) for each in thing.variables)


def _part_class(name: str, thing: Any) -> type[Part]:
    if isinstance(thing, torch.nn.Module):
        return ModulePart
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerPart
    if isinstance(thing, DataLoader):
        raise TypeError(
            f"{name} is a DataLoader: its place is saved when you iterate with "
            f"`for batch in rescue.data({name})` instead."
        )
    if isinstance(thing, torch.Tensor):
        return TensorPart
    if isinstance(thing, np.ndarray):
        return ArrayPart
    if own_random.is_generator(thing):
        return GeneratorPart
    if is_of_keras(thing):
        return KerasPart
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return StatefulPart
    if isinstance(thing, (dict, list)):
        return Part
    raise TypeError(
        f"{name} is of type {type(thing).__name__}, whose state cannot be taken. Give {_ACCEPTED}. "
        "A single number can live in a dict."
    )
