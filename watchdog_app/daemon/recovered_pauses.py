"""Pauses of an earlier daemon that nobody has heard of: told when the next one finds them."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator

from watchdog_app.base.text.plain import plain
from watchdog_app.core.model.decisions import Notification, NotificationAction, Topic
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pause_store import PauseStore
from watchdog_app.daemon.pauses import Pause
from watchdog_app.history.journal import Entry

_BY_A_PERSON = "asked for by "


def tell(store: PauseStore, observer: Observer, executor: Executor, log: Log) -> None:
    """Announce the pauses that were taken over, as far as they are news."""
    for pause in untold(store.recovered, observer.ask(lambda engine: engine.held) or ()):
        told = notice(pause, time.time())
        log.warning(told.title, pid=pause.task.pid, reason=pause.reason)
        pid = pause.task.pid
        data = {"id": told.id, "decision_kind": "notify", "pid": pid, "reason": told.title}
        entry = Entry(told.unix_s, "decision", data, pid, pause.name)
        executor.announce(told, entry, None)
    store.recovered.clear()


def untold(recovered_pauses: Iterable[Pause], held: Container[ProcessKey]) -> Iterator[Pause]:
    """
    Those that stand, and that neither the engine nor a person minds.

    The engine lets go on whom it has paused when there is room. It does not know of a pause that
    was cut short by the end of the daemon, nor of any when its state was lost.

    Args:
        recovered_pauses: what was taken over.
        held: tasks that the engine has paused and minds.
    """
    for pause in recovered_pauses:
        told = pause.reason.startswith(_BY_A_PERSON) and pause.paused.at_unix_s > 0
        if pause.task not in held and not told:
            yield pause


def notice(pause: Pause, unix_s: float) -> Notification:
    """What a person is told of such a pause."""
    pid = pause.task.pid
    return Notification(
        id=f"recovered_pauses-{pid}-{pause.task.start_time}-{unix_s:.0f}",
        incident="",
        stage="hold",
        urgency="normal",
        title=f"Still paused: {plain(pause.name)}",
        body="The watchdog daemon paused it, ended, and has just been started anew "
        f"({plain(pause.reason, 200)}). Its state stays in memory.\n"
        f"It does not go on by itself. When there is room: watchdog resume {pid}",
        task=pid,
        unix_s=unix_s,
        actions=(NotificationAction("resume", "Resume", f"watchdog resume {pid}"),),
        topic=Topic.PAUSED.value,
    )
