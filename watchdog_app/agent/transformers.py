"""
Resuming from a rescue with the Trainer of Hugging Face.

    from watchdog_app.agent.transformers import checkpoint

    trainer.train(resume_from_checkpoint=checkpoint("rescues/train.py"))

An agent that is on saves a Trainer's training as a rescue, without a second copy in memory. Trainer
resumes from its own checkpoint folders, so this module converts the rescue to one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from watchdog_app.agent.adapters.passes import RecordedPass
from watchdog_app.agent.contain import describe, print_message
from watchdog_app.agent.found import libraries
from watchdog_app.agent.found.libraries import TRANSFORMERS, LibraryRescue
from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.state import randomness
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.base.durable import open_private
from watchdog_app.base.errors import RescueError, RescueMismatch

__all__ = ["checkpoint"]


def checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """
    A folder for `resume_from_checkpoint`, made of the newest unfinished rescue.

    Args:
        directory: the folder of rescues, as the watchdog named it.

    Returns:
        The folder, next to the rescue. None if no rescue waits: training starts over.

    Raises:
        RescueMismatch: the rescue is not of a Trainer with one model and one optimizer, or the
            model of the Trainer in the caller's variables computes something else.
        RescueError: the rescue cannot be read.
    """
    rescue = libraries.newest_unfinished(directory, TRANSFORMERS)
    if rescue is None:
        return None
    modules, optimizers, schedulers = rescue.modules(), rescue.optimizers(), rescue.schedulers()
    if (len(modules), len(optimizers)) != (1, 1):
        raise RescueMismatch(
            f"The rescue {rescue.path} holds {len(modules)} modules and {len(optimizers)} "
            "optimizers; Trainer resumes with one of each. Nothing was loaded."
        )
    trainers = libraries.owners_in_program(sys._getframe(1), TRANSFORMERS)
    if len(trainers) == 1:
        rescue.check_fit(trainers[0].model, trainers[0])
        _restore_callbacks(trainers[0], rescue)
    else:
        print_message(
            f"it was not checked whether the model fits {rescue.path}. A batch that accelerate "
            "drew ahead may be drawn with other random numbers."
        )
    folder = os.path.join(os.path.dirname(rescue.path), f"checkpoint-{rescue.step}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    parts = {
        "pytorch_model.bin": modules[0],
        "optimizer.pt": optimizers[0],
        **({"scheduler.pt": schedulers[0]} if schedulers else {}),
        "rng_state.pth": _rng_state(rescue),
    }
    for name, part in parts.items():
        with open(os.path.join(folder, name), "wb", opener=open_private) as file:
            torch.save(part, file)
    # Its models load from their own format only.
    if len(trainers) == 1 and libraries.is_of(trainers[0], "sentence_transformers"):
        trainers[0].model.load_state_dict(modules[0])
        trainers[0].save_model(folder)
    state = os.path.join(folder, "trainer_state.json")
    with open(state, "w", encoding="utf-8", opener=open_private) as text:
        json.dump(rescue.library["state"], text)
    rescue.report_resumed()
    trainings.resumes_at(rescue.step, rescue.meta["position"]["epoch"] or 0)
    return folder


def _restore_callbacks(trainer: Any, rescue: LibraryRescue) -> None:
    """Restore what callbacks keep, after their other hooks, and the batch that was drawn ahead."""
    ahead: Any = _random_ahead(rescue)
    loaders, after = Wrapped(), list[dict[str, Any]]()

    def draws(iterator: Iterator[Any]) -> Iterator[Any]:
        randomness.restore(ahead)
        for batch in iterator:
            if not after:
                randomness.restore(rescue.meta["random"])
            if loaders.is_on:
                after[:] = [randomness.capture()]
            yield batch

    def begin(*_: Any, **__: Any) -> None:
        if ahead is not None:
            loaders.wrap(DataLoader, "__iter__", lambda before: lambda each: draws(before(each)))
        kept = rescue.callbacks()
        for key, each in libraries.callbacks_by_key(trainer).items():
            for name, value in kept.get(key, {}).items():
                setattr(each, name, value)
        rescue.restore_attributes(trainer)

    def first_step(self: Any, *_: Any, **__: Any) -> None:
        trainer.remove_callback(self)
        loaders.unwrap()
        for state in after:  # Trainer has set those of the rescue again since
            randomness.restore(state)

    base = sys.modules["transformers"].TrainerCallback
    hooks = {"on_epoch_begin": begin, "on_step_begin": first_step}
    trainer.add_callback(type("Restoring", (base,), hooks)())


def _random_ahead(rescue: LibraryRescue) -> dict[str, Any] | None:
    """
    Random states before the batch that accelerate had drawn ahead; None without one.

    Raises:
        RescueError: the rescue does not hold what it should.
    """
    try:
        passes = map(RecordedPass.read, rescue.meta["position"]["passes"].values())
        found = next((each.later[-1][1] for each in passes if each.later), None)
        if found is not None:  # an error here comes before the training
            before = randomness.capture()
            randomness.restore(found)
            randomness.restore(before)
    except Exception as error:
        raise RescueError(
            f"The rescue {rescue.path} is damaged: it holds no place in the data that can be read "
            f"({describe(error)}). Nothing was loaded."
        ) from error
    return found


def _rng_state(rescue: LibraryRescue) -> dict[str, Any]:
    """The random state in the form that Trainer saves."""
    state = rescue.meta["random"]
    version, words, gauss = state["python"]
    found: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "cpu": randomness.torch_state(state["torch"]),
    }
    if "numpy" in state:
        kind, keys, *rest = state["numpy"]
        found["numpy"] = (kind, np.array(keys, dtype=np.uint32), *rest)
    cards = [randomness.torch_state(text) for text in state["devices"].get("cuda", ())]
    if cards:
        found["cuda"] = cards if len(cards) > 1 else cards[0]
    return found
