"""
The daemon as a whole: its parts are made, run, and put away again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from watchdog_app import __version__, config
from watchdog_app.base import own_process, paths, runtime_dir
from watchdog_app.base.errors import ConfigError, WatchdogError
from watchdog_app.core.model.settings import Settings
from watchdog_app.daemon import recovered_pauses, signals
from watchdog_app.daemon.instance import InstanceLock
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.status import Look
from watchdog_app.daemon.systemd import ServiceManager
from watchdog_app.history.journal import Journal
from watchdog_app.machine.sensors import groups

_LOCK = "daemon.lock"
_CHORES_S = 3.0
_STATE_S = 15.0
_GARBAGE_S = 60.0
_LAST_WORDS = 50  # of the daemon itself: among them how it ended
_PRESSED_PERCENT = 10.0  # of the time somebody waits for memory
_END_S = 3.0  # to finish what was begun when told to end


def main(path: str | None = None, verbose: bool = False) -> int:
    """
    Be the daemon until told to end; the exit code.

    Args:
        path: the configuration file; None: where this user keeps it.
        verbose: log what is of use for finding faults alone.

    Raises:
        ConfigError: the configuration holds a mistake.
        AlreadyRunning: another daemon of this user runs.
        WatchdogError: the folder of the socket cannot be used.
    """
    # The daemon leaves this folder: what is named relative to it is named in full before.
    config_path = os.path.abspath(path or paths.config_file())
    old_keys: list[str] = []
    settings, sources = config.load(config_path, required=path is not None, warn=old_keys.append)
    log = Log(verbose, path=os.path.abspath(paths.daemon_log()))
    return run(settings, sources, log, config_path, old_keys)


def run(
    settings: Settings,
    sources: config.Sources,
    log: Log,
    config_path: str,
    old_keys: Sequence[str] = (),
) -> int:
    """Run with these settings until SIGTERM, SIGINT or a client's `stop`. Raises as `main`."""
    os.umask(0o077)  # names of notebooks are nobody else's business
    folder = runtime_dir.make()
    runtime_dir.private_folder(folder)
    lock = InstanceLock(os.path.join(folder, _LOCK))
    app = App(settings, sources, config_path, lock, log)
    app.report_old_keys(old_keys)
    try:
        app.open()
        app.loop()
    except OSError as error:
        raise WatchdogError(f"The daemon cannot work in {folder}: {error}.") from error
    finally:
        app.close()
        lock.release()
    return 0


class App:
    """Made once a process; `open`, `loop`, `close` in this order."""

    def __init__(
        self,
        settings: Settings,
        sources: config.Sources,
        config_path: str,
        lock: InstanceLock,
        log: Log,
    ) -> None:
        self._log = log
        self._lock = lock
        self._parts = Parts(settings, sources, config_path, os.path.dirname(lock.path), log)
        self._systemd = ServiceManager()
        self._reloading = False
        self._next_chores_mono_s = 0.0
        self._next_state_mono_s = 0.0
        self._next_beat_mono_s = 0.0
        self._next_garbage_mono_s = 0.0

    def report_old_keys(self, messages: Sequence[str]) -> None:
        """Show that the configuration has keys of an earlier version."""
        self._parts.control.report_old_keys(messages)

    # The life of the process

    def open(self) -> None:
        """
        Become ready: everything that an emergency needs is in memory before the first answer.

        Raises:
            OSError: the socket cannot be made.
        """
        parts = self._parts
        signals.catch(parts.waker.fd, self._told_to_end, self._told_to_reload, self._log)
        nice = own_process.go_first()
        own_process.wait_briefly_for_threads()
        own_process.keep_heap_small()
        own_process.allow_many_connections()
        with suppress(OSError):
            os.chdir("/")  # keep no disk from being unmounted
        journal = parts.journal.open()
        parts.watching.recover(journal)
        parts.control.recover_quiet(journal)
        parts.kernel_state.recover(journal, self._log)
        parts.faults.guard("deaths", partial(parts.missed_exits.look, journal))
        started = _started(journal)
        parts.journal.start()
        self._tick()
        parts.server.open()
        parts.faults.guard(
            "pauses",
            lambda: recovered_pauses.announce(
                parts.pause_store, parts.observer, parts.executor, self._log
            ),
        )
        score = own_process.last_to_be_killed()
        own_process.settle_garbage()
        parts.control.memory_fault = own_process.lock_memory()
        parts.control.note(started)
        self._log.info(
            f"watchdog {__version__} watches",
            pid=os.getpid(),
            socket=parts.socket_path,
            tasks=len(parts.control.tasks()),
            locked_memory=parts.control.memory_fault is None,
            oom_score_adj=score,
            nice=nice,
        )
        for weakness in (parts.control.memory_fault, own_process.kill_order(score)):
            if weakness:
                self._log.info(weakness)
        self._systemd.ready()

    def loop(self) -> None:
        """Look, decide, act, answer, until told to end."""
        parts = self._parts
        while not parts.control.stopping:
            parts.poller.wait(self._wait_s(time.monotonic()))
            parts.faults.guard("wakeups", self._take_wakeup)
            parts.faults.guard("deaths", partial(parts.take_exits, time.monotonic()))
            parts.faults.guard("requests", parts.server.serve)
            parts.faults.guard("airbags", self._announce)
            now = time.monotonic()
            parts.faults.guard("chores", partial(self._collect, now))
            if parts.observer.wants_tick:
                parts.watching.look_now()
            if now >= parts.watching.next_look_mono_s:
                self._tick()
            if now >= self._next_chores_mono_s:
                self._next_chores_mono_s = now + _CHORES_S
                parts.faults.guard("chores", partial(self._chores, now))
            if self._reloading:
                self._reloading = False
                with suppress(ConfigError):  # it is a fault by now, and in the log
                    parts.control.reload()
            if self._systemd.beat_s is not None and now >= self._next_beat_mono_s:
                self._next_beat_mono_s = now + self._systemd.beat_s
                self._systemd.alive(now, pressed=self._pressed())

    def close(self) -> None:
        """Finish what was begun, as far as that is quick, and put everything away."""
        parts = self._parts
        self._systemd.stopping()
        parts.control.note("stopped")
        for step in (
            partial(parts.take_exits, float("inf")),  # no answer is waited for
            lambda: parts.worker.close(_END_S),
            lambda: parts.pause_store.close(_END_S),
            parts.keepers.collect,  # what is not done by now is not waited for
            parts.server.close,
            lambda: parts.dispatcher.close(_END_S),
            parts.watching.keep_state,
            parts.watching.close,
            lambda: parts.journal.close(_END_S),
            parts.exit_monitor.close,
            parts.agents.close,
            parts.observer.close,
            parts.waker.close,
            parts.poller.close,
        ):
            parts.faults.guard("end", step)
        self._log.info("watchdog has ended; nothing is watched now")

    # One turn of the loop

    def _tick(self) -> None:
        parts = self._parts
        parts.watching.tick(parts.executor, self._follow, parts.control.publish)
        parts.faults.guard("deaths", partial(parts.missed_exits.keep, parts.watching.look))
        parts.faults.guard("restarts", partial(parts.restarts.take, parts.watching.tasks))
        parts.faults.guard("restarts", parts.kernel_state.keep)
        parts.faults.guard("inspections", parts.inspections.look)
        parts.control.cost.update(time.monotonic())

    def _follow(self, look: Look) -> None:
        self._parts.exit_monitor.follow(look)
        self._parts.take_exits(time.monotonic())

    def _announce(self) -> None:
        for news in self._parts.guards.take_news():
            self._parts.executor.announce(news.notification, news.entry, news.task)

    def _collect(self, now_mono_s: float) -> None:
        """Whatever other threads and processes have finished, and whatever is overdue."""
        parts = self._parts
        if parts.journal.reopened:
            parts.journal.reopened = False
            parts.watching.keep_state()
        parts.journal.collect()
        parts.pause_store.collect()
        parts.worker.collect()
        parts.keepers.collect()
        parts.checkpoints.expire(now_mono_s)
        parts.inspections.expire(now_mono_s)
        parts.dispatcher.look(now_mono_s)
        parts.agents.look(now_mono_s)
        while parts.journal.notes:
            self._log.warning(parts.journal.notes.popleft())

    def _chores(self, now_mono_s: float) -> None:
        parts = self._parts
        if not self._lock.keep():  # then the socket that is there is the other one's
            self._log.error("another daemon has taken over; this one ends")
            parts.control.stopping = True
            return
        parts.control.look_quiet()
        parts.server.restore_socket()
        parts.pause_store.keep()
        if now_mono_s >= self._next_state_mono_s:
            self._next_state_mono_s = now_mono_s + _STATE_S
            parts.watching.keep_state(if_new=True)
        if now_mono_s >= self._next_garbage_mono_s:
            self._next_garbage_mono_s = now_mono_s + _GARBAGE_S
            own_process.collect_garbage()

    def _wait_s(self, now_mono_s: float) -> float:
        parts = self._parts
        if parts.server.busy:
            return 0.0
        # Chores wait for the next look where that comes soon.
        due = [parts.watching.next_look_mono_s, self._next_chores_mono_s + _CHORES_S]
        for deadline in (
            parts.checkpoints.next_deadline_mono_s(),
            parts.inspections.next_deadline_mono_s(),
            parts.exit_monitor.next_deadline_mono_s(),
            parts.missed_exits.next_deadline_mono_s(),
            parts.dispatcher.next_deadline_mono_s(),
            parts.server.next_deadline_mono_s(),
            self._next_beat_mono_s if self._systemd.beat_s is not None else None,
        ):
            if deadline is not None:
                due.append(deadline)
        wait_s = max(0.0, min(due) - now_mono_s)
        look_s = parts.agents.look(now_mono_s)
        return wait_s if look_s is None else min(wait_s, look_s)

    def _take_wakeup(self) -> None:
        """Pressure, or a memory group that nears its limit: sample soon."""
        wakeup = self._parts.observer.triggers.take()
        if wakeup is not None:
            self._log.debug("woken", source=wakeup.source, path=wakeup.path, detail=wakeup.detail)
            self._parts.watching.look_soon()

    def _pressed(self) -> bool:
        """Whether memory is so short that a turn of the loop may be held up for minutes."""
        look = self._parts.watching.look
        if look is None:
            return False
        pressure = look.snapshot.host.pressure
        short = pressure is not None and pressure.some_avg10 >= _PRESSED_PERCENT
        return short or any(fault.source == groups.MEMBERSHIPS for fault in look.snapshot.faults)

    def _told_to_end(self) -> None:
        self._parts.control.stopping = True

    def _told_to_reload(self) -> None:
        self._reloading = True


def _started(journal: Journal | None) -> str:
    """What the history says of this start, and of the daemon before it where that was cut short."""
    said: list[dict[str, Any]] = []
    if journal is not None:
        with suppress(sqlite3.Error):  # whoever writes next hears of it
            said = journal.history(limit=_LAST_WORDS, kinds=("daemon",))
    for each in said:
        what = str(each.get("what"))
        if what == "stopped":
            break
        if what.startswith("started"):
            return f"started; the daemon before (pid {each.get('pid')}) had not ended in good order"
    return "started"
