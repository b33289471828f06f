"""Writing tensors to a file without a second copy."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import warnings
import zlib

import pytest
from support.finished import finished

from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import stream
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.sink import Reserve, Sink, private_memory
from watchdog_app.rescue.checkpoint.stream import SaveFailed, Streamer

CHUNK = 8192


def noise(size, seed=1):
    return (zlib.compress(bytes([seed]) * 100) * (size // 10 + 1))[:size]


def write(streamer, path, *parts_and_progress, **total_bytes):
    checksums = streamer.write(str(path), *parts_and_progress, **total_bytes)
    streamer.wait_idle()
    return checksums


@pytest.fixture
def streamer():
    made = Streamer(CHUNK)
    yield made
    made.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [4095, 1],
        [4096],
        [4097],
        [CHUNK - 1],
        [CHUNK],
        [CHUNK, CHUNK],
        [CHUNK + 1],
        [0, 3 * CHUNK + 5, 0, 7, 2 * CHUNK],
        [1] * 300,
        [40 * CHUNK + 1, 5000],
    ],
)
def test_the_file_is_the_parts_one_after_the_other(tmp_path, streamer, sizes, direct, monkeypatch):
    """For any sizes the file has every byte without padding, and each part has its checksum."""
    parts = [TensorEntry.of_bytes(f"p{n}", noise(size, n % 200)) for n, size in enumerate(sizes)]
    data = [bytes(part.view()) for part in parts]

    if not direct:  # a file system that refuses O_DIRECT
        monkeypatch.setattr(Sink, "_set_direct", lambda *_: False)

    checksums = write(streamer, tmp_path / "file", parts)

    assert b"".join(data) == (tmp_path / "file").read_bytes()
    assert {part.name: zlib.crc32(each) for part, each in zip(parts, data, strict=True)} == (
        checksums
    )


def test_a_view_is_taken_in_turn_and_released_before_the_next(tmp_path, streamer):
    """
    The buffers of two tensors are never held together, because a framework may need to move them.
    """
    taken = []

    def view(number):
        assert all(not _alive(each) for each in taken)
        taken.append(memoryview(noise(3 * CHUNK, number)))
        return taken[-1]

    parts = [
        TensorEntry(str(n), "U8", (3 * CHUNK,), 3 * CHUNK, lambda n=n: view(n)) for n in range(3)
    ]
    write(streamer, tmp_path / "file", parts)

    assert 3 == len(taken)
    assert not any(_alive(each) for each in taken)


def _alive(view):
    try:
        view.nbytes  # noqa: B018
    except ValueError:
        return False
    return True


def test_views_of_any_shape_and_type_are_taken_as_bytes(tmp_path, streamer):
    """A two-dimensional view of floats works like one of bytes."""
    floats = memoryview(bytes(range(48))).cast("f", (3, 4))

    write(streamer, tmp_path / "file", [TensorEntry("a", "F32", (3, 4), 48, lambda: floats)])

    assert bytes(range(48)) == (tmp_path / "file").read_bytes()


def test_progress_grows_to_the_total(tmp_path, streamer):
    """It is called in the saving thread, and ends at the full size."""
    seen = []

    write(
        streamer,
        tmp_path / "file",
        [TensorEntry.of_bytes("a", noise(5 * CHUNK + 9))],
        lambda done, total: seen.append((done, total, threading.current_thread())),
        total_bytes=5 * CHUNK + 9,
    )

    assert sorted(seen, key=lambda each: each[0]) == seen
    assert (5 * CHUNK + 9, 5 * CHUNK + 9, threading.current_thread()) == seen[-1]


@pytest.mark.parametrize("nbytes", [CHUNK - 1, 3 * CHUNK + 1])
def test_a_tensor_that_changed_its_size_is_refused(tmp_path, streamer, nbytes):
    """The header has another size: no file is left, and the next write works."""
    entry = TensorEntry("w", "U8", (CHUNK,), CHUNK, lambda: memoryview(bytes(nbytes)))

    with pytest.raises(RescueError, match="'w' changed"):
        write(streamer, tmp_path / "file", [entry])

    assert [] == os.listdir(tmp_path)
    write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", b"abc")])


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_an_interruption_leaves_nothing_and_the_next_write_works(tmp_path, streamer, kind, at):
    """
    Ctrl-C or a framework's error at any chunk leaves no file, an idle thread and usable buffers.
    """
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) > at:
            raise kind("here")

    with pytest.raises(kind):
        write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(9 * CHUNK))], progress)

    assert [] == os.listdir(tmp_path)
    data = noise(4 * CHUNK + 3, 7)
    write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", data)])
    assert data == (tmp_path / "file").read_bytes()


def test_ctrl_c_at_any_moment_leaves_a_streamer_that_works(tmp_path):
    """
    A signal between any two instructions causes no deadlock, no partial file and no lost buffer.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    streamer = Streamer(CHUNK)
    data = noise(30 * CHUNK)
    interrupted = 0
    gc.disable()  # in JAX's gc callback the signal would be reported, not raised
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for attempt in range(80):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.00005 * attempt)
                write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", data)])
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert data == (tmp_path / "file").read_bytes()
            except KeyboardInterrupt:
                interrupted += 1
            (tmp_path / "file").unlink(missing_ok=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        gc.enable()
        streamer.close()

    assert interrupted


def test_a_framework_error_in_a_view_comes_through(tmp_path, streamer):
    """The caller gets the original error."""

    def broken():
        raise RuntimeError("variable was deleted")

    with pytest.raises(RuntimeError, match="was deleted"):
        write(streamer, tmp_path / "file", [TensorEntry("a", "U8", (1,), 1, broken)])

    assert [] == os.listdir(tmp_path)


def test_a_file_that_exists_is_never_overwritten(tmp_path, streamer):
    """Each file has a unique name."""
    (tmp_path / "file").write_bytes(b"mine")

    with pytest.raises(SaveFailed):
        write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", b"other")])

    assert b"mine" == (tmp_path / "file").read_bytes()


def test_a_limit_on_file_sizes_is_told_in_words(tmp_path):
    """EFBIG in the writing thread becomes a message with a remedy; the file is removed."""
    streamer = Streamer(CHUNK)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * CHUNK, hard))
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(SaveFailed) as caught:
            write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(20 * CHUNK))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
        streamer.close()

    assert "ulimit -f" in caught.value.remedy
    assert [] == os.listdir(tmp_path)


def test_a_refused_direct_write_goes_through_the_cache(tmp_path):
    """EINVAL at the first write (here from unaligned memory) is not a reason to give up."""
    sink = Sink(str(tmp_path / "file"))
    crooked = memoryview(bytearray(noise(CHUNK + 1)))[1:]

    sink.write(crooked, CHUNK)
    sink.write(crooked, 100)

    assert CHUNK + 100 == sink.finish()
    assert not sink.direct
    data = bytes(crooked)
    assert data + data[:100] == (tmp_path / "file").read_bytes()


def test_two_saves_at_once_are_refused(tmp_path, streamer):
    """The buffers belong to one save at a time."""

    def again(done, total):
        write(streamer, tmp_path / "other", [TensorEntry.of_bytes("b", b"x")])

    with pytest.raises(RescueError, match="still running"):
        write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(CHUNK))], again)


def test_a_busy_python_thread_beside_it_only_delays(tmp_path, streamer):
    """A data generator that never releases the interpreter; its switch interval is restored."""
    before = sys.getswitchinterval()
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        data = noise(20 * CHUNK)
        write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", data)])
    finally:
        stop.set()
        thread.join()

    assert data == (tmp_path / "file").read_bytes()
    assert before == sys.getswitchinterval()


FORKED = """
import os, sys
from watchdog_app.rescue.checkpoint import stream
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.stream import Streamer
streamer = Streamer(8192)
streamer.prepare()
pid = os.fork()
name = "child" if pid == 0 else "parent"
data = name.encode() * 20000
streamer.write(sys.argv[1] + "/" + name, [TensorEntry.of_bytes("a", data)])
streamer.wait_idle()
with open(sys.argv[1] + "/" + name, "rb") as file:
    assert file.read() == data
if pid == 0:
    os._exit(0)
sys.exit(os.waitpid(pid, 0)[1])
"""


def test_after_a_fork_parent_and_child_write_without_each_other(tmp_path):
    """They share no buffers, and neither waits for a thread that was not copied."""
    done = finished([sys.executable, "-W", "error::ResourceWarning", "-c", FORKED, str(tmp_path)])

    assert (0, "") == (done.returncode, done.stderr)


def test_a_small_file_is_written_while_the_other_is_made_durable(tmp_path, streamer):
    """Any size; `wait_idle` waits for the other file."""
    data = noise(3 * CHUNK + 11)
    streamer.write(str(tmp_path / "big"), [TensorEntry.of_bytes("a", data)])
    for name, size in (("none", 0), ("one", 1), ("more", 2 * CHUNK + 5)):
        streamer.write_small(str(tmp_path / name), data[:size])
        assert data[:size] == (tmp_path / name).read_bytes()
    streamer.wait_idle()

    assert data == (tmp_path / "big").read_bytes()


def test_jobs_are_done_in_order_and_their_errors_come_back(streamer):
    """The next call raises the error; after it everything works again."""
    done = []
    for number in range(5):
        streamer.submit(lambda number=number: done.append(number))
    streamer.wait_idle()
    assert [0, 1, 2, 3, 4] == done

    def broken():
        raise OSError(28, "no space")

    streamer.submit(broken)
    with pytest.raises(SaveFailed, match="is full"):
        streamer.wait_idle()
    streamer.wait_idle()
    streamer.submit(lambda: done.append(5))
    streamer.wait_idle()
    assert 5 == done[-1]


def test_memory_of_ours_is_not_shared_with_a_forked_child():
    """A data loader's fork must not copy these pages: the child finds zeros."""
    memory = private_memory(8192)
    memory[:5] = b"hello"
    read, write = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns of forks with threads; these are safe
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.write(write, memory[:5])
        os._exit(0)
    os.waitpid(pid, 0)

    assert bytes(5) == os.read(read, 5)
    assert b"hello" == memory[:5]
    os.close(read)
    os.close(write)


def test_a_reserve_is_held_and_given_back():
    """Held memory grows to the requested size and is resident; a release frees it."""
    reserve = Reserve()
    size = 64 << 20
    before = _rss_bytes()

    reserve.hold(1 << 20)
    reserve.hold(size)
    reserve.hold(1 << 20)
    assert size == reserve.bytes
    assert _rss_bytes() - before > size * 0.9

    reserve.release()
    reserve.release()
    assert 0 == reserve.bytes
    assert _rss_bytes() - before < size * 0.1


def test_a_reserve_that_cannot_be_had_now_leaves_what_is_held():
    """The training gets no error: the save works without the rest."""
    reserve = Reserve()
    reserve.hold(1 << 20)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, limits[1]))
    try:
        held = reserve.hold(1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)

    assert not held
    assert 1 << 20 == reserve.bytes
    assert reserve.hold(2 << 20)


def _rss_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_released_streamer_writes_again(tmp_path, streamer):
    """The buffers are allocated again when needed."""
    streamer.prepare()
    streamer.release()

    write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(3 * CHUNK))])

    assert noise(3 * CHUNK) == (tmp_path / "file").read_bytes()


def test_a_writing_thread_that_has_died_is_not_awaited(tmp_path, streamer, monkeypatch):
    """Memory may run out in the thread itself: the save fails, and the program goes on."""

    def dies(*_):
        sys.exit()  # ends a raw thread without a message

    monkeypatch.setattr(stream.Worker, "_run_job", dies)

    with pytest.raises(RescueError, match="has ended"):
        write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(9 * CHUNK))])

    monkeypatch.undo()
    write(streamer, tmp_path / "file", [TensorEntry.of_bytes("a", noise(3 * CHUNK))])
    assert noise(3 * CHUNK) == (tmp_path / "file").read_bytes()
