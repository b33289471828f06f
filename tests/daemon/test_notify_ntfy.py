"""Notifications reach a phone by ntfy; answers come back once, for what was offered."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hostile import NAMES
from support.ntfy import TOPIC, Ntfy, Server, answering, send
from support.waiting import until

from watchdog_app.base.errors import ConfigError, RequestError
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.settings import NotifySettings
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.notify import Channel, Delivery, Offer, ntfy, ntfy_helper, open_channels
from watchdog_app.daemon.notify.dispatcher import Until
from watchdog_app.daemon.notify.ntfy import NtfyChannel

TOKEN = "tk_not_for_others"
GOOD = answering(200, '{"event": "message", "id": "abcdefgh1234"}')
OPEN_LINE = '{"event": "open", "id": "abcdefgh1234"}\n'
ANSWER_LINE = '{"event": "message", "id": "abcdefgh1235", "message": "pressed"}\n'
OTHER_LINE = '{"event": "message", "id": "abcdefgh1236", "message": "other"}\n'
OPEN = answering(200, OPEN_LINE)
LEAKS = """
import time
held = []
while True:
    held.append(bytearray(b"x" * (2 << 20)))
    time.sleep(0.1)
"""


def notice(**changes) -> Notification:
    values = {
        "id": "n1",
        "incident": "i1",
        "stage": "warn",
        "urgency": "normal",
        "topic": "warning",
        "title": "RAM full in about 4 min: train.ipynb",
        "body": "If it continues, it dies.",
        "task": 4242,
        "start_time": 99,
        "unix_s": 1.7e9,
        "actions": tuple(
            ACTIONS[each].button(4242) for each in ("save", "pause", "snooze", "resume", "show")
        ),
    }
    return Notification(**{**values, **changes})


def config(url: str, token: str) -> str:
    return (
        f"[actions]\npause = false\ncheckpoint = false\n[notify]\ndesktop = false\n[notify.ntfy]\n"
        f'url = "{url}"\ntopic = "{TOPIC}"\ntoken = "{token}"\nanswers = true\n'
    )


@pytest.fixture
def server(tmp_path):
    made = Ntfy(tmp_path / "ntfy")
    yield made
    made.stop()


@pytest.fixture
def http():
    """Start an HTTP server that gives this answer."""
    made = []

    def start(answer) -> Server:
        made.append(Server(answer))
        return made[-1]

    yield start
    for each in made:
        each.close()


def own_files(folder: Path) -> bytes:
    """What the daemon has written: log, journal and other files, without its configuration."""
    files = [each for each in folder.rglob("*") if each.is_file() and "ntfy" not in each.parts]
    return b"".join(each.read_bytes() for each in files if each.name != "config.toml")


def test_a_test_arrives_and_its_answer_comes_back_with_no_secret_shown(world, server):
    world.config.write_text(config(server.url, server.token))
    world.start()
    helper = world.until(lambda: helpers(world.process.pid), "the helper listens")[0]
    assert (
        "ntfi is not turned on. These are: ntfy." in world.command("notify", "test", "ntfi").stderr
    )
    done = world.command("notify", "test", "ntfy", "--json")
    assert (0, [{"name": "ntfy", "delivered": True, "detail": ""}]) == (
        done.returncode,
        json.loads(done.stdout)["channels"],
    )
    message = server.wait_for("Test of watchdog")
    server.press(message, "It has arrived")
    until(lambda: "has reached watchdog" in server.messages()[-1]["message"], "the phone is told")
    world.until(lambda: "answered from the phone" in notes(world), "it is written down")

    server.press(message, "It has arrived")  # replayed
    send(f"{server.url}/{TOPIC}-answers", "not a token")
    world.until(lambda: notes(world).count("was refused") == 2, "both are reported")
    assert 2 == world.log().count("from the phone was refused")

    shown = world.command("config", "--json").stdout + world.command("status", "--json").stdout
    shown += Path(f"/proc/{helper}/cmdline").read_text()
    token = message["actions"][0]["body"]
    for secret in (server.token, token):
        assert secret not in shown
        assert secret.encode() not in own_files(world.folder)
    assert f'"topic": "{TOPIC}"' not in shown
    tasks = json.loads(world.command("status", "--json").stdout)["tasks"]
    assert helper not in {each["pid"] for each in tasks}

    world.kill()
    until(lambda: not os.path.exists(f"/proc/{helper}"), "the helper ends with the daemon")


def notes(world) -> str:
    return world.command("history", "--json").stdout


def helpers(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, children) if b"--listen" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_buttons_pause_and_resume_the_task_that_they_were_offered_for(world, server):
    world.config.write_text(config(server.url, server.token))
    world.start()
    world.until(lambda: helpers(world.process.pid), "the helper listens")
    limited = SimpleNamespace(
        command=lambda argv: ["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", *argv]
    )
    pid = world.script(LEAKS, "leaks.py", group=limited)  # a task of its own
    try:
        message = server.wait_for("Address space used up")
        assert len(message["actions"]) <= 3
        server.press(message, "Pause")
        until(lambda: world.state_letter(pid) == "T", "it is paused")
        paused = server.wait_for("Paused: leaks.py")

        server.press(paused, "Resume")
        until(lambda: world.state_letter(pid) in "RS", "it is resumed")
        server.press(message, "Pause")  # a second time
        world.until(lambda: "from the phone was refused" in world.log(), "that is refused")
        assert world.state_letter(pid) in "RS"
        entries = json.loads(world.command("history", "--json").stdout)["entries"]
        asked = [each for each in entries if "phone" in str(each.get("by"))]
        assert {"pause", "resume"} == {each["decision_kind"] for each in asked}
    finally:
        os.kill(pid, signal.SIGKILL)


def test_hostile_names_arrive_as_text(server):
    channel = NtfyChannel(url=server.url, topic=TOPIC, token=server.token, answers=True)
    assert len(NAMES) >= 30
    for name in NAMES:
        title, body = f"{name} is full", f"{name} grows\nsecond line"
        assert Delivery(True) == channel.send(notice(title=title, body=body))
    messages = server.messages()
    assert len(NAMES) == len(messages)
    for name, message in zip(NAMES, messages, strict=True):
        text = message["title"] + message["message"].replace("\n", "")
        assert text.isprintable(), repr(name)
        assert ["Save now", "Pause", "Snooze 15 min"] == [a["label"] for a in message["actions"]]
        assert {"http"} == {each["action"] for each in message["actions"]}
        assert not {"click", "attachment", "icon"} & message.keys()


def test_a_button_is_good_for_one_time_and_ten_minutes(http, monkeypatch):
    server = http(GOOD)
    channel = NtfyChannel(url=server.url, topic=TOPIC, token=TOKEN, answers=True)
    channel.send(notice())
    first, second, _ = [each["body"] for each in json.loads(server.requests[0][2])["actions"]]
    assert first != second
    offer = channel.redeem(first)
    assert offer is not None
    assert ("save", 4242, 99) == (offer.key, offer.notification.task, offer.notification.start_time)
    assert channel.redeem(first) is None
    assert channel.redeem("0" * 32) is None

    now = time.time()
    monkeypatch.setattr(ntfy.time, "time", lambda: now + 601)
    with pytest.raises(RequestError, match="older than 10 minutes"):
        channel.redeem(second)


def test_without_answers_the_text_names_the_commands(http):
    server = http(GOOD)
    NtfyChannel(url=server.url, topic=TOPIC).send(notice(urgency="critical"))
    path, headers, body = server.requests[0]
    document = json.loads(body)
    assert ("/", TOPIC, [], 5) == (
        path,
        document["topic"],
        document["actions"],
        document["priority"],
    )
    assert "watchdog pause 4242" in document["message"]
    assert "Authorization" not in headers


def test_nothing_is_offered_for_a_task_that_may_have_another_pid_by_now(http):
    server = http(GOOD)
    channel = NtfyChannel(url=server.url, topic=TOPIC, token=TOKEN, answers=True)
    channel.send(notice(start_time=None))
    (action,) = json.loads(server.requests[0][2])["actions"]
    assert "Snooze 15 min" == action["label"]  # of the incident


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            answering(403, '{"error": "forbidden for tk_not_for_others"}'),
            r"403 forbidden for \*\*\*$",
        ),
        (answering(200, "<html>Welcome</html>"), "200 as no ntfy server does"),
        (answering(302, "", Location="http://127.0.0.1:1/"), "302"),
        (answering(200, "[" * 60000), "200 as no ntfy server does"),
    ],
)
def test_a_server_that_is_wrong_is_reported_without_secrets(http, answer, why):
    server = http(answer)
    delivery = NtfyChannel(url=server.url, topic=TOPIC, token=TOKEN).send(notice())
    assert not delivery.delivered
    assert re.search(why, delivery.detail), delivery.detail
    assert 1 == len(server.requests)


def test_a_full_server_is_tried_again(http):
    answers = [answering(507, '{"error": "full"}'), answering(429, "{}"), GOOD]
    server = http(lambda handler: answers.pop(0)(handler))  # noqa: PLW0108
    assert NtfyChannel(url=server.url, topic=TOPIC).send(notice()).delivered
    assert not answers


def raw(*data: bytes):
    """Bytes instead of an answer of HTTP; then the connection is closed."""

    def answer(handler) -> None:
        for each in data:
            handler.wfile.write(each)
        handler.close_connection = True

    return answer


def stalling(handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    handler.wfile.flush()
    time.sleep(60)


BROKEN = {
    "full, for good": (answering(507, '{"error": "no space left"}'), "507 no space left"),
    "too many requests, for good": (answering(429, '{"error": "slow down"}'), "429 slow down"),
    "an error of its own": (answering(500, "<h1>Oops</h1>"), "500 as no ntfy server does"),
    "a closed connection": (raw(), "RemoteDisconnected"),
    "no HTTP": (raw(b"220 mail.example ESMTP\r\n"), "BadStatusLine"),
    "an answer that is cut off": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        "200 as no ntfy server does",
    ),
    "endless headers": (raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200), "more than 100 headers"),
    "an answer that stalls": (stalling, "timed out|did not answer within"),
}


def test_a_server_that_stays_broken_is_reported_in_time(http):
    """All at once: each is tried for some seconds."""
    channels = {
        kind: NtfyChannel(url=http(answer).url, topic=TOPIC, token=TOKEN)
        for kind, (answer, _) in BROKEN.items()
    }
    with ThreadPoolExecutor(len(BROKEN)) as pool:
        sent = {kind: pool.submit(each.send, notice()) for kind, each in channels.items()}
    for kind, (_, why) in BROKEN.items():
        delivery = sent[kind].result()
        assert not delivery.delivered, kind
        assert re.search(why, delivery.detail), (kind, delivery.detail)
        assert TOKEN not in delivery.detail, kind


@pytest.mark.parametrize("kind", [*(each for each in BROKEN if "stalls" not in each), "a wrong id"])
def test_a_listener_of_a_broken_server_shows_it_and_tries_again(http, kind):
    wrong_id = answering(200, '{"event": "message", "id": "a b\\r\\n"}\n')
    server = http(wrong_id if kind == "a wrong id" else BROKEN[kind][0])
    channel = NtfyChannel(url=server.url, topic=TOPIC, token=TOKEN, answers=True)

    def listened() -> int:
        return sum("since=" in path for path, _, _ in server.requests)

    try:
        until(lambda: channel.follow(0.0) or channel.fault, "the fault is shown")
        assert "Answers from the phone do not arrive" in channel.fault.message
        until(lambda: channel.follow(1.1) or listened() > 1, "it is tried again")
    finally:
        channel.close()


def test_a_server_that_is_gone_or_slow_is_reported(http, monkeypatch):
    gone = NtfyChannel(url="http://127.0.0.1:9", topic="t").send(notice())
    assert (False, True) == (gone.delivered, "cannot be reached" in gone.detail)
    monkeypatch.setattr(ntfy, "_DEADLINE_S", 0.5)
    server = http(lambda _: time.sleep(30))
    slow = NtfyChannel(url=server.url, topic=TOPIC).send(notice())
    assert (False, True) == (slow.delivered, "did not answer within 0.5 s" in slow.detail)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"answers": True}, "needs a token and https"),
        ({"answers": True, "token": TOKEN}, "needs a token and https"),
        ({"answers": True, "url": "https://ntfy.example.org"}, "needs a token and https"),
        ({"answers": True, "token": TOKEN, "url": "http://127.0.0.1.example.org"}, "and https"),
        ({"answers": True, "token": TOKEN, "url": "http://127.9.9.999"}, "and https"),
        ({"answers": "yes"}, "answers must be true or false"),
        ({"url": "https://me:hunter2@ntfy.example.org"}, "without a password"),
        ({"url": "ntfy.example.org"}, "url must be"),
        ({"topic": "hunter2/json?x"}, "topic must have"),
        ({"topic": "a" * 57}, "topic must have"),
        ({"token": "hunter2\r\nX-Evil: 1"}, "token no spaces"),
        ({"least": "some"}, "least must be one of low, normal, critical"),
        ({"tokn": "hunter2"}, "unexpected keyword argument 'tokn'"),
    ],
)
def test_a_wrong_table_is_refused_and_not_shown(changes, why):
    table = {"url": "http://ntfy.example.org", "topic": TOPIC, **changes}
    with pytest.raises(ConfigError, match=why) as caught:
        open_channels(NotifySettings(desktop=False, tables={"ntfy": table}))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://ntfy.example.org/", "http://localhost:80", "http://[::1]"]
)
def test_answers_are_accepted_encrypted_or_on_this_machine(url):
    table = {"url": url, "topic": TOPIC, "token": TOKEN, "answers": True, "least": "critical"}
    (channel,) = open_channels(NotifySettings(desktop=False, tables={"ntfy": table}))
    assert "critical" == channel.least


def test_an_answer_that_the_server_sends_twice_is_handed_on_once(http, monkeypatch):
    """ntfy sends a message that arrives with a new listener as stored and as new."""
    server = http(answering(200, OPEN_LINE + 2 * ANSWER_LINE + OTHER_LINE))
    handed = []

    def answer(_request, token, places) -> None:
        handed.append(token)
        places.release()

    monkeypatch.setattr(ntfy_helper, "_answer", answer)
    listened = {"url": server.url, "topic": TOPIC, "token": TOKEN, "since": "1"}
    assert "closed the connection" in ntfy_helper.listen(listened)
    until(lambda: len(handed) >= 2, "both are handed on")
    assert ["other", "pressed"] == sorted(handed)


def test_the_listener_is_started_again_and_its_fault_shown(http, monkeypatch):
    answers = [answering(403, '{"error": "forbidden: tk_not_for_others"}'), OPEN]
    server = http(lambda handler: answers.pop(0)(handler) if answers else time.sleep(60))
    channel = NtfyChannel(url=server.url, topic=TOPIC, token=TOKEN, answers=True)
    try:
        until(lambda: channel.follow(0.0) or channel.fault, "the fault is shown")
        assert "403 forbidden: ***" in channel.fault.message
        channel.follow(0.9)
        assert 1 == len(server.requests)  # it waits a second
        until(lambda: channel.follow(1.1) or len(server.requests) == 2, "it is started again")
        until(
            lambda: channel.follow(1.1) or (channel.fault and "closed" in channel.fault.message),
            "it ends again",
        )
        until(lambda: channel.follow(9.0) or len(server.requests) == 3, "it is started once more")
        path, headers, _ = server.requests[2]
        assert path.startswith(f"/{TOPIC}-answers/json?since=")
        assert f"Bearer {TOKEN}" == headers["Authorization"]
    finally:
        channel.close()


class Buttons(Channel):
    """A channel that has offered these."""

    name = "buttons"

    def __init__(self, offers: dict[str, Offer]) -> None:
        self.offers = offers

    def redeem(self, token: str) -> Offer | None:
        return self.offers.pop(token, None)


@pytest.fixture
def answered(parts, control, monkeypatch):
    """Answer with a token; return the error of the reply, or the request that was carried out."""
    methods = Methods(parts, control)
    alive = ProcessKey(4242, 99)
    monkeypatch.setattr(parts.observer, "task", lambda key: "a task" if key == alive else None)
    done: list = []
    for name in ("task.pause", "snooze"):
        methods.table[name] = lambda params, _: done.append(params.values())

    def answer(token: str):
        connection = SimpleNamespace(greeted=True, role="phone")
        reply = SimpleNamespace(connection=connection, client="the phone", wanted=True)
        reply.error = lambda code, message, *_: done.append(message)
        methods.handle("notification.answer", {"token": token}, reply)
        return done.pop()

    return answer


def offer(key: str = "pause", **changes) -> Offer:
    return Offer(key, notice(name="train.ipynb", **changes), Until(9e9, 9e9))


def test_an_answer_reaches_only_the_process_that_it_was_offered_for(answered, channels, parts):
    offers = {"right": offer(), "other": offer(start_time=98), "quiet": offer("snooze")}
    channels.append(Buttons(offers))
    parts.dispatcher.apply(NotifySettings(desktop=False))
    assert {"task": "4242"} == answered("right")
    assert "train.ipynb has ended." == answered("other")
    assert "i1" == answered("quiet")["incident"]
    assert "no button waits for it." == answered("right")


def test_a_flood_of_foreign_answers_does_not_fill_the_journal(answered, parts):
    for number in range(50):
        answered(str(number))
    parts.journal.close(20)
    journal = parts.journal.open()
    entries = journal.history(limit=100, kinds=("daemon",))
    assert 20 == sum("was refused" in each["what"] for each in entries)
