"""`watchdog watch`, `protect` and `snooze`: their requests and their output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.waiting import until

NOTICE = {
    "id": "19a-1",
    "incident": "19a-0",
    "topic": "warning",
    "stage": "warn",
    "urgency": "normal",
    "title": "RAM full in about 4 min: train.ipynb",
    "body": "RAM: 6.00 GiB of 7.00 GiB.\nIf it continues, it dies.",
    "task": 4242,
    "unix_s": 1.7e9,
    "actions": [
        {"key": "pause", "label": "Pause", "command": "watchdog pause train.ipynb"},
        {"key": "show", "label": "Show", "command": "watchdog top"},
    ],
}


@pytest.fixture
def follow(daemon):
    """Start `watchdog watch` and wait until it has subscribed."""
    daemon.answers["subscribe"] = {}
    started = []

    def begin(*words: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "watch", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        started.append(process)
        until(lambda: daemon.called("subscribe"))
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_notice_becomes_lines_and_is_acknowledged(daemon, follow):
    """The lines have time, title, body and a command. The daemon learns that the user got it."""
    process = follow("--count", "1", TZ="UTC")

    daemon.push("notification", **NOTICE)

    out, _ = process.communicate(timeout=20)
    assert 0 == process.returncode
    assert [
        "2023-11-14 22:13:20  RAM full in about 4 min: train.ipynb",
        "RAM: 6.00 GiB of 7.00 GiB.",
        "If it continues, it dies.",
        "> watchdog pause train.ipynb",
    ] == [line.strip() for line in out.splitlines()]
    assert [{"topics": ["notifications"]}] == daemon.called("subscribe")


def test_what_was_written_is_told_to_the_daemon(daemon, follow):
    """Otherwise the daemon would report a notification over ssh as undelivered."""
    follow()

    daemon.push("notification", **NOTICE)

    until(lambda: daemon.called("notification.shown"))
    (told,) = daemon.called("notification.shown")
    assert ("19a-1", True) == (told["id"], told["delivered"])


def test_names_cannot_command_the_terminal(daemon, follow):
    """Neither can values that a real daemon never sends."""
    process = follow("--count", "3", "--bell")

    daemon.push(
        "notification", **{**NOTICE, "title": "a\x1b[2J\n\u202eb", "body": "x\x07\r\n\x9by"}
    )
    daemon.push("notification", urgency="critical\x1b", title=["?"], actions=7, body=5)
    daemon.push("notification", urgency="critical", title="Paused: a.py", unix_s="soon")

    out, _ = process.communicate(timeout=20)
    assert 0 == process.returncode
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\x9b" not in out
    assert "CRITICAL: Paused: a.py\a" in out
    assert 1 == out.count("\a")


def test_json_is_one_object_a_line_and_remarks_stay_out_of_it(daemon, follow):
    """`jq` and log readers need one object per line."""
    process = follow("--json", "--count", "2")

    daemon.push("notification", **NOTICE)
    daemon.push("status", schema_version=1)
    daemon.push("notification", **{**NOTICE, "id": "19a-2", "urgency": "low"})

    out, err = process.communicate(timeout=20)
    assert ["19a-1", "19a-2"] == [json.loads(line)["id"] for line in out.splitlines()]
    assert "Waiting for notifications" in err


def test_it_goes_on_over_a_restart_of_the_daemon(daemon, follow):
    """The command reports the start and the end of the gap."""
    process = follow("--count", "1")

    daemon.stop()
    daemon.start()
    until(lambda: 2 == len(daemon.called("subscribe")))
    daemon.push("notification", **NOTICE)

    out, err = process.communicate(timeout=20)
    assert "train.ipynb" in out
    assert "watchdog start" in err
    assert "The daemon is back." in err


def test_ctrl_c_ends_it_without_a_word(daemon, follow):
    """The user asked for the end, so the exit code is 0."""
    process = follow()

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=20)
    assert (0, "") == (process.returncode, out)
    assert "Traceback" not in err


# protect and snooze


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (["on"], {"on": True, "for_s": None}, "Protection is on again."),
        (["off"], {"on": False, "for_s": None}, "Protection is off."),
        (["off", "--for", "1h"], {"on": False, "for_s": 3600.0}, "Protection is off until "),
    ],
)
def test_protection_is_switched(daemon, watchdog, words, asked, said):
    """The output explains the effect."""
    daemon.answers["protection.set"] = lambda params: {
        "on": params["on"],
        "until_unix_s": None if params["for_s"] is None else time.time() + params["for_s"],
    }

    done = watchdog("protect", *words)

    assert (0, "") == (done.returncode, done.stderr)
    assert [asked] == daemon.called("protection.set")
    assert done.stdout.startswith(said)
    assert asked["on"] is ("watchdog protect on" not in done.stdout)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"on": True, "until_unix_s": None}, "Protection is on: "),
        ({"on": False, "until_unix_s": None}, "Protection is off."),
        (None, "Protection is on: "),  # an older daemon without this switch
    ],
)
def test_without_a_word_it_says_which(daemon, watchdog, part, said):
    """The command changes nothing."""
    daemon.answers["status"] = {"daemon": {} if part is None else {"protection": part}}

    assert watchdog("protect").stdout.startswith(said)
    assert [] == daemon.called("protection.set")


@pytest.mark.parametrize("words", [["--for", "1h"], ["on", "--for", "1h"], ["maybe"]])
def test_protect_refuses_words_that_make_no_sense(daemon, watchdog, words):
    """The command prints the usage and sends no request."""
    done = watchdog("protect", *words)

    assert 2 == done.returncode
    assert [] == daemon.called("protection.set")


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {"for_s": 900.0}),
        (["--for", "1h"], {"for_s": 3600.0}),
        (["train.ipynb"], {"task": "train.ipynb", "for_s": 900.0}),
        (["19a-0"], {"incident": "19a-0", "for_s": 900.0}),
        (["18b-7", "--end"], {"incident": "18b-7", "for_s": 0.0}),
    ],
)
def test_what_is_snoozed_is_an_incident_or_a_task(daemon, watchdog, words, asked):
    """An incident counts if it is open, or was open at the time of the snooze."""
    daemon.answers["status"] = {
        "incidents": [{"id": "19a-0"}],
        "daemon": {"snoozed": [{"incident": "18b-7"}, {"incident": None}]},
    }
    daemon.answers["snooze"] = lambda params: {
        "incident": params.get("incident"),
        "task": 7 if "task" in params else None,
        "name": "train\x1b.ipynb",
        "until_unix_s": time.time() + params["for_s"] if params["for_s"] else None,
    }

    done = watchdog("snooze", *words)

    assert (0, "") == (done.returncode, done.stderr)
    assert [asked] == daemon.called("snooze")
    assert ("are suppressed until" in done.stdout) is bool(asked["for_s"])
    assert "\x1b" not in done.stdout
