"""
Record and compare the settings that decide whether a resumed training repeats its numbers.

A rescue contains this record. A difference does not stop a resume: another thread count or library
version changes the last bits of the results, not their meaning. The agent reports the differences
and the training continues.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

# Variables that select other kernels or another order of additions.
_VARIABLES = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_DETERMINISTIC_OPS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
)

_MEANING = {
    "python": "Python",
    "numpy": "NumPy",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "machine": "processor type",
    "cpus": "number of CPU cores",
    "intra_op_threads": "TensorFlow's intra-op threads",
    "inter_op_threads": "TensorFlow's inter-op threads",
    "deterministic": "deterministic operations",
    "dtype_policy": "Keras dtype policy",
    "devices": "devices",
    "global_seed": "TensorFlow's global seed",
}


def record() -> dict[str, Any]:
    """
    The numerical environment of this process: versions, threads, flags, devices, seed.

    Plain JSON values; absent keys are unknown. This imports no library that is not loaded.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    for name in ("numpy", "tensorflow", "keras"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = getattr(module, "__version__", None)
    for name in _VARIABLES:
        found[name] = os.environ.get(name)
    if "tensorflow" in sys.modules:
        found.update(_tensorflow())
    if "keras" in sys.modules:
        found["dtype_policy"] = sys.modules["keras"].config.dtype_policy().name
    return found


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    One phrase for each change since the rescue; empty if nothing changed.

    Keys that one side does not have are ignored.
    """
    changed = []
    for key, before in saved.items():
        if key in now and now[key] != before:
            name = _MEANING.get(key, key)
            changed.append(f"{name} was {_format_value(before)}, is {_format_value(now[key])}")
    return changed


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.framework.config import is_op_determinism_enabled

    return {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "deterministic": bool(is_op_determinism_enabled()),
        "devices": [device.device_type for device in tf.config.list_physical_devices()],
        "global_seed": context.global_seed(),
    }
