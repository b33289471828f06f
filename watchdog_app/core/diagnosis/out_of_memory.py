"""
Whether an uncaught exception says that memory ran out, and whose. Pure.

An exception is known by its name and the first line of its text: Python's and NumPy's MemoryError,
torch.OutOfMemoryError, TensorFlow's ResourceExhaustedError, XLA's RESOURCE_EXHAUSTED, and the
RuntimeError or OSError that says it in words. A full disk and a quota are none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from watchdog_app.base.oom_text import says_memory
from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, LastError

_BY_NAME = re.compile(r"(?:Memory|OutOfMemory)Error$")  # also _ArrayMemoryError, ArrowMemoryError
_EXHAUSTED = "ResourceExhaustedError"


# Errors of these names are of anything: what their text says decides.
_OF_ANYTHING = frozenset(
    (
        "RuntimeError",
        "OSError",
        "AcceleratorError",
        "InternalError",
        "UnknownError",
        "InvalidArgumentError",
        "XlaRuntimeError",
        "JaxRuntimeError",
    )
)
_CARD = re.compile(r"(?i)\b(?:cuda|hip|rocm|xpu|mps|cublas\w*|cudnn\w*)\b|\bGPU[_:\s]\d|gpu_\d_bfc")
_WANTED = re.compile(
    r"(?i)(?:tried to allocate|unable to allocate|trying to allocate|allocating) "
    r"(\d+(?:\.\d+)?) ?(bytes?|B|[KMGT]i?B)\b"
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Memory ran out in the program."""

    card: bool  # of a graphics card, not of the machine
    wanted_bytes: int | None  # what could not be had at last

    @property
    def asked(self) -> str:
        """`, which asked for 512 MiB`; empty where that is not known."""
        wanted = self.wanted_bytes
        return f", which asked for {format_bytes(wanted)}" if wanted else ""


def exhausted(words: LastError | None) -> Exhausted | None:
    """What the last words say of memory; None: it was another error, or nothing was said."""
    if words is None or words.error is None:
        return None
    name, text = words.error.rpartition(".")[2], words.message or ""
    said = says_memory(text)
    if said is False:
        return None
    if not (_BY_NAME.search(name) or name == _EXHAUSTED or (said and name in _OF_ANYTHING)):
        return None
    # torch.OutOfMemoryError is of a card, whatever its text: on the CPU it is a RuntimeError.
    return Exhausted(name == "OutOfMemoryError" or bool(_CARD.search(text)), _wanted(text))


def cause_by_words(facts: ExitFacts, number: int | None) -> Cause | None:
    """
    An end by such an exception; None: it was no such one.

    Args:
        number: the signal that ended it, if one did.
    """
    words = facts.words
    found = exhausted(words)
    if found is None or words is None or number is not None:
        return None
    if facts.wait_status == 0:
        return None
    at = "" if words.place is None else f" at {plain(words.place, 100)}"
    how = f"ended by {plain(words.error or '', 60)}{at}{found.asked}"
    if found.card:
        full = "" if facts.device_full is None else f" ({facts.device_full} when last seen)"
        text = f"out of GPU memory in the program: {how}{full}"
        return Cause(CauseKind.GPU_MEMORY, text, Certainty.EXACT)
    text = f"out of memory in the program: {how}"
    if facts.address_space_full is None:
        if facts.airbag is not None:
            limit = format_bytes(facts.airbag.limit_bytes)
            text += f"; its airbag refuses what does not fit into its limit of {limit}"
        return Cause(CauseKind.PROGRAM_MEMORY, text, Certainty.EXACT)
    return Cause(
        CauseKind.ADDRESS_SPACE,
        f"{text}; most likely because its address space (ulimit -v) held "
        f"{facts.address_space_full} when it was last seen",
        Certainty.LIKELY,
    )


def _wanted(text: str) -> int | None:
    found = _WANTED.search(text)
    if found is None:
        return None
    unit = found[2].lower()
    factor = 1 if unit.startswith("byte") or unit == "b" else _UNITS[unit[0]]
    return int(float(found[1]) * factor)
