"""Starting terminals, editors and file managers; the command itself without a desktop."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.finished import finished

from watchdog_app.core.model.status import Notification
from watchdog_app.tray import launching
from watchdog_app.tray.commands import button_command

FONT = ["-fa", "Monospace", "-fs", "10", "-u8"]


@pytest.fixture
def programs(desktop, monkeypatch):
    """A PATH that holds only the test's programs."""
    for name in ("TERMINAL", "VISUAL", "EDITOR", "XDG_CONFIG_HOME", "WATCHDOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    tools = desktop.folder / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    (tools / "basename").symlink_to("/usr/bin/basename")
    monkeypatch.setenv("PATH", f"{desktop.programs}:{tools}")
    monkeypatch.setenv("HOME", str(desktop.home))
    return desktop


@pytest.mark.parametrize(
    ("terminal", "between"),
    [("xdg-terminal-exec", []), ("gnome-terminal", ["--"]), ("konsole", ["-e"]),
     ("xfce4-terminal", ["-x"]), ("kitty", []), ("wezterm", ["start", "--"]),
     ("xterm", [*FONT, "-e"]), ("uxterm", [*FONT, "-e"])],
)  # fmt: skip
def test_each_terminal_gets_the_command_in_its_own_way(programs, words_of, terminal, between):
    """Each argument stays separate; no shell parses it."""
    log = programs.program(terminal)

    launching.run_in_terminal(["echo", "a b; rm -rf /", "$HOME"])

    assert [terminal, *between, "echo", "a b; rm -rf /", "$HOME"] == words_of(log)


def test_the_persons_own_terminal_comes_first(programs, words_of, monkeypatch):
    """The user's arguments for that terminal stay."""
    programs.program("xterm")
    log = programs.program("myterm")
    monkeypatch.setenv("TERMINAL", "myterm --fast")

    launching.run_in_terminal(["top"])

    assert ["myterm", "--fast", "-e", "top"] == words_of(log)


def test_a_terminal_that_does_not_start_is_passed_over(programs, words_of):
    """An installed terminal may fail to reach its display server."""
    programs.program("gnome-terminal", code=1)
    log = programs.program("xterm")

    launching.run_in_terminal(["top"])

    assert ["xterm", *FONT, "-e", "top"] == words_of(log)


def test_an_old_terminal_is_the_last_to_be_taken(programs, words_of):
    """Debian's alternative may point to a terminal whose font lacks the bars."""
    programs.program("uxterm")
    (programs.programs / "x-terminal-emulator").symlink_to(programs.programs / "uxterm")
    log = programs.program("foot")

    launching.run_in_terminal(["top"])

    assert ["foot", "top"] == words_of(log)


def test_a_long_text_is_read_from_its_top(programs, words_of, monkeypatch):
    """A pager shows the text if one is installed."""
    programs.program("less")
    log = programs.program("foot")

    launching.run_in_terminal(["echo", "a b"], launching.PAGER)

    words = words_of(log)
    assert ["foot", "sh", "-c"] == words[:3]
    assert "less -R" in words[3]
    assert ["sh", "echo", "a b"] == words[4:]


def test_settings_are_edited_and_checked_in_a_terminal(programs, words_of):
    """The command rejects an invalid file; its output stays until the user presses Enter."""
    log = programs.program("xterm")
    programs.program("less")

    launching.open_settings()

    words = words_of(log)
    assert ["config", "edit"] == words[-2:]
    assert any("Press Enter" in word for word in words)


@pytest.mark.parametrize("task", [None, "x", True, 4.5])
def test_a_button_without_a_task_does_nothing_to_any(task):
    """A daemon of another version may send such a button, and guessing a task would be wrong."""
    for key in ("save", "pause", "resume", "explode", "enable_saving", "not_now"):
        assert button_command(Notification.read({"task": task}), key) is None


# The command


def run(desktop, *words, **env):
    return finished(
        [sys.executable, "-m", "watchdog_app", "tray", *words], env={**desktop.env(), **env}
    )


def test_the_live_view_can_be_opened_from_the_desktops_menu(desktop, words_of):
    """`Actions` of the desktop entry open it."""
    (desktop.folder / "tools").mkdir()
    for name, path in (("sh", "/bin/sh"), ("basename", "/usr/bin/basename")):
        (desktop.folder / "tools" / name).symlink_to(path)
    log = desktop.program("xterm")

    done = run(desktop, "--open-live-view")

    assert (0, "") == (done.returncode, done.stderr)
    assert ["top", "--window"] == words_of(log)[-2:]


def test_nothing_of_the_companion_needs_openssl(desktop, ended):
    """OpenSSL would add five megabytes that the tray never uses."""
    desktop.daemon.start()
    panel = desktop.panel()
    process = desktop.companion()
    assert panel.item
    with open(f"/proc/{process.pid}/maps") as file:
        loaded = {os.path.basename(line.split()[-1]) for line in file}

    assert not {name for name in loaded if name.startswith(("libssl", "libcrypto", "_ssl"))}
    assert 0 == ended(process)[0]


def test_only_the_companion_imports_what_it_is_made_of():
    """The command line and the daemon must not load the tray's libraries."""
    code = (
        "import sys, json, watchdog_app.cli.dispatch, watchdog_app.cli.tray, "
        "watchdog_app.daemon.app; print(json.dumps(list(sys.modules)))"
    )
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))

    assert not {"PIL", "pystray", "dbus_fast", "asyncio", "watchdog_app.tray"} & set(loaded)
