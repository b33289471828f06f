"""
TensorFlow's GPUs: how much each allocator may hand out, and which card each one is.

Python's part of TensorFlow tells the limit only where the program set it
(`LogicalDeviceConfiguration(memory_limit=...)`). Otherwise it comes from the
devices' attributes, through TensorFlow's C API (tensorflow/c/eager/c_api.h,
`TF_DeviceListMemoryBytes`), whose library is loaded already. With memory growth
the figure is what the allocator may grow to.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_NO_LIMIT = 2**53  # what is larger is no figure


@dataclass(frozen=True, slots=True)
class Device:
    """One logical GPU."""

    name: str  # "GPU:0"
    limit_bytes: int
    uuid: str | None


def devices(tf: Any, context: Any) -> list[Device]:
    """
    The GPUs of a TensorFlow that has made its devices, those alone whose limit is known.

    Args:
        tf: the module.
        context: its eager context, initialised.
    """
    logical = list(tf.config.list_logical_devices("GPU"))
    if not logical:
        return []
    parts = list(_parts(tf))
    measured = attributes(tf, context)
    cuda = _loaded("libcuda.so.1")
    found = []
    for index, device in enumerate(logical):
        name = _local(device.name)
        # With one part for each device they are in the same order; else it is not known which.
        ordinal, limit = parts[index] if len(parts) == len(logical) else (None, None)
        if limit is None:
            limit = measured.get(name)
        if limit is not None and 0 < limit < _NO_LIMIT:
            card = None if cuda is None or ordinal is None else uuid_of(cuda, ordinal)
            found.append(Device(name, limit, card))
    return found


def attributes(tf: Any, context: Any) -> dict[str, int]:
    """
    Memory of TensorFlow's devices as their attributes have it, by name ("GPU:0"), in bytes.

    Empty where this TensorFlow does not tell. (That of "CPU:0" means nothing.)
    """
    folder = os.path.dirname(str(getattr(tf, "__file__", "")))
    for name in _LIBRARIES:
        library = _loaded(os.path.join(folder, name))
        if library is not None and hasattr(library, "TF_DeviceListMemoryBytes"):
            try:
                return dict(_attributes(library, context._context_handle))
            except (AttributeError, ValueError, TypeError):  # no capsule, or one of another kind
                return {}
    return {}


def uuid_of(cuda: Any, ordinal: int) -> str | None:
    """
    The identity of a card as the driver writes it ("GPU-..." or "MIG-...").

    Args:
        cuda: CUDA's driver library, initialised by whoever loaded it.
        ordinal: of the device among those that CUDA_VISIBLE_DEVICES leaves.
    """
    device = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != 0:
        return None
    card = _uuid(cuda, "cuDeviceGetUuid", device)
    part = _uuid(cuda, "cuDeviceGetUuid_v2", device)
    if part is not None and part != card:  # the second knows a part of a card by its own name
        return f"MIG-{part}" if card is not None else f"GPU-{part}"
    return None if card is None else f"GPU-{card}"


def _uuid(cuda: Any, function: str, device: ctypes.c_int) -> str | None:
    raw = ctypes.create_string_buffer(16)
    call = getattr(cuda, function, None)
    if call is None or call(raw, device) != 0:
        return None
    return str(uuid.UUID(bytes=raw.raw))


def _parts(tf: Any) -> Iterator[tuple[int, int | None]]:
    """Of each logical GPU: ordinal among CUDA's devices, and the limit where the program set it."""
    for physical in tf.config.get_visible_devices("GPU"):
        ordinal = int(physical.name.rpartition(":")[2])
        for part in tf.config.get_logical_device_configuration(physical) or [None]:
            megabytes = getattr(part, "memory_limit", None)
            yield ordinal, None if megabytes is None else int(megabytes) << 20


def _attributes(library: Any, handle: Any) -> Iterator[tuple[str, int]]:
    # Raises when it is no such capsule.
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    context = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(handle, None)
    address, whole = ctypes.c_void_p, ctypes.c_int
    new_status = _bound(library, "TF_NewStatus", address)
    code = _bound(library, "TF_GetCode", whole, address)
    delete_status = _bound(library, "TF_DeleteStatus", None, address)
    list_devices = _bound(library, "TFE_ContextListDevices", address, address, address)
    delete_list = _bound(library, "TF_DeleteDeviceList", None, address)
    count = _bound(library, "TF_DeviceListCount", whole, address)
    name_of = _bound(library, "TF_DeviceListName", ctypes.c_char_p, address, whole, address)
    bytes_of = _bound(library, "TF_DeviceListMemoryBytes", ctypes.c_int64, address, whole, address)
    status = new_status()
    listed = None
    try:
        listed = list_devices(context, status)
        if code(status) != 0 or not listed:
            return
        for index in range(count(listed)):
            name = name_of(listed, index, status)
            size = bytes_of(listed, index, status)
            if code(status) == 0 and name:
                yield _local(name.decode("utf-8", "replace")), int(size)
    finally:
        if listed:
            delete_list(listed)
        delete_status(status)


def _bound(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    # A prototype of our own: attributes of the library's functions are shared with others.
    return ctypes.CFUNCTYPE(result, *arguments)((name, library))


def _loaded(path: str) -> Any:
    """A library that this process has loaded; None when it has not."""
    already = getattr(os, "RTLD_NOLOAD", None)
    if already is None:
        return None
    try:
        return ctypes.CDLL(path, mode=already | os.RTLD_NOW)
    except OSError:
        return None


def _local(name: str) -> str:
    """Its short form: "GPU:0" for "/job:localhost/replica:0/task:0/device:GPU:0"."""
    return ":".join(name.rsplit(":", 2)[-2:])
