# ruff: noqa: E501 - tables read best with a row a line
"""Harmful clients of the same user: slow, silent, greedy or many. The daemon keeps sampling."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from watchdog_app.base.errors import RequestError, WatchdogError
from watchdog_app.base.linux.process import start_time
from watchdog_app.client import jsonrpc, requests, transport
from watchdog_app.client.jsonrpc import encode
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.checkpoints import MOST_FOLLOWERS, Checkpoints
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.daemon.poller import Poller
from watchdog_app.daemon.rpc import BURST, MAX_UNANSWERED, RATE_PER_S, Connection, RpcServer

_STATUS = encode(jsonrpc.request(1, "status"))
_LATE_S = 2.0  # a sample is due each second; a machine with two busy cores gets another second


@pytest.fixture
def pair():
    """Return a connection as the server holds it, and its other end."""
    ours, theirs = socket.socketpair()
    yield Connection(ours, transport.Peer(0, 1), 100.0), theirs
    ours.close()
    theirs.close()


def longest_gap_s(client, for_s: float, meanwhile=lambda: None) -> float:
    """Return the longest time between two samples, from the daemon's own count."""
    end = last = time.monotonic()
    end += for_s
    ticks = client.call("status")["daemon"]["samples"]
    longest = 0.0
    while time.monotonic() < end:
        meanwhile()
        now_ticks = client.call("status", reply_timeout_s=30)["daemon"]["samples"]
        now = time.monotonic()
        if now_ticks != ticks:
            longest, ticks, last = max(longest, now - last), now_ticks, now
        time.sleep(0.05)
    return max(longest, time.monotonic() - last)


def silent(world):
    """Connect and send nothing."""
    return [transport.connect(world.socket, 10) for _ in range(100)], lambda: None


def slow(world):
    """Send one byte at a time and never a whole line."""
    found = [transport.connect(world.socket, 10) for _ in range(100)]

    def drip():
        for each in found:
            with contextlib.suppress(OSError):
                each.send(b"{")

    return found, drip


def half_open(world):
    """Close for writing, or disconnect in the middle of a line."""
    found = [transport.connect(world.socket, 10) for _ in range(100)]
    for each in found:
        each.send(b'{"jsonrpc"')
        each.shutdown(socket.SHUT_WR)
    return found, lambda: None


def never_reading(world):
    """Send requests and read no answer."""
    found = [transport.connect(world.socket, 10) for _ in range(60)]
    hello = encode(jsonrpc.request(0, "hello", {"protocol": 2, "role": "cli"}))
    for each in found:
        each.send(hello)
        each.setblocking(False)

    def ask():
        for each in found:
            with contextlib.suppress(OSError):
                each.send(_STATUS * 200)

    return found, ask


def coming_and_going(world):
    """Open as many connections as possible and close each at once."""

    def storm():
        for _ in range(300):
            with contextlib.suppress(OSError):
                transport.connect(world.socket, 10).close()

    return [], storm


def flood(world, data: bytes):
    """Let a hundred clients send the same without end."""
    found = [transport.connect(world.socket, 10) for _ in range(100)]
    for each in found:
        each.setblocking(False)

    def send():
        for each in found:
            with contextlib.suppress(OSError):
                each.send(data)

    return found, send


def tiny_lines(world):
    """Send lines of two bytes, which cost more to hold than to send."""
    return flood(world, b"{}\n" * 20_000)


def blank_lines(world):
    """Send empty lines, which are not even requests."""
    return flood(world, b"\n" * 65536)


@pytest.mark.parametrize(
    "crowd", [silent, slow, half_open, never_reading, coming_and_going, tiny_lines, blank_lines]
)
def test_no_crowd_stalls_the_looks(world, crowd):
    """Sampling keeps its rate, and the daemon still serves other clients."""
    client = world.start()
    before = client.call("status")["daemon"]["rss_bytes"]
    connections, meanwhile = crowd(world)

    gap_s = longest_gap_s(client, 1.5, meanwhile)

    assert gap_s < 1.0 + _LATE_S
    assert client.call("status")["daemon"]["rss_bytes"] - before < 80_000_000
    for each in connections:
        each.close()


def test_who_asks_without_end_is_slowed_and_nobody_else(world, raw):
    """
    The daemon serves a burst at once, limits a sustained client to its rate, and others keep
    theirs.
    """
    world.start()
    greedy, other = raw(), raw()
    stop = threading.Event()
    answered = [0]

    def ask():
        line = encode(jsonrpc.request(1, "subscribe", {"topics": []})) * 50
        with contextlib.suppress(OSError, EOFError):
            while not stop.is_set():
                greedy.send(line)
                for _ in range(50):
                    greedy.read()
                    answered[0] += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    world.until(lambda: answered[0] >= BURST, "the burst is answered", 60)
    time.sleep(0.5)
    before, began = answered[0], time.monotonic()
    slowest = 0.0
    while time.monotonic() - began < 2.0:
        asked = time.monotonic()
        assert "result" in other.ask("status")
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.05)
    took_s = time.monotonic() - began

    rate = (answered[0] - before) / took_s
    stop.set()
    greedy.close()
    thread.join(10)
    assert 0 < rate < 2.0 * RATE_PER_S
    assert slowest < _LATE_S


def test_an_allowance_is_used_up_and_comes_back(pair):
    """It allows a burst, and then as many requests as the elapsed seconds add."""
    connection, _ = pair
    connection.add_lines([b"{}"] * int(BURST + 1))

    for _ in range(int(BURST)):
        assert 0.0 == connection.pause_s(100.0)
        connection.next_line()
    assert pytest.approx(1 / RATE_PER_S) == connection.pause_s(100.0)

    assert 0.0 == connection.pause_s(100.0 + 1.1 / RATE_PER_S)
    connection.next_line()
    assert 0.0 < connection.pause_s(100.0 + 1.1 / RATE_PER_S)


def test_blank_lines_are_used_up_like_requests(pair):
    """The daemon ignores the sender of such a flood for seconds and then serves it again."""
    connection, _ = pair

    connection.add_lines([], 65536)

    assert 1.0 < connection.pause_s(100.0) < 20.0
    assert 0.0 == connection.pause_s(120.0)


def test_what_waits_for_its_turn_counts_as_held(pair):
    """Received lines count with their memory overhead until they are served."""
    connection, _ = pair
    assert 0 == connection.held_bytes

    connection.add_lines([b"{}"] * 1000)
    assert 1000 * 50 < connection.held_bytes

    for _ in range(1000):
        connection.next_line()
    assert 0 == connection.held_bytes


# The server alone: the test runs each turn of its loop


class Desk:
    """A server, its clients, and the received requests with their reply functions."""

    def __init__(self, path: str) -> None:
        self.poller = Poller(lambda error: None)
        self.came: list = []
        self.replies: list = []
        self.pause_s = 0.0
        self.server = RpcServer(self.poller, path, Log(False))
        self.server.open(self)
        self._path = path
        self._opened: list[socket.socket] = []

    def connect(self) -> socket.socket:
        self._opened.append(transport.connect(self._path, 10))
        self.poller.wait(1)
        return self._opened[-1]

    def turn(self) -> None:
        self.poller.wait(0)
        self.server.serve()

    def held(self) -> list[int]:
        """Return the bytes held for each client, in order of connection."""
        return [each.held_bytes for each in self.server._connections.values()]

    def ready(self, connection) -> bool:
        return True

    def connection_ended(self, connection) -> None:
        pass

    def handle(self, method, params, reply) -> None:
        time.sleep(self.pause_s)
        self.came.append(reply.connection)
        if reply.wanted:
            self.replies.append(reply)

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self.server.close()
        self.poller.close()


def test_the_loop_wakes_up_for_who_says_nothing(desk):
    """This holds at rest too, where no other event would wake it for twenty seconds."""
    assert desk.server.next_deadline_mono_s() is None
    desk.connect()
    (silent,) = desk.server._connections.values()

    assert silent.opened_mono_s + 10.0 == desk.server.next_deadline_mono_s()

    silent.opened_mono_s -= 10.0
    desk.turn()
    assert silent.closed
    assert desk.server.next_deadline_mono_s() is None


@pytest.fixture
def desk(tmp_path):
    """A server whose loop the test runs turn by turn."""
    desk = Desk(str(tmp_path / "s"))
    yield desk
    desk.close()


@pytest.mark.parametrize("lacking", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_client_that_cannot_be_taken_wakes_the_loop_once_a_second(desk, monkeypatch, lacking):
    """It waits in the backlog, and is taken when there is room."""

    def refuse() -> None:
        raise OSError(lacking, os.strerror(lacking))

    listener = desk.server._listener
    full = SimpleNamespace(accept=refuse, fileno=listener.fileno)
    monkeypatch.setattr(desk.server, "_listener", full)
    desk.connect()
    assert not desk.poller.wait(0)
    assert desk.server.next_deadline_mono_s() is not None

    monkeypatch.setattr(desk.server, "_listener", listener)
    time.sleep(1.0)
    desk.turn()
    desk.turn()
    assert 1 == len(desk.server._connections)


def test_reading_waits_for_its_turn_as_requests_do(desk):
    """
    After the turn's time is used up the server reads from no client; the next turns read from all.
    """
    desk.pause_s = 0.01  # longer than a turn
    for each in [desk.connect() for _ in range(6)]:
        each.sendall(encode(jsonrpc.notification("x")) * 20)

    desk.poller.wait(0)
    assert 1 == sum(held > 0 for held in desk.held())

    for _ in range(12):
        desk.turn()
    assert 6 == len(set(desk.came))


def test_a_client_waits_for_a_bounded_number_of_answers(desk):
    """The server refuses further requests until one is answered or can no longer be answered."""
    client = desk.connect()

    def asked(count: int) -> int:
        client.sendall(encode(jsonrpc.request(1, "x")) * count)
        for _ in range(40):
            desk.turn()
        return len(desk.came)

    assert MAX_UNANSWERED == asked(10)
    assert 2 == client.recv(4096).count(b"wait for their answers")
    desk.replies.pop().result({})
    assert MAX_UNANSWERED + 1 == asked(5)
    desk.replies.clear()  # the handlers dropped these requests
    assert 2 * MAX_UNANSWERED + 1 == asked(20)


def test_notifications_wait_for_no_answer(desk):
    """An agent may send any number of notifications."""
    desk.connect().sendall(encode(jsonrpc.notification("x")) * 30)

    for _ in range(40):
        desk.turn()

    assert 30 == len(desk.came)


def test_a_client_that_leaves_while_it_waits_for_answers_is_let_go(desk):
    """The server frees its connection and drops its answers."""
    client = desk.connect()
    client.sendall(encode(jsonrpc.request(1, "x")) * 30)
    for _ in range(40):
        desk.turn()

    client.close()
    desk.turn()

    assert [] == desk.held()
    assert not any(reply.wanted for reply in desk.replies)


def test_what_was_said_before_the_end_is_heard(desk):
    """Six clients send and disconnect at once; the server handles every message."""
    desk.pause_s = 0.01
    for each in [desk.connect() for _ in range(6)]:
        each.sendall(encode(jsonrpc.notification("x")) * 8)
        each.close()

    for _ in range(100):
        desk.turn()

    assert 48 == len(desk.came)
    assert [] == desk.held()


# Agents


def register(client, pid: int, start_time: int) -> dict:
    return client.ask("agent.register", pid=pid, start_time=start_time, framework="keras",
                      directory="/tmp/r")  # fmt: skip


def test_an_agent_cannot_speak_for_another_process(world, raw):
    """The kernel's PID counts, and the daemon records nothing about the other process."""
    world.start()
    pid = world.sleeper()
    liar = raw(role="agent")

    assert (
        f"you are {os.getpid()}, not {pid}"
        in register(liar, pid, start_time(pid))["error"]["message"]
    )
    assert (
        "Register first"
        in liar.ask("agent.saved", rescue={"path": "/etc", "step": 1, "bytes": 1})["error"][
            "message"
        ]
    )
    assert world.task(pid)["agent"] is None


def test_an_agent_that_cannot_be_told_from_others_is_refused():
    """
    In a container with its own PID namespace the kernel reports no PID, so the daemon refuses the
    agent.
    """
    agents = Agents(None, OutOfProcessCopies(None, "", lambda: None), lambda _: True)
    hidden = SimpleNamespace(peer=transport.Peer(0, None))
    said = {"pid": 1, "start_time": 1, "framework": "x", "directory": "/"}

    with pytest.raises(RequestError, match="another container"):
        agents.register(hidden, requests.RegisterAgent.read(said))
    assert () == agents.views()


@pytest.mark.parametrize("peer", [None, 8])
def test_a_kernel_that_cannot_be_told_from_others_names_no_notebook(peer):
    """The daemon also refuses a notebook name for another process."""
    methods = Methods(SimpleNamespace(), None)
    said = requests.AgentNotebook.read({"pid": 7, "start_time": 1, "notebook": "/a.ipynb"})
    liar = SimpleNamespace(peer=transport.Peer(0, peer))

    with pytest.raises(RequestError, match="not 7"):
        methods._agent_notebook(said, SimpleNamespace(connection=liar))


class OneAgent:
    """A task with one agent, and the messages to it."""

    def __init__(self) -> None:
        self.sent: list = []
        self.mine = SimpleNamespace(
            key=ProcessKey(1, 1), view=SimpleNamespace(save_s=1.0, step_s=1.0)
        )
        members = [SimpleNamespace(key=self.mine.key)]
        self.task = SimpleNamespace(key=self.mine.key, name="a", members=members)
        agents = SimpleNamespace(
            connected_in=lambda _: [self.mine],
            out_of_process=SimpleNamespace(ask_every_batch=lambda *_: None),
            send=lambda *message: self.sent.append(message),
            keys=lambda: [self.mine.key],
        )
        self.checkpoints = Checkpoints(agents, Log(False))

    def ask(self, id_: str = "r-1", **more):
        (request,) = self.checkpoints.request(self.task, id_, "because", 0.0, **more)
        return request


def test_progress_of_a_request_is_taken_from_whom_it_was_made_to():
    """Another agent of the same user cannot report that a save started."""
    world = OneAgent()
    request = world.ask()

    world.checkpoints.accepted("r-1", SimpleNamespace(key=ProcessKey(2, 1)))
    assert not request.accepted

    world.checkpoints.accepted("r-1", world.mine)
    assert request.accepted


def test_a_save_that_does_not_come_is_waited_for_by_a_bounded_crowd():
    """
    A client may request, disconnect and repeat:

    the daemon bounds the memory for waiting clients.
    """
    world = OneAgent()
    for number in range(MOST_FOLLOWERS):
        assert not world.checkpoints.is_full(world.task)
        world.ask(f"r-{number}", follower=lambda _: None)

    assert world.checkpoints.is_full(world.task)

    world.checkpoints.agent_ended(world.mine.key, "gone")
    assert not world.checkpoints.is_full(world.task)


def test_a_request_for_a_save_names_no_place():
    """The program alone chooses the folder, so no message can redirect a rescue."""
    world = OneAgent()

    world.ask()

    ((_, method, params),) = world.sent
    assert "agent.checkpoint" == method
    assert {"request", "reason", "deadline_s"} == params.keys()


def test_numbers_and_texts_of_any_size_harm_nothing(world, raw):
    """Every method gets unexpected values, answers each, and the daemon survives."""
    client = world.start()
    hostile = [None, -1, 2**70, 1e308, "x" * 5000, "\x00\x1b[2J", [], {}, [[]] * 100, True,
               "'; DROP TABLE entries; --", "%", "_", "../../etc"]  # fmt: skip
    names = ["task", "for_s", "on", "since_unix_s", "limit", "kinds", "topics", "request", "pid",
             "start_time", "threads", "seconds", "minutes", "incident", "wait", "timeout_s"]  # fmt: skip
    methods = ["explain", "history", "series", "task.pause", "task.resume", "task.checkpoint",
               "task.stacks", "task.leaks", "snooze", "protection.set", "subscribe",
               "notification.shown", "agent.register", "agent.report", "agent.saved", "agent.progress",
               "agent.failed", "agent.stacked", "agent.leaked", "config"]  # fmt: skip
    sender = raw()
    for method in methods:
        for value in hostile:
            # A task of None means all tasks: not on a machine that others use.
            params = {name: value for name in names if name != "task" or value is not None}
            if method in ("task.pause", "task.checkpoint", "task.resume"):
                params["task"] = f"no-such-task-{value}"  # a part of a real name would match
            answer = sender.ask(method, **params)
            assert {"result", "error"} & answer.keys(), json.dumps(answer)[:200]
            assert "failed to do this" not in str(answer.get("error")), (method, value, answer)
    with contextlib.suppress(WatchdogError):
        client.call("protection.set", on=True)
    assert client.call("status")["daemon"]["pid"] == world.process.pid
