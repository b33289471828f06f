"""A fake machine as a folder with proc, sys, dev, etc and usr, which each test adapts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.machine import Machine, Space

GIB = 1024**3
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KERNEL = "6.8.0-45-generic"
DRIVER = "550.54.14"


class Tree:
    """A machine without a GPU, with 16 GiB of RAM and swap; the methods add to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spaces: dict[str, Space] = {}
        self.shut: set[str] = set()  # paths that this user may not access
        self.write("proc/sys/kernel/osrelease", KERNEL)
        self.write("proc/sys/vm/overcommit_memory", "0")
        self.write("proc/sys/vm/swappiness", "60")
        self.write("proc/uptime", "36000.00 70000.00")
        self.write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
        self.write("proc/swaps", "Filename Type Size Used Priority\n/swapfile file 8388604 0 -2\n")
        self.meminfo()
        (root / "dev/shm").mkdir(parents=True)
        (root / "home/ada").mkdir(parents=True)

    def write(self, path: str, text: str | bytes) -> Path:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(text if isinstance(text, bytes) else text.encode())
        return where

    def meminfo(self, **kib: int) -> Tree:
        values = {
            "MemTotal": 16 << 20, "MemFree": 8 << 20, "MemAvailable": 12 << 20,
            "SwapTotal": 8 << 20, "SwapFree": 8 << 20,
        } | kib  # fmt: skip
        text = "".join(f"{name}: {value} kB\n" for name, value in values.items())
        self.write("proc/meminfo", text)
        return self

    def card(
        self, slot: int = 1, *, class_: str = "0x030000", vendor: str = "0x10de", driver: str = ""
    ) -> Tree:
        folder = f"sys/bus/pci/devices/0000:{slot:02x}:00.0"
        self.write(f"{folder}/vendor", f"{vendor}\n")
        self.write(f"{folder}/class", f"{class_}\n")
        if driver:
            (self.root / folder / "driver").symlink_to(f"../../drivers/{driver}")
        return self

    def module(self, version: str = DRIVER) -> Tree:
        (self.root / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Feb 22 01:44:30 UTC\n"
            "GCC version:  gcc version 12.3.0\n",
        )
        return self

    def library(self, version: str = DRIVER, folder: str = LIBRARIES) -> Tree:
        for name in ("libcuda.so", "libnvidia-ml.so"):
            self.write(f"{folder}/{name}.{version}", "")
            link = self.root / folder / f"{name}.1"
            link.unlink(missing_ok=True)
            link.symlink_to(f"{name}.{version}")
        return self

    def nodes(self, *names: str) -> Tree:
        for name in names or ("nvidia0", "nvidiactl", "nvidia-uvm"):
            self.write(f"dev/{name}", "")
        return self

    def gpu(self) -> Tree:
        """Add one GPU with its driver, library and device nodes."""
        return self.card(driver="nvidia").module().library().nodes()

    def process(self, pid: int, *argv: str, name: str = "", maps: str = "") -> Tree:
        self.write(f"proc/{pid}/comm", (name or os.path.basename(argv[0])[:15]) + "\n")
        self.write(f"proc/{pid}/cmdline", "\0".join(argv) + "\0")
        self.write(f"proc/{pid}/statm", "9000 2560 800 1 0 500 0\n")
        self.write(f"proc/{pid}/maps", maps)
        self.write(f"proc/{pid}/cgroup", "0::/\n")
        return self

    def space(self, path: str) -> Space:
        shown = "/" + path.removeprefix(str(self.root)).lstrip("/")
        found = self.spaces.get(shown, Space(500 * GIB, 200 * GIB, 1000, 900))
        if isinstance(found, OSError):
            raise found
        return found

    def access(self, path: str, mode: int) -> bool:
        return "/" + path.removeprefix(str(self.root)).lstrip("/") not in self.shut

    def machine(self, **changes) -> Machine:
        env = {"PATH": "/usr/bin:/bin", "HOME": "/home/ada"} | changes.pop("env", {})
        values = {
            "root": str(self.root), "env": env, "cwd": "/home/ada", "uid": os.getuid(),
            "timeout_s": 10.0, "space": self.space, "access": self.access,
            "limits": lambda: {"open_files": 1024},
        }  # fmt: skip
        return Machine(**(values | changes))

    def facts(self, driver: list[dict] | tuple[str, ...] | None = None, **changes) -> Facts:
        """Set what the driver's probe prints, or the program to run instead."""
        if isinstance(driver, tuple):
            return Facts(self.machine(**changes), driver)
        lines = driver if driver is not None else answers(card())
        code = f"import json; [print(json.dumps(one)) for one in {lines!r}]"
        return Facts(self.machine(**changes), (sys.executable, "-c", code))


def card(index: int = 0, **values) -> dict:
    return {
        "index": index, "name": "NVIDIA GeForce RTX 3090", "uuid": f"GPU-{index}abc",
        "capability": [8, 6], "memory_total_bytes": 24 * GIB, "memory_free_bytes": 23 * GIB,
        "temperature_c": 40, "slowdown_c": 95, "throttling": ["idle"], "persistence": 1,
    } | values  # fmt: skip


def answers(*cards: dict, driver: str = DRIVER, cuda: int = 12040) -> list[dict]:
    ready = {"driver": driver, "cuda": cuda}
    return [
        {"ready": ready},
        {"count": len(cards)},
        *({"device": one} for one in cards),
        {"end": 1},
    ]


def fake_python(path: Path, versions: dict | None = None, **frameworks: dict | str) -> Path:
    """
    Create an interpreter with a prepared answer to the probe.

    A framework's value is its answer, or a shell line to run instead.
    """
    told = {"python": "3.11.7", "prefix": str(path.parents[1]), "dists": {}} | (versions or {})
    lines = ["#!/bin/sh", 'case "$2" in', f"versions) {_echo({'result': told})} ;;"]
    for name, said in frameworks.items():
        body = said if isinstance(said, str) else _echo({"result": said, "step": None})
        lines.append(f"{name}) {body} ;;")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "esac", ""]))
    path.chmod(0o755)
    return path


def _echo(said: dict) -> str:
    text = json.dumps(said).replace("'", "'\\''")
    return f"printf '%s\\n' 'noise before' '@watchdog-doctor {text}'"


def found(findings) -> dict[str, Finding]:
    """Return the findings by id, the last of each; check that every finding is complete."""
    result = {}
    for one in findings:
        complete(one)
        result[one.id] = one
    return result


def troubles(findings) -> dict[str, str]:
    """Return id and severity of every finding that is not fine."""
    all_ = list(findings)
    found(all_)
    return {one.id: one.severity.value for one in all_ if one.severity is not Severity.OK}


def complete(one: Finding) -> None:
    """Check that a finding has every text that the user needs."""
    assert one.what
    assert one.what.rstrip()[-1] in ".)'" or not one.checked or ":" in one.what, one.what
    if one.severity in (Severity.ERROR, Severity.WARNING):
        assert one.remedy, one
        assert one.why or not one.checked, one
    assert all("\n" not in command for command in one.commands)
