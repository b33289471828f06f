"""What a fit and a loop tell people of a resume, and of what a resume will not bring back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from watchdog_app.agent.contain import print_message
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

START_OVER = "To start over: Rescue(..., resume=False)."


class Report:
    """The lines of one training, each text of what is lost once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def resumed(
        self,
        rescue: LoadedRescue,
        place: str,
        said: Iterable[str],
        changed: Iterable[str],
        start_over: str = START_OVER,
    ) -> None:
        """
        The training resumes from a rescue.

        Args:
            rescue: that one.
            place: where it stood, as a person is told.
            said: of settings and of what the program was edited in, a line each.
            changed: circumstances in which the last digits may differ.
            start_over: how to do that instead.
        """
        age = format_duration(max(0.0, time.time() - rescue.created_unix_s))
        print_message(
            f"resuming from {rescue.path}: step {rescue.step}, {place}, saved {age} ago. "
            f"{start_over}"
        )
        for line in said:
            print_message(line)
        lost = list(rescue.meta.get("not_restored") or ())
        self._reported.update(lost)
        for what, each in (
            ("what does not come back", lost),
            ("not as it was when the rescue was saved", changed),
        ):
            text = "; ".join(each)
            if text:
                print_message(f"{what}: {text}.")

    def not_restored(self, lost: Iterable[str]) -> None:
        """What a resume of this training will not bring back, each once."""
        new = [text for text in lost if text not in self._reported]
        self._reported.update(new)
        if new:
            print_message(f"a resume of this training will not bring back: {'; '.join(new)}.")


def refused_by_strict(lost: Sequence[str]) -> RescueError:
    """The error of `strict=True`, where a resume would not bring everything back."""
    return RescueError(
        f"A resume of this training would not bring back: {'; '.join(lost)}. Nothing was saved, "
        "as strict=True asks for."
    )
