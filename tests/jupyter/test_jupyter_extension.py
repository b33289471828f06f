"""The server extension: on a real server with a real daemon, and without an answer of one."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from harness import state_letter
from support.statuses import HOSTILE_NAMES

import watchdog_app.jupyter as extension
from watchdog_app.base.errors import ProtocolError, RequestError
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Contributor, Guard, Incident, Status, Task
from watchdog_app.jupyter import handlers, view


def ask(
    desk: Desk, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, str]:
    """Send a request without the token; return status, answer and cookies."""
    connection = http.client.HTTPConnection("127.0.0.1", desk.server.about["port"], timeout=90)
    text = None if body is None else json.dumps(body)
    connection.request(method, f"/{path}", text, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    found = answer.headers.get_all("Set-Cookie") or []
    cookies = "; ".join(one.split(";")[0] for one in found)
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(data) if is_json else None, cookies


def act(desk: Desk, kernel: str, action: str) -> tuple[int, Any]:
    token = {"Authorization": f"token {desk.server.token}"}
    body = {"kernel": kernel, "action": action}
    return ask(desk, "POST", "watchdog/action", body, token)[:2]


def shown(desk: Desk, kernel: str) -> dict[str, Any] | None:
    """What the browser gets about a kernel."""
    return desk.server.rest("GET", "watchdog/state")["kernels"].get(kernel)


@pytest.mark.parametrize("path", ["state", "explain?kernel=x", "death?kernel=x&within_s=9"])
def test_without_the_token_nothing_is_answered(desk: Desk, path: str):
    assert 403 == ask(desk, "GET", f"watchdog/{path}")[0]


def test_an_action_needs_the_token_and_from_a_browser_the_xsrf_cookie(desk: Desk):
    body = {"kernel": "x", "action": "pause"}
    assert 403 == ask(desk, "POST", "watchdog/action", body)[0]
    cookies = ask(desk, "GET", f"lab?token={desk.server.token}")[2]
    cookies += "; " + ask(desk, "GET", "login", headers={"Cookie": cookies})[2]
    xsrf = next(one[6:] for one in cookies.split("; ") if one.startswith("_xsrf="))

    foreign = ask(desk, "POST", "watchdog/action", body, {"Cookie": cookies})
    own = ask(desk, "POST", "watchdog/action", body, {"Cookie": cookies, "X-XSRFToken": xsrf})

    assert 403 == foreign[0]
    assert 404 == own[0], "it is accepted, but there is no such kernel"


def test_a_kernel_is_shown_paused_and_resumed(desk: Desk):
    kernel = desk.server.open("shown.ipynb")
    pid = kernel.pid()
    found = desk.until(lambda: shown(desk, kernel.id), "it is shown")
    assert "shown.ipynb" == found["name"]
    assert not found["danger"]

    assert (200, {"text": ""}) == act(desk, kernel.id, "pause")

    assert "T" == state_letter(pid)
    found = desk.until(lambda: shown(desk, kernel.id)["danger"] and shown(desk, kernel.id), "")
    assert found["title"].startswith("Paused. Restart or Shutdown would kill it")
    assert "stopped" in found["no_save"]
    assert ["resume"] == found["actions"]
    told = desk.server.rest("GET", f"watchdog/explain?kernel={kernel.id}")["text"]
    assert "shown.ipynb" in told
    assert (200, {"text": ""}) == act(desk, kernel.id, "resume")
    assert "T" != state_letter(pid)


def test_what_the_daemon_refuses_is_told(desk: Desk):
    kernel = desk.server.open("refused.ipynb")
    kernel.pid()
    desk.until(lambda: shown(desk, kernel.id), "it is shown")

    assert "refused.ipynb: not asked" in act(desk, kernel.id, "save")[1]["text"]
    status, answer = act(desk, kernel.id, "resume")
    assert (503, True) == (status, "is not paused" in answer["message"])
    assert 400 == act(desk, kernel.id, "stop")[0]
    token = {"Authorization": f"token {desk.server.token}"}
    for seconds in ("nan", "inf", "-1", "x"):
        path = f"watchdog/death?kernel={kernel.id}&within_s={seconds}"
        assert 400 == ask(desk, "GET", path, headers=token)[0]


def test_a_kernel_of_another_server_is_neither_shown_nor_touched(desk: Desk, tmp_path: Path):
    other = str(uuid.uuid4())
    argv = ["-m", "ipykernel_launcher", "-f", str(tmp_path / f"kernel-{other}.json")]
    process = subprocess.Popen([sys.executable, *argv], cwd=tmp_path)
    try:
        desk.until(lambda: (desk.task(process.pid) or {}).get("kernel_id") == other, "it is seen")

        assert shown(desk, other) is None
        assert {404} == {act(desk, other, key)[0] for key in view.OFFERED}
        token = {"Authorization": f"token {desk.server.token}"}
        assert 404 == ask(desk, "GET", f"watchdog/explain?kernel={other}", headers=token)[0]
        assert "T" != state_letter(process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_death_is_told_with_its_cause(desk: Desk):
    kernel = desk.server.open("killed.ipynb")
    pid = kernel.pid()
    desk.until(lambda: shown(desk, kernel.id), "it is shown")
    address = f"watchdog/death?kernel={kernel.id}&within_s="
    assert desk.server.rest("GET", f"{address}60")["death"] is None

    os.kill(pid, signal.SIGKILL)

    death = desk.until(lambda: desk.server.rest("GET", f"{address}600")["death"], "it is known")
    assert f"killed.ipynb (notebook, pid {pid}) died" in death["cause"]
    assert "Why: Killed by SIGKILL" in death["cause"]
    assert ("Nothing was saved.", False) == (death["saved"], death["can_resume"])
    assert desk.server.rest("GET", f"{address}0")["death"] is None


def test_a_late_answer_is_no_answer_and_does_not_say_that_no_daemon_runs(desk: Desk):
    token = {"Authorization": f"token {desk.server.token}"}
    daemon = desk.world.client.daemon_pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        status, answer, _ = ask(desk, "GET", "watchdog/state", headers=token)
    finally:
        os.kill(daemon, signal.SIGCONT)

    assert (503, True) == (status, "did not answer" in answer["message"])
    assert desk.server.rest("GET", "watchdog/state")["daemon"]


def test_a_daemon_that_does_not_answer_stalls_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The loop of the server goes on; so many requests wait, and no more."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(handlers, "_ANSWER_S", 0.5)
    monkeypatch.setattr(handlers, "_MOST_WAITING", 2)
    monkeypatch.setattr(handlers, "_SAVE_S", 0.0)
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "daemon.sock"))
    silent.listen(8)

    async def trial() -> tuple[int, list[object]]:
        shared = handlers._Shared()
        asked = (shared.status(), shared.status(), shared.save(7), shared.save(7))
        first = [asyncio.create_task(each) for each in asked]
        await asyncio.sleep(0.05)
        jobs = [*first, shared.ask("config"), shared.ask("config")]
        waiting = asyncio.gather(*jobs, return_exceptions=True)
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns, await waiting

    turns, found = asyncio.run(trial())
    silent.close()

    assert turns > 5
    assert [*[ProtocolError] * 5, RequestError] == list(map(type, found))
    assert "Too many" in str(found[5])


def test_an_answer_that_is_no_object_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers, "request", lambda method, **_: [1])

    with pytest.raises(ProtocolError, match="not an object"):
        asyncio.run(handlers._Shared().ask("explain"))


def test_without_a_daemon_the_state_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(Exception, match="Start it with: watchdog start") as caught:
        asyncio.run(handlers._Shared().ask("status"))

    found = view.no_daemon(str(caught.value))

    assert (False, "unknown", {}) == (found["daemon"], found["level"], found["kernels"])
    assert "watchdog start" in found["headline"]


def test_without_jupyter_server_a_warning_is_all(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setitem(sys.modules, "watchdog_app.jupyter.handlers", None)
    monkeypatch.delattr(extension, "handlers")
    server = type("Server", (), {"log": logging.getLogger("server")})()

    extension._load_jupyter_server_extension(server)

    assert "JupyterLab shows nothing" in caplog.text


def test_another_users_kernel_is_not_ours_whatever_it_calls_itself():
    """A daemon of root sees the processes of all users."""
    theirs = Task(pid=1, kernel_id="k", user="eve")
    mine = Task(pid=2, kernel_id="k", user="ada")

    assert mine is view.own_task(Status(tasks=(theirs, mine)), "k", "ada")
    assert view.own_task(Status(tasks=(theirs,)), "k", "ada") is None


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_has_no_control_characters(name: str):
    task = Task(pid=1, kernel_id="k", name=name, reason=name)
    found = view.state(Status(tasks=(task,), headline=name), ["k"], None, 0.0)

    texts = [found["headline"], found["kernels"]["k"]["name"], found["kernels"]["k"]["reason"]]

    assert all(each.isprintable() for each in texts)


def test_a_kernel_that_waits_for_a_decision_is_in_danger():
    guard = Guard(stopped=True)
    stopped = Task(pid=1, kernel_id="k", state="paused", reason="why", guard=guard)
    warned = Task(pid=2, kernel_id="l", level=Level.WARNING, reason="grows")
    watched = Task(pid=3, kernel_id="m", level=Level.WATCH)
    incident = Incident(id="i", contributors=(Contributor(pid=3),))
    status = Status(tasks=(stopped, warned, watched), incidents=(incident,))

    found = view.state(status, ["k", "l", "m"], None, 0.0)["kernels"]

    assert [True, True, False] == [found[kernel]["danger"] for kernel in "klm"]
    assert [False, False, True] == [found[kernel]["open"] for kernel in "klm"]
    assert found["k"]["title"].startswith("Stopped at its limit. ")
    assert "watchdog limit 1 SIZE" in found["k"]["reason"]
    assert found["k"]["reason"].endswith("; why")
    assert ["more_memory"] == found["k"]["actions"]
    assert "no agent" in found["l"]["no_save"]


def test_kernels_that_ended_long_ago_are_forgotten():
    shared = handlers._Shared()
    shared.kernels = dict.fromkeys(map(str, range(5000)))
    running = type("Manager", (), {"list_kernel_ids": lambda self: ["now"]})()
    handler = type("", (), {"settings": {"watchdog": shared}, "kernel_manager": running})()

    handlers._Handler.shared.fget(handler)

    assert len(shared.kernels) <= 1000
    assert "now" in shared.kernels
