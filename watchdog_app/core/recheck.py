"""The second measurement, made right before acting: is the decision still true?"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_app.core.outlook import CeilingReading, Decision, DecisionKind
from watchdog_app.core.telling import Topic

_RELIEVED = 1.25  # headroom since the decision, as a multiple: the danger is over
_NOISE_BYTES = 4 * 1024**2
_NOISE_RATIO = 0.002  # of the limit
_NOISE_OTHER = 0.01  # the same of what is not bytes


def still_true(decision: Decision, readings: Sequence[CeilingReading]) -> bool:
    """
    Whether a decision holds in the light of new readings.

    A save, a pause or a warning is off when its ceiling is gone or has clearly more headroom than
    it had; a resume when it has less. Word of what has already happened is always true.
    """
    topic = decision.evidence.get("topic")
    if decision.kind is DecisionKind.NOTIFY and topic != Topic.WARNING.value:
        return True
    reading = next((each for each in readings if each.key == decision.ceiling), None)
    used, limit = decision.evidence.get("used"), decision.evidence.get("limit")
    if reading is None or not isinstance(used, int | float) or not isinstance(limit, int | float):
        return False
    # A limit can be lowered below what is used: no headroom is the least there is.
    then, now = max(0.0, limit - used), max(0.0, reading.limit - reading.used)
    slack = max(_NOISE_BYTES, _NOISE_RATIO * limit)
    if reading.unit != "bytes":
        slack = _NOISE_OTHER * limit
    if decision.kind is DecisionKind.RESUME:
        return now >= then / _RELIEVED - slack
    return now <= then * _RELIEVED + slack
