"""What the driver says of itself and of every card, asked in a child that may hang or crash."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base.children import argv_of
from watchdog_app.doctor import children, versions
from watchdog_app.doctor.machine import Machine
from watchdog_app.doctor.versions import Version

DRIVER_NOT_LOADED = 9
NO_PERMISSION = 4
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
UNKNOWN = 999

PROBE = argv_of("watchdog_app.doctor.nvml_probe")
_MOST_CARDS = 64
_MOST_S = 20.0  # a healthy driver without persistence needs some seconds for its first caller


@dataclass(frozen=True, slots=True)
class Driver:
    """What came back. `cards` are the dictionaries that `nvml_probe` prints."""

    code: int | None  # NVML's: 0 answered; None: it never came to an answer
    error: str = ""
    hung_in: str | None = None  # the call that did not return, of the driver as a whole
    crashed_in: str | None = None  # the call under which the library crashed, likewise
    version: Version = ()
    cuda: Version = ()
    cards: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0

    @property
    def answers(self) -> bool:
        """Whether the driver could be asked, even if not about everything."""
        return self.code == 0

    @property
    def usable(self) -> list[dict[str, Any]]:
        """The cards that answer."""
        return [card for card in self.cards if not card.get("code") and not card.get("failed_in")]

    @property
    def hangs(self) -> bool:
        """Whether a program that touches all cards would hang now."""
        return self.hung_in is not None or any(card.get("hung") for card in self.cards)

    @property
    def devices(self) -> int | None:
        """What CUDA counts: cards, or MIG instances in their place; None: not known."""
        return len(self.cards) if self.answers and not self.hung_in else None


def ask(machine: Machine, probe: tuple[str, ...] = PROBE) -> Driver:
    """
    Start the child, read what it prints, never wait beyond the deadline.

    Where the driver hangs or crashes on a card, the cards behind that are asked at the same
    time, each in a child of its own: it takes twice the deadline at most.
    """
    # CUDA_VISIBLE_DEVICES does not concern NVML. Modules of the user's own must not get in the
    # way of ours.
    env = {key: value for key, value in machine.env.items() if not key.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if os.path.isabs(path))
    limit_s = min(_MOST_S, machine.timeout_s)
    try:
        ended = children.run(probe, limit_s, env, cwd="/")
    except OSError as error:
        return Driver(None, f"the process that asks the driver could not be started: {error}")
    first = read(ended)
    if not any(card.get("failed_in") for card in first.cards):
        return first
    rest = range(len(first.cards), min(_count(ended), _MOST_CARDS))
    found: dict[int, dict[str, Any]] = {}

    def look(index: int) -> None:
        try:
            told = read(children.run((*probe, str(index)), limit_s, env, cwd="/"))
        except OSError as error:
            found[index] = {"index": index, "code": UNKNOWN, "error": str(error)}
            return
        found[index] = next(
            (card for card in told.cards if card.get("index") == index),
            {
                "index": index,
                "code": told.code or UNKNOWN,
                "error": told.error,
                "failed_in": told.hung_in or told.crashed_in,
                "hung": told.hung_in is not None,
            },
        )

    threads = [threading.Thread(target=look, args=(index,), daemon=True) for index in rest]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replace(first, cards=(*first.cards, *(found[index] for index in rest)))


def read(ended: children.Ended) -> Driver:
    """What a child's output means; the output may end anywhere."""
    system: dict[str, Any] = {}
    cards: list[dict[str, Any]] = []
    calling: str | None = None
    at: int | None = None
    for said in _lines(ended):
        if "calling" in said:
            calling = said["calling"]
            at = said.get("card")
        if isinstance(said.get("system"), dict):
            system = said["system"]
        if isinstance(said.get("card"), dict):
            cards.append(said["card"])
    hung = calling if ended.timed_out else None
    crashed = calling if ended.code is not None and ended.code < 0 else None
    error = str(system.get("error", ""))
    if not error and (not system or hung or crashed or ended.code):
        lines = ended.stderr.strip().splitlines()
        error = ended.ending + (f": {lines[-1]}" if lines and not hung else "")
    if isinstance(at, int) and (hung or crashed):
        # It is this card's: the driver as a whole has answered.
        cards.append(
            {"index": at, "failed_in": hung or crashed, "hung": hung is not None, "error": error}
        )
        hung = crashed = None
        error = ""
    return Driver(
        code=system.get("code"),
        error=error,
        hung_in=hung,
        crashed_in=crashed,
        version=versions.parse(system.get("driver")),
        cuda=versions.of_driver_call(system.get("cuda")),
        cards=tuple(cards),
        seconds=ended.seconds,
    )


def _lines(ended: children.Ended) -> Sequence[dict[str, Any]]:
    """The objects among what a child has printed."""
    found = []
    for line in ended.stdout.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


def _count(ended: children.Ended) -> int:
    """How many cards the driver has counted."""
    systems = [said["system"] for said in _lines(ended) if isinstance(said.get("system"), dict)]
    count = systems[-1].get("count") if systems else None
    return count if isinstance(count, int) else 0


def label(card: dict[str, Any]) -> str:
    """`GPU 0 (NVIDIA H200)`."""
    return f"GPU {card.get('index')}" + (f" ({card['name']})" if card.get("name") else "")
