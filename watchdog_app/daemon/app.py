"""
The daemon as a whole: everything is made here, wired, run, and put away again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from watchdog_app import __version__, config, paths
from watchdog_app.core.settings import Settings
from watchdog_app.daemon import selfcare
from watchdog_app.daemon.acts import Acts
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.connection import Connection
from watchdog_app.daemon.faults import Faults
from watchdog_app.daemon.front import Front
from watchdog_app.daemon.instance import InstanceLock, boot_id, private_folder
from watchdog_app.daemon.journal_writer import JournalWriter
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.notices import Notices
from watchdog_app.daemon.obituaries import Obituaries
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.pauses import Pauses
from watchdog_app.daemon.poller import READ, Poller, Waker
from watchdog_app.daemon.quiet import Quiet
from watchdog_app.daemon.server import Server
from watchdog_app.daemon.systemd import ServiceManager
from watchdog_app.daemon.watching import Watching
from watchdog_app.daemon.wording import notice
from watchdog_app.daemon.worker import Worker
from watchdog_app.errors import ConfigError, WatchdogError
from watchdog_app.sensors.machine import open_machine

_LOCK = "daemon.lock"
_CHORES_S = 3.0
_STATE_S = 15.0
_BUSY_SHARE = 0.25  # looking may take this share of the time, however short the interval
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
    settings, sources = config.load(config_path, required=path is not None)
    return run(settings, sources, Log(verbose), config_path)


def run(settings: Settings, sources: config.Sources, log: Log, config_path: str) -> int:
    """Run with these settings until SIGTERM, SIGINT or a client's `stop`. Raises as `main`."""
    os.umask(0o077)  # names of notebooks are nobody else's business
    folder = os.path.abspath(paths.runtime_dir())
    private_folder(folder)
    lock = InstanceLock(os.path.join(folder, _LOCK))
    app = App(settings, sources, config_path, lock, log)
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
        self._socket_path = os.path.join(
            os.path.dirname(lock.path), os.path.basename(paths.socket_path())
        )
        self._reloading = False
        self._next_chores_mono_s = 0.0
        self._next_state_mono_s = 0.0
        self._next_beat_mono_s = 0.0

        self._systemd = ServiceManager()
        self._faults = Faults(log)
        self._poller = Poller(partial(self._faults.failed, "connections"))
        self._waker = Waker(self._poller)
        self._journal = JournalWriter(
            os.path.abspath(paths.state_dir()),
            settings.journal.max_age_s,
            settings.journal.max_bytes,
            self._waker.wake,
        )
        self._worker = Worker(self._waker.wake, "actions")
        self._pauses = Pauses()
        machine = open_machine()
        self._agents = Agents(
            self._poller, machine.alive, self._agent_ended, settings.watch.interval_s
        )
        self._observer = Observer(
            settings, machine, self._agents, self._faults, os.path.dirname(lock.path)
        )
        boot = boot_id()
        self._watching = Watching(
            settings.watch,
            boot=boot,
            observer=self._observer,
            journal=self._journal,
            pauses=self._pauses,
            faults=self._faults,
            log=log,
        )
        self._server = Server(
            self._poller, self._socket_path, self._handle, self._connection_ended, log
        )
        self._notices = Notices(self._server, settings.notify, self._waker.wake, log)
        self._quiet = Quiet(settings)
        self._checkpoints = Checkpoints(self._agents, self._send_to_agent)
        self._acts = Acts(
            boot=boot,
            journal=self._journal,
            worker=self._worker,
            checkpoints=self._checkpoints,
            pauses=self._pauses,
            notices=self._notices,
            quiet=self._quiet,
            tasks=lambda: self._watching.tasks,
            state_of=self._observer.state_of,
            kept=self._watching.keep_state,
            recorded=self._observer.record,
            wording=lambda decision, task: notice(decision, task, self._watching.look),
            log=log,
        )
        self._obituaries = Obituaries(
            self._poller,
            told=lambda death: self._watching.died(death, self._acts),
            agent_of=self._agents.get,
            was_paused=lambda key: self._pauses.get(key) is not None,
        )
        self._front = Front(
            settings,
            sources,
            config_path,
            watching=self._watching,
            observer=self._observer,
            agents=self._agents,
            pauses=self._pauses,
            notices=self._notices,
            quiet=self._quiet,
            boot=boot,
            journal=self._journal,
            server=self._server,
            faults=self._faults,
            log=log,
        )
        self._methods = Methods(
            self._front,
            acts=self._acts,
            agents=self._agents,
            checkpoints=self._checkpoints,
            pauses=self._pauses,
            notices=self._notices,
            journal=self._journal,
            log=log,
        )

    # The life of the process

    def open(self) -> None:
        """
        Become ready: everything that an emergency needs is in memory before the first answer.

        Raises:
            OSError: the socket cannot be made.
        """
        self._catch_signals()
        selfcare.allow_many_connections()
        with suppress(OSError):
            os.chdir("/")  # keep no disk from being unmounted
        journal = self._journal.open()
        self._watching.recover(journal)
        self._front.recover_quiet(journal)
        self._journal.start()
        for fd, _ in self._observer.wakeups.fds():
            self._poller.add(fd, READ, partial(self._woken, fd))
        self._tick()
        self._server.open()
        score = selfcare.last_to_be_killed()
        selfcare.settle_garbage()
        self._front.memory_fault = selfcare.lock_memory()
        self._front.note("started")
        self._log.info(
            f"watchdog {__version__} watches",
            pid=os.getpid(),
            socket=self._socket_path,
            tasks=len(self._front.tasks()),
            locked_memory=self._front.memory_fault is None,
            oom_score_adj=score,
        )
        if self._front.memory_fault:
            self._log.debug(self._front.memory_fault)
        self._systemd.ready()

    def loop(self) -> None:
        """Look, decide, act, answer, until told to end."""
        while not self._front.stopping:
            self._poller.wait(self._wait_s(time.monotonic()))
            self._faults.guard("requests", self._server.work)
            now = time.monotonic()
            self._faults.guard("chores", partial(self._collect, now))
            if self._observer.wants_tick:
                self._watching.look_now()
            if now >= self._watching.next_look_mono_s:
                self._tick()
            if now >= self._next_chores_mono_s:
                self._next_chores_mono_s = now + _CHORES_S
                self._faults.guard("chores", partial(self._chores, now))
            if self._reloading:
                self._reloading = False
                with suppress(ConfigError):  # it is a fault by now, and in the log
                    self._front.reload()
            if self._systemd.beat_s is not None and now >= self._next_beat_mono_s:
                self._next_beat_mono_s = now + self._systemd.beat_s
                self._systemd.alive()

    def close(self) -> None:
        """Finish what was begun, as far as that is quick, and put everything away."""
        self._systemd.stopping()
        self._front.note("stopped")
        for step in (
            lambda: self._worker.close(_END_S),
            self._server.close,
            lambda: self._notices.close(_END_S),
            self._watching.keep_state,
            lambda: self._journal.close(_END_S),
            self._obituaries.close,
            self._agents.close,
            self._observer.close,
            self._waker.close,
            self._poller.close,
        ):
            self._faults.guard("end", step)
        self._log.info("watchdog has ended; nothing is watched now")

    # One turn of the loop

    def _tick(self) -> None:
        self._watching.tick(self._acts, self._obituaries, self._front.publish)
        self._front.cost.update(time.monotonic())

    def _collect(self, now_mono_s: float) -> None:
        """Whatever other threads and processes have finished, and whatever is overdue."""
        if self._journal.reopened:
            self._journal.reopened = False
            self._watching.journal_reopened()
        self._journal.collect()
        self._worker.collect()
        self._checkpoints.expire(now_mono_s)
        self._notices.look(now_mono_s)
        self._agents.look(now_mono_s)
        while self._journal.notes:
            self._log.warning(self._journal.notes.popleft())

    def _chores(self, now_mono_s: float) -> None:
        self._front.look_quiet()
        self._server.sweep(now_mono_s)
        self._server.keep()
        if now_mono_s >= self._next_state_mono_s:
            self._next_state_mono_s = now_mono_s + _STATE_S
            self._watching.keep_state()
        if not self._lock.keep():
            self._log.error("another daemon has taken over; this one ends")
            self._front.stopping = True

    def _wait_s(self, now_mono_s: float) -> float:
        if self._server.busy:
            return 0.0
        due = [self._watching.next_look_mono_s, self._next_chores_mono_s]
        for deadline in (
            self._checkpoints.next_deadline_mono_s(),
            self._notices.next_deadline_mono_s(),
            self._next_beat_mono_s if self._systemd.beat_s is not None else None,
        ):
            if deadline is not None:
                due.append(deadline)
        wait_s = max(0.0, min(due) - now_mono_s)
        look_s = self._agents.look(now_mono_s)
        return wait_s if look_s is None else min(wait_s, look_s)

    def _woken(self, fd: int, _: int) -> None:
        """Pressure, or a memory group that nears its limit."""
        wakeup = self._observer.wakeups.fired(fd)
        if wakeup is not None:
            self._log.debug("woken", source=wakeup.source, path=wakeup.path, detail=wakeup.detail)
            self._watching.look_soon()

    # Messages

    def _handle(
        self, connection: Connection, method: str, params: dict[str, Any], reply: Any
    ) -> None:
        self._methods.handle(connection, method, params, reply)

    def _connection_ended(self, connection: Connection) -> None:
        self._agents.connection_ended(connection, time.monotonic())

    def _send_to_agent(self, agent: Agent, method: str, params: Mapping[str, Any]) -> None:
        if agent.connection is not None:
            self._server.send(
                agent.connection, {"jsonrpc": "2.0", "method": method, "params": dict(params)}
            )

    def _agent_ended(self, agent: Agent) -> None:
        self._checkpoints.agent_gone(agent.key, "The training has ended before it could save.")
        self._obituaries.agent_ended(agent)
        self._watching.look_soon()

    # Signals

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._waker.fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.signal(signal.SIGINT, self._on_end)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._on_hangup)

    def _on_end(self, number: int, _: object) -> None:
        self._log.info("told to end", signal=signal.Signals(number).name)
        self._front.stopping = True

    def _on_hangup(self, _: int, __: object) -> None:
        if _terminal_is_gone():
            self._front.stopping = True  # it ran in the foreground of a terminal that was closed
        else:
            self._reloading = True


def _terminal_is_gone() -> bool:
    """We were started in the foreground of a terminal, and it was closed."""
    try:
        os.tcgetpgrp(0)
    except OSError as error:
        import errno

        return error.errno == errno.EIO
    return False
