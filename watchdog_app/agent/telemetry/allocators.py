"""
Memory figures of the framework's own GPU allocators, which no driver knows.

TensorFlow takes nearly all of a card at its start and never gives it back, JAX three quarters.
PyTorch keeps freed memory. So the driver's figure does not show when the next tensor will not fit.
This module only reads existing figures: it imports nothing and initialises no device. Without a GPU
it does nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

Figures = dict[str, Any]

MOST_DEVICES = 64  # the daemon refuses more
_EVERY_S = 1.0


class Allocators:
    """The allocators of this process. Use it only in the thread that trains."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_s = 0.0
        self._last: list[Figures] = []
        self._tensorflow = _TensorFlow()

    def read(self) -> list[Figures]:
        """
        The figures of every GPU that this process computes on, updated at most once a second.

        Returns:
            One dict per device, see `agent.report`: `device`, `used_bytes`, `limit_bytes`, and if
            known `gpu_uuid`, `peak_bytes`, `retries`, `ooms`. Empty without a GPU, or if an
            allocator keeps no figures.
        """
        now = self._clock()
        if now < self._next_s:
            return self._last
        self._next_s = now + _EVERY_S
        found = [*self._tensorflow.read(), *_read_torch(), *_read_jax()]
        self._last = found[:MOST_DEVICES]
        return self._last


class _TensorFlow:
    """Logical devices of TensorFlow: a card can have several."""

    def __init__(self) -> None:
        self._devices: list[Figures] | None = None  # None: not read yet

    def read(self) -> list[Figures]:
        if self._devices is None:
            context = _tensorflow_context()
            if context is None:
                return []
            try:
                self._devices = devices(sys.modules["tensorflow"], context)
            except Exception:  # another version of TensorFlow keeps its devices elsewhere
                self._devices = []
        found = []
        for device in list(self._devices):
            try:
                experimental = sys.modules["tensorflow"].config.experimental
                info = experimental.get_memory_info(device["device"])
                used, peak = int(info["current"]), int(info["peak"])
            except Exception:  # cuda_malloc_async never keeps figures
                self._devices.remove(device)
                continue
            found.append({**device, "used_bytes": used, "peak_bytes": peak})
        return found


def _read_torch() -> list[Figures]:
    torch = sys.modules.get("torch")
    try:
        cuda = getattr(torch, "cuda", None)
        # Any other call before that would initialise CUDA: hundreds of MB on the card.
        if cuda is None or not cuda.is_initialized():
            return []
        return list(_torch_devices(cuda))
    except Exception:  # half imported, or other names in this version: no figures
        return []


def _torch_devices(cuda: Any) -> Iterator[Figures]:
    for index in range(min(int(cuda.device_count()), MOST_DEVICES)):
        stats = cuda.memory_stats(index)
        reserved = int(stats.get("reserved_bytes.all.current", 0))
        # The next call would create a context on a device that this process does not use.
        if reserved <= 0:
            continue
        free, total = (int(value) for value in cuda.mem_get_info(index))
        limit = free + reserved
        fraction = getattr(cuda, "get_per_process_memory_fraction", None)
        if fraction is not None:
            limit = min(limit, int(float(fraction(index)) * total))
        # The free part of a split block serves no larger request, and no other process gets it.
        split = int(stats.get("inactive_split_bytes.all.current", 0))
        uuid = getattr(cuda.get_device_properties(index), "uuid", None)
        yield {
            "device": f"cuda:{index}",
            "used_bytes": int(stats["allocated_bytes.all.current"]) + split,
            "limit_bytes": limit,
            "gpu_uuid": None if uuid is None else _with_gpu_prefix(str(uuid)),
            "peak_bytes": _optional_int(stats.get("allocated_bytes.all.peak")),
            "retries": _optional_int(stats.get("num_alloc_retries")),
            "ooms": _optional_int(stats.get("num_ooms")),
        }


def _read_jax() -> list[Figures]:
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    try:
        # Any other call before that would make JAX take its share of every card.
        if jax is None or bridge is None or not bridge.backends_are_initialized():
            return []
        return list(_jax_devices(jax))
    except Exception:  # half imported, or other names in this version: no figures
        return []


def _jax_devices(jax: Any) -> Iterator[Figures]:
    cuda = _loaded_library("libcuda.so.1")
    for device in jax.local_devices()[:MOST_DEVICES]:
        stats = device.memory_stats() if device.platform == "gpu" else None
        if not stats or not stats.get("bytes_limit"):  # another allocator keeps no figures
            continue
        ordinal = int(device.local_hardware_id)
        yield {
            "device": f"gpu:{ordinal}",
            "used_bytes": int(stats["bytes_in_use"]),
            "limit_bytes": int(stats["bytes_limit"]),
            "gpu_uuid": None if cuda is None else uuid_of(cuda, ordinal),
            "peak_bytes": _optional_int(stats.get("peak_bytes_in_use")),
        }


def _tensorflow_context() -> Any:
    """TensorFlow's eager context, if TensorFlow has made its devices already."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if "tensorflow" not in sys.modules or module is None:
        return None
    context = getattr(module, "context_safe", lambda: None)()
    return None if getattr(context, "_context_handle", None) is None else context


def _with_gpu_prefix(uuid: str) -> str:
    """The UUID in the form that the driver writes."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


_NO_LIMIT = 2**53  # larger values do not mean a limit


def devices(tf: Any, context: Any) -> list[Figures]:
    """
    The constant figures of the GPUs of an initialised TensorFlow, of those with a known limit.

    Args:
        tf: the module.
        context: its eager context, initialised.
    """
    logical = list(tf.config.list_logical_devices("GPU"))
    if not logical:
        return []
    parts = list(_logical_devices(tf))
    measured = memory_limits(context)
    cuda = _loaded_library("libcuda.so.1")
    found = []
    for index, device in enumerate(logical):
        name = _short_name(device.name)
        # With one part per device both lists have the same order; otherwise the pairs are unknown.
        ordinal, limit = parts[index] if len(parts) == len(logical) else (None, None)
        if limit is None:
            limit = measured.get(name)
        if limit is not None and 0 < limit < _NO_LIMIT:
            card = None if cuda is None or ordinal is None else uuid_of(cuda, ordinal)
            found.append({"device": name, "limit_bytes": limit, "gpu_uuid": card})
    return found


def memory_limits(context: Any) -> dict[str, int]:
    """
    Memory of TensorFlow's devices from their attributes, by name ("GPU:0"), in bytes.

    Empty if this TensorFlow does not report it. (The value of "CPU:0" means nothing.)

    Args:
        context: its eager context, initialised.
    """
    if type(context._context_handle).__name__ != "PyCapsule":  # TensorFlow would crash
        return {}
    try:
        calls: Any = sys.modules["tensorflow.python.client.session"].tf_session
        eager: Any = sys.modules["tensorflow.python.eager.context"].pywrap_tfe
        listed = eager.TFE_ContextListDevices(context._context_handle)
        try:
            return {
                _short_name(calls.TF_DeviceListName(listed, index)): int(
                    calls.TF_DeviceListMemoryBytes(listed, index)
                )
                for index in range(calls.TF_DeviceListCount(listed))
            }
        finally:
            calls.TF_DeleteDeviceList(listed)
    except Exception:  # another version of TensorFlow
        return {}


def uuid_of(cuda: Any, ordinal: int) -> str | None:
    """
    The UUID of a card in the form that the driver writes ("GPU-..." or "MIG-...").

    Args:
        cuda: CUDA's driver library, already initialised.
        ordinal: index of the device among those that CUDA_VISIBLE_DEVICES leaves.
    """
    device = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != 0:
        return None
    card = _uuid(cuda, "cuDeviceGetUuid", device)
    part = _uuid(cuda, "cuDeviceGetUuid_v2", device)
    if part is not None and part != card:  # only the second call returns the UUID of a MIG instance
        return f"MIG-{part}" if card is not None else f"GPU-{part}"
    return None if card is None else f"GPU-{card}"


def _uuid(cuda: Any, function: str, device: ctypes.c_int) -> str | None:
    raw = ctypes.create_string_buffer(16)
    call = getattr(cuda, function, None)
    if call is None or call(raw, device) != 0:
        return None
    return str(uuid.UUID(bytes=raw.raw))


def _logical_devices(tf: Any) -> Iterator[tuple[int, int | None]]:
    """Per logical GPU: CUDA ordinal, and the limit in bytes if the program set one."""
    for physical in tf.config.get_visible_devices("GPU"):
        ordinal = int(physical.name.rpartition(":")[2])
        for part in tf.config.get_logical_device_configuration(physical) or [None]:
            megabytes = getattr(part, "memory_limit", None)
            yield ordinal, None if megabytes is None else int(megabytes) << 20


def _loaded_library(path: str) -> Any:
    """A library that this process has loaded; None if it has not."""
    already = getattr(os, "RTLD_NOLOAD", None)
    if already is None:
        return None
    try:
        return ctypes.CDLL(path, mode=already | os.RTLD_NOW)
    except OSError:
        return None


def _short_name(name: str) -> str:
    """
    The short form of a device name: "GPU:0" for "/job:localhost/replica:0/task:0/device:GPU:0".
    """
    return ":".join(name.rsplit(":", 2)[-2:])
