"""A real second user can neither read nor control the daemon, nor set traps for it."""

from __future__ import annotations

import os
import socket
import stat
import time

import pytest

import watchdog_app.config as configuration
from watchdog_app.base.errors import ConfigError, WatchdogError
from watchdog_app.base.runtime_dir import private_folder
from watchdog_app.client import transport
from watchdog_app.daemon.instance import InstanceLock
from watchdog_app.history.journal import Journal
from watchdog_app.rescue.checkpoint.names import RescueName, is_other_users
from watchdog_app.rescue.checkpoint.store import RescueStore

STRANGER = 65534
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

# Sends a request to a socket and prints how many bytes came back.
ASK = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(10)
try:
    s.connect(sys.argv[1])
    s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"stop"}\\n')
    print(len(s.recv(100)))
except OSError as error:
    print(type(error).__name__)
"""
# What of a folder the user can list, read or write.
REACH = """
import os, sys
for path in sys.argv[1:]:
    for what in (os.stat, os.listdir, lambda p: open(p, 'rb').read(1), lambda p: open(p, 'ab'),
                 os.unlink, lambda p: os.rename(p, p + '-')):
        try:
            what(path); print('reached', path, what)
        except OSError:
            pass
"""


def open_up(path) -> None:
    """Let every user traverse pytest's private folders."""
    while path != path.parent:
        os.chmod(path, os.stat(path).st_mode | 0o011)
        path = path.parent


def test_a_stranger_reaches_no_file_of_the_daemon(world, stranger):
    """The stranger cannot list, read, write or remove socket, lock and journal."""
    world.start()
    open_up(world.folder)
    run, state = world.folder / "run", world.folder / "state"

    said = stranger(REACH, *map(str, (run / "daemon.sock", run / "daemon.lock",
                                      state / "journal.db")))  # fmt: skip

    assert "" == said
    assert "PermissionError" == stranger(ASK, world.socket)


def test_a_stranger_who_reaches_the_socket_is_not_heard(world, stranger):
    """
    The socket has wrong permissions.

    The kernel names the peer, and the daemon neither reads nor answers.
    """
    client = world.start()
    open_up(world.folder)
    os.chmod(world.folder / "run", 0o711)
    os.chmod(world.socket, 0o666)

    said = {stranger(ASK, world.socket) for _ in range(3)}

    assert said <= {"0", "ConnectionResetError", "BrokenPipeError"}
    assert client.call("status")["daemon"]["pid"] == world.process.pid


@pytest.mark.parametrize("what", ["folder", "link", "file", "socket"])
def test_a_trap_in_a_folder_for_everybody_is_refused(tmp_path, stranger, what):
    """
    In /tmp any user can create a file first:

    the daemon neither writes through it nor trusts it.
    """
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    open_up(tmp_path)
    there = tmp / "watchdog-0"
    stranger(
        {
            "folder": "import os, sys; os.mkdir(sys.argv[1], 0o777)",
            "link": "import os, sys; os.symlink('/etc', sys.argv[1])",
            "file": "import os, sys; open(sys.argv[1], 'w').close()",
            "socket": "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])",
        }[what],
        str(there),
    )

    with pytest.raises(WatchdogError):
        private_folder(str(there))

    assert STRANGER == os.lstat(there).st_uid  # the daemon does not take the ownership either


@pytest.mark.parametrize(("group", "mode"), [(0, 0o777), (STRANGER, 0o770)], ids=["all", "group"])
def test_a_folder_that_others_could_rename_is_refused(tmp_path, group, mode):
    """Without the sticky bit another user could replace the folder during the run."""
    os.chown(tmp_path, 0, group)
    tmp_path.chmod(mode)

    with pytest.raises(WatchdogError, match="others can put one of theirs"):
        private_folder(str(tmp_path / "run"))


def test_a_folder_that_is_made_is_closed_to_a_group_of_others(tmp_path):
    """A project folder passes its group on, and a shared umask makes it writable."""
    os.chown(tmp_path, 0, STRANGER)
    tmp_path.chmod(0o2755)
    before = os.umask(0o002)
    try:
        private_folder(str(tmp_path / "run" / "watchdog"))
    finally:
        os.umask(before)

    assert STRANGER == os.stat(tmp_path / "run").st_gid
    assert not os.stat(tmp_path / "run").st_mode & 0o022


def test_whoever_owns_the_folder_is_told_how_to_close_it(tmp_path):
    """The user chose this folder, so using another one would be wrong."""
    tmp_path.chmod(0o757)

    with pytest.raises(WatchdogError, match=f"chmod go-w {tmp_path}"):
        private_folder(str(tmp_path / "run"))


def test_a_folder_that_only_the_users_own_group_could_rename_is_taken(tmp_path):
    """Many systems give each user a private group with write permission."""
    tmp_path.chmod(0o770)

    private_folder(str(tmp_path / "run"))

    assert 0o700 == stat.S_IMODE(os.stat(tmp_path / "run").st_mode)


def test_a_folder_swapped_while_it_is_looked_at_is_never_used(tmp_path):
    """
    A stranger swaps it as fast as possible; each accepted folder belongs to the user and is
    private.
    """
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o777)
    open_up(tmp_path)
    tmp.chmod(0o1777)
    path = str(tmp / "watchdog-0")
    pid = os.fork()
    if pid == 0:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        try:
            _swap(path)
        finally:
            os._exit(0)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            private_folder(path)
        except WatchdogError:
            continue
        found = os.lstat(path)
        assert stat.S_ISDIR(found.st_mode)
        assert (0, 0o700) == (found.st_uid, stat.S_IMODE(found.st_mode))
        os.rmdir(path)
    os.waitpid(pid, 0)


def _swap(path: str) -> None:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for make, drop in ((lambda: os.symlink("/etc", path), os.unlink),
                           (lambda: os.mkdir(path, 0o777), os.rmdir)):  # fmt: skip
            try:
                make()
                drop(path)
            except OSError:
                pass


def test_a_folder_replaced_while_the_daemon_runs_is_not_listened_in(world):
    """Another user replaced the folder: no socket of the daemon appears there."""
    world.start().close()
    os.rename(world.folder / "run", world.folder / "run-before")
    (world.folder / "run").mkdir(mode=0o777)
    os.chown(world.folder / "run", STRANGER, STRANGER)

    world.until(lambda: "belongs to user 65534" in world.log(), "it is said", 30)

    assert [] == os.listdir(world.folder / "run")
    assert world.process.poll() is None


def test_a_lock_that_is_a_second_name_of_another_file_is_left_alone(tmp_path):
    """
    The hard link is older than the folder's permissions:

    the daemon must not overwrite its target.
    """
    (tmp_path / "precious").write_text("thesis")
    os.link(tmp_path / "precious", tmp_path / "daemon.lock")

    with pytest.raises(WatchdogError, match="no lock of ours"):
        InstanceLock(str(tmp_path / "daemon.lock"))

    assert "thesis" == (tmp_path / "precious").read_text()


def test_a_pipe_in_the_place_of_the_lock_is_refused_at_once(tmp_path):
    """The daemon neither blocks nor prints a traceback."""
    os.mkfifo(tmp_path / "daemon.lock")
    with pytest.raises(WatchdogError, match="no lock of ours"):
        InstanceLock(str(tmp_path / "daemon.lock"))


def test_a_client_says_nothing_to_a_strangers_daemon(tmp_path):
    """Another user listens at the daemon's path: the client checks the peer before it sends."""
    from watchdog_app.base.errors import ProtocolError
    from watchdog_app.client.client import Client

    path = str(tmp_path / "daemon.sock")
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        heard = b"?"
        try:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            os.chmod(path, 0o666)
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            listener.listen()  # the peer's credentials are those of this moment: unix(7)
            os.write(told, b"x")
            connection, _ = listener.accept()
            heard = connection.recv(10)
        finally:
            os._exit(0 if heard == b"" else 1)
    os.read(ready, 1)

    with pytest.raises(ProtocolError, match=f"user {STRANGER}"):
        Client.connect(path)

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ready)
    os.close(told)


# Files


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "why"),
    [
        (STRANGER, 0, 0o600, "belongs to user 65534"),
        (STRANGER, STRANGER, 0o644, "belongs to user 65534"),
        (0, 0, 0o666, "may be written by others"),
        (0, 0, 0o602, "may be written by others"),
        (0, 100, 0o664, "may be written by others"),
        (0, 0, 0o664, None),  # root's own group: many systems give each user one
        (0, 0, 0o644, None),
        (0, 0, 0o400, None),
    ],
)
def test_a_configuration_that_others_may_write_is_refused(tmp_path, uid, gid, mode, why):
    """It can name a command to run. The message says who owns it and what to type."""
    path = tmp_path / "config.toml"
    path.write_text("[stages]\nwarn_s = 77\n")
    os.chown(path, uid, gid)
    path.chmod(mode)

    if why is None:
        assert 77.0 == configuration.load(str(path), {})[0].stages.warn_s
    else:
        with pytest.raises(ConfigError, match=why):
            configuration.load(str(path), {})


def test_a_daemon_does_not_start_with_a_strangers_configuration(world):
    """The exit code is 2, and no setting was in force."""
    os.chown(world.config, STRANGER, STRANGER)
    found = world.command("run")
    assert 2 == found.returncode
    assert "belongs to user 65534" in found.stderr


def test_a_configuration_that_is_a_pipe_is_refused_at_once(tmp_path):
    """Reading it could block forever."""
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match="no regular file"):
        configuration.load(str(tmp_path / "config.toml"), {})
    assert configuration.load(os.devnull, {})


def test_a_rescue_that_a_stranger_laid_is_passed_over(tmp_path):
    """The program uses the previous rescue, reports the stranger's and leaves it."""
    said: list[str] = []
    store = RescueStore(str(tmp_path / "r"), keep=9, report=said.append)
    mine = store.save([], {"step": 1}).path
    theirs = store.save([], {"step": 2}).path
    store.wait_idle()
    os.chown(theirs, STRANGER, STRANGER)
    for name in os.listdir(theirs):
        os.chown(os.path.join(theirs, name), STRANGER, STRANGER)

    with store.newest() as found:
        assert mine == found.path
    store.close()

    assert any("another user put it there" in each for each in said)
    assert os.path.isdir(theirs)


def test_one_file_of_a_stranger_makes_a_rescue_his(tmp_path):
    """
    A foreign rescue.json in the user's folder is refused, but a whole foreign folder was the user's
    choice.
    """
    name = RescueName(1, 1, "1.1.00000000")
    folder = tmp_path / str(name)
    folder.mkdir()
    (folder / "rescue.json").touch()
    assert not is_other_users(str(tmp_path), name)

    os.chown(folder / "rescue.json", STRANGER, STRANGER)
    assert is_other_users(str(tmp_path), name)

    os.chown(tmp_path, STRANGER, STRANGER)  # as on a network disk with one owner for all files
    assert not is_other_users(str(tmp_path), name)
    os.chown(tmp_path, 0, 0)


@pytest.mark.parametrize("name", ["", "journal.db", "journal.db-wal"])
def test_a_journal_of_a_stranger_is_not_opened(tmp_path, name):
    """The daemon would act on its contents and resume paused tasks."""
    state = tmp_path / "state"
    Journal(str(state), 60.0, 1 << 20).close()
    (state / "journal.db-wal").touch()
    os.chown(state / name, STRANGER, STRANGER)

    with pytest.raises(PermissionError, match="belongs to user 65534"):
        Journal(str(state), 60.0, 1 << 20)


@pytest.mark.parametrize("trap", ["stranger", "hard link", "pipe", "link"])
def test_crash_reports_are_written_into_no_trap(tmp_path, monkeypatch, trap):
    """A file already exists under the report's name: the agent must not write into it."""
    from watchdog_app.agent.runtime import crash_report
    from watchdog_app.rescue.checkpoint import owner

    crash_report.uninstall()  # an agent of an earlier test may have installed it in this process
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "state" / crash_report.FOLDER
    folder.mkdir(parents=True)
    path = folder / f"{os.getpid()}-{owner.start_time(os.getpid())}"
    (tmp_path / "precious").write_text("thesis")
    if trap == "stranger":
        path.touch()
        os.chown(path, STRANGER, STRANGER)
    elif trap == "hard link":
        os.link(tmp_path / "precious", path)
    elif trap == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "precious")

    assert not crash_report.install()

    assert "thesis" == (tmp_path / "precious").read_text()


def test_the_peer_of_a_connection_is_whom_the_kernel_names(tmp_path):
    """The peer's own claim does not count."""
    open_up(tmp_path)
    path = str(tmp_path / "s")
    listener = transport.listen(path)
    os.chmod(path, 0o666)
    listener.setblocking(True)
    listener.settimeout(10)
    pid = os.fork()
    if pid == 0:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        socket.socket(socket.AF_UNIX).connect(path)
        os._exit(0)
    connection, _ = listener.accept()

    peer = transport.peer(connection)

    assert (STRANGER, pid) == (peer.uid, peer.pid)
    assert not peer.trusted
    os.waitpid(pid, 0)
    connection.close()
    listener.close()
