"""A rescue of a PyTorch training that was found by itself, taken apart for a library to load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from watchdog_app.agent.contain import say
from watchdog_app.agent.found import automatic_torch_owner
from watchdog_app.agent.loops import torch_values
from watchdog_app.agent.loops.torch_state import SavedTorch
from watchdog_app.agent.saving import chapters
from watchdog_app.agent.saving.loaded import LoadedRescue
from watchdog_app.base.errors import RescueMismatch


class FoundRescue:
    """The newest rescue in a folder that waits to be gone on from."""

    def __init__(self, path: str, library: str) -> None:
        """
        Args:
            path: its folder.
            library: that ran the loop.

        Raises:
            RescueMismatch: another library, or a loop of the program's own.
            RescueError: it cannot be read.
        """
        self.path = path
        self._loaded = LoadedRescue(path)
        self.step = self._loaded.step
        self.meta: Mapping[str, Any] = self._loaded.meta
        self._saved = SavedTorch(path, self.meta, self._loaded.read)
        self.library: Mapping[str, Any] = self.meta.get(automatic_torch_owner.KEY) or {}
        if self.library.get("name") != library:
            raise RescueMismatch(
                f"The rescue {path} was not saved in a training loop of {library}. Nothing was "
                "loaded. Give each training a folder of its own."
            )

    def modules(self) -> list[dict[str, torch.Tensor]]:
        """`state_dict` of each module."""
        return [self._decode(part["state"]) for part in self._parts() if "asleep" in part]

    def optimizers(self) -> list[dict[str, Any]]:
        """`state_dict` of each optimizer."""
        parts = [part for part in self._parts() if "param_groups" in part]
        return [self._decode(part) for part in parts]

    def schedulers(self) -> list[dict[str, Any]]:
        """`state_dict` of each scheduler."""
        return [self._decode(part) for part in self._parts() if "last_epoch" in part]

    def read(self, name: str) -> torch.Tensor:
        """One tensor."""
        return self._saved.read(name)

    def went_on(self) -> None:
        """Note that this process goes on from it, and say so."""
        folder = os.path.dirname(self.path)
        root = os.path.dirname(folder) if os.path.basename(folder).startswith("fit-") else folder
        chapters.adopt(root, self.path)
        say(f"going on from {self.path}: step {self.step}.")

    def _parts(self) -> list[dict[str, Any]]:
        return [part for part in self.meta["parts"].values() if isinstance(part, dict)]

    def _decode(self, part: Any) -> Any:
        return torch_values.decode(part, self._saved.read)


def waiting(directory: str | os.PathLike[str], library: str) -> FoundRescue | None:
    """
    The newest unfinished rescue of a process that has ended; None when there is none.

    Args:
        directory: the folder that the watchdog named when it saved.
        library: that ran the loop.
    """
    left = chapters.waiting(os.fspath(directory))
    return None if left is None else FoundRescue(left.path, library)
