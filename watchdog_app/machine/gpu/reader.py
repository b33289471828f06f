"""
The process that calls one vendor's GPU driver:
`python -m watchdog_app.machine.gpu.reader PARENT_PID BACKEND [ROOT]`.

It reads requests and writes answers, one line of JSON each, until its standard input ends. It
writes a line `begin` before it touches each GPU. So the parent knows on which GPU the driver hung
or crashed. It ends without closing the driver: that would crash during a hung call, and the kernel
frees everything at the exit.

With `--once --all [INDEX]` it answers one request of `watchdog doctor`, about every NVIDIA GPU or
the given one, with all figures. It writes a line `calling` before each driver call.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from watchdog_app.base import children
from watchdog_app.machine.gpu.backend import BACKENDS, BackendError, DeviceError, GpuBackend
from watchdog_app.machine.gpu.nvml_driver import NOT_WATCHED, READER

EXIT_NO_DRIVER = 4
_FIRST = BACKENDS[0].name

_NICE_INCREMENT = 5
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


class _Answers:
    """Lines to the parent, written together up to the next GPU to save system calls."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending: list[str] = []

    def add(self, **message: Any) -> None:
        self._pending.append(json.dumps(message, separators=(",", ":")) + "\n")

    def send(self, **message: Any) -> None:
        self.add(**message)
        data = "".join(self._pending).encode()
        self._pending.clear()
        while data:
            data = data[os.write(self._fd, data) :]


def main(words: Sequence[str]) -> int:
    """
    Answer until standard input ends, or once.

    Args:
        words: pid of the parent, whose end also ends the reader; the name of a row of BACKENDS, by
            default the first; the prefix of /sys and /proc. Or `--once --all`, optionally with the
            index of the only GPU to read.

    Returns:
        Exit status: 0 or EXIT_NO_DRIVER.
    """
    answers = _Answers(1)
    try:
        if words[:1] == ["--once"]:
            return _answer_once(answers, [int(word) for word in words[2:]])
        _set_up_process(int(words[0]) if words else os.getppid())
        return _serve(_open(answers, *words[1:]), answers)
    except BackendError as error:
        _send_failure(answers, error)
    except BrokenPipeError:
        return 0  # the parent has ended
    except Exception as error:
        said = f"The GPU reader failed: {type(error).__name__}: {error}"[:300]
        answers.send(failed={"source": READER, "message": f"{said}. {NOT_WATCHED}"})
    return EXIT_NO_DRIVER


def _open(answers: _Answers, name: str = _FIRST, root: str = "", **more: Any) -> GpuBackend:
    """Open the driver; raise BackendError if it does not work."""
    row = next(row for row in BACKENDS if row.name == name)
    module, _, kind = row.backend.partition(":")
    backend: GpuBackend = getattr(importlib.import_module(module), kind)(root=root, **more)
    answers.send(ready=backend.open())
    return backend


def _send_failure(answers: _Answers, error: BackendError) -> None:
    fault = error.fault
    answers.send(
        failed={
            "source": fault.source,
            "message": fault.message,
            "remedy": fault.remedy,
            "said": error.driver_text,
            "code": error.code,
            "absent": error.absent,
        }
    )


def _serve(backend: GpuBackend, answers: _Answers) -> int:
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            _answer(backend, answers, request)
    return 0


def _answer(backend: GpuBackend, answers: _Answers, request: dict[str, Any]) -> None:
    number, now_mono_s = request["id"], request["now"]
    skip: Collection[int] = request.get("skip", ())
    # Send events before reading the GPUs. Otherwise a hang in this call would be blamed on the last
    # GPU. The driver reports an event once, so send it before a GPU can crash this process.
    events = list(backend.events())
    if events:
        answers.send(id=number, events=events)
    for index in backend.devices(now_mono_s, request.get("awake")):
        if index in skip:
            continue
        answers.send(id=number, begin=index)
        try:
            for row in backend.read(index, now_mono_s):
                answers.add(id=number, device=row)
        except DeviceError as error:
            row = {"index": index, "state": error.state, "notes": [error.text]}
            if error.bus_id is not None:
                row["bus_id"] = error.bus_id
            answers.add(id=number, device=row)
    answers.send(id=number, end=True)


def _answer_once(answers: _Answers, only: Sequence[int]) -> int:
    backend = _open(answers, trace=lambda name: answers.send(calling=name), everything=True)
    everyone = list(backend.devices(0.0, None))
    answers.send(count=len(everyone))
    skip = [index for index in everyone if only and index not in only]
    _answer(backend, answers, {"id": 0, "now": 0.0, "skip": skip})
    return 0


def _set_up_process(parent: int) -> None:
    """End with the parent; lower this process's priority and reset its oom_score_adj."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # the parent ended before prctl
    children.reset_priority(os.getpid())
    with suppress(OSError):
        os.chdir("/")
        os.nice(_NICE_INCREMENT)


if __name__ == "__main__":
    # Not sys.exit: finalizers of the driver library can hang as well.
    status = main(sys.argv[1:])
    os._exit(status)
