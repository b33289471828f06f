"""Use the World of the end-to-end tests: its own daemon and memory groups."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "e2e")]

from desk import desk, paused  # noqa: E402 - needs the path set above

__all__ = ["desk", "paused"]
