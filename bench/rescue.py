"""
The rescue in figures: leak speed by state size, each a real training killed in a memory group.

    python bench/rescue.py [--leaks 5,20,100,300] [--states 10,100,500] [--pause] [--json FILE]

Each cell is one training (tests/e2e/programs/fit.py) in a cgroup of what it needs and 12 s of its
leak, 100 MB at least: growth from half full to full takes 5 s or longer. The kernel kills it; the
same script then goes on from its rescue, and its last variables are compared with a run that
nobody interrupted. With --pause the daemon may hold the training at the edge, as it does by
default; the benchmark then kills it, as a user would who has no memory to give.

Columns
  warned s      first notice, before the last step that was written down
  saved s       last complete rescue, before that step
  lost          steps between the rescue and the death
  save/write    the save over writing and fsyncing as many bytes in the same folder, same minute
  extra MB      growth of the group's usage, page cache included, during a save made on request
                of a second training with as much state that does not leak
  same          final weights, optimizer and seeds identical to the uninterrupted run's
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from harness import NO_PAUSE, PAUSE, Training, World, state_letter

MB = 1_000_000


def plain_write_s(folder: Path, count: int) -> float:
    """Seconds to write and fsync `count` bytes the ordinary way."""
    block = os.urandom(MB)
    path = folder / "plain"
    began = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(max(1, count // MB)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def base_mb(state_mb: float) -> float:
    """What the training holds without its leak: TensorFlow, weights, slots, gradients."""
    return 300 + 2.2 * state_mb


def arguments(state_mb: float, leak: float, limit_mb: float) -> list[str]:
    """Of fit.py, so that the leak ends it well before its last step."""
    steps = 100
    growth_s = (limit_mb - base_mb(state_mb)) / leak if leak else 4
    epochs = max(3, round(1.5 * growth_s / (steps * 0.05)) + 1)
    return ["--state-mb", str(state_mb), "--steps", str(steps), "--epochs", str(epochs)]


def extra_mb(folder: Path, state_mb: float) -> tuple[float, float, float]:
    """Growth of the group's usage in a save on request; seconds; plain write of as many bytes."""
    world = World(folder)
    try:
        world.start_daemon(NO_PAUSE)
        group = world.group(6000)
        run = world.train("fit.py", "--state-mb", str(state_mb), "--epochs", "50",
                          "--step-s", "0.05", group=group)  # fmt: skip
        world.until(lambda: ((world.task(run.pid) or {}).get("agent") or {}).get("step"), "steps")
        time.sleep(2)
        used: list[int] = []
        done = threading.Event()

        def sample() -> None:
            while not done.is_set():
                used.append(group.usage_bytes() or 0)
                time.sleep(0.002)

        before = group.usage_bytes() or 0
        watcher = threading.Thread(target=sample)
        watcher.start()
        answer = world.client.call("task.checkpoint", task=str(run.pid), wait=True, timeout_s=60,
                                   reply_timeout_s=70)["requests"][0]  # fmt: skip
        done.set()
        watcher.join()
        assert answer["status"] == "done", answer
        plain = plain_write_s(folder, answer["bytes"])
        return (max(used) - before) / MB, answer["seconds"], plain
    finally:
        world.close()


def cell(folder: Path, leak: float, state_mb: float, pause: bool) -> dict[str, Any]:
    """One training with one leak and one size of state, from start to identical end."""
    limit_mb = base_mb(state_mb) + max(100, 12 * leak)
    args = arguments(state_mb, leak, limit_mb)
    world = World(folder)
    result: dict[str, Any] = {"leak_mb_s": leak, "state_mb": state_mb, "limit_mb": round(limit_mb)}
    try:
        world.start_daemon(PAUSE if pause else NO_PAUSE)
        group = world.group(limit_mb)
        run = world.train(
            "fit.py", *args, "--leak-mb-s", str(leak), "--step-s", "0.05", group=group
        )
        while run.process.poll() is None:
            if pause and state_letter(run.pid) == "T":
                time.sleep(1)
                run.process.kill()
                run.process.wait()
            time.sleep(0.05)
        result["exit"] = run.process.returncode
        result.update(figures(world, run))
        group.close()
        if result["saved"]:
            again = world.train("fit.py", *args, "--step-s", "0")
            whole = world.train("fit.py", *args, "--no-agent", "--step-s", "0", name="whole")
            result["same"] = (
                again.wait(600) == 0 and whole.wait(600) == 0 and again.final() == whole.final()
            )
    finally:
        world.close()
    return result


def figures(world: World, run: Training) -> dict[str, Any]:
    """Seconds and steps, from the losses, the journal and the rescues."""
    losses = run.losses()
    last = max(losses)
    died = losses[last].unix_s
    rescues = run.complete_rescues()
    notices = [e for e in world.history("decision") if e["decision_kind"] == "notify"]
    saves = [e for e in world.history("outcome") if e.get("decision_kind") == "checkpoint"]
    found: dict[str, Any] = {"saved": bool(rescues), "saves": len(saves), "steps": last}
    warned = [e["unix_s"] for e in notices if e["unix_s"] <= died + 1]
    found["warned_s"] = round(died - min(warned), 1) if warned else None
    if rescues:
        newest = rescues[-1]
        meta = json.loads((newest / "rescue.json").read_text())
        step = int(newest.name.split("-")[1])
        saved_unix_s = (newest / "rescue.json").stat().st_mtime
        found.update(
            saved_s=round(died - saved_unix_s, 2),
            lost=last - step,
            bytes=sum(t["nbytes"] for t in meta["tensors"]) if "tensors" in meta else None,
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--leaks", default="5,20,100,300")
    parser.add_argument("--states", default="10,100,500")
    parser.add_argument("--pause", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    leaks = [float(x) for x in options.leaks.split(",")]
    states = [float(x) for x in options.states.split(",")]
    rows = []
    print("leak MB/s  state MB  limit MB  warned s  saved s  lost  saves  same")
    for state_mb in states:
        for leak in leaks:
            with tempfile.TemporaryDirectory(prefix="bench-rescue-") as folder:
                row = cell(Path(folder), leak, state_mb, options.pause)
            rows.append(row)
            print(
                f"{leak:9.0f} {state_mb:9.0f} {row['limit_mb']:9d} {row['warned_s'] or '-':>9} "
                f"{row.get('saved_s', '-'):>8} {row.get('lost', '-'):>5} {row['saves']:6d} "
                f"{'yes' if row.get('same') else 'NO':>5}",
                flush=True,
            )
    print("\nstate MB  save s  plain write+fsync s  save/write  extra MB")
    costs = []
    for state_mb in states:
        with tempfile.TemporaryDirectory(prefix="bench-rescue-") as folder:
            extra, seconds, plain = extra_mb(Path(folder), state_mb)
        costs.append({"state_mb": state_mb, "save_s": seconds, "plain_s": plain, "extra_mb": extra})
        print(f"{state_mb:8.0f} {seconds:7.3f} {plain:20.3f} {seconds / plain:11.2f} {extra:9.1f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"runs": rows, "costs": costs}, indent=1))


if __name__ == "__main__":
    main()
