"""
Resuming from a rescue with Lightning.

    from watchdog_app.agent.lightning import resumed

    trainer.fit(model, **resumed("rescues/train.py", loader))

An agent that is on saves a Lightning training as a rescue, without a second copy in memory.
Lightning resumes from its own checkpoints, so this module converts the rescue to one. Such a
checkpoint lacks the random numbers and the position in the data. They are restored while the loader
is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from watchdog_app.agent.adapters.torch_data import LoaderPasses
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import libraries
from watchdog_app.agent.found.libraries import LIGHTNING, LibraryRescue
from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.state import randomness
from watchdog_app.base.durable import open_private
from watchdog_app.base.errors import RescueMismatch

__all__ = ["resumed"]


def resumed(directory: str | os.PathLike[str], loader: Any) -> dict[str, Any]:
    """
    Arguments for `trainer.fit`: the loader and the checkpoint to resume from.

    Args:
        directory: the folder of rescues, as the watchdog named it.
        loader: the training's DataLoader, or what makes it: a data module, or the module itself.

    Returns:
        `train_dataloaders` or `datamodule`, and `ckpt_path` if a rescue waits. The first pass over
        the loader raises RescueMismatch if the module computes something else.

    Raises:
        RescueMismatch: the rescue is not of a Lightning training with one module.
        RescueError: the rescue cannot be read.
    """
    rescue = libraries.newest_unfinished(directory, LIGHTNING)
    if rescue is None:
        return _data_arguments(loader)
    modules = rescue.modules()
    if len(modules) != 1:
        raise RescueMismatch(
            f"The rescue {rescue.path} holds {len(modules)} modules; Lightning resumes with one. "
            "Nothing was loaded."
        )
    library = sys.modules.get("lightning") or sys.modules["pytorch_lightning"]
    path = f"{rescue.path}.ckpt"
    state = {
        "epoch": rescue.library["epoch"],
        "global_step": rescue.library["global_step"],
        "pytorch-lightning_version": library.__version__,
        "state_dict": modules[0],
        "loops": {"fit_loop": rescue.library["loops"]},
        "callbacks": rescue.callbacks(),
        "optimizer_states": rescue.optimizers(),
        "lr_schedulers": rescue.schedulers(),
    }
    with open(path, "wb", opener=open_private) as file:
        torch.save(state, file)
    rescue.report_resumed()
    trainings.resumes_at(rescue.step, rescue.meta["position"]["epoch"] or 0)
    resumed = _Resumed(loader, rescue)
    if not hasattr(loader, "train_dataloader"):
        return {"train_dataloaders": resumed, "ckpt_path": path}
    make = loader.train_dataloader
    loader.train_dataloader = lambda: resumed.reading(make())
    return {**_data_arguments(loader), "ckpt_path": path}


def _data_arguments(loader: Any) -> dict[str, Any]:
    if not hasattr(loader, "train_dataloader"):
        return {"train_dataloaders": loader}
    return {} if hasattr(loader, "training_step") else {"datamodule": loader}


class _Resumed:
    """The loader; its first pass continues at the position of the rescue."""

    def __init__(self, loader: Any, rescue: LibraryRescue) -> None:
        self._loader = loader
        self._rescue = rescue
        self._passes = LoaderPasses(print_message)
        self._passes.continue_from(rescue.meta["position"]["passes"])
        # Lightning may have begun the next epoch, and the position be the end of the last one.
        at = rescue.library["loops"].get("epoch_loop.batch_progress", {}).get("current", {})
        self._at_start = at.get("ready") == 0 and rescue.meta["position"]["batch"] > 0
        if self._at_start:
            self._passes.new_epoch()
        self._owner: Any = None  # Lightning's loop, once the rescue is compared with it

    def reading(self, loader: Any) -> _Resumed:
        """This object for a new loader, which Lightning may ask for before each epoch."""
        self._loader = loader
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._passes.begun:
            self._passes.new_epoch()
        elif self._owner is None:  # Lightning may begin a pass twice before it reads a batch
            owner = libraries.find_loop_owner(sys._getframe(1))
            # `estimated_stepping_batches` begins a pass before there are optimizers.
            if owner is not None and owner.trainer.optimizers:
                self._owner = owner
                self._rescue.check_fit(owner.trainer.lightning_module, owner)
                _step_plateaus(owner)
                if self._at_start:
                    self._arrived()
        return self._passes.run(self._loader, self._arrived, self._rescue.read)

    def _arrived(self) -> None:
        if self._owner is not None:  # after the hooks that begin an epoch
            self._rescue.restore_attributes(self._owner)
        randomness.restore(self._rescue.meta["random"])


def _step_plateaus(owner: Any) -> None:
    """Let a ReduceLROnPlateau step at the end of a resumed epoch, where Lightning skips it."""
    if owner.trainer.max_steps == -1:  # else Lightning restarts its loops
        libraries.add_callback(
            owner, on_train_batch_start=lambda it, *_: setattr(it.fit_loop, "restarting", False)
        )
    elif any(each.reduce_on_plateau for each in owner.trainer.lr_scheduler_configs):
        print_message("with max_steps Lightning skips a ReduceLROnPlateau after this epoch.")
