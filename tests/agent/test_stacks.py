"""What an agent reports about its threads: only lines and functions."""

from __future__ import annotations

import inspect
import json
import sys
import threading
import time
from functools import partial

import pytest
from daemon_stand_in import StandIn
from support.finished import finished
from support.waiting import until

from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.telemetry import stacks
from watchdog_app.client import jsonrpc
from watchdog_app.rescue.checkpoint.stream import Worker


def wait_here(release: threading.Event, password: str) -> str:
    release.wait()
    return password


def deep(left: int, release: threading.Event) -> None:
    if left:
        deep(left - 1, release)
    else:
        release.wait()


class Waiting:
    """A thread that waits in a function until the block ends."""

    def __init__(self, function, *args) -> None:
        self.release = threading.Event()
        self.thread = threading.Thread(
            target=function, args=(*args[:1], self.release) if function is deep else
            (self.release, *args), name="the waiting one",
        )  # fmt: skip

    def __enter__(self):
        self.thread.start()
        ident = self.thread.ident
        while (frame := sys._current_frames().get(ident)) is None or (
            frame.f_code.co_name != "wait"
        ):
            time.sleep(0.001)
        return self.thread

    def __exit__(self, *_) -> None:
        self.release.set()
        self.thread.join()


def test_the_thread_that_trains_comes_first_with_its_stack_innermost_first():
    """It has the kernel's thread id, by which the daemon finds it in /proc."""
    with Waiting(wait_here, "s3cret") as thread:
        found = stacks.collect(thread.ident)

    first = found["threads"][0]
    assert ("the waiting one", thread.native_id, True) == (
        first["name"], first["native_id"], first["trains"]
    )  # fmt: skip
    functions = [frame["function"] for frame in first["frames"]]
    assert "wait_here" in functions
    assert functions.index("wait") < functions.index("wait_here") < functions.index("run")
    assert not any(each["trains"] for each in found["threads"][1:])


def test_no_value_of_a_variable_is_told():
    """An argument may be a password."""
    with Waiting(wait_here, "s3cret") as thread:
        told = json.dumps(stacks.collect(thread.ident))

    assert "wait_here" in told
    assert "s3cret" not in told


def test_a_deep_stack_is_cut_at_its_outer_end():
    """The size of a message is limited."""
    with Waiting(deep, 200) as thread:
        frames = stacks.collect(thread.ident)["threads"][0]["frames"]

    assert stacks._MOST_FRAMES == len(frames)
    assert "wait" == frames[0]["function"]
    assert "deep" == frames[-1]["function"]


def test_the_place_is_the_programs_own_line():
    """`wait` is a line of Python's library; the user needs the calling line."""
    with Waiting(wait_here, "x") as thread:
        found = stacks.current_line(thread.ident)

    assert found is not None
    assert ("wait_here", __file__) == (found["function"], found["file"])


def test_a_line_of_a_notebook_is_told_by_its_cell():
    """The report matches IPython's tracebacks instead of naming a temporary file."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.user_ns["place"] = partial(stacks.current_line, threading.get_ident())
        shell.run_cell("1", store_history=True)
        shell.run_cell("def step():\n    return place()\nfound = step()", store_history=True)
    finally:
        InteractiveShell.clear_instance()

    found = shell.user_ns["found"]
    assert ("step", 2) == (found["function"], found["line"])
    assert f"Cell In[{shell.execution_count - 1}]" == found["file"]


def test_a_thread_that_is_not_known_has_no_place():
    """The thread has not reported yet, or has ended."""
    assert stacks.current_line(None) is None
    assert stacks.current_line(1) is None


def test_the_agent_answers_while_the_training_stands_still(tmp_path):
    """The agent's own thread reports the others; the training thread is known from its reports."""
    daemon = StandIn(str(tmp_path / "run" / "daemon.sock"))
    link = Link("test", str(tmp_path), socket_path=daemon.path)
    link.start()
    try:
        daemon.wait_for("agent.register")
        link.report(training=True, step=1)
        daemon.wait_for("agent.report")
        daemon.say(jsonrpc.notification("agent.stacks", {"request": "q1"}))
        told = daemon.wait_for("agent.stacked")
        daemon.say(jsonrpc.notification("agent.stacks", {"request": 7}))
        daemon.say(jsonrpc.notification("agent.stacks", {}))
        daemon.say(jsonrpc.notification("agent.nonsense", {"request": "q2"}))
        daemon.say(jsonrpc.notification("agent.stacks", {"request": "q3"}))
        daemon.wait_for("agent.stacked", 2)
    finally:
        link.close()
        daemon.close()

    assert "q1" == told["request"]
    first = told["threads"][0]
    assert (threading.get_native_id(), True) == (first["native_id"], first["trains"])
    assert "test_the_agent_answers_while_the_training_stands_still" in [
        frame["function"] for frame in first["frames"]
    ]
    assert "_serve" not in [f["function"] for t in told["threads"] for f in t["frames"][:3]]
    assert {"file", "line", "function"} == set(daemon.places[-1])
    assert ["q1", "q3"] == [p["request"] for m, p in daemon.received if m == "agent.stacked"]


# A collection during the reading runs finalizers that release the GIL while threads end.
COLLECTED = """
import _thread, gc, time
from watchdog_app.agent.telemetry import stacks

class Held:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0.0002)

def short():
    time.sleep(0)

gc.set_threshold(1, 1, 1)
end = time.monotonic() + 2
count = 0
while time.monotonic() < end:
    for _ in range(4):
        _thread.start_new_thread(short, ())
    Held()
    stacks.current_line(_thread.get_ident())
    count += 1
print(count)
"""


def test_a_look_never_hangs_a_program_that_collects_garbage_and_ends_threads():
    """Up to Python 3.11, `sys._current_frames` alone hangs forever."""
    done = finished([sys.executable, "-c", COLLECTED])

    assert 0 == done.returncode, done.stderr
    assert int(done.stdout) > 0


def test_threads_of_the_agent_are_not_told():
    """A waiting thread of the agent must not look like the holder of a lock."""
    before = len(stacks.collect(None)["threads"])
    worker = Worker()  # the thread that writes rescues stays between two saves
    try:
        until(
            lambda: any(
                frame.f_code.co_filename == inspect.getfile(Worker)
                for frame in sys._current_frames().values()
            ),
            "the thread does not run",
        )

        assert before == len(stacks.collect(None)["threads"])
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/ada/work/train.py", True),
        ("/home/ada/venv/lib/python3.11/site-packages/numpy/numeric.py", False),
        ("/usr/lib/python3/dist-packages/numpy/numeric.py", False),  # of another Python's packages
        (inspect.__file__, False),
        (stacks.__file__, False),
        ("<frozen runpy>", False),
    ],
)
def test_files_of_any_installed_package_are_not_the_programs_own(file: str, own: bool):
    """An environment may take packages of another one: of the system, or by a .pth file."""
    assert stacks.is_program_file(file) is own
