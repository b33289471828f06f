"""
Rescues for training loops in PyTorch.

    from watchdog_app.agent.torch import Rescue

    rescue = Rescue("rescues/", model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in rescue.epochs(10):
        for batch in rescue.data(loader):
            train_step(batch)
            rescue.step()

Saves when the watchdog daemon asks, at the next `step()`. The next run of the
same program goes on after that step, with the same data in the same order. See
docs/agent.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from watchdog_app.agent.adapters.loop import LoopRescue
from watchdog_app.agent.adapters.torch_data import LoaderPasses
from watchdog_app.agent.adapters.torch_state import SavedTorch, TorchState, environment_record
from watchdog_app.agent.oom import on_torch
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

__all__ = ["Rescue"]


class Rescue(LoopRescue[TorchState, SavedTorch, LoaderPasses]):
    """
    Saves a PyTorch training loop when memory runs out, and resumes it bit for bit.

    Takes by name modules, optimizers, schedulers, gradient scalers, averaged models, tensors,
    random generators, arrays, dicts and lists of plain values, and objects with `state_dict` and
    `load_state_dict`; `data()` takes a DataLoader or any iterable.

    May be used as a context manager: leaving it without an error ends the training well, like
    `finish()`. For use in the one thread that trains.
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
        The forward and backward pass of one batch: `optimizer.step()` comes next, as ever.

        With on_oom="shrink" a batch that does not fit goes through in halves, quarters and so on,
        with gradients added up to those of the whole, and later batches as what fitted. Without
        it, and where all fits, this is `loss_of(*batch).backward()`.

        Args:
            batch: a tensor, or tuples, lists and dicts of tensors of one length.
            loss_of: its loss; called with the members of a tuple or list, else with the batch.
            scaler: a GradScaler that the loss is to be scaled by.
            reduction: what the loss is over the samples, "mean" or "sum".
            weight: what a mean divides by where that is not the number of samples, called like
                `loss_of`: the tokens that are no padding, for instance.

        Returns:
            The loss of the whole batch, detached.
        """
        return on_torch.backward(
            batch,
            loss_of,
            micro=self.micro,
            shrinks=self._shrinks,
            parameters=on_torch.parameters(self._state),
            buffers=on_torch.buffers(self._state) if self._shrinks else [],
            generators=[part.thing for part in self._state.parts.values()],
            scaler=scaler,
            reduction=reduction,
            weight=weight,
        )

    def step(self, loss: Any = None) -> None:
        """
        As `LoopRescue.step`. After a resume the graphs of the first losses are compared with those
        of the rescue.

        Raises:
            RescueMismatch: the first three steps compute something else. Nothing on disk changed.
        """
        found = None
        with self._guard:
            found = self._state.graphs.compare_step(loss)
        if found is not None:
            self._refuse([found])
        super().step(loss)

    def _make_record(self) -> on_torch.LoopRecord:
        return on_torch.LoopRecord(self._state)

    def _make_state(self, objects: Mapping[str, Any]) -> TorchState:
        return TorchState(objects, self._position, self._passes)

    def _load_saved(self, rescue: LoadedRescue) -> SavedTorch:
        self._state.graphs.set_saved((rescue.meta.get("identity") or {}).get("graph"))
        return SavedTorch(rescue.path, rescue.meta, rescue.read)

    def _batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        read = self._saved.read if self._saved is not None else None
        return self._passes.run(dataset, self._restore_at_position, read)

    def _environment_record(self) -> Mapping[str, Any]:
        return environment_record()

    def _after_step(self) -> None:
        self._state._stepped.clear()

    def _after_end(self) -> None:
        self._state.close()
