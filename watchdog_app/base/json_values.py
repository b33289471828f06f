"""Values out of JSON that another version, or anybody, may have written."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def number_or_none(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def objects(holder: Any, key: str) -> list[dict[str, Any]]:
    """
    The objects in a list of an object.

    Args:
        holder: the object; anything else holds none.
        key: of the list; items that are no objects are left out.
    """
    found = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
