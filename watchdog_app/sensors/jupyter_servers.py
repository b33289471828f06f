"""
Stand-in until the REST reader: nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_app.sensors.notebooks import Session


class JupyterServers:
    """Nobody knows."""

    def __init__(self, proc: str, runtime_dirs: Sequence[str] | None) -> None:
        self._proc = proc
        self._dirs = runtime_dirs

    def of(self, kernel_id: str | None) -> Sequence[Session]:
        """Nothing."""
        return ()

    def look(self, connection_files: Sequence[tuple[str, int]], now_mono_s: float) -> bool:
        """Nothing new."""
        return False

    def close(self) -> None:
        """Nothing held."""
