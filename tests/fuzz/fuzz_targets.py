"""
The fuzz targets: one function of bytes per parser of foreign data.

A target returns for any input; an exception that leaves it is a finding. Each target catches by
type the errors that its reader documents. `test_fuzz.py` (seconds, in every test run) and `fuzz.py`
(coverage-guided, `make fuzz`) use the targets.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress

from watchdog_app import config
from watchdog_app.base import codec
from watchdog_app.base.errors import (
    ConfigError,
    ProtocolError,
    RescueError,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.linux import cgroups, files, process
from watchdog_app.base.text.plain import clean, shell_argument
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.client import jsonrpc, requests
from watchdog_app.client.jsonrpc import BadLine, LineDecoder, LineTooLong, decode, encode
from watchdog_app.core.replay import play, trace
from watchdog_app.daemon import pauses
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.machine.gpu import events
from watchdog_app.machine.sensors import (
    command_line,
    exits,
    host,
    jupyter,
    kernel_events,
    notebooks,
    thread_dump,
)
from watchdog_app.rescue.checkpoint import format
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}


def target(function: Target) -> Target:
    """Register a function as a target under its name."""
    TARGETS[function.__name__] = function
    return function


@target
def framing(data: bytes) -> None:
    """Lines of any bytes: a decoded message can be encoded again with the same meaning."""
    decoder = LineDecoder(4096)
    for at in range(0, len(data), 7):
        try:
            for line in decoder.lines(data[at : at + 7]):
                with suppress(BadLine):
                    message = decode(line)
                    jsonrpc.check(message)
                    assert message == decode(encode(message).strip())
        except LineTooLong:
            return
        assert decoder.pending_bytes <= 4096


@target
def parameters(data: bytes) -> None:
    """Parameters of every method, from any object and from any value per parameter."""
    try:
        values = decode(data)
    except ProtocolError:
        return
    for record in requests.Params.__subclasses__():
        with suppress(WatchdogError):
            record.read(values)
        for name in record.FIELDS:
            with suppress(WatchdogError):
                record.read({name: values.get("a")})


@target
def configuration(data: bytes) -> None:
    """Any text as config.toml gives settings or errors."""
    with suppress(ConfigError):
        settings, sources = config.loads(data.decode("utf-8", "replace"), "config.toml", {})
        config.describe(settings, sources)


@target
def proc_stat(data: bytes) -> None:
    """A line of /proc/PID/stat or of a thread's stat."""
    with suppress(ValueError):
        stat = process.Stat(data)
        assert stat.wait_status is None or stat.wait_status >= 0


@target
def proc_files(data: bytes) -> None:
    """The other files of /proc/PID."""
    for parse in (process.Statm, thread_dump.parse_syscall):
        with suppress(ValueError):
            parse(data)
    for parse in (
        lambda data: process.status_bytes(data, b"VmSwap"), process.parse_cmdline,
        process.parse_rlimit_as, thread_dump.parse_wchan, thread_dump.parse_stack,
    ):  # fmt: skip
        parse(data)
    process.parse_environ(data, ("HOME", "CUDA_VISIBLE_DEVICES"))


@target
def proc_host(data: bytes) -> None:
    """Files of /proc that describe the machine."""
    for parse in (
        process.parse_uptime, process.parse_last_pid, host.parse_meminfo, host.parse_swap_traffic,
        host.parse_pressure, host.parse_arc,
    ):  # fmt: skip
        parse(data)


@target
def command_lines(data: bytes) -> None:
    """Arguments of a process, and the task name made from them."""
    argv = process.parse_cmdline(data)
    program = command_line.identify(argv, argv[0] if argv else None)
    for name in map(str, (program.script, program.connection_file, *argv)):
        shown = clean(name)
        assert shown.isprintable() or "\u2026" in shown
        assert not {"\x1b", "\n"} & set(shown)
        assert len(shown) <= 60
        assert not shell_argument(name, 1).startswith("-")


@target
def group_files(data: bytes) -> None:
    """Files of control groups."""
    cgroups.parse_limit(data)
    cgroups.flat_value(data, b"oom_kill")


@target
def group_paths(data: bytes) -> None:
    """/proc/PID/cgroup and mountinfo, and the group folders that they define."""
    cgroups.parse_membership(data)
    for hierarchy in cgroups.parse_mountinfo(data):
        for path in cgroups.parse_membership(data).values():
            cgroups.group_folder(hierarchy, path)


@target
def kernel_lines(data: bytes) -> None:
    """Records of /dev/kmsg: GPUs, kills, crashes and process tables."""
    events.parse_record(data)
    found = files.parse_log_record(data)
    message, at = found if found is not None else (data.decode("utf-8", "replace"), 1.0)
    kernel_events.parse(message, at)
    table = kernel_events.OomTable()
    for line in message.splitlines():
        events.parse_line(line, at)
        kernel_events.parse(line, at)
        table.add_line(line, at)
    table.finish()


@target
def crash_report(data: bytes) -> None:
    """The report of a Python process that crashed."""
    exits.parse_crash_report(data.decode("utf-8", "replace"))


@target
def trace_file(data: bytes) -> None:
    """A trace, compressed or not, and the JSON file next to it."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, "x.json", data)
        _write(folder, "x.csv", data)
        with suppress(UsageError):
            trace.read(os.path.join(folder, "x.csv"))
        _write(folder, "x.csv", b"t,used,limit\n0,1,9\n1,2,9\n")
        trace.read(os.path.join(folder, "x.csv"))


@target
def trace_samples(data: bytes) -> None:
    """Samples on standard input, one JSON object per line."""
    from watchdog_app.core.model.settings import Settings

    text = data.decode("utf-8", "replace")
    play.answer_lines(text.splitlines(), io.StringIO(), Settings())


@target
def rescue_manifest(data: bytes) -> None:
    """rescue.json with a valid checksum, which any writer can compute."""
    for body in (data, _checked(data)):
        with suppress(RescueError):
            format.read_manifest(body)


@target
def rescue_folder(data: bytes) -> None:
    """A folder that looks like a rescue."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, format.MANIFEST_FILE, _checked(data))
        _write(folder, format.STATE_FILE, data)
        with suppress(RescueError), LoadedRescue(folder) as loaded:
            loaded.verify()


@target
def jupyter_files(data: bytes) -> None:
    """Files of Jupyter servers and kernels, and answers of servers."""
    notebooks.parse_connection_file(data)
    info = jupyter.parse_server_info(data)
    assert info is None or not info.token or info.token not in repr(info) or len(info.token) < 40
    jupyter.parse_sessions(data, "/home/a")


@target
def journal_rows(data: bytes) -> None:
    """A journal with foreign rows: reading returns rows or raises an SQLite error."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder, 3600.0, 1 << 20)
        text = data.decode("utf-8", "replace")
        journal.add([Entry(1.0, "exit", {"text": text, "notable": True}, 1, text, text)])
        # A number is a PID, never a name.
        wanted = [text] if parse_pid(text) in (None, 1) else []
        assert wanted == [each["text"] for each in journal.history(task=text or None)]
        journal.history(task=f"%{text}_")
        journal.close()


@target
def journal_pauses(data: bytes) -> None:
    """The pauses of a journal with any content."""
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return
    for letter in (None, "T"):
        with suppress(ValueError):
            pauses.still_paused(codec.decode(pauses.Pause, stored), lambda _, letter=letter: letter)


@target
def journal_file(data: bytes) -> None:
    """The daemon moves a journal file of any bytes aside and creates a new one."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, "journal.db", data)
        with suppress(sqlite3.Error), closing(Journal(folder, 3600.0, 1 << 20)) as journal:
            journal.history(task="a")


def _checked(text: bytes) -> bytes:
    return b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text) + text + b"}\n"


def _write(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


# A fuzzer would need long to find these words. `fuzz.py` passes them to libFuzzer;
# `test_fuzz.py` inserts them between its random bytes.
WORDS = sorted(
    {
        *re.findall(
            rb"[\w:.=-]+",
            b"jsonrpc 2.0 method params id result error hello status agent.register pid start_time"
            b" warn_s stages [[rule]] notify.command anon oom_kill cgroup2 memory NVRM: Xid"
            b" Memory cgroup out of memory: Killed process total-vm: anon-rss: oom-kill:constraint="
            b" CONSTRAINT_MEMCG oom_memcg= task= segfault at ip sp error in traps: general"
            b" protection fault format created_unix_s step meta state bytes header tensors name"
            b" dtype shape data_offsets F32 __metadata__ url token root_dir kernel path notebook"
            b" type console t used limit swap paused keys intended task boot reason method"
            b" Fatal Python error: Uncaught MemTotal: VmSwap: some avg10= total= Private_Dirty:",
        ),
        b" - ", b"\x00", b"\xff", b"\n", b"1e999", b"9" * 400, b"9" * 5000, b"[" * 2000,
        b'{"a":' * 2000, b"\x1b[2J", b"%s", b"../", b"\xe2\x80\xae", b"\x1f\x8b", b"null",
    }
)  # fmt: skip
csv.field_size_limit()  # unchanged: the csv module limits the length of a trace's field
