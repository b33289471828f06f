"""Notifications about pauses that an earlier daemon left and that nobody else reports."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.decisions import Notification, NotificationAction, Topic
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pause_store import PauseStore
from watchdog_app.daemon.pauses import Pause
from watchdog_app.history.journal import Entry

_BY_A_PERSON = "asked for by "


def announce(store: PauseStore, observer: Observer, executor: Executor, log: Log) -> None:
    """Notify people of the recovered pauses, as far as they are news."""
    for pause in unreported(store.recovered, observer.ask(lambda engine: engine.held) or ()):
        pid, now_unix_s = pause.task.pid, time.time()
        said = notification(pause, now_unix_s)
        log.warning(said.title, pid=pid, reason=pause.reason)
        data = {"id": said.id, "decision_kind": "notify", "pid": pid, "reason": said.title}
        executor.announce(said, Entry(now_unix_s, "decision", data, pid, pause.name), None)
    store.recovered.clear()


def unreported(recovered: Iterable[Pause], held: Container[ProcessKey]) -> Iterator[Pause]:
    """
    Yield the pauses that neither the engine nor a person knows of.

    The engine resumes what it has paused when there is room. It does not know a pause that the end
    of the daemon cut short, nor any pause if its state was lost.

    Args:
        recovered: pauses of an earlier daemon that still stand.
        held: tasks that the engine has paused.
    """
    for pause in recovered:
        by_a_person = pause.reason.startswith(_BY_A_PERSON) and pause.paused.at_unix_s > 0
        if pause.task not in held and not by_a_person:
            yield pause


def notification(pause: Pause, unix_s: float) -> Notification:
    """Return what people are told of such a pause."""
    pid = pause.task.pid
    return Notification(
        id=f"recovered-{pid}-{pause.task.start_time}-{unix_s:.0f}",
        incident="",
        stage="pause",
        urgency="normal",
        title=f"Still paused: {clean(pause.name)}",
        body="The watchdog daemon paused it, ended, and has just been started again "
        f"({clean(pause.reason, 200)}). Its state stays in memory.\n"
        f"It does not resume by itself. When there is room: watchdog resume {pid}",
        task=pid,
        unix_s=unix_s,
        actions=(NotificationAction("resume", "Resume", f"watchdog resume {pid}"),),
        topic=Topic.PAUSED.value,
    )
