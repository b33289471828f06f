"""
Where a shared library lies, in the order of the dynamic loader.

Source: ld.so(8); glibc, sysdeps/generic/dl-cache.h: the cache holds paths as plain strings.
"""

from __future__ import annotations

import os

from watchdog_app.base.linux.files import read_or_empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CACHE_BYTES = 8 << 20
# The loader does not search all of these: NixOS, containers, WSL. Where it does, it wins.
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
    The copies of a library that are there, the one that the loader takes first.

    Args:
        name: as programs ask for it: "libcuda.so.1".
        first: folders that it searches before all others, as they are: LD_LIBRARY_PATH.
        root: stands before all other folders.

    Returns:
        The path of each, and whether the loader looks there by itself. One may come twice.
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
