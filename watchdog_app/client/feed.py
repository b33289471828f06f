"""
The daemon's status at an interval and its notifications at once, across daemon restarts.

The feed uses a connection of its own in a thread of its own. The screen sets the interval.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from watchdog_app.base.errors import DaemonNotRunning, WatchdogError
from watchdog_app.client.client import Client, request
from watchdog_app.core.model.status import Notification, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

Answer = Callable[["Any", WatchdogError | None], None]

_ANSWER_S = 5.0
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0  # the feed connects to a started daemon within this time


@dataclass(eq=False)
class Feed:
    """
    Keeps a connection to the daemon.

    Args:
        on_status: called with each status, or with None and the reason why there is none.
        on_notification: called with each notification; must return soon. None: do not subscribe.
        role: "tray" or "cli".
        interval_s: seconds between two statuses.

    The feed's own thread calls both.
    """

    on_status: Callable[[Status | None, WatchdogError | None], None]
    on_notification: Callable[[Notification], None] | None = None
    role: str = field(default="cli", kw_only=True)
    interval_s: float = field(default=1.0, kw_only=True)
    _refresh_requested: bool = field(default=False, init=False)
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Make the thread, and what wakes it."""
        self._outbox: deque[tuple[str, Json]] = deque(maxlen=256)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="daemon-feed", daemon=True)

    def start(self) -> None:
        """Start the thread. The feed makes no call before."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection, after sending the messages that `send` has queued."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_ANSWER_S)
        if not self._thread.is_alive():
            self._wake_read.close()
            self._wake_write.close()

    def refresh(self) -> None:
        """Ask for the status now."""
        self._refresh_requested = True
        self._wake()

    def set_interval(self, seconds: float) -> None:
        """Set the seconds between two statuses."""
        if seconds < self.interval_s:
            self._wake()
        self.interval_s = seconds

    def send(self, method: str, **params: Any) -> None:
        """
        Queue a message that gets no answer. It is dropped if the connection ends before it is sent.
        """
        self._outbox.append((method, params))
        self._wake()

    def ask(self, method: str, done: Answer, *, wait_s: float = 10.0, **params: Any) -> None:
        """
        Make a request in a thread and on a connection of its own.

        Args:
            method: a method of docs/protocol.md.
            done: called in that thread with the result, or with None and the error.
            wait_s: time limit for the answer.
            params: the parameters of the method.
        """

        def run() -> None:
            try:
                result = request(method, wait_s=wait_s, **params)
            except WatchdogError as error:
                done(None, error)
            else:
                done(result, None)

        threading.Thread(target=run, name=f"ask-{method}", daemon=True).start()

    def _wake(self) -> None:
        with suppress(OSError):  # full: the thread wakes up anyway; closed: the thread has ended
            self._wake_write.send(b"x")

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._stopping:
            try:
                with Client.connect(role=self.role, timeout_s=_ANSWER_S) as client:
                    if self.on_notification is not None:
                        client.call("subscribe", topics=["notifications"])
                    retry_s = _FIRST_RETRY_S
                    self._serve(client)
            except WatchdogError as error:
                self._report_disconnected(error)
            except Exception as error:  # a bug of ours: report it and keep the feed running
                self._report_disconnected(
                    WatchdogError(f"A message of the daemon was not understood: {error!r}.")
                )
            if not self._stopping:
                self._sleep(retry_s)
                retry_s = min(_LONGEST_RETRY_S, 2 * retry_s)

    def _report_disconnected(self, error: WatchdogError) -> None:
        self._outbox.clear()
        if not self._stopping:
            with suppress(Exception):  # the callback may have caused the first error
                self.on_status(None, error)

    def _sleep(self, seconds: float) -> None:
        """Sleep until `refresh` or `stop` is called."""
        end = time.monotonic() + seconds
        while (
            not (self._stopping or self._refresh_requested)
            and (left_s := end - time.monotonic()) > 0
        ):
            select.select([self._wake_read], [], [], left_s)
            self._drain()
        self._refresh_requested = False

    def _serve(self, client: Client) -> None:
        last_mono_s = float("-inf")
        while True:
            while self._outbox:
                method, params = self._outbox.popleft()
                client.notify(method, **params)
            if self._stopping:
                return
            now = time.monotonic()
            if self._refresh_requested or now >= last_mono_s + self.interval_s:
                self._refresh_requested = False
                last_mono_s = now
                self.on_status(Status.read(client.call("status")), None)
                self._read_notifications(client)  # those that arrived before the answer
            left_s = max(0.0, last_mono_s + self.interval_s - time.monotonic())
            ready, _, _ = select.select([client.fileno(), self._wake_read.fileno()], [], [], left_s)
            self._drain()
            if client.fileno() in ready:
                self._read_notifications(client)

    def _read_notifications(self, client: Client) -> None:
        show = self.on_notification
        for message in client.notifications(0):
            params = message.get("params")
            wanted = message.get("method") == "notification" and isinstance(params, dict)
            if wanted and show is not None:
                show(Notification.read(params))
                self._refresh_requested = True

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass


def disconnect_reason(error: WatchdogError | None) -> str | None:
    """The reason for a missing status; None if the only reason is that no daemon runs."""
    return None if error is None or isinstance(error, DaemonNotRunning) else str(error)
