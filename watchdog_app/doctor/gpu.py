"""What the driver says about itself and every card, read by a child that may hang or crash."""

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
    The answer of the driver.

    `cards` are dictionaries with the fields of core.model.hardware.Gpu and of
    machine.gpu.nvml.DOCTOR_QUESTIONS. A card that could not be read also has `failed_in` (the
    call), `hung` and `error`.
    """

    code: int | None  # NVML's error code: 0: it answered; None: no answer
    error: str = ""
    hung_in: str | None = None  # driver call that did not return, unless it concerned one card
    # driver call in which the library crashed, unless it concerned one card
    crashed_in: str | None = None
    version: Version = ()
    cuda: Version = ()
    cards: tuple[dict[str, Any], ...] = ()
    count: int = 0  # number of cards, as the driver counts them
    seconds: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether the driver answered, even if not about everything."""
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
        """Whether a program that uses all cards would hang now."""
        return self.hung_in is not None or any(card.get("hung") for card in self.cards)

    @property
    def devices(self) -> int | None:
        """Number of devices for CUDA: cards, or MIG instances in their place; None: unknown."""
        return len(self.cards) if self.answers and not self.hung_in else None


def ask(machine: Machine, reader: tuple[str, ...] = READER) -> Driver:
    """
    Run the reader in a child and parse its output, within the deadline.

    If the driver hangs or crashes on a card, one child per remaining card reads those in parallel.
    So this takes twice the deadline at most.
    """
    # NVML ignores CUDA_VISIBLE_DEVICES. Drop PYTHON* so that the user's own modules cannot replace
    # ours.
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
    """Return one card of an answer; if it is missing there, a row with the reason."""
    unreadable = {
        "index": index,
        "state": GpuState.UNREADABLE.value,
        "error": driver.error,
        "failed_in": driver.hung_in or driver.crashed_in,
        "hung": driver.hung_in is not None,
    }
    return next((card for card in driver.cards if card.get("index") == index), unreadable)


def parse_output(ended: children.ChildResult) -> Driver:
    """Parse a child's output, which may end at any point."""
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
        # The failure belongs to this card: the driver as a whole has answered.
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
    """Add a row from the reader: a card, or a MIG instance of the last card."""
    if "partition" in row and cards:
        cards[-1].setdefault("mig_uuids", []).append(row.get("uuid"))
        return
    used, total = row.get("memory_used_bytes"), row.get("memory_total_bytes")
    if used is not None and total:
        free = total - used - row.get("memory_reserved_bytes", 0)
        row = {"memory_free_bytes": max(0, free)} | row
    cards.append({"error": " ".join(row.get("notes", ())).rstrip(".")} | row)


def label(card: dict[str, Any]) -> str:
    """Format a card as `GPU 0 (NVIDIA H200)`."""
    return f"GPU {card.get('index')}" + (f" ({card['name']})" if card.get("name") else "")
