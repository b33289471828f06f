"""
Notices to people: a companion shows them, or a one-shot helper does.

The daemon itself never talks to a desktop: that takes libraries larger than
the daemon, and a bus that hangs would hang it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.core.settings import NotifySettings
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.poller import READ, Poller
from watchdog_app.daemon.selfcare import ordinary_to_be_killed
from watchdog_app.daemon.server import Server

COMPANION_S = 2.0  # a companion is given this long to acknowledge
_HELPER_S = 25.0
_MOST_HELPERS = 2
_MOST_WAITING = 50
_MOST_ANSWER_BYTES = 65536

Told = Callable[[bool, str], None]  # delivered, detail


@dataclass(slots=True)
class _Waiting:
    """A notice that a companion has and has not acknowledged."""

    notice: dict[str, Any]
    told: Told
    until_mono_s: float


@dataclass(slots=True)
class _Helper:
    process: subprocess.Popen[bytes]
    notice: dict[str, Any]
    told: Told
    until_mono_s: float
    answer: bytearray = field(default_factory=bytearray)


class Notices:
    """Brings each notice to somebody, and says whether that worked."""

    def __init__(self, poller: Poller, server: Server, settings: NotifySettings, log: Log) -> None:
        self.settings = settings
        self.shown = 0
        self.undelivered = 0
        self.last_failure: str | None = None
        self._poller = poller
        self._server = server
        self._log = log
        self._companion: dict[str, _Waiting] = {}
        self._queue: deque[tuple[dict[str, Any], Told]] = deque()
        self._helpers: dict[int, _Helper] = {}

    def show(self, notice: dict[str, Any], told: Told) -> None:
        """
        Bring a notice to somebody; `told` is called once, now or later.

        Args:
            notice: as in docs/protocol.md.
        """
        if self._server.publish("notices", "notice", notice):
            until = time.monotonic() + COMPANION_S
            self._companion[notice["id"]] = _Waiting(notice, told, until)
        else:
            self._help(notice, told)

    def acknowledge(self, id_: str, delivered: bool, detail: str) -> None:
        """A companion says what became of a notice; of several, the first that showed it counts."""
        waiting = self._companion.get(id_)
        if waiting is not None and delivered:
            del self._companion[id_]
            self._end(waiting.told, True, detail or "shown by the companion")

    def look(self, now_mono_s: float) -> None:
        """Give up waiting where that has been long enough."""
        for id_, waiting in list(self._companion.items()):
            if now_mono_s >= waiting.until_mono_s:
                del self._companion[id_]
                self._help(waiting.notice, waiting.told)
        for helper in list(self._helpers.values()):
            if now_mono_s >= helper.until_mono_s:
                helper.process.kill()
                self._helper_ended(helper, f"The helper took longer than {_HELPER_S:g} s.")

    def next_deadline_mono_s(self) -> float | None:
        """When `look` has something to do."""
        waits = [w.until_mono_s for w in self._companion.values()]
        waits += [h.until_mono_s for h in self._helpers.values()]
        return min(waits, default=None)

    def own_pids(self) -> set[int]:
        """The helpers that run now."""
        return {helper.process.pid for helper in self._helpers.values()}

    def close(self, timeout_s: float) -> None:
        """Let the helpers finish, as far as that takes no longer than `timeout_s`."""
        end = time.monotonic() + timeout_s
        for waiting in list(self._companion.values()):
            self._help(waiting.notice, waiting.told)
        self._companion.clear()
        while self._helpers and time.monotonic() < end:
            self._poller.wait(0.1)
        for helper in list(self._helpers.values()):
            helper.process.kill()
            self._helper_ended(helper, "The daemon ended before it was shown.")

    def _help(self, notice: dict[str, Any], told: Told) -> None:
        if not (self.settings.desktop or self.settings.terminal or self.settings.command):
            self._end(told, False, "Every way of showing notices is off in [notify].")
        elif len(self._helpers) < _MOST_HELPERS:
            self._start_helper(notice, told)
        elif len(self._queue) < _MOST_WAITING:
            self._queue.append((notice, told))
        else:
            self._end(told, False, "Too many notices at once.")

    def _start_helper(self, notice: dict[str, Any], told: Told) -> None:
        order = {
            "notice": notice,
            "desktop": self.settings.desktop,
            "terminal": self.settings.terminal,
            "command": list(self.settings.command),
        }
        try:
            process = subprocess.Popen(
                # -P: the daemon's working folder holds no module of ours.
                [sys.executable, "-P", "-m", "watchdog_app.daemon.show_notice"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._end(told, False, f"The helper could not be started: {error}")
            return
        ordinary_to_be_killed(process.pid)
        if process.stdin is None or process.stdout is None:
            return
        with suppress(OSError):  # it ended at once: its answer, or none, is read below
            process.stdin.write(json.dumps(order).encode())  # far below what a pipe takes
            process.stdin.close()
        helper = _Helper(process, notice, told, time.monotonic() + _HELPER_S)
        out = process.stdout.fileno()
        os.set_blocking(out, False)
        self._helpers[out] = helper
        self._poller.add(out, READ, lambda _: self._read(helper))

    def _read(self, helper: _Helper) -> None:
        out = helper.process.stdout
        if out is None:
            return
        try:
            data = os.read(out.fileno(), 65536)
        except BlockingIOError:
            return
        if data and len(helper.answer) < _MOST_ANSWER_BYTES:
            helper.answer += data
        elif not data:
            self._helper_ended(helper, None)

    def _helper_ended(self, helper: _Helper, failure: str | None) -> None:
        out = helper.process.stdout
        if out is not None:
            self._poller.remove(out.fileno())
            self._helpers.pop(out.fileno(), None)
            out.close()
        if helper.process.stdin is not None:
            with suppress(OSError):
                helper.process.stdin.close()
        try:
            code = helper.process.wait(1.0)  # its output has ended: so has it, or it was killed
        except subprocess.TimeoutExpired:
            helper.process.kill()
            code = helper.process.wait()
        delivered, detail = False, failure or f"The helper ended with exit code {code}."
        if failure is None:
            with suppress(ValueError, KeyError, TypeError):
                answer = json.loads(bytes(helper.answer))
                delivered, detail = bool(answer["delivered"]), str(answer["detail"])
        self._end(helper.told, delivered, detail)
        if self._queue:
            self._start_helper(*self._queue.popleft())

    def _end(self, told: Told, delivered: bool, detail: str) -> None:
        if delivered:
            self.shown += 1
            self.last_failure = None
        else:
            self.undelivered += 1
            self.last_failure = detail
            self._log.warning("a notice could not be shown", detail=detail)
        told(delivered, detail)
