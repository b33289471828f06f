"""
A real desktop without a screen: Xvfb, a session bus, a window manager, a panel, a notification
service.

Everything has its own HOME and ends with the test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from support.finished import finished
from support.waiting import until

NEEDS = (
    "Xvfb",
    "xdotool",
    "openbox",
    "import",
    "dbus-daemon",
    "xterm",
    "xwininfo",
    "xprop",
    "display",
    "xfce4-panel",
    "dunst",
    "dunstctl",
)
SIZE = (900, 500)

PANEL = """<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-panel" version="1.0">
  <property name="configver" type="int" value="2"/>
  <property name="panels" type="array"><value type="int" value="1"/>
    <property name="dark-mode" type="bool" value="{dark}"/>
    <property name="panel-1" type="empty">
      <property name="position" type="string" value="p=6;x=0;y=0"/>
      <property name="length" type="uint" value="100"/>
      <property name="size" type="uint" value="30"/>
      <property name="icon-size" type="uint" value="22"/>
      <property name="plugin-ids" type="array">
        <value type="int" value="1"/><value type="int" value="2"/><value type="int" value="3"/>
      </property>
    </property>
  </property>
  <property name="plugins" type="empty">
    <property name="plugin-1" type="string" value="separator">
      <property name="expand" type="bool" value="true"/>
      <property name="style" type="uint" value="0"/>
    </property>
    <property name="plugin-2" type="string" value="systray">
      <property name="square-icons" type="bool" value="true"/>
    </property>
    <property name="plugin-3" type="string" value="clock"/>
  </property>
</channel>
"""

DUNST = """[global]
    width = 380
    offset = 12x40
    font = DejaVu Sans 10
    markup = full
    format = "<b>%s</b>\\n%b"
    mouse_left_click = do_action
    mouse_middle_click = close_current
    frame_width = 1
    idle_threshold = 0
"""


class RealDesktop:
    """An X server and the programs that the test starts on it."""

    def __init__(self, folder: Path, dark: bool = True) -> None:
        self.folder = folder
        self.home = folder / "home"
        xfce = self.home / ".config" / "xfce4" / "xfconf" / "xfce-perchannel-xml"
        xfce.mkdir(parents=True)
        (xfce / "xfce4-panel.xml").write_text(PANEL.format(dark=str(dark).lower()))
        dunst = self.home / ".config" / "dunst"
        dunst.mkdir()
        (dunst / "dunstrc").write_text(DUNST)
        # The default bitmap font lacks the block and dot characters of the live view.
        (self.home / ".Xdefaults").write_text(
            "xterm*faceName: DejaVu Sans Mono\nxterm*faceSize: 8\n"
            "xterm*background: #1d1f21\nxterm*foreground: #e0e0e0\n"
        )
        (self.home / "run").mkdir(mode=0o700)
        self._started: list[subprocess.Popen[bytes]] = []
        self.env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
            "WATCHDOG_STATE_DIR": str(folder / "state"),
            "NO_AT_BRIDGE": "1",
            "GSETTINGS_BACKEND": "memory",
        }
        self._start_server()
        self._start_bus()
        self.start("openbox")
        self.start("display", "-window", "root", "xc:#3b5068")
        # A tray that maps before the window manager runs may stay invisible.
        until(lambda: "_NET_SUPPORTING_WM_CHECK(WINDOW)" in self._root(), "openbox manages")

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a program on this desktop."""
        log = (self.folder / f"{Path(words[0]).name}.log").open("ab")
        with log:
            process = subprocess.Popen(
                words,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, *words: str) -> str:
        """Return a program's output on this desktop."""
        done = finished(words, env=self.env, timeout=30)
        return done.stdout

    def screenshot(self, name: str) -> Path:
        """Save the whole screen as PNG."""
        path = self.folder / f"{name}.png"
        self.run("import", "-window", "root", str(path))
        assert path.stat().st_size > 0
        return path

    def click(self, x: int, y: int, button: int = 1) -> None:
        self.run("xdotool", "mousemove", str(x), str(y), "sleep", "0.2", "click", str(button))

    def move(self, x: int, y: int) -> None:
        self.run("xdotool", "mousemove", str(x), str(y))

    def windows(self) -> str:
        return self.run("xwininfo", "-root", "-tree")

    def place(self, pattern: str) -> tuple[int, int, int, int] | None:
        """
        Return x, y, width and height of the first window whose line in the tree matches the
        pattern.
        """
        for line in self.windows().splitlines():
            if re.search(pattern, line):
                found = re.search(r"(\d+)x(\d+)\+-?\d+\+-?\d+\s+\+(-?\d+)\+(-?\d+)", line)
                if found:
                    width, height, x, y = map(int, found.groups())
                    return x, y, width, height
        return None

    def _root(self) -> str:
        return self.run("xprop", "-root", "_NET_SUPPORTING_WM_CHECK")

    def close(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_server(self) -> None:
        read, write = os.pipe()
        width, height = SIZE
        words = ["Xvfb", "-displayfd", str(write), "-screen", "0", f"{width}x{height}x24"]
        server = subprocess.Popen(
            [*words, "-nolisten", "tcp", "-noreset"],
            pass_fds=(write,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(server)
        self.server = server
        os.close(write)
        with os.fdopen(read) as pipe:
            number = pipe.readline().strip()
        assert number, "Xvfb did not start"
        self.env["DISPLAY"] = f":{number}"

    def _start_bus(self) -> None:
        address = f"unix:path={self.folder}/session-bus"
        self.env["DBUS_SESSION_BUS_ADDRESS"] = address
        self.start("dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={address}")
        until((self.folder / "session-bus").exists, "the session bus listens")


def missing() -> list[str]:
    """Return the programs that this machine lacks."""
    return [name for name in NEEDS if shutil.which(name) is None]


def settle(seconds: float) -> None:
    """Wait for drawing, which gives no signal at its end."""
    time.sleep(seconds)
