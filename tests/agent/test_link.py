"""The agent's connection to the daemon: the training never waits for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from daemon_stand_in import StandIn
from support.waiting import until

from watchdog_app.agent.contain import STRICT
from watchdog_app.agent.runtime.link import CheckpointRequest, Link
from watchdog_app.rescue.checkpoint.owner import this_process


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "run" / "daemon.sock")


@pytest.fixture
def daemon(path):
    made = StandIn(path)
    yield made
    made.close()


@pytest.fixture
def link(path):
    made = Link("keras", "/rescues", "train.ipynb", socket_path=path)
    yield made
    made.close()


def test_it_greets_and_registers_this_process(daemon, link):
    """The registration has the identity that the daemon checks, and the rescue folder."""
    link.start()
    told = daemon.wait_for("agent.register")

    assert "agent" == daemon.received[0][1]["role"]
    assert (os.getpid(), this_process().start_time) == (told["pid"], told["start_time"])
    assert ("keras", "/rescues", "train.ipynb") == (
        told["framework"],
        told["directory"],
        told["notebook"],
    )
    assert told["rescue"] is None


def test_the_newest_figures_are_sent_and_only_when_they_changed(daemon, link):
    """The agent sends at most once per second, and nothing if no value changed."""
    link.start()
    began = time.monotonic()
    for step in range(2000):
        link.report(training=True, step=step)
        time.sleep(0.001)
    daemon.until(
        lambda: (
            daemon.received
            and daemon.received[-1] == ("agent.report", {"training": True, "step": 1999})
        )
    )
    reports = daemon.methods().count("agent.report")
    assert reports <= time.monotonic() - began + 1

    link.report(training=True, step=1999)
    time.sleep(1.3)
    assert reports == daemon.methods().count("agent.report")


class Index:
    def __index__(self):
        return 7


class Number:
    def __float__(self):
        return 0.5


def test_figures_become_plain_numbers(daemon, link):
    """
    Framework scalars become numbers, other values are omitted, and no value breaks the connection.
    """
    link.report(epoch=Index(), loss=Number(), step=object(), batch=None, training=True)
    link.start()

    expected = {"epoch": 7, "loss": 0.5, "batch": None, "training": True}
    assert expected == daemon.wait_for("agent.report")


def test_a_loss_that_is_no_number_is_unknown(daemon, link):
    """JSON has no NaN; the connection stays open."""
    link.report(loss=float("nan"), step=3)
    link.start()

    assert {"loss": None, "step": 3} == daemon.wait_for("agent.report")


def test_a_request_becomes_an_attribute(daemon, link):
    """The training reads it at its next step boundary."""
    link.start()
    daemon.wait_for("agent.register")
    before = time.monotonic()
    daemon.ask("r7", reason="RAM runs out", deadline_s=30)
    daemon.until(lambda: link.pending_request is not None)

    wanted = link.pending_request
    assert ("r7", "RAM runs out", 30) == (wanted.id, wanted.reason, wanted.deadline_s)
    assert not wanted.expired(before + 29)
    assert wanted.expired(time.monotonic() + 31)


def test_a_request_that_comes_with_the_first_answer_is_not_missed(path, link):
    """Memory was already running out when the training connected."""
    daemon = StandIn(path, hasty=True)
    link.start()

    daemon.until(lambda: link.pending_request is not None)

    assert "at once" == link.pending_request.id
    daemon.close()


@pytest.mark.parametrize(
    "params",
    [None, [], {}, {"request": None}, {"request": True}, {"request": 1.5}, {"request": ["r"]}],
)
def test_nonsense_is_no_request(params):
    """The agent ignores a request that it cannot answer."""
    assert CheckpointRequest.read(params, 0.0) is None


def test_a_request_without_deadline_never_expires():
    """A missing deadline is None."""
    request = CheckpointRequest.read({"request": "r", "deadline_s": "soon"}, 0.0)

    assert not request.expired(1e9)


def test_a_save_is_told_as_it_goes(daemon, link):
    """The messages come in this order, with the protocol's field names."""
    link.start()
    until(lambda: link.connected)
    link.accepted("r1")
    begun = daemon.wait_for("agent.progress")
    link.saved("r1", "/rescues/x", 5, 100, 0.25, reason="memory")
    told = daemon.wait_for("agent.saved")
    link.failed("r2", "disk full", "free some")

    assert {"request": "r1"} == begun
    assert "r1" == told["request"]
    assert ("/rescues/x", 5, 100, 0.25, "memory") == tuple(
        told["rescue"][key] for key in ("path", "step", "bytes", "seconds", "reason")
    )
    assert {"request": "r2", "error": "disk full", "remedy": "free some"} == (
        daemon.wait_for("agent.failed")
    )


def test_without_a_daemon_nothing_happens(link, capsys):
    """Every method is a no-op; closing takes no time; nothing is printed."""
    link.start()
    link.report(step=1)
    for _ in range(1000):
        link.failed("r", "e", None)
    link.saved("r", "/p", 1, 2, 3.0)
    began = time.monotonic()
    link.close()

    assert time.monotonic() - began < 0.5
    assert link.pending_request is None
    assert ("", "") == capsys.readouterr()


def test_a_daemon_that_comes_later_is_found_and_told_what_still_matters(path, link):
    """It gets the rescue saved meanwhile, not the progress of a past save."""
    link.start()
    link.report(step=4)
    link.accepted("old")
    link.saved("old", "/rescues/x", 5, 100, 0.25)
    daemon = StandIn(path)

    told = daemon.wait_for("agent.saved")

    assert "/rescues/x" == told["rescue"]["path"]
    assert "agent.progress" not in daemon.methods()
    assert {"step": 4} == daemon.wait_for("agent.report")
    daemon.close()


def test_after_a_break_it_comes_back_and_names_the_last_rescue(daemon, link):
    """A restarted daemon learns what it missed."""
    link.start()
    link.report(step=4)
    daemon.wait_for("agent.report")
    link.saved(None, "/rescues/x", 5, 100, 0.25)
    daemon.wait_for("agent.saved")
    daemon.drop_all()

    again = daemon.wait_for("agent.register", 2)

    assert "/rescues/x" == again["rescue"]["path"]
    assert abs(time.time() - again["rescue"]["saved_unix_s"]) < 60
    assert {"step": 4} == daemon.wait_for("agent.report", 2)


def test_good_bye_is_said_before_the_line_ends(daemon, link):
    """The daemon must not take the end of the connection for a death."""
    link.start()
    daemon.wait_for("agent.register")
    link.close()

    daemon.until(lambda: daemon.ended == 1)
    assert "agent.bye" == daemon.received[-1][0]


def test_it_can_be_started_again(daemon, link):
    """A notebook trains many times."""
    for count in (1, 2, 3):
        link.start()
        link.start()
        daemon.wait_for("agent.register", count)
        link.close()
        daemon.wait_for("agent.bye", count)

    assert 3 == len(daemon.connections)


def test_a_line_that_is_given_up_ends(daemon, path):
    """A training that failed in a notebook cell must not leave a thread behind."""
    link = Link("keras", "/rescues", socket_path=path)
    link.start()
    daemon.wait_for("agent.register")
    del link

    daemon.until(lambda: daemon.ended == 1)
    assert 1 == len(daemon.connections), "it has not come back"


def test_a_daemon_that_hangs_holds_nobody_up(path, link):
    """The daemon accepts the connection and never answers."""
    daemon = StandIn(path, mute=True)
    link.start()
    daemon.wait_for("hello")
    began = time.monotonic()
    link.report(step=1)
    link.saved("r", "/p", 1, 2, 3.0)
    link.close()

    assert time.monotonic() - began < 0.5
    daemon.close()


def test_a_refusal_is_told_once(path, link, capsys):
    """The refusal repeats for hours, and the user needs one message."""
    daemon = StandIn(path, refuses=True)
    link.start()
    daemon.wait_for("agent.register", 3)
    link.close()
    daemon.close()

    assert "watchdog: the daemon does not take this training: not today\n" == (
        capsys.readouterr().err
    )


def test_nonsense_from_the_daemon_is_survived(daemon, link, capsys):
    """Invalid bytes cause a new connection; unknown messages are ignored."""
    link.start()
    daemon.wait_for("agent.register")
    daemon.say({"jsonrpc": "2.0", "method": "agent.dance", "params": {"x": 1}})
    daemon.connections[-1].sendall(b"\xff\xfe not json\n")
    daemon.wait_for("agent.register", 2)
    daemon.ask("r1")

    daemon.until(lambda: link.pending_request is not None)
    assert ("", "") == capsys.readouterr()


def test_more_open_files_than_select_takes_are_no_obstacle(daemon, link):
    """A training may have a thousand open files."""
    held = [socket.socket() for _ in range(1100)]
    try:
        link.start()
        daemon.wait_for("agent.register")
        link.saved(None, "/p", 1, 2, 3.0)
        daemon.wait_for("agent.saved")
        assert ["/p"] == [
            fields["rescue"]["path"]
            for method, fields in daemon.received
            if method == "agent.saved"
        ]
    finally:
        for each in held:
            each.close()


def run(program, *arguments, **options):
    env = {key: value for key, value in os.environ.items() if key != STRICT}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        **options,
    )


EXITS = """
import sys
from watchdog_app.agent.runtime.link import Link
link = Link("keras", "/rescues", socket_path=sys.argv[1])
link.start()
import time
end = time.monotonic() + 20
while not link.connected and sys.argv[2] == "wait" and time.monotonic() < end:
    time.sleep(0.01)
link.report(step=1)
{}
"""


@pytest.mark.parametrize("wait", ["wait", "at-once"])
@pytest.mark.parametrize(
    ("ending", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1)]
)
def test_an_interpreter_that_ends_says_good_bye_and_does_not_hang(
    daemon, path, ending, status, wait
):
    """This holds for every kind of exit, and stderr has no message of the agent."""
    program = run(EXITS.format(ending), path, wait)
    _, err = program.communicate(timeout=20)

    assert status == program.returncode
    assert ("ValueError: mine" in err) is (status == 1)
    assert "watchdog" not in err.replace("watchdog_app", "")
    if wait == "wait":
        bye = daemon.wait_for("agent.bye")
        assert {"finished": False, "failed": "raise" in ending} == bye


FORKS = """
import os, sys, time
from watchdog_app.agent.runtime.link import Link
link = Link("keras", "/rescues", socket_path=sys.argv[1])
link.start()
while not link.connected:
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    assert not link.connected and link.pending_request is None
    link.saved(None, "/of/the/child", 1, 2, 3.0)
    link.close()
    print(os.getpid(), flush=True)
    if sys.argv[2] == "trains":
        link.start()
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_the_death_of_a_parent_is_seen_although_its_child_lives(daemon, path):
    """A data loader's child must neither hold nor use the parent's connection."""
    parent = run(FORKS, path, "sleeps")
    child = int(parent.stdout.readline())
    daemon.wait_for("agent.register")
    try:
        os.kill(parent.pid, signal.SIGKILL)
        daemon.until(lambda: daemon.ended == 1)
        os.kill(child, 0)  # the child still exists
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()

    assert {"agent.bye", "agent.saved"}.isdisjoint(daemon.methods())


def test_a_training_in_a_forked_child_has_a_line_of_its_own(daemon, path):
    """The child registers with its own PID."""
    parent = run(FORKS, path, "trains")
    child = int(parent.stdout.readline())
    try:
        assert parent.pid == daemon.wait_for("agent.register")["pid"]
        assert child == daemon.wait_for("agent.register", 2)["pid"]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()


@pytest.mark.parametrize(("ago_s", "told_of"), [(0.0, True), (60.0, False)])
def test_growth_that_began_before_the_daemon_came_is_not_announced_to_it(
    daemon, link, ago_s, told_of
):
    """The daemon would take the memory already in use for the start of the growth."""
    announced = {"expected_bytes": 7, "expected_for": "a buffer", "expected_number": 1}
    link.report(training=True, **announced, expected_mono_s=time.monotonic() - ago_s)

    link.start()
    report = daemon.wait_for("agent.report")

    assert {"training": True, **(announced if told_of else {})} == report
