"""
Rescues for training loops in PyTorch.

    from watchdog_app.agent.torch import Rescue

    rescue = Rescue("rescues/", model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in rescue.epochs(10):
        for batch in rescue.data(loader):
            train_step(batch)
            rescue.step()

Saves when the watchdog daemon asks, at the next `step()`. The next run of the same program
continues after that step, with the same data in the same order. See docs/saving.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from watchdog_app.agent.adapters.loop import LoopRescue
from watchdog_app.agent.adapters.together import Together
from watchdog_app.agent.adapters.torch_data import LoaderPasses
from watchdog_app.agent.adapters.torch_state import SavedTorch, TorchState, environment_record
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.oom import on_torch
from watchdog_app.agent.state.torch_parts import process_count
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

__all__ = ["Rescue"]

# Rank 0 reads every byte of a rescue before it is chosen.
_AGREE_TIMEOUT = timedelta(minutes=5)


class Rescue(LoopRescue[TorchState, SavedTorch, LoaderPasses]):
    """
    Saves a PyTorch training loop when memory runs out, and resumes it bit for bit.

    Takes these objects by name: modules, optimizers, schedulers, gradient scalers, averaged models,
    tensors, random generators, arrays, dicts and lists of plain values, and objects with
    `state_dict` and `load_state_dict`. `data()` takes a DataLoader or any iterable.

    May be used as a context manager: leaving it without an error marks the training as finished,
    like `finish()`. Use it only in the thread that trains.
    """

    framework = "torch"
    _passes_class = LoaderPasses

    def backward(
        self,
        batch: Any,
        loss_of: Callable[..., Any],
        *,
        scaler: Any = None,
        reduction: str = "mean",
        weight: Callable[..., Any] | None = None,
    ) -> Any:
        """
        Run the forward and backward pass of one batch; call `optimizer.step()` next.

        With on_oom="shrink" a batch that does not fit is split into halves, quarters and so on. The
        gradients add up to those of the whole batch. Later batches use the size that fitted. If
        every batch fits, or without "shrink", this is `loss_of(*batch).backward()`.

        Args:
            batch: a tensor, or tuples, lists and dicts of tensors of one length.
            loss_of: computes the loss of a batch. It gets the members of a tuple or list as
                arguments, else the batch.
            scaler: a GradScaler that scales the loss.
            reduction: how the loss combines the samples, "mean" or "sum".
            weight: the divisor of a mean that is not the number of samples, for example the number
                of tokens without padding. Called like `loss_of`.

        Returns:
            The loss of the whole batch, detached.
        """
        return on_torch.backward(
            batch,
            loss_of,
            micro=self.micro if self._shrinks else None,
            parameters=on_torch.parameters(self._state),
            record=self._record_for_parts,
            scaler=scaler,
            reduction=reduction,
            weight=weight,
        )

    def step(self, loss: Any = None, **variables: Any) -> None:
        """
        Count a step, see `LoopRescue.step`.

        After a resume this compares the graphs of the first losses with those of the rescue.

        Raises:
            RescueMismatch: the first three steps compute something else, and the training had one
                graph. Nothing on disk changed.
            RescueError: at the first step: several processes train, and each is saved alone.
        """
        if self._audit_result is None:
            self._require_together()
        found = None
        with self._guard:
            found = self._state.graphs.compare_step(loss)
        if found is not None and self._state.graphs.has_several:
            print_message(f"{found}. The training had several graphs, so it continues.")
        elif found is not None:
            self._refuse([found])
        super().step(loss, **variables)

    def _together(self) -> TorchRanks | None:
        return TorchRanks() if process_count() > 1 else None

    def _require_together(self) -> None:
        alone = self._session is not None and self._session.ranks is None
        if alone and process_count() > 1:
            self._close()
            raise RescueError(
                f"This training runs in {process_count()} processes, and its Rescue was made "
                "before they were connected. Make it after torch.distributed.init_process_group()."
            )

    def _make_record(self) -> on_torch.LoopRecord:
        return on_torch.LoopRecord(self._state)

    def _make_state(self, objects: Mapping[str, Any]) -> TorchState:
        return TorchState(objects, self._position, self._passes)

    def _load_saved(self, rescue: LoadedRescue) -> SavedTorch:
        self._state.graphs.set_saved((rescue.meta.get("identity") or {}).get("graph"))
        return SavedTorch(rescue.path, rescue.meta, rescue.read)

    def _batches(self, dataset: Any) -> Iterator[Any]:
        read = self._saved.read if self._saved is not None else None
        return self._passes.run(dataset, self._restore_at_position, read)

    def _environment_record(self) -> Mapping[str, Any]:
        return environment_record()

    def _after_step(self) -> None:
        self._state._stepped.clear()

    def _after_end(self) -> None:
        self._state.close()


class TorchRanks(Together):
    """
    The agreement of this process with the other ranks of the default process group.

    They use a process group of their own for that, and end it.
    """

    def __init__(self) -> None:
        super().__init__(torch.distributed.get_rank(), process_count())
        self._group: Any = None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            self._group = torch.distributed.new_group(backend="gloo", timeout=_AGREE_TIMEOUT)
        except RuntimeError as error:
            raise RescueError(
                f"The {self.count} processes of this training could not agree on a rescue: one "
                f"has ended, or made no Rescue within {_AGREE_TIMEOUT.total_seconds():.0f} s "
                f"({error}). Each one makes it, at the same place."
            ) from error
        try:
            yield
        finally:
            group, self._group = self._group, None
            torch.distributed.destroy_process_group(group)

    def _send(self, value: Any) -> Any:
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0, group=self._group)
        return values[0]
