"""
The thread that talks to the daemon, so that the screen never waits for it.

Reconnects for as long as it runs. Requests of the screen are answered in turn, each by a callback
in this thread; the screen brings the answers over to its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from watchdog_app.base.errors import DaemonNotRunning, WatchdogError
from watchdog_app.client.client import Client

_RETRY_S = 1.0
_SLICE_S = 0.2  # a request of the screen waits no longer than this for its turn
_ANSWER_S = 330.0  # a save of a large model on a slow disk

Answer = Callable[[Any, WatchdogError | None], None]


class Link:
    """
    Args:
        status: called with each status object.
        lost: called once for each loss, with what is to be said about it.
    """

    def __init__(
        self, status: Callable[[dict[str, Any]], None], lost: Callable[[str], None]
    ) -> None:
        self._status = status
        self._lost = lost
        self._requests: queue.SimpleQueue[tuple[str, dict[str, Any], Answer]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog-link", daemon=True)

    def start(self) -> None:
        """Begin to talk."""
        self._thread.start()

    def close(self) -> None:
        """Say no more; what waits is dropped."""
        self._ended.set()

    def ask(self, method: str, answer: Answer, **params: Any) -> None:
        """Ask the daemon for something; `answer` is called with the result or the error."""
        if method.startswith("task."):
            # These take a while: a connection of their own, so that the view goes on meanwhile.
            args = (method, params, answer)
            threading.Thread(target=self._ask_apart, args=args, daemon=True).start()
        else:
            self._requests.put((method, params, answer))

    def _run(self) -> None:
        told = False
        while not self._ended.is_set():
            try:
                with Client.connect() as client:
                    told = False
                    self._follow(client)
            except WatchdogError as error:
                self._refuse_all(error)
                if not told:
                    self._lost(str(error))
                    told = True
            self._ended.wait(_RETRY_S)

    def _follow(self, client: Client) -> None:
        self._status(client.call("status"))
        client.call("subscribe", topics=["status"])
        while not self._ended.is_set():
            end = time.monotonic() + _SLICE_S
            for message in client.notifications(_SLICE_S):
                params = message.get("params")
                if message.get("method") == "status" and isinstance(params, dict):
                    self._status(params)
                if time.monotonic() >= end or not self._requests.empty():
                    break
            while not self._requests.empty():
                method, params, answer = self._requests.get()
                try:
                    result = client.call(method, **params)
                except DaemonNotRunning as error:
                    answer(None, error)
                    raise
                except WatchdogError as error:
                    answer(None, error)
                else:
                    answer(result, None)

    def _refuse_all(self, error: WatchdogError) -> None:
        while not self._requests.empty():
            self._requests.get()[2](None, error)

    @staticmethod
    def _ask_apart(method: str, params: dict[str, Any], answer: Answer) -> None:
        try:
            with Client.connect() as client:
                result = client.call(method, reply_timeout_s=_ANSWER_S, **params)
        except WatchdogError as error:
            answer(None, error)
        else:
            answer(result, None)
