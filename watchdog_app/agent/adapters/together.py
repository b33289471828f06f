"""
The processes of one training ("ranks") agree on a rescue when the training begins.

Each framework has its own way to give all processes the choice of rank 0, by a collective
operation. Saving needs none, see `rescue.checkpoint.ranks`.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.run_choice import Beginning
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.ranks import Ranks
from watchdog_app.rescue.checkpoint.reader import LoadedPart, LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore

_BYTES, _LONGEST = 20_000, 1000  # of a choice; characters of a message in it


class Together(ABC):
    """The agreement of this process with the others of its training."""

    ignores_sigterm: ClassVar[bool] = False  # whether the framework catches SIGTERM and continues

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self._folder = ""

    @abstractmethod
    def _send(self, value: Any) -> Any:
        """Give every process the value of rank 0; all call it at the same place."""

    def _connected(self) -> AbstractContextManager[object]:
        """The connection of the processes while they choose."""
        return nullcontext()

    def choose(self, beginning: Beginning, store: RescueStore) -> LoadedRescue | None:
        """
        What this rank resumes from: every rank resumes from the rescue that rank 0 chooses.

        Raises:
            RescueError: see `run_choice.choose`, in every rank; or a rank does not take part.
            RescueMismatch: another number of processes saved the rescue.
        """
        found = None
        with self._connected():
            if self.rank == 0:
                choice: list[Any] = ["", None, None]
                try:
                    found = run_choice.choose(beginning, store)
                    path = None if found is None else found.path
                    choice = [Ranks.make_folder(store.directory), path, None]
                except Exception as error:
                    choice = ["", None, str(error)[:_LONGEST]]
                    raise
                finally:
                    self._send(choice)
                self._folder = choice[0]
            else:
                self._folder, path, problem = self._send(None)
                if problem is not None:
                    raise RescueError(problem)
                found = None if path is None else LoadedRescue(path)
        if found is None:
            return None
        run_choice.check_processes(found, self.count)
        return found if self.rank == 0 else LoadedPart(found, self.rank)

    def ranks(self, *, sharded: bool = False) -> Ranks:
        """
        The files through which the ranks agree on a step; call it after `choose`.

        Args:
            sharded: see `Ranks`.
        """
        return Ranks(self._folder, self.rank, self.count, sharded=sharded)


def to_numbers(value: Any) -> np.ndarray[Any, Any]:
    """A JSON value as numbers whose sum with zeros `from_numbers` reads; None: zeros."""
    data = b"" if value is None else os.fsencode(json.dumps(value, ensure_ascii=False))
    return np.frombuffer(data.ljust(_BYTES, b"\0"), np.uint8).astype(np.int32)


def from_numbers(numbers: Any) -> Any:
    """The value of `to_numbers`."""
    return json.loads(os.fsdecode(np.asarray(numbers).astype(np.uint8).tobytes().rstrip(b"\0")))
