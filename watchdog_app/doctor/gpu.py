"""What the driver says of itself and of every card, asked in a child that may hang or crash."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base.children import module_argv
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.doctor import children, versions
from watchdog_app.doctor.machine import Machine
from watchdog_app.doctor.versions import Version

READER = (*module_argv("watchdog_app.machine.gpu.reader"), "--once", "--all")
_MAX_CARDS = 64
_MAX_S = 20.0  # a healthy driver without persistence needs some seconds for its first caller


@dataclass(frozen=True, slots=True)
class Driver:
    """
    What came back.

    `cards` are dictionaries of the fields of core.model.hardware.Gpu and of
    machine.gpu.nvml.DOCTOR_QUESTIONS; on one that could not be asked also `failed_in` (the call),
    `hung` and `error`.
    """

    code: int | None  # NVML's: 0 answered; None: it never came to an answer
    error: str = ""
    hung_in: str | None = None  # the call that did not return, of the driver as a whole
    crashed_in: str | None = None  # the call under which the library crashed, likewise
    version: Version = ()
    cuda: Version = ()
    cards: tuple[dict[str, Any], ...] = ()
    count: int = 0  # of cards, as the driver has counted them
    seconds: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether the driver could be asked, even if not about everything."""
        return self.code == 0

    @property
    def usable(self) -> list[dict[str, Any]]:
        """The cards that answer."""
        return [
            card
            for card in self.cards
            if card.get("state", GpuState.OK) == GpuState.OK and not card.get("failed_in")
        ]

    @property
    def hangs(self) -> bool:
        """Whether a program that touches all cards would hang now."""
        return self.hung_in is not None or any(card.get("hung") for card in self.cards)

    @property
    def devices(self) -> int | None:
        """What CUDA counts: cards, or MIG instances in their place; None: not known."""
        return len(self.cards) if self.answers and not self.hung_in else None


def ask(machine: Machine, reader: tuple[str, ...] = READER) -> Driver:
    """
    Start the child, read what it prints, never wait beyond the deadline.

    Where the driver hangs or crashes on a card, the cards behind that are asked at the same
    time, each in a child of its own: it takes twice the deadline at most.
    """
    # CUDA_VISIBLE_DEVICES does not concern NVML. Modules of the user's own must not get in the
    # way of ours.
    env = {key: value for key, value in machine.env.items() if not key.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if os.path.isabs(path))

    def run_reader(*words: str) -> Driver:
        limit_s = min(_MAX_S, machine.timeout_s)
        try:
            return parse_output(children.run((*reader, *words), limit_s, env, cwd="/"))
        except OSError as error:
            return Driver(None, f"the process that asks the driver could not be started: {error}")

    first = run_reader()
    asked = {card.get("index") for card in first.cards}
    rest = [index for index in range(min(first.count, _MAX_CARDS)) if index not in asked]
    if not any(card.get("failed_in") for card in first.cards):
        return first
    with ThreadPoolExecutor(_MAX_CARDS) as pool:
        found = list(pool.map(lambda index: _find_card(run_reader(str(index)), index), rest))
    return replace(first, cards=(*first.cards, *found))


def _find_card(driver: Driver, index: int) -> dict[str, Any]:
    """One card of an answer; where it is not in there, what kept it out."""
    unreadable = {
        "index": index,
        "state": GpuState.UNREADABLE.value,
        "error": driver.error,
        "failed_in": driver.hung_in or driver.crashed_in,
        "hung": driver.hung_in is not None,
    }
    return next((card for card in driver.cards if card.get("index") == index), unreadable)


def parse_output(ended: children.ChildResult) -> Driver:
    """What a child's output means; the output may end anywhere."""
    ready: dict[str, Any] | None = None
    failed: dict[str, Any] = {}
    cards: list[dict[str, Any]] = []
    calling: str | None = None
    at: int | None = None
    count = 0
    for said in ended.objects():
        calling = said.get("calling", calling)
        at = None if "end" in said else said.get("begin", at)
        count = said["count"] if isinstance(said.get("count"), int) else count
        if isinstance(said.get("ready"), dict):
            ready = said["ready"]
        if isinstance(said.get("failed"), dict):
            failed = said["failed"]
        if isinstance(said.get("device"), dict):
            _add_row(said["device"], cards)
    hung = calling if ended.timed_out else None
    crashed = calling if ended.code is not None and ended.code < 0 else None
    error = str(failed.get("said", ""))
    if not error and (ready is None or hung or crashed or ended.code):
        lines = ended.stderr.strip().splitlines()
        error = ended.end_text + (f": {lines[-1]}" if lines and not hung else "")
    if isinstance(at, int) and (hung or crashed):
        # It is this card's: the driver as a whole has answered.
        cards.append(
            {"index": at, "failed_in": hung or crashed, "hung": hung is not None, "error": error}
        )
        hung = crashed = None
        error = ""
    ready = ready or {}
    return Driver(
        code=failed.get("code") if failed else 0 if ready else None,
        error=error,
        hung_in=hung,
        crashed_in=crashed,
        version=versions.parse(ready.get("driver")),
        cuda=versions.parse_driver_cuda(ready.get("cuda")),
        cards=tuple(cards),
        count=count,
        seconds=ended.seconds,
    )


def _add_row(row: dict[str, Any], cards: list[dict[str, Any]]) -> None:
    """One row of the reader's: a card, or a MIG instance of the last."""
    if "partition" in row and cards:
        cards[-1].setdefault("mig_uuids", []).append(row.get("uuid"))
        return
    used, total = row.get("memory_used_bytes"), row.get("memory_total_bytes")
    if used is not None and total:
        free = total - used - row.get("memory_reserved_bytes", 0)
        row = {"memory_free_bytes": max(0, free)} | row
    cards.append({"error": " ".join(row.get("notes", ())).rstrip(".")} | row)


def label(card: dict[str, Any]) -> str:
    """`GPU 0 (NVIDIA H200)`."""
    return f"GPU {card.get('index')}" + (f" ({card['name']})" if card.get("name") else "")
