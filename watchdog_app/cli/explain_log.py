"""
What the system's journal says of a death, where the daemon could not read the kernel log itself.

`kernel.dmesg_restrict` keeps /dev/kmsg from ordinary users on most distributions. Members of the
groups adm and systemd-journal may read the same lines with journalctl, days later too. The lines
of earlyoom, nohang and systemd-oomd are there as well.
"""

from __future__ import annotations

import re

from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BEFORE_S, _AFTER_S = 30.0, 5.0
_WAIT_S = 5.0
_MOST_LINES = 4
_MOST_BYTES = 1 << 20
_LONGEST = 240
_GUARDS = ("systemd-oomd", "earlyoom", "nohang", "nohang-desktop")
# earlyoom: sending SIGTERM to process 42 uid 1000 "python": ...; nohang: pid: 42
_GUARDED = re.compile(r"(?:process|pid:?|PID:?) (\d+)\b")


def log_lines(death: dict[str, Any]) -> list[str]:
    """Further lines for "How we know"; none where the daemon read the log, or it cannot be read."""
    pid = death.get("worker") or death.get("pid")
    at = number_or_none(death.get("unix_s"))
    evidence = death.get("evidence")
    missing = any(
        isinstance(each, dict) and each.get("source") == "kernel" and each["certainty"] == "unknown"
        for each in (evidence if isinstance(evidence, list) else [])
    )
    if not missing or at is None or not isinstance(pid, int):
        return []
    found = []
    for line in _journal(at - _BEFORE_S, at + _AFTER_S):
        if _about(line, pid):
            found.append(f"  [exact] The system's journal says: {plain(line[:_LONGEST])}")
    return list(dict.fromkeys(found))[:_MOST_LINES]


def _about(line: str, pid: int) -> bool:
    from watchdog_app.machine.sensors.kernel_events import parse

    word = parse(line, 0.0)
    if word is not None:
        return word.pid == pid
    guarded = _GUARDED.search(line)
    return guarded is not None and int(guarded[1]) == pid


def _journal(begin_unix_s: float, end_unix_s: float) -> list[str]:
    import shutil
    import subprocess

    command = shutil.which("journalctl")
    if command is None:
        return []
    words = [command, "--no-pager", "-q", "-o", "cat", "-n", "2000"]
    words += [f"--since=@{begin_unix_s:.0f}", f"--until=@{end_unix_s:.0f}", "_TRANSPORT=kernel"]
    for guard in _GUARDS:
        words += ["+", f"_SYSTEMD_UNIT={guard}.service"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout[:_MOST_BYTES].decode("utf-8", "replace").splitlines()
