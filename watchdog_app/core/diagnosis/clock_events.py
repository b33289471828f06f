"""
Why a graphics card runs slower than it could: NVML's mask of clock event reasons, in words.

Source: NVIDIA, NVML API reference, nvmlClocksEventReasons ("clock event reasons").
"""

from __future__ import annotations

IDLE = 0x1
APPLICATION_CLOCKS = 0x2
SOFTWARE_POWER_CAP = 0x4  # normal at full load
HARDWARE_SLOWDOWN = 0x8  # heat, power brake or too fast a draw; may flash at a P-state change
SYNC_BOOST = 0x10
SOFTWARE_THERMAL = 0x20
HARDWARE_THERMAL = 0x40
POWER_BRAKE = 0x80  # asserted from outside: the power supply
DISPLAY_CLOCKS = 0x100
_WORDS = {
    IDLE: "idle",
    APPLICATION_CLOCKS: "application_clocks",
    SOFTWARE_POWER_CAP: "software_power_cap",
    HARDWARE_SLOWDOWN: "hardware_slowdown",
    SYNC_BOOST: "sync_boost",
    SOFTWARE_THERMAL: "software_thermal",
    HARDWARE_THERMAL: "hardware_thermal",
    POWER_BRAKE: "power_brake",
    DISPLAY_CLOCKS: "display_clocks",
}
_BITS = 64


def words(mask: int | None) -> list[str] | None:
    """
    The reasons in a mask, lowest bit first; one that is not known yet as `0x200`.

    None stands for None: a card that does not say is not one that runs at full speed.
    """
    if mask is None:
        return None
    bits = (1 << position for position in range(_BITS))
    return [_WORDS.get(bit, hex(bit)) for bit in bits if mask & bit]
