"""A watched process."""

from __future__ import annotations

from watchdog_app.core.model.machine import ProcessSample
from watchdog_app.machine.sensors.process_files import ProcessFiles
from watchdog_app.machine.sensors.process_info import Description

YOUNG_S = 5.0
YOUNG_EVERY_S = 0.5


class Watched:
    """A process that is sampled each tick."""

    __slots__ = (
        "description",
        "files",
        "last",
        "membership",
        "review_due_mono_s",
        "seen",
        "since_mono_s",
    )

    def __init__(self, files: ProcessFiles, description: Description, now_mono_s: float) -> None:
        self.files = files
        self.description = description
        self.since_mono_s = now_mono_s
        self.review_due_mono_s = now_mono_s + YOUNG_EVERY_S
        self.seen = files.stat  # when it was last described or reviewed
        self.last: ProcessSample | None = None  # the same object while it does nothing
        self.membership: bytes | None = None  # of which groups; None: not known yet

    def close(self) -> None:
        """Give the descriptors back."""
        self.files.close()
