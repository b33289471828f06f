"""The Rescue of a fit that named none: it never stands in the way of the training."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from watchdog_app.agent import chapters
from watchdog_app.agent.contain import say
from watchdog_app.agent.fit_state import FitState
from watchdog_app.agent.keras import Rescue
from watchdog_app.agent.link import Link
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.resumption import Resumption
from watchdog_app.agent.session import Session
from watchdog_app.agent.store import RescueStore
from watchdog_app.errors import RescueError, RescueMismatch

_MOST_PLACES = 50


class AutomaticRescue(Rescue):
    """
    As `Rescue`, but a rescue that does not fit the program is no error.

    The training begins anew then, in a folder beside, so that the rescue is not displaced.
    """

    def __init__(self, directory: str, *, resume: bool) -> None:
        super().__init__(directory, resume=resume)
        above = os.path.dirname(directory)
        self._made_above = None if os.path.lexists(above) else above

    def on_train_end(self, logs: Any = None) -> None:
        """Leave no empty folders behind where nothing had to be saved."""
        folder = None if self._session is None else self._session.store.directory
        super().on_train_end(logs)
        for each in (folder, self.directory, self._made_above):
            if each is not None:
                with suppress(OSError):
                    os.rmdir(each)

    def _resume(self, session: Session, state: FitState) -> Resumption | None:
        asked = self.directory
        for number in range(2, _MOST_PLACES):
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
                session = self._session = self._elsewhere(state)
            else:
                if found is not None:
                    say(
                        "To begin anew instead: restart with WATCHDOG_AGENT_RESUME=no in the "
                        "environment."
                    )
                return found
        return None

    def _elsewhere(self, state: FitState) -> Session:
        store = RescueStore(chapters.chapter_directory(self.directory), self.keep)
        return Session(store, Link("keras", store.directory, notebook_path()), state.capture)


def _nothing_was_loaded(error: RescueError) -> bool:
    """It was refused when it was looked at: it is another program's, or cannot be read here."""
    return isinstance(error, RescueMismatch) or isinstance(error.__cause__, RescueError)
