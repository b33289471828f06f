"""The cause of a death, how certain it is, and how the account describes it."""

from __future__ import annotations

import signal

import pytest

from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import (
    collect_evidence,
    largest_processes,
    lines_about_exit,
    should_notify,
)
from watchdog_app.core.explain.exits import describe_death
from watchdog_app.core.model.exits import (
    CauseKind,
    Certainty,
    ExitFacts,
    GuardEnd,
    KernelEvent,
    KernelLogLine,
    LastError,
    UnitEnd,
)

GB = 1 << 30
KILL = KernelLogLine(
    KernelEvent.OOM_KILL, 10.0, "Out of memory: Killed process 42 (python)", 42, "python"
)
GROUP_KILL = KernelLogLine(
    KernelEvent.OOM_KILL,
    10.0,
    "Memory cgroup out of memory: Killed process 42 (python)",
    42,
    "python",
)
OTHERS = KernelLogLine(
    KernelEvent.OOM_KILL, 10.0, "Out of memory: Killed process 7 (hog)", 7, "hog"
)
SEGFAULT = KernelLogLine(
    KernelEvent.CRASH, 10.0, "python[42]: segfault at 0", 42, "python", library="libcudnn.so.9"
)
BAD = KernelLogLine(KernelEvent.BAD_MEMORY, 10.0, "Killing python:42", 42, "python")
FULL_HOST = {"host_total_bytes": 100 * GB, "host_available_bytes": 8 * GB}
ROSE = {"host_kills_before": 0, "host_kills_after": 1}
VALUE = LastError("ValueError", "bad", frames=("train.py:42 in step",))
MEMORY = LastError("MemoryError", frames=("train.py:42 in step",))
STILL = {"group_kills_before": 2, "group_kills_after": 2}
STILL_HOST = {"host_kills_before": 7, "host_kills_after": 7}
FULL_GROUP = {"group_used_bytes": 149 << 20, "group_limit_bytes": 150 << 20}
NO_RAM = {"host_total_bytes": 100 * GB, "host_available_bytes": GB}
GROUP = {"group_limit_bytes": 1000 << 20, "group_used_bytes": 500 << 20}
SPACE = {"address_space_full": "291 MiB of 293 MiB"}
XID = {"card_fault": "GPU 0: Xid 79, off the bus"}
FATAL = LastError(fatal="Fatal Python error: Segmentation fault", frames=("a.py:1 in f",))


def facts(status, *words, **more):
    """Exit facts of process 42."""
    return ExitFacts(status, pid=42, kernel=words, kernel_log_readable=True, **more)


HELD = "after it was interrupted while it was stopped at its memory limit of 300 MiB"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "a closed terminal"),
        (signal.SIGHUP, "ended by SIGHUP after"),
        (9, "ended by SIGKILL"),
    ],
)
def test_what_ends_while_its_guard_holds_it_was_not_killed_for_memory(status, words):
    """Its group is full, but the kernel does not kill in a guard."""
    full = {"group_used_bytes": 300 << 20, "group_limit_bytes": 300 << 20}
    guard = GuardEnd(300 << 20, "400M", stopped=HELD)

    cause = diagnose(facts(status, guard=guard, **full))

    assert (CauseKind.GUARD, Certainty.EXACT) == (cause.kind, cause.certainty)
    assert words in cause.text
    assert "killed by the kernel" not in cause.text


def test_a_full_guard_alone_points_to_nothing():
    """Without the guard the same level means "probably killed by the kernel"."""
    full = {"group_used_bytes": 300 << 20, "group_limit_bytes": 300 << 20}

    assert CauseKind.GROUP_LIMIT is diagnose(facts(None, **full)).kind
    assert CauseKind.UNKNOWN is diagnose(facts(None, guard=GuardEnd(300 << 20, ""), **full)).kind


@pytest.mark.parametrize(
    ("given", "kind", "certainty", "words"),
    [
        (facts(9, KILL), CauseKind.HOST_MEMORY, Certainty.EXACT, "machine was out of memory"),
        (facts(9, GROUP_KILL), CauseKind.GROUP_LIMIT, Certainty.EXACT, "its memory group"),
        (facts(None, KILL), CauseKind.HOST_MEMORY, Certainty.EXACT, "kernel log"),
        # The machine's count rose, but the log names another victim.
        (facts(9, OTHERS, **ROSE), CauseKind.KILLED, Certainty.UNKNOWN, "no sign"),
        (facts(9, **ROSE), CauseKind.HOST_MEMORY, Certainty.LIKELY, "rose from 0 to 1"),
        # Its group filled between two samples; the machine had more memory left than the group.
        (
            facts(9, group_used_bytes=50, group_limit_bytes=200, host_available_bytes=900, **ROSE),
            CauseKind.GROUP_LIMIT, Certainty.LIKELY, "most likely its memory group reached",
        ),
        (
            facts(9, group_used_bytes=50, group_limit_bytes=200, host_available_bytes=90, **ROSE),
            CauseKind.HOST_MEMORY, Certainty.LIKELY, "the machine was out of memory",
        ),
        (
            facts(9, group_kills_before=0, group_kills_after=1),
            CauseKind.GROUP_LIMIT, Certainty.EXACT, "oom_kill rose",
        ),
        (
            facts(None, group_kills_before=0, group_kills_after=1),
            CauseKind.GROUP_LIMIT, Certainty.LIKELY, "oom_kill rose",
        ),
        # An exit status is not a kill, whatever the counts say about others.
        (facts(0, KILL, **ROSE), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(1 << 8, **ROSE), CauseKind.FAILED, Certainty.EXACT, "status 1"),
        (facts(7, BAD), CauseKind.HARDWARE, Certainty.EXACT, "broken part of the RAM"),
        (
            facts(15, oom_daemons=("earlyoom",), **FULL_HOST),
            CauseKind.OOM_DAEMON, Certainty.LIKELY, "most likely ended by earlyoom",
        ),
        # The OOM daemon runs, but memory or swap was free; or it does not run.
        (
            facts(15, oom_daemons=("earlyoom",), host_total_bytes=100, host_available_bytes=50),
            CauseKind.SIGNAL, Certainty.LIKELY, "SIGTERM",
        ),
        (
            facts(15, oom_daemons=("earlyoom",), swap_total_bytes=10, swap_free_bytes=9,
                  **FULL_HOST),
            CauseKind.SIGNAL, Certainty.LIKELY, "SIGTERM",
        ),
        (facts(15, **FULL_HOST), CauseKind.SIGNAL, Certainty.LIKELY, "SIGTERM"),
        (facts(9, oomd_kills=3), CauseKind.OOM_DAEMON, Certainty.LIKELY, "systemd-oomd"),
        (facts(signal.SIGXCPU), CauseKind.CPU_LIMIT, Certainty.EXACT, "ulimit -t"),
        (facts(11, SEGFAULT), CauseKind.SIGNAL, Certainty.EXACT, "SIGSEGV in libcudnn.so.9"),
        # Other log lines about it do not make a kill, and a kill explains only SIGKILL.
        (facts(9, SEGFAULT), CauseKind.KILLED, Certainty.UNKNOWN, "no sign"),
        (facts(7, KILL), CauseKind.SIGNAL, Certainty.EXACT, "SIGBUS"),
        (facts(11, words=FATAL), CauseKind.SIGNAL, Certainty.EXACT, "at a.py:1 in f"),
        (facts(6), CauseKind.SIGNAL, Certainty.EXACT, "SIGABRT"),
        (facts(1 << 8, words=VALUE), CauseKind.FAILED, Certainty.EXACT,
         "ValueError at train.py:42 in step"),
        (facts(None, words=VALUE), CauseKind.FAILED, Certainty.EXACT, "ValueError"),
        (facts(0, words=VALUE), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(3 << 8), CauseKind.FAILED, Certainty.EXACT, "sys.exit(3)"),
        (
            facts(1 << 8, words=MEMORY, address_space_full="1.4 of 1.5 GiB"),
            CauseKind.ADDRESS_SPACE, Certainty.LIKELY, "MemoryError at train.py:42 in step",
        ),
        # The program itself reported another cause.
        (
            facts(1 << 8, words=VALUE, address_space_full="1.4 of 1.5 GiB"),
            CauseKind.FAILED, Certainty.EXACT, "ValueError",
        ),
        (facts(1), CauseKind.SIGNAL, Certainty.LIKELY, "terminal"),
        (facts(0, notebook=True), CauseKind.CLOSED, Certainty.LIKELY, "most likely closed"),
        (facts(9, notebook=True), CauseKind.KILLED, Certainty.UNKNOWN, "somebody"),
        (
            facts(None, group_kills_before=0, group_kills_after=1, **GROUP),
            CauseKind.GROUP_LIMIT, Certainty.LIKELY, "limit of 1000 MiB",
        ),
        (facts(9, **FULL_GROUP, **ROSE), CauseKind.GROUP_LIMIT, Certainty.LIKELY,
         "the machine's oom_kill"),
        (facts(15, group_kills_before=0, group_kills_after=1, **GROUP), CauseKind.SIGNAL,
         Certainty.LIKELY, "SIGTERM"),
        (facts(11 | 0x80), CauseKind.SIGNAL, Certainty.EXACT, "SIGSEGV"),
        (facts(50), CauseKind.SIGNAL, Certainty.EXACT, "signal 50"),
        (facts(None, announced_end=True), CauseKind.ENDED, Certainty.LIKELY, "exited"),
        (
            facts(None, announced_end=True, group_kills_before=0, group_kills_after=1),
            CauseKind.ENDED, Certainty.LIKELY, "exited",
        ),
        # A full address space explains an error or a crash, but not a clean exit or another signal.
        (facts(1 << 8, **SPACE), CauseKind.ADDRESS_SPACE, Certainty.LIKELY, "291 MiB of 293 MiB"),
        (facts(None, **SPACE), CauseKind.ADDRESS_SPACE, Certainty.LIKELY, "291 MiB of 293 MiB"),
        (facts(11, **SPACE), CauseKind.ADDRESS_SPACE, Certainty.LIKELY, "291 MiB of 293 MiB"),
        (facts(0, **SPACE), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(None, announced_end=True, **SPACE), CauseKind.ENDED, Certainty.LIKELY, "exited"),
        (facts(2, **SPACE), CauseKind.SIGNAL, Certainty.LIKELY, "SIGINT"),
        (facts(9, **SPACE), CauseKind.KILLED, Certainty.UNKNOWN, "no sign"),
        # A fault of its card explains an error and a crash, but not a counted kill.
        (facts(1 << 8, **XID), CauseKind.GPU_LOST, Certainty.LIKELY, "Xid 79"),
        (facts(6, **XID), CauseKind.GPU_LOST, Certainty.LIKELY, "Xid 79"),
        (facts(None, **XID), CauseKind.GPU_LOST, Certainty.LIKELY, "Xid 79"),
        (facts(15, **XID), CauseKind.SIGNAL, Certainty.LIKELY, "SIGTERM"),
        (facts(0, **XID), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(9, **XID, **ROSE), CauseKind.HOST_MEMORY, Certainty.LIKELY, "out of memory"),
        (facts(1 << 8, device_full="23.9 of 24.0 GiB"), CauseKind.GPU_MEMORY, Certainty.LIKELY,
         "probably out of GPU memory"),
        (facts(1 << 8, device_ooms=2), CauseKind.GPU_MEMORY, Certainty.LIKELY, "2 times"),
        (facts(0, device_ooms=2), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(9, device_full="x"), CauseKind.KILLED, Certainty.UNKNOWN, "SIGKILL"),
        (ExitFacts(), CauseKind.UNKNOWN, Certainty.UNKNOWN, "nothing is known"),
    ],
)  # fmt: skip
def test_a_cause_is_as_sure_as_its_evidence(given, kind, certainty, words):
    """
    A cause is exact if the kernel or the program said it, likely with indirect evidence, else
    unknown.
    """
    cause = diagnose(given)

    assert (kind, certainty) == (cause.kind, cause.certainty)
    assert words in cause.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (facts(11, notebook=True), True),
        (facts(11), False),
        (facts(0, notebook=True), False),
        (facts(signal.SIGXCPU), True),
        (facts(9, oomd_kills=1), True),
        (facts(15), False),
        (facts(None, **SPACE), True),
        (facts(1 << 8, **XID), True),
        (facts(1 << 8, device_full="full"), False),
    ],
)
def test_a_kernel_that_crashed_is_news_without_an_agent(given, told):
    """The user sees a script crash, but not a kernel."""
    assert told is should_notify(diagnose(given), None)


@pytest.mark.parametrize("status", [9, None])
@pytest.mark.parametrize("counted", [STILL, STILL_HOST, {**STILL, **STILL_HOST}])
@pytest.mark.parametrize("full", [FULL_GROUP, NO_RAM, {**FULL_GROUP, **NO_RAM}])
def test_a_cause_that_the_counters_exclude_is_not_named(status, counted, full):
    """A full group or machine points to the kernel only if its kill count may have risen."""
    given = facts(status, **counted, **full)

    cause = diagnose(given)

    assert not cause.spec.by_kernel
    assert "by the kernel" not in cause.text
    assert "no sign of a lack of memory" not in cause.text  # because it was full


def test_a_group_that_stood_still_outweighs_the_count_of_the_machine():
    """The kernel counts a kill in the victim's own group."""
    given = ExitFacts(9, pid=42, kernel_log_readable=False, **STILL, **ROSE, **FULL_GROUP)

    assert CauseKind.KILLED is diagnose(given).kind


@pytest.mark.parametrize("full", [FULL_GROUP, NO_RAM])
def test_counters_that_could_not_be_read_exclude_nothing_and_that_is_said(full):
    """The level remains as evidence, and the cause is only likely."""
    given = ExitFacts(9, pid=42, kernel_log_readable=False, **full)

    cause = diagnose(given)
    told = {each.source: each for each in collect_evidence(given)}

    assert (True, Certainty.LIKELY) == (cause.spec.by_kernel, cause.certainty)
    assert Certainty.UNKNOWN is told["count"].certainty
    assert "could not be read" in told["count"].text


@pytest.mark.parametrize("known", ["group_used_bytes", "group_limit_bytes"])
def test_half_a_level_is_no_evidence(known):
    """A group without a limit is not full, and a limit says nothing about its use."""
    given = ExitFacts(9, **{known: 150 << 20})

    assert "level" not in [each.source for each in collect_evidence(given)]


def test_memory_high_kills_nobody():
    """A throttled group is full for minutes: a kill then does not come from the kernel."""
    given = ExitFacts(9, pid=42, kernel_log_readable=False, group_high=True, **FULL_GROUP)

    assert CauseKind.KILLED is diagnose(given).kind
    assert any("memory.high" in each.text for each in collect_evidence(given))


OOMD = UnitEnd("train.scope", True, oomd_kills=2, lines=("train.scope: systemd-oomd killed 2 ...",))
POLICY = UnitEnd("train.service", True, kernel_kill=True, result="oom-kill")
POLICY_SCOPE = UnitEnd("train.scope", True, kernel_kill=True, result="oom-kill")
ONE = {"group_kills_before": 0, "group_kills_after": 1}


@pytest.mark.parametrize(
    ("given", "kind", "certainty", "words"),
    [
        (facts(9, unit=OOMD, **STILL, **FULL_GROUP), CauseKind.OOM_DAEMON, Certainty.EXACT,
         "killed by systemd-oomd, which killed 2 processes of its unit train.scope"),
        (facts(None, unit=OOMD, **STILL), CauseKind.OOM_DAEMON, Certainty.LIKELY,
         "most likely killed by systemd-oomd"),
        # The failed unit is loaded, but the journal cannot be read.
        (facts(9, unit=UnitEnd("a.scope", True, result="oom-kill"), **STILL_HOST),
         CauseKind.OOM_DAEMON, Certainty.LIKELY, "most likely killed by systemd-oomd"),
        # The kernel killed its worker; systemd ended the rest.
        (facts(15, unit=POLICY, **ONE), CauseKind.OOM_DAEMON, Certainty.EXACT, "OOMPolicy=stop"),
        (facts(None, unit=POLICY, **ONE), CauseKind.OOM_DAEMON, Certainty.LIKELY,
         "most likely ended by systemd (OOMPolicy=stop)"),
        (facts(None, unit=UnitEnd("a.service", True, result="oom-kill", main_status=15), **ONE),
         CauseKind.OOM_DAEMON, Certainty.EXACT, "OOMPolicy=stop"),
        # The kernel killed the process itself.
        (facts(9, unit=POLICY, **ONE), CauseKind.GROUP_LIMIT, Certainty.EXACT, "oom_kill rose"),
        (facts(9, GROUP_KILL, unit=POLICY), CauseKind.GROUP_LIMIT, Certainty.EXACT, "kernel log"),
        # Its group was removed, and the count with it.
        (facts(9, unit=POLICY, **ROSE), CauseKind.GROUP_LIMIT, Certainty.LIKELY,
         "systemd says that its out-of-memory killer"),
        (facts(None, unit=POLICY_SCOPE, **ROSE, **FULL_GROUP), CauseKind.GROUP_LIMIT,
         Certainty.LIKELY, "its memory group reached its limit of"),
        (facts(None, unit=POLICY_SCOPE, **ROSE, **FULL_GROUP, **NO_RAM), CauseKind.GROUP_LIMIT,
         Certainty.LIKELY, "its memory group reached its limit of"),
        (facts(None, unit=POLICY_SCOPE, **ROSE, **FULL_GROUP, group_high=True),
         CauseKind.GROUP_LIMIT, Certainty.LIKELY, "most likely killed by the kernel: systemd says"),
        # It exited normally, whatever happened to its unit.
        (facts(0, unit=POLICY, **ONE), CauseKind.ENDED, Certainty.EXACT, "exited"),
        (facts(11, unit=POLICY), CauseKind.SIGNAL, Certainty.EXACT, "SIGSEGV"),
        (facts(0, unit=OOMD), CauseKind.ENDED, Certainty.EXACT, "exited"),
        # Neither the kernel nor a daemon: a user killed it.
        (facts(9, unit=UnitEnd("a.scope", True, result="signal"), **STILL, **FULL_GROUP),
         CauseKind.KILLED, Certainty.UNKNOWN, "somebody"),
        (facts(15, unit=OOMD), CauseKind.SIGNAL, Certainty.LIKELY, "SIGTERM"),
        (facts(15, unit=UnitEnd("", False, guard="earlyoom")), CauseKind.OOM_DAEMON,
         Certainty.EXACT, "ended by earlyoom, as its own log line says"),
    ],
)  # fmt: skip
def test_what_systemd_and_guards_say_of_a_unit_names_the_cause(given, kind, certainty, words):
    """The unit's record counts only if the signal and the counts agree with it."""
    cause = diagnose(given)

    assert (kind, certainty) == (cause.kind, cause.certainty)
    assert words in cause.text
    assert (
        cause.text.startswith("most likely")
        is (kind is CauseKind.OOM_DAEMON and certainty is Certainty.LIKELY)
        or kind is not CauseKind.OOM_DAEMON
    )


def test_the_lines_of_systemd_are_evidence():
    """As they stand in the journal, with the property that any user may read."""
    found = [each.text for each in collect_evidence(facts(9, unit=OOMD))]
    shown = [each.text for each in collect_evidence(facts(15, unit=POLICY))]

    assert "The system's journal says: train.scope: systemd-oomd killed 2 ..." in found
    assert "systemctl --user show -p Result train.service says: oom-kill." in shown


def test_without_its_journal_systemd_oomd_is_likely_where_it_runs_and_the_group_was_full():
    """The kernel did not kill, and no other program here kills for the pressure of a group."""
    given = facts(9, oom_daemons=("systemd-oomd",), group_high=True, **STILL_HOST, **FULL_GROUP)
    room = facts(9, oom_daemons=("systemd-oomd",), **STILL_HOST)

    cause = diagnose(given)

    assert (CauseKind.OOM_DAEMON, Certainty.LIKELY) == (cause.kind, cause.certainty)
    assert "most likely killed by systemd-oomd, which runs here" in cause.text
    assert CauseKind.KILLED is diagnose(room).kind


COUNTS = ("count", "no_kill")


def counted(**more):
    """The statements about counts."""
    given = facts(9, counted="between 10:03:01 and 10:03:05", group="/sys/fs/cgroup/memory/a/b",
                  **more)  # fmt: skip
    return [each.text for each in collect_evidence(given) if each.source in COUNTS]


def test_an_exact_statement_about_counts_names_the_group_and_the_time():
    """The statement does not extend to other groups or other times."""
    when = "between 10:03:01 and 10:03:05"
    group = "in the memory group /a/b"
    nothing, rose = "The kernel killed nothing for memory", "The kernel's count of kills for memory"
    assert [f"{nothing} {group}, {when} (its count stayed at 2)."] == counted(**STILL)
    assert [f"{rose} {group} rose from 0 to 1, {when}."] == counted(**ONE)
    assert [f"{nothing} on this machine, {when} (its count stayed at 7)."] == counted(**STILL_HOST)


def test_a_kill_in_the_log_is_not_contradicted_by_the_count_of_the_group_it_had_left():
    """It moved into another group shortly before, whose count was not read."""
    given = facts(9, GROUP_KILL, **STILL, **STILL_HOST)

    found = collect_evidence(given)

    assert CauseKind.GROUP_LIMIT is diagnose(given).kind
    assert [] == [each.text for each in found if each.source in COUNTS]


def kill_of(pid, mono_s, group=None):
    """The kernel log lines of one kill."""
    constraint = "CONSTRAINT_NONE" if group is None else "CONSTRAINT_MEMCG"
    text = "Out of memory: Killed process" if group is None else "Memory cgroup out of memory: ..."
    return (
        KernelLogLine(KernelEvent.OOM_REPORT, mono_s, "oom-kill:", pid, constraint=constraint,
                   group=group),
        KernelLogLine(KernelEvent.OOM_KILL, mono_s, text, pid, "hog"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "concerns"),
    [
        (kill_of(7, 99.0), True),  # the whole machine was full
        (kill_of(7, 99.0, "/a"), True),  # at a limit above both
        (kill_of(7, 99.0, "/a/b"), True),
        (kill_of(7, 99.0, "/a/b/c"), False),
        (kill_of(7, 99.0, "/b"), False),
        (kill_of(7, 99.0, "/other"), False),
        (kill_of(7, 92.0), False),  # 8 s before; this process was still seen alive after it
        (kill_of(7, 99.0, "/a")[1:], False),  # the log does not say whose limit it was
    ],
)
def test_of_other_kills_only_those_at_its_own_limits_since_it_was_seen_alive_are_evidence(
    words, concerns
):
    """Kills elsewhere or earlier have nothing to do with it."""
    group = "/sys/fs/cgroup/memory/a/b"

    found = lines_about_exit(words, 42, 100.0, alive_mono_s=98.5, group=group)

    assert concerns is any(word.kind is KernelEvent.OOM_KILL for word in found)


@pytest.mark.parametrize(("counted_mono_s", "concerns"), [(98.0, True), (99.5, False)])
def test_a_kill_of_before_the_count_began_is_not_told_beside_it(counted_mono_s, concerns):
    """Otherwise a kill in the log and an unchanged count would contradict each other."""
    group = "/sys/fs/cgroup/memory/a/b"

    found = lines_about_exit(
        kill_of(7, 99.0, "/a/b"), 42, 101.0,
        alive_mono_s=100.5, counted_mono_s=counted_mono_s, group=group,
    )  # fmt: skip

    assert concerns is any(word.kind is KernelEvent.OOM_KILL for word in found)


def test_evidence_names_what_could_not_be_read():
    """The account names the missing source and how to make it readable."""
    found = collect_evidence(ExitFacts(9, pid=42, kernel_log_readable=False))

    (missing,) = [
        each for each in found if each.certainty is Certainty.UNKNOWN and each.source == "kernel"
    ]
    assert "dmesg" in missing.text
    assert missing in found[-2:]
    assert any("could not be read" in each.text for each in collect_evidence(ExitFacts(None)))


def test_a_good_end_has_no_evidence_of_kills():
    """How much memory was left does not matter then."""
    given = facts(0, OTHERS, **ROSE, **FULL_HOST)

    assert ["status"] == [each.source for each in collect_evidence(given)]


def test_the_table_of_a_kill_belongs_to_that_kill():
    """Rows from another time are left out."""
    row = KernelLogLine(KernelEvent.OOM_TASK, 10.0, "chrome", 3, "chrome", rss_bytes=9 * GB)
    own = KernelLogLine(KernelEvent.OOM_TASK, 10.0, "python", 42, "python", rss_bytes=1 * GB)
    other = KernelLogLine(KernelEvent.OOM_TASK, 4.0, "old", 5, "old", rss_bytes=90 * GB)

    found = lines_about_exit((other, row, own, KILL), 42, 12.0)

    assert ((3, "chrome", 9 * GB), (42, "python", 1 * GB)) == largest_processes(found)
    assert () == lines_about_exit((other, row, own), 42, 12.0)


ENTRY = {
    "unix_s": 1000.0,
    "kind": "exit",
    "notable": True,
    "pid": 42,
    "name": "train.ipynb",
    "task_kind": "notebook",
    "cause": "group_limit",
    "certainty": "exact",
    "reason": "killed by the kernel: its memory group reached its limit of 8.0 GiB",
    "started_unix_s": 400.0,
    "memory": True,
}


def told(**more):
    """The account of that death."""
    return describe_death({**ENTRY, **more}, at="02:13:07", now_unix_s=4600.0)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("kernel", "Jupyter kernel"), ("server", "Jupyter server"), (None, "process")],
)
def test_an_account_names_the_kind_in_words(kind, shown):
    """An unknown kind is a process."""
    assert f"train.ipynb ({shown}, pid " in told(task_kind=kind)


def test_an_account_says_what_how_sure_and_how_to_go_on():
    """The account answers a user's questions in their order."""
    rescue = {"path": "/r/rescue-1", "step": 90, "bytes": GB, "saved_unix_s": 988.0}
    text = told(rescue=rescue, agent={"step": 95, "report_age_s": 0.8}, evidence=[
        {"source": "kernel", "certainty": "exact", "text": "The kernel log says: Killed"},
        {"source": "level", "certainty": "most_likely", "text": "full"},
    ])  # fmt: skip

    assert text.startswith("train.ipynb (notebook, pid 42) died at 02:13:07")
    assert "limit of 8.0 GiB. That is exact." in text
    assert "[exact] The kernel log says: Killed" in text
    assert "[most likely] full" in text
    assert "step 90 (1.00 GiB, saved 12" in text
    assert "It was at step 95 when last read, 0.8 s before the end: at least 5 steps" in text
    assert "restart the kernel" in text
    assert text.index("Why:") < text.index("How we know:") < text.index("What was saved")


@pytest.mark.parametrize(
    ("certainty", "expected"),
    [
        ("exact", "It finished. That is exact."),
        ("most_likely", "It finished. That is what all the evidence points to; it is not proven."),
    ],
)
def test_a_good_end_reads_as_one(certainty, expected):
    """Its certainty is part of the sentence."""
    lines = told(cause="ended", reason="exited", certainty=certainty).splitlines()

    assert f"Why: {expected}" in lines


@pytest.mark.parametrize(
    ("kind", "by_lines", "expected"),
    [
        ("script", False, "To continue its training:"),
        ("script", True, "it starts over and says which lines to write"),
        ("notebook", False, "which resumes from there"),
        ("notebook", True, "says which lines resume it"),
        ("console", False, "watchdog.resume()"),  # not a command with the file of a connection
    ],
)
def test_a_loop_that_was_found_by_itself_is_not_said_to_go_on_by_itself(kind, by_lines, expected):
    """
    Its next run starts from the beginning; a wrong promise would make the user believe the rescue
    lost.
    """
    rescue = {"path": "/r", "step": 90, "bytes": GB, "saved_unix_s": 988.0, "by_lines": by_lines}

    text = told(task_kind=kind, argv=["python", "train.py"], rescue=rescue)

    assert expected in text


def test_the_command_to_go_on_can_be_pasted():
    """Blanks, quotes and shell characters in names are quoted."""
    text = told(
        task_kind="script",
        argv=["/env/bin/python3.11", "my train.py", "--name", "it's; rm -rf $HOME"],
        cwd="/data/my runs",
    )

    assert (
        "cd '/data/my runs' && watchdog exec -- python3.11 'my train.py' --name "
        "'it'\"'\"'s; rm -rf $HOME'" in text
    )


def test_a_program_started_by_its_path_starts_again_in_its_environment():
    """The shell into which the line is pasted may have another environment, or none."""
    text = told(
        task_kind="script", argv=[".venv/bin/python", "fit.py"], cwd="/w", python="/w/.venv"
    )
    assert "cd /w && watchdog exec -- /w/.venv/bin/python fit.py" in text
    text = told(task_kind="script", argv=["python", "fit.py"], cwd="/w", python="/w/.venv")
    assert "cd /w && watchdog exec -- python fit.py" in text


def test_the_end_of_an_unsaved_notebook_says_how_the_next_training_is_saved():
    """With pipx the kernel cannot import watchdog, so the line is a command."""
    text = told(task_kind="notebook", python="/venvs/tf", rescue=None)
    assert text.endswith(
        "To have the next training saved, type before you restart the kernel:\n"
        "  watchdog agent enable --python /venvs/tf\n"
        "Then restart the kernel and run its cells."
    )
    text = told(task_kind="notebook", rescue=None)
    assert "  %load_ext watchdog_app.agent\n" in text


@pytest.mark.parametrize(
    ("more", "promised"),
    [({}, True), ({"next_limit": ""}, False), ({"next_limit": "2G"}, False),
     ({"had_agent": True}, False)],
)  # fmt: skip
def test_that_exec_saves_the_work_is_told_to_who_did_without_it(more, promised):
    """Under a guard or with an agent, exec would change nothing."""
    text = told(task_kind="script", argv=["python", "train.py"], **more)

    assert promised == ("To start it again, with its work saved next time:" in text)
    assert ("To start it again:" in text) is not promised


@pytest.mark.parametrize("age_s", [None, 0.8])
def test_the_step_of_what_died_unsaved_is_said_to_be_a_reading(age_s):
    text = told(had_agent=True, agent={"step": 95, "report_age_s": age_s})

    ago = "" if age_s is None else ", 0.8 s before the end"
    assert f"It was at step 95 when last read{ago}." in text


@pytest.mark.parametrize("rescue", [None, {"path": "/r/rescue-1", "step": 90, "bytes": GB}])
def test_why_it_was_not_saved_at_its_end_is_said_beside_an_older_rescue(rescue):
    why = "SIGTERM: not saved: no step ended within 4 s (agent.grace_s)"
    text = told(had_agent=True, rescue=rescue, agent={"step": 95, "not_saved": why})

    assert f"Its last save failed: {why}." in text


@pytest.mark.parametrize(
    "more",
    [
        {"argv": ["python", "a\x1b[2Jb"], "task_kind": "script"},
        {"argv": "python", "task_kind": "script"},
        {"evidence": "x", "takers": 3, "rescue": [], "agent": 0, "started_unix_s": "soon"},
        {"name": "a\nb\x1b[31m", "reason": "x\x07y", "evidence": [{"text": None}]},
    ],
)
def test_a_damaged_or_hostile_entry_is_told_all_the_same(more):
    """Old versions and odd names cause no error and print no control characters."""
    text = told(**more)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "Why:" in text


def test_who_took_the_memory_is_named_even_if_nobody_watched_it():
    """From the kernel's own list; programs that are not watched are marked."""
    text = told(takers={
        "kernel_table": [
            {"pid": 3, "name": "chrome", "bytes": 9 * GB, "watched": False},
            {"pid": 42, "name": "train.ipynb", "bytes": GB, "watched": True},
        ],
        "watched": [{"pid": 42, "name": "train.ipynb", "bytes": GB, "bytes_per_s": 5e7}],
    })  # fmt: skip

    assert "9.00 GiB  chrome (process 3, not watched)" in text
    assert "train.ipynb (process 42, this one, growing by +47.7 MiB/s)" in text
