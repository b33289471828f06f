"""
Where NVIDIA's driver library lies, found without loading it: loading it is the child's risk.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import read_bytes

NAME = "libnvidia-ml.so.1"
_CACHED = re.compile(rb"(/[^\0]*/libnvidia-ml\.so\.1)\0")
_CACHE_LIMIT = 8 << 20
# The loader does not search all of these: NixOS, containers, WSL. Where it does, it wins.
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
)
_OTHER_WORD_SIZE = re.compile(r"/(?:i[3-6]86[^/]*|lib32|arm-linux[^/]*)/")
_VERSION = re.compile(r"\.so\.(\d{2,}(?:\.\d+)+)$")
# What appears when a driver is loaded; /dev/dxg is Windows' card seen from WSL.
_SIGNS = ("/proc/driver/nvidia/version", "/sys/module/nvidia", "/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Library:
    """A driver library on disk."""

    path: str
    folder: str | None = None  # where the loader would not look by itself
    version: str | None = None  # of the driver that it belongs to, by its file's name


def find(
    env: Mapping[str, str], root: str = "", platform: str = sys.platform, word: int = sys.maxsize
) -> Library | None:
    """
    The library that nvidia-ml-py would load, or could be made to.

    Args:
        env: LD_LIBRARY_PATH is followed; on Windows WINDIR and ProgramFiles.
        root: stands before every absolute path but those in `env`.
        platform: as sys.platform; there is no such library for macOS.
        word: the interpreter's largest index: a library for 32 bits is of no use to 64.
    """
    if platform == "win32":
        return _on_windows(env)
    if not platform.startswith("linux"):
        return None
    for folder in env.get("LD_LIBRARY_PATH", "").split(":"):
        path = f"{folder}/{NAME}"
        if folder and os.path.exists(path):
            return Library(path, None, _version(path))
    wide = word > 2**32
    for path in _in_cache(root):
        if not (wide and _OTHER_WORD_SIZE.search(path)) and os.path.exists(root + path):
            return Library(path, None, _version(root + path))
    for folder in _FOLDERS:
        path = f"{root}{folder}/{NAME}"
        if os.path.exists(path):
            return Library(path, root + folder, _version(path))
    return None


def signs(root: str = "") -> tuple[bool, ...]:
    """What there is of a loaded driver; a change is a reason to look for everything anew."""
    return tuple(os.path.exists(root + sign) for sign in _SIGNS)


def module_version(root: str = "") -> str | None:
    """Version of the loaded kernel module; None: none is loaded, or it does not say."""
    try:
        said = read_bytes(f"{root}/sys/module/nvidia/version", 256)
    except SensorError:
        return None
    return said.decode("ascii", "replace").strip() or None


def _version(path: str) -> str | None:
    found = _VERSION.search(os.path.realpath(path))
    return found.group(1) if found else None


def _in_cache(root: str) -> list[str]:
    """Paths that ldconfig has noted (ld.so.cache holds them as plain strings)."""
    try:
        cache = read_bytes(f"{root}/etc/ld.so.cache", _CACHE_LIMIT)
    except SensorError:
        return []
    return [os.fsdecode(path) for path in _CACHED.findall(cache)]


def _on_windows(env: Mapping[str, str]) -> Library | None:
    folder = {name.upper(): value for name, value in env.items()}
    windows = folder.get("WINDIR", "C:\\Windows")
    programs = folder.get("PROGRAMFILES", "C:\\Program Files")
    for path in (
        os.path.join(windows, "System32", "nvml.dll"),
        os.path.join(programs, "NVIDIA Corporation", "NVSMI", "nvml.dll"),
    ):
        if os.path.exists(path):
            return Library(path)
    return None
