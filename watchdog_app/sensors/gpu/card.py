"""
One card or MIG instance, question by question. Runs in the child alone.

What moves is asked each time; process lists and what hardly moves less often, because they are
dear: a driver holds its lock meanwhile, and rendering waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from watchdog_app.sensors.gpu import plausible
from watchdog_app.sensors.gpu.driver import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNABLE,
    Driver,
    DriverError,
    host_memory,
)
from watchdog_app.sensors.gpu.process_list import ProcessList, ProcessLister

PROCESSES_EVERY_S = 5.0
SLOW_EVERY_S = 10.0
ASK_AGAIN_S = 600.0  # what a card could not tell: a driver may learn it, a card hardly
# Somebody came or went: worth a list before it is due.
_MOVED_BYTES = 256 * 1024**2
_MOVED_AT_LEAST_S = 1.0

_SHUTDOWN, _SLOWDOWN = 0, 1  # nvmlTemperatureThresholds_t
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RECOVERY = {1: "reset", 2: "reboot", 3: "drain", 4: "drain_and_reset"}
_UNCORRECTED, _SINCE_LOAD = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
# Where a card tells neither threshold nor margin. NVIDIA's own lie between 85 and 100, shutdown
# some degrees above slowdown.
_USUAL_SLOWDOWN_C = 90.0
_ABOVE_SLOWDOWN_C = 5.0

_MIG_WHY = "Memory and processes are those of its MIG instances."


class Card:
    """One device of the driver's, as long as its handle is good."""

    def __init__(
        self, driver: Driver, handle: Any, index: int, parent_uuid: str | None = None
    ) -> None:
        """
        Raises:
            DriverError: the driver does not say which card that is.
        """
        self._driver = driver
        self.handle = handle
        self.index = index
        self.parent_uuid = parent_uuid
        self.uuid = driver.text("nvmlDeviceGetUUID", handle)
        self.why: dict[str, str] = {}
        self._unable_until: dict[str, float] = {}
        self._kept: dict[str, Any] = {}
        self._slow_mono_s: float | None = None
        self._listed_mono_s: float | None = None
        self._listed_bytes = 0
        self._list_failed = True
        self._list = ProcessList()
        self._lister = ProcessLister(driver)
        self._partitioned = False
        self._memory_v2 = True
        self._reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        self._asked = self._answered = 0
        try:
            self.name = driver.text("nvmlDeviceGetName", handle)
        except DriverError as error:
            self.name = "NVIDIA GPU"
            self.why["name"] = f"Name: the driver does not tell ({error.said})."
        self.bus_id: str | None = None
        if parent_uuid is None:
            try:
                said = driver.ask("nvmlDeviceGetPciInfo", handle).busId
                self.bus_id = said.decode("ascii") if isinstance(said, bytes) else str(said)
            except (DriverError, UnicodeDecodeError):
                self.bus_id = None

    @property
    def partitioned(self) -> bool:
        """Its MIG instances have the memory and the processes."""
        return self._partitioned

    @property
    def computing(self) -> int:
        """Processes that compute on it, as last listed."""
        return self._list.computing

    def read(self, now_mono_s: float) -> dict[str, Any]:
        """
        Every figure, by the names of core.model.hardware.Gpu; what is not known is left out.

        Raises:
            DriverError: the card is lost, needs a reset, or answers nothing at all.
        """
        self._asked = self._answered = 0
        if self._slow_mono_s is None or now_mono_s - self._slow_mono_s >= SLOW_EVERY_S:
            self._read_slow(now_mono_s)
            self._slow_mono_s = now_mono_s
        found = dict(self._kept)
        found.update(uuid=self.uuid, index=self.index, name=self.name)
        if self.bus_id is not None:
            found["bus_id"] = self.bus_id
        if self.parent_uuid is not None:
            found["parent_id"] = self.parent_uuid
        else:
            self._read_moving(found, now_mono_s)
        if self._partitioned:
            self.why["memory"] = _MIG_WHY
        else:
            self._read_memory(found, now_mono_s)
            self._read_processes(found, now_mono_s)
        if self._asked and not self._answered:
            raise DriverError(-1, "it answers no question")
        found["notes"] = list(dict.fromkeys(self.why.values()))
        return found

    def _read_memory(self, found: dict[str, Any], now_mono_s: float) -> None:
        memory = None
        if self._memory_v2:
            version = getattr(self._driver.binding, "nvmlMemory_v2", 0x02000028)
            memory = self._figure("memory v2", now_mono_s, "nvmlDeviceGetMemoryInfo", version)
            # Not a card that cannot tell: a driver that is too old for this question.
            self._memory_v2 = memory is not None or "memory v2" not in self._unable_until
        if memory is None:
            memory = self._figure("memory", now_mono_s, "nvmlDeviceGetMemoryInfo")
        cannot = memory is None and "memory" in self._unable_until
        if memory is not None or cannot:
            self.why.pop("memory v2", None)
        if cannot or (memory is not None and not memory.total):
            self._share_with_host(found)
        elif memory is not None and not plausible.memory(memory.total):
            self.why["memory"] = "Memory: the driver does not know it (N/A)."
        elif memory is not None and memory.used > memory.total:
            self.why["memory"] = "Memory: the driver says more is used than there is: not believed."
        elif memory is not None:
            self.why.pop("memory", None)
            found["memory_used_bytes"] = int(memory.used)
            found["memory_total_bytes"] = int(memory.total)
            if hasattr(memory, "reserved") and memory.used + memory.reserved <= memory.total:
                found["memory_reserved_bytes"] = int(memory.reserved)

    def _share_with_host(self, found: dict[str, Any]) -> None:
        """Boards without memory of their own (GB10, Jetson): the host's RAM is the limit."""
        host = host_memory()
        if host is None:
            self.why["memory"] = "Memory: the driver does not tell, nor does the host."
            return
        found["unified_memory"] = True
        found["memory_used_bytes"], found["memory_total_bytes"] = host
        self.why["memory"] = "Memory: this GPU shares the host's RAM, which is shown here."

    def _read_moving(self, found: dict[str, Any], now_mono_s: float) -> None:
        rates = self._figure("utilisation", now_mono_s, "nvmlDeviceGetUtilizationRates")
        if rates is not None:
            busy = plausible.percent(float(rates.gpu), "Utilisation")
            self._believe(found, "utilization_percent", "utilisation", busy)
        celsius = self._figure("temperature", now_mono_s, "nvmlDeviceGetTemperature", 0)
        if celsius is None and "temperature" in self._unable_until:
            celsius = self._figure("temperature V", now_mono_s, "nvmlDeviceGetTemperatureV", 0)
            self.why.pop("temperature V" if celsius is None else "temperature", None)
        if celsius is not None:
            believed = plausible.temperature(float(celsius))
            self._believe(found, "temperature_c", "temperature", believed)
        milliwatts = self._figure("power", now_mono_s, "nvmlDeviceGetPowerUsage")
        if milliwatts is not None:
            drawn = plausible.power(
                milliwatts / 1000, found.get("power_limit_w"), found.get("utilization_percent")
            )
            self._believe(found, "power_w", "power", drawn)
        reasons = self._figure("throttle reasons", now_mono_s, self._reasons)
        if (
            reasons is None
            and self._reasons.endswith("EventReasons")
            and "throttle reasons" in self._unable_until
        ):
            del self._unable_until["throttle reasons"]
            self._reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"  # drivers before 535
            reasons = self._figure("throttle reasons", now_mono_s, self._reasons)
        mask = None if reasons is None else plausible.count(int(reasons))
        if mask is not None:
            found["throttle_reasons"] = mask

    def _read_slow(self, now_mono_s: float) -> None:
        """What hardly moves: kept until the next time."""
        kept: dict[str, Any] = {}
        if self.parent_uuid is None:
            mode = self._figure("MIG", now_mono_s, "nvmlDeviceGetMigMode")
            self.why.pop("MIG", None)  # most cards have none: nothing to say
            self._partitioned = mode is not None and mode[0] == 1
            speed = self._figure("fan", now_mono_s, "nvmlDeviceGetFanSpeed")
            if speed is not None:
                self._believe(kept, "fan_percent", "fan", plausible.fan(float(speed)))
            limit = self._figure("power limit", now_mono_s, "nvmlDeviceGetEnforcedPowerLimit")
            if limit is not None:
                believed = plausible.power_limit(limit / 1000)
                self._believe(kept, "power_limit_w", "power limit", believed)
            self._read_thresholds(kept, now_mono_s)
            self._read_health(kept, now_mono_s)
        self._kept = kept

    def _read_thresholds(self, kept: dict[str, Any], now_mono_s: float) -> None:
        ask = "nvmlDeviceGetTemperatureThreshold"
        said = {}
        for name, which in (("slowdown", _SLOWDOWN), ("shutdown", _SHUTDOWN)):
            celsius = self._figure(f"{name} threshold", now_mono_s, ask, which)
            said[name] = None if celsius is None else plausible.threshold(float(celsius))
            self.why.pop(f"{name} threshold", None)
        slowdown, shutdown = said["slowdown"], said["shutdown"]
        self.why.pop("thresholds", None)
        if slowdown is None:
            slowdown, how = self._slowdown_otherwise(shutdown, now_mono_s)
            self.why["thresholds"] = f"Temperature limits: the driver does not tell them; {how}."
        if shutdown is None:
            shutdown = slowdown + _ABOVE_SLOWDOWN_C
            self.why.setdefault(
                "thresholds",
                "Shutdown temperature: the driver does not tell; "
                f"taken as {_ABOVE_SLOWDOWN_C:.0f} °C above the slowdown.",
            )
        kept["slowdown_c"], kept["shutdown_c"] = slowdown, shutdown

    def _slowdown_otherwise(self, shutdown: float | None, now_mono_s: float) -> tuple[float, str]:
        margin = self._figure("margin", now_mono_s, "nvmlDeviceGetMarginTemperature")
        self.why.pop("margin", None)
        celsius = self._figure("temperature", now_mono_s, "nvmlDeviceGetTemperature", 0)
        if margin is not None and celsius is not None:
            slowdown = plausible.threshold(float(celsius) + float(margin))
            if slowdown is not None:
                return slowdown, f"it says {margin} °C are left until the slowdown"
        if shutdown is not None:
            return shutdown - _ABOVE_SLOWDOWN_C, "the slowdown is taken from the shutdown"
        return _USUAL_SLOWDOWN_C, f"{_USUAL_SLOWDOWN_C:.0f} °C is assumed for the slowdown"

    def _read_health(self, kept: dict[str, Any], now_mono_s: float) -> None:
        ecc = self._figure(
            "ECC", now_mono_s, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_LOAD
        )
        self.why.pop("ECC", None)  # cards for games have none: nothing to say
        errors = None if ecc is None else plausible.count(int(ecc))
        if errors is not None:
            kept["ecc_uncorrected"] = errors
        rows = self._figure("remapped rows", now_mono_s, "nvmlDeviceGetRemappedRows")
        self.why.pop("remapped rows", None)
        if rows is not None:
            kept["remap_pending"], kept["remap_failed"] = bool(rows[2]), bool(rows[3])
        fields = self._figure(
            "recovery action", now_mono_s, "nvmlDeviceGetFieldValues", [_RECOVERY_ACTION]
        )
        self.why.pop("recovery action", None)
        if fields is not None and fields[0].nvmlReturn == 0:
            action = _RECOVERY.get(int(fields[0].value.uiVal))
            if action is not None:
                kept["recovery_action"] = action

    def _read_processes(self, found: dict[str, Any], now_mono_s: float) -> None:
        used = found.get("memory_used_bytes", 0)
        since = None if self._listed_mono_s is None else now_mono_s - self._listed_mono_s
        moved = abs(used - self._listed_bytes) >= _MOVED_BYTES
        if since is None or since >= (_MOVED_AT_LEAST_S if moved else PROCESSES_EVERY_S):
            total = None if found.get("unified_memory") else found.get("memory_total_bytes")
            listed = self._try(
                "processes", now_mono_s, lambda: self._lister.read(self.handle, total)
            )
            self._list = listed if listed is not None else ProcessList()
            self._listed_mono_s, self._listed_bytes = now_mono_s, used
            self._list_failed = listed is None
            if listed is not None:
                self.why.pop("process memory", None)
                if listed.why:
                    self.why["process memory"] = " ".join(listed.why)
        found["processes"] = [list(row) for row in self._list.rows]
        if not self._list_failed:
            found["processes_mono_s"] = self._listed_mono_s

    def _believe(
        self, found: dict[str, Any], field: str, what: str, believed: plausible.Believed
    ) -> None:
        if believed.value is not None:
            found[field] = believed.value
        elif believed.why is not None:
            self.why[what] = believed.why

    def _figure(self, what: str, now_mono_s: float, function: str, *arguments: Any) -> Any:
        return self._try(
            what, now_mono_s, lambda: self._driver.ask(function, self.handle, *arguments)
        )

    def _try(self, what: str, now_mono_s: float, ask: Callable[[], Any]) -> Any:
        """One question; None and a note where there is no answer. Raises what ends the card."""
        if now_mono_s < self._unable_until.get(what, now_mono_s):
            return None
        self._asked += 1
        try:
            answer = ask()
        except DriverError as error:
            if error.code in (GPU_IS_LOST, RESET_REQUIRED):
                raise
            if error.code in UNABLE:
                self._answered += 1  # that it cannot tell is an answer
                self._unable_until[what] = now_mono_s + ASK_AGAIN_S
            self.why[what] = f"{what.capitalize()}: {_reason(error)}."
            return None
        self._answered += 1
        self._unable_until.pop(what, None)
        self.why.pop(what, None)
        return answer


def _reason(error: DriverError) -> str:
    if error.code == NOT_SUPPORTED:
        return "this card does not tell"
    if error.code == FUNCTION_NOT_FOUND:
        return "this driver is too old to tell"
    if error.code == NO_PERMISSION:
        return "the driver tells it to root alone"
    return f"the driver answers with an error ({error.said})"
