"""The path from a program to the GPU: card, kernel module, driver libraries, device nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from watchdog_app.doctor import versions
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding
from watchdog_app.doctor.machine import (
    Library,
    Machine,
    built_modules,
    kernel,
    libraries,
    module_loaded,
    module_version,
    secure_boot,
)
from watchdog_app.machine.gpu.pci import AMD, PciGpu

_LIBRARIES = {"libcuda.so.1": "driver.library", "libnvidia-ml.so.1": "driver.nvml-library"}
# Lines of the kernel log that say why the module is not loaded.
_TELLING = ("NVRM:", "nvidia: module verification failed", "Loading of module with unavailable")


def check(facts: Facts) -> Iterator[Finding]:
    """Check card, module, libraries and nodes, each of which needs the one before."""
    machine = facts.machine
    loaded = module_loaded(machine)
    if not facts.expects_gpu and not loaded:
        amd = facts.pci_gpus(AMD)
        yield _amd(facts, amd) if amd else facts.finding("driver.device")
        return
    yield facts.fine("driver.device", where=_where(facts))
    if facts.is_wsl_gpu:
        yield from _wsl(facts)
        return
    if loaded:
        version = versions.format_driver_version(module_version(machine)) or "of unknown version"
        yield facts.fine("driver.module", version=version)
    elif facts.cards:
        yield _not_loaded(facts)
    # A container without a GPU has no libraries either. Report this cause only once.
    if not (loaded and machine.container and not _node_names(machine)):
        yield from _libraries(facts)
    if loaded:
        yield from _versions(facts)
        if not facts.is_tegra:
            yield from _nodes(facts)
    yield from _fabric_manager(facts)


def _where(facts: Facts) -> str:
    if facts.cards:
        return f"{len(facts.cards)} on the PCI bus ({', '.join(facts.cards)})"
    if facts.is_wsl_gpu:
        return "one that Windows lends (WSL)"
    if facts.is_tegra:
        return "part of the chip (Jetson)"
    return "its driver is there, though no card shows on the PCI bus"


def _amd(facts: Facts, cards: Sequence[PciGpu]) -> Finding:
    """Find the first reason why ROCm cannot use the AMD cards, which are the only ones."""
    machine = facts.machine
    nodes = [f"/dev/dri/{name}" for name in machine.names("/dev/dri") if name.startswith("renderD")]
    nodes += ["/dev/kfd"] if machine.exists("/dev/kfd") else []
    closed = [node for node in nodes if not machine.access(machine.path(node), os.R_OK | os.W_OK)]
    if all(gpu.driver != "amdgpu" for gpu in cards):
        holder = f"{cards[0].driver} has" if cards[0].driver else "No driver has"
        return facts.finding("driver.amd.module", holder=holder)
    if "/dev/kfd" not in nodes:
        return facts.finding("driver.amd.kfd")
    if closed:
        group = _group(machine, closed[0])
        return facts.finding("driver.amd.permissions", nodes=closed, group=group)
    rocm = machine.read("/opt/rocm/.info/version")
    version = machine.read("/sys/module/amdgpu/version") or "of the kernel"
    return facts.fine("driver.amd", count=len(cards), rocm=rocm or "not found", version=version)


def _wsl(facts: Facts) -> Iterator[Finding]:
    there = facts.machine.exists("/usr/lib/wsl/lib/libcuda.so.1")
    yield (facts.fine if there else facts.finding)("driver.library.wsl")
    for one in libraries(facts.machine, "libcuda.so.1"):
        if not one.path.startswith("/usr/lib/wsl/"):
            yield facts.finding("driver.wsl-library", path=one.path)
            return


def _not_loaded(facts: Facts) -> Finding:
    """Find the first cause that explains why the kernel module is not loaded."""
    machine = facts.machine
    drivers = {gpu.driver for gpu in facts.pci_gpus()}
    own, others = built_modules(machine)
    log = [line for line in machine.kernel_log() or [] if any(word in line for word in _TELLING)]
    complaints = [f"kernel log: {line}" for line in log[-3:]]
    if machine.container:
        return facts.finding("driver.module.container")
    if "vfio-pci" in drivers:
        return facts.finding("driver.module.vfio")
    if "nouveau" in drivers or machine.exists("/sys/module/nouveau"):
        return facts.finding(f"driver.nouveau.{'' if own else 'not-'}installed")
    if own and secure_boot(machine):
        return facts.finding("driver.secure-boot", *complaints)
    if own:
        return facts.finding("driver.module.not-loaded", *complaints)
    if others:
        running = kernel(machine)
        words = {"built": others[-1], "running": running}
        return facts.finding("driver.module.other-kernel", *complaints, **words)
    return facts.finding("driver.module.not-installed", *complaints)


def _libraries(facts: Facts) -> Iterator[Finding]:
    """Check the driver's libraries that programs load."""
    for name, entry in _LIBRARIES.items():
        found = libraries(facts.machine, name)
        if not found:
            yield facts.finding(entry)
        elif found[0].stub:
            yield facts.finding("driver.stub-library", name=name, path=found[0].path)
        else:
            shown = versions.format_driver_version(found[0].version)
            version = f", version {shown}" if shown else ""
            yield facts.fine(entry, *(one.path for one in found), version=version)


def mismatched_libraries(machine: Machine) -> list[Library]:
    """
    List the libraries that the loader finds first and whose version differs from the module's.
    """
    module = module_version(machine)
    return [
        first
        for name in _LIBRARIES
        for first in libraries(machine, name)[:1]
        if module and first.version and first.version != module and not first.forward
    ]


def _versions(facts: Facts) -> Iterator[Finding]:
    module, wrong = module_version(facts.machine), mismatched_libraries(facts.machine)
    if not wrong:
        if module:
            yield facts.fine("driver.version-mismatch")
        return
    kind = "newer" if wrong[0].version > module else "older"
    yield facts.finding(
        f"driver.version-mismatch.{'container' if facts.machine.container else kind}",
        *(f"{one.path}: {versions.format_driver_version(one.version)}" for one in wrong),
        library=wrong[0].version,
        module=module,
        folder=os.path.dirname(wrong[0].path),
    )


def _node_names(machine: Machine) -> list[str]:
    return [name for name in machine.names("/dev") if name.startswith("nvidia")]


def _nodes(facts: Facts) -> Iterator[Finding]:
    machine, names = facts.machine, _node_names(facts.machine)
    cards = [name for name in names if name[6:].isdigit()]
    if not cards or "nvidiactl" not in names:
        yield facts.finding("driver.nodes")
        return
    nodes = [f"/dev/{name}" for name in (*cards, "nvidiactl", "nvidia-uvm") if name in names]
    closed = [node for node in nodes if not machine.access(machine.path(node), os.R_OK | os.W_OK)]
    if closed:
        yield facts.finding("driver.permissions", nodes=closed, group=_group(machine, closed[0]))
    elif "nvidia-uvm" not in names:
        yield facts.finding("driver.uvm")
    else:
        yield facts.fine("driver.nodes", nodes=nodes)
    if len(cards) < len(facts.cards):
        yield facts.finding("driver.some-nodes", cards=len(facts.cards), nodes=len(cards))


def _group(machine: Machine, node: str) -> str:
    import grp

    try:
        return grp.getgrgid(os.stat(machine.path(node)).st_gid).gr_name
    except (OSError, KeyError):
        return "video"


def _fabric_manager(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    # /proc hides other users' processes (hidepid)
    hidden = machine.is_real and not machine.exists("/proc/1")
    if not facts.has_switches or machine.container or hidden:
        return
    if not any(one.name.startswith("nv-fabricmanage") for one in facts.processes()):
        yield facts.finding("driver.fabric-manager")
