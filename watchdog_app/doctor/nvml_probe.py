"""
Asks the driver library about every card, in a process of its own.

    python -m watchdog_app.doctor.nvml_probe [INDEX]

Prints one JSON object a line: `{"calling": NAME, "card": INDEX}` before each call, so that
whoever reads it knows which one hung or crashed, then `{"system": ...}` and `{"card": ...}`.
With an index that card alone is asked: the others of a driver that hangs on one.
Never ends the library: that can crash under a call that hangs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from watchdog_app.base import vendored

_UNKNOWN_U64 = (1 << 64) - 1
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


def say(**values: object) -> None:
    """One line, at once: the next call may never return."""
    print(json.dumps(values), flush=True)


def main(argv: Sequence[str] = ()) -> int:
    """Ask, print, end without any clean-up; `argv` names the one card to be asked."""
    say(calling="import pynvml")
    vendored.use()
    import pynvml

    at: int | None = None  # the card that is being asked

    def ask(name: str, *arguments: object) -> Any:
        say(calling=name, card=at)
        return getattr(pynvml, name)(*arguments)

    def value(call: Callable[[], Any]) -> Any:
        """None where the card or the driver has no such thing."""
        try:
            found = call()
        except Exception:  # not supported, no permission, an older library
            return None
        return None if found == _UNKNOWN_U64 else found

    try:
        ask("nvmlInit")
    except Exception as error:
        code = getattr(error, "value", None)
        say(system={"code": code, "error": f"{type(error).__name__}: {error}"})
        return 0
    system = {
        "code": 0,
        "driver": value(lambda: ask("nvmlSystemGetDriverVersion")),
        "cuda": value(lambda: ask("nvmlSystemGetCudaDriverVersion_v2"))
        or value(lambda: ask("nvmlSystemGetCudaDriverVersion")),
        "count": value(lambda: ask("nvmlDeviceGetCount")),
    }
    say(system=system)
    for index in [int(word) for word in argv] or range(system["count"] or 0):
        at = index
        try:
            handle = ask("nvmlDeviceGetHandleByIndex", index)
            # Of a card that is lost the handle may still be given out: ask it something.
            ask("nvmlDeviceGetUUID", handle)
        except Exception as error:
            code = getattr(error, "value", None)
            say(card={"index": index, "code": code, "error": f"{type(error).__name__}: {error}"})
            continue
        say(card={"index": index, "code": 0, **_card(pynvml, ask, value, handle)})
    say(calling=None)
    return 0


def _card(
    nvml: Any,
    ask: Callable[..., Any],
    value: Callable[[Callable[[], Any]], Any],
    handle: Any,
) -> dict[str, Any]:
    def get(name: str, *arguments: object) -> Any:
        return value(lambda: ask(name, handle, *arguments))

    # As the daemon asks: what hangs there must hang here.
    memory = get("nvmlDeviceGetMemoryInfo", nvml.nvmlMemory_v2) or get("nvmlDeviceGetMemoryInfo")
    found: dict[str, Any] = {
        "name": get("nvmlDeviceGetName"),
        "uuid": get("nvmlDeviceGetUUID"),
        "memory_total_bytes": getattr(memory, "total", None) or None,
        "memory_free_bytes": getattr(memory, "free", None),
        "capability": get("nvmlDeviceGetCudaComputeCapability"),
        "compute_mode": get("nvmlDeviceGetComputeMode"),
        "persistence": get("nvmlDeviceGetPersistenceMode"),
        "temperature_c": get("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "slowdown_c": get(
            "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "throttle": get("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "fan_percent": get("nvmlDeviceGetFanSpeed"),
        "power_limit_mw": get("nvmlDeviceGetEnforcedPowerLimit"),
        "power_default_mw": get("nvmlDeviceGetPowerManagementDefaultLimit"),
        "ecc_volatile": get(
            "nvmlDeviceGetTotalEccErrors",
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        "remap": get("nvmlDeviceGetRemappedRows"),
        "retired_pending": get("nvmlDeviceGetRetiredPagesPendingStatus"),
        "pcie_width": get("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": get("nvmlDeviceGetMaxPcieLinkWidth"),
        "mig": get("nvmlDeviceGetMigMode"),
    }
    pci = get("nvmlDeviceGetPciInfo")
    bus = getattr(pci, "busId", None)
    found["bus_id"] = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    if found["mig"] and found["mig"][0] == 1:
        count = get("nvmlDeviceGetMaxMigDeviceCount") or 0
        parts = [get("nvmlDeviceGetMigDeviceHandleByIndex", number) for number in range(count)]
        uuids = [
            value(lambda part=part: ask("nvmlDeviceGetUUID", part))  # type: ignore[misc]
            for part in parts
            if part is not None
        ]
        found["mig_uuids"] = [uuid for uuid in uuids if uuid]
    fields = get("nvmlDeviceGetFieldValues", [_RECOVERY_ACTION])
    try:
        one = fields[0]
        found["recovery"] = int(one.value.uiVal) if one.nvmlReturn == 0 else None
    except (TypeError, IndexError, AttributeError):
        found["recovery"] = None
    processes = get("nvmlDeviceGetComputeRunningProcesses")
    found["processes"] = [
        [
            int(process.pid),
            None if process.usedGpuMemory in (None, _UNKNOWN_U64) else int(process.usedGpuMemory),
        ]
        for process in processes or ()
    ]
    return {key: _jsonable(one) for key, one in found.items()}


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, tuple):
        return [_jsonable(one) for one in value]
    return value


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
