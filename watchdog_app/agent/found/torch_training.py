"""
A PyTorch training without a Rescue: its objects, and how the agent saves it.

The objects are modules, schedulers, gradient scalers, random generators and trained tensors. They
have names in the frames that lead to the optimizer's step. If a library runs the loop, the agent
gets objects from that library as well.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from watchdog_app.agent.adapters.torch_state import TorchState, attributes_meta, encoded_position
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.found import libraries
from watchdog_app.agent.found.torch_objects import are_tensors, find_objects, stamp, tensors_of
from watchdog_app.agent.found.torch_passes import SeenPasses
from watchdog_app.agent.found.training import FoundTraining
from watchdog_app.agent.identity import attributes
from watchdog_app.agent.identity.attributes import Attributes, weak_reference
from watchdog_app.agent.identity.names import Named
from watchdog_app.agent.oom import watch
from watchdog_app.agent.runtime.link import CheckpointRequest
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.snapshot.change_marker import ChangeMarker, NoMarker
from watchdog_app.agent.state import own_random, torch_tensors
from watchdog_app.agent.state.optimizer_state import saved_optimizers
from watchdog_app.agent.state.torch_parts import Part, parameters, submodules
from watchdog_app.agent.state.torch_tensors import Tensors, encode
from watchdog_app.agent.wrapping import Wrapped

_MOVED = "{} as they were before the batch that ran out of memory (Rescue(...) puts these back)"
_UNFINISHED = (
    "what the loop does after the optimizer's step of its last iteration: memory ran out there"
)
_MOST_STATISTICS_BYTES = 8 << 20  # of the buffers that are copied at each step near a limit

_listening: WeakSet[FoundTorch] = WeakSet()
_backward = Wrapped()  # one for all of them: a training may die while it listens


class FoundTorch(FoundTraining):
    """A PyTorch training of one thread."""

    framework = "torch"
    kind = "PyTorch training"
    how_to_name = (
        "Name it: rescue = Rescue(folder, model=model, optimizer=optimizer, "
        "**anything_with_state) of watchdog_app.agent.torch, and rescue.step() after each step."
    )
    passes: SeenPasses

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard, SeenPasses())
        self._captured: _Captured | None = None
        self._hook: Any = None  # handle of the hook that sees modules compute
        self._trained: set[int] = set()  # ids of the tensors that are trained
        self._sample: tuple[int, list[str]] = -1, []  # a step, and `_untrained_sample` after it
        self._moves = False  # whether untrained parameters have changed between two iterations
        # The random generators of the data, with their states at the end of an iteration.
        self._of_data: tuple[int, list[tuple[list[Any], own_random.States]]] = -1, []
        self._spoiled: list[str] = []  # what the step that ran out of memory changed, as texts
        self._last_iteration: tuple[Any, ...] | None = (
            None  # position and random states after the last iteration, if a limit was near
        )
        # Random states before the step that failed.
        self._random_at_failure: dict[str, Any] | None = None
        self._random_when_due: dict[str, Any] | None = None  # those at the last report
        self._kept: tuple[int, dict[str, Any]] = -1, {}  # a step, and `kept_state` after it
        self._statistics = Statistics()  # after that iteration
        self._attributes: list[attributes.Values] = []  # of modules, after that iteration
        self._owner: Callable[[], Any] = lambda: None  # the library's object that runs the loop

    def out_of_memory(self, error: BaseException) -> None:
        """Save the state after an out-of-memory error, unless only a part of a step was applied."""
        session = self.session
        if session is None or not self.detector.iterations or self._pid != os.getpid():
            return
        # A loop by hand may have begun an update as long as the end of its iteration is not seen.
        if (
            watch.raised_in_optimizer(error)
            or not self.detector.is_between_iterations
            or (self._is_by_hand and self.detector.awaits_end)
        ):
            by_hand = self._is_by_hand and self.detector.is_between_iterations
            when = "perhaps in an update by the loop" if by_hand else "before the step was complete"
            print_message(
                f"memory ran out {when}: the weights in memory may not be those of a whole step. "
                "They were not saved; an earlier rescue stands."
            )
            return
        is_new = False
        with self._guard:
            is_new = self._read_failed(error)
        watch.release_memory()
        self.passes.freeze()
        at = self.detector.iterations, self._epoch, self.passes.batch
        ended, random = self._last_iteration, None
        if ended is not None and ended[0] == at[0]:
            random = ended[-1] if ended[:-1] == at else self.passes.random_before_epoch
        moved = " and ".join(self._moved_since(at[0], random))
        if self._of_data[0] == at[0]:
            for generators, states in self._of_data[1]:
                own_random.restore_all(generators, states)
        self._spoiled = [_MOVED.format(moved)] if moved else []
        if random and self._statistics.restore(self._changeable()):
            moves = self._has_moved(at[0]) or not self._put_attributes_back()
            self._spoiled = [_MOVED.format("statistics")] if moves else []
        elif ended is not None and ended[0] < at[0] and self.detector.awaits_end:
            random = self._random.after_step if is_new else None
            if self._is_due:  # else its end may have passed unseen
                self._spoiled = [] if random else [_UNFINISHED]
            elif not is_new:
                self._spoiled.append(_UNFINISHED)
        self._random_at_failure = random
        saved = session.save_now(watch.REASON, self.detector.iterations)
        if saved is not None:
            self._report_saved(saved)

    def _moved_since(self, step: int, random: dict[str, Any] | None) -> Iterator[str]:
        """What the batch that ran out of memory may have changed, if its `random` is not known."""
        captured, kept = self._captured, libraries.kept_state(self._owner())
        changed = captured is not None and any(captured.attributes.kept_values())
        if self._buffers() or changed or self._has_moved(step):
            yield "statistics"
        begun = {**self.passes.random_since_begin, "own": {}}
        now = self._random.at_boundary(self._names)
        drawn = any(self.passes.own_random()) and self._of_data[0] != step
        if drawn or (not random and now not in (self._random_when_due, begun)):
            yield "random numbers"
        if self._kept[0] != step and any(kept.values()):
            yield "what callbacks keep"

    def _put_attributes_back(self) -> bool:
        """Set the attributes of modules as the last iteration left them; False: not known."""
        if self._captured is None or not any(now := self._captured.attributes.kept_values()):
            return True
        for each in self._attributes:
            self._captured.attributes.restore(each)
        return list(map(_names_in, now)) == list(map(_names_in, self._attributes))

    def _read_failed(self, error: BaseException) -> bool:
        """
        Read the loop's variables where memory ran out, unless those of the boundary are kept.

        Returns:
            Whether the iteration that failed has not reached its step.
        """
        codes, step = [each.code for each in self.loop.loops], self.detector.iterations
        places = [*traceback.walk_tb(error.__traceback__)]
        # A generator that has failed does not show who called it.
        own = [each for each in places if each[0].f_code in codes] or places[-1:]
        known = self._values is not None and self._values[0] == step and not self.passes.is_behind
        before = self._values[1] if self._values is not None and known else {}
        steps = dict(reversed(self.loop.places))
        reached = [line >= steps[each.f_code] for each, line in places if each.f_code in steps]
        for frame, line in own[-1:]:
            is_next = not self.passes.has_skipped_step
            self._values = step, self._variables.read_failed(frame, before, is_next=is_next)
            inner = [
                each for each in self.loop.loops[:1] if each.code is frame.f_code and each.node
            ]
            return any(each.first <= line for each in inner) and reached[-1:] == [False]
        return False

    def _begin(self, frame: FrameType) -> None:
        owner = libraries.find_loop_owner(frame)
        self._owner = weak_reference(owner)
        self._of_library = owner is not None
        own = libraries.own_checkpoint(frame)
        self.how_to_name = own or self.how_to_name
        super()._begin(frame)
        if own and not self.over:
            self._guard.print_once(own)
        me = weak_reference(self)
        libraries.add_callback(
            owner, on_exception=lambda *args: None if (one := me()) is None else one._left(*args)
        )

    def _left(self, trainer: Any, _module: Any, error: BaseException) -> None:
        """Save if SIGTERM ends Lightning's loop between two batches; its run stays unfinished."""
        if isinstance(error, Exception) or (session := self.session) is None:
            return
        with self._guard:
            if trainer.received_sigterm and trainer.training and not trainer.is_last_batch:
                reason = "the program ends: SIGTERM"
                session.link.pending_request = CheckpointRequest(None, reason, time.monotonic())
                self.draws()
            elif trainer.received_sigterm:
                print_message("SIGTERM: not saved: it came at the end of an epoch of Lightning.")
            self.end(succeeded=False)

    def _after_open(self) -> None:
        watch.register(self)  # before the hooks for the end, which the same error also calls
        super()._after_open()

    def _close(self, *, succeeded: bool) -> None:
        watch.unregister(self)
        super()._close(succeeded=succeeded)

    def _find_objects(self, frame: FrameType | None) -> list[Named]:
        optimizers = self.optimizers()
        self._trained = {id(item) for each in optimizers for item in parameters(each)}
        return find_objects(optimizers, frame, libraries.trained_objects(self._owner()))

    def _has_unnamed(self) -> bool:
        owned: set[int] = set()
        for each in self._names:
            thing = each.get()
            if isinstance(thing, torch.nn.Module):
                owned.update(map(id, thing.parameters()))
            elif isinstance(thing, torch.Tensor):
                owned.add(id(thing))
        return any(id(item) not in owned for each in self.optimizers() for item in parameters(each))

    def _has_own_rescue(self) -> bool:
        return any(each in saved_optimizers for each in self.optimizers())

    def _make_state(self, objects: Mapping[str, Any]) -> TorchState:
        holds = (lambda _: True) if self._of_library else None  # see `libraries`
        state = TorchState(objects, self._position, self.passes, self.waiting, holds)
        kinds = {name: type(part) for name, part in state.parts.items()}
        loaders = [weak_reference(each) for each in self.passes.datasets]
        lost = [*self._lost_now(), *state.attributes.lost()]
        self._captured = _Captured(self._names, kinds, loaders, lost, state.attributes)
        return state

    def _tensor_bytes(self, value: Any) -> int:
        tensors = Tensors()
        encode(value, "", tensors)
        return sum(each.nbytes for each in tensors.entries)

    def _watchable(self, frame: FrameType) -> list[str]:
        named = [each.get() for each in self._names]
        held = [each for each in named if isinstance(each, torch.nn.Module | torch.Tensor)]
        known = self._trained.union(id(item) for each in held for item in tensors_of(each))

        def wanted(thing: Any) -> bool:
            return are_tensors(thing) and all(
                not (each.requires_grad or each.is_inference() or id(each) in known)
                and torch_tensors.obstacle(each) is None
                for each in tensors_of(thing)
            )

        found = [each.expression for each in self._find_in(frame, wanted)]
        tensors = [each for each in found if "._buffers" not in each]
        return [*super()._watchable(frame), *tensors]

    def _stamp(self, value: Any) -> int | None:
        return stamp(value) if are_tensors(value) else super()._stamp(value)

    def _make_marker(self) -> ChangeMarker:
        from watchdog_app.agent.snapshot.torch_marker import TorchMarker

        return NoMarker() if self._is_by_hand else TorchMarker(self)  # no hook sees an update begin

    @property
    def parts(self) -> dict[str, Part] | None:
        """See `TorchTraining`."""
        captured, objects = self._captured, self._live_objects()
        if captured is None or self._owner() is not None or captured.kinds.keys() != objects.keys():
            return None
        return {name: kind(name, objects[name]) for name, kind in captured.kinds.items()}

    def waiting(self) -> set[int]:
        """See `TorchTraining`; a loop by hand may add to the gradients in several iterations."""
        return self._trained if self._is_by_hand else set()

    def changing(self, tensors: Tensors) -> dict[str, Any] | None:
        """See `TorchTraining`."""
        captured = self._captured
        if captured is None or not self._is_unchanged():
            return None
        position = encoded_position(self._position(tensors), tensors, [])
        ended = self._last_iteration  # this one, near a limit
        random = self._random_at_boundary() if ended is None else ended[-1]
        kept = attributes_meta(captured.attributes, tensors)
        return {"position": position, "random": random, **kept}

    def _is_unchanged(self) -> bool:
        """Whether a capture would hold the same objects as the last one, and lose as much."""
        captured = self._captured
        return (
            captured is not None
            and captured.objects is self._names
            and captured.kinds.keys() == self._live_objects().keys()
            and captured.lost == [*self._lost_now(), *captured.attributes.lost()]
            and [id(get()) for get in captured.loaders] == list(map(id, self.passes.datasets))
        )

    def _not_restored(self) -> list[str]:
        kept = libraries.not_restored(self._owner()) if self._of_library else []
        return [*super()._not_restored(), *kept, *self._spoiled]

    def _position(self, *args: Any) -> dict[str, Any]:
        found = super()._position(*args)
        step, kept = self._kept
        if step != self.detector.iterations:
            kept = libraries.kept_state(self._owner())
        return {**found, "variables": {**found["variables"], **kept}}

    def _random_at_boundary(self) -> dict[str, Any]:
        return self.passes.random_before_epoch or super()._random_at_boundary()

    def _extra_meta(self) -> dict[str, Any]:
        library = libraries.library_counts(self._owner())
        return {
            libraries.KEY: library,
            **({} if library is None else {"framework": library["name"]}),
            **({} if self._random_at_failure is None else {"random": self._random_at_failure}),
        }

    def _start_listening(self) -> None:
        """Start to listen, with a hook on all modules, so the caller must stop soon."""
        super()._start_listening()
        if self._hook is not None:
            return
        me = weak_reference(self)

        def before(module: Any, _args: Any) -> None:
            training = None if torch.compiler.is_dynamo_compiling() else me()
            if training is not None and (
                (module.training and torch.is_grad_enabled()) or training.is_before_step()
            ):
                training.module_computes(module)

        self._hook = register_module_forward_pre_hook(before)
        _listening.add(self)
        if not _backward.is_on:
            _backward.wrap(torch.Tensor, "backward", _wrap_backward)

    def module_computes(self, module: Any) -> None:
        """Handle a module that is about to compute, in any thread."""
        trained = self._trained
        if get_ident() == self._thread and any(id(item) in trained for item in module.parameters()):
            self.computes()

    def gradients_begin(self) -> None:
        """Handle a backward pass that is about to begin: the loop may call no module."""
        # Without a hook, a forward pass may have changed these before.
        with self._guard:
            known = get_ident() != self._thread or self.detector.has_computed
            if not known and not self._buffers():
                self.computes()

    def _stop_listening(self) -> None:
        super()._stop_listening()
        _listening.discard(self)
        if not _listening:
            _backward.unwrap()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _attend(self, session: Session, step: int, epoch: int | None, batch: int | None) -> None:
        self._last_iteration = None
        self._random_when_due = self._random_at_boundary()
        if session.publisher is not None and session.publisher.asked:
            self._remember_iteration(step, epoch, batch, self._random_when_due)
        super()._attend(session, step, epoch, batch)

    def _remember_iteration(
        self, step: int, epoch: int | None, batch: int | None, random: dict[str, Any]
    ) -> None:
        """Keep what an iteration has left, as memory may run out before the next step."""
        self._last_iteration = step, epoch, batch, random
        sample, (sampled, earlier) = self._untrained_sample(), self._sample
        self._moves = self._moves or (sampled >= 0 and sample != earlier)
        self._sample = step, sample
        self._statistics.record(self._changeable())
        captured = self._captured
        self._attributes = [] if captured is None else captured.attributes.kept_values()
        self._kept = step, libraries.kept_state(self._owner()) if self._of_library else {}
        self._of_data = step, self.passes.own_random()

    def pass_ended(self) -> None:
        """See `FoundTraining`."""
        super().pass_ended()
        # `zip` has drawn from the loaders before the one that has ended.
        if self._values is not None and len(self.passes.datasets) == 1:
            with self._guard:
                random = self._random_at_boundary()
                self._remember_iteration(self._values[0], self._epoch, self.passes.batch, random)
                if self.detector.is_regular and self.passes.is_at_step:
                    self._publish_end()

    def _publish_end(self) -> None:
        """Publish the end of a pass: a limit may be reached in a long evaluation after it."""
        if self.session is not None:
            self._at_boundary = True
            step, at = self.detector.iterations, {"epoch": self._epoch, "batch": self.passes.batch}
            try:
                self.session.publish(step, borrows=True, **at)
            finally:
                self._at_boundary = False

    def _buffers(self) -> list[torch.Tensor]:
        """The tensors that a forward pass may change, as in batch normalization."""
        things = [each.get() for each in self._names]
        modules = [each for each in things if isinstance(each, torch.nn.Module)]
        held = [part._buffers.values() for each in modules for part in submodules(each)]
        return [item for values in held for item in values if item is not None]

    def _untrained(self) -> list[torch.Tensor]:
        """Parameters that no optimizer trains; a momentum encoder changes them in `forward`."""
        things = [each.get() for each in self._names]
        modules = [each for each in things if isinstance(each, torch.nn.Module)]
        found = [item for each in modules for item in each.parameters() if _is_plain(item)]
        # An optimizer may hold parameters without gradients, which it leaves alone.
        return [one for one in found if not (one.requires_grad and id(one) in self._trained)]

    def _changeable(self) -> list[torch.Tensor]:
        """What is copied after an iteration: the buffers, and small parameters that move."""
        buffers, untrained = self._buffers(), self._untrained() if self._moves else []
        size = sum(each.nbytes for each in (*buffers, *untrained))
        return [*buffers, *untrained] if size <= _MOST_STATISTICS_BYTES else buffers

    def _untrained_sample(self) -> list[str]:
        """One value of the first and of the last untrained parameter; as text, NaN equals NaN."""
        held = [each for each in self._untrained() if each.numel()]
        return [repr(each.detach().reshape(-1)[0].item()) for each in held[:1] + held[-1:]]

    def _has_moved(self, step: int) -> bool:
        """Whether untrained parameters may have changed since the end of this step's iteration."""
        at, sample = self._sample
        return self._moves if at != step else sample != self._untrained_sample()


class Statistics:
    """Copies of buffers after an iteration, such as those of batch normalization."""

    def __init__(self) -> None:
        self._copies: list[tuple[Callable[[], Any], torch.Tensor]] = []

    def record(self, buffers: Sequence[torch.Tensor]) -> None:
        """Copy the buffers between two iterations; in place, as memory is short."""
        if self._hold(buffers):
            for item, (_, copy) in zip(buffers, self._copies, strict=True):
                copy.copy_(item.detach())
        elif sum(each.nbytes for each in buffers) <= _MOST_STATISTICS_BYTES:
            self._copies = [(weak_reference(each), each.detach().clone()) for each in buffers]

    def restore(self, buffers: Sequence[torch.Tensor]) -> bool:
        """Set the buffers to the values of their copies; whether there are such copies."""
        if not self._hold(buffers):
            return False
        with torch.no_grad():
            for item, (_, copy) in zip(buffers, self._copies, strict=True):
                if _differs(item, copy):  # a write shows as a change of an unused module
                    item.copy_(copy)
        return True

    def _hold(self, buffers: Sequence[torch.Tensor]) -> bool:
        known = [get() for get, _ in self._copies]
        return list(map(id, known)) == list(map(id, buffers))


@dataclass(frozen=True, slots=True)
class _Captured:
    """What the last capture held, for later refreshes; keeps no object of the program alive."""

    objects: list[Named]  # of the training, also those that were not captured
    kinds: dict[str, type[Part]]  # of its parts
    loaders: list[Callable[[], Any]]
    lost: list[str]
    attributes: Attributes  # of its modules


def _names_in(found: attributes.Values) -> dict[str, list[str]]:
    return {label: list(values) for label, values in found.items()}


def _is_plain(item: torch.Tensor) -> bool:
    """Whether one value of a parameter can be read; that of a DTensor would be a collective."""
    return type(item) is torch.nn.Parameter and not item.is_meta


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return not torch.equal(one, other)
    except Exception:  # a GPU has no memory for the comparison
        return True


def _wrap_backward(inner: Any) -> Any:
    def backward(*args: Any, **others: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            for each in tuple(_listening):
                each.gradients_begin()
        return inner(*args, **others)

    return backward
