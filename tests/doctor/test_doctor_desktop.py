"""Whether the user would see a notification: a private message bus with unusual services."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_tree import Tree, found, troubles

from watchdog_app.base import dbus
from watchdog_app.doctor import desktop

SERVICE = """
import asyncio, sys
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus
NAME, MODE = sys.argv[1], sys.argv[2]
def answer(message):
    if message.message_type is not MessageType.METHOD_CALL:
        return False
    if message.member in ("Notify", "CloseNotification"):
        print("TOUCHED", flush=True)
    if message.interface != NAME and message.interface != "org.freedesktop.DBus.Properties":
        return False
    if MODE == "hang":
        return True
    if message.member == "GetServerInformation":
        return Message.new_method_return(message, "ssss", ["dunst", "knopwob", "1.9", "1.2"])
    if message.member == "Get":
        return Message.new_method_return(message, "v", [Variant("b", MODE == "yes")])
    return False
async def main():
    bus = await MessageBus().connect()
    bus.add_message_handler(answer)
    await bus.request_name(NAME)
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "machine")


@pytest.fixture
def bus(tmp_path):
    """Yield the address of a message bus without service files."""
    if shutil.which("dbus-daemon") is None:
        assert not os.environ.get("CI"), "dbus-daemon is missing"
        pytest.skip("dbus-daemon is not installed: apt-get install dbus")
    config = tmp_path / "bus.conf"
    config.write_text(
        "<busconfig><type>session</type>"
        f"<listen>unix:path={tmp_path}/bus</listen><auth>EXTERNAL</auth>"
        '<policy context="default"><allow send_destination="*" eavesdrop="true"/>'
        '<allow eavesdrop="true"/><allow own="*"/></policy></busconfig>'
    )
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    address = daemon.stdout.readline().strip()
    yield address
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


@pytest.fixture
def service(bus):
    """Start a service on the bus with a name and a kind of answer."""
    started = []

    def start(name, mode="no"):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, name, mode],
            env={**os.environ, "DBUS_SESSION_BUS_ADDRESS": bus},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert "ready\n" == process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def check(tree, bus, **env):
    return desktop.check(tree.facts(env={"DBUS_SESSION_BUS_ADDRESS": bus, **env}))


def test_a_desktop_with_everything_is_fine_and_undisturbed(tree, bus, service):
    """The finding names the service, and the check shows no notification."""
    notifications = service(dbus.NOTIFICATIONS)
    service(desktop.TRAY, "yes")

    findings = found(check(tree, bus))

    assert {} == troubles(findings.values())
    assert "dunst 1.9" in findings["desktop.notifications"].what
    notifications.kill()
    assert "TOUCHED" not in notifications.stdout.read()


NOTIFIES, TRAY = dbus.NOTIFICATIONS, desktop.TRAY


@pytest.mark.parametrize(
    ("expected", "services", "env", "said"),
    [
        (
            {"desktop.notifications": "warning", "desktop.tray": "info"},
            {},
            {},
            "sudo apt install dunst",
        ),
        (
            {"desktop.tray": "info"},
            {NOTIFIES: "no"},
            {"XDG_CURRENT_DESKTOP": "ubuntu:GNOME"},
            "AppIndicator",
        ),
        # Plasma's service says this explicitly.
        ({"desktop.do-not-disturb": "warning"}, {NOTIFIES: "yes", TRAY: "yes"}, {}, "Switch it"),
        # A service owns the name and shows nothing.
        ({"desktop.tray": "info"}, {NOTIFIES: "no", TRAY: "no"}, {}, "panel"),
        # A hanging service takes its deadline and not more.
        ({"desktop.notifications": "warning"}, {NOTIFIES: "hang", TRAY: "yes"}, {}, "Log in again"),
    ],
)
def test_what_is_missing_on_the_desktop_is_told(  # noqa: PLR0917
    tree, bus, service, expected, services, env, said
):
    """The finding says what to do."""
    for name, mode in services.items():
        service(name, mode)

    findings = found(check(tree, bus, **env))

    assert expected == troubles(findings.values())
    assert any(said in f"{one.what} {one.remedy} {one.commands}" for one in findings.values())


@pytest.mark.parametrize(
    "address", ["unix:path=/no/such/bus", "nonsense", "unix:", "tcp:host=127.0.0.1,port=1"]
)
def test_a_bus_that_is_not_there_is_one_warning(tree, address):
    """The check accepts any value of the variable."""
    assert {"desktop.session-bus": "warning"} == troubles(check(tree, address))


def test_a_server_without_a_desktop_is_no_trouble(tree):
    """The doctor adds a note with another way to get notifications."""
    findings = found(desktop.check(tree.facts(uid=4242)))

    assert {"desktop.session-bus": "info"} == troubles(findings.values())
    assert "watchdog config set notify.command" in findings["desktop.session-bus"].commands[0]


def test_a_program_that_is_told_already_is_not_asked_for_again(tree, tmp_path):
    """The check reads the setting from this user's configuration."""
    config = tmp_path / "config/watchdog/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[notify]\ncommand = ["page-me", "--phone", "123"]\n')
    facts = tree.facts(uid=4242, env={"XDG_CONFIG_HOME": str(tmp_path / "config")})

    finding = found(desktop.check(facts))["desktop.session-bus"]

    assert "ok" == finding.severity
    assert "page-me --phone 123" in finding.what


def test_a_screen_without_a_bus_is_a_warning(tree):
    """The user sits at that screen and would miss the notifications."""
    told = troubles(desktop.check(tree.facts(uid=4242, env={"DISPLAY": ":0"})))

    assert {"desktop.session-bus": "warning"} == told


def test_the_bus_is_found_without_its_variable(tmp_path):
    """systemd puts the bus into the runtime folder."""
    Path(tmp_path / "bus").touch()

    assert f"unix:path={tmp_path}/bus" == dbus.session_bus_address(
        {"XDG_RUNTIME_DIR": str(tmp_path)}, 1000
    )
    assert dbus.session_bus_address({}, 4242, str(tmp_path)) is None
