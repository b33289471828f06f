"""Notices as lines of text, on the daemon's standard error or any other stream."""

from __future__ import annotations

import time
from typing import TextIO

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.decisions import Notification
from watchdog_app.daemon.notify.channels import Delivery, to_type

_LINE = 500


class TerminalNotifier:
    """Writes each notice to `stream`; names in it cannot move the cursor or change colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def notify(self, notice: Notification) -> Delivery:
        """Write it."""
        at = time.strftime("%H:%M:%S", time.localtime(notice.unix_s))
        lines = [f"[{at}] watchdog: {clean(notice.title, _LINE)}"]
        lines += [f"           {clean(line, _LINE)}" for line in notice.body.splitlines()]
        lines += [f"           > {clean(line, _LINE)}" for line in to_type(notice)]
        text = "\n".join(lines) + "\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            return Delivery(False, "terminal", f"the terminal cannot be written to: {error}")
        return Delivery(True, "terminal", "")
