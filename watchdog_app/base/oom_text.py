"""
How programs word it that memory ran out: told from a disk, a quota or descriptors that did.

The agent asks of an exception that it holds, the daemon of the crash report of a dead program.
An exception is known by its name and the first line of its text: Python's and NumPy's MemoryError,
torch.OutOfMemoryError, TensorFlow's ResourceExhaustedError, XLA's RESOURCE_EXHAUSTED, and the
RuntimeError or OSError that says it in words. A full disk and a quota are none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OUT_OF_MEMORY_TEXTS = (
    "oom when allocating",
    "out of memory",
    "failed to allocate memory",
    "failed to allocate request",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to allocate",
    "std::bad_alloc",
    "memoryerror",
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED and its like
)
_EXHAUSTED = "resource_exhausted"
# RESOURCE_EXHAUSTED is said of these as well, and no smaller batch helps.
_OTHER_TEXTS = (
    "no space left",
    "too many open files",
    "disk quota",
    "disk is full",
    "larger than max",
    "quota exc",
)
_MEMORY_ERRORS = re.compile(r"(?:Memory|OutOfMemory)Error$|^ResourceExhaustedError$")
# Errors of these names are of anything: what their text says decides.
_GENERIC_ERRORS = frozenset(
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
_GPU = re.compile(r"(?i)\b(?:cuda|hip|rocm|xpu|mps|cublas\w*|cudnn\w*)\b|\bGPU[_:\s]\d|gpu_\d_bfc")
_REQUEST = re.compile(
    r"(?i)(?:tried to allocate|unable to allocate|trying to allocate|allocating) "
    r"(\d+(?:\.\d+)?) ?(?:bytes?|B|([KMGT])i?B)\b"
)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Memory ran out in a program."""

    gpu: bool  # the memory of a GPU, not of the machine
    wanted_bytes: int | None  # what could not be had at last


def out_of_memory(error: str | None, message: str | None) -> OutOfMemory | None:
    """
    What an uncaught exception says of memory; None: it was another error.

    Args:
        error: name of its class, with or without its module.
        message: first line of its text.
    """
    name, text = (error or "").rpartition(".")[2], message or ""
    said = mentions_memory(text)
    if said is False or not (_MEMORY_ERRORS.search(name) or (said and name in _GENERIC_ERRORS)):
        return None
    found = _REQUEST.search(text)
    wanted = None
    if found is not None:
        unit = " KMGT".index((found[2] or " ").upper())
        wanted = int(float(found[1]) * 1024**unit)
    # torch.OutOfMemoryError is of a GPU, whatever its text: on the CPU it is a RuntimeError.
    return OutOfMemory(name == "OutOfMemoryError" or bool(_GPU.search(text)), wanted)


def mentions_memory(text: str) -> bool | None:
    """Whether an error's text says that memory ran out. False: something else; None: neither."""
    folded = text.lower()
    if any(word in folded for word in _OTHER_TEXTS):
        return False
    if folded.startswith(_EXHAUSTED) or any(word in folded for word in _OUT_OF_MEMORY_TEXTS):
        return True
    return None
