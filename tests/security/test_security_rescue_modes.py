"""Only its owner can read a rescue, whatever the umask of the training."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from support.finished import finished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")

# A rehearsal, two saves, the mark of a finished training, and the files in the middle of
# the second save.
_SAVES = """
import json, os, sys
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore

os.umask(int(sys.argv[1], 8))
folder = sys.argv[2]

def record_modes():
    for at, folders, files in os.walk(folder):
        for each in (os.path.join(at, name) for name in (*folders, *files)):
            modes[os.path.relpath(each, folder)] = os.stat(each).st_mode

def view():
    record_modes()
    return memoryview(bytes(8192))

modes = {}
store = RescueStore(os.path.join(folder, "made", "rescues", "train.py"), keep=1)
store.prepare()
entry = TensorEntry("t", "U8", (8192,), 8192, view)
for step in (1, 2):
    saved = store.save([entry], {"step": step})
store.close()
names.mark_finished(saved.path)
record_modes()
print(json.dumps(modes))
"""


@pytest.mark.parametrize("umask", ["000", "002", "022", "077"])
def test_each_file_of_a_rescue_is_0600_and_each_folder_0700(tmp_path: Path, umask: str):
    modes = _modes(tmp_path, umask)

    folders = {each for each, mode in modes.items() if stat.S_ISDIR(mode)}
    assert {"made", "made/rescues", "made/rescues/train.py"} < folders
    assert any("partial" in each for each in folders)
    assert {0o700} == {stat.S_IMODE(modes[each]) for each in folders}
    files = set(modes) - folders
    assert {"finished", "rescue.json"} < {os.path.basename(each) for each in files}
    assert {0o600} == {stat.S_IMODE(modes[each]) for each in files}


def test_a_folder_that_the_user_made_keeps_its_mode(tmp_path: Path):
    rescues = tmp_path / "made" / "rescues"
    rescues.mkdir(parents=True)
    os.chmod(tmp_path / "made", 0o755)
    os.chmod(rescues, 0o750)

    modes = _modes(tmp_path, "022")

    assert 0o755 == stat.S_IMODE(modes["made"])
    assert 0o750 == stat.S_IMODE(modes["made/rescues"])
    assert 0o700 == stat.S_IMODE(modes["made/rescues/train.py"])


def _modes(folder: Path, umask: str) -> dict[str, int]:
    done = finished([sys.executable, "-c", _SAVES, umask, str(folder)])
    assert (0, "") == (done.returncode, done.stderr)
    return {str(name): int(mode) for name, mode in json.loads(done.stdout).items()}
