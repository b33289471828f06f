"""
PyTorch trainings that name no Rescue: met where their optimizers step.

PyTorch calls a global hook after each step of each optimizer, whoever wrote the loop. The
iterators of DataLoaders are wrapped, so that each batch that is drawn is seen. Nothing of the
program is changed.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from watchdog_app.agent.contain import Guard

if TYPE_CHECKING:
    from watchdog_app.agent.found.automatic_torch_training import FoundTraining

_LOADERS = "torch.utils.data.dataloader"
# A search over parameters trains thousands of times, and each takes 15 to 40 ms to begin.
_MOST_TRAININGS = 100
_MOST_OPTIMIZERS = 16  # of one training; one for each weight is another way to train

_guard = Guard("the agent that was switched on")
_handle: Any = None
_loader: tuple[Any, Any, Any] | None = None  # the class, its __iter__ before, ours
# By id of the optimizer: its training, or None where it is left alone.
_known: dict[int, FoundTraining | None] = {}
_references: dict[int, Any] = {}
_of_thread: dict[int, FoundTraining] = {}
_trainings = 0
_torch: Any = None
_NEW: Any = object()  # in place of the training of an optimizer that was not met
_forks = False


def attach(module: ModuleType) -> None:
    """
    Have the steps of optimizers told, or the passes over loaders.

    Args:
        module: `torch.optim.optimizer` or `torch.utils.data.dataloader`.
    """
    global _handle, _torch, _forks
    if not _forks:
        _forks = True
        os.register_at_fork(after_in_child=_in_child)
    if module.__name__ == _LOADERS:
        _attach_loader(module.DataLoader)
    elif _handle is None:
        import torch

        _torch = torch  # not imported at each step: that alone takes microseconds there
        _handle = module.register_optimizer_step_post_hook(_stepped)


def detach() -> None:
    """As it was before; trainings under way are no longer watched."""
    global _handle, _loader
    if _handle is not None:
        _handle.remove()
        _handle = None
    if _loader is not None:
        kind, before, ours = _loader
        _loader = None
        if kind.__iter__ is ours:
            kind.__iter__ = before
    for training in {id(each): each for each in _of_thread.values()}.values():
        training.end(well=False)
    _in_child()


def under_way() -> list[FoundTraining]:
    """The trainings that were found and have not ended."""
    return [each for each in _of_thread.values() if not each.over]


def of_this_thread() -> FoundTraining | None:
    """The one of the thread that asks; None where it trains nothing."""
    training = _of_thread.get(threading.get_ident())
    return None if training is None or training.over else training


def _attach_loader(kind: Any) -> None:
    global _loader
    if _loader is not None:
        return
    before = kind.__iter__

    @functools.wraps(before)
    def __iter__(self: Any) -> Any:
        begun = None
        if _loader is not None:
            with _guard:
                begun = _about_to_begin(self)
        iterator = before(self)
        if begun is not None:
            with _guard:
                return begun(iterator, _about_to_draw)
        return iterator

    kind.__iter__ = __iter__
    _loader = kind, before, __iter__


def _about_to_begin(loader: Any) -> Any:
    import torch

    if not torch.is_grad_enabled():
        return None  # a validation, or no training at all
    from watchdog_app.agent.found.automatic_torch_data import about_to_begin

    return about_to_begin(loader)


def _about_to_draw() -> None:
    """A batch is about to be drawn in this thread."""
    training = _of_thread.get(threading.get_ident())
    if training is None:
        return
    if training.wants_end or training.detector.watching:
        training.draws()
    else:
        training.unseen = 0


def _stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    # A step that torch.compile makes a graph of: nothing of ours belongs into it.
    if _torch.compiler.is_dynamo_compiling():
        return
    try:
        training = _known.get(id(optimizer), _NEW)
        if training is None:
            return
        if training is _NEW:
            _meet(optimizer, sys._getframe(1))
        elif training.over:
            _known[id(optimizer)] = None
        else:
            training.step(optimizer, sys._getframe(1))
    except Exception as error:
        _guard.caught(error)


def _meet(optimizer: Any, frame: FrameType) -> None:
    """The first step of an optimizer."""
    global _trainings
    key = id(optimizer)
    _known[key] = None
    _references[key] = weakref.ref(optimizer, functools.partial(_gone, key))
    from watchdog_app.agent.loops.torch_optimizers import claimed

    if optimizer in claimed or _several_processes():
        return
    from watchdog_app.agent.found.automatic_torch_training import FoundTraining

    thread = threading.get_ident()
    training = _of_thread.get(thread)
    if training is not None and not training.over:
        living = training.optimizers()
        if living and training.is_in(frame) and not training.detector.left_behind:
            if len(living) < _MOST_OPTIMIZERS:
                _known[key] = training
                training.step(optimizer, frame)
            return
        training.end(well=training.ended_well())
    if _trainings >= _MOST_TRAININGS:
        _guard.tell_once(
            f"this program has begun {_MOST_TRAININGS} PyTorch trainings; further ones are not "
            "saved by themselves. Give Rescue(...) to those that matter."
        )
        return
    _trainings += 1
    _of_thread[thread] = _known[key] = training = FoundTraining(_guard)
    training.step(optimizer, frame)


def _several_processes() -> bool:
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    if distributed.get_world_size() < 2:
        return False
    _guard.tell_once(
        f"this PyTorch training runs in {distributed.get_world_size()} processes: it is watched, "
        "but not saved, as a rescue holds the state of one. Use torch.distributed.checkpoint."
    )
    return True


def _gone(key: int, _reference: Any) -> None:
    """An optimizer was let go of. Runs wherever the last reference was dropped."""
    _references.pop(key, None)
    training = _known.pop(key, None)
    if training is None or training.over or training.optimizers():
        return
    training.over = True
    # Its end waits for a thread and the disk: not here.
    try:
        threading.Thread(target=_end, args=(training,), name="watchdog-end", daemon=True).start()
    except RuntimeError:  # the interpreter is about to end, and ends it
        return


def _end(training: FoundTraining) -> None:
    with _guard:
        training.end(well=training.ended_well())


def _in_child() -> None:
    """A forked process trains for itself."""
    _known.clear()
    _references.clear()
    _of_thread.clear()
