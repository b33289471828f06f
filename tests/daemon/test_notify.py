"""Notices reach the desktop, the terminal and the user's command, or the outcome says why not."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.finished import finished
from support.waiting import until

from watchdog_app.base.errors import ConfigError
from watchdog_app.base.linux.process import read_stat
from watchdog_app.core.model.settings import CHANNELS, NotifySettings
from watchdog_app.core.model.status import Button, Incident, Notification, Status, Task
from watchdog_app.daemon.notify import Channel, Delivery, open_channels
from watchdog_app.daemon.notify.cells import Cells
from watchdog_app.daemon.notify.command import CommandChannel
from watchdog_app.daemon.notify.desktop import DesktopChannel
from watchdog_app.daemon.notify.dispatcher import Dispatcher
from watchdog_app.daemon.notify.terminal import TerminalChannel

SERVICE = Path(__file__).with_name("notification_service.py")
BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:dir={folder}</listen>
  <servicedir>{services}</servicedir>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


def notice(**changes) -> Notification:
    values = {
        "id": "n1",
        "incident": "i1",
        "stage": "warn",
        "urgency": "critical",
        "topic": "warning",
        "title": "RAM full in about 4 min: train.ipynb",
        "body": "RAM: 6.00 GiB of 7.00 GiB.\nIf it continues, it dies.",
        "task": 4242,
        "unix_s": 1.7e9,
        "actions": (
            Button(key="pause", label="Pause", command="watchdog pause train.ipynb"),
            Button(key="show", label="Show", command="watchdog top"),
        ),
    }
    return Notification(**{**values, **changes})


class Way(Channel):
    """A channel that gives a fixed answer and records its notices."""

    def __init__(self, delivered: bool, name: str = "way") -> None:
        self.name = name
        self.answer = Delivery(delivered, "" if delivered else "broken")
        self.seen: list[Notification] = []

    def send(self, notice: Notification) -> Delivery:
        self.seen.append(notice)
        return self.answer


class World:
    """A dispatcher with these channels and no daemon; `told` holds the outcomes."""

    def __init__(self, *ways: Channel, trays: int = 0) -> None:
        self.now = 0.0
        self.told: list[tuple[bool, str]] = []
        nobody = SimpleNamespace(publish=lambda *_: trays)
        log = SimpleNamespace(warning=lambda *_, **__: None)
        self.dispatcher = Dispatcher(
            nobody,
            NotifySettings(),
            lambda: None,
            log,
            Cells(SimpleNamespace()),
            opened=lambda _: ways,
            clock=lambda: self.now,
        )

    def show(self, **changes) -> tuple[bool, str]:
        before = len(self.told)
        self.dispatcher.show(notice(**changes), lambda *told: self.told.append(told))
        until(lambda: self.dispatcher.poll(0.0) or len(self.told) > before)
        return self.told[-1]


# Dispatcher


def test_a_notice_goes_every_way_and_is_delivered_when_one_worked():
    """The outcome also names the failures."""
    good, bad = Way(True, "terminal"), Way(False, "desktop")

    told = World(bad, good).show()

    assert (True, "shown by terminal; desktop: broken") == told
    assert 1 == len(good.seen) == len(bad.seen)


def test_a_channel_that_hangs_delays_no_other():
    """Each channel has a separate thread."""
    hold = threading.Event()
    slow, quick = Way(True, "slow"), Way(True, "quick")
    slow.send = lambda _: hold.wait(20) and slow.answer
    world = World(slow, quick)

    for _ in range(2):
        world.dispatcher.show(notice(), lambda *told: world.told.append(told))
    until(lambda: len(quick.seen) == 2)
    waiting = list(world.told)
    hold.set()
    until(lambda: world.dispatcher.poll(0.0) or len(world.told) == 2)

    assert [] == waiting
    assert [(True, "shown by slow+quick")] * 2 == world.told


def test_a_command_does_not_wait_for_a_tray():
    """A stopped tray answers nothing for two seconds; the desktop alone waits for it."""
    phone, screen = Way(True, "phone"), Way(True, "screen")
    screen.also_with_tray = False
    world = World(screen, phone, trays=1)

    world.dispatcher.show(notice(), lambda *told: world.told.append(told))
    until(lambda: world.dispatcher.poll(1.9) or phone.seen)
    before = list(screen.seen), list(world.told)
    until(lambda: world.dispatcher.poll(2.1) or world.told)

    assert ([], []) == before
    assert [(True, "shown by phone+screen")] == world.told
    assert 1 == len(phone.seen)


def test_a_tray_and_a_command_have_one_outcome():
    """Whichever answers last."""
    phone = Way(True, "phone")
    world = World(phone, trays=1)

    world.dispatcher.show(notice(), lambda *told: world.told.append(told))
    world.dispatcher.acknowledge("n1", True, "seen")
    until(lambda: world.dispatcher.poll(0.0) or world.told)

    assert [(True, "seen; shown by phone")] == world.told
    assert 1 == world.dispatcher.shown


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"file": {"pth": "/x"}}, "unexpected keyword argument 'pth'"),
        ({"file": {"path": ""}}, r"\[notify.file\] is not accepted: path is empty"),
    ],
)
def test_a_wrong_table_of_a_channel_is_refused(monkeypatch, tables, why):
    """The keyword arguments of its class are the keys of its table."""
    monkeypatch.setitem(CHANNELS, "file", "file:FileChannel")
    monkeypatch.setitem(
        sys.modules, "watchdog_app.daemon.notify.file", SimpleNamespace(FileChannel=FileChannel)
    )

    with pytest.raises(ConfigError, match=why):
        open_channels(NotifySettings(desktop=False, tables=tables))
    (channel,) = open_channels(NotifySettings(desktop=False, tables={"file": {"path": "/x"}}))

    assert "/x" == channel.path


class FileChannel(Channel):
    """A channel with a table of its own."""

    name = "file"

    def __init__(self, *, path: str) -> None:
        if not path:
            raise ValueError("path is empty")
        self.path = path


def test_a_notice_without_any_way_is_not_delivered():
    """The detail names the setting that switches notices on."""
    delivered, detail = World().show()

    assert not delivered
    assert "[notify]" in detail


# Terminal


def test_the_terminal_gets_plain_lines():
    """Control characters of a name are replaced, and so is text that cannot be encoded."""
    stream = io.StringIO()

    delivery = TerminalChannel(stream=stream).send(
        notice(title="Paused: \x1b[2Jtrain\u202e.ipynb", body="one\ntwo\x07")
    )

    assert delivery.delivered
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("watchdog: Paused: ?[2Jtrain?.ipynb")
    # The command to type instead of a button.
    assert ["one", "two?", "> watchdog pause train.ipynb"] == [line.strip() for line in lines[1:]]


def test_a_closed_terminal_is_not_delivered():
    """The daemon may outlive the terminal that started it."""
    stream = io.StringIO()
    stream.close()

    delivery = TerminalChannel(stream=stream).send(notice())

    assert not delivery.delivered
    assert "cannot be written" in delivery.detail


# The user's command


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_command_gets_the_notice_as_json_and_as_variables(tmp_path):
    """Standard input has the whole notice, the environment its parts."""
    out = tmp_path / "got"
    program = (
        "import json, os, sys\n"
        f"json.dump([json.load(sys.stdin), dict(os.environ)], open({str(out)!r}, 'w'))"
    )

    delivery = CommandChannel(python(program)).send(notice())

    assert Delivery(True) == delivery
    value, environment = json.loads(out.read_text())
    assert notice().to_json() == value
    action = {"key": "pause", "label": "Pause", "command": "watchdog pause train.ipynb"}
    assert action == value["actions"][0]
    assert "RAM full in about 4 min: train.ipynb" == environment["WATCHDOG_TITLE"]
    assert "4242" == environment["WATCHDOG_TASK"]


def test_names_are_never_seen_by_a_shell(tmp_path):
    """Text that looks like a command substitution stays text."""
    trap = tmp_path / "trap"
    out = tmp_path / "got"
    program = f"import os; open({str(out)!r}, 'w').write(os.environ['WATCHDOG_TITLE'])"
    title = f"$(touch {trap}); `touch {trap}`\0 \udcff"

    delivery = CommandChannel(python(program)).send(notice(title=title))

    assert delivery.delivered
    assert not trap.exists()
    assert f"$(touch {trap}); `touch {trap}` ?" == out.read_text()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["/nonexistent/mail"], "could not be started"),
        (["/etc/passwd"], "could not be started"),
        (python("import sys; print('no such host'); sys.exit(3)"), "status 3: no such host"),
    ],
    ids=["missing", "no program", "failing"],
)
def test_a_command_that_fails_is_not_delivered_and_says_why(argv, why):
    """The detail holds the reason, for `watchdog history`."""
    delivery = CommandChannel(argv).send(notice())

    assert not delivery.delivered
    assert why in delivery.detail


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path):
    """The daemon waits no longer than the timeout."""
    out = tmp_path / "pid"
    program = (
        "import subprocess, time\n"
        f"open({str(out)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "time.sleep(600)"
    )

    delivery = CommandChannel(python(program), timeout_s=2.0).send(notice())

    assert not delivery.delivered
    assert "did not end within 2 s" in delivery.detail
    until(lambda: (stat := read_stat(int(out.read_text()))) is None or stat.has_ended)


def test_a_command_that_leaves_a_program_behind_does_not_block(tmp_path):
    """A background process keeps the output open; the daemon does not wait for it."""
    out = tmp_path / "pid"
    program = (
        "import subprocess\n"
        f"open({str(out)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"
    )

    began = time.monotonic()
    delivery = CommandChannel(python(program), timeout_s=60.0).send(notice())

    assert delivery.delivered
    assert time.monotonic() - began < 60
    os.kill(int(out.read_text()), 9)


# The desktop, for real


@pytest.fixture
def bus(tmp_path):
    """A private session bus; gives its environment and starts services on it."""
    if shutil.which("dbus-daemon") is None:
        without = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        without("dbus-daemon is missing: apt-get install dbus")
    started = []
    services = tmp_path / "services"
    services.mkdir()
    # Not --session: it would start the notification service that is installed on the machine.
    config = tmp_path / "bus.conf"
    config.write_text(BUS.format(folder=tmp_path, services=services))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"],
        stdout=subprocess.PIPE,
    )
    started.append(daemon)
    env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": daemon.stdout.readline().decode().strip()}
    log = tmp_path / "shown"
    log.touch()

    class Bus:
        environment = env

        @staticmethod
        def serve_broken() -> None:
            (services / "broken.service").write_text(
                "[D-BUS Service]\nName=org.freedesktop.Notifications\nExec=/bin/false\n"
            )

        @staticmethod
        def serve(mode: str) -> None:
            process = subprocess.Popen(
                [sys.executable, str(SERVICE), str(log), mode], env=env, stdout=subprocess.PIPE
            )
            started.append(process)
            assert b"ready\n" == process.stdout.readline()

        @staticmethod
        def shown() -> list[dict]:
            return [json.loads(line) for line in log.read_text().splitlines()]

        @staticmethod
        def closed() -> list[int]:
            path = log.with_name("shown.closed")
            return [int(line) for line in path.read_text().split()] if path.exists() else []

        @staticmethod
        def restart() -> None:
            started[-1].kill()
            started[-1].wait()
            Bus.serve("plain")

    yield Bus
    for process in reversed(started):
        process.kill()
        process.wait()
        process.stdout.close()


def desktop(env, **changes) -> DesktopChannel:
    return DesktopChannel(env=env, **changes)


@pytest.mark.desktop
def test_a_notice_is_shown_on_the_desktop_with_its_urgency(bus):
    """Title, body and urgency arrive; the server's answer is the delivery."""
    bus.serve("plain")

    delivery = desktop(bus.environment).send(notice(body="<b>5 < 6</b>"))

    assert Delivery(True) == delivery
    (shown,) = bus.shown()
    assert ("watchdog", 2) == (shown["app"], shown["urgency"])
    assert "RAM full in about 4 min: train.ipynb" == shown["title"]
    # The helper has ended before a button could be pressed: the command stands in the text instead.
    assert [] == shown["actions"]
    assert "<b>5 < 6</b>\nwatchdog pause train.ipynb" == shown["body"]


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("mode", "body", "shown"),
    [
        pytest.param(
            "plain",
            "Make room, then: watchdog pause train.ipynb",
            "Make room, then: watchdog pause train.ipynb",
            id="what to type stands there already",
        ),
        pytest.param(
            "plain",
            "one\ntwo\x00\u202e\x1b[31m",
            "one\ntwo\\x00\\u202e\\x1b[31m\nwatchdog pause train.ipynb",
            id="some servers read the text as XML, which has no escape sequences",
        ),
        pytest.param(
            "markup",
            '<img src="x">.ipynb & co',
            '&lt;img src="x"&gt;.ipynb &amp; co\nwatchdog pause train.ipynb',
            id="a file called so is shown as that by a server that knows markup",
        ),
    ],
)
def test_a_text_is_shown_as_it_is(bus, mode, body, shown):
    """It is escaped exactly once, and always shown as text."""
    bus.serve(mode)

    desktop(bus.environment).send(notice(title="a\x1b[31m.py", body=body))

    (found,) = bus.shown()
    assert ("a\\x1b[31m.py", shown) == (found["title"], found["body"])


@pytest.mark.desktop
def test_a_server_that_wants_a_break_gets_one(bus):
    """GNOME refuses notices that come too fast, so the channel retries once."""
    bus.serve("excess")

    delivery = desktop(bus.environment).send(notice())

    assert delivery.delivered
    assert 1 == len(bus.shown())


@pytest.mark.desktop
def test_notices_of_one_incident_replace_each_other(bus):
    """There is one bubble per incident and task."""
    bus.serve("plain")
    notifier = desktop(bus.environment)

    for each in (notice(), notice(id="n2"), notice(id="n3", incident="i2"), notice(task=7)):
        notifier.send(each)

    assert [0, 41, 0, 0] == [shown["replaces"] for shown in bus.shown()]


@pytest.mark.desktop
def test_a_warning_stays_on_the_screen_while_it_is_true(bus):
    """It never expires, and is closed by its number. News expires as the service likes."""
    bus.serve("plain")
    channel = desktop(bus.environment)
    channel.send(notice(task=None))
    channel.send(notice(id="n2", topic="rescued", incident=""))

    channel.close_over(Status(incidents=(Incident(id="i1"),)))
    while_true = (channel.standing, bus.closed())
    channel.close_over(Status(incidents=(Incident(id="i2"),)))

    assert [0, -1] == [shown["expires_ms"] for shown in bus.shown()]
    assert (True, []) == while_true
    assert (False, [41]) == (channel.standing, bus.closed())


@pytest.mark.desktop
def test_numbers_of_a_restarted_service_are_not_used(bus):
    """It counts from 1 again: the old number may be that of another program."""
    bus.serve("plain")
    channel = desktop(bus.environment)
    channel.send(notice())
    bus.restart()
    channel.send(notice(id="n2"))
    channel.send(notice(id="n3"))

    channel.close_over(Status())

    assert [0, 0, 42] == [shown["replaces"] for shown in bus.shown()]
    assert [42] == bus.closed()


@pytest.mark.desktop
def test_warnings_do_not_outlive_the_daemon(bus):
    """Nobody would close them later."""
    bus.serve("plain")
    world = World(desktop(bus.environment))
    world.show()

    world.dispatcher.close(60)

    assert [41] == bus.closed()


@pytest.mark.desktop
def test_word_of_a_pause_outlives_the_daemon(bus):
    """The task stays paused."""
    bus.serve("plain")
    world = World(desktop(bus.environment))
    world.show(topic="paused", task=7, incident="i7")

    world.dispatcher.close(60, lambda: Status(tasks=(Task(pid=7, paused_by_watchdog=True),)))

    assert [] == bus.closed()


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("refuse", "refused it: too many notifications"),
        ("hang", "did not answer within"),
        ("broken", "could not be started"),  # installed but broken, which differs from missing
        (None, "no notification service runs in this session"),
    ],
)
def test_a_notice_that_was_not_shown_says_why(bus, mode, why):
    """Refused, no answer, broken, missing: four different reasons, none a success."""
    if mode == "broken":
        bus.serve_broken()
    elif mode is not None:
        bus.serve(mode)

    delivery = desktop(bus.environment).send(notice())

    assert not delivery.delivered
    assert why in delivery.detail


def test_without_a_session_bus_the_notice_is_not_delivered(tmp_path):
    """In an ssh session the detail says so, and nothing hangs."""
    env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/no-bus"}

    delivery = desktop(env).send(notice())

    assert not delivery.delivered
    assert "no desktop session to show it on (no session bus)" in delivery.detail


@pytest.mark.parametrize(
    ("helper", "why"),
    [
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not answer within 0.5 s"),
        ([sys.executable, "-c", "raise SystemExit('boom')"], "failed (status 1): boom"),
        ([sys.executable, "-c", "print('[1]')"], "failed (status 0)"),
        (["/nonexistent"], "could not be started"),
    ],
    ids=["hangs", "crashes", "talks nonsense", "missing"],
)
def test_a_broken_helper_is_an_undelivered_notice(helper, why):
    """It can hang, crash or print nonsense: the daemon continues."""
    delivery = DesktopChannel(deadline_s=0.5, helper=helper).send(notice())

    assert not delivery.delivered
    assert why in delivery.detail


def test_the_helper_answers_to_what_is_no_notice():
    """Garbage on standard input gives an answer, not a traceback."""
    helper = [sys.executable, "-m", "watchdog_app.daemon.notify.desktop_helper"]
    done = finished(helper, input="{")

    assert 1 == done.returncode
    assert json.loads(done.stdout)["delivered"] is False
    assert "Traceback" not in done.stderr


PLYER = """
import json, os
class notification:
    @staticmethod
    def notify(**given):
        with open(os.environ["SAID"], "w") as file:
            json.dump(given, file)
        if os.environ.get("BREAK"):
            raise OSError("it failed.")
"""


@pytest.mark.parametrize("broken", ["", "yes"])
def test_plyer_is_the_last_resort(tmp_path, broken):
    """On macOS, with texts that must not look like options; a failure is reported."""
    (tmp_path / "plyer.py").write_text(PLYER)
    said = tmp_path / "said"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "SAID": str(said), "BREAK": broken}
    program = (
        "import sys, runpy, json, subprocess; sys.platform = 'darwin';"
        "runpy.run_module('watchdog_app.daemon.notify.desktop_helper', run_name='__main__')"
    )

    channel = DesktopChannel(env=env, helper=[sys.executable, "-c", program])
    delivery = channel.send(notice(title="--help", body="-b"))

    assert (not broken) is delivery.delivered
    assert ("it failed." in delivery.detail) is bool(broken)
    given = json.loads(said.read_text())
    assert " --help" == given["title"]
    assert given["message"].startswith(" -b")
