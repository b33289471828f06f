"""Power and temperature: battery, limits, throttling of cards and CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchdog_app.core.model.hardware import ClockEvent
from watchdog_app.doctor import gpu
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.machine.sensors.power import BatteryReader

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}
_NEAR_C = 5  # degrees below the slowdown threshold
_HOT_FAN_C = 70
_PER_HOUR = 10.0  # CPU throttling events above this rate are more than an occasional one
# With these drivers "powersave" is the normal, dynamic setting.
_DYNAMIC = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def check(facts: Facts) -> Iterator[Finding]:
    """Check supplies, cards and CPU."""
    yield from _battery(facts)
    for card in facts.driver().usable if facts.can_ask_driver else ():
        yield from _card(facts, card)
    yield from _cpu_throttling(facts)
    folder = "/sys/devices/system/cpu/cpu0/cpufreq"
    governor = facts.machine.read(folder, "scaling_governor")
    if governor is not None:
        driver = facts.machine.read(folder, "scaling_driver") or ""
        slow = governor == "powersave" and driver not in _DYNAMIC
        tell = facts.finding if slow else facts.fine
        yield tell("power.governor", governor=governor, driver=driver)


def _battery(facts: Facts) -> Iterator[Finding]:
    batteries, on_mains = BatteryReader(facts.machine.path("/sys")).read(0.0)
    drained = [each for each in batteries if each.discharging]
    if drained and on_mains:
        yield facts.finding("power.supply-too-weak")
    elif drained:
        lowest = min(each.percent or 0.0 for each in drained)
        yield facts.finding(
            "power.battery",
            severity=Severity.ERROR if lowest <= 10 else Severity.WARNING,
            levels=[f"{each.name} {each.percent:.0f} %" for each in drained],
        )
    elif on_mains is not None:
        yield facts.fine("power.battery")


def _card(facts: Facts, card: dict[str, Any]) -> Iterator[Finding]:
    events = set(card.get("throttling") or ())
    heat, slowdown = card.get("temperature_c"), card.get("slowdown_c")
    words = {
        "card": gpu.label(card),
        "index": card.get("index"),
        "heat": "an unknown temperature" if heat is None else f"{heat} °C",
    }
    entries = []
    hard = Severity.ERROR if ClockEvent.HARDWARE_THERMAL in events else None
    if events & _THERMAL:
        entries.append(facts.finding("power.gpu-heat.now", severity=hard, **words))
    elif heat is not None and slowdown and heat >= slowdown - _NEAR_C:
        entries.append(facts.finding("power.gpu-heat.near", slowdown=slowdown, **words))
    if ClockEvent.POWER_BRAKE in events:
        entries.append(facts.finding("power.brake", **words))
    elif ClockEvent.HARDWARE_SLOWDOWN in events and not hard:
        entries.append(facts.finding("power.hardware-slowdown", **words))
    if card.get("fan_percent") == 0 and heat is not None and heat >= _HOT_FAN_C:
        entries.append(facts.finding("power.fan", **words))
    yield from entries or [facts.fine("power.gpu", **words)]
    limit, usual = card.get("power_limit_w"), card.get("power_default_w")
    if limit and usual and limit < 0.95 * usual:
        yield facts.finding("power.gpu-limit", limit=limit, usual=usual, **words)


def _cpu_throttling(facts: Facts) -> Iterator[Finding]:
    machine, folder = facts.machine, "/sys/devices/system/cpu"
    counts = [
        machine.number(folder, name, "thermal_throttle/package_throttle_count")
        for name in machine.names(folder)
        if name.startswith("cpu") and name[3:].isdigit()
    ]
    known = [one for one in counts if one is not None]
    uptime = (machine.read("/proc/uptime") or "").split()
    if known and uptime:
        hours = max(float(uptime[0]) / 3600, 0.1)
        events = max(known)  # every core of a package counts the same events
        tell = facts.finding if events / hours > _PER_HOUR else facts.fine
        yield tell("power.cpu-heat", events=events, hours=hours)
