"""Output of the agent below the running notebook cell, which later texts replace."""

from __future__ import annotations

from html import escape
from typing import Any

from watchdog_app.rescue.identity.notebook import ipython_shell

_MOST_CHARS = 400  # of each text: a notebook that is saved meanwhile grows by less than 2 KB
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
    title, body, saved = (str(params.get(key) or "")[:_MOST_CHARS] for key in _KEYS)
    count = int(shell.execution_count)
    known = _shown is not None and _shown[1] == count
    if not title and _shown is None:
        return
    if title and not known:
        _shown = (f"watchdog-{count}", count)
    assert _shown is not None  # noqa: S101 - set above
    update = known or not title
    shell.display_pub.publish(
        data=_data(title, body, saved),
        metadata={},
        transient={"display_id": _shown[0]},
        update=update,
    )
    if not title:
        _shown = None


_KEYS = ("title", "body", "saved")


def _data(title: str, body: str, saved: str) -> dict[str, str]:
    if not title:
        return {"text/plain": "", "text/html": ""}
    lines = [f"watchdog: {title}", *body.split("\n"), *([saved] if saved else [])]
    first, *rest = (escape(line) for line in lines)
    html = (
        '<div style="border-left:4px solid #d5281e;padding:2px 10px"><b>'
        f"{first}</b><br>{'<br>'.join(rest)}</div>"
    )
    return {"text/plain": "\n".join(lines), "text/html": html}
