"""Messages of fits and loops: about a resume, and what a resume will not restore."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from watchdog_app.agent.contain import print_message
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.plain import few_names
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

START_OVER = "To start over: Rescue(..., resume=False)."


class Report:
    """Prints the messages of one training, each text about lost values only once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def resumed(
        self,
        rescue: LoadedRescue,
        place: str,
        messages: Iterable[str],
        changed: Iterable[str],
        start_over: str = START_OVER,
    ) -> None:
        """
        Print that the training resumes from a rescue.

        Args:
            rescue: the rescue.
            place: its position, as a text; empty: unknown.
            messages: changed settings and edits of the program, a line each.
            changed: changes of the environment that may change the last digits, as texts.
            start_over: advice how to start over instead.
        """
        age = format_duration(max(0.0, time.time() - rescue.created_unix_s))
        print_message(
            f"resuming from {rescue.path}: step {rescue.step}, {place}{', ' * bool(place)}"
            f"saved {age} ago. {start_over}"
        )
        for line in messages:
            print_message(line)
        lost = list(rescue.meta.get("not_restored") or ())
        self._reported.update(lost)
        for what, each in (
            ("what the rescue does not hold", lost),
            ("not as it was when the rescue was saved", changed),
        ):
            text = "; ".join(map(few_names, each))
            if text:
                print_message(f"{what}: {text}.")

    def not_restored(self, lost: Iterable[str]) -> None:
        """Print what a resume of this training will not restore, each text once."""
        new = [text for text in lost if text not in self._reported]
        self._reported.update(new)
        if new:
            shown = "; ".join(map(few_names, new))
            print_message(f"a resume of this training will not bring back: {shown}.")


def refused_by_strict(lost: Sequence[str]) -> RescueError:
    """The error of `strict=True` if a resume would not restore everything."""
    return RescueError(
        f"A resume of this training would not bring back: {'; '.join(lost)}. Nothing was saved, "
        "as strict=True asks for."
    )
