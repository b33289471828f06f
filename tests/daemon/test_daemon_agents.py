"""Agents that speak the protocol over the socket from separate processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest
from speaking_agent import SPEAKS

from watchdog_app.base.linux.process import start_time
from watchdog_app.client import jsonrpc

# A minimal agent: it registers, reports, and then acts as its mode says.
AGENT = (
    """
import os, sys, time
from watchdog_app.rescue.segment import exchange, segment
def again(*_):
    time.sleep(0.3)
    os.execv(sys.executable, [sys.executable, *sys.argv])
mode = open("mode").read()
if mode == "return":
    sys.excepthook = again
"""
    + SPEAKS
    + """
answer = say("agent.register", 2, pid=os.getpid(), start_time=start, framework="keras",
    directory=os.getcwd(), notebook=None)
published = segment.Segment()
exchange.offer(answer["result"]["segments"], os.getcwd(), published.fd)
say("agent.report", training=True, step=41, step_s=0.05, save_s=0.2, state_bytes=1000,
    loss=0.5, epoch=None, batch=3)
saved = dict(path=os.getcwd() + "/rescue-42", step=42, bytes=1000, seconds=0.25, plain="yes",
    reason="RAM runs out", exact=False, missing=["the shuffle buffer"])
if mode in ("own-save", "failed", "left"):
    say("agent.saved", request=None, rescue=saved)
if mode == "bye":
    say("agent.bye")
if mode in ("failed", "left"):
    say("agent.failed", request=None, error="no step ended within 4 s (agent.grace_s)")
    while not os.path.exists("end"):
        time.sleep(0.02)
    say("agent.bye", finished=False, failed=mode == "failed")
    line.close()
    time.sleep(1.5)
    os._exit(1)
if mode in ("leave", "finished", "interrupted"):
    if mode == "finished":
        say("agent.bye")
    if mode == "interrupted":
        say("agent.report", training=False, step=41)
        say("agent.bye", finished=False)
    line.shutdown(socket.SHUT_RDWR)
    line.close()
    time.sleep(600)
while True:
    message = json.loads(reader.readline())
    if message.get("method") != "agent.checkpoint":
        continue
    request = message["params"]["request"]
    if mode in ("save", "own-save"):
        say("agent.progress", request=request)
        time.sleep(0.2)
        say("agent.saved", request=request, rescue=saved)
    elif mode == "fail":
        say("agent.failed", request=request, error="The disk is full.", remedy="Make room.")
    elif mode == "die":
        os._exit(3)
"""
)


@pytest.fixture
def agent(world):
    """Start the daemon and a training whose agent has a given mode; return client and pid."""

    def start(mode: str):
        client = world.start()
        return client, begin(world, mode)

    return start


def begin(world, mode: str) -> int:
    (world.folder / "mode").write_text(mode)
    pid = world.script(AGENT.format(socket=world.socket), "train.py")
    if mode not in ("leave", "finished"):
        world.until(lambda: (world.task(pid) or {}).get("agent"), "the agent is seen")
    return pid


def ended_agent(world, pid: int) -> dict | None:
    """The agent of a training that has ended, as the status shows it; None before."""
    agent = world.task(pid)["agent"]
    return agent if agent and agent["step"] and not agent["training"] else None


def register(agent, **change) -> dict:
    """Register the test's process as a training."""
    about = {
        "pid": os.getpid(),
        "start_time": start_time(os.getpid()),
        "framework": "keras",
        "directory": "/tmp",
    }
    return agent.ask("agent.register", **{**about, **change})


def deaths(client, world) -> list[dict]:
    """Deaths of this world's scripts only: other Python programs of the machine may die too."""
    entries = client.call("history", kinds=["exit"])["entries"]
    return [one for one in entries if (one["path"] or "").startswith(str(world.folder))]


def test_what_an_agent_reports_is_shown(world, agent):
    """Every figure of the report is shown; values that it lacks are null."""
    _, pid = agent("quiet")

    shown = world.until(
        lambda: (a := world.task(pid)["agent"]) and a["step"] == 41 and a, "the report"
    )

    assert {
        "pid": pid,
        "framework": "keras",
        "directory": str(world.folder),
        "training": True,
        "step": 41,
        "epoch": None,
        "batch": 3,
        "loss": 0.5,
        "step_s": 0.05,
        "save_s": 0.2,
        "state_bytes": 1000,
        "saving": False,
        "outdated": False,
        "resumes_itself": None,
        "not_restored": [],
        "rank": None,
        "world_size": None,
        "allocators": [],
        "memory": None,
        "rescue": None,
    } == shown


LINKED = """
import time
from watchdog_app.agent.runtime.link import Link
link = Link("torch", "/tmp", socket_path={socket!r})
link.start()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, (1, 2)),  # torchrun
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
        ({"RANK": "second", "WORLD_SIZE": "9" * 30}, (None, None)),
    ],
)
def test_rank_and_world_size_are_those_of_the_launcher(world, launcher, expected):
    """Read from the environment of the training."""
    world.start()
    world.env.update(launcher)

    pid = world.script(LINKED.format(socket=world.socket))

    found = world.until(lambda: (world.task(pid) or {}).get("agent"), "the agent is seen")
    assert expected == (found["rank"], found["world_size"])


def test_a_training_that_has_ended_well_keeps_no_segment(world, agent):
    """A segment takes four megabytes; a night of short jobs or cells would fill the memory."""
    _, kept = agent("quiet")
    world.until(lambda: handed_over(world) == [kept], "the first one's segment")

    pid = begin(world, "finished")

    world.until(lambda: handed_over(world) == [kept], "it is given back")
    assert "Z" != world.state_letter(pid)


def test_what_a_killed_training_has_handed_over_is_closed(world, agent):
    """Two descriptors, beside its connection."""
    _, first = agent("quiet")
    pid = begin(world, "quiet")
    world.until(lambda: set(handed_over(world)) == {first, pid}, "both segments")

    os.kill(pid, signal.SIGKILL)

    world.until(lambda: handed_over(world) == [first], "it is given back")


PUBLISHES = """
import os, time
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.rescue.checkpoint.store import RescueStore
folder = os.path.join(os.getcwd(), "rescues")
session = Session(RescueStore(folder, 2), Link("numpy", folder), lambda: Capture([], {}),
    marker=ChangeMarker)
session.prepare()
step = 0
while True:
    step += 1
    session.boundary(step)
    time.sleep(0.05)
"""


def test_each_daemon_gets_the_segment_of_a_training_that_began_before_it(world):
    """Also after a daemon was killed, which leaves its socket behind."""
    pid = world.script(PUBLISHES)
    for end in (world.kill, world.end):
        world.start()
        world.until(lambda: handed_over(world) == [pid], "it has the segment")
        end()


def descriptors(world):
    """What the daemon has open."""
    folder, found = f"/proc/{world.process.pid}/fd", []
    for each in os.listdir(folder):
        with suppress(OSError):
            found.append(os.readlink(f"{folder}/{each}"))
    return found


def handed_over(world):
    """The pids whose memory the daemon has; each has handed over a segment as well."""
    found = descriptors(world)
    memories = [int(each.split("/")[2]) for each in found if each.endswith("/mem")]
    return memories if len(memories) == sum("watchdog-segment" in each for each in found) else []


def test_a_checkpoint_is_asked_for_saved_and_told(world, agent):
    """`wait` returns path, step, bytes and seconds; the status and the journal have them too."""
    client, pid = agent("save")

    answer = client.call("task.checkpoint", task=str(pid), wait=True, timeout_s=20)

    path = str(world.folder / "rescue-42")
    (request,) = answer["requests"]
    saved = request.pop("rescue")
    assert {"task": pid, "name": "train.py", "status": "done",
            "detail": "Step 42 saved: 1000 B in 0.2 s."} == request  # fmt: skip
    assert {"path": path, "step": 42, "bytes": 1000, "seconds": 0.25}.items() <= saved.items()
    rescue = world.until(lambda: world.task(pid)["agent"]["rescue"], "the status has it")
    assert (path, 42) == (rescue["path"], rescue["step"])
    why = rescue["reason"], rescue["exact"], rescue["missing"]
    assert ("RAM runs out", False, ["the shuffle buffer"]) == why
    assert ["decision"] == [
        e["kind"] for e in client.call("history", task=str(pid))["entries"]
        if e["decision_kind"] == "checkpoint" and e["kind"] == "decision"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "status", "detail"),
    [("save", "done", "Step 42 saved"), ("fail", "failed", "The disk is full.")],
)
def test_what_became_of_a_checkpoint_that_a_person_asked_for_is_in_the_history(
    world, agent, mode, status, detail
):
    """There is one outcome for the request, with its rescue or with the reason."""
    client, pid = agent(mode)

    client.call("task.checkpoint", task=str(pid), wait=True, timeout_s=20)

    told = world.until(
        lambda: client.call("history", task=str(pid), kinds=["outcome"])["entries"], "the outcome"
    )
    wishes = client.call("history", task=str(pid), kinds=["decision"])["entries"]
    assert [(wishes[0]["id"], "checkpoint", status)] == [
        (each["decision"], each["decision_kind"], each["status"]) for each in told
    ]
    assert told[0]["detail"].startswith(detail)
    assert (42 if status == "done" else None) == told[0]["evidence"].get("step")


def test_a_program_that_has_just_begun_is_not_said_to_have_no_agent(world):
    """TensorFlow starts slowly: the answer says what is known, and to ask again."""
    client = world.start()
    pid = world.script("import time\ntime.sleep(600)", "train.py")
    world.seen(pid)

    (answer,) = client.call("task.checkpoint", task=str(pid))["requests"]

    assert "refused" == answer["status"]
    assert answer["detail"].startswith("No agent has reported from it yet; it started")
    assert "ask again" in answer["detail"]
    assert "watchdog help saving" in answer["detail"]


def test_a_training_that_was_interrupted_in_a_living_kernel_has_ended(world, agent):
    """The kernel keeps its step, and a request for a rescue is refused at once."""
    client, pid = agent("interrupted")
    shown = world.until(lambda: ended_agent(world, pid), "the end")

    def refused() -> str | None:
        (answer,) = client.call("task.checkpoint", task=str(pid))["requests"]
        return answer["detail"] if answer["status"] == "refused" else None

    assert 41 == shown["step"]
    assert "Its training has ended: there is nothing to save now." == world.until(
        refused, "the bye"
    )


def test_a_checkpoint_without_waiting_is_answered_at_once(world, agent):
    """The first request is under way, and the second one joins it."""
    client, pid = agent("quiet")

    first = client.call("task.checkpoint", task=str(pid), timeout_s=30)["requests"]
    second = client.call("task.checkpoint", task=None, timeout_s=30)["requests"]

    assert ["requested"] == [each["status"] for each in first]
    assert ["requested"] == [each["status"] for each in second]


def test_all_tasks_can_be_asked_at_once(world, agent):
    """Tasks without an agent are left out."""
    client, pid = agent("save")
    world.seen(world.script("import time; time.sleep(600)", "other.py"))

    answer = client.call("task.checkpoint", task=None, wait=True, timeout_s=20)

    assert [(pid, "done")] == [(r["task"], r["status"]) for r in answer["requests"]]


@pytest.mark.parametrize(
    ("mode", "timeout_s", "said"),
    [
        pytest.param("fail", 20, "The disk is full. Make room.", id="it fails"),
        pytest.param("quiet", 0.5, "did not answer within 0.5 s", id="one long step"),
        pytest.param("die", 100, "ended before it could save", id="it dies"),
    ],
)
def test_why_a_save_does_not_come_is_told(world, agent, mode, timeout_s, said):
    """The agent's message, its timeout, or its end: the client does not wait for a dead process."""
    client, pid = agent(mode)

    answer = client.call("task.checkpoint", task=str(pid), wait=True, timeout_s=timeout_s)

    (request,) = answer["requests"]
    assert "failed" == request["status"]
    assert said in request["detail"]


def test_a_death_is_written_down_within_a_second_with_what_is_left(world, agent):
    """After SIGKILL the entry names the process, the signal and its rescue."""
    client, pid = agent("own-save")
    world.until(lambda: world.task(pid)["agent"]["rescue"], "the rescue is known")

    os.kill(pid, signal.SIGKILL)

    death = world.until(lambda: deaths(client, world), "the death is told", 5)[0]
    assert (pid, "train.py", "killed") == (death["pid"], death["name"], death["cause"])
    assert 42 == death["rescue"]["step"]
    assert "Its rescue of step 42 (1000 B" in death["text"]


@pytest.mark.parametrize("end", ["bye", "exit"])
def test_an_end_that_is_no_death_is_not_told(world, agent, end):
    """Trainings end normally, with a bye or with exit code 0."""
    client = world.start()
    (world.folder / "mode").write_text("bye" if end == "bye" else "quiet")
    code = AGENT.format(socket=world.socket)
    if end == "exit":
        code = code.replace("while True:", "import time; time.sleep(2); os._exit(0)\nwhile True:")
    pid = world.script(code, "train.py")
    world.until(lambda: world.task(pid), "it is seen")
    if end == "bye":
        world.until(lambda: ended_agent(world, pid), "the bye")
        os.kill(pid, signal.SIGKILL)

    world.until(lambda: world.task(pid) is None, "it is gone")
    assert [] == deaths(client, world)


@pytest.mark.parametrize("mode", ["failed", "left"])
def test_a_training_that_ends_by_an_error_is_a_death_with_its_rescue(world, agent, mode):
    """An uncaught exception or sys.exit(1): Python still runs its exit handlers."""
    world.config.write_text(
        "[actions]\ncheckpoint = false\npause = false\nnotify = true\n[notify]\ndesktop = false\n"
    )
    client = world.start()
    tray = world.connect("tray")
    tray.call("subscribe", topics=["notifications"])
    pid = begin(world, mode)
    (world.folder / "end").touch()

    (death,) = world.until(lambda: deaths(client, world), "the death is told", 10)

    assert (pid, "train.py", "failed") == (death["pid"], death["name"], death["cause"])
    assert (42, 41) == (death["rescue"]["step"], death["agent"]["step"])
    assert "no step ended within 4 s (agent.grace_s)" == death["agent"]["not_saved"]
    assert death["had_agent"]
    notes = (each["params"] for each in tray.notifications(20))
    note = next(note for note in notes if note["task"] == pid)
    assert "exited" == note["topic"]
    assert "step 42" in note["body"]


def test_an_agent_whose_connection_breaks_is_not_dead(world, agent):
    """The process lives, so there is no death; its later end is reported."""
    client = world.start()
    pid = begin(world, "leave")
    world.until(lambda: world.task(pid), "it is seen")
    world.until(lambda: f"an agent connected pid={pid}" in world.log(), "it had an agent")

    assert [] == deaths(client, world)

    os.kill(pid, signal.SIGSEGV)
    world.until(lambda: deaths(client, world), "the death is told")
    assert "SIGSEGV" in deaths(client, world)[0]["text"]


def test_an_agent_may_come_back(world, agent):
    """After kill -9 and a new daemon, the agent reconnects and is known again."""
    _, pid = agent("return")
    world.kill()
    world.start()

    assert 41 == world.until(
        lambda: ((world.task(pid) or {}).get("agent") or {}).get("step"), "it has come back"
    )


def test_the_newer_of_two_connections_of_one_process_counts(world, raw):
    """The end of the old connection is not a death."""
    client = world.start()
    first, second = raw(role="agent"), raw(role="agent")
    assert "result" in register(first)
    assert "result" in register(second)

    first.close()

    second.tell("agent.report", training=True, step=1)
    assert {} == second.ask("agent.report", training=True, step=2)["result"]
    assert [] == deaths(client, world)
    second.tell("agent.bye")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pid": 1}, jsonrpc.REFUSED),
        ({"start_time": 5}, jsonrpc.REFUSED),
        ({"pid": "1"}, jsonrpc.INVALID_PARAMS),
        ({"pid": None}, jsonrpc.INVALID_PARAMS),
        ({"start_time": -1}, jsonrpc.INVALID_PARAMS),
        ({"framework": 5}, jsonrpc.INVALID_PARAMS),
        ({"framework": "x" * 1000}, jsonrpc.INVALID_PARAMS),
        ({"directory": None}, jsonrpc.INVALID_PARAMS),
        ({"notebook": []}, jsonrpc.INVALID_PARAMS),
    ],
    ids=str,
)
def test_an_agent_that_claims_what_is_not_so_is_refused(raw_standing, change, code):
    """An agent speaks only for its own process, which the kernel names, and with valid values."""
    said = register(raw_standing(role="agent"), **change)

    assert code == said["error"]["code"]


@pytest.mark.parametrize(
    "params",
    [
        {"training": "yes"},
        {"training": True, "step": -1},
        {"training": True, "step": 2**70},
        {"training": True, "step_s": float("1e300")},
        {"training": True, "state_bytes": "big"},
    ],
    ids=str,
)
def test_a_report_without_sense_changes_nothing(world, raw, params):
    """The whole report is refused; the previous one stays."""
    client = world.start()
    agent = raw(role="agent")
    register(agent)
    agent.tell("agent.report", training=True, step=7)

    assert jsonrpc.INVALID_PARAMS == agent.ask("agent.report", **params)["error"]["code"]

    def mine():
        tasks = client.call("status")["tasks"]
        # Before the agent's first report, a sample shows it without a step.
        return [
            t["agent"]["step"]
            for t in tasks
            if t["agent"] and t["agent"]["pid"] == os.getpid() and t["agent"]["step"] is not None
        ]

    assert [7] == world.until(mine, "this process is a task")
    agent.tell("agent.bye")


def test_an_agent_of_an_older_protocol_is_outdated_and_harmed_in_nothing(world, raw):
    """It is registered and shown, but receives no message that it does not know."""
    client = world.start()
    agent = raw(greet=False)
    agent.ask("hello", protocol=1, role="agent", version="0.1.0")
    registered = register(agent)
    agent.tell("agent.report", training=True, step=7, expected_number=4, expected_bytes=1 << 20)

    def mine():  # the task may be the test's own launcher
        tasks = [each for each in client.call("status")["tasks"] if each["agent"]]
        own = [each for each in tasks if each["agent"]["pid"] == os.getpid()]
        return own and own[0]["agent"]["step"] and own[0]

    task = world.until(mine, "its report is shown")
    shown = task["agent"]
    asked = client.call("task.checkpoint", task=str(task["pid"]), wait=True)
    agent.socket.settimeout(1.0)

    assert {} == registered["result"]
    assert (True, 7) == (shown["outdated"], shown["step"])
    assert task["can_save"] is False
    assert "restart its kernel" in asked["requests"][0]["detail"]
    with pytest.raises(TimeoutError):  # no request
        agent.read()
    agent.tell("agent.bye")


def test_words_of_an_agent_before_it_registered_are_refused(world, raw):
    """This holds for each message."""
    world.start()
    agent = raw(role="agent")

    rescue = {"path": "/r", "step": 1, "bytes": 1}
    for method in ("agent.report", "agent.progress", "agent.saved", "agent.failed", "agent.bye"):
        answer = agent.ask(method, state="saving", rescue=rescue)
        assert jsonrpc.REFUSED == answer["error"]["code"]
