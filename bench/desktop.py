"""
Measure what the tray process costs: memory, CPU at rest, click to menu; compared with pystray.

    python bench/desktop.py [--seconds 60] [--pictures docs/images]

Needs a display for the comparison (starts Xvfb if there is none) and dbus-daemon. pystray's GTK
backends need a Python with gi (/usr/bin/python3 with python3-gi and
gir1.2-ayatanaappindicator3-0.1). Skips and names what is missing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "tray")]

from support.fake_daemon import FakeDaemon  # noqa: E402
from support.waiting import until  # noqa: E402
from tray_desk import Panel, PrivateBus, Screen  # noqa: E402
from tray_readings import GIB, agent, status, task  # noqa: E402

BUDGET_RSS_BYTES = 35e6
BUDGET_CPU_PERCENT = 0.2
BUDGET_MENU_S = 0.1
TASKS = 23

# The minimal pystray program: an icon and a menu of as many lines, without daemon and
# notifications.
PYSTRAY = """
import sys, threading, time
sys.path[:0] = {path!r}
import pystray
from PIL import Image
lines = [pystray.MenuItem(f"line {{n}}", lambda: None) for n in range(30)]
icon = pystray.Icon("bench", Image.new("RGBA", (64, 64), "red"), "bench", pystray.Menu(*lines))
icon.run()
"""


def memory(pid: int) -> dict[str, float]:
    """Return RSS and PSS of a process in bytes."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name.lower()] = float(rest.split()[0]) * 1024
    return found


def cpu_s(pid: int) -> float:
    """Return user and system time so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def switches(pid: int) -> int:
    """Return how often any of its threads has slept so far."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt"):
                total += int(line.split()[1])
    return total


def companion(folder: Path, seconds: float) -> dict[str, float]:
    """Run the tray process with a daemon with many tasks, a panel and a notification service."""
    bus = PrivateBus(folder)
    bus.start()
    tasks = [task(4000 + n, f"train_{n}.ipynb", GIB, agent=agent()) for n in range(TASKS)]
    daemon = FakeDaemon(folder / "run" / "daemon.sock", status(tasks=tasks))
    daemon.start()
    panel, screen = Panel(bus.address), Screen(bus.address)
    env = {
        **os.environ,
        "DBUS_SESSION_BUS_ADDRESS": bus.address,
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "HOME": str(folder),
    }
    process = subprocess.Popen([sys.executable, "-m", "watchdog_app", "tray"], env=env)
    try:
        until(lambda: "train" in str(panel.lines()), "the menu is there")
        time.sleep(3)
        panel.signals.clear()
        begin, used, slept = time.monotonic(), cpu_s(process.pid), switches(process.pid)
        time.sleep(seconds)
        span = time.monotonic() - begin
        figures = {
            **memory(process.pid),
            "cpu_percent": 100 * (cpu_s(process.pid) - used) / span,
            "wakeups_per_s": (switches(process.pid) - slept) / span,
            "icons_sent": sum(name == "NewIcon" for name, _ in panel.signals),
        }
        times = []
        for _ in range(30):
            begin = time.monotonic()
            panel.call(panel.item, "/MenuBar", "com.canonical.dbusmenu", "AboutToShow", "i", [0])
            panel.layout()
            times.append(time.monotonic() - begin)
        figures["menu_median_s"] = statistics.median(times)
        figures["menu_worst_s"] = max(times)
        return figures
    finally:
        process.terminate()
        process.wait(10)
        panel.close()
        screen.close()
        daemon.stop()
        bus.stop()


def pystrays(folder: Path, seconds: float) -> dict[str, dict[str, float] | str]:
    """Run pystray's own backends, each in a Python that supports it."""
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "900x500x24", "-nolisten", "tcp", "-noreset"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    display = f":{server.stdout.readline().strip()}"
    bus = PrivateBus(folder)
    bus.start()
    env = {
        **os.environ,
        "DISPLAY": display,
        "DBUS_SESSION_BUS_ADDRESS": bus.address,
        "HOME": str(folder),
    }
    panel, screen = Panel(bus.address), Screen(bus.address)
    tray = subprocess.Popen(
        ["xfce4-panel", "--disable-wm-check"], env=env, stderr=subprocess.DEVNULL
    )
    time.sleep(1)
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    found: dict[str, dict[str, float] | str] = {}
    try:
        for backend in ("appindicator", "gtk", "xorg"):
            python = sys.executable if backend == "xorg" else "/usr/bin/python3"
            process = subprocess.Popen(
                [python, "-c", PYSTRAY.format(path=[packages])],
                env={**env, "PYSTRAY_BACKEND": backend},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            time.sleep(4)
            if process.poll() is not None:
                said = process.stderr.read().strip().splitlines() if process.stderr else []
                found[backend] = said[-1] if said else "it ended"
                continue
            used, begin = cpu_s(process.pid), time.monotonic()
            time.sleep(seconds)
            span = time.monotonic() - begin
            found[backend] = {
                **memory(process.pid),
                "cpu_percent": 100 * (cpu_s(process.pid) - used) / span,
            }
            process.kill()
            process.wait()
    finally:
        for each in (tray, server):
            each.terminate()
            each.wait(5)
        panel.close()
        screen.close()
        bus.stop()
    return found


def pictures(folder: Path) -> None:
    """Draw a sheet of the icon's levels and marks on a dark and on a light background."""
    from PIL import Image

    from watchdog_app.core.model.levels import Level
    from watchdog_app.tray.drawing import draw
    from watchdog_app.tray.state import Mark, Picture

    shown = [
        Picture(Level.OK, 4), Picture(Level.OK, 10), Picture(Level.WATCH, 9),
        Picture(Level.WARNING, 13), Picture(Level.CRITICAL, 15),
        Picture(Level.WARNING, 13, Mark.PAUSED), Picture(Level.WARNING, 13, Mark.SAVING),
        Picture(Level.OK, 6, Mark.OFF), Picture(Level.UNKNOWN),
    ]  # fmt: skip
    step = 84
    sheet = Image.new("RGB", (step * len(shown), 2 * 124))
    for row, (ground, dark) in enumerate((((45, 45, 48), True), ((240, 240, 238), False))):
        sheet.paste(ground, (0, row * 124, sheet.width, (row + 1) * 124))
        for column, picture in enumerate(shown):
            for size, y in ((64, 12), (22, 90)):
                image = draw(picture, size, dark)
                x = column * step + (step - size) // 2
                sheet.paste(image, (x, row * 124 + y), image)
    sheet.quantize(128).save(folder / "tray-icons.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="at rest")
    parser.add_argument("--pictures", type=Path, help="only draw the icons into this folder")
    args = parser.parse_args()
    if args.pictures is not None:
        pictures(args.pictures)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = companion(folder, args.seconds)
    with tempfile.TemporaryDirectory() as name:
        theirs = pystrays(Path(name), args.seconds / 2)
    print(f"Companion, {TASKS} trainings, {args.seconds:g} s at rest\n")
    print("| | measured | budget |\n|---|---|---|")
    print(f"| RSS | {ours['rss'] / 1e6:.1f} MB | {BUDGET_RSS_BYTES / 1e6:.0f} MB |")
    print(f"| PSS | {ours['pss'] / 1e6:.1f} MB | |")
    print(f"| CPU, of one core | {ours['cpu_percent']:.2f} % | {BUDGET_CPU_PERCENT} % |")
    print(f"| wake-ups a second | {ours['wakeups_per_s']:.1f} | |")
    print(f"| icons sent | {ours['icons_sent']:.0f} | 0 |")
    print(
        f"| click to menu, median and worst of 30 | {1000 * ours['menu_median_s']:.1f}, "
        f"{1000 * ours['menu_worst_s']:.1f} ms | {1000 * BUDGET_MENU_S:.0f} ms |"
    )
    print("\nAn icon and 30 lines with pystray alone, no daemon, no notices\n")
    print("| backend | RSS | PSS | CPU |\n|---|---|---|---|")
    for backend, figures in theirs.items():
        if isinstance(figures, str):
            print(f"| {backend} | not run: {figures} | | |")
        else:
            print(
                f"| {backend} | {figures['rss'] / 1e6:.1f} MB | {figures['pss'] / 1e6:.1f} MB | "
                f"{figures['cpu_percent']:.2f} % |"
            )


if __name__ == "__main__":
    main()
