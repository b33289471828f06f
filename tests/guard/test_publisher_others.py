"""Other users of a training's page: children, wrappers, writers of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from watchdog_app.agent.snapshot import publisher as publishing
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.agent.snapshot.publisher import Publisher
from watchdog_app.rescue.segment import segment_folder
from watchdog_app.rescue.segment.segment import Segment

PROGRAM = """
import os, sys
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.agent.snapshot.publisher import Publisher
from watchdog_app.rescue.segment.segment import Segment

class Told(ChangeMarker):
    def begin(self, step_begins):
        self.step_begins = step_begins

guards = Told()
page = Segment(sys.argv[1])
publisher = Publisher(page, None, {}, guards, dict)
page.boundary(3)
child = os.fork()
if child == 0:
    guards.step_begins()
    os._exit(0)
os.waitpid(child, 0)
after_child = page.sequence % 2
guards.step_begins()
own = page.sequence % 2
publisher.end()
guards.step_begins()
print(after_child, own)
"""


def test_only_the_training_itself_says_that_its_step_begins(tmp_path):
    """A forked worker's optimizer does not, and the end of the training causes no error."""
    path = str(tmp_path / "page")
    segment_folder.make_segment(path, 512 * 1024)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )

    assert ("0 1\n", "", 0) == (done.stdout, done.stderr, done.returncode)


@pytest.mark.skipif(sys.platform != "linux", reason="Yama is Linux's")
def test_only_one_process_of_this_user_is_let_read_a_training_whatever_its_page_says(
    tmp_path, monkeypatch
):
    """The user may write to the page; -1 in it would permit every process and bypass Yama."""
    path = str(tmp_path / "page")
    segment_folder.make_segment(path, 512 * 1024)
    asked = []
    library = SimpleNamespace(prctl=lambda _, pid, *rest: asked.append(pid.value))
    monkeypatch.setattr(publishing.ctypes, "CDLL", lambda _: library)
    ended = subprocess.Popen(["true"])
    ended.wait()
    page = Segment(path)
    publisher = Publisher(page, None, {}, ChangeMarker(), dict)

    for pid in (2**64 - 1, 2**32 - 1, 2**63, 2**22 + 1, 0, ended.pid):
        segment_folder.permit(path, pid)
        publisher._allow_reader()
    refused = list(asked)
    monkeypatch.setattr(publishing.os, "stat", lambda _: SimpleNamespace(st_uid=os.geteuid() + 7))
    segment_folder.permit(path, os.getppid())
    publisher._allow_reader()
    of_another = list(asked)
    monkeypatch.undo()
    monkeypatch.setattr(publishing.ctypes, "CDLL", lambda _: library)
    publisher._allow_reader()

    assert ([], [], [os.getppid()]) == (refused, of_another, asked)
    assert page.permitted == os.getppid()
    publisher.end()
