"""
Run a real daemon under real churn: its resources must not grow, and it must miss no samples.

    python bench/soak.py [--minutes 60] [--pace 1] [--plot FILE] [--json FILE]

Python processes start, grow, leak until the kernel kills them, fork, and end. Agents connect, save
and disappear. Clients ask, subscribe, and misbehave. The configuration is reloaded. Eight GPUs of a
stub driver work and fall off the bus. The benchmark reads the daemon from outside every second. The
exit code is 0, or 1 with a list of faults.

As root it runs in its own PID namespace: the daemon sees no other processes of the machine, and
pids are reused within seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import soak_figures
from soak_churn import Churn, write_config

from watchdog_app.base.errors import WatchdogError
from watchdog_app.client.client import Client

ROOT = Path(__file__).parent.parent
APART = "WATCHDOG_SOAK_APART"
QUIET_S = 3.0  # before and after the churn; shorter in a short soak
GONE_S = 30.0  # timeout for everything to disappear after the churn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--pace", type=float, default=1.0, help="how much comes and goes")
    parser.add_argument("--plot", metavar="FILE", help="draw the picture there (needs matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write figures and rows there")
    args = parser.parse_args()
    if APART not in os.environ:
        go_apart()
    folder = Path(tempfile.mkdtemp(prefix="watchdog-soak-"))
    try:
        found, rows, load = soak(folder, args.minutes * 60, args.pace)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(found, load)
    if args.json:
        figures = {"figures": found, "load": load, "rows": soak_figures.as_json(rows)}
        Path(args.json).write_text(json.dumps(figures) + "\n")
    if args.plot:
        soak_figures.draw(rows, found, load, Path(args.plot))
    sys.exit(1 if found["wrong"] else 0)


def go_apart() -> None:
    """Restart this program in its own PID namespace, if permitted."""
    apart = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        os.environ[APART] = "no"
        return
    # A shell is process 1 in the namespace: it reaps orphans.
    inside = [*apart, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]
    os.execvpe(inside[0], inside, {**os.environ, APART: "yes"})


def soak(folder: Path, seconds: float, pace: float) -> tuple[dict[str, Any], list[Any], str]:
    """Run a soak; return figures, rows, and the load in words."""
    apart = os.environ[APART] == "yes"
    cards = stub_cards(folder)
    env = {
        **(os.environ if cards is None else cards.env()),
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_CONFIG": str(folder / "config.toml"),
    }
    write_config(folder, apart)
    log = (folder / "log").open("wb")
    daemon = subprocess.Popen(  # in its own session, like a service
        [sys.executable, "-m", "watchdog_app", "run"],
        env=env,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    rows: list[Any] = []
    churn = Churn(folder, daemon.pid, env, pace=pace, apart=apart, cards=cards)
    try:
        client = connect(folder, daemon)
        quiet_s = min(QUIET_S, seconds / 6)
        time.sleep(quiet_s)
        began = time.monotonic()
        before = row(daemon, client, began, folder)
        churn.start()
        for number in range(int(seconds)):
            time.sleep(max(0.0, began + number + 1 - time.monotonic()))
            rows.append(row(daemon, client, began, folder))
        churn.stop()
        time.sleep(quiet_s)
        after = settled(daemon, client, began, folder, before)
        client.close()
        daemon.terminate()
        code = daemon.wait(20)
    except (WatchdogError, OSError, ValueError) as error:
        sys.exit(f"The daemon did not live through it: {error!r}\n{tail(folder)}")
    finally:
        churn.stop()
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()
        log.close()
    found = soak_figures.verdict(rows, before, after)
    found["counts"] = dict(sorted(churn.counts.items()))
    notices = folder / "notices"
    found["notices"] = len(notices.read_text().splitlines()) if notices.exists() else 0
    if code:
        found["wrong"].append(f"the daemon ended with {code}")
    if "A part of the daemon failed" in (folder / "log").read_text(errors="replace"):
        found["wrong"].append("a part of the daemon failed; see the log below")
    found["wrong"] += [f"the churn failed: {each}" for each in churn.failures[:5]]
    if found["wrong"]:
        print(tail(folder))
    return found, rows, words(found, cards is not None, apart)


def stub_cards(folder: Path) -> Any:
    """Return eight GPUs of a stub driver compiled for tests; None without a compiler."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gpu_stub.driver_stub import DriverStub

    try:
        return DriverStub(folder / "stub", cards=8)
    except RuntimeError as error:
        print(f"Without cards: {error}")
        return None


def connect(folder: Path, daemon: subprocess.Popen[bytes]) -> Client:
    end = time.monotonic() + 30
    while time.monotonic() < end and daemon.poll() is None:
        with suppress(WatchdogError):
            return Client.connect(str(folder / "run" / "daemon.sock"), timeout_s=20)
        time.sleep(0.05)
    sys.exit("The daemon did not start:\n" + tail(folder))


def row(daemon: subprocess.Popen[bytes], client: Client, began: float, folder: Path) -> Any:
    asked = time.monotonic()
    status = client.call("status")
    answer_s = time.monotonic() - asked
    journal = folder / "state" / "journal.db"
    return soak_figures.read(daemon.pid, asked - began, status, answer_s, journal=journal)


def settled(
    daemon: subprocess.Popen[bytes], client: Client, began: float, folder: Path, before: Any
) -> Any:
    """Return a row after everything has disappeared, or the last row at the timeout."""
    end = time.monotonic() + GONE_S
    while True:
        after = row(daemon, client, began, folder)
        if after.descriptors <= before.descriptors or time.monotonic() > end:
            return after
        time.sleep(1.0)


def tail(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-3000:]


def words(found: dict[str, Any], cards: bool, apart: bool) -> str:
    """Describe the load."""
    counts = found["counts"]
    leaks = f"{counts.get('leak', 0)} that leaked in 150 MB"
    clients = f"{counts.get('ask', 0)} questions, {counts.get('follow', 0)} subscribers"
    said = [
        f"{counts.get('short', 0)} crowds of short-lived Pythons",
        f"{counts.get('grow', 0)} that grew, {leaks}, {counts.get('fork', 0)} that forked",
        f"{counts.get('train', 0)} trainings with an agent",
        f"{clients}, {counts.get('annoy', 0)} clients that misbehaved",
        f"{counts.get('configure', 0)} reloads, {found['notices']} notices",
    ]
    if apart:
        said.append(f"{counts.get('pid used again', 0)} pids used again")
    if cards:
        said.append("8 cards (stub)")
    return "; ".join(said) + "."


def show(found: dict[str, Any], load: str) -> None:
    low, high = found["descriptors"]
    first, last = found["descriptors_before_after"]
    print(f"\n{found['seconds'] / 60:.1f} minutes. {load}\n")
    print("| | measured |")
    print("|---|---|")
    print(f"| looks | {found['looks']} |")
    print(f"| missed | {found['missed_looks']} |")
    print(f"| latest look | {found['latest_s']:.2f} s late |")
    print(f"| ready, without a processor | {found['waited_s']:.1f} s |")
    print(f"| stolen from this machine's processors | {found['stolen_s']:.1f} s |")
    print(
        f"| RSS before, median, highest | {found['rss_first_bytes'] / 1e6:.1f}, "
        f"{found['rss_median_bytes'] / 1e6:.1f}, {found['rss_highest_bytes'] / 1e6:.1f} MB |"
    )
    print(f"| its slope after a quarter | {found['rss_slope_bytes_per_h'] / 1e6:+.2f} MB/h |")
    print(f"| descriptors during, before, after | {low} to {high}, {first}, {last} |")
    print("| threads before, most, after | {}, {}, {} |".format(*found["threads"]))
    print(f"| CPU, of one core | {found['cpu_percent']:.2f} % |")
    print(
        f"| answer to a status, median, slowest | {1000 * found['answer_median_s']:.1f} ms, "
        f"{1000 * found['answer_slowest_s']:.0f} ms |"
    )
    print(f"| most tasks, agents | {found['tasks_most']}, {found['agents_most']} |")
    print(f"| journal, largest | {found['journal_most_bytes'] / 1e6:.1f} MB |")
    print("\n" + ("Wrong: " + "; ".join(found["wrong"]) if found["wrong"] else "Nothing is wrong."))


if __name__ == "__main__":
    main()
