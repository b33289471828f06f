"""The agent does not start tracing memory if ending it could crash the program."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from watchdog_app.agent.telemetry.diagnose import crash_risk

OLD = (3, 11, 7)
FRAMEWORKS = ("tensorflow.python.ops.script_ops", "torch", "jax", "jax._src.xla_bridge")


def registry(count):
    return SimpleNamespace(_py_funcs=SimpleNamespace(size=lambda: count))


def cards(initialized):
    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialized))


def devices(initialized):
    return SimpleNamespace(backends_are_initialized=lambda: initialized)


@pytest.mark.parametrize(
    ("loaded", "version", "expected"),
    [
        ({}, OLD, None),
        ({FRAMEWORKS[0]: registry(0)}, OLD, None),
        ({FRAMEWORKS[0]: registry(2)}, OLD, "TensorFlow"),
        ({FRAMEWORKS[0]: SimpleNamespace()}, OLD, "TensorFlow"),  # the state is unknown
        ({FRAMEWORKS[1]: cards(False)}, OLD, None),
        ({FRAMEWORKS[1]: cards(True)}, OLD, "PyTorch"),
        ({FRAMEWORKS[2]: SimpleNamespace()}, OLD, "JAX"),  # the state is unknown
        ({FRAMEWORKS[2]: SimpleNamespace(), FRAMEWORKS[3]: devices(True)}, OLD, "JAX"),
        ({FRAMEWORKS[2]: SimpleNamespace(), FRAMEWORKS[3]: devices(False)}, OLD, None),
        ({FRAMEWORKS[0]: registry(2)}, (3, 12, 8), "TensorFlow"),
        ({FRAMEWORKS[0]: registry(2)}, (3, 12, 9), None),
        ({FRAMEWORKS[0]: registry(2)}, (3, 13, 1), "TensorFlow"),
        ({FRAMEWORKS[0]: registry(2)}, (3, 13, 2), None),
        ({FRAMEWORKS[0]: registry(2)}, (3, 14, 0), None),
    ],
)
def test_native_threads_that_come_into_python_are_a_risk(monkeypatch, loaded, version, expected):
    """The result names the framework, and only for Python versions with that bug."""
    for name in FRAMEWORKS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, name, module)

    found = crash_risk(version)

    assert expected == (None if found is None else found.partition(" ")[0])
