"""Faults of cards over time compared with a recording: which fault, which card, which tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from card_world import WALL_S, card, task
from support import decisions
from support.records import host

from watchdog_app.core.diagnosis.device_health import DeviceHealth
from watchdog_app.core.model.hardware import Gpu, GpuProcess, GpuState, Hardware, XidEvent
from watchdog_app.core.model.machine import Fault, Snapshot

HOST = host()
TASKS = (task(100, "left.ipynb"), task(200, "right.ipynb"))
BEGIN_S = 1000.0

Cards = Callable[[int], list[Gpu]]


def on(pid: int, **more: Any) -> dict[str, Any]:
    return {"processes": (GpuProcess(pid, 1 << 30),), **more}


def first(second: int, **changes: Any) -> list[Gpu]:
    """Two cards with a task each; the first one has these changes."""
    return [replace(card(0, **on(100)), **changes), card(1, **on(200))]


def for_a_while(state: GpuState, begin: int, end: int) -> Cards:
    """In another state from `begin` to `end`, without figures."""
    silent = {"state": state, "processes": (), "memory_used_bytes": None}
    return lambda s: first(s, **(silent if begin <= s < end else {}))


def left(gone_s: int) -> Cards:
    """Its task leaves at 100 s, and the card is lost `gone_s` later."""

    def at(s: int) -> list[Gpu]:
        if s >= 100 + gone_s:
            return first(s, state=GpuState.LOST, processes=())
        return first(s, **({} if s < 100 else {"processes": ()}))

    return at


def absent(begin: int, end: int, *, both: bool = False) -> Cards:
    """Not listed from `begin` to `end`."""
    return lambda s: (
        [each for each in first(s) if not both and each.index] if begin <= s < end else first(s)
    )


def xid(code: int, at: int, *, age_s: float = 0.0, pid: int | None = None) -> Cards:
    """One fault, whose pid appears two seconds later."""

    def cards(s: int) -> list[Gpu]:
        if s < at:
            return first(s)
        event = XidEvent(code, WALL_S + BEGIN_S + at - age_s, pid if s > at + 2 else None)
        return first(s, xids=(event,))

    return cards


def storm(s: int) -> list[Gpu]:
    """A fault with another code every ten seconds."""
    codes = (79, 48, 63, 64, 94, 95, 74, 43, 31, 13, 45, 61, 62, 69, 92, 119, 120, 999)
    events = [
        XidEvent(code, WALL_S + BEGIN_S + 10 * n) for n, code in enumerate(codes) if s >= 10 * n
    ]
    return first(s, xids=tuple(events))


def mended(s: int) -> list[Gpu]:
    """A fault takes the card with it, and the card comes back."""
    event = XidEvent(79, WALL_S + BEGIN_S + 50)
    lost = {"state": GpuState.LOST, "processes": ()} if 52 <= s < 100 else {}
    return first(s, xids=(event,) if s >= 50 else (), **lost)


def errors(s: int) -> list[Gpu]:
    """Memory errors: three, then a driver that restarts its count, then two more."""
    return first(s, ecc_uncorrected=5 if s < 60 else 8 if s < 300 else 1 if s < 400 else 3)


def divided(s: int) -> list[Gpu]:
    """A card in two parts, of which one disappears."""
    whole = card(0, state=GpuState.LOST if s >= 200 else GpuState.OK)
    parts = [
        card(0, id=f"x/gi{n}.ci0", uuid=f"MIG-{n}", parent_id="GPU-0", **on(100 * n + 100))
        for n in range(1 if s >= 100 else 2)
    ]
    return [whole, *parts]


CASES: dict[str, tuple[Cards, int]] = {
    **{
        f"{state.value} for {lasts} s": (for_a_while(state, 30, 30 + lasts), 250)
        for state in GpuState
        for lasts in (1, 19, 20, 21, 60, 61, 70)
        if state is not GpuState.OK
    },
    **{f"left {gone_s} s before it was lost": (left(gone_s), 150) for gone_s in (1, 5, 6, 30)},
    **{f"absent for {lasts} s": (absent(30, 30 + lasts), 100) for lasts in (1, 2, 9, 10, 11, 40)},
    "absent for an hour": (absent(30, 9999), 3700),
    "both absent": (absent(30, 60, both=True), 100),
    **{f"Xid {code}": (xid(code, 30, pid=100), 680) for code in (13, 31, 43, 48, 63, 79, 94, 999)},
    **{f"an Xid of {age_s} s ago": (xid(79, 30, age_s=age_s), 40) for age_s in (59, 60, 61)},
    "a storm of faults": (storm, 850),
    "mended": (mended, 200),
    "memory errors": (errors, 4100),
    "rows that are remapped": (lambda s: first(s, remap_pending=s >= 20, remap_failed=s >= 40), 60),
    **{
        f"it recommends to {action}": (lambda s, a=action: first(s, recovery_action=a), 5)  # type: ignore[misc]
        for action in ("reset", "reboot", "drain", "drain_and_reset", "dance")
    },
    "parts of a card": (divided, 300),
}


def noted(health: DeviceHealth, second: int, hardware: Hardware, *faults: Fault) -> list[Any]:
    """Each finding as fault, subject and the tasks that it hits."""
    at_s = BEGIN_S + second
    snapshot = Snapshot(at_s, WALL_S + at_s, HOST, (), faults=faults, hardware=hardware)
    found = list(health.observe(snapshot, TASKS))
    for each in found:
        assert each.text
        assert each.remedy
    return [
        [each.fault.kind, each.key.subject, *sorted(one.name for one in each.tasks)]
        for each in found
    ]


def _note(lines: list[tuple[int, list[Any]]]) -> None:
    before: list[Any] = []
    for second, found in lines:
        if found != before:
            decisions.note({"t": second, "found": found})
        before = found


@pytest.mark.parametrize("name", CASES)
def test_the_same_is_found_wrong_as_before(name: str) -> None:
    cards, seconds = CASES[name]
    health = DeviceHealth()
    hardware = [Hardware(tuple(cards(s)), BEGIN_S + s, "570.1") for s in range(seconds)]
    _note([(s, noted(health, s, each)) for s, each in enumerate(hardware)])


@pytest.mark.parametrize("state", [GpuState.OK, GpuState.SILENT])
def test_cards_that_nobody_reads_are_found_as_before(state: GpuState) -> None:
    """The reader hangs for 100 s."""
    health, lines = DeviceHealth(), []
    for s in range(200):
        read_s = 30 if 30 <= s < 130 else s
        cards = tuple(first(s, state=state))
        lines.append((s, noted(health, s, Hardware(cards, BEGIN_S + read_s, "570.1"))))
    _note(lines)


@pytest.mark.parametrize("source", ["gpu", "gpu.driver", "gpu.updated", "host"])
@pytest.mark.parametrize("state", [GpuState.SILENT, GpuState.UNREADABLE, GpuState.LOST])
def test_a_fault_of_the_driver_explains_its_cards_as_before(source: str, state: GpuState) -> None:
    health, lines = DeviceHealth(), []
    for s in range(160):
        cards = tuple(
            replace(each, state=state if s >= 20 else GpuState.OK)
            for each in first(s)
            if s < 100 or each.index
        )
        faults = (Fault(source, "It does not answer.", "Load it anew."),) if s >= 40 else ()
        lines.append((s, noted(health, s, Hardware(cards, BEGIN_S + s, "570.1"), *faults)))
    _note(lines)
