"""Pause and resume on real processes: whole trees, nothing else, and always reversible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.waiting import until

from watchdog_app.base import codec
from watchdog_app.base.errors import ActionError, TargetDenied, TargetGone
from watchdog_app.base.linux.process import ancestors, descendants, pids, read_stat
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.guard import cgroup
from watchdog_app.machine import process_control
from watchdog_app.machine.process_control import Paused
from watchdog_app.machine.process_control import psutil as stop_psutil

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc of Linux")

# Ready when all five exist. A background child is forked: a shell that runs it in the foreground
# waits for its exec in the kernel (vfork), where signals do not stop it.
TREE = """
import os, subprocess, sys, time
kept = [
    subprocess.Popen(["sleep", "600"]),
    subprocess.Popen(["sleep", "600"], start_new_session=True),
    subprocess.Popen(["sh", "-c", "sleep 600 & echo up; wait"], stdout=subprocess.PIPE),
]
kept[-1].stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""
# Endless forks: each child lives 20 ms, long enough to appear in a process list.
FORKS = """
import os, sys, time
print("ready", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.02)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    time.sleep(0.001)
"""


@pytest.fixture
def launch():
    """Start a Python program in a separate session and end all that it leaves behind."""
    started = []
    # Every descendant inherits it, wherever it is in the tree.
    mark = f"WATCHDOG_TEST={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")

    def start(program: str) -> ProcessKey:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, name: value},
        )
        started.append(process)
        assert b"ready\n" == process.stdout.readline()
        return key_of(process.pid)

    yield start
    while marked := [pid for pid in pids() if mark in environment(pid)]:
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in started:
            process.poll()
        time.sleep(0.01)
    for process in started:
        process.wait(10)
        process.stdout.close()


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def key_of(pid: int) -> ProcessKey:
    stat = read_stat(pid)
    assert stat is not None
    return ProcessKey(*stat.key)


def states(keys) -> set[str]:
    return {found.state for key in keys if (found := read_stat(key.pid))}


def below(root: ProcessKey, *, quick: bool = False):
    return descendants([(root.pid, root.start_time)], quick=quick)


def tree_of(key: ProcessKey) -> list[ProcessKey]:
    return [ProcessKey(*each.key) for each in below(key)]


def test_pause_stops_the_whole_tree_and_resume_lets_it_run(launch):
    """Children in separate sessions and under shells are stopped, and all run again."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    tree = tree_of(root)

    paused = process_control.pause([root])

    assert set(tree) == set(paused.keys)
    assert root == paused.keys[0]
    assert {"T"} == states(tree)
    assert "sigstop" == paused.method
    resumed = process_control.resume(paused)
    assert tuple(reversed(paused.keys)) == resumed
    until(lambda: states(tree) <= {"S", "R"})


def test_no_child_escapes_from_a_task_that_forks_without_end(launch):
    """Parents stop before their children are listed, so no child keeps running."""
    root = launch(FORKS)

    paused = process_control.pause([root])

    assert {"T"} == states([root])
    left = {each.state for each in below(root)}
    assert left <= {"T", "Z"}
    process_control.resume(paused)
    until(lambda: "T" not in states([root]))


def test_a_child_that_begins_during_the_pause_is_found_by_the_next_list(launch, monkeypatch):
    """The list is read again until it has nobody new."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    read, lists = process_control.linux.descendants, []

    def listed(*args, **more):
        """The first two lists, for the freezer and for signals, lack the youngest process."""
        lists.append(list(read(*args, **more)))
        return lists[-1][:-1] if len(lists) <= 2 else lists[-1]

    monkeypatch.setattr(process_control.linux, "find_freezer", lambda *_: None)
    monkeypatch.setattr(process_control.linux, "descendants", listed)
    paused = process_control.pause([root])

    assert set(tree_of(root)) == set(paused.keys)
    process_control.resume(paused)


def test_processes_that_were_stopped_before_stay_stopped(launch):
    """A process that the user stopped with Ctrl-Z stays stopped."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    by_hand = tree_of(root)[1]
    os.kill(by_hand.pid, signal.SIGSTOP)
    until(lambda: {"T"} == states([by_hand]))

    paused = process_control.pause([root])
    process_control.resume(paused)

    assert by_hand not in paused.keys
    until(lambda: "T" not in states([root]))
    assert {"T"} == states([by_hand])


def test_a_task_that_was_stopped_as_a_whole_is_not_claimed(launch):
    """watchdog stopped nothing, so the resume changes nothing."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    for key in tree_of(root):
        os.kill(key.pid, signal.SIGSTOP)
    until(lambda: states(tree_of(root)) == {"T"})  # a signal takes its time

    paused = process_control.pause([root])

    assert () == paused.keys
    assert () == process_control.resume(paused)
    assert {"T"} == states(tree_of(root))


def test_a_pid_that_passed_to_another_process_is_left_alone(launch):
    """The same pid with another start time is another process."""
    root = launch(TREE)

    with pytest.raises(TargetGone, match="has ended"):
        process_control.pause([ProcessKey(root.pid, root.start_time - 1)])

    assert "T" not in states([root])


def test_a_process_that_has_ended_is_gone():
    """The error says that it has ended."""
    process = subprocess.Popen(["true"])
    key = key_of(process.pid)
    process.wait()

    with pytest.raises(TargetGone):
        process_control.pause([key])


def test_a_zombie_is_gone(launch):
    """A zombie cannot be paused."""
    process = subprocess.Popen(["true"])
    until(lambda: read_stat(process.pid).state == "Z")

    with pytest.raises(TargetGone):
        process_control.pause([key_of(process.pid)])

    process.wait()


def test_watchdog_never_stops_itself_or_what_it_runs_under():
    """This process and all its ancestors are refused, including a terminal's shell."""
    for pid in ancestors(os.getpid()):
        with pytest.raises(TargetDenied, match="watchdog runs in it or under it"):
            process_control.pause([key_of(pid)])


def test_another_users_process_is_refused(launch):
    """The error says why, and nothing was stopped."""
    root = launch(TREE)

    with pytest.raises(TargetDenied, match="belongs to another user"):
        process_control.pause([root], own_uid=os.getuid() + 1)

    assert "T" not in states([root])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_users_process_below_the_task_is_left_running(launch):
    """The task runs a program as another user."""
    root = launch(
        "import subprocess, time\n"
        "kept = subprocess.Popen(['sleep', '600'], user=65534)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    until(lambda: len(tree_of(root)) == 2)

    paused = process_control.pause([root])

    assert (root,) == paused.keys
    assert "T" not in states(tree_of(root)[1:])
    process_control.resume(paused)


@pytest.mark.skipif(os.getuid() != 0, reason="a user's namespace may hide the kernel's threads")
def test_a_thread_of_the_kernel_is_refused():
    """kthreadd is pid 2 of every Linux outside of containers."""
    two = read_stat(2)
    if two is None or not two.is_kernel_thread:
        pytest.skip("this container hides the kernel's threads")

    with pytest.raises(TargetDenied, match="kernel"):
        process_control.pause([ProcessKey(*two.key)])


def test_nothing_to_pause_is_an_error():
    """An empty list is a mistake of the caller; the error says so."""
    with pytest.raises(ActionError, match="no processes"):
        process_control.pause([])


def test_resume_tolerates_those_that_ended_and_those_that_run(launch):
    """Processes that have ended or run again are not an error."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    paused = process_control.pause([root])
    killed, by_hand = paused.keys[1], paused.keys[2]
    os.kill(killed.pid, signal.SIGKILL)
    os.kill(by_hand.pid, signal.SIGCONT)
    until(lambda: states([killed]) <= {"Z"} and states([by_hand]) == {"S"})

    resumed = process_control.resume(paused)

    assert {killed, by_hand}.isdisjoint(resumed)
    assert root == resumed[-1]


def test_a_pause_outlives_its_process(launch):
    """After a round trip through JSON, the pause resumes the same processes."""
    root = launch(TREE)
    paused = process_control.pause([root])

    again = codec.decode(Paused, json.loads(json.dumps(codec.encode(paused))))

    assert paused == again
    process_control.resume(again)
    until(lambda: "T" not in states([root]))


@pytest.mark.parametrize("value", [{}, {"keys": [[1]]}, {"keys": 5, "method": "sigstop"}])
def test_a_damaged_record_of_a_pause_is_a_value_error(value):
    """A truncated or changed journal raises; it is never used in part."""
    with pytest.raises(ValueError, match="not what was written down"):
        codec.decode(Paused, value)


def test_psutil_pauses_and_resumes_the_same_tree(launch):
    """The implementation for other systems, tested on this one."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    key = ProcessKey(root.pid, int(psutil.Process(root.pid).create_time() * 1e6))

    paused = stop_psutil.pause([key])

    assert {each.pid for each in tree_of(root)} == {each.pid for each in paused.keys}
    until(lambda: {"T"} == states(tree_of(root)))
    resumed = stop_psutil.resume(paused)
    assert tuple(reversed(paused.keys)) == resumed
    until(lambda: "T" not in states(tree_of(root)))


def test_psutil_refuses_itself_and_the_gone(launch):
    """psutil's implementation refuses the same as the one for Linux."""
    me = psutil.Process()
    mine = ProcessKey(me.pid, int(me.create_time() * 1e6))
    root = launch(TREE)

    with pytest.raises(TargetDenied):
        stop_psutil.pause([mine])
    with pytest.raises(TargetGone):
        stop_psutil.pause([ProcessKey(root.pid, 1)])


LAUNCHER = """
import subprocess, sys, time
kept = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                        start_new_session=True)
worker = subprocess.Popen(["sleep", "600"])
print("ready", flush=True)
time.sleep(600)
"""
SHELL = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("sh", ARGV)
os.write(terminal, b"sleep 600\\n")
print("ready", flush=True)
time.sleep(600)
"""


def test_another_task_below_is_left_running(launch):
    """A launcher's separate task is not stopped with the launcher."""
    root = launch(LAUNCHER)
    until(lambda: len(tree_of(root)) == 3)
    other = next(key for key in tree_of(root) if os.getsid(key.pid) == key.pid and key != root)

    paused = process_control.pause([root, other], others=[other])

    assert {*tree_of(root)} - {other} == set(paused.keys)
    assert "T" not in states([other])
    assert other not in [key for key, _ in process_control.process_tree([root], others=[other])]
    process_control.resume(paused)


@pytest.mark.parametrize(
    ("argv", "stops"), [(["sh", "-i"], False), (["sh", "-c", "sleep 600; true"], True)]
)
def test_a_shell_that_somebody_types_in_goes_on(launch, argv, stops):
    """`pipenv shell` and similar; a notebook's `!command` is stopped with its notebook."""
    root = launch(SHELL.replace("ARGV", repr(argv)))
    until(lambda: len(tree_below(root)) == 3)
    inside = tree_below(root)[1:]

    paused = process_control.pause([root, inside[-1]])

    assert ({root, *inside} if stops else {root}) == set(paused.keys)
    assert stops == ("T" in states(inside))
    process_control.resume(paused)


def tree_below(key: ProcessKey) -> list[ProcessKey]:
    """All descendants, including shells."""
    found = [key]
    for parent in found:
        found += [
            ProcessKey(*stat.key)
            for stat in map(read_stat, pids())
            if stat is not None and stat.ppid == parent.pid
        ]
    return found


THREADS = """
import subprocess, threading, time
for _ in range(3):
    argv = ["sh", "-c", "sleep 600; true"]
    threading.Thread(target=lambda argv=argv: subprocess.Popen(argv).wait()).start()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("program", "count"), [(TREE, 5), (THREADS, 7)])
def test_the_kernels_list_of_children_and_all_of_proc_say_the_same(launch, program, count):
    """Both include grandchildren, other sessions, and children of threads."""
    root = launch(program)
    until(lambda: len(below(root)) == count)

    found = {each.key for each in below(root, quick=True)}

    assert {each.key for each in below(root)} == found


def test_where_the_kernel_lists_no_children_all_of_proc_is_read(tmp_path):
    """Kernels without CONFIG_PROC_CHILDREN: the parent's pid finds the child."""
    for pid, ppid in ((71, 1), (72, 71), (73, 1)):
        (tmp_path / str(pid)).mkdir()
        fields = [str(pid), "(python)", "S", str(ppid), *["0"] * 17, "500", *["0"] * 30]
        (tmp_path / str(pid) / "stat").write_text(" ".join(fields))

    found = descendants([(71, 500)], str(tmp_path), quick=True)

    assert [71, 72] == [each.pid for each in found]


def test_the_family_is_known_with_who_is_stopped_already(launch):
    """It is recorded before the first signal."""
    root = launch(TREE)
    until(lambda: len(tree_of(root)) == 5)
    by_hand = tree_of(root)[1]
    os.kill(by_hand.pid, signal.SIGSTOP)
    until(lambda: {"T"} == states([by_hand]))

    found = dict(process_control.process_tree([root]))

    assert set(tree_of(root)) == set(found)
    assert [by_hand] == [key for key, stopped in found.items() if stopped]


@pytest.fixture
def new_group(launch):
    """Make control groups below a hierarchy: `unified` is v2, `freezer` is v1."""
    made = []

    def make(top: str, name: str = "watchdog-test-") -> Path:
        folder = Path("/sys/fs/cgroup") / top / f"{name}{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no group can be made here: {error}")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        # In v1 even SIGKILL does not end frozen processes.
        for control, thawed in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
            if (folder / control).exists():
                (folder / control).write_text(thawed)
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):  # they live 20 ms
                os.kill(int(pid), signal.SIGKILL)
        until(lambda folder=folder: removed(folder))


@pytest.mark.cgroup
@pytest.mark.parametrize("top", ["unified", "freezer"])
def test_a_task_alone_in_its_group_is_stopped_at_one_instant(new_group, launch, top):
    """The freezer holds it while the signals are sent, and is thawed afterwards."""
    folder = new_group(top)
    root = launch(FORKS)
    (folder / "cgroup.procs").write_text(str(root.pid))
    until(lambda: len((folder / "cgroup.procs").read_text().split()) > 1)

    paused = process_control.pause([root])

    assert "freezer" == paused.method
    assert {each.state for each in below(root)} <= {"T", "Z"}
    control, thawed = ("cgroup.freeze", "0") if top == "unified" else ("freezer.state", "THAWED")
    assert thawed == (folder / control).read_text().strip()
    process_control.resume(paused)
    until(lambda: "T" not in states([root]))


class Group:
    """A task alone in a control group that the test freezes."""

    def __init__(self, folder: Path, top: str, root: ProcessKey) -> None:
        self.folder = folder
        self.root = root
        self._unified = top == "unified"
        until(lambda: len(tree_of(root)) == 5)
        for key in tree_of(root):
            (folder / "cgroup.procs").write_text(str(key.pid))

    def freeze(self) -> None:
        self._write("1", "FROZEN")
        until(lambda: self.frozen)

    def thaw(self) -> None:
        self._write("0", "THAWED")

    @property
    def frozen(self) -> bool:
        if self._unified:
            return "frozen 1" in (self.folder / "cgroup.events").read_text()
        return "FROZEN" == (self.folder / "freezer.state").read_text().strip()

    def _write(self, unified: str, freezer: str) -> None:
        control, word = ("cgroup.freeze", unified) if self._unified else ("freezer.state", freezer)
        (self.folder / control).write_text(word)


@pytest.fixture(params=["unified", "freezer"])
def grouped(request, new_group, launch):
    """Make a group of that name, with a task in it."""
    top = request.param
    return lambda name: Group(new_group(top, name), top, launch(TREE))


@pytest.mark.cgroup
@pytest.mark.parametrize("name", [cgroup.PREFIX, "watchdog-test-"])
def test_a_freeze_of_somebody_elses_outlasts_a_pause(grouped, name):
    """A guard at its limit or a paused container: the task stops after the thaw."""
    group = grouped(name)
    group.freeze()

    paused = process_control.pause([group.root])

    assert "sigstop" == paused.method
    assert group.frozen
    assert process_control.is_stopping(group.root)
    assert "T" not in states([group.root])
    group.thaw()
    until(lambda: {"T"} == states(paused.keys))
    assert not process_control.is_stopping(group.root)
    process_control.resume(paused)
    until(lambda: "T" not in states(paused.keys))


@pytest.mark.cgroup
def test_what_had_stopped_and_was_frozen_then_is_resumed(grouped):
    """
    A guard freezes again after its program has stopped: the program runs once both are undone.
    """
    group = grouped(cgroup.PREFIX)
    paused = process_control.pause([group.root])
    assert {"T"} == states(paused.keys)
    group.freeze()

    resumed = process_control.resume(paused)

    assert set(paused.keys) == set(resumed)
    assert group.frozen  # the guard that froze it also thaws it
    group.thaw()
    until(lambda: states(paused.keys) <= {"R", "S"})
    assert set(paused.keys) <= set(tree_of(group.root))  # all of them are alive


@pytest.mark.cgroup
def test_a_guard_that_runs_is_paused_without_its_freezer(grouped):
    """Its supervisor may need the freezer at that moment, at the limit."""
    group = grouped(cgroup.PREFIX)

    paused = process_control.pause([group.root])

    assert "sigstop" == paused.method
    assert not group.frozen
    assert {"T"} == states(paused.keys)
    process_control.resume(paused)


@pytest.mark.cgroup
def test_a_group_with_somebody_else_in_it_is_not_frozen(new_group, launch):
    """Two tasks share a group: the other one never stops."""
    folder = new_group("freezer")
    root, other = launch(TREE), launch(TREE)
    for key in (root, other):
        (folder / "cgroup.procs").write_text(str(key.pid))

    paused = process_control.pause([root])

    assert "sigstop" == paused.method
    assert "T" not in states([other])
    process_control.resume(paused)


def removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
