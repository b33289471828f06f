"""
Compare live runs with and without reports of phases and expected allocations, with Keras.

    python bench/further_signals.py [--only NAME] [--json FILE]

Each case runs twice in parallel, each with its own daemon: with a normal Rescue, and with one that
does not report phases, expected allocations and its number of steps to the daemon. The daemon must
not pause.

Cases
  fits      two validations that each take 700 MB and free it, in epochs of over a minute; a
            cache grows by 20 MB an epoch
  grows     the same; in the second epoch a cache takes the memory that the validation needs
  fill      a buffer fills at 18 MB/s to a known size that leaves an eighth of the limit free
  too big   a buffer of known size that does not fit
  ramp      every step keeps memory, and the last one ends at about 80 % of the limit
  long ramp the same, with twice as many steps
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

MB = 1_000_000
CASES = ("fits", "grows", "fill", "too big", "ramp", "long ramp")


def train(case: str, knows: bool, folder: str) -> None:
    """Run the training in its own process; record the time of each event."""
    import keras
    import numpy as np

    from watchdog_app.agent.keras import Rescue
    from watchdog_app.agent.runtime import session

    if not knows:
        session.Session.phase = lambda *_, **__: None  # type: ignore[method-assign,assignment]
        session.Session.expect = lambda *_, **__: None  # type: ignore[method-assign,assignment]
        Rescue._count_steps = lambda *_: dict(session.NO_STEPS)  # type: ignore[method-assign]
    diary = open(os.path.join(folder, "diary.jsonl"), "a", buffering=1)  # noqa: SIM115
    x = np.zeros((100, 8), "float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    rescue = Rescue(os.path.join(folder, "rescues"))
    kept: list[Any] = []

    def note(what: str) -> None:
        diary.write(json.dumps({"unix_s": time.time(), "what": what}) + "\n")

    class Memory(keras.callbacks.Callback):  # type: ignore[misc]
        epoch, held = 0, ()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch, self.began = epoch, time.monotonic()
            note(f"epoch {epoch}")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            note("step")
            time.sleep(0.3)
            if case in {"fits", "grows"}:
                if batch == 20:
                    kept.append(np.ones(20 * MB // 8))
                if case == "grows" and self.epoch == 1 and batch < 100:
                    kept.append(np.ones(3 * MB // 8))
                return
            if case in {"ramp", "long ramp"}:
                kept.append(np.ones(int(2.4 * MB) // 8))
                return
            if batch == 20:
                size = (720 if case == "fill" else 1100) * MB
                if knows:
                    rescue.expect(size, "the shuffle buffer")
                note("fill begins")
                self.left = size
            if batch > 20 and self.left > 0:
                take = min(self.left, int(5.4 * MB))
                self.left -= take
                kept.append(np.ones(take // 8))
                if self.left == 0:
                    note("fill ends")

        def on_test_begin(self, logs: Any = None) -> None:
            note("validation begins")
            self.held = []

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.held.append(np.ones(70 * MB // 8))
            time.sleep(1.0)

        def on_test_end(self, logs: Any = None) -> None:
            self.held = []
            note("validation ends")

    validating = case in {"fits", "grows"}
    steps = 200 if validating else 600 if case == "long ramp" else 300 if case == "ramp" else 230
    model.fit(
        np.zeros((steps, 8), "float32"),
        np.zeros((steps, 1), "float32"),
        batch_size=1,
        epochs=2 if validating else 1,
        validation_data=(x, x[:, :1]) if validating else None,
        validation_batch_size=10,
        verbose=0,
        callbacks=[Memory(), rescue],
    )
    note("ended well")


def run(case: str, knows: bool, folder: Path) -> dict[str, Any]:
    """Run one training under a daemon; return its events, exit code and the daemon's decisions."""
    from harness import NO_PAUSE, World

    from watchdog_app.client.client import Client

    folder.mkdir(parents=True)
    world = World(folder)
    try:
        world.start_daemon(NO_PAUSE)
        group = world.group(1250)
        argv = [sys.executable, str(Path(__file__).resolve()), "--train", case, str(folder)]
        process = world._start(argv + ["--knows"] * knows, group, folder / "training.log")
        code = process.wait(400)
        time.sleep(2)
        diary = [json.loads(line) for line in (folder / "diary.jsonl").read_text().splitlines()]
        # Open a new connection: the first one was idle for minutes.
        with Client.connect(str(folder / "run" / "daemon.sock")) as client:
            history = list(client.call("history", kinds=[], limit=1000)["entries"])
        name = Path(group.path).name
        ours = [each for each in history if name in json.dumps(each)]
        decisions = [each for each in ours if each["kind"] == "decision"][::-1]
        return {"case": case, "knows": knows, "exit": code, "diary": diary, "decisions": decisions}
    finally:
        world.close()


def tell(result: dict[str, Any]) -> None:
    """Print a run: every decision, and the events around it."""
    began = result["diary"][0]["unix_s"]
    print(f"\n{result['case']}, {'with' if result['knows'] else 'without'} the signals: "
          f"exit {result['exit']}")  # fmt: skip
    events = [(e["unix_s"], e["what"]) for e in result["diary"] if e["what"] != "step"]
    events.append((result["diary"][-1]["unix_s"], f"last: {result['diary'][-1]['what']}"))
    events += [(d["unix_s"], f"  decided: {d.get('reason')}") for d in result["decisions"]]
    for unix_s, what in sorted(events):
        print(f"{unix_s - began:7.1f} s  {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--knows", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train[0], options.knows, options.train[1])
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for case in [options.only] if options.only else CASES:
            with ThreadPoolExecutor(2) as both:
                pair = both.map(
                    lambda knows, case=case: run(case, knows, Path(folder) / f"{case}-{knows}"),
                    (False, True),
                )
                results += list(pair)
            for result in results[-2:]:
                tell(result)
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
