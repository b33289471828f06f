"""
The tray program on real desktops without a screen: the test clicks the real icon and checks pixels.

With WATCHDOG_SCREENSHOTS=FOLDER the tests keep the pictures; docs/images has pictures made this
way.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from real_desktop import RealDesktop, missing, settle
from support.fake_daemon import FakeDaemon
from support.waiting import until
from tray_readings import leaking, notice

pytestmark = pytest.mark.desktop

YELLOW = (240, 200, 40)  # the inside of the icon at stage warn
TERMINAL = r"[Xx][Tt]erm"


@pytest.fixture
def desktop(tmp_path, request):
    """X server, bus and window manager, and a daemon whose training fills the memory."""
    lacking = missing()
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}; see packaging/setup.sh")
    made = RealDesktop(tmp_path, dark="buttons" not in request.node.name)
    made.daemon = FakeDaemon(tmp_path / "run" / "daemon.sock", leaking())
    made.daemon.start()
    yield made
    made.close()
    made.daemon.stop()


def xembed_companion(desktop: RealDesktop):
    """The tray program without a session bus: it docks an XEmbed icon into the panel."""
    desktop.start("xfce4-panel", "--disable-wm-check")
    return companion(desktop, DBUS_SESSION_BUS_ADDRESS="unix:path=/nonexistent")


def companion(desktop: RealDesktop, *words: str, **env: str):
    # xterm without the resources of other terminals: it is small and any terminal will do.
    return desktop.start(
        sys.executable, "-m", "watchdog_app", "tray", *words, TERMINAL="xterm", **env
    )


def icon(desktop: RealDesktop) -> tuple[int, int] | None:
    """Return the position of the icon's inside on the panel."""
    with Image.open(desktop.screenshot("panel")) as file:
        picture = file.convert("RGB")
    width, _ = picture.size
    pixels = [
        (x, y)
        for x in range(width)
        for y in range(60)
        if all(abs(a - b) < 12 for a, b in zip(picture.getpixel((x, y)), YELLOW, strict=True))
    ]
    if len(pixels) < 12:
        return None
    return sum(x for x, _ in pixels) // len(pixels), sum(y for _, y in pixels) // len(pixels)


def resting_icon(desktop: RealDesktop) -> tuple[int, int]:
    """Return the icon's final position; it moves while its neighbours grow."""

    def rests() -> tuple[int, int] | None:
        place = icon(desktop)
        settle(1)
        return place if place is not None and place == icon(desktop) else None

    return until(rests, "the icon is on the panel", 90)


def keep(path: Path, name: str) -> None:
    folder = os.environ.get("WATCHDOG_SCREENSHOTS")
    if folder:
        shutil.copy(path, Path(folder) / f"{name}.png")


def different(one: Path, other: Path) -> int:
    """Count the pixels that differ between two pictures."""
    from PIL import ImageChops

    with Image.open(one) as first, Image.open(other) as second:
        changed = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
    same, *_ = changed.convert("L").histogram()
    return changed.width * changed.height - same


def test_icon_menu_and_notice_on_xfce_with_dunst(desktop):
    """The right button opens the menu; the left one and the notification open the live view."""
    desktop.start("xfce4-panel", "--disable-wm-check")
    desktop.start("dunst")
    companion(desktop, "--theme", "dark")
    open_menu(desktop, "menu-dark")

    before = desktop.screenshot("before")
    desktop.daemon.tell(notice())
    assert desktop.daemon.acknowledged("n1")["delivered"]
    assert changed(desktop, before, 5_000) > 5_000, "no notice on the screen"
    settle(1)
    keep(desktop.screenshot("notice"), "notice-dunst")
    desktop.run("dunstctl", "action")  # clicks the notification itself

    until(lambda: desktop.place(TERMINAL), "the notice opens a terminal")
    settle(3)  # a terminal that ends at once would count as a failed start
    desktop.run("xdotool", "search", "--class", "xterm", "windowkill")
    until(lambda: not desktop.place(TERMINAL), "the terminal is gone")
    desktop.click(*resting_icon(desktop), 1)
    until(lambda: desktop.place(TERMINAL), "a left click opens a terminal")
    settle(2)
    keep(desktop.screenshot("live"), "live")

    def visible() -> list[str]:
        return desktop.run("xdotool", "search", "--onlyvisible", "--class", "xterm").split()

    view = visible()
    until(lambda: live_view_runs(desktop), "the live view has started in its terminal")
    desktop.run("xdotool", "search", "--class", "xterm", "windowminimize")
    until(lambda: not visible(), "the view is minimized")
    desktop.click(*resting_icon(desktop), 1)
    until(visible, "another click brings the same view forward")
    settle(2)
    assert view == visible()


def live_view_runs(desktop: RealDesktop) -> bool:
    """Whether the lock file of the live view names a running process."""
    pids = [path.read_text().partition("\n")[0] for path in desktop.folder.rglob("top.lock")]
    return any(pid and Path("/proc", pid).exists() for pid in pids)


def test_buttons_of_a_notice_on_xfce(desktop):
    """The test presses the real button on a light theme, and the daemon gets the request."""
    services = glob.glob("/usr/lib/*/xfce4/notifyd/xfce4-notifyd")
    if not services:
        pytest.skip("not installed: xfce4-notifyd; see packaging/setup.sh")
    desktop.start("xfce4-panel", "--disable-wm-check")
    desktop.start(services[0])
    companion(desktop, "--theme", "light")
    open_menu(desktop, "menu-light")
    desktop.daemon.tell(notice())
    assert desktop.daemon.acknowledged("n1")["delivered"]
    settle(1.5)
    keep(desktop.screenshot("notice"), "notice-buttons")

    left, top, _, height = until(lambda: desktop.place("xfce4-notifyd"), "the notice")
    desktop.click(left + 70, top + height - 30)

    assert "4711" == desktop.daemon.wait_call("task.checkpoint")["task"]


def changed(desktop: RealDesktop, before: Path, least: int) -> int:
    """Wait until enough pixels of the screen changed, at most 20 s; return their number."""
    end = time.monotonic() + 20
    while (count := different(before, desktop.screenshot("after"))) <= least:
        if time.monotonic() > end:
            break
    return count


def open_menu(desktop: RealDesktop, name: str) -> None:
    """Open the menu and its first submenu, save the picture and close them."""
    x, y = resting_icon(desktop)
    before = desktop.screenshot("before")
    desktop.click(x, y, 3)
    assert changed(desktop, before, 20_000) > 20_000, "no menu has opened"
    desktop.move(x - 40, 90)
    desktop.move(x - 42, 92)
    settle(1)
    keep(desktop.screenshot("submenu"), name)
    desktop.run("xdotool", "key", "Escape", "key", "Escape", "key", "Escape")
    settle(0.5)


def test_an_old_tray_without_a_bus_menu_gets_clicks(desktop):
    """
    With XEmbed only, the program uses pystray's patched xorg backend, as in a plain virtual
    environment.
    """
    xembed_companion(desktop)
    x, y = resting_icon(desktop)
    before = desktop.screenshot("xembed")
    keep(before, "xembed")

    desktop.click(x, y, 1)

    until(lambda: desktop.place(TERMINAL), "a click opens a terminal")
    assert changed(desktop, before, 20_000) > 20_000, "the terminal is not on the screen"


def test_the_display_may_go_and_the_notices_stay(desktop):
    """An X session ends: no traceback, and the program still listens to the daemon."""
    process = xembed_companion(desktop)
    until(lambda: icon(desktop), "the icon is in the tray", 90)

    desktop.server.kill()
    desktop.server.wait()
    settle(2)
    desktop.daemon.tell(notice())

    assert not desktop.daemon.acknowledged("n1")["delivered"]  # no notification service runs here
    assert process.poll() is None
    process.terminate()
    assert 0 == process.wait(20)
    assert "Traceback" not in (desktop.folder / f"{Path(sys.executable).name}.log").read_text()
