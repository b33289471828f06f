"""The runtime folder without a session manager: a random name in /tmp, found through a link."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.base import paths, runtime_dir

STRANGER = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder takes root")
no_session = pytest.mark.skipif(
    os.path.isdir(f"/run/user/{os.getuid()}"), reason="this user has a session's runtime folder"
)
pytestmark = [
    no_session,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has user folders"),
]


@pytest.fixture
def env(tmp_path: Path):
    """The environment of a user without a session; the fixture removes created folders."""
    made = {"WATCHDOG_STATE_DIR": str(tmp_path / "state")}
    yield made
    folder = paths.linked_folder(paths.runtime_link(made))
    if folder is not None:
        os.rmdir(folder)


def test_before_anybody_made_it_there_is_none_and_nothing_is_created(env, tmp_path):
    """A client finds no daemon and leaves no files."""
    folder = paths.runtime_dir(env)

    assert not os.path.lexists(folder)
    assert not (tmp_path / "state").exists()


def test_whoever_comes_first_makes_it_and_all_others_find_it(env):
    """Other users cannot predict the name of the private folder."""
    folder = runtime_dir.make(env)

    found = os.lstat(folder)
    assert folder == paths.runtime_dir(env) == runtime_dir.make(env)
    assert folder != f"/tmp/watchdog-{os.getuid()}"
    assert (os.getuid(), 0o700) == (found.st_uid, stat.S_IMODE(found.st_mode))


def test_the_name_that_earlier_versions_used_is_of_no_consequence(env):
    """Another user who takes that name gains nothing."""
    assert not paths.runtime_dir(env).startswith(f"/tmp/watchdog-{os.getuid()}/")
    assert f"/tmp/watchdog-{os.getuid()}" != runtime_dir.make(env)


def test_a_link_to_a_folder_that_is_gone_is_replaced(env):
    """This happens after a reboot or a cleaned /tmp."""
    os.rmdir(runtime_dir.make(env))
    gone = paths.runtime_dir(env)
    anew = runtime_dir.make(env)

    assert not os.path.lexists(gone)
    assert os.path.isdir(anew)
    assert anew == paths.runtime_dir(env)


@root_only
@pytest.mark.parametrize("how", ["owner", "mode", "link", "file"])
def test_what_others_have_put_in_its_place_is_never_used(env, tmp_path, how):
    """Other users may see the name, and take it after the folder disappears."""
    folder = runtime_dir.make(env)
    os.rmdir(folder)
    if how == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        os.symlink(tmp_path / "elsewhere", folder)
    elif how == "file":
        Path(folder).touch(mode=0o700)
    else:
        os.mkdir(folder, 0o700)
        if how == "owner":
            os.chown(folder, STRANGER, STRANGER)
        else:
            os.chmod(folder, 0o777)
    try:
        seen, anew = paths.runtime_dir(env), runtime_dir.make(env)
    finally:
        os.rmdir(folder) if how in ("owner", "mode") else os.unlink(folder)

    assert not os.path.lexists(seen)
    assert anew != folder
    assert anew == paths.runtime_dir(env)


def test_two_that_start_at_once_come_to_the_same_folder(env):
    """An example is the daemon and `watchdog exec`."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: runtime_dir.make(env), range(16)))

    assert found == {paths.runtime_dir(env)}


@root_only
def test_a_session_folder_of_somebody_else_is_not_taken(env, tmp_path):
    """sudo and su may leave another user's XDG_RUNTIME_DIR."""
    other = tmp_path / "xdg"
    other.mkdir(mode=0o700)
    os.chown(other, STRANGER, STRANGER)

    assert not paths.runtime_dir({**env, "XDG_RUNTIME_DIR": str(other)}).startswith(str(other))


def test_a_daemon_and_a_command_meet_there(env, tmp_path):
    """Both are real and get no name for the folder."""
    own = {
        key: value
        for key, value in os.environ.items()
        if key not in ("WATCHDOG_RUNTIME_DIR", "XDG_RUNTIME_DIR")
    }
    own |= {**env, "HOME": str(tmp_path), "WATCHDOG_CONFIG": os.devnull}

    def watchdog(*words: str) -> subprocess.CompletedProcess[str]:
        return finished([sys.executable, "-m", "watchdog_app", *words], env=own)

    before = watchdog("status")
    started = watchdog("start")
    status = watchdog("status", "--json")
    folder = paths.runtime_dir(env)
    there = os.path.exists(os.path.join(folder, "daemon.sock"))
    stopped = watchdog("stop")
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))

    assert before.returncode != 0
    assert "no daemon" in before.stderr.lower() or "not running" in before.stderr.lower()
    assert 0 == started.returncode, started.stderr
    assert 0 == status.returncode, status.stderr
    assert there
    assert 0 == stopped.returncode, stopped.stderr
