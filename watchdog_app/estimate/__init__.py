"""
Estimates whether a training fits: the memory that it will need, before it needs it.

    from watchdog_app.estimate import estimate
    print(estimate(model, batch_size=64))
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.estimate.estimating import estimate
    from watchdog_app.estimate.record import Estimate, Saving

__all__ = ["Estimate", "Saving", "estimate"]


def __getattr__(name: str) -> object:
    # Import on demand: the command line reads a record without importing the estimate itself.
    if name == "estimate":
        from watchdog_app.estimate.estimating import estimate

        return estimate
    if name in ("Estimate", "Saving"):
        from watchdog_app.estimate import record

        return getattr(record, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
