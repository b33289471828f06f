"""Prometheus and its tools, installed or unpacked by packaging/setup.sh."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

UNPACKED = Path(sys.prefix) / "neighbours/root/usr/bin"


def tool(name: str) -> str:
    """Path of a program of Prometheus; skips the test where it is missing."""
    path = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if path is None:
        pytest.skip(f"{name} is not here: apt-get download failed, or this is not Debian")
    return path


def free_port() -> int:
    """A TCP port that nobody uses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
