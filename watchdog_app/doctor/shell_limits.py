"""Limits that a shell hands down to all it starts (ulimit)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchdog_app.base.text.quantities import GIB, format_bytes
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit: what it is called, and what happens to a training that runs into it."""

    key: str  # of `Machine.limits()`
    ident: str
    text: str  # with {limit}
    meaning: str
    remedy: str
    commands: tuple[str, ...]
    enough: int | None = None  # from here on it stands in nobody's way; None: no limit does that
    error_below: int | None = 0  # a warning from here on; None: an error in any case
    in_bytes: bool = True


_RAISE, _TAKE_AWAY = "Raise it.", "Take the limit away."
_ENOUGH = 1024

_LIMITS = (
    _Limit(
        "address_space",
        "memory.address-space",
        "The address space of this shell's programs is limited to {limit} (ulimit -v).",
        "CUDA reserves addresses for all of RAM and of the GPU's memory at its start, and "
        "TensorFlow far more than it uses: out of memory while RAM is free.",
        "Take the limit away, in the shell's start files or in /etc/security/limits.conf.",
        (
            "ulimit -v unlimited",
            "grep -rn ' as ' /etc/security/limits.conf /etc/security/limits.d",
        ),
        error_below=None,
    ),
    _Limit(
        "data",
        "memory.data-segment",
        "The data of this shell's programs is limited to {limit} (ulimit -d).",
        "An allocation beyond it fails, while RAM is free.",
        _TAKE_AWAY,
        ("ulimit -d unlimited",),
    ),
    _Limit(
        "open_files",
        "memory.open-files",
        "This shell's programs may have {limit} files open (ulimit -n).",
        "A DataLoader with several workers hands tensors over as open files: "
        "'Too many open files' ends the epoch.",
        _RAISE,
        ("ulimit -n 65536",),
        enough=_ENOUGH,
        in_bytes=False,
    ),
    _Limit(
        "file_size",
        "memory.file-size",
        "A file of this shell's programs may be {limit} large (ulimit -f).",
        "A checkpoint beyond it ends the training with SIGXFSZ.",
        _TAKE_AWAY,
        ("ulimit -f unlimited",),
        error_below=GIB,
    ),
    _Limit(
        "cpu_s",
        "memory.cpu-time",
        "This shell's programs are ended after {limit} s of CPU time (ulimit -t).",
        "A training with eight busy threads uses eight seconds of it a second.",
        _TAKE_AWAY,
        ("ulimit -t unlimited",),
        in_bytes=False,
    ),
    _Limit(
        "processes",
        "memory.processes",
        "This user may run {limit} threads and processes (ulimit -u).",
        "TensorFlow alone starts some hundreds of threads.",
        _RAISE,
        ("ulimit -u 16384",),
        enough=_ENOUGH,
        in_bytes=False,
    ),
)


def process_limits(facts: Facts) -> Iterator[Finding]:
    """What of these stands in a training's way; one line that all is well where nothing does."""
    limits = facts.machine.limits()
    for each in _LIMITS:
        limit = limits.get(each.key)
        if limit is not None and (each.enough is None or limit < each.enough):
            yield _finding(each, limit)
    if all(limits.get(each.key) is None for each in _LIMITS if each.enough is None):
        yield _all_well(limits)


def _finding(each: _Limit, limit: int) -> Finding:
    serious = each.error_below is None or limit < each.error_below
    return Finding(
        each.ident,
        Severity.ERROR if serious else Severity.WARNING,
        each.text.format(limit=format_bytes(limit) if each.in_bytes else limit),
        each.meaning,
        each.remedy,
        each.commands,
    )


def _all_well(limits: Mapping[str, int | None]) -> Finding:
    files, count = limits.get("open_files"), limits.get("processes")
    return fine(
        "memory.limits",
        "No limit of the shell stands in a training's way."
        if files is None or files >= _ENOUGH
        else "Memory and files are not limited.",
        f"open files: {files or 'unlimited'}",
        f"processes: {count or 'unlimited'}",
    )
