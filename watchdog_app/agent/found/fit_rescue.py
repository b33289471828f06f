"""The Rescue of a fit that named none: it never stands in the way of the training."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from watchdog_app.agent.adapters.keras.rescue import FitRescue
from watchdog_app.agent.adapters.keras.resume import Resumption
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base.errors import RescueError, RescueMismatch
from watchdog_app.rescue.checkpoint.store import SavedRescue
from watchdog_app.rescue.identity.compare import join_differences


@functools.cache
def automatic_rescue_class(package: str) -> Any:
    """The class for fits of a package, "keras" or "tf_keras": that one's `Rescue`, automatic."""
    rescue = import_module(f"watchdog_app.agent.{package}").Rescue
    return type("AutomaticRescue", (Automatic, rescue), {"__doc__": Automatic.__doc__})


class Automatic(FitRescue):
    """
    As `Rescue`, but a rescue that does not fit the program is no error.

    The training starts over then, with its rescues in another folder.
    """

    _reports_at_start = False  # nobody relies on it yet; the daemon is told
    _start_over = "To start over: run it with WATCHDOG_AGENT_RESUME=no in the environment."

    def __init__(self, directory: str, *, resume: bool, first: bool) -> None:
        """
        Args:
            directory: where rescues go.
            resume: whether an unfinished rescue there is resumed.
            first: it is the first fit of this program: say where it is saved.
        """
        super().__init__(directory, resume=resume)
        self._made_above = folders.missing_parent(directory)
        self._has_reported_folder = False
        self._first = first

    def on_train_end(self, logs: Any = None) -> None:
        """Leave no empty folders behind where nothing had to be saved."""
        folder = None if self._session is None else self._session.store.directory
        super().on_train_end(logs)
        folders.remove_empty(folder, self.directory, self._made_above)

    def _report_saved(self, saved: SavedRescue | None) -> None:
        """Say once where it is: nobody named the folder."""
        if saved is not None and not self._has_reported_folder and self._state is not None:
            self._has_reported_folder = True
            onwards = (
                "When the fit is run again, it resumes from there."
                if self.resume
                else "See: watchdog rescues"
            )
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
                    raise  # half of the variables may be the rescue's: that must not train on
                refused[self.directory] = error
                self.directory = f"{asked}-{number}"
                session = self._session = self._open_session(state.progress.iterator, state.marker)
            else:
                self._report_place(refused, resumed=found is not None)
                return found
        return None

    def _report_place(self, refused: dict[str, RescueError], *, resumed: bool) -> None:
        """Say where the training is saved, or which rescues it was not resumed from, and why."""
        if not refused:
            if self._first:
                shown = folders.display_path(self.directory)
                print_message(
                    f"fits are saved in {shown} when memory runs out. See: watchdog rescues"
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
    """It was refused when it was looked at: it is another program's, or cannot be read here."""
    return isinstance(error, RescueMismatch) or isinstance(error.__cause__, RescueError)
