"""Whether the kernel killed something of a recorded task, and when."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_app.sensors import process_end


class KillCount:
    """
    The kernel's counts of memory kills, watched since this was made.

    A kill is counted in the victim's own group. Where that group is gone, as it
    is with its last process, or does not count, the machine's count decides.

    Source: kernel, mm/oom_kill.c (__oom_kill_process).
    """

    def __init__(self, folders: Iterable[str], proc: str = "/proc") -> None:
        """
        Args:
            folders: memory groups whose kills are meant.
            proc: where the proc file system is mounted.
        """
        self._proc = proc
        self._groups = {path: process_end.group_oom_kills(path) for path in set(folders)}
        self._host = process_end.host_oom_kills(proc)
        self.first_s: float | None = None  # of the recording, when a kill was first seen
        self.known = True  # False: nobody has counted, so that no kill does not mean none

    def look(self, now_s: float) -> bool:
        """Read the counts; whether the kernel has killed by now."""
        if self.first_s is None and self._risen():
            self.first_s = now_s
        return self.first_s is not None

    def _risen(self) -> bool:
        blind = not self._groups
        for path, before in self._groups.items():
            now = process_end.group_oom_kills(path)
            if now is None or before is None:
                blind = True
            elif now > before:
                return True
        if not blind:
            self.known = True
            return False
        host = process_end.host_oom_kills(self._proc)
        self.known = host is not None and self._host is not None
        return host is not None and self._host is not None and host > self._host
