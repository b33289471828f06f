"""
The child that asks NVIDIA's driver: `python -m watchdog_app.sensors.gpu.reader PARENT_PID`.

Reads requests and writes answers, a line of JSON each, until its standard input ends. A line
`begin` goes out before each card is touched, so that the parent knows which one the driver hung
or crashed on. Ends without nvmlShutdown: under a hung call that crashes, and a dead process
gives everything back anyway.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from watchdog_app.base import vendored
from watchdog_app.sensors.gpu.cards import Cards
from watchdog_app.sensors.gpu.driver import Driver, DriverError

EXIT_NO_BINDING = 3
EXIT_NO_DRIVER = 4
EXIT_BROKEN = 5

_NICER = 5
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


class _Answers:
    """Lines to the parent. Written together up to the next card: few system calls."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: list[str] = []

    def add(self, message: dict[str, Any]) -> None:
        self._waiting.append(json.dumps(message, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        data = "".join(self._waiting).encode()
        self._waiting.clear()
        while data:
            data = data[os.write(self._fd, data) :]


def main(argv: list[str]) -> int:
    """
    Answer until standard input ends.

    Args:
        argv: pid of the parent: without it there is nobody to answer.

    Returns:
        Exit status: 0, EXIT_NO_BINDING, EXIT_NO_DRIVER or EXIT_BROKEN.
    """
    _behave(int(argv[0]) if argv else os.getppid())
    answers = _Answers(1)
    vendored.use()
    try:
        import pynvml
    except Exception as error:
        answers.add({"failed": "binding", "said": f"{type(error).__name__}: {error}"[:300]})
        answers.flush()
        return EXIT_NO_BINDING
    driver = Driver(pynvml)
    try:
        driver.ask("nvmlInit")
    except DriverError as error:
        answers.add({"failed": "init", "code": error.code, "said": error.said})
        answers.flush()
        return EXIT_NO_DRIVER
    answers.add({"ready": _versions(driver)})
    answers.flush()
    try:
        _serve(driver, answers)
    except DriverError as error:
        answers.add({"failed": "driver", "code": error.code, "said": error.said})
        answers.flush()
        return EXIT_NO_DRIVER
    except BrokenPipeError:
        pass  # the parent is gone
    except Exception as error:
        answers.add({"failed": "reader", "said": f"{type(error).__name__}: {error}"[:300]})
        answers.flush()
        return EXIT_BROKEN
    return 0


def _serve(driver: Driver, answers: _Answers) -> None:
    cards = Cards(driver)
    with open(0, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            number = request["id"]

            def begin(index: int, number: int = number) -> None:
                answers.add({"id": number, "begin": index})
                answers.flush()

            def tell(row: dict[str, Any], number: int = number) -> None:
                answers.add({"id": number, "card": row})

            # Before the cards: a call that hangs here is not to be laid at the last one's door,
            # and an event is told once: it must be out before a card takes this process down.
            xids = cards.xids.poll()
            if xids:
                answers.add({"id": number, "xids": xids})
                answers.flush()
            computing = cards.read(
                request["now"], request.get("skip", ()), request.get("awake"), begin, tell
            )
            answers.add({"id": number, "end": True, "computing": computing})
            answers.flush()


def _versions(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, function in (
        ("driver", "nvmlSystemGetDriverVersion"),
        ("library", "nvmlSystemGetNVMLVersion"),
    ):
        try:
            found[key] = driver.text(function)
        except DriverError:
            found[key] = None
    try:
        found["cuda"] = int(driver.ask("nvmlSystemGetCudaDriverVersion_v2"))
    except DriverError:
        found["cuda"] = None
    return found


def _behave(parent: int) -> None:
    """Go with the parent, stand back for everybody, be no dearer to the kernel than others."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)  # it went before we asked
        try:
            with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
                if int(file.read(16)) < 0:
                    file.write(b"0")
        except (OSError, ValueError):
            pass
    if hasattr(os, "nice"):
        try:
            os.chdir("/")
            os.nice(_NICER)
        except OSError:
            pass


if __name__ == "__main__":
    # Not sys.exit: finalisers of the driver library can hang as well.
    status = main(sys.argv[1:])
    os._exit(status)
