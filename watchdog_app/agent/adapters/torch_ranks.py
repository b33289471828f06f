"""
The processes of one PyTorch training (`torchrun`) agree on a rescue when `Rescue` is constructed.

They use a process group of their own for that, and end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from watchdog_app.agent.adapters.together import Send, Together
from watchdog_app.agent.state import torch_parts
from watchdog_app.base.errors import RescueError

# Rank 0 reads every byte of a rescue before it is chosen.
_TIMEOUT = timedelta(minutes=5)


class TorchRanks(Together):
    """The agreement of this process with the other ranks of the default process group."""

    def __init__(self) -> None:
        super().__init__(torch.distributed.get_rank(), torch_parts.process_count())

    @contextmanager
    def _connected(self) -> Iterator[Send]:
        try:
            group = torch.distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        except RuntimeError as error:
            raise RescueError(
                f"The {self.count} processes of this training could not agree on a rescue: one "
                f"has ended, or made no Rescue within {_TIMEOUT.total_seconds():.0f} s ({error}). "
                "Each one makes it, at the same place."
            ) from error

        def send(value: Any) -> Any:
            values = [value]
            torch.distributed.broadcast_object_list(values, src=0, group=group)
            return values[0]

        try:
            yield send
        finally:
            torch.distributed.destroy_process_group(group)
