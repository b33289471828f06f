"""The GPU on its bus and the kernel module that drives it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from watchdog_app.doctor import driver_files, driver_reach, versions
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine
from watchdog_app.doctor.machine import Machine

_BLACKLIST = (
    "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' "
    "| sudo tee /etc/modprobe.d/blacklist-nouveau.conf"
)
# Where the driver is in a part of the archive that is not enabled by itself.
_ARCHIVE = {
    "debian": "It is in the parts contrib, non-free and non-free-firmware: name them in "
    "/etc/apt/sources.list (or sources.list.d), then sudo apt update.",
    "fedora": "It is in RPM Fusion's free and nonfree repositories: https://rpmfusion.org/Configuration",
}
_INSTALL = {
    "ubuntu": ("sudo ubuntu-drivers install", "sudo reboot"),
    "debian": (
        "sudo apt install linux-headers-$(dpkg --print-architecture) nvidia-driver",
        "sudo reboot",
    ),
    "fedora": ("sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda", "sudo reboot"),
    "arch": ("sudo pacman -S nvidia nvidia-utils", "sudo reboot"),
    "suse": ("sudo zypper install-new-recommends --repo NVIDIA", "sudo reboot"),
}


def check(facts: Facts) -> Iterator[Finding]:
    """Device, module, library and nodes, in the order in which each needs the one before."""
    machine = facts.machine
    loaded = driver_files.module_loaded(machine)
    if not facts.expects_gpu and not loaded:
        yield _no_device(machine)
        return
    count = len(facts.cards)
    where = (
        f"{count} on the PCI bus ({', '.join(facts.cards)})"
        if count
        else "one that Windows lends (WSL)"
        if facts.lent_by_windows
        else "part of the chip (Jetson)"
        if facts.is_tegra
        else "its driver is there, though no card shows on the PCI bus"
    )
    yield fine("driver.device", f"NVIDIA GPU: {where}.")
    if facts.lent_by_windows:
        yield from _wsl(machine)
        return
    if loaded:
        version = versions.show_driver(driver_files.module_version(machine)) or "of unknown version"
        yield fine("driver.module", f"The kernel module nvidia {version} is loaded.")
    elif facts.cards:
        yield from _not_loaded(facts)
    yield from driver_reach.check(facts, loaded)


def _no_device(machine: Machine) -> Finding:
    amd = any(
        machine.read("/sys/bus/pci/devices", address, "vendor") == "0x1002"
        and (machine.read("/sys/bus/pci/devices", address, "class") or "").startswith("0x03")
        for address in machine.names("/sys/bus/pci/devices")
    )
    what = "No NVIDIA GPU was found on this machine; trainings run on the CPU."
    if machine.is_wsl:
        return Finding(
            "driver.device",
            Severity.INFO,
            "Windows lends no NVIDIA GPU to this WSL; trainings run on the CPU.",
            remedy="If the computer has one: install NVIDIA's driver in Windows, not in Linux; "
            "then in Windows:",
            commands=("wsl --update", "wsl --shutdown"),
        )
    if amd:
        what += " There is an AMD card: TensorFlow and PyTorch need their ROCm builds for it."
    return Finding(
        "driver.device",
        Severity.INFO,
        what,
        remedy="If there should be one: look whether the machine sees it; a card that is missing "
        "here is not seated, has no power, or is switched off in the firmware.",
        commands=("lspci -nn | grep -i nvidia",),
    )


def _wsl(machine: Machine) -> Iterator[Finding]:
    if machine.exists("/usr/lib/wsl/lib/libcuda.so.1"):
        yield fine("driver.library", "Windows' driver libraries are in /usr/lib/wsl/lib.")
    else:
        yield Finding(
            "driver.library",
            Severity.ERROR,
            "This is WSL, and Windows' driver libraries are not in /usr/lib/wsl/lib.",
            "No CUDA program finds a GPU.",
            "Install NVIDIA's driver in Windows, not in Linux, then restart WSL from Windows.",
            ("wsl --update", "wsl --shutdown"),
        )
    own = [
        one
        for one in driver_files.libraries(machine, "libcuda.so.1")
        if not one.path.startswith("/usr/lib/wsl/")
    ]
    if own:
        yield Finding(
            "driver.wsl-library",
            Severity.ERROR,
            f"A Linux driver is installed inside WSL: {own[0].path} hides Windows' own.",
            "WSL has no NVIDIA kernel module: with that library CUDA finds no GPU.",
            "Remove the Linux driver; the CUDA toolkit may stay.",
            ("sudo apt purge '^libnvidia-.*' '^nvidia-.*'",),
        )


def _not_loaded(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    drivers = {
        os.path.basename(machine.link("/sys/bus/pci/devices", address, "driver") or "")
        for address in facts.cards
    }
    nouveau = machine.exists("/sys/module/nouveau")
    why = "CUDA cannot reach the card: every GPU training fails at its start, or runs on the CPU."
    if machine.container:
        yield Finding(
            "driver.module",
            Severity.ERROR,
            f"The GPU is there, and this {machine.container} container sees no NVIDIA kernel "
            "module.",
            why,
            "Install the driver on the host, not in the container, and start the container "
            "with its GPUs.",
            (driver_reach.RUN_WITH_GPUS,),
        )
        return
    if "vfio-pci" in drivers:
        yield Finding(
            "driver.module",
            Severity.ERROR,
            "The card is set aside for virtual machines (vfio-pci holds it).",
            why,
            "Take it out of the vfio-pci.ids or driver_override setting, then restart the machine.",
            ("grep -rs vfio /etc/modprobe.d /etc/default/grub",),
        )
        return
    own, others = driver_files.built_modules(machine)
    distribution = machine.distribution()
    install = _INSTALL.get(distribution, ())
    running = driver_files.kernel(machine)
    if nouveau or "nouveau" in drivers:
        steps = (
            _BLACKLIST,
            {
                "fedora": "sudo dracut --force",
                "suse": "sudo dracut --force",
                "arch": "sudo mkinitcpio -P",
            }.get(machine.distribution(), "sudo update-initramfs -u"),
        )
        yield Finding(
            "driver.nouveau",
            Severity.ERROR,
            "The open driver nouveau holds the card, and NVIDIA's is not loaded.",
            "nouveau knows no CUDA: TensorFlow and PyTorch find no GPU. While it holds the card, "
            "NVIDIA's module cannot load.",
            "Keep nouveau from loading and restart the machine."
            if own
            else " ".join(
                ("Install NVIDIA's driver, keep nouveau from loading, and restart the machine.",)
                + ((_ARCHIVE[distribution],) if distribution in _ARCHIVE else ())
            ),
            (*(() if own else install[:1]), *steps, "sudo reboot"),
            details=tuple(f"driver of the card: {name}" for name in sorted(drivers) if name),
        )
        return
    details = tuple(_complaints(facts))
    if own and driver_files.secure_boot(machine):
        yield Finding(
            "driver.secure-boot",
            Severity.ERROR,
            "NVIDIA's module is installed and not loaded, and Secure Boot is on: the firmware "
            "refuses modules that it has no key for.",
            why,
            "Enrol the key that signed the module (the firmware asks for it at the next start), "
            "or switch Secure Boot off in the firmware.",
            (
                "sudo mokutil --import "
                + {
                    "ubuntu": "/var/lib/shim-signed/mok/MOK.der",
                    "fedora": "/etc/pki/akmods/certs/public_key.der",
                }.get(distribution, "/var/lib/dkms/mok.pub"),
                "sudo reboot",
            ),
            details,
        )
    elif own:
        yield Finding(
            "driver.module",
            Severity.ERROR,
            "NVIDIA's kernel module is installed and not loaded.",
            why,
            "Load it; if that fails, the kernel log says why.",
            ("sudo modprobe nvidia", "sudo dmesg | grep -iE 'nvrm|nvidia' | tail"),
            details,
        )
    elif others:
        yield Finding(
            "driver.module",
            Severity.ERROR,
            f"NVIDIA's module was built for the kernel {others[-1]} and not for the running "
            f"{running}: a kernel update came without it.",
            why,
            "Build it for this kernel, or start the older kernel from the boot menu.",
            {
                "fedora": ("sudo akmods --force", "sudo modprobe nvidia"),
                "arch": ("sudo pacman -Syu", "sudo reboot"),
            }.get(
                machine.distribution(),
                (
                    "sudo apt install linux-headers-$(uname -r)",
                    "sudo dkms autoinstall",
                    "sudo modprobe nvidia",
                ),
            ),
            details,
        )
    else:
        yield Finding(
            "driver.module",
            Severity.ERROR,
            "NVIDIA's driver is not installed, or its kernel module was never built.",
            why,
            " ".join(
                ("Install the driver of your distribution.",)
                + ((_ARCHIVE[distribution],) if distribution in _ARCHIVE else ())
            ),
            install or ("xdg-open https://www.nvidia.com/drivers",),
            details,
        )


def _complaints(facts: Facts) -> list[str]:
    """What the kernel log has to say of the driver, the newest lines."""
    lines = facts.machine.kernel_log() or []
    telling = ("NVRM:", "nvidia: module verification failed", "Loading of module with unavailable")
    return [f"kernel log: {line}" for line in lines if any(word in line for word in telling)][-3:]
