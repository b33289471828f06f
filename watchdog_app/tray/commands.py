"""
Run clicked commands, each in its own thread; show failures as notifications.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base import children
from watchdog_app.base.errors import ProtocolError, WatchdogError
from watchdog_app.base.text.terminal import plain, plain_block, shorten
from watchdog_app.client.client import request
from watchdog_app.core.explain.agent_lines import pause_advice, save_line
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.install.login import LoginSetting
from watchdog_app.tray import launching
from watchdog_app.tray.menu_model import Command, CommandKind, Target, short_name

Json = dict[str, Any]

_EXTRA_WAIT_S = 10.0  # in addition to the time that the action itself may take
_MAX_CONCURRENT = 8
_FAILURE_TITLES = {
    CommandKind.SAVE: "Not saved",
    CommandKind.PAUSE: "Could not pause",
    CommandKind.RESUME: "Could not resume",
    CommandKind.LIVE_VIEW: "The live view could not be opened",
    CommandKind.EXPLAIN: "There is no explanation",
    CommandKind.RESCUES: "The folder could not be opened",
    CommandKind.PROTECT: "Protection is as it was",
    CommandKind.SNOOZE: "Not snoozed",
    CommandKind.MORE_MEMORY: "Its limit is as it was",
    CommandKind.NO_LIMIT: "It is held as it was",
    CommandKind.END: "Not ended",
    CommandKind.START_DAEMON: "The daemon did not start",
    CommandKind.START_AT_LOGIN: "Start at login is as it was",
    CommandKind.SETTINGS: "The settings could not be opened",
    CommandKind.ENABLE_SAVING: "Saving is off as it was",
}
# Titles of the results of guard commands.
_GUARD_TITLES = {
    CommandKind.MORE_MEMORY: "Continues with more",
    CommandKind.NO_LIMIT: "Continues without a limit",
    CommandKind.END: "Ended",
}


@dataclass(eq=False)
class Commands:
    """
    Runs commands.

    Args:
        notify: shows a notification of this process.
        on_done: called after each command, because the status may have changed.
        status: returns the latest status, or None.
        login: setting to start at login; None: not available here.
    """

    notify: Callable[[Notification], None]
    on_done: Callable[[], None]
    status: Callable[[], Status | None]
    login: LoginSetting | None = None
    _running: set[Command] = field(default_factory=set, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def submit(self, command: Command, about: Notification | None = None) -> None:
        """
        Run a command in its own thread.

        Args:
            command: any command except `QUIT`. Ignored if it is already running (double click).
            about: the notification whose button was pressed; the answer replaces it.
        """
        with self._lock:
            if command in self._running or len(self._running) >= _MAX_CONCURRENT:
                return
            self._running.add(command)
        threading.Thread(target=self._run, args=(command, about), daemon=True).start()

    def _run(self, command: Command, about: Notification | None) -> None:
        try:
            result = self._execute(command)
            if result is not None:
                title, body, urgency = result
                self.notify(self._notification(command, about, title, body, urgency))
        except Exception as error:  # also our own bugs: the process must survive and report them
            text = str(error) if isinstance(error, WatchdogError) else repr(error)
            title = _FAILURE_TITLES[command.kind]
            if isinstance(error, ProtocolError):  # the daemon may be slow and still do it
                title = "No answer from the daemon"
                text += " What was asked for may still be done: look before you ask again."
            title = _with_name(title, command.task)
            self.notify(self._notification(command, about, title, text, "normal"))
        finally:
            with self._lock:
                self._running.discard(command)
            self.on_done()

    def _execute(self, command: Command) -> tuple[str, str, str] | None:
        """Run a command; return title, text and urgency of its result, or None to show nothing."""
        task = command.task
        if task is not None:
            self._check_same_process(task)
        if command.kind is CommandKind.SAVE and task is not None:
            return self._save(task)
        if command.kind is CommandKind.PAUSE and task is not None:
            self._request(command.kind, task)
            return _with_name("Paused", task), self._pause_advice(task), "normal"
        if command.kind is CommandKind.RESUME and task is not None:
            failures = self._request(command.kind, task).get("failures")
            if failures:
                raise WatchdogError(" ".join(map(str, failures)))
            return _with_name("Running again", task), "It continues where it was.", "low"
        if command.kind in _GUARD_TITLES and task is not None:
            text = shorten(plain_block(self._request(command.kind, task).get("text") or ""), 400)
            return _with_name(_GUARD_TITLES[command.kind], task), text, "low"
        if command.kind is CommandKind.SNOOZE:
            return self._snooze(command)
        if command.kind is CommandKind.PROTECT:
            request(
                "protection.set", wait_s=_EXTRA_WAIT_S, on=command.on is True, for_s=command.for_s
            )
        elif command.kind is CommandKind.LIVE_VIEW:
            launching.open_live_view(None if task is None else task.pid)
        elif command.kind is CommandKind.EXPLAIN:
            return self._explain(task)
        elif command.kind is CommandKind.RESCUES and command.path is not None:
            launching.open_folder(command.path)
        elif command.kind is CommandKind.ENABLE_SAVING:
            return self._enable_saving(command.path)
        elif command.kind is CommandKind.SETTINGS:
            launching.open_settings()
        elif command.kind is CommandKind.START_DAEMON:
            launching.start_daemon()
        elif command.kind is CommandKind.START_AT_LOGIN and self.login is not None:
            self.login.set(command.on is True)
        return None

    def _request(self, do: CommandKind, task: Target) -> Json:
        """Send the request of an action; return the answer."""
        action = ACTIONS[do.value]
        wait_s = action.params.get("timeout_s", 0.0) + _EXTRA_WAIT_S
        found = request(action.method, wait_s=wait_s, task=str(task.pid), **action.params)
        return found if isinstance(found, dict) else {}

    def _check_same_process(self, task: Target) -> None:
        """
        Check that the task's pid still belongs to the clicked task.

        Raises:
            WatchdogError: another process has the pid.
        """
        status = self.status()
        known = status.task(task.pid) if status is not None else None
        now = known.start_time if known is not None else None
        if task.start_time is not None and now not in (None, task.start_time):
            raise WatchdogError(
                f"{task.name} (pid {task.pid}) has ended; another program has its number now. "
                "Nothing was done."
            )

    def _save(self, task: Target) -> tuple[str, str, str]:
        requests = self._request(CommandKind.SAVE, task).get("requests")
        result = requests[0] if requests else {}
        if result.get("status") not in ("done", "requested"):
            detail = shorten(plain(result.get("detail") or ""), 300)
            raise WatchdogError(detail or "The daemon did not say why.")
        return _with_name("Saved", task), save_line(result), "low"

    def _pause_advice(self, task: Target) -> str:
        status = self.status()
        known = status.task(task.pid) if status is not None else None
        kept = "It keeps its memory and its state. Resume it here or in the menu of the icon."
        return "\n".join((kept, *pause_advice(known.kind if known is not None else None)))

    def _snooze(self, command: Command) -> tuple[str, str, str] | None:
        params: Json = dict(ACTIONS["snooze"].params)
        if command.incident:
            known = self.status()
            if known is not None and command.incident not in {one.id for one in known.incidents}:
                return _with_name("Nothing to snooze", command.task), "This is over already.", "low"
            params["incident"] = command.incident
        elif command.task is not None:
            params["task"] = str(command.task.pid)
        request("snooze", wait_s=_EXTRA_WAIT_S, **params)
        return None  # the user asked for silence

    def _enable_saving(self, python: str | None) -> tuple[str, str, str] | None:
        if python is None:
            command = children.watchdog_argv(["agent", "enable"])
            launching.run_in_terminal(command, launching.WAIT)
            return None
        text = shorten(plain_block(launching.enable_saving(python)), 600)
        return "Saving is on", text, "low"

    def _explain(self, task: Target | None) -> tuple[str, str, str] | None:
        arguments = ["explain"] if task is None else ["explain", str(task.pid)]
        status = self.status()
        if task is not None and status is not None and status.task(task.pid) is None:
            with suppress(WatchdogError):  # where no browser is, a terminal shows it
                launching.open_report(task.pid)
                return None
        try:
            launching.run_in_terminal(children.watchdog_argv(arguments), launching.PAGER)
        except WatchdogError:
            found = request(
                "explain", wait_s=_EXTRA_WAIT_S, task=None if task is None else str(task.pid)
            )
            text = shorten(plain_block(found["text"] if isinstance(found, dict) else ""), 1200)
            return _with_name("Explained", task), text, "low"
        return None

    def _notification(
        self, command: Command, about: Notification | None, title: str, body: str, urgency: str
    ) -> Notification:
        task = None if command.task is None else command.task.pid
        actions = []
        if command.kind is CommandKind.PAUSE and title.startswith("Paused"):
            actions.append({"key": "resume", "label": ACTIONS["resume"].label})
        return Notification.read(
            {
                # The answer replaces the previous answer to the same command.
                "id": f"own-{task or command.kind}",
                "incident": about.incident if about is not None else "",
                "urgency": urgency,
                "title": title,
                "body": body,
                "task": task,
                "start_time": None if command.task is None else command.task.start_time,
                "name": None if command.task is None else command.task.name,
                "actions": actions,
                "unix_s": time.time(),
            }
        )


def button_command(notification: Notification, key: str) -> Command | None:
    """Return the command of a notification's button; None for an unknown key."""
    pid = notification.task
    task = None
    if pid is not None:
        name = short_name(notification.name) if notification.name else f"pid {pid}"
        task = Target(pid, notification.start_time, name)
    if key not in ACTIONS or key == "not_now":  # the daemon never asks again in any case
        return None
    do = CommandKind(key)
    if do is CommandKind.ENABLE_SAVING:
        commands = [each.command for each in notification.actions if each.key == key]
        return Command(do, path=shlex.split(commands[0])[-1]) if any(commands) else None
    if do is CommandKind.LIVE_VIEW and notification.topic in ("exited", "restarted"):
        do = CommandKind.EXPLAIN  # the live view does not show an ended task
    if do is CommandKind.SNOOZE:
        return Command(do, task, incident=notification.incident or None)
    return Command(do, task) if task is not None or not ACTIONS[key].method else None


def _with_name(title: str, task: Target | None) -> str:
    return title if task is None else f"{title}: {task.name}"
