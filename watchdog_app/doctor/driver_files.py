"""Files of the driver: kernel module, libraries, device nodes. Reads only, without findings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from watchdog_app.doctor import versions
from watchdog_app.doctor.machine import Machine
from watchdog_app.doctor.versions import Version
from watchdog_app.machine.gpu.nvml_driver import find_copies

_MODULE_VERSION = re.compile(
    r"(?:Kernel Module|Module for \S+)\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)"
)
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library of the driver."""

    path: str  # without the root
    version: Version  # from its file name; empty: unknown
    stub: bool  # a placeholder of the CUDA toolkit for linking, without any driver code

    @property
    def forward(self) -> bool:
        """
        Whether it is CUDA's forward compatibility package, which is newer than the module by
        design.
        """
        return "/compat/" in f"{self.path}/"


def module_version(machine: Machine) -> Version:
    """Read the version of the loaded kernel module; empty: not loaded, or unknown."""
    text = machine.read("/proc/driver/nvidia/version") or ""
    found = _MODULE_VERSION.search(text)
    return versions.parse(found[1] if found else machine.read("/sys/module/nvidia/version"))


def module_loaded(machine: Machine) -> bool:
    """Return whether NVIDIA's kernel module is loaded."""
    return machine.exists("/sys/module/nvidia") or machine.exists("/proc/driver/nvidia/version")


def libraries(machine: Machine, name: str) -> list[Library]:
    """
    List every copy of a library that the loader may find, the preferred one first.

    Args:
        machine: machine to search.
        name: as programs load it: "libcuda.so.1".
    """
    found: dict[str, Library] = {}
    listed = filter(os.path.isabs, machine.env.get("LD_LIBRARY_PATH", "").split(":"))
    root = machine.root.rstrip("/")
    for path, _ in find_copies(name, map(machine.path, listed), root):
        real = os.path.realpath(path)
        version = _LIBRARY_VERSION.search(real)
        parsed = versions.parse(version[1]) if version else ()
        stub = "/stubs" in os.path.dirname(path)
        found.setdefault(real, Library(path.removeprefix(root), parsed, stub))
    return list(found.values())


def kernel(machine: Machine) -> str:
    """Return the running kernel's release, as the folders below /lib/modules are named."""
    return machine.read("/proc/sys/kernel/osrelease") or ""


def built_modules(machine: Machine) -> tuple[bool, list[str]]:
    """Return whether a module was built for the running kernel, and other kernels that have one."""
    own, others = False, []
    for name in machine.names("/lib/modules"):
        listed = machine.read("/lib/modules", name, "modules.dep") or ""
        if "/nvidia.ko" in listed or "/nvidia-current.ko" in listed:
            if name == kernel(machine):
                own = True
            else:
                others.append(name)
    return own, others


def secure_boot(machine: Machine) -> bool | None:
    """Return whether the firmware requires signed modules; None: unknown."""
    for name in machine.names("/sys/firmware/efi/efivars"):
        if name.startswith("SecureBoot-"):
            try:
                with open(machine.path("/sys/firmware/efi/efivars", name), "rb") as file:
                    data = file.read(16)  # four bytes of attributes, then the value
            except OSError:
                return None
            return data[-1:] == b"\x01" if len(data) > 4 else None
    return None
