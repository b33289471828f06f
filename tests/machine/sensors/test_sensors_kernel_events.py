"""The kernel log's lines about ended processes, in the wording of many kernels."""

from __future__ import annotations

import os

import pytest

from watchdog_app.core.model.exits import KernelEvent
from watchdog_app.machine.sensors.kernel_events import KernelEvents, OomTable, parse

FIRST = 0xEFFFFFFC
NOW = 1000.0

# Linux 6.18, a memory group (cgroup v1), as this kernel wrote it.
NEW_GROUP = [
    "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "Tasks state (memory values in pages):",
    (
        "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes "
        "swapents oom_score_adj name"
    ),
    (
        "[   4100]  1000  4100    17093     1605     1459      146         0   180224        0"
        "             0 web content"
    ),
    (
        "[   4242]  1000  4242    17093    16059    14592     1467         0   180224        0"
        "             0 python"
    ),
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        "oom_memcg=/jupyter,task_memcg=/jupyter/kernel,task=python,pid=4242,uid=1000"
    ),
    (
        "Memory cgroup out of memory: Killed process 4242 (python) total-vm:68372kB, "
        "anon-rss:58368kB, file-rss:5868kB, shmem-rss:0kB, UID:1000 pgtables:176kB oom_score_adj:0"
    ),
]
# Linux 5.4, the whole machine.
HOST = [
    "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
    "[    900]     0   900     1000      300    40960        0             0 sshd",
    "[   4242]  1000  4242  2000000  1500000  12000000        0           300 python3",
    (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        "task_memcg=/user.slice,task=python3,pid=4242,uid=1000"
    ),
    (
        "Out of memory: Killed process 4242 (python3) total-vm:8000000kB, anon-rss:6000000kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:11718kB oom_score_adj:300"
    ),
    "oom_reaper: reaped process 4242 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
]
# Linux 3.10 and 4.18, as the long-term distributions have them.
OLD_GROUP = [
    "Task in /slurm/job_7 killed as a result of limit of /slurm/job_7",
    "[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name",
    "[ 4242]  1000  4242   500000   400000     900        0             0 python",
    "Memory cgroup out of memory: Kill process 4242 (python) score 990 or sacrifice child",
    (
        "Killed process 4242 (python), UID 1000, total-vm:2000000kB, anon-rss:1600000kB, "
        "file-rss:0kB, shmem-rss:0kB"
    ),
]


def read(lines, namespace=FIRST, at=NOW):
    """The events in a log of these lines; a pipe in packet mode gives one record per read."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    for number, line in enumerate(lines):
        os.write(writer, f"6,{number},{int(at * 1e6)},-;{line}\n SUBSYSTEM=x".encode())
    log = KernelEvents(f"/proc/self/fd/{reader}", namespace=namespace)
    try:
        return log.recent(NOW)
    finally:
        log.close()
        os.close(writer)
        os.close(reader)


@pytest.mark.parametrize(
    ("lines", "constraint", "group", "largest"),
    [
        (NEW_GROUP, "CONSTRAINT_MEMCG", "/jupyter", (4242, "python", 16059)),
        (HOST, "CONSTRAINT_NONE", None, (4242, "python3", 1500000)),
        (OLD_GROUP, "CONSTRAINT_MEMCG", "/slurm/job_7", (4242, "python", 400000)),
    ],
)
def test_a_kill_for_memory_is_understood_from_old_and_new_kernels(
    lines, constraint, group, largest
):
    """The events name the victim, the place of the limit, and the memory of each process."""
    words = read(lines)

    kill = [word for word in words if word.kind is KernelEvent.OOM_KILL]
    report = next(word for word in words if word.kind is KernelEvent.OOM_REPORT)
    rows = [word for word in words if word.kind is KernelEvent.OOM_TASK]
    assert [4242] == [word.pid for word in kill]
    assert (constraint, group) == (report.constraint, report.group)
    pages = largest[2] * os.sysconf("SC_PAGE_SIZE")
    assert (largest[0], largest[1], pages) == (rows[0].pid, rows[0].name, rows[0].rss_bytes)


def test_a_name_with_blanks_stays_one_name():
    """The last column of the table is the rest of the line."""
    assert "web content" in {word.name for word in read(NEW_GROUP)}


@pytest.mark.parametrize(
    ("line", "kind", "pid", "library"),
    [
        (
            ("python[42]: segfault at 0 ip 00007fe588c81597 sp 00007fffef1630a0 error 6 in "
            "libcudnn.so.9.1[2597,7fe588c81000+2000] likely on CPU 0 (core 0, socket 0)"),
            KernelEvent.CRASH, 42, "libcudnn.so.9.1",
        ),
        (
            ("python3[42]: segfault at 7f3a ip 00007f sp 00007f error 4 in "
            "libcuda.so.470.57.02[7f3a10000000+1000]"),
            KernelEvent.CRASH, 42, "libcuda.so.470.57.02",
        ),
        (
            ("traps: python[42] general protection fault ip:7f1 sp:7f2 error:0 in "
            "libtensorflow_framework.so.2[7f1000000000+200000]"),
            KernelEvent.CRASH, 42, "libtensorflow_framework.so.2",
        ),
        (
            ("traps: python[42] trap invalid opcode ip:7f1 sp:7f2 error:0 in "
            "_pywrap_tensorflow_internal.so[7f1000000000+200000]"),
            KernelEvent.CRASH, 42, "_pywrap_tensorflow_internal.so",
        ),
        ("pt_main_thread[42]: segfault at 8 ip 0 sp 0 error 14", KernelEvent.CRASH, 42, None),
        (
            "Memory failure: 0x12345: Killing python:42 due to hardware memory corruption",
            KernelEvent.BAD_MEMORY, 42, None,
        ),
        (
            ("Memory failure: 0x12345: Sending SIGBUS to python:42 due to hardware memory "
            "corruption"),
            KernelEvent.BAD_MEMORY, 42, None,
        ),
        ("INFO: task python:42 blocked for more than 120 seconds.", KernelEvent.HUNG, 42, None),
        (
            "thermal thermal_zone0: critical temperature reached, shutting down",
            KernelEvent.HOT, None, None,
        ),
        (
            "thermal thermal_zone0: acpitz: critical temperature reached (105 C), shutting down",
            KernelEvent.HOT, None, None,
        ),
        (
            "NVRM: Xid (PCI:0000:65:00): 31, pid=42, name=python, Ch 00000008, MMU Fault",
            KernelEvent.XID, 42, None,
        ),
    ],
)  # fmt: skip
def test_lines_about_an_end_are_understood(line, kind, pid, library):
    """Crashes with their library, broken memory, a hang, heat, a card's fault."""
    word = parse(line, 1.0)

    assert word is not None
    assert (kind, pid, library) == (word.kind, word.pid, word.library)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "usb 1-1: new high-speed USB device number 5 using xhci_hcd",
        "[   4242]  1000  4242 not a table, for no header was there",
        "audit: type=1326 comm=\"python\" sig=31",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "Killed process 99999999999999999999",
        # A device's name is not a statement of the kernel about a process.
        "usb 1-1: Product: Killed process 42 (python) total-vm:1kB",
        "EXT4-fs (oom_reaper: reaped process 42 (python)): mounted",
        "python: segfault",
    ],
)  # fmt: skip
def test_other_lines_say_nothing(line):
    """Other lines of the log are ignored."""
    assert () == read([line])


def test_what_a_program_wrote_into_the_log_is_not_believed():
    """Facility 1 belongs to programs: root may write there, and name any process."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    os.write(writer, b"14,1,1000000000,-;Out of memory: Killed process 42 (python) total-vm:1kB")
    log = KernelEvents(f"/proc/self/fd/{reader}", namespace=FIRST)

    assert () == log.recent(NOW)
    log.close()
    os.close(writer)
    os.close(reader)


def test_old_lines_are_no_witnesses():
    """A kill of an hour ago belongs to another process."""
    assert () == read(NEW_GROUP, at=NOW - 3600)


def test_pids_of_a_container_are_not_those_of_the_log():
    """Inside a pid namespace the log counts as unreadable."""
    assert () == read(NEW_GROUP, namespace=FIRST + 1)
    assert not KernelEvents("/dev/null", namespace=FIRST + 1).readable


def test_a_log_that_may_not_be_read_is_said_to_be_so():
    """The cause is kernel.dmesg_restrict, or a missing device."""
    log = KernelEvents("/no/such/kmsg", namespace=FIRST)

    assert () == log.recent(NOW)
    assert not log.readable


def test_a_table_of_a_giant_machine_is_bounded():
    """The largest rows are kept."""
    table = OomTable()
    assert table.add_line(NEW_GROUP[2], 1.0)
    for pid in range(1, 6000):
        row = f"[ {pid:6}]  0 {pid} 1 {pid} 0 0 0 0 0 0 python"
        assert table.add_line(row, 1.0)

    rows = table.finish()

    assert len(rows) == 8
    assert not table.add_line("[ 1] 0 1 1 1 0 0 0 0 0 0 python", 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "a[42] segfault[77]: segfault at 0 ip 00 sp 00 error 4 in evil[55+1000]",
        "traps: a[42] trap x[77] general protection fault ip:7f1 sp:7f2 error:0",
        (
            "evil[77]: segfault at 7ffe00001000 ip 00007fe588c81597 sp 00007fffef1630a0 error 6 "
            "in x[42]: segfault at 0[55+1000]"
        ),
    ],
)
def test_a_program_or_library_with_a_hostile_name_puts_no_crash_on_another(line):
    """Both can have any name; only the kernel's own pid counts."""
    assert 77 == parse(line, 1.0).pid
