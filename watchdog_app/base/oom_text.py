"""
Recognize out-of-memory errors by their text, as opposed to a full disk, a quota or descriptors.

The agent uses this for an exception, the daemon for the crash report of a dead program. It reads
the name of an exception and the first line of its text. Out-of-memory errors are Python's and
NumPy's MemoryError, torch.OutOfMemoryError, TensorFlow's ResourceExhaustedError and XLA's
RESOURCE_EXHAUSTED. A RuntimeError or OSError counts if its text says so. A full disk or an
exceeded quota does not count.
"""

from __future__ import annotations

import re

from watchdog_app.base.records import dataclass

_OUT_OF_MEMORY = re.compile(
    r"(?i)^resource_exhausted|oom when allocating|out of memory|not enough memory|memoryerror"
    r"|can(?:'|no)t allocate memory|unable to allocate|failed to allocate (?:memory|request)"
    r"|std::bad_alloc|alloc_failed"  # alloc_failed: CUBLAS_STATUS_ALLOC_FAILED and similar
)
# RESOURCE_EXHAUSTED also stands for these causes, and a smaller batch does not help.
_OTHER_CAUSE = re.compile(
    r"(?i)no space left|too many open files|disk quota|disk is full|larger than max|quota exc"
)
_MEMORY_ERRORS = re.compile(r"(?:Memory|OutOfMemory)Error$|^ResourceExhaustedError$")
# Errors with these names can mean anything, so their text decides.
_GENERIC_ERRORS = re.compile(
    r"^(?:Runtime|OS|Accelerator|Internal|Unknown|InvalidArgument|XlaRuntime|JaxRuntime)Error$"
)
_GPU = re.compile(r"(?i)\b(?:cuda|hip|rocm|xpu|mps|cublas\w*|cudnn\w*)\b|\bGPU[_:\s]\d|gpu_\d_bfc")
_REQUEST = re.compile(
    r"(?i)(?:tried to allocate|unable to allocate|trying to allocate|allocating) "
    r"(\d+(?:\.\d+)?) ?(?:bytes?|B|([KMGT])i?B)\b"
)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An out-of-memory error of a program."""

    gpu: bool  # GPU memory, not RAM
    wanted_bytes: int | None  # size of the failed allocation


def out_of_memory(error: str | None, message: str | None) -> OutOfMemory | None:
    """
    Classify an uncaught exception; None: not an out-of-memory error.

    Args:
        error: name of the exception's class, with or without the module.
        message: first line of the exception's text.
    """
    name, text = (error or "").rpartition(".")[2], message or ""
    said = mentions_memory(text)
    if said is False or not (
        _MEMORY_ERRORS.search(name) or (said and _GENERIC_ERRORS.search(name))
    ):
        return None
    found = _REQUEST.search(text)
    wanted = None
    if found is not None:
        unit = " KMGT".index((found[2] or " ").upper())
        wanted = int(float(found[1]) * 1024**unit)
    # torch.OutOfMemoryError always means a GPU: on the CPU torch raises a RuntimeError.
    return OutOfMemory(name == "OutOfMemoryError" or bool(_GPU.search(text)), wanted)


def mentions_memory(text: str) -> bool | None:
    """Whether an error's text says that memory ran out. False: another cause; None: unclear."""
    if _OTHER_CAUSE.search(text):
        return False
    return True if _OUT_OF_MEMORY.search(text) else None
