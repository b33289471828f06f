"""A status fits into one message, whatever names programs use and agents report."""

from __future__ import annotations

import sys

import pytest
from speaking_agent import SPEAKS
from support.statuses import GIB, MIB, agent, ceiling, process, status

from watchdog_app.client.jsonrpc import MAX_LINE_BYTES, TooLongToSend, encode
from watchdog_app.daemon.status import fit

# A program that has overwritten its 65,000 bytes of arguments with invalid UTF-8.
TITLE = """
import ctypes, os, sys, time
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "-S", __file__, "x" * 65000])
fields = open("/proc/self/stat").read().rsplit(") ", 1)[1].split()
begin, end = int(fields[45]), int(fields[46])
ctypes.memset(begin, 0xFF, end - begin - 1)
time.sleep(600)
"""

# The longest paths that an agent may name, in invalid UTF-8; devices and buffers.
AGENT = (
    SPEAKS
    + """
path, word, far = "\\udcff" * 4096, "\\U0001f600" * 100, 2**53
say("agent.register", 2, pid=os.getpid(), start_time=start, framework=word, directory=path)
say("agent.saved", request=None, rescue=dict(path=path, step=1, bytes=1, seconds=1.0))
device = dict(device=word, gpu_uuid=word, used_bytes=far, limit_bytes=far, peak_bytes=far)
say("agent.report", training=True, step=1, allocators=[device] * 64,
    memory=dict(buffers=[dict(what=word, bytes=far)] * 16))
time.sleep(600)
"""
)


def size(value: dict) -> int:
    try:
        return len(encode(value))
    except TooLongToSend:
        return MAX_LINE_BYTES + 1


def test_what_is_in_danger_or_paused_is_never_left_out_before_the_rest():
    """Of a too long list the largest are kept in order, and the missing ones are counted."""
    tasks = [
        process(pid, "n" * 270, pid * MIB, script=f"/home/ada/{'p' * 3000}")
        for pid in range(1001, 1501)  # of one length: none is kept because it is short
    ]
    tasks[0] |= {"stage": "save"}
    tasks[1] |= {"state": "paused"}
    whole = status(tasks=tasks, problems=[])
    assert size(whole) > MAX_LINE_BYTES

    found = fit(whole, MAX_LINE_BYTES // 2)

    pids = [task["pid"] for task in found["tasks"]]
    assert size(found) <= MAX_LINE_BYTES // 2
    assert [1001, 1002] == pids[:2]
    assert list(range(1501 - len(pids) + 2, 1501)) == pids[2:]
    assert f"{500 - len(pids)} of 500 tasks" in found["problems"][-1]["message"]
    assert tasks[0] == found["tasks"][0]


def test_one_that_says_too_much_takes_no_room_from_others():
    """Its long texts are cut; it and all others remain."""
    loud = process(
        7, "loud.py", 90 * GIB, agent=agent(directory="\U0001f600" * 400_000, framework="x" * 9999)
    )
    whole = status(tasks=[loud, *(process(pid, "a.py", MIB) for pid in range(8, 108))])

    found = fit(whole)

    assert size(whole) > MAX_LINE_BYTES >= size(found)
    assert 101 == len(found["tasks"])
    assert whole["tasks"][1:] == found["tasks"][1:]
    assert "cut" in found["problems"][-1]["message"]
    assert "Left out" not in found["problems"][-1]["message"]


def test_a_limit_of_each_process_does_not_hide_those_of_the_machine():
    """One resource per process under `ulimit -v`: the machine's resources are kept."""
    own = [
        ceiling("rlimit_as", f"address space of {'n' * 270}", MIB, GIB, note="x" * 500)
        for _ in range(3000)
    ]
    whole = status(resources=[*own, ceiling("ram", "RAM", 1, GIB)], tasks=[process(1, "a", 1)])

    found = fit(whole)

    assert size(found) <= MAX_LINE_BYTES
    assert "RAM" == found["resources"][-1]["label"]
    assert 1 == len(found["tasks"])
    assert "of 3001 resources" in found["problems"][-1]["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="a title is written over the command line")
def test_long_titles_leave_everybody_an_answer(world):
    """
    With four titles of 65,000 bytes, status, subscription and a pause from the command line work.
    """
    client = world.start()
    others = [world.script(TITLE, f"title{number}.py") for number in range(4)]
    other = world.script("import time\ntime.sleep(600)\n")
    world.until(
        lambda: all("\\xff" in (world.task(pid) or {}).get("name", "") for pid in others),
        "the titles are seen",
    )
    world.until(lambda: world.task(other), "the other one is seen")

    names = [world.task(pid)["name"] for pid in others]
    done = world.command("pause", str(other))

    assert all(len(name) <= 270 for name in names)
    assert (0, "T") == (done.returncode, world.state_letter(other)), done.stderr
    client.call("task.resume", task=str(other))


def test_agents_that_say_all_they_may_leave_everybody_an_answer(world):
    """More than one message of reports: the status still comes, by request and by subscription."""
    client = world.start()
    pids = [
        world.script(AGENT.format(socket=world.socket), f"agent{number}.py") for number in range(20)
    ]

    def told() -> dict | None:
        found = client.call("status")
        said = [task for task in found["tasks"] if task["pid"] in pids and task["agent"]]
        return found if len(said) == len(pids) else None

    found = world.until(told, "all agents are seen")
    with world.connect() as follower:
        follower.call("subscribe", topics=["status"])
        pushed = next(follower.notifications(60.0))

    assert "too long for one message" in found["problems"][-1]["message"]
    assert len(pids) <= len(pushed["params"]["tasks"])
