"""Notebooks that are renamed, shared, killed and restarted on a real server with a daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from real_server import Kernel

from watchdog_app.base.errors import ActionError
from watchdog_app.guard.backends import create

TRAIN = """
import os, time
import keras
import numpy as np

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.path.exists("slowly"):
            time.sleep(0.2)

keras.utils.set_random_seed(7)
x = np.random.default_rng(7).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[Slowly()])
print("LOSSES", history.history["loss"])
"""
FILL = """
held = []
while True:
    held.append(b"x" * (8 << 20))
"""

pytestmark = pytest.mark.usefixtures("paused")


def test_notebook_that_is_renamed_while_it_runs_is_shown_by_its_new_name(desk: Desk):
    """The file is renamed before the session. Both names lead to the task by its kernel's id."""
    kernel = desk.server.open("old.ipynb")
    pid = kernel.pid()
    cell = kernel.begin("import time; time.sleep(1); print('done')")
    desk.until(lambda: desk.name(pid) == "old.ipynb", "the notebook is seen")

    desk.server.rename(kernel, "old.ipynb", "new.ipynb")
    desk.until(lambda: desk.name(pid) == "new.ipynb", "the rename is seen")

    found = desk.task(pid)
    assert str(desk.server.root / "new.ipynb") == found["notebook"]
    assert (kernel.id, "done\n") == (found["kernel_id"], kernel.finish(cell))
    assert "new.ipynb" in desk.watchdog("explain", kernel.id, "--color=never")


def test_notebooks_that_share_a_kernel_are_all_named(desk: Desk):
    """A second notebook uses the kernel of the first; each name finds the task."""
    kernel = desk.server.open("first.ipynb")
    pid = kernel.pid()
    desk.server.notebook("second.ipynb")
    desk.server.rest(
        "POST",
        "api/sessions",
        {
            "path": "second.ipynb",
            "name": "second.ipynb",
            "type": "notebook",
            "kernel": {"id": kernel.id},
        },
    )

    desk.until(lambda: desk.name(pid) == "first.ipynb, second.ipynb", "both are seen")

    assert "second.ipynb" in desk.watchdog("explain", "second.ipynb", "--color=never")


AGENT = """
from watchdog_app.agent.runtime.link import Link
from watchdog_app.rescue.identity.notebook import notebook_path, program_path
link = Link("keras", {folder!r}, notebook_path())
link.start()
print(program_path())
"""
STRANGER = """
import subprocess, sys
code = '''
import time
from watchdog_app.agent.runtime.link import Link
link = Link("keras", {folder!r}, "/somebody/else.ipynb")
link.start()
while not link.connected:
    time.sleep(0.05)
print("CONNECTED", flush=True)
time.sleep(600)
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline())
"""


def _wait_for_ready(client: BlockingKernelClient, process: subprocess.Popen[bytes]) -> None:
    """
    On a busy machine Jupyter takes a late heartbeat for a death, so the test waits for the process.
    """
    while True:
        try:
            return client.wait_for_ready(timeout=120)
        except RuntimeError as error:
            if "died" not in str(error) or process.poll() is not None:
                raise


def test_kernel_of_vscode_has_the_name_that_the_agent_inside_says(desk: Desk):
    """
    VS Code stores the path in a variable, and the agent reports it from the first cell on.

    Child processes report no path.
    """
    connection = desk.world.folder / "runtime" / "kernel-v3abcdef0123456789.json"
    write_connection_file(str(connection))
    process = subprocess.Popen(
        [sys.executable, "-m", "ipykernel_launcher", f"--f={connection}"],
        env=desk.server.env,
        cwd=desk.world.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    client = BlockingKernelClient(connection_file=str(connection))
    client.load_connection_file()
    client.start_channels()

    def run(code: str, *, silent: bool = False) -> str:
        printed: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.extend([content.get("text", ""), *content.get("traceback", [])])

        client.execute_interactive(code, silent=silent, timeout=120, output_hook=hear)
        return "".join(printed)

    folder, notebook = str(desk.world.folder), str(desk.world.folder / "code.ipynb")
    folder_name = desk.world.folder.name
    try:
        _wait_for_ready(client, process)
        desk.until(lambda: desk.name(process.pid) == f"kernel in {folder_name}", "it is seen")
        # As VS Code does; neither counts as a cell.
        assert "CONNECTED" in run(STRANGER.format(folder=folder), silent=True)
        run(f"__vsc_ipynb_file__ = {notebook!r}", silent=True)
        assert f"kernel in {folder_name}" == desk.name(process.pid)

        assert "" == run("a = 1")
        desk.until(lambda: desk.name(process.pid) == "code.ipynb", "it is named")
        printed = run(AGENT.format(folder=folder))

        assert f"{notebook}\n" == printed
        assert notebook == desk.task(process.pid)["notebook"]
        run("child.kill(); link.close()")
        assert "code.ipynb" in desk.watchdog("explain", "code.ipynb", "--color=never")
    finally:
        client.stop_channels()
        process.kill()
        process.wait()


@pytest.mark.tensorflow
def test_training_of_a_killed_kernel_goes_on_in_the_next_one(desk: Desk):
    """
    The notebook does not mention watchdog.

    The user runs the same cell, and the result is exact.
    """
    slowly = desk.server.root / "slowly"
    slowly.touch()
    kernel = desk.server.open("train.ipynb")
    pid = kernel.pid()
    kernel.begin(TRAIN)
    desk.until(lambda: ((desk.task(pid) or {}).get("agent") or {}).get("step"), "it trains")
    desk.world.client.call("snooze", task="train.ipynb", for_s=600)
    saved = desk.world.client.call("task.checkpoint", task="train.ipynb", wait=True)

    os.kill(pid, signal.SIGKILL)
    desk.until(lambda: desk.entries("exit", "train.ipynb"), "the death is seen")
    now = desk.restarted(kernel, pid, "train.ipynb")
    slowly.unlink()
    resumed = kernel.run(TRAIN)
    begun_anew = kernel.run(TRAIN)

    assert "done" == saved["requests"][0]["status"]
    assert "train.ipynb" == now["name"]
    assert "resuming from" in resumed
    assert "resuming from" not in begun_anew
    assert resumed.split("LOSSES")[1] == begun_anew.split("LOSSES")[1]
    status = desk.world.client.call("status")
    assert [now["pid"]] == [one["task"] for one in status["daemon"]["snoozed"]]
    restart = desk.entries("restart", "train.ipynb")[0]
    assert (pid, now["pid"]) == (restart["before"], restart["pid"])
    for wanted in (kernel.id, str(now["pid"])):
        kinds = {one["kind"] for one in desk.world.client.call("history", task=wanted)["entries"]}
        assert {"exit", "restart"} <= kinds
        series = desk.world.client.call("series", task=wanted)["series"]
        assert {pid, now["pid"]} <= {one["pid"] for one in series}
    explained = desk.watchdog("explain", "train.ipynb", "--color=never")
    assert f"train.ipynb (notebook, pid {pid}) died" in " ".join(explained.split())


def answers(kernel: Kernel) -> bool:
    """Return whether a cell runs. Jupyter can lose a request while it connects to a new kernel."""
    with contextlib.suppress(AssertionError):
        return "42\n" == kernel.run("print(6 * 7)", timeout_s=20)
    return False


@pytest.mark.cgroup
def test_kernel_that_the_kernel_kills_for_memory_is_told_with_its_successor(desk: Desk):
    """The kernel runs in its own memory group, and Jupyter restarts it in the same group."""
    try:
        group = create(f"watchdog-desk-{os.getpid()}", 200 << 20)
    except ActionError as error:
        pytest.skip(str(error))
    try:
        spec = Path(desk.server.env["JUPYTER_DATA_DIR"]) / "kernels" / "limited"
        spec.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(
            json.dumps(
                {"argv": group.command(argv), "display_name": "limited", "language": "python"}
            )
        )
        kernel = desk.server.open("hungry.ipynb", kernel="limited")
        pid = kernel.pid()
        desk.until(lambda: desk.name(pid) == "hungry.ipynb", "the notebook is seen")

        kernel.begin(FILL)
        death = desk.until(lambda: desk.entries("exit", "hungry.ipynb"), "the death is seen")[0]
        now = desk.restarted(kernel, pid, "hungry.ipynb")

        assert ("group_limit", pid) == (death["cause"], death["pid"])
        assert "hungry.ipynb" == now["name"]
        told = [one["evidence"].get("topic") for one in desk.entries("decision", "hungry.ipynb")]
        assert {"exited", "restarted"} <= set(told)
        desk.until(lambda: answers(kernel), "the new kernel answers")
        assert now["pid"] == kernel.pid()
    finally:
        desk.server.rest("DELETE", f"api/sessions/{kernel.session}")
        group.close()


def test_kernel_that_its_user_restarts_is_followed_without_a_notice(desk: Desk):
    """The history has an entry, and no notification tells users about their own restart."""
    kernel = desk.server.open("again.ipynb")
    pid = kernel.pid()
    desk.until(lambda: desk.name(pid) == "again.ipynb", "the notebook is seen")

    kernel.restart()
    now = desk.restarted(kernel, pid, "again.ipynb")

    assert (now["pid"], "again.ipynb") == (kernel.pid(), now["name"])
    topics = [one["evidence"].get("topic") for one in desk.entries("decision", "again.ipynb")]
    assert "restarted" not in topics
