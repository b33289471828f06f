"""Keras on PyTorch: its tensors, and those of PyTorch modules that Keras does not list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from watchdog_app.agent.adapters.keras.backend import Backend
from watchdog_app.agent.adapters.torch_state import environment_record
from watchdog_app.agent.state import torch_tensors
from watchdog_app.agent.state.keras_model import Named, metrics_of, variables_of
from watchdog_app.agent.state.rows import OTHER, NamedVariable, Row, numpy_type
from watchdog_app.agent.state.torch_parts import process_count


@dataclass(frozen=True, slots=True)
class TorchVariable(NamedVariable):
    """One tensor of the training's state; `holder` is Keras's variable, or the tensor itself."""

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor, whose memory stays the same during the training."""
        if isinstance(self.holder, torch.Tensor):
            return self.holder
        found: torch.Tensor = self.holder.value
        return found

    @property
    def row(self) -> Row:
        """See `NamedVariable`."""
        return torch_tensors.row(self.name, self.tensor)

    def array(self) -> np.ndarray[Any, Any]:
        """The values: the tensor's own memory on a CPU, or a copy from a GPU."""
        name, dtype, shape = self.row
        if not self.nbytes:
            return np.zeros(shape, numpy_type(dtype))
        raw = torch_tensors.entry(name, self.tensor).view()
        return np.frombuffer(raw, numpy_type(dtype)).reshape(shape)

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Write the values in place, because modules and optimizers hold the same tensor."""
        if self.nbytes:
            _name, dtype, shape = self.row
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            torch_tensors.copy_into(self.tensor, torch_tensors.from_bytes(dtype, shape, raw))


class OnTorch(Backend):
    """See `Backend`."""

    name = "torch"
    draws_before_hooks = True

    def obstacle(self, model: Any) -> str | None:  # noqa: ARG002
        """See `Backend`; the obstacle is a training in several processes."""
        if process_count() > 1:
            return (
                "This fit runs in several processes, and Keras does not join their gradients on "
                "PyTorch. Write a loop with DistributedDataParallel and Rescue of agent.torch."
            )
        return None

    def own_variables(self, model: Any) -> list[Any]:
        """See `Backend`; buffers of wrapped modules, such as running statistics."""
        known = {id(each.value) for each in (*model.variables, *model.metrics_variables)}
        return [(name, held) for name, held in _tensors(model) if id(held) not in known]

    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:
        """See `Backend`; the variables of Keras, and `extra`."""
        found: list[NamedVariable] = [TorchVariable(*each) for each in variables_of(model)]
        names = {item.name for item in found}
        for path, tensor in extra:
            name = f"{OTHER}/{path}"
            while name in names:
                name += "~"
            names.add(name)
            found.append(TorchVariable(name, OTHER, tensor))
        return found

    def metrics(self, model: Any) -> list[NamedVariable]:
        """The variables of the model's metrics."""
        return [TorchVariable(*each) for each in metrics_of(model)]

    def environment_record(self) -> dict[str, Any]:
        """See `environment.record`; adds PyTorch's threads and flags."""
        return {**super().environment_record(), **environment_record()}

    def train_on(self, model: Any, source: Any) -> None:
        """See `Backend`; the step gets its batch as an argument."""
        model.train_function([next(source)])

    def record(self, model: Any) -> Any:  # noqa: ARG002
        """See `Backend`; the record of the tensors."""
        from watchdog_app.agent.oom.on_torch import KerasRecord

        return KerasRecord()


def _tensors(model: Any) -> Iterator[Named]:
    for name, parameter in model.named_parameters():
        yield name, parameter
    for name, buffer in model.named_buffers():
        yield name, buffer
