"""
NVIDIA's driver: where its library is on disk, how to call it, and messages for its failures.

This module does not load the library: only the reader takes that risk. The binding nvidia-ml-py
raises more than its own error. It raises NVMLLibraryMismatchError for an old driver and
UnicodeDecodeError for a name that is not UTF-8. Its own error can neither be hashed nor compared
with None. `Driver` turns each into a `DriverError` with a number of nvml.h.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import Fault


class Code(IntEnum):
    """Error numbers of nvml.h; a driver may know more."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


# The GPU or this driver does not support the question: asking again soon is useless.
UNSUPPORTED = {
    Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.INVALID_ARGUMENT,
    Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED,
}  # fmt: skip


class DriverError(Exception):
    """
    A question that the driver did not answer.

    Args:
        code: number in nvml.h.
        text: the driver's message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Driver:
    """The driver library: every call goes through `ask`."""

    def __init__(self, binding: Any, trace: Callable[[str], None] | None = None) -> None:
        """
        Args:
            binding: the module pynvml.
            trace: called with the name of each function before the call.
        """
        self.binding = binding
        self._trace = trace

    def ask(self, name: str, *arguments: Any) -> Any:
        """
        Call one function of the binding and return its answer.

        Raises:
            DriverError: the call failed.
        """
        function = getattr(self.binding, name, None)
        if function is None:  # an older nvidia-ml-py
            raise DriverError(Code.FUNCTION_NOT_FOUND, f"nvidia-ml-py has no {name}")
        if self._trace is not None:
            self._trace(name)
        try:
            return function(*arguments)
        except self.binding.NVMLError as error:
            code = getattr(error, "value", Code.UNKNOWN)
            raise DriverError(
                code if isinstance(code, int) else Code.UNKNOWN, _error_text(error)
            ) from error
        except self.binding.NVMLLibraryMismatchError as error:
            raise DriverError(Code.FUNCTION_NOT_FOUND, _error_text(error)) from error
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
            raise DriverError(Code.UNKNOWN, f"{name}: {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception as failed:  # the binding gets the message from the library
        return f"{type(error).__name__} ({type(failed).__name__})"


NAME = "libnvidia-ml.so.1"
_FOR_32_BITS = re.compile(r"/(?:i[3-6]86[^/]*|lib32|arm-linux[^/]*)/")
_VERSION = re.compile(r"\.so\.(\d{2,}(?:\.\d+)+)$")

DRIVER = "gpu.driver"
UPDATED = "gpu.driver.updated"  # library and loaded module differ in version
READER = "gpu.reader"
NOT_WATCHED = "GPUs are not watched; everything else is."
CHECK_LOG_REMEDY = (
    "See what the driver says: sudo dmesg | grep NVRM. If GPU programs fail too, restart."
)
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
_RELOAD = (
    "Restart the machine once trainings have saved; or end every program that uses a GPU, this "
    "daemon included (watchdog stop), and reload the driver: "
    "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
)


@dataclass(frozen=True, slots=True)
class Library:
    """A driver library on disk."""

    path: str
    # folder that the dynamic loader does not search; None: it finds the library
    folder: str | None = None
    version: str | None = None  # version of its driver, from the file name


def find_library(env: Mapping[str, str], root: str = "") -> Library | None:
    """
    Find the library that nvidia-ml-py would load, or could be made to load.

    Args:
        env: its LD_LIBRARY_PATH is searched.
        root: prefix of every absolute path except those in `env`.
    """
    listed = filter(None, env.get("LD_LIBRARY_PATH", "").split(":"))
    for path, searched in find_copies(NAME, listed, root):
        if not _FOR_32_BITS.search(path):
            return Library(path, None if searched else os.path.dirname(path), _version(path))
    return None


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


def module_version(root: str = "") -> str | None:
    """Read the version of the loaded kernel module; None: not loaded, or unknown."""
    version = read_or_empty(f"{root}/sys/module/nvidia/version", 256)
    return version.decode("ascii", "replace").strip() or None


def update_fault(library: Library | None, root: str) -> Fault | None:
    """
    Build the fault of a driver that was updated under the running system while a reader works.

    Args:
        library: the one on disk.
        root: prefix of /sys.
    """
    version, module = library.version if library else None, module_version(root)
    differ = version and module and version != module
    return _mismatch_fault(version, module, reading=True) if differ else None


def init_fault(code: int, message: str, library: Library | None) -> Fault:
    """
    Build the fault of a library that refuses to initialize.

    Args:
        code: number in nvml.h.
        message: the library's message.
        library: the one on disk.
    """
    if code == Code.VERSION_MISMATCH:
        return _mismatch_fault(
            library.version if library else None, module_version(), reading=False
        )
    what, remedy = _INIT_FAULTS.get(
        code, (f"The NVIDIA driver does not answer: {message} ({code}).", CHECK_LOG_REMEDY)
    )
    return Fault(DRIVER, f"{what} {NOT_WATCHED}", remedy)


def binding_fault(message: str) -> Fault:
    """Build the fault of nvidia-ml-py that cannot be imported."""
    return Fault(
        READER,
        f"The NVIDIA driver cannot be asked: {message}. {NOT_WATCHED}",
        "Install watchdog again in its environment, or there: pip install nvidia-ml-py",
    )


_INIT_FAULTS: dict[int, tuple[str, str]] = {
    Code.DRIVER_NOT_LOADED: (
        "The NVIDIA driver is installed and not loaded.",
        (
            "Load it: sudo modprobe nvidia. If that fails, nouveau may hold the GPU, or the "
            "module was not built for this kernel: see sudo dmesg | grep -i -e nvrm -e nouveau."
        ),
    ),
    Code.NO_PERMISSION: (
        "The NVIDIA driver refuses this user.",
        (
            "Allow it on the device files: ls -l /dev/nvidia*; usually the user has to be in the "
            "group video."
        ),
    ),
    Code.LIBRARY_NOT_FOUND: (
        "The NVIDIA driver library was found and cannot be loaded.",
        "Install the driver again: the file is damaged, or made for another machine.",
    ),
}


def _mismatch_fault(library: str | None, module: str | None, *, reading: bool) -> Fault:
    versions = f" (library {library}, loaded module {module})" if library and module else ""
    means = (
        "Running GPU jobs continue and are still watched; new ones fail until then."
        if reading
        else f"Running GPU jobs continue, new ones fail. {NOT_WATCHED}"
    )
    return Fault(
        UPDATED,
        f"The NVIDIA driver was updated under the running system{versions}. {means}",
        _RELOAD,
    )


def _version(path: str) -> str | None:
    found = _VERSION.search(os.path.realpath(path))
    return found.group(1) if found else None
