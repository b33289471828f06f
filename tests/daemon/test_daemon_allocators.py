"""The daemon's reading of the GPU allocators that agents report."""

from __future__ import annotations

from typing import Any, cast

import pytest

from watchdog_app.base.errors import RequestError
from watchdog_app.client import requests
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.status import Allocator
from watchdog_app.daemon.agents import Agent, Agents

KEY = ProcessKey(7, 70)
CARD = {"device": "GPU:0", "used_bytes": 5, "limit_bytes": 8}


def reported(**fields: Any) -> tuple[Allocator, ...]:
    nothing = cast(Any, None)
    agents = Agents(nothing, nothing, lambda key: True)
    agent = Agent(KEY, None, AgentState(KEY, "keras", "/r"), None)
    agents.report(agent, requests.Report.read({"training": True, **fields}), 1.0)
    return agent.view.allocators


def test_allocators_are_known_as_they_were_told():
    """Absent values are unknown."""
    full = {**CARD, "gpu_uuid": "GPU-1", "peak_bytes": 6, "retries": 2, "ooms": 1}

    assert (Allocator(**CARD), Allocator(**full)) == reported(allocators=[CARD, full])


@pytest.mark.parametrize("told", [{}, {"allocators": None}, {"allocators": []}])
def test_an_agent_without_a_gpu_says_nothing_of_one(told):
    """Agents of earlier versions do not report allocators."""
    assert () == reported(**told)


@pytest.mark.parametrize(
    ("allocators", "names"),
    [
        ("GPU:0", "allocators"),
        ([7], "allocators"),
        ({"device": "GPU:0"}, "allocators"),
        ([CARD] * 65, "64"),
        ([{**CARD, "device": None}], "device"),
        ([{**CARD, "device": "x" * 101}], "device"),
        ([{**CARD, "used_bytes": -1}], "used_bytes"),
        ([{**CARD, "used_bytes": 1.5}], "used_bytes"),
        ([{**CARD, "limit_bytes": 0}], "limit_bytes"),
        ([{**CARD, "limit_bytes": 2**60}], "limit_bytes"),
        ([{**CARD, "gpu_uuid": ["GPU-1"]}], "gpu_uuid"),
        ([{**CARD, "ooms": True}], "ooms"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_what_is_wrong(allocators, names):
    """An unchecked client's numbers must not reach the forecast."""
    with pytest.raises(RequestError, match=names):
        reported(allocators=allocators)
