"""Who else calls what tells that a step begins: forked children, and wrappers that outlive us."""

from __future__ import annotations

import os
import subprocess
import sys

from watchdog_app.airbag import page_folder

PROGRAM = """
import os, sys
from watchdog_app.agent.published.guards import Guards
from watchdog_app.agent.published.publisher import Publisher
from watchdog_app.airbag.page import Page

class Told(Guards):
    def begin(self, step_begins):
        self.step_begins = step_begins

guards = Told()
page = Page(sys.argv[1])
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
    """Neither a forked worker's optimizer does, nor is it an error once the training is over."""
    path = str(tmp_path / "page")
    page_folder.make(path, 512 * 1024)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )

    assert ("0 1\n", "", 0) == (done.stdout, done.stderr, done.returncode)
