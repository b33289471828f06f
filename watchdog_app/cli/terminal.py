"""What the terminal offers: its size, found without importing shutil."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO


def columns_of(stream: TextIO | None = None, env: Mapping[str, str] = os.environ) -> int | None:
    """Columns to write in: COLUMNS, else those of the terminal, else None (a pipe or a file)."""
    told = env.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return max(20, int(told))
    size = _size(sys.stdout if stream is None else stream)
    return max(20, size[0]) if size and size[0] else None


def rows_of(stream: TextIO | None = None) -> int:
    """Lines of the terminal; 24 where it does not say."""
    size = _size(sys.stdout if stream is None else stream)
    return size[1] if size and size[1] else 24


def _size(stream: TextIO | None) -> tuple[int, int] | None:
    try:
        if stream is None or not stream.isatty():
            return None
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return None
    return size.columns, size.lines
