"""
Random numbers where PyTorch trains: the global ones and each device's.

A resumed process starts all of them anew unless they are put back. Generators that
the data holds for itself: see `own_random`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from watchdog_app.agent.state import randomness

State = dict[str, Any]


def take() -> State:
    """Python's, NumPy's and PyTorch's global generators as they are now, as JSON."""
    devices: dict[str, list[str]] = {}
    for kind, module in _accelerators():
        devices[kind] = [
            text(module.get_rng_state(index)) for index in range(module.device_count())
        ]
    if _has_mps():
        devices["mps"] = [text(torch.mps.get_rng_state())]
    return {
        **randomness.take(),
        "torch": text(torch.get_rng_state()),
        "devices": devices,
    }


def put(state: State) -> None:
    """Set the global generators to what `take` returned; devices that are not here are left out."""
    randomness.put(state)
    torch.set_rng_state(from_text(state["torch"]))
    for kind, states in state["devices"].items():
        if kind == "mps":
            if _has_mps():
                torch.mps.set_rng_state(from_text(states[0]))
            continue
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        for index, encoded in enumerate(states[: module.device_count()]):
            module.set_rng_state(from_text(encoded), index)


def _accelerators() -> Iterator[tuple[str, Any]]:
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        # Before a program uses a device, asking for its random numbers would initialise it.
        if module is not None and module.is_initialized():
            yield kind, module


def _has_mps() -> bool:
    mps = getattr(torch.backends, "mps", None)
    return mps is not None and bool(mps.is_available())


def text(state: torch.Tensor) -> str:
    """A generator's state, as JSON can hold it."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def from_text(encoded: str) -> torch.Tensor:
    """A generator's state, of the text that `take` made of it."""
    return torch.tensor(np.frombuffer(base64.b64decode(encoded), np.uint8))
