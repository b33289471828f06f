"""
Find shared libraries in the order of the dynamic loader.

Source: ld.so(8); glibc, sysdeps/generic/dl-cache.h: the cache contains paths as plain strings.
"""

from __future__ import annotations

import os

from watchdog_app.base.linux.files import read_or_empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CACHE_BYTES = 8 << 20
# Other folders, for NixOS, containers and WSL. Paths that the loader searches come first.
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
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


def find_copies(name: str, first: Iterable[str], root: str = "") -> Iterator[tuple[str, bool]]:
    """
    The existing copies of a library, in the order of the loader.

    Args:
        name: name of the library: "libcuda.so.1".
        first: folders that the loader searches first (LD_LIBRARY_PATH), without `root`.
        root: prefix of all other folders.

    Returns:
        Pairs of path and whether the loader searches there. A path may appear twice.
    """
    known = [f"{folder.rstrip('/')}/{name}" for folder in first]
    known += [root + path for path in _cached_paths(name, root)]
    others = [f"{root}{folder}/{name}" for folder in _FOLDERS]
    for paths, searched in ((known, True), (others, False)):
        yield from ((path, searched) for path in paths if os.path.exists(path))


def _cached_paths(name: str, root: str) -> list[str]:
    cache = read_or_empty(f"{root}/etc/ld.so.cache", _CACHE_BYTES)
    ending = f"/{name}".encode()
    texts = [text for text in cache.split(b"\0") if text.endswith(ending)]
    return [os.fsdecode(text[text.index(b"/") :]) for text in texts]
