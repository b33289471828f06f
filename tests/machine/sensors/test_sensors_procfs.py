"""Files of one process: bytes to values."""

from __future__ import annotations

import os

import pytest
from sensor_trees import FIXTURES

from watchdog_app.base.errors import Denied, Gone, Unsupported
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, read_bytes, read_regular, sensor_error

REST = (
    b"S 1 450 450 0 -1 4194304 1848 70 1 0 3 4 0 0 20 0 2 0 5500 15298560 3032 "
    b"18446744073709551615 94716977250304 94716977250645 140736845958224 0 0 0 0"
)


@pytest.mark.parametrize(
    "name",
    [b"python", b") Z (", b"a b c", b"", b"((((", b"))))", b"x) R 1 2 3", "träger".encode(), b"\n"],
)
def test_stat_is_read_whatever_the_process_is_called(name: bytes):
    """The command's name may hold parentheses, blanks and anything else."""
    stat = process.Stat(b"450 (" + name + b") " + REST)

    assert (name, "S", 1, 450, 7, 2, 5500, 15298560, 140736845958224) == (
        stat.comm,
        stat.state,
        stat.ppid,
        stat.session,
        stat.cpu_ticks,
        stat.threads,
        stat.start_ticks,
        stat.vsize_bytes,
        stat.start_stack,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"450",
        b"450 (python",
        b"450 (python) ",
        b"450 (python) S 1 450",
        b"450 python) " + REST,
        b"450 (python) " + REST.replace(b"5500", b"many"),
        b")(",
        b"\x00" * 40,
    ],
)
def test_half_a_stat_is_an_error_and_no_figure(data: bytes):
    """A truncated or foreign line raises; it never yields zeros."""
    with pytest.raises(ValueError, match=r"stat|invalid literal"):
        process.Stat(data)


@pytest.mark.parametrize("data", [b"", b"12", b"12 13", b"12 x 3 4 0 5 0"])
def test_half_a_statm_is_an_error(data: bytes):
    """A truncated line raises."""
    with pytest.raises(ValueError, match=r"statm|invalid literal"):
        process.Statm(data)


def test_statm_gives_sizes_in_bytes():
    """Total, resident, shared, and the sixth field: private writable memory."""
    statm = process.Statm(b"3735 3032 1701 1 0 1434 0\n")

    sizes = (statm.size_bytes, statm.resident_bytes, statm.shared_bytes, statm.data_bytes)
    assert tuple(os.sysconf("SC_PAGE_SIZE") * n for n in (3735, 3032, 1701, 1434)) == sizes


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (b"Name:\tpython\nVmRSS:\t  100 kB\nVmSwap:\t    2048 kB\nThreads:\t1\n", 2048 * 1024),
        (b"Name:\tpython\nVmSwap:\t       0 kB\n", 0),
        (b"Name:\tVmSwap:\nThreads:\t1\n", None),
        (b"Name:\tkthreadd\nThreads:\t1\n", None),
        (b"Name:\tx\nVmSwap:\n", None),
        (b"", None),
    ],
)
def test_swap_is_none_where_the_kernel_names_none(status: bytes, expected: int | None):
    """A kernel thread has no swap line: unknown, not zero."""
    assert expected == process.status_bytes(status, b"VmSwap")


def test_own_pages_are_the_clean_and_the_dirty_ones():
    """They are Private_Clean and Private_Dirty of smaps_rollup."""
    data = b"00-ff ---p [rollup]\nRss: 900 kB\nPrivate_Clean:   4 kB\nPrivate_Dirty:  60 kB\n"

    clean, dirty = (process.status_bytes(data, b"Private_" + n) for n in (b"Clean", b"Dirty"))
    assert (4 * 1024, 60 * 1024) == (clean, dirty)
    assert process.status_bytes(b"Rss: 900 kB\n", b"Private_Clean") is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"python\0-c\0x\0", ("python", "-c", "x")),
        (b"python\0\0a\0", ("python", "", "a")),
        (b"ray::IDLE\0\0\0\0\0", ("ray::IDLE",)),
        (b"no terminator", ("no terminator",)),
        (b"", ()),
        (b"\0\0\0", ()),
        (b"caf\xe9.py\0", ("caf\\xe9.py",)),
        ("träger.py\0".encode(), ("träger.py",)),
        (b"a\nb\x1b[31m\0", ("a\nb\x1b[31m",)),
    ],
)
def test_arguments_are_printable_text(data: bytes, expected: tuple[str, ...]):
    """Padding is dropped, broken UTF-8 is shown as escapes."""
    assert expected == process.parse_cmdline(data)


def test_only_the_wanted_variables_leave_the_environment():
    """The rest of an environment may hold secrets."""
    data = b"AWS_SECRET=1\0JPY_SESSION_NAME=/a=b.ipynb\0broken\0=x\0JPY_PARENT_PID=7\0"

    found = process.parse_environ(data, ("JPY_SESSION_NAME", "JPY_PARENT_PID"))

    assert {"JPY_SESSION_NAME": "/a=b.ipynb", "JPY_PARENT_PID": "7"} == found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Max address space         34359738368          unlimited            bytes", 34359738368),
        (b"Max address space         unlimited            unlimited            bytes", None),
        (b"Max address space", None),
        (b"Max stack size            8388608              unlimited            bytes", None),
    ],
)
def test_limit_of_the_address_space(line: bytes, expected: int | None):
    """The soft limit counts; unlimited is None."""
    assert expected == process.parse_rlimit_as(b"Limit  Soft  Hard  Units\n" + line + b"\n")


def test_a_real_process_is_read_as_captured():
    """The captured files of a process give its figures."""
    stat = process.Stat((FIXTURES / "proc/431/stat").read_bytes())

    assert ("S", 430, 5310) == (stat.state, stat.ppid, stat.start_ticks)
    assert 34359738368 == process.parse_rlimit_as((FIXTURES / "proc/431/limits").read_bytes())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"0.10 0.05 0.02 3/94 21812\n", 21812),
        (b"0.10 0.05", None),
        (b"0 0 0 0/0 0", None),
        (b"", None),
    ],
)
def test_last_pid(data: bytes, expected: int | None):
    """It is the fifth word of /proc/loadavg."""
    assert expected == process.parse_last_pid(data)


@pytest.mark.parametrize(
    ("data", "expected"), [(b"2684.29 5100.2\n", 2684.29), (b"", None), (b"soon", None)]
)
def test_uptime(data: bytes, expected: float | None):
    """It is the first word of /proc/uptime."""
    assert expected == process.parse_uptime(data)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(2, Gone), (3, Gone), (19, Gone), (13, Denied), (1, Denied), (5, Unsupported)],
)
def test_gone_denied_and_unsupported_are_three_errors(number: int, kind: type[Exception]):
    """Errors of the system are distinguished, and name the file."""
    error = sensor_error(OSError(number, "reason"), "/proc/1/stat")

    assert type(error) is kind
    assert "/proc/1/stat" in str(error)


def test_a_kept_file_shows_what_is_in_it_now(tmp_path):
    """Every read starts at the beginning and sees the present content."""
    path = tmp_path / "usage"
    path.write_text("1\n")
    kept = KeptFile(str(path))

    first = kept.read()
    path.write_text("22\n")

    assert (b"1\n", b"22\n") == (first, kept.read())
    kept.close()
    kept.close()


def test_a_kept_file_comes_back_after_it_was_missing(tmp_path):
    """A read of a missing file raises Gone; later it is read."""
    kept = KeptFile(str(tmp_path / "later"))
    with pytest.raises(Gone):
        kept.read()

    (tmp_path / "later").write_text("now")

    assert b"now" == kept.read()
    kept.close()


def test_long_files_are_read_whole_up_to_the_limit():
    """An environment is longer than one read returns."""
    assert 3_000_000 == len(read_bytes("/dev/zero", 3_000_000))


def test_reading_leaves_no_descriptor_behind(tmp_path):
    """Neither a good read nor a failed one keeps the file open."""
    before = len(os.listdir("/proc/self/fd"))

    read_bytes(str(FIXTURES / "proc/431/stat"))
    with pytest.raises(Unsupported):
        read_bytes(str(tmp_path))  # a folder

    assert before == len(os.listdir("/proc/self/fd"))


def test_path_that_another_process_named_is_read_only_if_it_is_a_file(tmp_path):
    """A pipe would block for ever, and reading a device could have side effects."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("content")

    for path in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path)):
        with pytest.raises(Unsupported, match="no regular file"):
            read_regular(path)
    with pytest.raises(Gone):
        read_regular(str(tmp_path / "missing"))

    assert b"content" == read_regular(str(tmp_path / "file"))


def test_the_rest_of_stat_is_read_of_a_real_process():
    """Job control, faults, flags, and the status of an ended child."""
    child = os.fork()
    if child == 0:
        os._exit(7)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    ended, own = process.read_stat(child), process.read_stat("self")
    os.waitpid(child, 0)

    assert ended is not None
    assert own is not None
    assert (7 << 8, "Z", True) == (ended.wait_status, ended.state, ended.has_ended)
    assert (os.getppid(), os.getsid(0)) == (own.ppid, own.session)
    assert not own.is_kernel_thread
    assert process.start_time(os.getpid()) == own.start_ticks
    assert process.read_stat(child) is None
