"""Tasks that a daemon paused and left when it ended."""

from __future__ import annotations

import os

from watchdog_app.base import paths
from watchdog_app.base.text.terminal import plain


def left_paused() -> list[str]:
    """What is still paused, and the command that resumes it, a sentence each; else nothing."""
    copies = (
        os.path.join(where, "paused.json") for where in (paths.runtime_dir(), paths.state_dir())
    )
    if not any(map(os.path.exists, copies)):
        return []
    from watchdog_app.daemon import offline

    paused = offline.paused()
    if not paused:
        return []
    names = ", ".join(f"{plain(each['name'])} (pid {each['task']})" for each in paused)
    return [
        f"Still paused by watchdog: {names}.",
        f"Resume {'it' if len(paused) == 1 else 'them'}: watchdog resume --all",
    ]
