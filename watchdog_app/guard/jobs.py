"""
What a supervisor has others do: children that copy a training, or ask the daemon to have it saved.

Each is a fork with a deadline that writes one line into a pipe. What it needs is imported in it:
the supervisor itself stays small, and does not die of what a page from a training may hold.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_BYTES = 16384
COPY_DEADLINE_S = 120.0
ASK_DEADLINE_S = 60.0
TELL_DEADLINE_S = 5.0


class Job:
    """A child at work. `fd` becomes readable when it has ended or has something to say."""

    def __init__(self, pid: int, work: Callable[[], dict[str, Any]], deadline_s: float) -> None:
        """
        Begin.

        Args:
            pid: of the training that it is about.
            work: done in the child; what it returns is `result` there and here.
            deadline_s: after it the child is killed.

        Raises:
            OSError: no process can be started.
        """
        self.pid = pid
        self.result: dict[str, Any] | None = None
        self.end_mono_s = time.monotonic() + deadline_s
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        self._said = b""
        try:
            self._child = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(write)
            raise
        if self._child == 0:
            _be_child(self.fd, write, work)
        os.close(write)

    def look(self, now: float) -> bool:
        """Whether it has ended, by itself or by its deadline; `result` is then set."""
        if now > self.end_mono_s:
            with suppress(OSError):
                os.kill(self._child, signal.SIGKILL)
            self._finish({"ok": False, "why": "it took too long"})
            return True
        try:
            while True:
                more = os.read(self.fd, _MOST_BYTES)
                if not more:
                    break
                self._said += more
        except BlockingIOError:
            return False
        except OSError:
            pass
        try:
            found = json.loads(self._said)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            found = {"ok": False, "why": "the copier ended without a word"}
        self._finish(found)
        return True

    def drop(self) -> None:
        """It is not wanted any more."""
        if self.result is None:
            with suppress(OSError):
                os.kill(self._child, signal.SIGKILL)
            self._finish({"ok": False, "why": "it was given up"})

    def _finish(self, result: dict[str, Any]) -> None:
        self.result = result
        os.close(self.fd)
        with suppress(ChildProcessError):
            os.waitpid(self._child, 0)


def _be_child(read: int, write: int, work: Callable[[], dict[str, Any]]) -> None:
    code = 1
    try:
        os.close(read)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.write(write, json.dumps(work()).encode()[:_MOST_BYTES])
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(write, json.dumps({"ok": False, "why": repr(error)[:500]}).encode())
    finally:
        os._exit(code)


def copy(pid: int, start_time: int, page: str) -> dict[str, Any]:
    """Copy one training that stands still: {"ok", "path", "step"} or {"ok", "state", "why"}."""
    from watchdog_app.guard import copier

    found = copier.look(pid, start_time, page)
    if found.state != "ready":
        return {"ok": False, "state": found.state, "why": found.why or found.state}
    try:
        saved = copier.copy(pid, start_time, page, found.directory, COPY_DEADLINE_S * 0.9)
    except copier.CopyError as error:
        return {"ok": False, "state": "failed", "why": str(error)}
    return {"ok": True, "path": saved.path, "step": saved.step, "bytes": saved.bytes}


def ask(pid: int) -> dict[str, Any]:
    """Have the daemon ask one training to save: as `copy`."""
    from watchdog_app.base.errors import WatchdogError
    from watchdog_app.client.client import Client

    try:
        with Client.connect() as daemon:
            answer = daemon.call(
                "task.checkpoint",
                task=str(pid),
                wait=True,
                timeout_s=ASK_DEADLINE_S * 0.9,
                reply_timeout_s=ASK_DEADLINE_S,
            )
    except WatchdogError as error:
        return {"ok": False, "state": "failed", "why": str(error)}
    found = [each for each in answer.get("requests", []) if each.get("status") == "done"]
    if not found:
        return {"ok": False, "state": "failed", "why": "its agent did not save"}
    rescue = found[0].get("rescue") or {}
    return {"ok": True, "path": rescue.get("path"), "step": rescue.get("step")}


def tell() -> dict[str, Any]:
    """Let the daemon look at the guards now, where one runs."""
    from watchdog_app.base.errors import WatchdogError
    from watchdog_app.client.client import Client

    try:
        with Client.connect(timeout_s=TELL_DEADLINE_S / 2) as daemon:
            daemon.call("guard.changed")
    except WatchdogError as error:
        return {"ok": False, "why": str(error)}
    return {"ok": True}
