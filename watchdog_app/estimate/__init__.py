"""
Estimates whether a training fits: the memory that it will need, before it needs it.

    from watchdog_app.estimate import estimate
    print(estimate(model, batch_size=64))
"""

from __future__ import annotations

from watchdog_app.estimate.estimating import estimate
from watchdog_app.estimate.record import Estimate, Saving

__all__ = ["Estimate", "Saving", "estimate"]
