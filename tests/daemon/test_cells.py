"""Which warnings are shown below a cell, and when they are removed."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from support.hostile import NAMES

from watchdog_app.agent.runtime import kernel_cells
from watchdog_app.core.model.status import Incident, Notification, Status
from watchdog_app.daemon.notify.cells import Cells

KEY = ("pid", 7)


class World:
    def __init__(self) -> None:
        self.sent: list[dict] = []
        agent = SimpleNamespace(key=KEY)
        agents = SimpleNamespace(
            connected_in=lambda _: [agent],
            get=lambda _: agent,
            send=lambda _agent, _method, params: self.sent.append(params),
        )
        self.cells = Cells(agents)

    def warn(self, incident: str) -> None:
        self.tell("warning", incident, f"{incident} full")

    def tell(self, topic: str, incident: str, title: str) -> None:
        told = Notification(topic=topic, incident=incident, title=title)
        self.cells.show(told, SimpleNamespace())

    def close(self, *still_open: str) -> None:
        status = Status(incidents=tuple(Incident(id=each) for each in still_open))
        self.cells.close_over(lambda: status)


@pytest.fixture
def world():
    return World()


def test_a_warning_is_removed_when_its_incident_is_over(world):
    world.warn("ram")
    world.close("ram")
    assert [each["title"] for each in world.sent] == ["ram full"]
    world.close()
    assert [each["title"] for each in world.sent] == ["ram full", ""]
    world.close()
    assert len(world.sent) == 2


def test_the_end_of_one_danger_leaves_the_other(world):
    world.warn("ram")
    world.warn("gpu")
    world.close("ram")
    assert world.sent[-1]["title"] == "ram full"


def test_what_was_saved_stays_with_later_warnings(world):
    world.tell("rescued", "ram", "Saved step 4")
    assert not world.sent, "without a danger nothing would remove it"
    world.warn("ram")
    world.tell("rescued", "ram", "Saved step 5")
    world.warn("ram")
    assert world.sent[-1] == {"title": "ram full", "body": "", "saved": "Saved step 5"}
    world.close()
    assert world.sent[-1] == {"title": "", "body": "", "saved": ""}


@pytest.mark.parametrize("name", [*NAMES, *(char * 600 for char in "x\"'<&\\分🔥")])
def test_a_hostile_name_below_a_cell_is_only_text(world, monkeypatch, name):
    published: list[dict] = []
    kernel = SimpleNamespace(
        iopub_socket=None, send_response=lambda _socket, _kind, sent: published.append(sent["data"])
    )
    shell = SimpleNamespace(kernel=kernel, execution_count=1)
    monkeypatch.setattr(kernel_cells, "ipython_shell", lambda: shell)
    monkeypatch.setattr(kernel_cells, "_shown", None)
    told = Notification(topic="warning", incident="i", title=f"{name} full", body=f"{name}\nends")
    world.cells.show(told, SimpleNamespace())
    world.tell("rescued", "i", f"Saved {name}")
    for each in world.sent:
        kernel_cells.show_notification(json.loads(json.dumps(each)))
    for data in published:
        assert data["text/plain"].replace("\n", "").isprintable()
        assert len(json.dumps(data, ensure_ascii=False).encode()) < 2000
        assert tags(data["text/html"]) == {"div", "b", "br"}
    assert len(published) == 2


def tags(text: str) -> set[str]:
    found: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: found.add(tag)
    parser.feed(text)
    return found
