"""
What clients ask that the journal knows: why something died, what has happened, how a figure went.

Each is looked up in the journal's own thread, and the answer comes when that has read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from watchdog_app.base.errors import NOT_FOUND, TaskNotFound
from watchdog_app.client import jsonrpc, requests
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.tasks import KernelRegistry, find
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.rpc import Connection, Reply
from watchdog_app.history.writer import JournalWriter

# Returns the answer; None: it comes later, by the reply.
Method = Callable[[Connection, Any, Reply], dict[str, Any] | None]


class Explains(Protocol):
    """What these methods need of the daemon as a whole."""

    def tasks(self) -> Sequence[Task]:
        """Those of the last look."""

    def explain(self, task: Task | None) -> dict[str, Any]:
        """Text and incidents."""


class JournalMethods:
    """Three methods of docs/protocol.md, in `table`."""

    def __init__(
        self, daemon: Explains, kernels: KernelRegistry, journal: JournalWriter, log: Log
    ) -> None:
        self._daemon = daemon
        self._kernels = kernels
        self._journal = journal
        self._log = log
        self.table: dict[str, Method] = {
            "explain": self._explain,
            "history": self._history,
            "series": self._series,
        }

    def _explain(self, _: Connection, params: requests.Explain, reply: Reply) -> None:
        from watchdog_app.history import past_exits  # 0.3 MB that no emergency needs

        wanted = params.task
        tasks = self._daemon.tasks()
        task: Task | None = None
        missing: TaskNotFound | None = None
        try:
            task = None if wanted is None else find(wanted, tasks)
        except TaskNotFound as error:
            if error.code != NOT_FOUND:
                raise
            missing = error  # it may have died
        self._journal.ask(
            partial(
                past_exits.answer,
                wanted=wanted,
                minutes=params.minutes,
                now_unix_s=time.time(),
                within_s=past_exits.LATELY_S,
                task=task,
                tasks=tasks,
            ),
            partial(self._explained, reply, task, missing),
            lambda: reply.wanted,
        )

    def _explained(
        self,
        reply: Reply,
        task: Task | None,
        missing: TaskNotFound | None,
        found: dict[str, Any] | None,
        error: Exception | None,
    ) -> None:
        """With what the journal knows of deaths, as far as it can be read."""
        if missing is None:
            answer = self._daemon.explain(task)
            if error is not None:
                self._log.debug("no deaths could be looked up", error=repr(error))
            nothing = {"death": None, "death_text": None, "plot": None}
            reply.result({**answer, **(found or nothing)})
        elif found is not None:
            reply.result({"text": found["death_text"], "incidents": [], **found})
        else:
            reply.error(missing.code, str(missing), {"candidates": list(missing.candidates)})

    def _history(self, _: Connection, params: requests.History, reply: Reply) -> None:
        task, pids = self._kernels.meant(params.task)
        wanted: dict[str, Any] = {
            **params.values(),
            "task": task,
            "pids": pids,
            "fold_saves": True,
        }
        self._journal.ask(
            lambda journal: journal.history(**wanted),
            _answer(reply, "entries"),
            lambda: reply.wanted,
        )

    def _series(self, _: Connection, params: requests.Series, reply: Reply) -> None:
        task, pids = self._kernels.meant(params.task)
        wanted = {**params.values(), "task": task, "pids": pids}
        self._journal.ask(
            lambda journal: journal.series(**wanted),
            _answer(reply, "series"),
            lambda: reply.wanted,
        )


def _answer(reply: Reply, key: str) -> Callable[[Any, Exception | None], None]:
    def done(value: Any, error: Exception | None) -> None:
        if error is not None:
            reply.error(jsonrpc.REFUSED, str(error))
        else:
            reply.result({key: value})

    return done
