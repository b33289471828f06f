"""Notices reach a tray, skip a channel that does not answer, and reach the user's command."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from test_daemon_agents import begin

from watchdog_app.cli.history import describe

RULE = """
[actions]
notify = false
checkpoint = false
pause = false
[[rule]]
task = "train.py"
notify = true
"""


@pytest.fixture
def death(world):
    """Kill a training with an agent: a notice that nothing else influences."""

    def happen() -> int:
        pid = begin(world, "own-save")
        world.until(lambda: world.task(pid)["agent"]["rescue"], "the rescue is known")
        os.kill(pid, signal.SIGKILL)
        return pid

    return happen


@pytest.fixture
def start(world):
    """Start a daemon with these [notify] settings, and a client that subscribes to notices."""

    def begin(notify: str = "", role: str = "tray"):
        world.config.write_text(f"{RULE}[notify]\ndesktop = false\n{notify}")
        client = world.start()
        hearing = world.connect(role)
        hearing.call("subscribe", topics=["notifications"])
        return client, hearing

    return begin


def outcome(world, client) -> dict:
    """The outcome of the notice."""

    def found():
        entries = client.call("history", kinds=["outcome"])["entries"]
        return [e for e in entries if e["decision_kind"] == "notify"]

    return world.until(found, "the notice has an outcome")[0]


def test_a_companion_that_subscribes_gets_the_notice(world, start, death):
    """Title, body, task and buttons; its answer is the outcome."""
    client, tray = start()

    pid = death()

    note = next(tray.notifications(20))
    assert "notification" == note["method"]
    assert pid == note["params"]["task"]
    assert "train.py" in note["params"]["title"]
    assert "42" in note["params"]["body"]
    assert {} == tray.call(
        "notification.shown", id=note["params"]["id"], delivered=True, detail="seen"
    )
    found = outcome(world, client)
    assert ("done", "seen") == (found["status"], found["detail"])
    assert 1 == client.call("status")["daemon"]["notifications"]["shown"]


@pytest.mark.parametrize("answer", ["silence", "failure"])
def test_a_companion_that_cannot_show_it_is_not_relied_on(world, start, death, answer):
    """The user's command runs instead, with the notice on its standard input."""
    said = world.folder / "said"
    client, tray = start(f"command = {command(world, said)}\n")

    pid = death()

    note = next(tray.notifications(20))
    if answer == "failure":
        tray.call("notification.shown", id=note["params"]["id"], delivered=False, detail="no bus")
    found = outcome(world, client)
    assert ("done", "shown by command") == (found["status"], found["detail"])
    assert pid == json.loads(said.read_text())["task"]


@pytest.mark.parametrize("desktop", ["nothing", "command"])
def test_lines_in_a_terminal_count_where_nothing_else_shows_it(world, start, death, desktop):
    """The other channels still run, because the user may not see the terminal."""
    said = world.folder / "said"
    more = f"command = {command(world, said)}\n" if desktop == "command" else ""
    client, follower = start(more, role="cli")
    assert not client.call("status")["daemon"]["notifications"]["tray_connected"]

    death()

    note = next(follower.notifications(20))
    follower.notify("notification.shown", id=note["params"]["id"], delivered=True, detail="written")
    found = outcome(world, client)
    assert "done" == found["status"]
    assert found["detail"].startswith("written")
    assert ("shown by command" in found["detail"]) is (desktop == "command")


@pytest.mark.parametrize(("terminal", "status"), [("false", "undelivered"), ("true", "done")])
def test_the_outcome_says_whether_anybody_was_shown_it(world, death, terminal, status):
    """The terminal alone prints to standard error; without a channel the notice is undelivered."""
    world.config.write_text(f"{RULE}[notify]\ndesktop = false\nterminal = {terminal}\n")
    client = world.start()

    death()

    found = outcome(world, client)
    assert status == found["status"]
    assert ("[notify]" in found["detail"]) is (status == "undelivered")
    assert ("watchdog: " in world.log()) is (status == "done")
    unseen = "was not shown: Notifications are switched off" in describe(found)
    assert unseen is ("title" in found["evidence"]) is (status == "undelivered")
    undelivered = client.call("status")["daemon"]["notifications"]["undelivered"]
    assert (status == "undelivered") == undelivered


def test_a_command_that_hangs_stalls_nothing(world, death):
    """The daemon samples and answers while the command runs."""
    world.config.write_text(f'{RULE}[notify]\ndesktop = false\ncommand = ["sleep", "600"]\n')
    client = world.start()
    death()
    world.until(lambda: client.call("history", kinds=["exit"])["entries"], "the death is told")

    before = client.call("status")["daemon"]["samples"]

    world.until(
        lambda: client.call("status")["daemon"]["samples"] > before + 1, "it still looks", 5
    )
    assert [] == client.call("history", kinds=["outcome"])["entries"], "the command still runs"


def test_a_command_that_hangs_ends_with_the_daemon(world, death):
    """Nobody else would end it."""
    out = world.folder / "pid"
    command = ["sh", "-c", f"echo $$ > {out}; exec sleep 600"]
    world.config.write_text(f"{RULE}[notify]\ndesktop = false\ncommand = {json.dumps(command)}\n")
    world.start()
    death()
    pid = int(world.until(lambda: out.exists() and out.read_text(), "the command runs"))

    assert 0 == world.end()

    assert world.state_letter(pid) in ("", "Z")


def test_no_notice_where_the_rules_forbid_it(world, death):
    """`notify = false`: the death is in the journal without a notice."""
    world.config.write_text(RULE.replace("notify = true", "notify = false"))
    client = world.start()

    death()

    world.until(lambda: client.call("history", kinds=["exit"])["entries"], "it is written down")
    assert [] == client.call("history", kinds=["decision", "outcome"])["entries"]


def command(world, said) -> str:
    """A command that stores its standard input."""
    path = world.folder / "keep.py"
    path.write_text(
        f"import os, sys\ntext = sys.stdin.read()\nopen({str(said)!r} + '.new', 'w').write(text)\n"
        f"os.rename({str(said)!r} + '.new', {str(said)!r})\n"
    )
    return json.dumps([sys.executable, str(path)])
