"""Output of the agent below the running notebook cell, which later texts replace."""

from __future__ import annotations

import json
import time
from html import escape
from typing import Any

from watchdog_app.rescue.identity.notebook import ipython_shell

# Most bytes of each text in a saved notebook, where it occurs twice: less than 2 KB in all.
_MOST = {"title": 240, "body": 1000, "saved": 240}
_shown: tuple[str, int] | None = None  # display id, and number of the cell


def show(params: Any) -> None:
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
    title, body, saved = (_clip(params.get(key), most) for key, most in _MOST.items())
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
