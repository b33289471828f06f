"""
What is not working right now: said once in the log, shown in the status, counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from watchdog_app.core.model.machine import Fault
from watchdog_app.daemon.log import Log


class Faults:
    """One fault a source, from the moment it is raised until it is cleared."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._own: dict[str, Fault] = {}
        self._seen: dict[str, Fault] = {}  # those of the sensors, as the last snapshot had them
        self.counts: dict[str, int] = {}

    def put(self, source: str, message: str, remedy: str | None = None) -> None:
        """Something does not work; the same again is only counted."""
        self.counts[source] = self.counts.get(source, 0) + 1
        before = self._own.get(source)
        self._own[source] = Fault(source, message, remedy)
        if before is None or before.message != message:
            self._log.warning(message, source=source)

    def clear(self, source: str) -> None:
        """It works again."""
        if self._own.pop(source, None) is not None:
            self._log.info("works again", source=source)

    def take(self, sensed: Iterable[Fault]) -> None:
        """The faults of the latest snapshot."""
        now = {fault.source: fault for fault in sensed}
        for source, fault in now.items():
            if source not in self._seen:
                self._log.warning(fault.message, source=source)
        for source in self._seen.keys() - now.keys():
            self._log.info("works again", source=source)
        self._seen = now

    def guard(self, what: str, step: Callable[[], object]) -> None:
        """Carry out a step of the loop; a failure of ours in it never ends the watching."""
        try:
            step()
        except Exception as error:
            self.failed(what, error)
        else:
            self.clear(f"daemon.{what}")

    def failed(self, what: str, error: Exception) -> None:
        """A part of the daemon raised what it never should."""
        if self._log.verbose:
            import traceback

            for line in traceback.format_exception(error)[-3:]:
                self._log.debug(line.rstrip())
        self.put(
            f"daemon.{what}",
            f"A part of the daemon failed ({what}): {error!r}. The rest goes on.",
            "Please report this with the daemon's log.",
        )

    def all(self) -> list[Fault]:
        """Those in force."""
        return [*self._own.values(), *self._seen.values()]
