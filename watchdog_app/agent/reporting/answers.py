"""What the agent's own threads answer to the daemon's questions, while the training trains."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Mapping
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.reporting import stacks

Post = Callable[[str, Mapping[str, Any]], None]

_LONGEST = 200  # name of a request
_guard = Guard("the agent's search for what grows")
_tracing = _thread.allocate_lock()  # one at a time in a process


def answer(
    message: Mapping[str, Any],
    post: Post,
    trainer: int | None = None,
    step: Callable[[], int | None] = lambda: None,
) -> None:
    """
    Answer a message that asks for something that we know; all others are left alone.

    Args:
        message: of the daemon.
        post: sends a notification back, now or later, from any thread.
        trainer: identity of the thread that makes the steps.
        step: the step that the training is at; None: not known.
    """
    params = message.get("params")
    request = params.get("request") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(request, str) or len(request) > _LONGEST:
        return
    if message.get("method") == "agent.stacks":
        post("agent.stacked", {"request": request, **stacks.collect(trainer)})
    elif message.get("method") == "agent.leaks":
        seconds = params.get("seconds")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            # In a thread of its own: the line has to listen for a request to save meanwhile.
            _thread.start_new_thread(_trace, (request, float(seconds), post, step))


def _trace(request: str, seconds: float, post: Post, step: Callable[[], int | None]) -> None:
    if not _tracing.acquire(blocking=False):
        post("agent.leaked", {"request": request, "refused": "it is being traced already"})
        return
    try:
        with _guard:
            from watchdog_app.agent.reporting import python_growth

            def first(found: Mapping[str, Any]) -> None:
                post("agent.leaked", {"request": request, "interim": True, **found})

            found = python_growth.trace(seconds, step, first)
            post("agent.leaked", {"request": request, **found})
    finally:
        _tracing.release()
