"""
The daemon as a whole: creates its parts, runs them, and closes them.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import time
from contextlib import suppress
from functools import partial
from typing import Any

from watchdog_app import __version__, config
from watchdog_app.base import own_process, paths, runtime_dir
from watchdog_app.base.errors import WatchdogError
from watchdog_app.core.model.status import Status
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.instance import InstanceLock, ServiceManager
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.loop import Loop
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.pauses import standing_notification
from watchdog_app.history.journal import Journal

_LOCK = "daemon.lock"
_MOST_DAEMON_ENTRIES = 50  # entries searched for the end of the last daemon
_SHUTDOWN_TIMEOUT_S = 3.0  # time limit for unfinished work at a stop


def main(path: str | None = None, verbose: bool = False) -> int:
    """
    Run the daemon until SIGTERM, SIGINT or a client's `stop`; return the exit code.

    Args:
        path: the configuration file; None: the default path of this user.
        verbose: log debug messages too.

    Raises:
        ConfigError: the configuration holds a mistake.
        AlreadyRunning: another daemon of this user runs.
        WatchdogError: the folder of the socket cannot be used.
    """
    # The daemon changes to "/" later, so make relative paths absolute first.
    config_path = os.path.abspath(path or paths.config_file())
    old_keys: list[str] = []
    settings, sources = config.load(config_path, required=path is not None, warn=old_keys.append)
    log = Log(verbose, path=os.path.abspath(paths.daemon_log()))
    os.umask(0o077)  # names of notebooks are private
    folder = runtime_dir.make()
    runtime_dir.private_folder(folder)
    lock = InstanceLock(os.path.join(folder, _LOCK))
    parts = Parts(settings, folder, log)
    app = App(parts, Control(parts, sources, config_path), lock)
    app.control.report_old_keys(old_keys)
    try:
        app.open()
        app.loop.run()
    except OSError as error:
        raise WatchdogError(f"The daemon cannot work in {folder}: {error}.") from error
    finally:
        app.close()
        lock.release()
    return 0


class App:
    """The running daemon; call `open`, `loop.run` and `close` in this order."""

    def __init__(self, parts: Parts, control: Control, lock: InstanceLock) -> None:
        self._parts = parts
        self._service_manager = ServiceManager()
        self.control = control
        self.loop = Loop(parts, control, lock, self._service_manager)

    def open(self) -> None:
        """
        Start serving. Loads all that an emergency needs into memory before the first answer.

        Raises:
            OSError: the socket cannot be created.
        """
        parts = self._parts
        _catch_signals(parts.waker.fd, self.control, parts.log)
        nice = own_process.raise_priority()
        own_process.shorten_switch_interval()
        own_process.limit_heap()
        own_process.raise_file_limit()
        with suppress(OSError):
            os.chdir("/")  # a current folder elsewhere would keep its disk mounted
        started = self._recover()
        parts.faults.run_step("look", self.loop.sample)
        parts.server.open(Methods(parts, self.control))
        parts.faults.run_step("pauses", self._notify_recovered_pauses)
        score = own_process.lower_oom_score()
        own_process.freeze_garbage()
        self.control.memory_fault = own_process.lock_memory()
        parts.log.info(
            f"watchdog {__version__} started",
            pid=os.getpid(),
            socket=parts.socket_path,
            tasks=len(parts.observer.tasks()),
            locked_memory=self.control.memory_fault is None,
            oom_score_adj=score,
            nice=nice,
        )
        self.control.note(started)
        for weakness in (self.control.memory_fault, own_process.oom_score_warning(score)):
            if weakness:
                parts.log.info(weakness)
        self._service_manager.ready()

    def _recover(self) -> str:
        """Restore the state of an earlier daemon; return the history's text for this start."""
        parts = self._parts
        journal = parts.journal.open()
        parts.pauses.recover()
        parts.state_store.recover(journal)
        self.control.restore_quiet(journal)
        parts.faults.run_step("exits", partial(parts.missed_exits.find, journal))
        return _start_message(journal)

    def _notify_recovered_pauses(self) -> None:
        """Notify people of pauses by an earlier daemon that the engine does not report."""
        parts = self._parts
        paused = parts.observer.call_engine(lambda engine: engine.paused_tasks) or ()
        for pause in parts.pauses.take_unreported(paused):
            message = standing_notification(pause, time.time())
            parts.log.warning(message.title, pid=pause.task.pid, reason=pause.reason)
            parts.executor.tell(message, parts.observer.task(pause.task))

    def close(self) -> None:
        """Finish started work within some seconds, and close all parts."""
        parts = self._parts
        self._service_manager.stopping()
        self.control.note("stopped")
        for step in (
            partial(self.loop.report_exits, float("inf")),  # infinity: wait for no more evidence
            lambda: parts.worker.close(_SHUTDOWN_TIMEOUT_S),
            lambda: parts.pauses.close(_SHUTDOWN_TIMEOUT_S),
            self.loop.logind.close,
            parts.supervisors.collect,  # later answers are lost
            parts.server.close,
            lambda: parts.dispatcher.close(_SHUTDOWN_TIMEOUT_S, self._paused_tasks),
            lambda: parts.observer.call_engine(lambda engine: engine.repeat_warnings()),
            parts.state_store.save_engine,
            self.control.save_quiet,
            lambda: parts.missed_exits.save_alive(parts.observer.latest, stopping=True),
            parts.runs.store_all,
            lambda: parts.journal.close(_SHUTDOWN_TIMEOUT_S),
            parts.exit_monitor.close,
            parts.copies.close,
            parts.textfile.close,
            parts.observer.close,
            parts.waker.close,
            parts.poller.close,
        ):
            parts.faults.run_step("end", step)
        parts.log.info("watchdog stopped; nothing is watched now")

    def _paused_tasks(self) -> Status:
        """What stays true when nothing is watched: the pauses."""
        found = self.control.status()
        return Status(tasks=tuple(task for task in found.tasks if task.paused_by_watchdog))


def _catch_signals(wake_fd: int, control: Control, log: Log) -> None:
    """
    Let SIGTERM and SIGINT stop the daemon and SIGHUP reload its configuration.

    Args:
        wake_fd: written to at each signal, which ends the wait of the loop.
    """

    def on_terminate(number: int, _: object) -> None:
        log.info("told to stop", signal=signal.Signals(number).name)
        control.stopping = True

    def on_hangup(_: int, __: object) -> None:
        if _is_terminal_closed():
            control.stopping = True  # the daemon ran in the foreground of this terminal
        else:
            control.reloading = True

    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, on_terminate)
    signal.signal(signal.SIGINT, on_terminate)
    signal.signal(signal.SIGHUP, on_hangup)


def _is_terminal_closed() -> bool:
    """Whether the terminal in which the daemon was started is closed."""
    try:
        os.tcgetpgrp(0)
    except OSError as error:
        return error.errno == errno.EIO
    return False


def _start_message(journal: Journal | None) -> str:
    """The history's text for this start; it names an earlier daemon that was killed."""
    entries: list[dict[str, Any]] = []
    if journal is not None:
        with suppress(sqlite3.Error):  # the next write reports it
            entries = journal.history(limit=_MOST_DAEMON_ENTRIES, kinds=("daemon",))
    ways = ("started", "stopped")
    last = next((each for each in entries if str(each.get("what")).startswith(ways)), None)
    if last is None or last["what"] == "stopped":
        return "started"
    return f"started; the daemon before (pid {last.get('pid')}) ended without a clean stop"
