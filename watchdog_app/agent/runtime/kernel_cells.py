"""
The cells of this notebook: record in each rescue which have run, and show output below one.

A rescue contains numbers and no text, because cells may contain secrets. A resume reads the text
from IPython's history database, or without a history from the notebook file.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from html import escape
from typing import Any

from watchdog_app.base import codec
from watchdog_app.rescue.identity.notebook import ipython_shell, running_cell_number

KEY = "cells"  # in a rescue's metadata
_MAX_CELLS = 10_000  # cells; a loop that runs cells automatically is not a notebook
_KERNEL_ID = re.compile(r"kernel-(.+)\.json")

_failed: set[int] = set()  # cells of this process that ended with an error
_listening = False


@dataclass(frozen=True, slots=True)
class Cells:
    """What a rescue records about the session of its notebook."""

    session: int  # session number in IPython's history database
    history: str  # file of that database; "" if the history is off
    kernel: str | None  # Jupyter's kernel id, which survives a restart
    running: int  # number of the cell that trained
    failed: tuple[int, ...]
    check: int | None = None  # CRC-32 of the text of the cell that trained
    # Sixteen bits of each cell's CRC-32: enough to recognize the cell, too few to guess a secret.
    checks: tuple[int | None, ...] = ()  # of the cells 1, 2, ...; None: unknown


def kernel_id() -> str | None:
    """Jupyter's id of this kernel, from the name of its connection file; None if it has none."""
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    file = app.instance().connection_file if app is not None and app.initialized() else ""
    found = _KERNEL_ID.fullmatch(os.path.basename(str(file)))
    return found[1] if found else None


def record_failed_cells() -> None:
    """Start recording which cells end with an error."""
    global _listening
    events = getattr(ipython_shell(), "events", None)
    if not _listening and events is not None:
        _listening = True
        events.register("post_run_cell", _on_cell_end)


def record() -> dict[str, Any] | None:
    """The session of this notebook as JSON values; None outside IPython. Never raises."""
    try:
        shell = ipython_shell()
        if shell is None:
            return None
        history = shell.history_manager
        enabled = bool(getattr(history, "enabled", False))
        running = running_cell_number(shell)
        text = shell.user_ns.get(f"_i{running}")
        return {
            "session": int(history.session_number),
            "history": os.path.abspath(str(history.hist_file)) if enabled else "",
            "kernel": kernel_id(),
            "running": running,
            "failed": sorted(_failed),
            "check": text_checksum(text) if isinstance(text, str) else None,
            "checks": [_short_checksum(shell.user_ns.get(f"_i{n}")) for n in range(1, running + 1)],
        }
    except Exception:  # a custom shell may lack any of these attributes
        return None


def read(meta: Mapping[str, Any]) -> Cells | None:
    """The session that `record` wrote into a rescue; None if the rescue is not of a notebook."""
    try:
        cells: Cells = codec.decode(Cells, meta.get(KEY))
    except ValueError:
        return None
    return cells if 0 < cells.running <= _MAX_CELLS else None


def cell_texts(cells: Cells, notebook: str | None) -> dict[int, str]:
    """
    The text of each cell that had run, by its number, if it is still available.

    Args:
        cells: the session in the rescue.
        notebook: path of the .ipynb, for cells that the history lacks.
    """
    found = {}
    checks = dict(enumerate(cells.checks, 1))
    for number, text in _from_notebook(notebook) if notebook is not None else ():
        # A saved notebook also contains cells of earlier sessions, with the numbers of those
        # sessions.
        if number <= cells.running and checks.get(number) == _short_checksum(text):
            found[number] = text
    if not _has_running_cell(found, cells):
        found = {}  # the notebook was run or changed since
    kept = _from_history(cells)
    # otherwise the database was recreated, and this session number means another session
    if _has_running_cell(kept, cells):
        for number, text in kept.items():
            if checks.get(number) in (None, _short_checksum(text)):
                found[number] = text
    return dict(sorted(found.items()))


def _short_checksum(text: object) -> int | None:
    return text_checksum(text) & 0xFFFF if isinstance(text, str) else None


def text_checksum(text: str) -> int:
    """CRC-32 of a text; identifies the text that ran."""
    return zlib.crc32(text.rstrip("\n").encode("utf-8", "surrogatepass"))


def _has_running_cell(found: Mapping[int, str], cells: Cells) -> bool:
    text = found.get(cells.running)
    return text is not None and (cells.check is None or cells.check == text_checksum(text))


def _from_history(cells: Cells) -> dict[int, str]:
    if not os.path.isfile(cells.history):
        return {}
    import sqlite3
    from urllib.parse import quote

    # Wait for a database that another kernel is writing.
    where = f"file:{quote(cells.history)}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(where, uri=True, timeout=5)) as database:
        rows = database.execute(
            "SELECT line, source_raw FROM history WHERE session = ? AND line <= ?",
            (cells.session, cells.running),
        )
        return {int(line): str(text) for line, text in rows if text is not None}
    return {}


def _from_notebook(path: str) -> list[tuple[int, str]]:
    """The cells of a saved notebook, with the execution number of their last run."""
    try:
        with open(path, encoding="utf-8") as file:
            cells = json.load(file)["cells"]
        return [
            (int(each["execution_count"]), "".join(each["source"]))
            for each in cells
            if each.get("cell_type") == "code" and each.get("execution_count")
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _on_cell_end(result: Any = None) -> None:
    number = getattr(result, "execution_count", None)
    if number is not None and not getattr(result, "success", True):
        _failed.add(int(number))


# Most bytes of each text in a saved notebook, where it occurs twice: less than 2 KB in all.
_MOST_SHOWN = {"title": 240, "body": 1000, "saved": 240}
_shown: tuple[str, int] | None = None  # display id, and number of the cell


def show_notification(params: Any) -> None:
    """
    Show a notification below the cell that runs, or remove it; only in a Jupyter kernel.

    Args:
        params: `title`, `body` and `saved` of the daemon's `agent.notification`; an empty title
            removes the output.
    """
    global _shown
    shell = ipython_shell()
    if getattr(shell, "kernel", None) is None or not isinstance(params, dict):
        return
    title, body, saved = (_clip(params.get(key), most) for key, most in _MOST_SHOWN.items())
    count = int(shell.execution_count)
    if _shown is not None and (not title or _shown[1] != count):
        _publish(shell, {"text/plain": "", "text/html": ""}, _shown[0], update=True)
        _shown = None
    if not title:
        return
    update = _shown is not None
    _shown = _shown or (f"watchdog-{count}", count)
    at = time.strftime("%H:%M:%S")
    lines = [f"watchdog at {at}: {title}", *body.split("\n"), *([saved] if saved else [])]
    first, *rest = (escape(line) for line in lines)
    html = (
        '<div style="border-left:4px solid #d5281e;padding:2px 10px"><b>'
        f"{first}</b><br>{'<br>'.join(rest)}</div>"
    )
    _publish(shell, {"text/plain": "\n".join(lines), "text/html": html}, _shown[0], update=update)


def _publish(shell: Any, data: dict[str, str], display_id: str, *, update: bool) -> None:
    """Send it past `shell.display_pub`, in whose place `%%capture` puts its own."""
    kind = "update_display_data" if update else "display_data"
    content = {"data": data, "metadata": {}, "transient": {"display_id": display_id}}
    shell.kernel.send_response(shell.kernel.iopub_socket, kind, content)


def _clip(text: Any, most_bytes: int) -> str:
    """The start of a text that takes no more bytes in JSON, once plain and once as HTML."""
    shown = str(text or "").encode("utf-8", "replace").decode()
    for at, char in enumerate(shown):
        for form in (char, escape(char).replace("\n", "<br>")):
            most_bytes -= len(json.dumps(form, ensure_ascii=False).encode()) - len('""')
        if most_bytes < 0:
            return shown[:at]
    return shown
