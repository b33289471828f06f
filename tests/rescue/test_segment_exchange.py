"""Segments and memories that trainings hand over, and what a watcher refuses."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from array import array
from contextlib import suppress
from pathlib import Path

import pytest
from support.waiting import until

from watchdog_app.base.linux.process import start_time
from watchdog_app.rescue.segment import exchange
from watchdog_app.rescue.segment.exchange import Registry
from watchdog_app.rescue.segment.segment import Segment, SegmentDamaged, SegmentReader
from watchdog_app.rescue.segment.snapshot import ProcessMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")
ME = os.getpid()
SIZE = 65536
NOBODY = 65534
PR_SET_DUMPABLE = 4


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / exchange.SOCKET)


@pytest.fixture
def registry(path):
    found = Registry(3)
    found.listen(path)
    yield found
    found.close()


@pytest.fixture
def segment():
    with Segment(SIZE) as found:
        yield found


def opened():
    return set(os.listdir("/proc/self/fd"))


def send(path, message, fds):
    """Send a datagram as anybody could."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
        line.sendmsg([message], [rights] if fds else [])


def test_nobody_can_shorten_or_unseal_a_segment(segment):
    """So a watcher that reads it gets no error, and no SIGBUS."""
    for size in (0, SIZE - 4096, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert SIZE // 512 == os.fstat(segment.fd).st_blocks  # all pages are there


def test_a_segment_that_its_program_has_dropped_is_closed():
    """A training that is collected without an end."""
    before = opened()
    Segment(SIZE)

    assert before == opened()


def test_an_offer_names_the_process_the_folder_and_its_memory(registry, path, segment):
    """The kernel names the process; what the agent writes afterwards is seen."""
    memory = ctypes.create_string_buffer(b"weights")
    assert exchange.offer(path, "/rescues", segment.fd)

    (found,) = registry.receive()

    segment.set_state_bytes(7)
    about = (found.pid, found.start_time, found.directory, found.segment.state_bytes)
    assert (ME, start_time(ME), "/rescues", 7) == about
    read = ProcessMemory(found.memory_fd).read([(ctypes.addressof(memory), 7)])
    assert b"weights" == read
    assert registry.offers == {ME: found}


def test_what_a_watcher_gets_is_not_inherited_by_programs_that_it_starts(registry, path, segment):
    """Both ends: of the training as well."""
    exchange.offer(path, "/rescues", segment.fd)
    (found,) = registry.receive()

    assert [False] * 3 == [os.get_inheritable(fd) for fd in (*found.fds, segment.fd)]


def test_a_path_of_any_length_can_be_listened_at(tmp_path, segment):
    """Addresses of sockets have at most 107 bytes."""
    folder = tmp_path / ("deep" * 20) / ("deeper" * 20)
    folder.mkdir(parents=True)
    registry = Registry(1)
    registry.listen(str(folder / exchange.SOCKET))

    exchange.offer(str(folder / exchange.SOCKET), "/rescues", segment.fd)

    assert [ME] == [each.pid for each in registry.receive()]
    registry.close()


def test_a_training_never_waits_for_its_watcher(registry, path, segment):
    """A watcher that does not read, one that has ended, and none at all."""
    before = opened()
    sent = 0
    with suppress(BlockingIOError):
        while sent < 1000:
            exchange.offer(path, "/rescues", segment.fd)
            sent += 1
    registry.close()
    with pytest.raises(ConnectionRefusedError):
        exchange.offer(path, "/rescues", segment.fd)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        exchange.offer(path, "/rescues", segment.fd)
    assert exchange.find_watcher(path) is None
    assert 0 < sent < 1000
    assert opened() < before  # the registry's own descriptor is closed


def test_the_sockets_of_strangers_get_nothing(path, registry, monkeypatch, tmp_path):
    """Neither a socket of another user nor a file that is none."""
    ours = exchange.find_watcher(path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(exchange.paths, "is_foreign", lambda _: True)

    assert ours is not None
    assert exchange.find_watcher(path) is None
    assert exchange.find_watcher(str(tmp_path / "file")) is None


def unsealed():
    fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    return fd


def sealed(size, first=b""):
    fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
    os.write(fd, first)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


STRANGE = {
    "unsealed": unsealed,
    "too short": lambda: sealed(4096),
    "no pages": lambda: sealed(SIZE + 1),
    "another version": lambda: sealed(SIZE, (4).to_bytes(8, "little")),
    "a file": lambda: os.open(__file__, os.O_RDONLY),
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDONLY),
    "a pipe": lambda: os.pipe()[0],
    "memory": lambda: os.open("/proc/self/mem", os.O_RDONLY),
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_what_is_no_segment_is_refused_and_closed(registry, path, make):
    """Nothing of it stays open in the watcher."""
    fd = make()
    before = opened()
    send(path, b"/rescues", [fd])

    assert [] == registry.receive()

    assert before == opened()
    with pytest.raises((OSError, SegmentDamaged)):
        SegmentReader(fd)
    os.close(fd)


@pytest.mark.parametrize(
    ("message", "count"),
    [(b"", 1), (b"relative", 1), (b"/a\0b", 1), (b"/x" * 5000, 1), (b"/", 0), (b"/", 3)],
    ids=["empty", "relative", "zero", "long", "no descriptor", "three"],
)
def test_a_message_that_is_no_offer_is_refused(registry, path, segment, message, count):
    """Its descriptors are closed."""
    before = opened()
    send(path, message, [segment.fd] * count)

    assert ([], before) == (registry.receive(), opened())


@pytest.mark.parametrize("make", [STRANGE["a pipe"], STRANGE["a file"]], ids=["pipe", "file"])
def test_memory_that_is_none_is_refused(registry, path, segment, make):
    """A read of it could hang."""
    fd = make()
    before = opened()
    send(path, b"/", [segment.fd, fd])

    assert ([], before) == (registry.receive(), opened())
    os.close(fd)


def test_the_memory_of_another_process_is_refused(registry, path, segment):
    """A rescue holds the state of the process that was stopped, and of no other."""
    other = os.fork()
    if other == 0:
        signal.pause()
    fd = os.open(f"/proc/{other}/mem", os.O_RDONLY)
    before = opened()
    send(path, b"/", [segment.fd, fd])

    found = registry.receive()

    after = opened()
    end(other)
    os.close(fd)
    assert ([], before) == (found, after)


def test_the_offer_of_a_process_that_has_ended_is_refused(registry, path):
    """It ended before the watcher came to read the message."""
    before = opened()
    end(offering_child(path))

    assert ([], before) == (registry.receive(), opened())


def test_a_program_that_replaced_the_training_is_not_read(registry, path):
    """The same pid and start time after exec: the memory is still that of the training."""
    with Segment(SIZE) as own:
        child = os.fork()
        if child == 0:
            exchange.offer(path, "/", own.fd)
            os.execv(sys.executable, [sys.executable, "-c", "import time; print(); time.sleep(99)"])
        until(registry.receive, "the offer arrives")
    memory = ProcessMemory(registry.offers[child].memory_fd)
    cmdline = Path(f"/proc/{child}/cmdline")
    until(lambda: b"time.sleep" in cmdline.read_bytes(), "the exec is over")
    with open(f"/proc/{child}/maps") as maps:
        address = int(maps.readline().split("-")[0], 16)

    with pytest.raises(OSError, match="the memory ends there"):
        memory.read([(address, 4)])
    end(child)


UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
IN_CONTAINER = """
import sys
from watchdog_app.rescue.segment import exchange, segment
own = segment.Segment()
exchange.offer(sys.argv[1], "/in", own.fd)
sys.stdin.read()
"""


def can_unshare():
    return os.geteuid() == 0 and 0 == subprocess.run([*UNSHARE, "true"], check=False).returncode


def test_a_training_in_a_container_is_known_by_the_pid_outside(registry, path):
    """Its own /proc names its memory by the pid inside."""
    if not can_unshare():
        pytest.skip("needs root and namespaces")
    words = [*UNSHARE, sys.executable, "-c", IN_CONTAINER, path]
    training = subprocess.Popen(words, stdin=subprocess.PIPE)
    until(registry.receive, "the offer arrives")

    (found,) = registry.offers.values()

    name = os.readlink(f"/proc/self/fd/{found.memory_fd}")
    training.communicate()
    assert ("/in", "/proc/1/mem") == (found.directory, name)
    assert found.pid not in (1, ME, training.pid)


def test_a_socket_in_a_folder_of_others_gets_no_memory(path, registry, tmp_path):
    """Another user could put an own socket there between the check and the offer."""
    ours = exchange.find_watcher(path)
    tmp_path.chmod(0o777)

    assert ours is not None
    assert exchange.find_watcher(path) is None


def test_another_user_is_refused(registry, path, segment, monkeypatch):
    """The kernel names the user; root is trusted."""
    exchange.offer(path, "/rescues", segment.fd)
    monkeypatch.setattr(exchange, "_CREDENTIALS", exchange.struct.Struct("=iII"))
    taken = exchange._read_offer
    senders = []

    def of_another(message, fds, sender):
        senders.append(sender)
        return taken(message, fds, (sender[0], os.geteuid() + 7))

    monkeypatch.setattr(exchange, "_read_offer", of_another)

    assert [] == registry.receive()
    assert [(ME, os.geteuid())] == senders


def test_a_process_has_one_offer_and_the_latest_counts(registry, path, segment):
    """The next training of a process has another segment."""
    before = opened()
    for name in ("/first", "/second"):
        exchange.offer(path, name, segment.fd)
        registry.receive()

    assert ["/second"] == [each.directory for each in registry.offers.values()]
    registry.remove(ME)
    assert before == opened()


def test_a_training_that_is_over_is_dropped_while_its_process_lives(registry, path, segment):
    """A segment takes four megabytes; the process may do something else for hours."""
    before = opened()
    exchange.offer(path, "/rescues", segment.fd)
    registry.receive()
    registry.remove_ended()
    kept = ME in registry.offers
    segment.end()

    registry.remove_ended()

    assert (True, {}, before) == (kept, registry.offers, opened())


def test_an_agent_sees_whether_its_offer_was_taken(registry, path, segment):
    """Not one for which there is no room, and not one that the watcher has dropped."""
    exchange.offer(path, "/rescues", segment.fd)
    before = segment.is_taken
    registry.receive()
    taken = segment.is_taken
    registry.remove(ME)
    dropped = segment.is_taken
    full = Registry(0)
    full.listen(path)
    exchange.offer(path, "/rescues", segment.fd)
    full.receive()
    full.close()

    assert (False, True, False, False) == (before, taken, dropped, segment.is_taken)


def offering_child(path):
    """The pid of a process that has offered a segment."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with Segment(SIZE) as own:
            exchange.offer(path, f"/of-{os.getpid()}", own.fd)
            os.write(write, b"x")
            signal.pause()
    os.read(read, 1)
    os.close(read)
    os.close(write)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_there_are_never_more_offers_than_allowed_and_ended_ones_make_room(registry, path):
    """Descriptors are few; what is over is not taken."""
    children = []
    for _ in range(4):
        children.append(offering_child(path))
        registry.receive()
    some = set(registry.offers)
    for child in children[2:][::-1]:
        end(child)
    children[2] = offering_child(path)

    registry.receive()

    now = set(registry.offers)
    for child in children[:3]:
        end(child)
    registry.remove_ended()
    assert 3 == len(some)
    assert set(children[:3]) == now
    assert {} == registry.offers


def test_a_watcher_without_free_descriptors_takes_nothing_and_leaks_nothing(
    registry, path, segment
):
    """The kernel cuts the message off."""
    exchange.offer(path, "/rescues", segment.fd)
    before = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(segment.fd)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
    try:
        found = registry.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert ([], before) == (found, opened())


def test_an_heir_finds_the_present_offers_and_no_others(registry, path):
    """A standby takes over from a supervisor that was killed, over and over."""
    registry.successor_fd()
    children = [offering_child(path) for _ in range(3)]
    for _ in range(50):
        registry.receive()
        registry._send_to_successor()
    end(children[0])
    registry.remove_ended()
    inherited = os.dup(registry.successor_fd())
    registry.close()  # as the kernel does at its end
    heir, second = Registry(3), Registry(3)

    heir.inherit(inherited)
    again = os.dup(heir.successor_fd())
    heir.close()
    second.inherit(again)

    found = {pid: (each.directory, each.segment.sequence) for pid, each in second.offers.items()}
    second.close()
    for child in children[1:]:
        end(child)
    assert {pid: (f"/of-{pid}", 1) for pid in children[1:]} == found


def test_the_heir_is_told_once_about_many_that_ended(registry, path, monkeypatch):
    """All workers of a training end at the same time."""
    children = [offering_child(path) for _ in range(3)]
    registry.receive()
    for child in children:
        end(child)
    told = []
    monkeypatch.setattr(registry, "_send_to_successor", lambda: told.append(registry.offers))

    registry.remove_ended()
    registry.remove_ended()

    assert [{}] == told


def test_an_heir_takes_no_offer_of_a_process_that_has_ended(registry, path):
    """It ended while no supervisor ran."""
    registry.successor_fd()
    child = offering_child(path)
    registry.receive()
    inherited = os.dup(registry.successor_fd())
    registry.close()
    end(child)
    before = opened()
    heir = Registry(3)

    heir.inherit(inherited)

    assert {} == heir.offers
    assert before - {str(inherited)} == opened()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_memory_is_read_where_the_kernel_refuses_to_open_it():
    """As under Yama's ptrace_scope 1 and 2: here the training has forbidden it since."""
    folder = tempfile.mkdtemp(prefix="watchdog-test-")
    os.chown(folder, NOBODY, NOBODY)
    watcher = os.fork()
    if watcher == 0:
        code = 1
        try:
            become_nobody()
            code = 0 if read_refused_memory(os.path.join(folder, exchange.SOCKET)) else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    _, status = os.waitpid(watcher, 0)

    shutil.rmtree(folder)
    assert 0 == status


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    dumpable(1)  # as a process is that was started by this user


def dumpable(on):
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, on, 0, 0, 0)


def read_refused_memory(path):
    registry = Registry(1)
    registry.listen(path)
    shared = mmap.mmap(-1, 4096)
    places, end = os.pipe(), os.pipe()
    training = os.fork()
    if training == 0:
        with Segment(SIZE) as own:
            text = ctypes.create_string_buffer(b"its own memory")
            offered = exchange.offer(path, "/", own.fd)
            dumpable(0)
            shared[0] = int(offered)
            os.write(places[1], b"%d" % ctypes.addressof(text))
            os.read(end[0], 1)
            os._exit(0)
    address = int(os.read(places[0], 100))
    (offer,) = registry.receive()
    refused = False
    with suppress(PermissionError):
        os.open(f"/proc/{training}/mem", os.O_RDONLY)
        refused = True
    found = ProcessMemory(offer.memory_fd).read([(address, 14)])
    os.write(end[1], b"x")
    os.waitpid(training, 0)
    with pytest.raises(OSError, match="the memory ends there"):
        ProcessMemory(offer.memory_fd).read([(address, 14)])
    return shared[0] == 1 and not refused and found == b"its own memory"
