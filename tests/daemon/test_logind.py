"""Trainings are saved when logind announces a shutdown or a sleep, on a private bus with a mock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from watchdog_app.base import dbus
from watchdog_app.daemon import logind
from watchdog_app.daemon.methods import Methods

SYSTEM_PYTHON = "/usr/bin/python3"  # python-dbusmock is a package of the system
PROGRAM = Path(__file__).parents[1] / "agent" / "programs" / "announced.py"
LOGIND, MANAGER, PATH = (
    "org.freedesktop.login1",
    "org.freedesktop.login1.Manager",
    "/org/freedesktop/login1",
)
LOCKS = [["shutdown", "watchdog"], ["sleep", "watchdog"]]
MOCK = "org.freedesktop.DBus.Mock"
BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen>
<policy context="default"><allow send_destination="*"/><allow own="*"/>
<allow receive_sender="*"/></policy></busconfig>"""


class MockedLogind:
    """logind's mock; its clients find it by DBUS_SYSTEM_BUS_ADDRESS."""

    def call(self, member: str, signature: str = "", *body: Any, interface: str = MOCK) -> Any:
        async def once() -> Any:
            bus = await dbus.connect(None, system=True)
            try:
                return await dbus.call(
                    bus, LOGIND, PATH, member, signature, body, interface=interface
                )
            finally:
                bus.disconnect()

        return asyncio.run(once())

    def locks(self) -> list[list[str]]:
        (found,) = self.call("ListInhibitors", interface=MANAGER)
        return [list(each[:2]) for each in found]

    def announce(self, event: str, *, begins: bool) -> None:
        from dbus_fast import Variant

        self.call("EmitSignal", "sssav", MANAGER, event, "b", [Variant("b", begins)])


@pytest.fixture
def mocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockedLogind]:
    known = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import dbusmock"], check=False, capture_output=True
    )
    if known.returncode:
        assert not os.environ.get("CI"), "python-dbusmock is missing"
        pytest.skip("python-dbusmock is missing: apt-get install python3-dbusmock")
    config, socket = tmp_path / "bus.conf", tmp_path / "bus"
    config.write_text(BUS.format(path=socket))
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={socket}")
    monkeypatch.setattr(logind, "_SEATS", str(tmp_path))
    bus = subprocess.Popen(["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"])
    until(socket.exists, "the bus listens")
    mock = subprocess.Popen(
        [SYSTEM_PYTHON, "-m", "dbusmock", "--system", "--template", "logind"],
        stdout=subprocess.DEVNULL,
    )
    found = MockedLogind()

    def answers() -> bool:
        from dbus_fast import Variant

        try:
            found.call(
                "AddProperty", "ssv", MANAGER, "InhibitDelayMaxUSec", Variant("t", 5_000_000)
            )
        except (dbus.CallFailed, OSError):
            return False
        return True

    try:
        until(answers, "the mock answers")
        yield found
    finally:
        for process in (mock, bus):
            process.kill()
            process.wait()


@pytest.fixture
def training(mocked, parts, control, loop, tmp_path: Path) -> Iterator[Path]:
    """A daemon and a training with an agent that it knows; gives the folder of its rescues."""
    parts.server.open(Methods(parts, control))
    thread = threading.Thread(target=loop.run)
    thread.start()
    rescues = tmp_path / "rescues"
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(rescues), "training"], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: mocked.locks() == LOCKS, "the locks are taken")
        until(lambda: parts.agents.views()[0].step, "it has made steps")
        yield rescues
    finally:
        process.kill()
        process.wait()
        control.stopping = True
        parts.waker.wake()
        thread.join(60)
        loop.logind.close()


def saved(rescues: Path) -> int:
    return len(list(rescues.glob("rescue-*")))


def test_a_sleep_waits_for_the_save_and_a_lock_is_taken_again_after_it(
    mocked: MockedLogind, training: Path, parts, loop
) -> None:
    loop.logind._retry_s = 3600.0  # as after several failures
    mocked.announce("PrepareForSleep", begins=True)
    until(lambda: not mocked.locks(), "the lock is released", step_s=0.2)

    assert saved(training) == 1
    assert loop.logind._retry_s < 3600.0
    assert not parts.exit_monitor.last_seen.shutdown
    mocked.announce("PrepareForSleep", begins=False)
    until(lambda: mocked.locks() == LOCKS, "the lock is taken again", step_s=0.2)


def test_what_ends_in_an_announced_shutdown_was_ended_by_it(
    mocked: MockedLogind, training: Path, parts
) -> None:
    mocked.announce("PrepareForShutdown", begins=True)
    until(lambda: not mocked.locks(), "the lock is released", step_s=0.2)

    assert saved(training) == 1
    assert parts.exit_monitor.last_seen.shutdown
    mocked.announce("PrepareForShutdown", begins=False)
    until(lambda: not parts.exit_monitor.last_seen.shutdown, "it was called off")


def test_the_lock_is_given_back_at_the_end_of_the_grace_and_with_the_last_agent(
    mocked: MockedLogind, training: Path, parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.agents, "send", lambda *_: None)  # the training does not hear of it
    mocked.announce("PrepareForSleep", begins=True)
    until(lambda: not mocked.locks(), "the lock is released", step_s=0.2)

    assert saved(training) == 0
    mocked.announce("PrepareForSleep", begins=False)
    until(lambda: mocked.locks() == LOCKS, "the lock is taken again", step_s=0.2)
    monkeypatch.setattr(parts.agents, "connected", list)
    until(lambda: not mocked.locks(), "the helper has ended", step_s=0.2)
