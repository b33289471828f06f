"""systemd's answers about the unit of an ended process, from recordings."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from watchdog_app.core.model.exits import UnitEnd
from watchdog_app.machine.sensors import systemd_units
from watchdog_app.machine.sensors.systemd_units import Unit, ask, find_unit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

MINE = f"/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service"
SCOPE = Unit("train.scope", True)
OOMD = "train.scope: systemd-oomd killed 2 process(es) in this unit."
KERNEL = "train.service: A process of this unit has been killed by the OOM killer."
FAILED = "train.service: Failed with result 'oom-kill'."
DEAD = "LoadState=loaded\nActiveState=failed\nResult=signal\n"


@pytest.mark.parametrize(
    ("group", "unit"),
    [
        (f"/sys/fs/cgroup{MINE}/app.slice/train.scope", Unit("train.scope", True)),
        (f"/sys/fs/cgroup{MINE}/app.slice/jupyter.service/kernel-1", Unit("jupyter.service", True)),
        (f"/sys/fs/cgroup/memory{MINE}/app.slice/a.slice", None),
        ("/sys/fs/cgroup/user.slice/user-4711.slice/user@4711.service/app.slice/a.scope", None),
        ("/sys/fs/cgroup/system.slice/train.service", Unit("train.service", False)),
        ("/sys/fs/cgroup/user-1.slice/session-3.scope", Unit("session-3.scope", False)),
        ("/sys/fs/cgroup/memory/process_api/123", None),
        ("/sys/fs/cgroup/a/-x.service", None),
        (None, None),
    ],
)  # fmt: skip
def test_the_unit_is_the_innermost_one_of_a_manager_that_answers(group, unit):
    """Another user's manager does not answer."""
    assert unit == find_unit(group)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Tools that print recorded answers and log their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(systemd_units, "_RETRY_S", 0.01)

    def install(name: str, answer: str, then: str = "") -> None:
        (folder / f"{name}.answer").write_text(answer)
        script = f'#!/bin/sh\necho "$@" >> "$0.asked"\ncat "$0.answer"\n{then}\n'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)

    install.folder = folder
    return install


def entries(*messages: str, **fields) -> str:
    """Lines of `journalctl -o json`."""
    return "".join(
        json.dumps({"MESSAGE": each, "_COMM": "systemd", **fields}) + "\n" for each in messages
    )


def test_a_kill_by_systemd_oomd_stands_in_the_journal_of_the_user(tools):
    """A failed unit that is loaded with another result does not matter."""
    tools("journalctl", entries("Started train.scope.", OOMD))
    tools("systemctl", DEAD)

    found = ask(SCOPE, 42, 1000.9)

    assert UnitEnd("train.scope", True, oomd_kills=2, result="signal", lines=(OOMD,)) == found
    asked = (tools.folder / "journalctl.asked").read_text()
    assert "--user" in asked
    assert "--since=@1000 " in asked
    assert "USER_UNIT=train.scope" in asked


def test_oomd_of_newer_versions_and_plain_lines_are_understood(tools):
    """ "some" if it did not count; a wrapper that answers in another format."""
    tools("journalctl", f"Nov 23 10:00:00 host systemd[812]: {OOMD.replace('2', 'some')}\n")
    tools("systemctl", "")

    assert 0 == ask(SCOPE, 42, 1000.0).oomd_kills


def test_oom_policy_stop_is_known_by_journal_and_result(tools):
    """The kernel killed one process, and the unit failed because of it."""
    unit = Unit("train.service", False)
    tools("journalctl", entries(KERNEL, FAILED))
    tools("systemctl", "LoadState=loaded\nActiveState=failed\nResult=oom-kill\nExecMainPID=42\n"
          "ExecMainCode=2\nExecMainStatus=15\n")  # fmt: skip

    found = ask(unit, 42, 1000.0)

    assert (None, True, "oom-kill", 15) == (
        found.oomd_kills, found.kernel_kill, found.result, found.main_status,
    )  # fmt: skip
    assert (KERNEL, FAILED) == found.lines
    assert ask(unit, 43, 1000.0).main_status is None  # it was another process of the unit
    assert "--user" not in (tools.folder / "journalctl.asked").read_text()
    assert "--user" not in (tools.folder / "systemctl.asked").read_text()


def test_the_result_alone_is_enough_where_the_journal_is_not_to_be_read(tools):
    """There is no such line, or no journalctl at all."""
    tools("systemctl", "LoadState=loaded\nActiveState=failed\nResult=oom-kill\n")

    assert "oom-kill" == ask(SCOPE, 42, 1000.0).result


def test_a_unit_that_is_not_loaded_any_more_has_no_result(tools):
    """systemctl shows the defaults of a new one: "success"."""
    tools("systemctl", "LoadState=not-found\nActiveState=inactive\nResult=success\n")

    assert ask(SCOPE, 42, 1000.0).result is None


@pytest.mark.parametrize(
    "answer",
    [
        entries(OOMD.replace("train", "other")),
        entries(f"my log: {OOMD}", _COMM="python"),  # a program may write any line
        entries("systemd-oomd killed 2 process(es) in this unit."),
        '{"MESSAGE": null}\n{"MESSAGE": [116, 114]}\n{broken\n[]\n{"_COMM": 3}\n\n',
        "\x00\xff" * 100,
    ],
)
def test_what_is_not_of_this_unit_or_not_of_its_manager_is_left_out(tools, answer):
    """Lines of other units, forged and broken lines."""
    tools("journalctl", answer)
    tools("systemctl", "")

    found = ask(SCOPE, 42, 1000.0)

    assert (None, False, None, ()) == (
        found.oomd_kills, found.kernel_kill, found.result, found.lines,
    )  # fmt: skip


def test_it_is_asked_again_while_systemd_has_not_written_of_the_end_yet(tools):
    """systemd writes once the group is empty; the first answer may come earlier."""
    tools("journalctl", "", f"echo '{OOMD}' > \"$0.answer\"")
    tools("systemctl", "LoadState=loaded\nActiveState=active\nResult=success\n")

    assert 2 == ask(SCOPE, 42, 1000.0).oomd_kills


def test_a_tool_that_hangs_is_ended(tools, monkeypatch):
    """Under memory pressure the tools may take minutes."""
    monkeypatch.setattr(systemd_units, "_TIMEOUT_S", 0.2)
    tools("journalctl", "", "exec sleep 600")
    tools("systemctl", "", "exec sleep 600")
    began = time.monotonic()

    assert ask(SCOPE, 42, 1000.0).oomd_kills is None
    assert time.monotonic() - began < 60


EARLYOOM = 'sending SIGTERM to process 42 uid 1000 "python": badness 900, VmRSS 700 MiB'
NOHANG = "  PID:       42, PPID: 41, UID: 1000\n[ OK ] Sending SIGTERM to the victim\n"


@pytest.mark.parametrize(
    ("guard", "said", "pid", "named"),
    [
        ("earlyoom", EARLYOOM, 42, "earlyoom"),
        ("earlyoom", EARLYOOM, 43, None),
        ("earlyoom", "mem avail: 42 of 976 MiB", 42, None),
        ("nohang", NOHANG, 42, "nohang"),
        ("nohang", NOHANG, 41, None),
        ("systemd-oomd", EARLYOOM, 42, None),  # its lines name groups, not processes
    ],
)
def test_a_guard_that_names_the_process_is_the_cause(tools, guard, said, pid, named):
    """This works outside of any unit too."""
    tools("journalctl", said)

    found = ask(None, pid, 1000.0, guards=(guard,))

    assert named == (None if found is None else found.guard)
    assert named is None or f"_SYSTEMD_UNIT={named}.service" in (
        (tools.folder / "journalctl.asked").read_text()
    )
