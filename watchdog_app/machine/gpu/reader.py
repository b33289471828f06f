"""
The process that asks GPU drivers: `python -m watchdog_app.machine.gpu.reader PARENT_PID`.

Reads requests and writes answers, a line of JSON each, until its standard input ends. A line
`begin` goes out before each GPU is touched, so that the parent knows which one the driver hung or
crashed on. Ends without closing the driver: under a hung call that crashes, and a dead process
gives everything back anyway.

With `--once --all [INDEX]` it answers one request, for `watchdog doctor`: of every GPU or of that
one, with all that the driver tells. A line `calling` goes out before each call.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from watchdog_app.base import children
from watchdog_app.machine.gpu.backend import BACKENDS, BackendError, DeviceError, GpuBackend
from watchdog_app.machine.gpu.nvml_driver import NOT_WATCHED, READER

EXIT_NO_DRIVER = 4

_NICE_INCREMENT = 5
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


class _Answers:
    """Lines to the parent. Written together up to the next GPU: few system calls."""

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
        words: pid of the parent, without which there is nobody to answer; or `--once --all`, and
            the index of the one GPU to be asked.

    Returns:
        Exit status: 0 or EXIT_NO_DRIVER.
    """
    answers = _Answers(1)
    try:
        if words[:1] == ["--once"]:
            return _answer_once(answers, [int(word) for word in words[2:]])
        _set_up_process(int(words[0]) if words else os.getppid())
        backends = _open(answers)
        if backends:
            _serve(backends, answers)
            return 0
    except BackendError as error:
        _send_failure(answers, error)
    except BrokenPipeError:
        return 0  # the parent is gone
    except Exception as error:
        said = f"The GPU reader failed: {type(error).__name__}: {error}"[:300]
        answers.send(failed={"source": READER, "message": f"{said}. {NOT_WATCHED}"})
    return EXIT_NO_DRIVER


def _open(
    answers: _Answers, trace: Callable[[str], None] | None = None, everything: bool = False
) -> list[GpuBackend]:
    """The drivers that can be asked; says of each other why not."""
    found: list[GpuBackend] = []
    for row in BACKENDS:
        module, _, name = row.backend.partition(":")
        backend = getattr(importlib.import_module(module), name)(trace, everything)
        try:
            versions = backend.open()
        except BackendError as error:
            _send_failure(answers, error)
        else:
            found.append(backend)
            answers.send(ready=versions)
    return found


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


def _serve(backends: Sequence[GpuBackend], answers: _Answers) -> None:
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            _answer(backends, answers, request)


def _answer(backends: Sequence[GpuBackend], answers: _Answers, request: dict[str, Any]) -> None:
    number, now_mono_s = request["id"], request["now"]
    skip: Collection[int] = request.get("skip", ())
    # Before the GPUs: a call that hangs here is not to be laid at the last one's door, and an
    # event is told once: it must be out before a GPU takes this process down.
    events = [event for each in backends for event in each.events()]
    if events:
        answers.send(id=number, events=events)
    for backend in backends:
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
    backends = _open(answers, lambda name: answers.send(calling=name), everything=True)
    if not backends:
        return EXIT_NO_DRIVER
    everyone = [index for each in backends for index in each.devices(0.0, None)]
    answers.send(count=len(everyone))
    skip = [index for index in everyone if only and index not in only]
    _answer(backends, answers, {"id": 0, "now": 0.0, "skip": skip})
    return 0


def _set_up_process(parent: int) -> None:
    """End with the parent; lower this process's priority and reset its oom_score_adj."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it went before we asked
    children.reset_priority(os.getpid())
    with suppress(OSError):
        os.chdir("/")
        os.nice(_NICE_INCREMENT)


if __name__ == "__main__":
    # Not sys.exit: finalisers of the driver library can hang as well.
    status = main(sys.argv[1:])
    os._exit(status)
