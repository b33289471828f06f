"""
Measure how soon a person with a phone knows of a danger, and acts on it with one tap.

    python bench/phone.py [--runs 3] [--busy 20]

A real ntfy server, a real daemon that may pause only if a person wants it, and a program that fills
its address space. First the daemon has nothing else to watch, then as many further tasks as
--busy, whose memory moves all the time. Printed are the seconds from the decision to notify until
the phone has the message, and from the tap on "Pause" until the process is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/daemon"), str(ROOT / "tests")]
CONFIG = """
[actions]
pause = false
checkpoint = false
[notify]
desktop = false
[notify.ntfy]
url = "{url}"
topic = "alerts"
token = "{token}"
answers = true
"""
LEAKS = "import time\nheld = []\nwhile True: held.append(bytearray(1 << 20)); time.sleep(0.1)\n"
MOVES = """
import random, time
while True:
    held = bytearray(b"x" * random.randrange(1 << 20, 40 << 20))
    time.sleep(random.random())
"""


def main() -> None:
    from support.ntfy import Ntfy

    parser = argparse.ArgumentParser(description="Measure the way to a phone and back.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", type=int, default=20)
    args = parser.parse_args()
    for busy in (0, args.busy):
        figures = []
        for number in range(args.runs):
            with tempfile.TemporaryDirectory() as place:
                server = Ntfy(Path(place) / "ntfy")
                try:
                    figures.append(measure(Path(place), server, busy))
                finally:
                    server.stop()
            print(f"{busy} other tasks, run {number + 1}:", *(f"{f:.2f} s" for f in figures[-1]))
        told, acted = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"{busy} other tasks: told after {told:.2f} s, stopped {acted:.2f} s after the tap")


def measure(folder: Path, server: Any, busy: int) -> tuple[float, float]:
    """Seconds from the decision to the phone, and from the tap to the stop."""
    from conftest import World

    world = World(folder)
    world.config.write_text(CONFIG.format(url=server.url, token=server.token))
    phone = Phone(server)
    tasks = [world.script(MOVES, f"moves{number}.py") for number in range(busy)]
    try:
        world.start()
        time.sleep(10)
        limited = SimpleNamespace(
            command=lambda argv: ["sh", "-c", 'ulimit -v 600000; exec "$@"', "sh", *argv]
        )
        leaker = world.script(LEAKS, "leaks.py", group=limited)
        tasks.append(leaker)
        at, message = phone.first("Address space used up", "leaks.py")
        entries = json.loads(world.command("history", "--json").stdout)["entries"]
        decided = min(
            each["unix_s"]
            for each in entries
            if (each["kind"], each.get("decision_kind"), each.get("pid"))
            == ("decision", "notify", leaker)
        )
        tapped = time.time()
        server.press(message, "Pause")
        while world.state_letter(leaker) != "T":
            time.sleep(0.005)
        return at - decided, time.time() - tapped
    finally:
        for pid in tasks:
            os.kill(pid, signal.SIGKILL)
        world.close()


class Phone:
    """A subscriber to the topic, who knows when each message came."""

    def __init__(self, server: Any) -> None:
        self._request = urllib.request.Request(f"{server.url}/alerts/json")
        self._request.add_header("Authorization", f"Bearer {server.token}")
        self._messages: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with urllib.request.urlopen(self._request) as response:
            for line in response:
                self._messages.append((time.time(), json.loads(line)))

    def first(self, *words: str) -> tuple[float, dict[str, Any]]:
        """Wait for the message whose title has these words; return when it came."""
        end = time.monotonic() + 180
        while time.monotonic() < end:
            for at, each in list(self._messages):
                if all(word in each.get("title", "") for word in words):
                    return at, each
            time.sleep(0.01)
        raise TimeoutError(words)


if __name__ == "__main__":
    main()
