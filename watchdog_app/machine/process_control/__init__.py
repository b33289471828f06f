"""
Pause and resume a whole task, with the same functions on every operating system.

A pause stops the processes that the caller names and all their descendants. So it never stops the
task's shell, which is the parent. It also never stops:

- watchdog itself or an ancestor of watchdog;
- another user's process or a kernel thread;
- another task, or a shell in which a user types.

Before each signal, watchdog checks again that pid and start time still name the same process.
"""

from __future__ import annotations

import sys

# Import now, not at the first pause: by then memory is short and the disk is busy.
if sys.platform.startswith("linux"):
    from watchdog_app.machine.process_control.linux import is_stopping, pause, process_tree, resume
else:
    from watchdog_app.machine.process_control.psutil import is_stopping, pause, process_tree, resume
from watchdog_app.machine.process_control.linux import Paused

__all__ = ["Paused", "is_stopping", "pause", "process_tree", "resume"]
