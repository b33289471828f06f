"""A warning of the daemon below the running cell of a real kernel, and its removal."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from desk import Desk

from watchdog_app.base.errors import ActionError
from watchdog_app.guard.backends import create

LEAK = """
import os, time
from watchdog_app.agent.runtime.link import Link
link = Link("torch", os.getcwd(), None)
link.start()
held = []
while not os.path.exists("enough"):
    if len(held) < 75:
        held.append(b"x" * (4 << 20))
    time.sleep(0.5)
held.clear()
print("freed", flush=True)
while not os.path.exists("end"):
    time.sleep(0.1)
"""


@pytest.mark.cgroup
def test_a_warning_is_shown_below_the_cell_and_removed_again(desk: Desk):
    try:
        group = create(f"watchdog-cells-{os.getpid()}", 360 << 20)
    except ActionError as error:
        pytest.skip(str(error))
    spec = Path(desk.server.env["JUPYTER_DATA_DIR"]) / "kernels" / "roomy"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": group.command(argv), "display_name": "roomy", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(about))
    kernel = desk.server.open("leaks.ipynb", kernel="roomy")
    try:
        pid = kernel.pid()
        desk.until(lambda: desk.name(pid) == "leaks.ipynb", "the notebook is seen")
        cell = kernel.begin(f"%%capture\n{LEAK}")  # its own output is hidden, the warning is not

        def displayed(kind: str, timeout_s: float = 120) -> dict:
            """The next output of this kind below the cell."""
            end = time.monotonic() + timeout_s
            while time.monotonic() < end:
                message = kernel._receive(1.0)
                if message and message["msg_type"] == kind:
                    assert message["parent_header"]["msg_id"] == cell
                    return message
            raise AssertionError(f"no {kind}; the task: {desk.task(pid)}")

        shown = displayed("display_data")
        (desk.server.root / "enough").touch()
        content = shown["content"]
        assert content["data"]["text/plain"].startswith("watchdog at ")
        assert "leaks.ipynb" in content["data"]["text/plain"]
        assert "<script" not in content["data"]["text/html"]
        assert len(json.dumps(content["data"])) < 2000
        own = content["transient"]["display_id"]
        while (update := displayed("update_display_data")["content"])["data"]["text/plain"]:
            assert update["transient"]["display_id"] == own
        assert update["data"] == {"text/plain": "", "text/html": ""}
        (desk.server.root / "end").touch()
        kernel.finish(cell)
    finally:
        desk.server.rest("DELETE", f"api/sessions/{kernel.session}")
        group.close()
