"""What holds of every estimate with a limit."""

from __future__ import annotations

from watchdog_app.estimate.record import SPARE_SHARE, Estimate


def assert_largest_batch(found: Estimate, limit_bytes: int) -> None:
    """The largest batch fits with a share to spare, and one more example does not."""

    def peak(batch: int) -> int:
        return max(found.floor_bytes, found.fixed_bytes + found.per_sample_bytes * batch)

    def with_spare(batch: int) -> int:
        return peak(batch) + int(SPARE_SHARE * max(0, peak(batch) - found.framework_bytes))

    largest = found.largest_batch or 0
    assert with_spare(largest) <= limit_bytes < with_spare(largest + 1)
    assert 1.05 * peak(largest) < limit_bytes
