"""The error for a rescue that is of another program: what differs, and the way out."""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_app.base.errors import RescueMismatch

_SHOWN_DIFFERENCES = 6


def mismatch(rescue: str, found: Sequence[str]) -> RescueMismatch:
    """
    The error to raise.

    Args:
        rescue: its folder.
        found: what differs, a plain phrase each; the first few are shown.
    """
    listed = "; ".join(found[:_SHOWN_DIFFERENCES])
    if len(found) > _SHOWN_DIFFERENCES:
        listed += f"; and {len(found) - _SHOWN_DIFFERENCES} more"
    return RescueMismatch(
        f"The rescue {rescue} belongs to a different program: {listed}. "
        "Nothing was loaded or overwritten. Run the program that wrote it, or start afresh with "
        "Rescue(..., resume=False), another folder, or by removing this one."
    )
