"""The world of the end-to-end tests serves here as well: a daemon of its own, memory groups."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "e2e")]

from desk import desk, paused  # noqa: E402 - found by the line above

__all__ = ["desk", "paused"]
