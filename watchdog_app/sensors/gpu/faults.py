"""What is said when cards cannot be read: what happened, what it means, what to do."""

from __future__ import annotations

import signal

from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.model.hardware import Gpu, GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.sensors.gpu.driver import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    VERSION_MISMATCH,
)

DRIVER = "gpu.driver"
UPDATED = "gpu.driver.updated"  # library and loaded module are of different versions
READER = "gpu.reader"

BY_SOMEBODY = (-15, -9)  # SIGTERM, SIGKILL
_MEANS = "Graphics cards are not watched; everything else is."
RELOAD = (
    "Restart the machine once trainings have saved; or end every program that uses a GPU, this "
    "daemon included (watchdog stop), and reload the driver: "
    "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
)
_LOOK = "See what the driver says: sudo dmesg | grep NVRM. If GPU programs fail too, restart."


def mismatch(library: str | None, module: str | None, *, reading: bool) -> Fault:
    """The driver was updated under the running system."""
    versions = f" (library {library}, loaded module {module})" if library and module else ""
    means = (
        "GPU jobs that run go on and are still watched; new ones fail until then."
        if reading
        else f"GPU jobs that run go on, new ones fail. {_MEANS}"
    )
    return Fault(
        UPDATED,
        f"The NVIDIA driver was updated under the running system{versions}. {means}",
        RELOAD,
    )


def vanished() -> Fault:
    """Cards were read, and the driver's library is no longer there."""
    return Fault(
        DRIVER,
        "The NVIDIA driver's library is gone: it was removed, or is being updated. New GPU jobs "
        f"fail. {_MEANS}",
        "If an update of the driver is under way, let it end; else install the driver again as a "
        "whole. Then restart the machine once trainings have saved. To see more: watchdog doctor",
    )


def init(code: int, said: str, library: str | None, module: str | None) -> Fault:
    """The driver library refuses to begin."""
    if code == VERSION_MISMATCH:
        return mismatch(library, module, reading=False)
    if code == DRIVER_NOT_LOADED:
        return Fault(
            DRIVER,
            f"The NVIDIA driver is installed and not loaded. {_MEANS}",
            "Load it: sudo modprobe nvidia. If that fails, nouveau may hold the card, or the "
            "module was not built for this kernel: see sudo dmesg | grep -i -e nvrm -e nouveau.",
        )
    if code == NO_PERMISSION:
        return Fault(
            DRIVER,
            f"The NVIDIA driver refuses this user. {_MEANS}",
            "Allow it on the device files: ls -l /dev/nvidia*; usually the user has to be in the "
            "group video.",
        )
    if code == LIBRARY_NOT_FOUND:
        return Fault(
            DRIVER,
            f"The NVIDIA driver library was found and cannot be loaded. {_MEANS}",
            "Install the driver again: the file is damaged, or made for another machine.",
        )
    return Fault(DRIVER, f"The NVIDIA driver does not answer: {said} ({code}). {_MEANS}", _LOOK)


def binding(said: str) -> Fault:
    """nvidia-ml-py cannot be imported."""
    return Fault(
        READER,
        f"The NVIDIA driver cannot be asked: {said}. {_MEANS}",
        "Install watchdog again in its environment, or there: pip install nvidia-ml-py",
    )


def starting(deadline_s: float) -> Fault:
    """The driver has begun to initialise, and has not come to an end."""
    return Fault(
        READER,
        f"The NVIDIA driver has not finished its initialisation within {deadline_s:g} s. {_MEANS}",
        f"A machine with many cards needs longer: wait a minute. {_LOOK}",
    )


def silent(deadline_s: float, index: int | None) -> Fault:
    """A call into the driver did not return."""
    where = "" if index is None else f" about GPU {index}"
    return Fault(
        READER,
        f"The NVIDIA driver did not answer{where} within {deadline_s:g} s and its reader was "
        "ended. " + (_MEANS if index is None else "This GPU is not watched for now; others are."),
        _LOOK,
    )


def ended(status: int, index: int | None) -> Fault:
    """The reader ended by itself, or was ended by somebody."""
    if status in BY_SOMEBODY:
        return Fault(
            READER,
            "The GPU reader was killed: by a person, or by the kernel when memory ran out. It is "
            "started again; GPU figures are missing meanwhile.",
            None,
        )
    try:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else ""
    except ValueError:
        how = f"was ended by signal {-status}"
    where = "" if index is None else f" while it asked about GPU {index}"
    what = "The driver library crashed: its reader" if status < 0 else "The GPU reader"
    return Fault(
        READER,
        f"{what} {how or f'ended with status {status}'}{where}. It is started again; "
        "GPU figures are missing meanwhile.",
        _LOOK,
    )


def start(said: str) -> Fault:
    """The reader cannot be started."""
    return Fault(READER, f"The GPU reader cannot be started: {said}. {_MEANS}", None)


def nonsense() -> Fault:
    """The reader said what none of ours says."""
    return Fault(
        READER,
        f"The GPU reader was damaged by the driver library and is started again. {_MEANS}",
        _LOOK,
    )


def stuck(count: int) -> Fault:
    """Readers that not even SIGKILL ends: they wait in the kernel."""
    return Fault(
        READER,
        f"The NVIDIA driver hangs in the kernel: {count} readers cannot be ended. {_MEANS}",
        "Restart the machine: nothing less frees them.",
    )


def card(gpu: Gpu) -> Fault | None:
    """A card that is not read, and what to do; None: it is, or it sleeps."""
    found = gpu_faults.STATES.get(gpu.state)
    if found is None:
        return None
    why = f" {gpu.notes[0]}" if gpu.notes and gpu.state is GpuState.UNREADABLE else ""
    return Fault(
        f"gpu.{gpu.index}",
        f"GPU {gpu.index} ({gpu.name}) {found.title}: {found.text}.{why}",
        found.remedy(gpu.index),
    )
