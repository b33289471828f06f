"""A real daemon process: its life, its folders, its configuration."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from watchdog_app.base.errors import RequestError

SLEEP = "import time\nwhile True:\n    time.sleep(0.1)\n"


def test_the_daemon_answers_with_what_runs(world):
    """A started script appears with its name, its memory and its state."""
    client = world.start()
    pid = world.script(SLEEP, "train_me.py")

    task = world.seen(pid)

    assert "train_me.py" == task["name"]
    assert "script" == task["kind"]
    assert 1_000_000 < task["ram_bytes"] < 100_000_000
    assert task["state"] in ("sleeping", "running")
    assert not task["paused_by_watchdog"]
    assert task["agent"] is None
    status = client.call("status")
    assert 2 == status["schema_version"]
    assert world.process.pid == status["daemon"]["pid"]
    assert status["host"]["memory_total_bytes"] > status["host"]["memory_available_bytes"] > 0
    assert [] == [e for e in status["problems"] if e["source"].startswith(("daemon", "engine"))]


def test_it_ends_cleanly_when_told_to(world):
    """SIGTERM: exit code 0, the socket is removed, the lock is free."""
    world.start()

    assert 0 == world.end()

    assert not os.path.exists(world.socket)
    assert world.start().call("status")


def test_a_second_daemon_is_refused(world):
    """The message names the running daemon, which continues."""
    client = world.start()

    second = world.command("run")

    assert 1 == second.returncode
    assert f"already running (pid {world.process.pid})" in second.stderr
    assert client.call("status")


def test_a_killed_daemon_leaves_nothing_in_the_way(world):
    """After kill -9 the socket's file remains; the next daemon replaces it."""
    world.start()
    world.kill()
    assert os.path.exists(world.socket)

    assert world.start().call("status")


def test_folder_socket_and_journal_are_private(world):
    """The modes are 0700 and 0600, whatever the umask was."""
    world.start()

    modes = {
        name: stat.S_IMODE(os.stat(world.folder / name).st_mode)
        for name in ("run", "run/daemon.sock", "run/daemon.lock", "state/journal.db")
    }

    assert {
        "run": 0o700,
        "run/daemon.sock": 0o600,
        "run/daemon.lock": 0o600,
        "state/journal.db": 0o600,
    } == modes


def test_a_folder_that_is_a_link_is_refused(world, tmp_path):
    """Another user may have created a link in /tmp: the daemon writes nothing through it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")

    found = world.command("run")

    assert 1 == found.returncode
    assert "is a link" in found.stderr
    assert [] == os.listdir(tmp_path / "elsewhere")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of somebody else")
def test_a_folder_of_somebody_else_is_refused(world, tmp_path):
    """Its owner could read the socket."""
    (tmp_path / "run").mkdir(mode=0o777)
    os.chown(tmp_path / "run", 12345, 12345)

    found = world.command("run")

    assert 1 == found.returncode
    assert "belongs to user 12345" in found.stderr
    assert [] == os.listdir(tmp_path / "run")


def test_a_folder_open_to_others_is_closed(world, tmp_path):
    """The user's own folder is readable by all: the daemon fixes that before it writes to it."""
    (tmp_path / "run").mkdir(mode=0o777)
    (tmp_path / "run").chmod(0o777)

    world.start()

    assert 0o700 == stat.S_IMODE(os.stat(tmp_path / "run").st_mode)


def test_a_removed_socket_is_made_again(world):
    """Cleaners of /tmp remove old sockets; the daemon stays reachable."""
    world.start().close()

    os.unlink(world.socket)

    world.until(lambda: os.path.exists(world.socket), "the socket is back", 30)
    assert world.connect().call("status")


def test_a_daemon_that_gives_way_leaves_the_socket_of_the_next_alone(world):
    """The folder was cleaned and another daemon started in it: that daemon stays reachable."""
    world.start().close()
    first = world.process
    shutil.rmtree(os.path.dirname(world.socket))
    world.start().close()
    inode = os.stat(world.socket).st_ino

    first.wait(60)

    assert inode == os.stat(world.socket).st_ino
    assert world.process.pid == world.connect().call("status")["daemon"]["pid"]


def test_the_history_says_that_a_daemon_was_cut_short(world):
    """After a kill the history says that entries are missing; after a clean stop it does not."""

    def said() -> str:
        return world.connect().call("history", kinds=["daemon"])["entries"][0]["what"]

    world.start().close()
    assert "started" == said()
    pid = world.process.pid
    world.kill()
    world.start().close()
    assert f"started; the daemon before (pid {pid}) ended without a clean stop" == said()
    world.end()
    world.start().close()
    assert "started" == said()


def test_a_reload_takes_over_the_new_settings(world):
    """A request and SIGHUP both work; `config` shows the value and its source."""
    client = world.start()

    def value(key):
        found = next(s for s in client.call("config")["settings"] if s["key"] == key)
        return found["value"], found["source"]

    assert 120.0 == value("stages.warn_s")[0]
    world.config.write_text("[stages]\nwarn_s = '5m'\n")
    assert {} == client.call("reload")
    assert (300.0, str(world.config)) == value("stages.warn_s")
    world.config.write_text("[stages]\nwarn_s = 77\n")
    world.process.send_signal(signal.SIGHUP)
    world.until(lambda: value("stages.warn_s")[0] == 77.0, "the signal is heeded")


def test_a_daemon_starts_with_keys_of_an_earlier_version_and_shows_their_new_names(world):
    """A configuration from before an upgrade must not prevent the start."""
    world.config.write_text("[stages]\nhold_s = 1\n")
    client = world.start()

    settings = {s["key"]: s["value"] for s in client.call("config")["settings"]}
    assert 1.0 == settings["stages.pause_s"]
    assert (
        f"hold_s = 1 is now pause_s = 1 ({world.config}:2)" in world.problems()["config.old_keys"]
    )
    world.config.write_text("[stages]\npause_s = 1\n")
    client.call("reload")
    assert "config.old_keys" not in world.problems()


def test_a_bad_reload_keeps_what_was(world):
    """
    The client gets the error, the status shows it until it is fixed, and nothing else changes.
    """
    world.config.write_text("[stages]\nwarn_s = 50\n")
    client = world.start()
    world.config.write_text("[stages]\nwarn = 60\n")

    with pytest.raises(RequestError, match="Did you mean warn_s"):
        client.call("reload")

    settings = {s["key"]: s["value"] for s in client.call("config")["settings"]}
    assert 50.0 == settings["stages.warn_s"]
    assert "config" in world.problems()
    world.config.write_text("[stages]\nwarn_s = 60\n")
    client.call("reload")
    assert "config" not in world.problems()


def test_systemd_hears_that_it_is_ready_alive_and_ending(world, tmp_path):
    """It receives READY=1, then WATCHDOG=1 within half the limit, then STOPPING=1."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(20)

    world.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")

    heard = [manager.recv(100) for _ in range(3)]
    assert b"READY=1" == heard[0]
    assert {b"WATCHDOG=1"} == set(heard[1:])
    world.end()
    manager.setblocking(False)
    while (last := manager.recv(100)) == b"WATCHDOG=1":
        pass
    assert b"STOPPING=1" == last
    manager.close()


def test_lines_for_the_journal_carry_their_urgency(world):
    """If standard error is the systemd journal, the priority comes first, without a time."""
    with open(world.folder / "log", "ab") as log:
        found = os.fstat(log.fileno())
    world.start(JOURNAL_STREAM=f"{found.st_dev}:{found.st_ino}")

    assert world.log().startswith("<6>watchdog ")


def test_a_reader_of_the_log_who_does_not_read_stops_nothing(world):
    """Standard error is a full pipe: the daemon keeps running and answers."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    process = subprocess.Popen(
        [sys.executable, "-m", "watchdog_app", "run", "--verbose"],
        env=world.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=write,
    )
    world.process = process
    os.close(write)

    world.until(lambda: os.path.exists(world.socket), "it listens")

    assert world.connect().call("status")
    os.close(read)
    assert world.connect().call("status")


def test_a_status_goes_to_subscribers_about_once_a_second(world):
    """Two in a row are about a second apart, and both are complete."""
    world.start()
    with world.connect("tray") as client:
        client.call("subscribe", topics=["status"])
        notes = client.notifications(10)
        first, second = next(notes), next(notes)

    assert ["status", "status"] == [first["method"], second["method"]]
    apart = second["params"]["time_unix_s"] - first["params"]["time_unix_s"]
    assert 0.5 < apart < 5


def test_whoever_subscribes_to_a_daemon_at_rest_is_told_at_once(world):
    """It also gets new readings from then on: a subscriber ends the rest."""
    asking = world.start()
    end = time.monotonic() + 30  # on a busy machine it may never rest
    while asking.call("status")["daemon"]["interval_s"] <= 1.0 and time.monotonic() < end:
        time.sleep(4)
    with world.connect("tray") as client:
        before = client.call("status")["daemon"]["samples"]
        client.call("subscribe", topics=["status"])
        notes = client.notifications(5)
        ticks = [next(notes)["params"]["daemon"]["samples"] for _ in range(3)]

    assert ticks[0] <= before + 2
    assert ticks[0] < ticks[1] < ticks[2]


def test_the_own_cost_is_shown(world):
    """The memory is within the expected range, and sampling continues."""
    client = world.start()
    before = client.call("status")["daemon"]

    time.sleep(2.5)

    after = client.call("status")["daemon"]
    assert 5_000_000 < after["rss_bytes"] < 40_000_000
    assert before["samples"] < after["samples"]
    assert after["uptime_s"] > 2
