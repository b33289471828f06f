"""
The agent's line to the daemon: a thread that nobody waits for.

The training thread reads one attribute, `Link.wanted`, and leaves messages in
a bounded queue. Connecting, sending, waiting and trying again are the thread's.
Without a daemon the thread sleeps and looks again, at most every ten seconds.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.reporting import last_words
from watchdog_app.agent.reporting.checkpoint_request import CheckpointRequest
from watchdog_app.agent.reporting.line import Line

_CLOSE_WAIT_S = 1.0


class Link:
    """
    One training's line to the daemon. Every method returns at once and raises nothing of ours.

    `wanted` is the request that waits for the next step boundary, or None: a
    plain attribute, so that a training pays nothing for looking at it.
    """

    def __init__(
        self,
        framework: str,
        directory: str,
        notebook: str | None = None,
        socket_path: str | None = None,
        *,
        by_lines: bool = False,
    ) -> None:
        """
        Nothing happens before `start`.

        Args:
            framework: "keras", "tensorflow", ...
            directory: where rescues go, as an absolute path.
            notebook: path of the notebook, where known.
            socket_path: None: where this user's daemon listens.
            by_lines: the program does not go on from a rescue by itself.
        """
        self.wanted: CheckpointRequest | None = None
        self.step: int | None = None  # completed ones; set at each, told with the next report
        self._about = {
            "framework": framework,
            "directory": directory,
            "notebook": notebook,
            "resumes_itself": not by_lines,
        }
        self._socket_path = socket_path
        self._line: Line | None = None
        self._fields: dict[str, Any] = {}
        self._last_saved: dict[str, Any] | None = None
        # Of a loop that does not say when it ends: whether the program has left it.
        self.left: Callable[[], bool] | None = None

    @property
    def connected(self) -> bool:
        """Whether the daemon is listening to us now."""
        return self._line is not None and self._line.connected

    @property
    def acknowledges(self) -> bool:
        """Whether the daemon says when it has looked at what was announced."""
        return self._line is not None and self._line.acknowledges

    @property
    def considered(self) -> int | None:
        """The announcement that it last looked at; what it then asked for is in `wanted`."""
        return None if self._line is None else self._line.considered

    @property
    def page(self) -> str | None:
        """Where the daemon looks for what we publish; None: nowhere."""
        return None if self._line is None else self._line.page

    def start(self) -> None:
        """Begin to look for the daemon; does nothing when that has begun. Also after a fork."""
        if self._line is not None:
            return
        line = Line(self._about, _deliver_to(weakref.ref(self)), self._socket_path)
        line.fields = self._fields
        line.last_saved = self._last_saved
        line.left = self.left
        line.latest_step = _step_of(weakref.ref(self))
        try:
            line.start()
        except RuntimeError:  # no thread can be started, or the interpreter is about to exit
            return
        self._line = line
        _all.add(self)
        weakref.finalize(self, line.stop).atexit = False
        _hook()

    def report(self, **fields: Any) -> None:
        """Figures of `agent.report`, kept until the thread sends them: the newest once a second."""
        self._fields = {**self._fields, **fields}
        if self._line is not None:
            self._line.fields = self._fields
            self._line.trainer = _thread.get_ident()

    def report_soon(self, **fields: Any) -> None:
        """The same of what is news at once: a phase that begins, growth that is announced."""
        self.report(**fields)
        if self._line is not None:
            self._line.hurry()

    def accepted(self, request: str | int) -> None:
        """The save that `request` asks for is about to begin."""
        self._post("agent.progress", request=request, state="accepted")

    def progress(self, request: str | int, bytes_done: int, bytes_total: int) -> None:
        """The save is under way; of many such messages the newest is sent."""
        if self._line is not None:
            self._line.progress = {
                "request": request,
                "state": "saving",
                "bytes_done": bytes_done,
                "bytes_total": bytes_total,
            }

    def saved(
        self,
        request: str | int | None,
        path: str,
        step: int,
        bytes_: int,
        seconds: float,
        **extra: Any,
    ) -> None:
        """A rescue is complete; `request` is None when nobody asked for it."""
        told = {"path": path, "step": step, "bytes": bytes_, "seconds": seconds, **extra}
        told["saved_unix_s"] = time.time()
        self._last_saved = told
        if self._line is not None:
            self._line.last_saved = told
        self._post("agent.saved", request=request, rescue=told)

    def goes_on_from(self, path: str, step: int, bytes_: int, saved_unix_s: float) -> None:
        """The rescue that this training was restored from: until it saves anew, that one stands."""
        if self._last_saved is None:
            self._last_saved = {
                "path": path,
                "step": step,
                "bytes": bytes_,
                "seconds": 0.0,
                "saved_unix_s": saved_unix_s,
            }

    def failed(self, request: str | int | None, error: str, remedy: str | None) -> None:
        """The save did not happen; the training goes on."""
        self._post("agent.failed", request=request, error=error, remedy=remedy)

    def close(
        self, wait_s: float = _CLOSE_WAIT_S, *, finished: bool = True, failed: bool = False
    ) -> None:
        """
        Say good-bye and end the thread.

        Args:
            wait_s: for the thread, at most.
            finished: the training has ended well; otherwise it ends with the interpreter, and the
                daemon keeps what it knows of it until the process is gone.
            failed: it ends by an exception.
        """
        line, self._line = self._line, None
        self.wanted = None
        if line is None:
            return
        line.post("agent.bye", {"finished": finished, "failed": failed})
        line.stop()
        if line.connected:
            line.join(wait_s)

    def _post(self, method: str, **params: Any) -> None:
        if self._line is not None:
            self._line.post(method, params)

    def _drop(self) -> None:
        """In a forked child: the line is the parent's. Let go of it without a word."""
        line, self._line = self._line, None
        self.wanted = None
        if line is not None:
            line.abandon()


def named_ones(framework: str) -> list[Link]:
    """Those of trainings under way in this process for which the program named a Rescue."""
    return [
        each
        for each in list(_all)
        if each._line is not None
        and each._about["framework"] == framework
        and each._about["resumes_itself"]
    ]


def _deliver_to(link: weakref.ref[Link]) -> Callable[[CheckpointRequest], None]:
    # The thread must not keep the link alive: a training that was given up ends its line with it.
    def deliver(request: CheckpointRequest) -> None:
        found = link()
        if found is not None:
            found.wanted = request

    return deliver


def _step_of(link: weakref.ref[Link]) -> Callable[[], int | None]:
    def step() -> int | None:
        found = link()
        return None if found is None else found.step

    return step


_all: weakref.WeakSet[Link] = weakref.WeakSet()
_hooked = False


def _hook() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    last_words.listen()
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child
        )


def _close_all() -> None:
    failed = last_words.failed()
    for link in list(_all):
        link.close(finished=False, failed=failed)


# Held while a socket is being opened: a child forked at that moment would hold the parent's
# connection open without knowing, and the daemon would not notice the parent's death.
_gate_held = threading.local()
_GATE_WAIT_S = 0.05


def _before_fork() -> None:
    _gate_held.value = Line.gate.acquire(timeout=_GATE_WAIT_S)


def _after_fork() -> None:
    if getattr(_gate_held, "value", False):
        _gate_held.value = False
        Line.gate.release()


def _in_child() -> None:
    Line.gate = threading.Lock()
    for link in list(_all):
        link._drop()
