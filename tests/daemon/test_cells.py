"""Which warnings are shown below a cell, and when they are removed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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
