"""What the driver library answers: not at all, wrongly, or with its cards."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.diagnosis.gpu_faults import FAULTS, FaultKind, reset
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.doctor import driver_files, driver_reach, gpu, versions
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked
from watchdog_app.doctor.gpu import Driver
from watchdog_app.doctor.gpu_fault import of_fault
from watchdog_app.machine.gpu.nvml_driver import Code

_ID = "driver.answer"
_KERNEL_LOG = "sudo dmesg | grep -iE 'nvrm|xid' | tail"


def check(facts: Facts) -> Iterator[Finding]:
    """Ask the driver, in a child: it may hang or crash."""
    machine = facts.machine
    loaded = driver_files.module_loaded(machine)
    if not facts.expects_gpu and not loaded:
        return
    if facts.cards and not loaded:
        return  # said already; asking would repeat it in the driver's words
    if facts.asleep:
        yield unchecked(
            _ID,
            "The state of the GPU",
            "it is asleep to save power, and asking would wake it",
            remedy="Run this again while something uses the GPU.",
        )
        return
    if not driver_files.libraries(machine, "libnvidia-ml.so.1"):
        return
    driver = facts.driver()
    if driver.hung_in:
        yield Finding(
            "driver.hung",
            Severity.ERROR,
            f"The driver does not answer: {driver.hung_in} did not return within "
            f"{format_duration(driver.seconds)}.",
            "Every program that touches the GPU now hangs with it, and cannot be ended.",
            "Look at the kernel log, save what still runs on the CPU, and restart the machine.",
            (_KERNEL_LOG, "sudo reboot"),
        )
    elif driver.crashed_in:
        yield Finding(
            "driver.crashed",
            Severity.ERROR,
            f"The driver's library crashed in {driver.crashed_in} ({driver.error}).",
            "A training that loads the same library can crash with it; nvidia-smi does too.",
            "Install the driver again as a whole; under WSL update Windows' driver.",
            ("nvidia-smi", _KERNEL_LOG),
        )
    elif driver.answers:
        yield from _answering(facts, driver)
    elif not (driver.code == Code.VERSION_MISMATCH and driver_reach.differing(machine)):
        yield _failed(facts, driver)  # a mismatch that the files show is told by them, with numbers


def _answering(facts: Facts, driver: Driver) -> Iterator[Finding]:
    cuda = versions.show(driver.cuda) or "unknown"
    shown = ", ".join(gpu.label(card) for card in driver.usable) or "no card"
    version = versions.show_driver(driver.version) or "of unknown version"
    yield fine(_ID, f"Driver {version} answers, CUDA up to {cuda}: {shown}.")
    if not driver.cards:
        yield Finding(
            "driver.no-cards",
            Severity.ERROR,
            "The driver runs and knows no GPU.",
            "CUDA finds no device.",
            "The kernel log says why the driver gave the card up: power, seating, or an address "
            "space that the firmware did not assign (switch on 'Above 4G decoding').",
            (_KERNEL_LOG,),
        )
    for card in driver.cards:
        if card.get("failed_in"):
            yield _card_failed(card, driver)
        elif card not in driver.usable:
            yield _lost(card)
    program = facts.machine.command("nvidia-smi")
    where = f"is {program}" if program else "is not on the PATH; nothing depends on it"
    yield fine("driver.nvidia-smi", f"The command nvidia-smi {where}.")


def _card_failed(card: dict[str, object], driver: Driver) -> Finding:
    """A card on which the driver hung or crashed; the others were asked all the same."""
    name, call = gpu.label(card), card.get("failed_in")
    if not card.get("hung"):
        return Finding(
            "driver.crashed",
            Severity.ERROR,
            f"The driver's library crashed in {call}, asked about {name} ({card.get('error')}).",
            "A training that loads the same library can crash with it; nvidia-smi does too.",
            "Install the driver again as a whole; under WSL update Windows' driver.",
            ("nvidia-smi", _KERNEL_LOG),
        )
    return Finding(
        "driver.hung",
        Severity.ERROR,
        f"{name} does not answer: {call} did not return within {format_duration(driver.seconds)}.",
        "What runs on it stands still with it, and programs that touch every card hang at their "
        "start.",
        "Hide it from new trainings, save what still runs, then restart the machine.",
        (_hiding(driver), _KERNEL_LOG, "sudo reboot"),
    )


def _hiding(driver: Driver) -> str:
    """What keeps CUDA off the cards that do not answer."""
    good = ",".join(str(one.get("index")) for one in driver.usable)
    return f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={good or '-1'}"


def _lost(card: dict[str, object]) -> Finding:
    name = gpu.label(card)
    index = card.get("index")
    if card.get("state") == GpuState.LOST:
        commands = ("sudo dmesg | grep -iE 'xid|fallen off the bus'", "sudo poweroff")
        return of_fault("driver.gpu-lost", FAULTS[FaultKind.LOST], name, index, commands)
    if card.get("state") == GpuState.NEEDS_RESET:
        row = FAULTS[FaultKind.NEEDS_RESET]
        return of_fault("driver.reset-required", row, name, index, (reset(index), "sudo reboot"))
    return Finding(
        "driver.gpu-error",
        Severity.ERROR,
        f"{name} answers with an error: {card.get('error')}.",
        "A training on it will fail in the same way.",
        "Look at the kernel log.",
        (_KERNEL_LOG,),
    )


def _failed(facts: Facts, driver: Driver) -> Finding:
    machine = facts.machine
    what = f"The driver library could not be initialised: {driver.error}."
    why = "CUDA fails in the same way: no GPU is found."
    if driver.code == Code.VERSION_MISMATCH:
        return Finding(
            "driver.api-mismatch",
            Severity.ERROR,
            "The driver's library and the loaded kernel module are of different versions.",
            "CUDA and nvidia-smi fail for every program that starts now; trainings that run "
            "already go on.",
            "The driver was updated under the running system: restart the machine once trainings "
            "have saved.",
            ("sudo reboot",),
        )
    if driver.code in (Code.UNKNOWN, Code.NO_PERMISSION) and machine.container:
        return Finding(
            "driver.container-lost",
            Severity.ERROR,
            f"This {machine.container} container has lost its right to use the GPU "
            f"({driver.error}).",
            "After 'systemctl daemon-reload' on the host a running container may no longer open "
            "the device nodes: running trainings go on, new ones find no GPU.",
            "Start the container again. To keep it from coming back, hand the devices over by CDI.",
            (
                "docker restart CONTAINER",
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                "docker run --device nvidia.com/gpu=all IMAGE",
            ),
        )
    if driver.code == Code.LIBRARY_NOT_FOUND:
        return unchecked(
            _ID,
            "The state of the GPUs",
            "the library of the driver was not loaded",
            severity=Severity.WARNING,
            remedy="See the findings on the driver above.",
        )
    if driver.code is None:
        return unchecked(
            _ID,
            "The state of the GPUs",
            driver.error,
            severity=Severity.WARNING,
            remedy="See whether the driver's own program does better.",
            commands=("nvidia-smi",),
        )
    return Finding(
        "driver.init-failed",
        Severity.ERROR,
        what,
        why,
        "Look at the kernel log; then load the module again, or restart the machine.",
        (_KERNEL_LOG, "sudo modprobe nvidia", "sudo reboot"),
    )
