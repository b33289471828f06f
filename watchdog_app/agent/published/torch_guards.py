"""
PyTorch: weights and slots are changed by optimizers, and each tells before it begins.

Gradients that are being added up are changed by the backward pass, which tells as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from watchdog_app.agent.loops.torch_parts import Part, parameters
from watchdog_app.agent.loops.torch_tensors import Tensors
from watchdog_app.agent.published.contents import Contents
from watchdog_app.agent.published.guards import Guards, Refresh
from watchdog_app.agent.published.torch_refresh import TorchRefresh, Unknown


class OptimizerGuards(Guards):
    """Of whatever optimizers there are."""

    def __init__(
        self, optimizers: Callable[[], Iterable[Any]], waiting: Callable[[], set[int]]
    ) -> None:
        """
        Args:
            optimizers: those that train, now.
            waiting: ids of the parameters whose gradients wait for their optimizer's step.
        """
        self.waiting = waiting
        self._optimizers = optimizers
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._addresses: set[int] = set()
        self._adding_up = False
        self._step_begins: Callable[[], None] = lambda: None
        self._hooks: list[Any] = []

    def look(self, step: int) -> None:  # noqa: ARG002
        """See `Guards`."""
        self._hook()
        addresses = self._addresses = set()
        waiting = self.waiting()
        gradients: list[torch.Tensor] = []
        for optimizer in self._optimizers():
            for each in parameters(optimizer):
                addresses.add(each.data_ptr())
                if each.grad is not None and id(each) in waiting:
                    gradients.append(each.grad)
            for slots in optimizer.state.values():
                for slot in slots.values():
                    if isinstance(slot, torch.Tensor):
                        addresses.add(slot.data_ptr())
        if gradients and self._watch_backward():
            addresses.update(each.data_ptr() for each in gradients)
        addresses.discard(0)

    def guarded(self, name: str, address: int) -> bool:  # noqa: ARG002
        """See `Guards`."""
        return address in self._addresses

    def begin(self, step_begins: Callable[[], None]) -> None:
        """See `Guards`."""
        self._step_begins = step_begins
        self._hook()

    def end(self) -> None:
        """See `Guards`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._hooked.clear()

    def trained(self) -> list[Any]:
        """The parameters of the optimizers."""
        return [each for one in self._optimizers() for each in parameters(one)]

    def _hook(self) -> None:
        """A program may make others as it goes."""
        step_begins = self._step_begins

        def before(*_: Any) -> None:
            step_begins()

        for each in self._optimizers():
            if each not in self._hooked:
                self._hooked.add(each)
                self._hooks.append(each.register_step_pre_hook(before))

    def _watch_backward(self) -> bool:
        """Whether the next backward pass tells before it adds to a gradient."""
        if not self._adding_up:
            trained = [each for each in self.trained() if each.requires_grad]

            def first(_: Any) -> None:
                self._step_begins()

            try:
                hook = torch.autograd.graph.register_multi_grad_hook(trained, first, mode="any")
            except TypeError:  # PyTorch before 2.1
                return False
            self._hooks.append(hook)
            self._adding_up = True
        return True


class TorchGuards(OptimizerGuards):
    """Of objects that are known, whose later states are told cheaply."""

    def __init__(  # noqa: PLR0917 - what a loop is
        self,
        parts: Callable[[], Mapping[str, Part] | None],
        optimizers: Callable[[], Iterable[Any]],
        waiting: Callable[[], set[int]],
        position: Callable[[Tensors], Mapping[str, Any]],
        lost: Callable[[], list[str]],
        same: Callable[[], bool] = lambda: True,
        *,
        attributes: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """
        Args:
            parts: that are trained, optimizers among them, as they were taken last; None: unknown.
            optimizers: as `OptimizerGuards`.
            waiting: likewise.
            position: where the loop stands.
            lost: what a resume would not bring back, in words.
            same: whether it consists of the same parts as when they were taken last.
            attributes: plain ones of its modules that training has changed; None: as they were.
        """
        super().__init__(optimizers, waiting)
        self.position, self.lost, self.same = position, lost, same
        self.attributes = attributes
        self._parts = parts

    @property
    def parts(self) -> Mapping[str, Part]:
        """See `torch_refresh.Loop`."""
        parts = self._parts()
        if parts is None:
            raise Unknown
        return parts

    def refresh(self, meta: Mapping[str, Any], contents: Contents) -> Refresh | None:
        """See `Guards`."""
        try:
            return TorchRefresh(self, meta, contents).take
        except (Unknown, OSError):
            return None
