"""
The processes of one PyTorch training (`torchrun`) agree on a rescue when `Rescue` is constructed.

They use a process group of their own for that, and end it. Saving needs no group, see
`rescue.checkpoint.ranks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch

from watchdog_app.agent.adapters import torch_parts
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.run_choice import Beginning
from watchdog_app.agent.state import torch_tensors
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.ranks import Ranks
from watchdog_app.rescue.checkpoint.reader import LoadedPart, LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore

# Rank 0 reads every byte of a rescue before it is chosen.
_TIMEOUT = timedelta(minutes=5)


class TorchRanks:
    """The agreement of this process with the other ranks of the default process group."""

    def __init__(self) -> None:
        self.rank = torch.distributed.get_rank()
        self._count = torch_parts.process_count()
        self._folder = ""

    def choose(self, beginning: Beginning, store: RescueStore) -> LoadedRescue | None:
        """
        What this rank resumes from: every rank resumes from the rescue that rank 0 chooses.

        Raises:
            RescueError: see `run_choice.choose`, in every rank; or a rank has made no Rescue.
        """
        try:
            group = torch.distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        except RuntimeError as error:
            raise RescueError(
                f"The {self._count} processes of this training could not agree on a rescue: one "
                f"has ended, or made no Rescue within {_TIMEOUT.total_seconds():.0f} s ({error}). "
                "Each one makes it, at the same place."
            ) from error
        found = None
        choice: list[Any] = [None]
        try:
            if self.rank == 0:
                try:
                    found = run_choice.choose(beginning, store)
                    folder = Ranks.make_folder(store.directory)
                    choice = [(folder, None if found is None else found.path, None)]
                except Exception as error:
                    choice = [("", None, str(error))]
                    raise
                finally:
                    torch.distributed.broadcast_object_list(choice, src=0, group=group)
                self._folder = folder
                return found
            torch.distributed.broadcast_object_list(choice, src=0, group=group)
        finally:
            torch.distributed.destroy_process_group(group)
        self._folder, path, problem = choice[0]
        if problem is not None:
            raise RescueError(problem)
        if path is None:
            return None
        whole = LoadedRescue(path)
        # A rescue of another number of processes is refused later, with a message.
        return LoadedPart(whole, self.rank) if whole.ranks == self._count else whole

    def ranks(self, objects: Iterable[Any]) -> Ranks:
        """The files through which the ranks agree on a step; call it after `choose`."""
        modules = [each for each in objects if isinstance(each, torch.nn.Module)]
        sharded = any(torch_tensors.is_sharded(w) for each in modules for w in each.parameters())
        return Ranks(self._folder, self.rank, self._count, sharded=sharded)
