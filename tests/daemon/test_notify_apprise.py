"""Notifications reach the services of apprise; the daemon never imports it."""

from __future__ import annotations

import json
import sys
import time

import pytest
from support.finished import finished
from support.hostile import NAMES
from support.ntfy import Server, answering

from watchdog_app.core.model.actions import ACTIONS, button_commands
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import apprise, plain_text
from watchdog_app.daemon.notify.apprise import AppriseChannel

NOTICE = Notification(
    id="n1",
    incident="i1",
    topic="warning",
    stage="warn",
    urgency="critical",
    title="RAM full: <b>\x1b[31m.py",
    body="It grows.",
    task=4242,
    actions=(ACTIONS["pause"].button(4242),),
)


@pytest.fixture
def service():
    pytest.importorskip("apprise")
    answers = [answering(200, "{}")]
    made = Server(lambda handler: answers[-1](handler))  # noqa: PLW0108
    made.answers = answers
    yield made
    made.close()


def json_url(service: Server) -> str:
    return service.url.replace("http://", "json://me:hunter2@") + "/hook"


def test_a_service_gets_title_text_and_kind(service):
    delivery = AppriseChannel(urls=[json_url(service)]).send(NOTICE)
    assert delivery.delivered, delivery.detail
    ((path, _, body),) = service.requests
    sent = json.loads(body)
    assert ("/hook", "failure") == (path, sent["type"])
    assert "RAM full: <b>\\x1b[31m.py" == sent["title"]
    assert "It grows.\nwatchdog pause 4242" == sent["message"]


def test_hostile_names_arrive_as_text(service):
    """One helper sends all of them: apprise takes a second to import."""
    notices = [Notification(title=f"{name} is full", body=f"{name} grows") for name in NAMES]
    sent = [plain_text(each, button_commands(NOTICE)) for each in notices]
    texts = [{"title": title, "body": body, "urgency": "low"} for title, body in sent]
    program = "import json, sys\nfrom watchdog_app.daemon.notify.apprise import send_all\n"
    program += "print([send_all(each) for each in json.load(sys.stdin)])"
    asked = json.dumps([{"urls": [json_url(service)], **each} for each in texts])
    done = finished([sys.executable, "-c", program], input=asked)
    assert str([[]] * len(NAMES)) == done.stdout.strip(), done.stderr
    arrived = [json.loads(body) for _, _, body in service.requests]
    assert [each["title"].strip() for each in texts] == [each["title"] for each in arrived]
    for each in arrived:
        assert (each["title"] + each["message"]).replace("\n", "").isprintable()
        assert {"version", "title", "message", "attachments", "type"} == each.keys()


def test_services_that_fail_are_named_without_their_address(service):
    service.answers.append(answering(500, "no hunter2"))
    urls = ["nothing://hunter2", json_url(service)]
    delivery = AppriseChannel(urls=urls).send(NOTICE)
    assert not delivery.delivered
    assert "does not understand number 1" in delivery.detail
    assert "number 2 of urls did not take it" in delivery.detail
    assert "hunter2" not in delivery.detail


def test_a_service_that_hangs_is_given_up(service, monkeypatch):
    monkeypatch.setattr(apprise, "_DEADLINE_S", 3.0)
    service.answers.append(lambda _: time.sleep(60))
    delivery = AppriseChannel(urls=[json_url(service)]).send(NOTICE)
    assert not delivery.delivered
    assert "did not answer within 3 s" in delivery.detail
    assert "hunter2" not in delivery.detail


@pytest.mark.parametrize("urls", [[], "json://x", [1]])
def test_a_wrong_list_is_refused(urls):
    with pytest.raises(ValueError, match="urls must be a list of texts"):
        AppriseChannel(urls=urls)


def test_the_channel_imports_no_apprise_and_no_http():
    program = (
        "import sys, watchdog_app.daemon.notify.apprise, watchdog_app.daemon.notify.ntfy\n"
        "print([m for m in ('apprise', 'http.client', 'ssl', 'urllib.parse') if m in sys.modules])"
    )
    done = finished([sys.executable, "-c", program])
    assert "[]" == done.stdout.strip(), done.stderr
