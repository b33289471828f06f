"""From a program to the kernel module: driver libraries, their versions, device nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from watchdog_app.doctor import driver_files, versions
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine
from watchdog_app.doctor.machine import Machine

_WITHOUT_STUBS = (
    "export LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | tr : '\\n' | grep -v stubs | paste -sd:)"
)
RUN_WITH_GPUS = "docker run --rm --gpus all IMAGE nvidia-smi"
_RELOAD = (
    "sudo systemctl stop nvidia-persistenced",
    "sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia",
    "sudo modprobe nvidia nvidia_uvm",
)


def check(facts: Facts, loaded: bool) -> Iterator[Finding]:
    """
    Libraries first, then what only a loaded module has.

    Args:
        facts: of the machine.
        loaded: whether the kernel holds NVIDIA's module.
    """
    machine = facts.machine
    # A container that was given no GPU has no libraries either: one cause, told once.
    if not (loaded and machine.container and not _has_nodes(machine)):
        yield from _libraries(machine)
    if loaded:
        yield from _versions(machine)
        if not facts.is_tegra:
            yield from _nodes(facts)
    if facts.switches:
        yield from _fabric(facts)


def _libraries(machine: Machine) -> Iterator[Finding]:
    """The driver's own libraries, for programs to load."""
    for name, purpose in (
        ("libcuda.so.1", "TensorFlow, PyTorch and every CUDA program"),
        ("libnvidia-ml.so.1", "watchdog and nvidia-smi"),
    ):
        found = driver_files.libraries(machine, name)
        id_ = "driver.library" if name.startswith("libcuda") else "driver.nvml-library"
        if not found:
            yield _no_library(machine, id_, name, purpose)
            continue
        if found[0].stub:
            yield Finding(
                "driver.stub-library",
                Severity.ERROR,
                f"LD_LIBRARY_PATH leads to a placeholder of {name}: {found[0].path}.",
                "It is there to link programs against and drives nothing: CUDA reports that the "
                "driver is a stub library, and no GPU is found.",
                "Take that folder out of LD_LIBRARY_PATH.",
                (_WITHOUT_STUBS,),
            )
        else:
            shown = versions.show_driver(found[0].version)
            yield fine(
                id_,
                f"{name} is there{f', version {shown}' if shown else ''}.",
                *(one.path for one in found),
            )


def _no_library(machine: Machine, id_: str, name: str, purpose: str) -> Finding:
    severity = Severity.ERROR if "cuda" in name else Severity.WARNING
    if machine.container:
        return Finding(
            id_,
            severity,
            f"{name} is not in this {machine.container} container.",
            f"{purpose[:1].upper()}{purpose[1:]} need it to reach the GPU.",
            "The NVIDIA container runtime puts it there when the container is started with GPUs "
            "and with the capabilities compute and utility.",
            ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",),
        )
    commands = {
        "debian": (f"sudo apt install {'libcuda1' if 'cuda' in name else 'libnvidia-ml1'}",),
        "ubuntu": ("sudo ubuntu-drivers install",),
        "fedora": ("sudo dnf install xorg-x11-drv-nvidia-cuda",),
        "arch": ("sudo pacman -S nvidia-utils",),
    }.get(machine.distribution(), ("sudo ldconfig", f"ldconfig -p | grep {name}"))
    return Finding(
        id_,
        severity,
        f"{name} was not found.",
        f"{purpose[:1].upper()}{purpose[1:]} need it to reach the GPU.",
        "Install the libraries of the driver, of the same version as the kernel module.",
        commands,
    )


def differing(machine: Machine) -> list[driver_files.Library]:
    """Libraries that the loader takes first and that are not of the loaded module's version."""
    module = driver_files.module_version(machine)
    return [
        first
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        for first in driver_files.libraries(machine, name)[:1]
        if module and first.version and first.version != module and not first.forward
    ]


def _versions(machine: Machine) -> Iterator[Finding]:
    module = driver_files.module_version(machine)
    wrong = differing(machine)
    if not wrong:
        if module:
            yield fine("driver.version-mismatch", "Library and kernel module are of one version.")
        return
    newer = wrong[0].version > module
    library = versions.show_driver(wrong[0].version)
    container = machine.container
    what = (
        f"The driver's library is {library}, and the loaded kernel module is "
        f"{versions.show_driver(module)}: they do not match."
    )
    why = (
        "CUDA and nvidia-smi fail for every program that starts now (driver/library version "
        "mismatch); trainings that run already go on."
    )
    details = tuple(f"{one.path}: {versions.show_driver(one.version)}" for one in wrong)
    if container:
        yield Finding(
            "driver.version-mismatch",
            Severity.ERROR,
            what,
            why,
            "The container brings a driver library of its own, or was started before the host's "
            "driver was updated. Start it again, from an image without driver libraries.",
            (RUN_WITH_GPUS,),
            details,
        )
    elif newer:
        yield Finding(
            "driver.version-mismatch",
            Severity.ERROR,
            what,
            why,
            "The driver was updated under the running system. Restart the machine once trainings "
            "have saved; or end all that uses the GPU, the desktop too, and reload the module:",
            ("sudo reboot", *_RELOAD),
            details,
        )
    else:
        yield Finding(
            "driver.version-mismatch",
            Severity.ERROR,
            what,
            why,
            "An older library is found first: leftovers of another installation, or a folder on "
            "LD_LIBRARY_PATH. Remove it, or install the driver again as a whole.",
            (
                "ldconfig -p | grep libcuda",
                f"ls -l {os.path.dirname(wrong[0].path)}/libcuda.so*",
            ),
            details,
        )


def _has_nodes(machine: Machine) -> bool:
    return any(name.startswith("nvidia") for name in machine.names("/dev"))


def _nodes(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    names = machine.names("/dev")
    cards = [name for name in names if name.startswith("nvidia") and name[6:].isdigit()]
    control = [name for name in ("nvidiactl", "nvidia-uvm") if name in names]
    why = "CUDA opens these files: without them it finds no device."
    if not cards or "nvidiactl" not in names:
        if machine.container:
            yield Finding(
                "driver.nodes",
                Severity.ERROR,
                f"The host has its driver loaded, and this {machine.container} container was given "
                "no GPU: /dev/nvidia0 and /dev/nvidiactl are missing.",
                why,
                "Start the container with its GPUs; Docker needs the NVIDIA container toolkit "
                "for that. With docker compose: deploy.resources.reservations.devices, driver: "
                "nvidia. In Kubernetes: resources.limits, nvidia.com/gpu: 1.",
                (RUN_WITH_GPUS,),
            )
        else:
            yield Finding(
                "driver.nodes",
                Severity.ERROR,
                "The device nodes /dev/nvidia0 and /dev/nvidiactl are missing.",
                why,
                "Make them; nvidia-persistenced does it at every start.",
                ("sudo nvidia-modprobe -c 0 -u", "sudo systemctl enable --now nvidia-persistenced"),
            )
        return
    closed = [
        name
        for name in (*cards, *control)
        if not machine.access(machine.path("/dev", name), os.R_OK | os.W_OK)
    ]
    if closed:
        yield Finding(
            "driver.permissions",
            Severity.ERROR,
            f"This user may not use {', '.join(f'/dev/{name}' for name in closed)}.",
            "CUDA finds no device, or not all of them.",
            "Let the group that owns them have you, and log in again; if they belong to root "
            "alone, NVreg_DeviceFileMode restricts them.",
            (
                "ls -l /dev/nvidia*",
                f'sudo usermod -aG {_group(machine, closed[0])} "$USER"',
                "grep -rs NVreg_DeviceFile /etc/modprobe.d",
            ),
        )
    elif "nvidia-uvm" not in names:
        yield Finding(
            "driver.uvm",
            Severity.WARNING,
            "/dev/nvidia-uvm is missing: the module nvidia_uvm is not loaded.",
            "CUDA loads it through nvidia-modprobe where that may; elsewhere it ends with "
            "'unknown error' (999) though nvidia-smi works.",
            "Load the module.",
            (
                "sudo nvidia-modprobe -u -c 0"
                if machine.command("nvidia-modprobe")
                else "sudo modprobe nvidia_uvm",
            ),
        )
    else:
        shown = ", ".join(f"/dev/{name}" for name in (*cards, *control))
        yield fine("driver.nodes", f"Device nodes are there and may be used: {shown}.")
    if facts.cards and len(cards) < len(facts.cards):
        yield Finding(
            "driver.some-nodes",
            Severity.INFO,
            f"{len(facts.cards)} GPUs are on the PCI bus and {len(cards)} can be used here.",
            remedy="In a container this is what it was given; elsewhere the kernel log says why "
            "the driver left one out.",
            commands=("sudo dmesg | grep -i nvrm",),
        )


def _group(machine: Machine, node: str) -> str:
    import grp

    try:
        return grp.getgrgid(os.stat(machine.path("/dev", node)).st_gid).gr_name
    except (OSError, KeyError):
        return "video"


def _fabric(facts: Facts) -> Iterator[Finding]:
    if facts.machine.is_real and not facts.machine.exists("/proc/1"):
        return  # /proc hides what belongs to others (hidepid)
    running = any(one.name.startswith("nv-fabricmanage") for one in facts.processes())
    if running or facts.machine.container:
        return
    yield Finding(
        "driver.fabric-manager",
        Severity.ERROR,
        "This machine joins its GPUs by NVSwitch, and the Fabric Manager does not run.",
        "Until it has set the switches up CUDA ends with 'system not yet initialized' (802).",
        "Start it; its version has to be the driver's.",
        (
            "sudo systemctl enable --now nvidia-fabricmanager",
            "journalctl -u nvidia-fabricmanager -b | tail",
        ),
    )
