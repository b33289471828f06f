"""What the `Rescue` of a loop says to whoever runs it: where it goes on, and what is lost."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_app.agent.contain import say
from watchdog_app.agent.saving.loaded import LoadedRescue


class LoopWords:
    """Each once a training. Epochs are counted from 0 here, and from 1 in what is said."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def resumed(
        self,
        rescue: LoadedRescue,
        epoch: int | None,
        lost: Iterable[str],
        said: Iterable[str],
        changed: Iterable[str],
    ) -> None:
        """
        The training goes on from a rescue.

        Args:
            rescue: that one.
            epoch: in which it was saved; None where nobody knows it.
            lost: what it does not hold.
            said: of settings and of what the program was edited in, a line each.
            changed: circumstances in which the last digits may differ.
        """
        place = "epoch not known: the epochs begin at 1" if epoch is None else f"epoch {epoch + 1}"
        say(
            f"going on from {rescue.path}: step {rescue.step}, {place}. "
            "To begin anew: Rescue(..., resume=False)."
        )
        for line in said:
            say(line)
        for what, each in (
            ("what does not come back", lost),
            ("not as it was when the rescue was saved", changed),
        ):
            text = "; ".join(each)
            if text:
                say(f"{what}: {text}.")

    def nothing_left(self, epoch: int, count: int) -> None:
        """All of the epochs that the program asks for are over in the rescue."""
        reached = f"the rescue is of epoch {epoch + 1}, which epochs({count}) does not reach"
        say(f"nothing was trained: {reached}.")

    def not_placed(self, step: int, epoch: int) -> None:
        """A loop that finds its batches by itself begins at the first one again: it must know."""
        say(
            "this loop uses neither rescue.epochs() nor rescue.data(), so the batches that the "
            f"rescue has had are not skipped: {step} steps are done, in epoch {epoch + 1}. Begin "
            "after them (rescue.step_number, rescue.epoch), or take the batches from "
            "rescue.data(dataset)."
        )

    def saved(self, lost: Iterable[str]) -> None:
        """A rescue was saved: what a resume from it would not bring back, each once."""
        new = [text for text in lost if text not in self._told]
        self._told.update(new)
        if new:
            say(f"a resume of this training will not bring back: {'; '.join(new)}.")
