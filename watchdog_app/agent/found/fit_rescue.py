"""The Rescue of a fit that named none: it never stands in the way of the training."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from watchdog_app.agent.adapters.keras.rescue import FitRescue
from watchdog_app.agent.adapters.keras.resume import Resumption
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import say
from watchdog_app.agent.found import folders
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base.errors import RescueError, RescueMismatch
from watchdog_app.rescue.checkpoint.store import SavedRescue


@functools.cache
def automatic(package: str) -> Any:
    """The class for fits of a package, "keras" or "tf_keras": that one's `Rescue`, automatic."""
    rescue = import_module(f"watchdog_app.agent.{package}").Rescue
    return type("AutomaticRescue", (Automatic, rescue), {"__doc__": Automatic.__doc__})


class Automatic(FitRescue):
    """
    As `Rescue`, but a rescue that does not fit the program is no error.

    The training begins anew then, in a folder beside, so that the rescue is not displaced.
    """

    _tells_at_start = False  # nobody relies on it yet; the daemon is told

    def __init__(self, directory: str, *, resume: bool) -> None:
        super().__init__(directory, resume=resume)
        self._made_above = folders.made_above(directory)
        self._said_where = False

    def on_train_end(self, logs: Any = None) -> None:
        """Leave no empty folders behind where nothing had to be saved."""
        folder = None if self._session is None else self._session.store.directory
        super().on_train_end(logs)
        folders.remove_empty(folder, self.directory, self._made_above)

    def _tell(self, saved: SavedRescue | None) -> None:
        """Say once where it is: nobody named the folder."""
        if saved is not None and not self._said_where and self._state is not None:
            self._said_where = True
            onwards = (
                "When the fit is run again, it goes on from there."
                if self.resume
                else "See: watchdog rescues"
            )
            say(
                f"saved in {folders.shown(saved.path)}: step {saved.step}, epoch "
                f"{self._state.course.epoch + 1}. {onwards}"
            )
        super()._tell(saved)

    def _resume(self, session: Session, state: FitState) -> Resumption | None:
        asked = self.directory
        state.anew = "To begin anew: start it with WATCHDOG_AGENT_RESUME=no in the environment."
        for number in range(2, folders.MOST_PLACES):
            try:
                found = super()._resume(session, state)
            except RescueError as error:
                if not _nothing_was_loaded(error):
                    raise  # half of the variables may be the rescue's: that must not train on
                self.directory = f"{asked}-{number}"
                say(
                    f"{error} This training was not asked to resume, so it begins anew; its own "
                    f"rescues go to {self.directory}. Remove the other folder if it is of no use."
                )
                session = self._session = self._open(state.course.iterator, state.marker)
            else:
                return found
        return None


def _nothing_was_loaded(error: RescueError) -> bool:
    """It was refused when it was looked at: it is another program's, or cannot be read here."""
    return isinstance(error, RescueMismatch) or isinstance(error.__cause__, RescueError)
