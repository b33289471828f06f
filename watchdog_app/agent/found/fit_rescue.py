"""The Rescue that the agent adds to a fit without one; it never stops the training."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from watchdog_app.agent.adapters.keras.rescue import FitRescue
from watchdog_app.agent.adapters.keras.resume import Resumption
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base.errors import RescueError, RescueMismatch
from watchdog_app.rescue.checkpoint.store import SavedRescue
from watchdog_app.rescue.identity.compare import join_differences
from watchdog_app.rescue.identity.notebook import ipython_shell


@functools.cache
def automatic_rescue_class(package: str) -> Any:
    """The automatic variant of the `Rescue` of a package, "keras" or "tf_keras"."""
    rescue = import_module(f"watchdog_app.agent.{package}").Rescue
    return type("AutomaticRescue", (Automatic, rescue), {"__doc__": Automatic.__doc__})


class Automatic(FitRescue):
    """
    A `Rescue` that does not raise if a saved rescue does not fit the program.

    The training then starts over, with its rescues in another folder.
    """

    _saves_together = False  # no collective without the user's wish

    def __init__(self, directory: str, *, resume: bool, number: int) -> None:
        """
        Args:
            directory: the folder for rescues.
            resume: whether to resume from an unfinished rescue there.
            number: which fit of the program this is, from 1; the first prints the folder.
        """
        super().__init__(directory, resume=resume)
        self._start_over = folders.start_over_advice()
        self._made_above = folders.missing_parent(directory)
        self._has_reported_folder = False
        self._number = number
        # No user of a notebook asked for this Rescue; only the daemon gets a message there.
        self._reports_at_start = number == 1 and folders.is_started_by_exec()

    def _close(self, *, succeeded: bool = True) -> None:
        """Also remove the folders that are empty because the training had to save nothing."""
        session = self._session
        super()._close(succeeded=succeeded)
        if session is not None:
            folders.remove_empty(session.store.directory, self.directory, self._made_above)

    def _report_saved(self, saved: SavedRescue | None) -> None:
        """Print once where the rescue is, because the user did not name the folder."""
        told = self._has_reported_folder or (self._session and self._session.save_reported)
        if saved is not None and not told and self._state is not None:
            self._has_reported_folder = True
            # This process does not resume its own rescue: its memory has a newer state.
            where = "kernel" if hasattr(ipython_shell(), "kernel") else "process"
            onwards = (
                f"When the fit is run again in a new {where}, it resumes from there."
                if self.resume
                else folders.see_rescues(self.directory)
            )
            if self.resume and where == "process":
                onwards += trained_again(self._number - 1)
            print_message(
                f"saved in {folders.display_path(saved.path)}: step {saved.step}, epoch "
                f"{self._state.progress.epoch + 1}. {onwards}"
            )
        super()._report_saved(saved)

    def _resume(self, session: Session, state: FitState) -> Resumption | None:
        asked = self.directory
        refused: dict[str, RescueError] = {}
        for number in range(2, folders.MOST_PLACES):
            try:
                found = super()._resume(session, state)
            except RescueError as error:
                if not _nothing_was_loaded(error):
                    raise  # some variables may hold loaded values: the fit must not continue
                refused[self.directory] = error
                self.directory = f"{asked}-{number}"
                session = self._session = self._open_session(state.progress.iterator, state.marker)
            else:
                self._report_place(refused, resumed=found is not None)
                return found
        return None

    def _report_place(self, refused: dict[str, RescueError], *, resumed: bool) -> None:
        """Print where the training is saved, or why it was not resumed from a rescue."""
        if not refused:
            if self._number == 1:
                shown = folders.display_path(self.directory)
                print_message(
                    f"fits are saved in {shown} when memory runs out. "
                    f"{folders.see_rescues(self.directory)}"
                )
            return
        for directory, error in refused.items():
            left = f"the rescue in {folders.display_path(directory)} {_refusal_text(error)}"
            if resumed:
                print_message(f"{left}: it is left alone.")
                continue
            forced = isinstance(error, RescueMismatch) and error.may_be_forced
            print_message(
                f"not resumed: {left}. This training starts over, and its rescues go to "
                f"{folders.display_path(self.directory)}. "
                + (
                    "To resume all the same: set WATCHDOG_AGENT_RESUME=force."
                    if forced
                    else "Remove the other folder if you do not need it."
                )
            )


def _refusal_text(error: RescueError) -> str:
    if isinstance(error, RescueMismatch):
        return f"does not fit this program: {join_differences(error.differences)}"
    return f"cannot be used here: {error.__cause__}"


def _nothing_was_loaded(error: RescueError) -> bool:
    """Whether the rescue was refused before any value was loaded from it."""
    return isinstance(error, RescueMismatch) or isinstance(error.__cause__, RescueError)


def trained_again(before: int) -> str:
    """How many of the fits before one the next run trains again, as a sentence; empty: none."""
    again = before - run_choice.ends_saved()
    return f" Fits before it that are trained again: {again} of {before}." if again > 0 else ""
