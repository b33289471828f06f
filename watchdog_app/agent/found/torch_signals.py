"""
Events of PyTorch trainings without a Rescue.

PyTorch calls a global hook after each step of each optimizer, in any loop. The agent wraps the
iterators of DataLoaders to see each batch that the program draws. It changes no object of the
program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found.gradients import ByHand, GradientWatch
from watchdog_app.agent.found.trainings import Trainings
from watchdog_app.agent.identity.code import program_frame
from watchdog_app.agent.wrapping import Wrapped

if TYPE_CHECKING:
    from watchdog_app.agent.found.torch_training import FoundTorch

_LOADERS = "torch.utils.data.dataloader"

_gradients = GradientWatch("torch", "torch.optim.", lambda each: float(each.detach().sum()))
_step_hooks: list[Any] = []
_loaders = Wrapped()
_torch: Any = None


def attach(module: ModuleType) -> None:
    """
    Hook the steps of optimizers, or the passes over loaders.

    Args:
        module: `torch.optim.optimizer` or `torch.utils.data.dataloader`.
    """
    global _torch
    if module.__name__ == _LOADERS:
        if not _loaders.is_on:
            _loaders.wrap(module.DataLoader, "__iter__", _wrap_iter)
    elif not _step_hooks:
        import torch

        _torch = torch  # an import statement at each step would take microseconds
        _step_hooks.append(module.register_optimizer_step_pre_hook(_begins))
        _step_hooks.append(module.register_optimizer_step_post_hook(_stepped))
        _gradients.begin(torch.Tensor, "backward", _wrap_backward)


def detach() -> None:
    """Remove the hooks, and stop watching trainings."""
    while _step_hooks:
        _step_hooks.pop().remove()
    _loaders.unwrap()
    _gradients.end()
    trainings.end()


def _wrap_iter(before: Any) -> Any:
    def __iter__(self: Any) -> Any:
        begun = None
        if _loaders.is_on:
            with trainings.guard:
                begun = _begin_pass(self, sys._getframe(1))
        iterator = before(self)
        if begun is not None:
            with trainings.guard:
                return begun(iterator, trainings.about_to_draw)
        elif _loaders.is_on and trainings.current() is not None:
            from watchdog_app.agent.found.torch_passes import record_random

            record_random()  # a validation without gradients; its loader has drawn a seed
        return iterator

    return __iter__


def _begin_pass(loader: Any, frame: FrameType) -> Any:
    import torch

    if not torch.is_grad_enabled():
        return None  # a validation, or a program that does not train
    from watchdog_app.agent.found.torch_passes import begin_pass
    from watchdog_app.agent.identity.loop_steps import turn_around

    # accelerate draws one batch ahead, to know which one is the last.
    reader = str(frame.f_globals.get("__name__"))
    return begin_pass(loader, int(reader.startswith("accelerate.")), turn_around(frame))


def _begins(_optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    # A step with a closure computes the model itself, perhaps of no module (an image is trained).
    training = trainings.current_listening() if len(args) > 1 or kwargs else None
    if training is not None and not _torch.compiler.is_dynamo_compiling():
        training.computes()


def _stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    # While torch.compile traces a step, our code must not become part of its graph.
    if not _torch.compiler.is_dynamo_compiling():
        trainings.stepped(optimizer, sys._getframe(1))


def _wrap_backward(before: Any) -> Any:
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(self, *args, **kwargs)
        if _gradients.is_on and not _torch.compiler.is_dynamo_compiling():
            with trainings.guard:
                frame = program_frame(sys._getframe(1))
                found = _gradients.computed(lambda: _leaves(self), frame)
                if found is not None:
                    trainings.stepped(found, frame, found.unseen_steps())
        return result

    return backward


def _leaves(loss: Any) -> list[Any]:
    """The tensors that the gradients of a loss belong to."""
    waiting, seen, found = [loss.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(each for each, _ in node.next_functions)
            if hasattr(node, "variable"):
                found.append(node.variable)
    return found


def _is_permitted(optimizer: Any, guard: Guard) -> bool:
    from watchdog_app.agent.state.optimizer_state import saved_optimizers
    from watchdog_app.agent.state.torch_parts import process_count

    if not isinstance(optimizer, ByHand):
        _gradients.end()
    if optimizer in saved_optimizers:
        return False
    count = process_count()
    if count < 2:
        return True
    guard.print_once(
        f"this PyTorch training runs in {count} processes: it is watched, but not saved. Make a "
        "Rescue of watchdog_app.agent.torch in each of them, and call its step()."
    )
    return False


def _make_training(guard: Guard) -> FoundTorch:
    from watchdog_app.agent.found.torch_training import FoundTorch

    return FoundTorch(guard)


trainings: Trainings[FoundTorch] = Trainings(_is_permitted, _make_training)
