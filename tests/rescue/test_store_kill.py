"""After a kill at any moment of a save, the rescue before it is still found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore

RUN = "0123456789ab"
SAVER = """
import os, sys
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore
store = RescueStore(sys.argv[1], run=Run(sys.argv[3] or os.urandom(6).hex(), sys.argv[1]))
store.prepare(4, rehearse=False)
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    data = bytes([step % 256]) * 3_000_000
    entries = [TensorEntry(f"t{n}", "U8", (len(data),), len(data), lambda: memoryview(data))
               for n in range(4)]
    store.save(entries, {"step": step, "double": 2 * step})
    print(step, flush=True)
    step += 1
"""


def start(directory, first, run=""):
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, directory, str(first), run], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process):
    """Kill it; return the steps that it reported as saved."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    # The last line may be incomplete.
    return [int(line) for line in said.split("\n")[:-1]]


def measured_save_s(directory):
    """Seconds that a save by such a process takes now."""
    process = start(directory, 0, RUN)
    began = time.monotonic()
    for _ in range(4):
        process.stdout.readline()
    seconds = (time.monotonic() - began) / 4
    kill(process)
    return seconds


def check(rescue):
    assert rescue.meta["double"] == 2 * rescue.step
    for name in rescue.tensors:
        assert bytes([rescue.step % 256]) * 3_000_000 == rescue.read(name)


def test_killed_at_any_moment_the_last_complete_rescue_is_found(tmp_path):
    """Many kills, each at another moment; no damage is reported, and no rubbish accumulates."""
    directory = str(tmp_path / "r")
    said = []
    store = RescueStore(directory, report=said.append, run=Run(RUN, directory))
    save_s = measured_save_s(directory)  # the moments are spread over this machine's saves
    last = store.newest().step
    halves = 0

    for attempt in range(40):
        process = start(directory, last + 1, RUN)
        time.sleep(save_s * 3 * attempt / 40)
        saved = kill(process)
        halves += any(name.startswith(".partial") for name in os.listdir(directory))
        found = store.newest()
        # Never older than the reported step; newer at most by the one being reported.
        newest_told = saved[-1] if saved else last
        assert found.step in (newest_told, newest_told + 1)
        last = found.step
        check(found)
        found.close()

    assert [] == said
    assert last > 3
    assert halves > 3
    # A kill between a save and its pruning leaves one more; the next save removes it.
    path = store.save([], {"step": 0}).path
    store.wait_idle()
    left = sorted(os.listdir(directory))
    assert 2 == len(left)
    assert os.path.basename(path) in left
    store.close()


def test_two_processes_with_one_folder_do_not_harm_each_other(tmp_path):
    """Each keeps its own two, and every rescue that is read meanwhile is complete."""
    directory = str(tmp_path / "r")
    said = []
    reader = RescueStore(directory, report=said.append)
    one, two = start(directory, 0), start(directory, 1000)
    try:
        end = time.monotonic() + 2
        reads = 0
        while time.monotonic() < end:
            found = reader.newest()
            if found is not None:
                check(found)
                found.close()
                reads += 1
    finally:
        steps_one, steps_two = kill(one), kill(two)

    assert reads > 3
    assert [] == said
    assert len(steps_one) > 3
    assert len(steps_two) > 3
    found = {int(name[7:17]) for name in os.listdir(directory) if name.startswith("rescue")}
    assert steps_one[-1] in found
    assert steps_two[-1] in found
    reader.close()
