"""
What the framework's own allocator says of each GPU: figures that no driver knows.

TensorFlow takes nearly all of a card at its start and never gives it back, and
PyTorch keeps what it freed, so that the driver's figure says nothing about when
the next tensor will not fit. Only figures that exist already are read: nothing
is imported, no device is initialised, and where there is no GPU nothing happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from watchdog_app.agent.reporting import tensorflow_limits

Figures = dict[str, Any]

MOST_DEVICES = 64  # the daemon takes no more
_EVERY_S = 1.0


class Allocators:
    """The allocators of this process. For use in the thread that trains."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_s = 0.0
        self._last: list[Figures] = []
        self._tensorflow = _TensorFlow()
        self._torch = _Torch()

    def read(self) -> list[Figures]:
        """
        The figures of every GPU that this process computes on; a look at most once a second.

        Returns:
            One dict a device, as in `agent.report`: `device`, `used_bytes`, `limit_bytes`, and
            where they are known `gpu_uuid`, `peak_bytes`, `retries`, `ooms`. Empty without a GPU,
            and where an allocator keeps no figures.
        """
        now = self._clock()
        if now < self._next_s:
            return self._last
        self._next_s = now + _EVERY_S
        found = [*self._tensorflow.read(), *self._torch.read()]
        self._last = found[:MOST_DEVICES]
        return self._last


class _TensorFlow:
    """Devices are what TensorFlow calls logical ones: a card can hold several."""

    def __init__(self) -> None:
        self._devices: list[tensorflow_limits.Device] | None = None  # None: not looked yet

    def read(self) -> list[Figures]:
        if self._devices is None:
            context = _tensorflow_context()
            if context is None:
                return []
            try:
                self._devices = tensorflow_limits.devices(sys.modules["tensorflow"], context)
            except Exception:  # this TensorFlow keeps its devices elsewhere
                self._devices = []
        found = []
        for device in list(self._devices):
            try:
                info = sys.modules["tensorflow"].config.experimental.get_memory_info(device.name)
                used, peak = int(info["current"]), int(info["peak"])
            except Exception:  # cuda_malloc_async keeps no figures; it will not begin to
                self._devices.remove(device)
                continue
            found.append(
                {
                    "device": device.name,
                    "used_bytes": used,
                    "limit_bytes": device.limit_bytes,
                    "gpu_uuid": device.uuid,
                    "peak_bytes": peak,
                }
            )
        return found


class _Torch:
    def __init__(self) -> None:
        self._uuids: dict[int, str | None] = {}

    def read(self) -> list[Figures]:
        torch = sys.modules.get("torch")
        try:
            cuda = getattr(torch, "cuda", None)
            # Whatever is asked for before would initialise CUDA: hundreds of MB on the card.
            if cuda is None or not cuda.is_initialized():
                return []
            return list(self._devices(cuda))
        except Exception:  # half imported, or other names in this version: no figures
            return []

    def _devices(self, cuda: Any) -> Iterator[Figures]:
        for index in range(min(int(cuda.device_count()), MOST_DEVICES)):
            stats = cuda.memory_stats(index)
            reserved = int(stats.get("reserved_bytes.all.current", 0))
            # On a device without memory of ours the next question would make a context.
            if reserved <= 0:
                continue
            free, total = (int(value) for value in cuda.mem_get_info(index))
            limit = free + reserved
            fraction = getattr(cuda, "get_per_process_memory_fraction", None)
            if fraction is not None:
                limit = min(limit, int(float(fraction(index)) * total))
            # A split block's free part serves no larger request, and no other one gets it.
            split = int(stats.get("inactive_split_bytes.all.current", 0))
            yield {
                "device": f"cuda:{index}",
                "used_bytes": int(stats["allocated_bytes.all.current"]) + split,
                "limit_bytes": limit,
                "gpu_uuid": self._uuid(cuda, index),
                "peak_bytes": _whole(stats.get("allocated_bytes.all.peak")),
                "retries": _whole(stats.get("num_alloc_retries")),
                "ooms": _whole(stats.get("num_ooms")),
            }

    def _uuid(self, cuda: Any, index: int) -> str | None:
        if index not in self._uuids:
            uuid = getattr(cuda.get_device_properties(index), "uuid", None)
            self._uuids[index] = None if uuid is None else _prefixed(str(uuid))
        return self._uuids[index]


def _tensorflow_context() -> Any:
    """TensorFlow's eager context where TensorFlow has made its devices already."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if "tensorflow" not in sys.modules or module is None:
        return None
    context = getattr(module, "context_safe", lambda: None)()
    return None if getattr(context, "_context_handle", None) is None else context


def _prefixed(uuid: str) -> str:
    """As the driver writes it."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
