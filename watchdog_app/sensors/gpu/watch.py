"""
Graphics cards as the daemon sees them: what the reader last said, and how old that is.

Nothing here waits, loads the driver library, or believes that a figure is new because it is
the last one. One request is under way at a time; its answer is picked up at a later tick.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base import children
from watchdog_app.core.model.hardware import Gpu, GpuState, XidEvent
from watchdog_app.core.model.machine import Fault
from watchdog_app.sensors.gpu import faults, library
from watchdog_app.sensors.gpu.known import KnownCards
from watchdog_app.sensors.gpu.link import NONSENSE, Link
from watchdog_app.sensors.gpu.pci import PciCard, PciCards, short_address
from watchdog_app.sensors.gpu.sleep import Repose
from watchdog_app.sensors.gpu.xids import KEEP_S, Xids
from watchdog_app.sensors.kernel_log import KernelLog, LogKind

READER = children.argv_of("watchdog_app.sensors.gpu.reader")
BUSY_EVERY_S = 1.0
IDLE_EVERY_S = 5.0
BROKEN_EVERY_S = 60.0
FRESH_EYES_S = 300.0
_LOOK_FOR_LIBRARY_S = 60.0
# A tick comes a little early or late; a request is not to slip to the next one for that.
_TICK_SLACK_S = 0.2


@dataclass(frozen=True, slots=True)
class GpuLook:
    """The cards at one tick."""

    gpus: tuple[Gpu, ...] = ()  # by index, MIG instances behind their card
    read_mono_s: float | None = None  # when the figures were true; None: there are none
    driver_version: str | None = None
    cuda_version: int | None = None  # what the driver offers: 12080 is 12.8
    faults: tuple[Fault, ...] = ()
    absent: str | None = None  # why there is nothing to watch; no fault


class GpuWatch:
    """
    The cards of this machine, through a reader that lives apart. Not for several threads.

    A machine without a card costs two looks for a file a tick. A missing GPU is no error.
    """

    def __init__(
        self,
        *,
        proc: str = "/proc",
        root: str = "",
        env: Mapping[str, str] | None = None,
        reader_argv: Sequence[str] = READER,
        find_library: Callable[[Mapping[str, str], str], library.Library | None] = library.find,
        deadline_s: float = 5.0,
        start_deadline_s: float = 60.0,
        kernel_log: str | None = "/dev/kmsg",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            proc: where processes are looked up: a pid that is not there is foreign.
            root: stands before /sys, /etc and the library's folders.
            env: for the reader; None: ours. Only what a reader needs of it is passed on.
            reader_argv: the reader's command line.
            find_library: says whether there is a driver library.
            deadline_s: for one card, and for the driver as a whole.
            start_deadline_s: for the driver's own start, which takes seconds a card.
            kernel_log: None: not read.
            wall_clock: seconds of the epoch, for events.
        """
        self._root = root
        self._env = os.environ if env is None else env
        self._find = find_library
        self._proc = proc if os.path.isdir(proc) else None  # none but Linux has one
        self._wall_clock = wall_clock
        self._deadline_s = deadline_s
        self._library: library.Library | None = None
        self._module: str | None = None
        self._looked_mono_s: float | None = None
        self._signs: tuple[bool, ...] = ()
        self._pci = PciCards(root)
        self._on_bus: tuple[PciCard, ...] = ()
        self._link = Link(reader_argv, self._env, deadline_s, start_deadline_s)
        self._known = KnownCards(self._foreign)
        self._repose = Repose()
        self._log = None if kernel_log is None else KernelLog(kernel_log)
        self._xids = Xids()
        self._mismatch_unix_s: float | None = None
        self._vanished = False  # cards were read, and the driver's library is gone since

    def read(self, now_mono_s: float, busy: bool = False) -> GpuLook:
        """
        The cards as last read; asks for the next reading when it is due. Never waits.

        Args:
            now_mono_s: the tick.
            busy: the caller knows of something that wants figures each second, whatever runs.
        """
        self._look_around(now_mono_s)
        if self._library is None and not self._link.running:
            self._link.forget()
            self._vanished = self._vanished or self._known.any
            self._known = KnownCards(self._foreign)
            gone = (faults.vanished(),) if self._vanished else ()
            return GpuLook(absent=self._absence(), faults=gone)
        self._vanished = False
        self._collect(now_mono_s)
        self._read_log(now_mono_s)
        self._on_bus = self._pci.look()
        self._steer(now_mono_s, busy)
        return self._look(now_mono_s)

    def _collect(self, now_mono_s: float) -> None:
        try:
            for message in self._link.collect(now_mono_s):
                self._take(message, now_mono_s)
        except NONSENSE:
            self._link.distrust(now_mono_s)

    @property
    def reader_pid(self) -> int | None:
        """The reader's process; None: none runs."""
        return self._link.pid

    def close(self) -> None:
        """End the reader, waiting a second at most, and give back what is held open."""
        self._link.close()
        if self._log is not None:
            self._log.close()

    def _look_around(self, now_mono_s: float) -> None:
        """Look for library, module and bus: once a minute, and when a driver comes or goes."""
        signs = library.signs(self._root)
        since = None if self._looked_mono_s is None else now_mono_s - self._looked_mono_s
        if since is not None and since < _LOOK_FOR_LIBRARY_S and signs == self._signs:
            return
        self._looked_mono_s = now_mono_s
        if signs != self._signs:
            self._signs = signs
            self._link.try_now()
        self._library = self._find(self._env, self._root)
        self._module = library.module_version(self._root)
        before = {card.address for card in self._on_bus}
        self._pci.scan()
        self._on_bus = self._pci.look()
        if since is not None and {card.address for card in self._on_bus} != before:
            # The driver counts its cards when it begins.
            self._link.let_go()

    def _absence(self) -> str:
        if self._on_bus:
            return "An NVIDIA card is in this machine, and no NVIDIA driver is installed."
        return "No NVIDIA driver is installed: there are no graphics cards to watch."

    def _steer(self, now_mono_s: float, busy: bool) -> None:
        """Start the reader, ask it, or let it go."""
        link = self._link
        if not self._repose.may_read(self._on_bus, self._known.in_use, now_mono_s):
            link.let_go()
            return
        if self._known.any_broken:
            link.renew(now_mono_s, FRESH_EYES_S)
        if not link.running:
            if self._library is not None:
                link.start(now_mono_s, self._library.folder)
            return
        every_s = BUSY_EVERY_S if busy or self._known.at_work(now_mono_s) else IDLE_EVERY_S
        asleep = any(card.asleep for card in self._on_bus)
        awake = None
        if asleep:
            # The driver counts in the order of the addresses, as nvidia-smi does.
            mine = [card for card in self._on_bus if card.driver in (None, "nvidia")]
            awake = [(i, card.address) for i, card in enumerate(mine) if not card.asleep]
        link.ask(now_mono_s, every_s - _TICK_SLACK_S, awake)
        if self._known.all_broken:
            # A reset needs a card that nobody holds open; and a card that was reset answers
            # a new reader alone.
            link.rest(now_mono_s, BROKEN_EVERY_S)

    def _take(self, message: Mapping[str, Any], now_mono_s: float) -> None:
        if "card" in message:
            self._known.take(message["card"], now_mono_s)
        elif "end" in message:
            asked_mono_s = self._link.asked_mono_s or now_mono_s
            self._known.end(asked_mono_s, int(message["computing"]), self._link.left_out)
            self._repose.seen(now_mono_s, self._known.in_use)
        elif "xids" in message:
            for uuid, code in message["xids"]:
                event = XidEvent(int(code), self._wall_clock())
                self._add_xid(self._known.address_of(uuid) or uuid, event, "driver")

    def _read_log(self, now_mono_s: float) -> None:
        if self._log is None:
            return
        for line in self._log.read():
            at_unix_s = self._wall_clock() - max(0.0, now_mono_s - line.mono_s)
            if self._wall_clock() - at_unix_s > KEEP_S:
                continue
            if line.kind is LogKind.MISMATCH:
                self._mismatch_unix_s = at_unix_s
                self._looked_mono_s = None  # compare versions now
            elif line.code is not None:
                address = short_address(line.address) or ""
                event = XidEvent(line.code, at_unix_s, line.pid, line.text)
                self._add_xid(address, event, "log")

    def _add_xid(self, card: str | None, event: XidEvent, source: str) -> None:
        if card:
            self._xids.add(card, event, source)

    def _look(self, now_mono_s: float) -> GpuLook:
        fresh_s = IDLE_EVERY_S + self._deadline_s
        avoided = self._link.avoided(now_mono_s)
        gpus = self._known.look(now_mono_s, fresh_s, self._link.ill, avoided, self._on_bus)
        now_unix_s = self._wall_clock()
        gpus = tuple(
            gpu
            if gpu.parent_id
            else replace(gpu, xids=self._xids.of((short_address(gpu.bus_id), gpu.uuid), now_unix_s))
            for gpu in gpus
        )
        said = list(self._faults(now_unix_s))
        updated = any(fault.source == faults.UPDATED for fault in said)
        for gpu in gpus:
            fault = faults.card(gpu)
            # Of a driver that is silent as a whole one word is enough.
            if fault is not None and (
                gpu.state is not GpuState.SILENT or (gpu.index in avoided and not updated)
            ):
                said.append(fault)
        current = self._known.current(now_mono_s, fresh_s) and (
            not gpus or any(gpu.state is not GpuState.ASLEEP for gpu in gpus)
        )
        return GpuLook(
            gpus=gpus,
            read_mono_s=self._known.read_mono_s if current else None,
            driver_version=self._link.versions.get("driver"),
            cuda_version=self._link.versions.get("cuda"),
            faults=tuple({fault.source: fault for fault in said}.values()),
            absent=None if gpus else self._link.absence,
        )

    def _faults(self, now_unix_s: float) -> list[Fault]:
        found = []
        path_version = self._library.version if self._library else None
        failure = self._link.failure(path_version, self._module)
        on_machine = bool(self._on_bus) or any(self._signs)
        if failure is not None:
            # A library without a card is common: containers, images made for any machine.
            if on_machine or self._link.absence is None:
                found.append(failure)
        elif failure is None and self._link.running and self._differs(path_version, now_unix_s):
            found.append(faults.mismatch(path_version, self._module, reading=True))
        return found

    def _differs(self, path_version: str | None, now_unix_s: float) -> bool:
        if path_version and self._module:
            return path_version != self._module
        said = self._mismatch_unix_s
        return said is not None and now_unix_s - said <= KEEP_S

    def _foreign(self, pid: int) -> bool:
        return self._proc is not None and not os.path.exists(f"{self._proc}/{pid}")
