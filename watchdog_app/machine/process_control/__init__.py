"""
Pause and resume a whole task, with the same functions on every operating system.

A pause stops the processes that the caller names and everything that descends
from them, and nothing else: never watchdog itself or what it runs under (so
never the shell of a task: that is its parent), never another user's process,
never a thread of the kernel, never another task or a shell that somebody types
in. Every process is identified anew, by pid and start time, in the moment it is
signalled.
"""

from __future__ import annotations

import sys

# Here, not at the first pause: memory is short by then, and the disk busy.
if sys.platform.startswith("linux"):
    from watchdog_app.machine.process_control.linux import is_stopping, pause, process_tree, resume
else:
    from watchdog_app.machine.process_control.psutil import is_stopping, pause, process_tree, resume
from watchdog_app.machine.process_control.linux import Paused

__all__ = ["Paused", "is_stopping", "pause", "process_tree", "resume"]
