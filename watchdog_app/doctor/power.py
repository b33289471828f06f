"""Power and heat: battery, limits, throttling of cards and CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.core.model.hardware import ClockEvent
from watchdog_app.doctor import driver_files, gpu
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine
from watchdog_app.doctor.machine import Machine

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}
_NEAR_C = 5  # degrees below the slowdown threshold
_PER_HOUR = 10.0  # events of CPU throttling that are more than a flash


def check(facts: Facts) -> Iterator[Finding]:
    """Supplies, cards, CPU."""
    machine = facts.machine
    yield from _battery(machine)
    # With a card and no module there is nobody to ask.
    asks = (driver_files.module_loaded(machine) or not facts.cards) and driver_files.libraries(
        machine, "libnvidia-ml.so.1"
    )
    if asks and facts.expects_gpu and not facts.asleep:
        for card in facts.driver().usable:
            yield from _card(card)
    yield from _cpu_throttling(machine)
    yield from _governor(machine)


def _battery(machine: Machine) -> Iterator[Finding]:
    folder = "/sys/class/power_supply"
    discharging, mains = [], []
    for name in machine.names(folder):
        kind = machine.read(folder, name, "type")
        if machine.read(folder, name, "scope") == "Device":
            continue  # of a mouse or a headset
        drained = machine.read(folder, name, "status") == "Discharging"
        if kind in ("Battery", "UPS") and drained:
            discharging.append((name, machine.number(folder, name, "capacity")))
        elif kind in ("Mains", "USB") and machine.exists(folder, name, "online"):
            mains.append(machine.number(folder, name, "online") == 1)
    if any(mains):
        # Kept at a charge threshold some say so as well, and nothing is drawn from them.
        discharging = [
            (name, level)
            for name, level in discharging
            if 0
            not in (machine.number(folder, name, file) for file in ("power_now", "current_now"))
        ]
    if discharging and not any(mains):
        left = ", ".join(
            f"{name} {level if level is not None else 'N/A'} %" for name, level in discharging
        )
        lowest = min((level for _, level in discharging if level is not None), default=None)
        yield Finding(
            "power.battery",
            Severity.ERROR if lowest is not None and lowest <= 10 else Severity.WARNING,
            f"This machine runs on its battery: {left}.",
            "A laptop's GPU is slowed down on battery, and an empty battery ends the training "
            "without a save.",
            "Plug it in.",
        )
    elif discharging:
        yield Finding(
            "power.supply-too-weak",
            Severity.WARNING,
            "The battery is drained though the machine is plugged in: the power supply gives "
            "less than it draws.",
            "Under full load it is empty within hours, and the training ends with it.",
            "Use the supply that belongs to it, or cap the GPU.",
            ("sudo nvidia-smi -pl 80",),
        )
    elif mains:
        yield fine("power.battery", "The machine is plugged in.")


def _card(card: dict[str, Any]) -> Iterator[Finding]:
    name, index = gpu.label(card), card.get("index")
    events = set(card.get("throttling") or ())
    heat, slowdown = card.get("temperature_c"), card.get("slowdown_c")
    shown = f"{heat} °C" if heat is not None else "an unknown temperature"
    found = False
    if events & _THERMAL or (heat is not None and slowdown and heat >= slowdown - _NEAR_C):
        found = True
        now = bool(events & _THERMAL)
        yield Finding(
            "power.gpu-heat",
            Severity.ERROR if ClockEvent.HARDWARE_THERMAL in events else Severity.WARNING,
            f"{name} is at {shown}"
            + (
                " and clocked down for heat."
                if now
                else f", close to the {slowdown} °C at which it clocks down."
            ),
            "A card that gets hotter still switches itself off, and the training is gone.",
            "Clean filters and fans, give the case air, or cap the card's power, which costs "
            "little speed.",
            (
                f"nvidia-smi -q -i {index} -d TEMPERATURE,PERFORMANCE",
                f"sudo nvidia-smi -i {index} -pl WATTS",
            ),
        )
    if ClockEvent.POWER_BRAKE in events:
        found = True
        yield Finding(
            "power.brake",
            Severity.ERROR,
            f"{name} is held back by an external power brake signal.",
            "The power supply or the chassis cannot deliver what the cards ask for: the next "
            "peak can switch the machine off.",
            "Check the power supply and its cables; cap the cards until then.",
            (f"sudo nvidia-smi -i {index} -pl WATTS",),
        )
    elif ClockEvent.HARDWARE_SLOWDOWN in events and ClockEvent.HARDWARE_THERMAL not in events:
        found = True
        yield Finding(
            "power.hardware-slowdown",
            Severity.WARNING,
            f"{name} is slowed down by its own hardware.",
            "It drew too much too fast, or its supply dropped: a sign of a weak power supply or "
            "a loose cable. At a change of clocks it may flash once.",
            "Look again in a minute; if it is still there, check the cables.",
            (f"nvidia-smi -q -i {index} -d PERFORMANCE",),
        )
    limit, default = card.get("power_limit_w"), card.get("power_default_w")
    if limit and default and limit < 0.95 * default:
        yield Finding(
            "power.gpu-limit",
            Severity.INFO,
            f"{name} is capped at {limit:.0f} W, below its usual {default:.0f} W.",
            "Slower, and cooler: fine where it is meant.",
            "To undo it:",
            (f"sudo nvidia-smi -i {index} -pl {default:.0f}",),
        )
    if card.get("fan_percent") == 0 and heat is not None and heat >= 70:
        found = True
        yield Finding(
            "power.fan",
            Severity.WARNING,
            f"The fan of {name} stands still at {shown}.",
            "The card will clock down, then switch itself off.",
            "See whether the fan turns.",
            (f"nvidia-smi -q -i {index} | grep -i fan",),
        )
    if not found:
        yield fine("power.gpu", f"{name} is at {shown} and is not held back by heat or power.")


def _cpu_throttling(machine: Machine) -> Iterator[Finding]:
    folder = "/sys/devices/system/cpu"
    counts = [
        machine.number(folder, name, "thermal_throttle/package_throttle_count")
        for name in machine.names(folder)
        if name.startswith("cpu") and name[3:].isdigit()
    ]
    known = [one for one in counts if one is not None]
    uptime = (machine.read("/proc/uptime") or "").split()
    if not known or not uptime:
        return
    hours = max(float(uptime[0]) / 3600, 0.1)
    events = max(known)  # every core of a package counts the same events
    if events / hours > _PER_HOUR:
        yield Finding(
            "power.cpu-heat",
            Severity.WARNING,
            f"The CPU was clocked down for heat {events} times in {hours:.1f} hours.",
            "Loading data becomes the bottleneck, and some laptops switch themselves off.",
            "Clean filters and fans; look at the temperatures under load.",
            ("sensors", "watchdog status"),
        )
    else:
        yield fine(
            "power.cpu-heat",
            f"The CPU was clocked down for heat {events} times since it was started.",
        )


def _governor(machine: Machine) -> Iterator[Finding]:
    folder = "/sys/devices/system/cpu/cpu0/cpufreq"
    governor = machine.read(folder, "scaling_governor")
    driver = machine.read(folder, "scaling_driver") or ""
    if governor is None:
        return
    # With these drivers "powersave" is the usual, dynamic setting.
    dynamic = driver in ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
    if governor == "powersave" and not dynamic:
        yield Finding(
            "power.governor",
            Severity.INFO,
            "The CPU is kept at its lowest clock (governor powersave).",
            "The GPU waits for data.",
            "Let the clock follow the load.",
            ("echo schedutil | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",),
        )
    else:
        yield fine("power.governor", f"CPU frequency governor: {governor} ({driver}).")
