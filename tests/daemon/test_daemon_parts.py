"""Parts of the daemon in rare situations: faults, unknown processes, internal errors."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.observers import observer_of

from watchdog_app.base.errors import TaskNotFound
from watchdog_app.base.threads import Worker
from watchdog_app.client import requests
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, Task, TaskKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import find_task
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.guards import Guards
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.methods import Methods
from watchdog_app.daemon.observer import Observer
from watchdog_app.daemon.out_of_process import OutOfProcessCopies
from watchdog_app.daemon.poller import READ, WRITE, Poller, Waker
from watchdog_app.guard import cgroup, process, record
from watchdog_app.guard.record import GuardRecord
from watchdog_app.machine.sensors.machine import LinuxMachine
from watchdog_app.machine.sensors.triggers import Triggers


@pytest.fixture
def log_file(tmp_path):
    """A log, and a function that reads its text."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    yield Log(fd=fd), path.read_text
    os.close(fd)


def test_a_fault_is_said_once(log_file):
    """The same fault adds no line; its end does."""
    log, text = log_file
    faults = Faults(log)

    for _ in range(5):
        faults.put("gpu", "no driver", "install one")

    assert 1 == text().count("no driver")
    assert ["no driver"] == [fault.message for fault in faults.all()]
    faults.clear("gpu")
    faults.clear("gpu")
    assert 1 == text().count("works again")
    assert [] == faults.all()


def test_a_step_that_fails_ends_nothing_and_is_shown(log_file):
    """Its error becomes a fault, which ends with the next success."""
    log, _ = log_file
    faults = Faults(log)

    faults.run_step("journal", lambda: 1 / 0)

    assert "ZeroDivisionError" in faults.all()[0].message
    faults.run_step("journal", lambda: None)
    assert [] == faults.all()


def test_a_line_of_the_log_stays_one_line(log_file):
    """This holds for any file name; values with blanks are quoted."""
    log, text = log_file

    log.info("seen", name='a\nb\x1b[2J"c', path="/x y", count=3)

    assert 1 == len(text().splitlines())
    assert "\x1b" not in text()
    assert 'path="/x y" count=3' in text()


def test_the_file_of_the_log_is_begun_anew_when_it_is_full(tmp_path):
    """Only the file that `watchdog start` opens is rotated, not a redirection by the user."""
    path, other = tmp_path / "daemon.log", tmp_path / "other"
    sizes = []
    for place in (path, other):
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        log = Log(verbose=True, fd=fd, path=str(path))
        for number in range(2500):
            log.debug("x" * 1000, number=number)
            sizes.append(path.stat().st_size)
        os.close(fd)

    assert max(sizes) < 1.2 * 1024 * 1024
    assert path.read_text().splitlines()[-1].endswith("number=2499")
    assert {"daemon.log", "daemon.log.1", "other"} == set(os.listdir(tmp_path))
    assert (tmp_path / "daemon.log.1").stat().st_size < 1.2 * 1024 * 1024
    assert 2500 == len(other.read_text().splitlines())
    assert 0o600 == (tmp_path / "daemon.log.1").stat().st_mode & 0o777


def test_a_machine_that_cannot_be_read_is_a_fault_until_it_can(log_file, tmp_path):
    """
    Without /proc/meminfo nothing can be watched: the fault says so, and the next sample retries.
    """
    log, _ = log_file
    (tmp_path / "proc").mkdir()
    poller = Poller(lambda error: None)
    machine = LinuxMachine(proc=str(tmp_path / "proc"))
    agents = Agents(None, OutOfProcessCopies(poller, str(tmp_path), lambda: None), machine.alive)
    faults = Faults(log)
    observer = Observer(
        Settings(), machine, agents, faults, str(tmp_path), triggers=Triggers(poller, lambda: None)
    )

    assert observer.sample() is None

    assert "machine" in [fault.source for fault in faults.all()]
    observer.close()
    poller.close()


def test_a_callback_that_fails_keeps_no_other_from_being_called():
    """Both descriptors are ready, and the first callback raises."""
    errors, called = [], []
    poller = Poller(errors.append)
    pairs = [socket.socketpair() for _ in range(2)]
    poller.add(pairs[0][0].fileno(), WRITE, lambda events: 1 / 0)
    poller.add(pairs[1][0].fileno(), WRITE, called.append)

    poller.wait(1)

    assert 1 == len(errors)
    assert [WRITE] == called
    for pair in pairs:
        for each in pair:
            poller.remove(each.fileno())
            each.close()
    poller.close()


def test_a_waker_ends_the_wait_however_often_it_was_called():
    """Another thread or a signal handler may call it; a full pipe is not an error."""
    poller = Poller(lambda error: None)
    waker = Waker(poller)
    for _ in range(100_000):
        waker.wake()

    began = time.monotonic()
    poller.wait(10)

    assert time.monotonic() - began < 5
    waker.close()
    poller.close()


def test_a_worker_returns_values_and_errors_in_order():
    """It finishes the submitted jobs before it ends."""
    worker = Worker()
    found = []

    worker.submit(lambda: 1, lambda value, error: found.append((value, error)))
    worker.submit(lambda: 1 / 0, lambda value, error: found.append((value, type(error))))
    worker.submit(lambda: 3, lambda value, error: found.append((value, error)))
    worker.close(10)

    assert [(1, None), (None, ZeroDivisionError), (3, None)] == found


# Names


def task(pid: int, name: str, *, path: str | None = None, kernel: str | None = None,
         workers: tuple[int, ...] = ()) -> Task:  # fmt: skip
    key = ProcessKey(pid, pid * 10)
    info = ProcessInfo(
        key, 1, 0, "me", None, (), None, TaskKind.NOTEBOOK, name, notebook=path, kernel_id=kernel
    )
    members = tuple(
        ProcessSample(ProcessKey(p, p * 10), 1, "S", 1, None, None, None, 0.0)
        for p in (pid, *workers)
    )
    return Task(key, name, TaskKind.NOTEBOOK, 0, members, 1, None, 0.0, info)


TASKS = (
    task(10, "train.ipynb", path="/a/train.ipynb", kernel="1234abcd", workers=(11, 12)),
    task(20, "Train.ipynb", path="/b/Train.ipynb", kernel="5678efab"),
    task(30, "evaluate.py", path="/a/evaluate.py"),
    task(40, "40", path="/a/40"),
    task(50, "10", path="/a/10"),
    task(60, "4711", path="/a/4711", kernel="8765"),
    task(70, "123456789012345.ipynb", path="/a/123456789012345.ipynb"),
)


@pytest.mark.parametrize(
    ("wanted", "pid"),
    [
        ("10", 10),  # a pid comes before a name
        ("12", 10),  # a worker
        ("40", 40),
        ("1234abcd", 10),
        ("1234", None),  # digits are a pid, not the start of a kernel id
        ("4711", None),  # a number never matches a script's name
        (" 4711 ", None),
        ("04711", None),
        ("8765", None),  # a number is not a kernel id either
        ("123456789012345", None),  # longer than any pid, but still no part of a name
        ("/a/4711", 60),
        ("060", 60),
        ("1234a", 10),
        ("5678e", 20),
        ("/b/Train.ipynb", 20),
        ("train.ipynb", 10),  # the case distinguishes the two
        ("Train.ipynb", 20),
        ("eval", 30),
        ("EVALUATE.PY", 30),
        ("luate", 30),
        (" evaluate.py ", 30),
        ("TRAIN.ipynb", None),  # matches two
        ("train", None),
        ("/a/", None),
        ("", None),
        ("nothing", None),
        ("-1", None),
        ("\u0661\u0660", None),
    ],
)
def test_a_name_finds_its_task(wanted, pid):
    """The more exact match wins; a name that matches several tasks is refused."""
    try:
        found = find_task(wanted, TASKS).key.pid
    except TaskNotFound:
        found = None
    assert pid == found


def test_a_pid_that_is_not_found_says_how_a_script_of_that_name_is_meant():
    """A number is always a pid; the existing tasks follow as candidates."""
    with pytest.raises(TaskNotFound) as refused:
        find_task("4711", TASKS)

    assert (
        "No task has the pid 4711. A number is always a pid: name a script called 4711 by its "
        "path, ./4711, or by its own pid."
    ) == str(refused.value)
    assert {"pid": 60, "name": "4711"} in refused.value.candidates


def test_reading_is_not_waited_for_while_a_client_is_served():
    """A change of events takes effect with the next wait."""
    poller = Poller(lambda error: None)
    left, right = socket.socketpair()
    called = []
    poller.add(left.fileno(), READ, called.append)
    right.send(b"x")

    poller.change(left.fileno(), 0)
    poller.wait(0.01)
    assert [] == called

    poller.change(left.fileno(), READ)
    poller.wait(1)
    assert [READ] == called
    poller.remove(left.fileno())
    left.close()
    right.close()
    poller.close()


def a_guard(pid, start_time, name, group):
    return GuardRecord(
        pid=pid, start_time=start_time, name=name, kind="cgroup v2", group=group,
        limit_bytes=1 << 30, reserve_bytes=1 << 20,
    )  # fmt: skip


def test_no_look_waits_for_a_supervisor_that_is_being_started(monkeypatch):
    """
    Starting a new supervisor takes seconds when memory is short; sampling continues meanwhile.
    """
    guard = a_guard(7, 8, "hog.py", f"/x/{cgroup.PREFIX}7.8")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def adopt_orphans():
        begun.set()
        go_on.wait(20)
        ended.set()

    monkeypatch.setattr(record, "read_all", lambda: [guard])
    monkeypatch.setattr(process, "adopt_orphans", adopt_orphans)
    guards = Guards(observer_of(), Log())

    guards.refresh()
    guards.refresh()

    assert begun.wait(20)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(20)


@pytest.fixture
def crowd(monkeypatch):
    """
    Forty tasks and a guard that contains the last of them; waiting for the kernel fails the test.
    """
    tasks = [task(pid, f"fit{pid}.py", workers=(pid + 1,)) for pid in range(1000, 1080, 2)]
    inside = {tasks[-1].key.pid: f"/x/{cgroup.PREFIX}7-8/below"}
    guard = a_guard(7, 8, "hog.py", f"/x/{cgroup.PREFIX}7-8")
    guard.state = "stopped"
    guards, read = [guard], []
    monkeypatch.setattr(record, "read_all", lambda: read.append(1) or list(guards))
    monkeypatch.setattr(process, "adopt_orphans", lambda: None)
    monkeypatch.setattr(cgroup, "memberships", lambda *_: pytest.fail("this can wait for a lock"))
    found = Guards(observer_of(tasks, lambda key: inside.get(key.pid)), Log())
    return SimpleNamespace(guards=found, tasks=tasks, inside=inside, records=guards, read=read)


def test_a_guard_that_refuses_and_calms_by_turns_is_reported_once(monkeypatch):
    """A library may free and ask again many times a second; a stop and its end are always news."""
    name = f"{cgroup.PREFIX}7.8"
    monkeypatch.setattr(process, "adopt_orphans", lambda: None)
    told = []
    guards = Guards(observer_of(), Log())
    for state in (
        "refusing", "running", "refusing", "running", "refusing", "stopped", "running",
    ):  # fmt: skip
        guard = a_guard(7, 8, "hog.py", f"/x/{name}")
        guard.state = state
        monkeypatch.setattr(record, "read_all", lambda guard=guard: [guard])
        guards.refresh()
        told += [entry.data["guard"]["state"] for _, entry, _ in guards.take_events()]

    assert ["refusing", "stopped", "running"] == told


def test_a_rescue_of_all_looks_at_the_guards_once(crowd):
    """Not once per task; the task that is stopped at its limit is refused with the reason."""
    nobody = SimpleNamespace(connected_in=lambda _: [], request_checkpoint=lambda *_: [])
    parts = SimpleNamespace(
        observer=SimpleNamespace(tasks=lambda: crowd.tasks), guards=crowd.guards, executor=nobody,
        agents=nobody, checkpoints=None,
    )  # fmt: skip
    methods = Methods(parts, None)
    reply = SimpleNamespace(client="the cli (pid 1)")

    found = methods.table["task.checkpoint"](requests.CheckpointTask.read({}), reply)

    assert [crowd.tasks[-1].key.pid] == [each["task"] for each in found["requests"]]
    assert "was stopped there" in found["requests"][0]["detail"]
    assert 1 == len(crowd.read)


@pytest.mark.parametrize(("sampled", "now", "asked"), [("T", "S", True), ("S", "T", False)])
def test_a_save_is_refused_of_a_task_that_is_stopped_now_not_at_the_last_sample(
    crowd, sampled, now, asked
):
    """A guard stops its program for a copy, resumes it and asks for a save, within a second."""
    training = crowd.tasks[0]
    training = replace(training, members=(replace(training.members[0], state=sampled),))
    rescue = SimpleNamespace(status="requested", to_json=lambda: {"status": "requested"})
    parts = SimpleNamespace(
        observer=SimpleNamespace(tasks=lambda: [training], process_state=lambda _: now),
        guards=crowd.guards, agents=SimpleNamespace(connected_in=lambda _: [1]),
        executor=SimpleNamespace(request_checkpoint=lambda *_: [rescue]),
    )  # fmt: skip
    methods = Methods(parts, None)
    reply = SimpleNamespace(client="the cli (pid 1)")

    found = methods.table["task.checkpoint"](requests.CheckpointTask.read({}), reply)

    assert [asked] == [each["status"] == "requested" for each in found["requests"]]


def test_who_is_under_a_guard_is_known_from_the_look_and_the_kernel_is_not_asked(crowd):
    """A read of /proc/PID/cgroup can block for minutes; a move by hand is followed."""
    first, last = crowd.tasks[0].key, crowd.tasks[-1].key
    crowd.guards.refresh()
    before = crowd.guards.get(first), crowd.guards.get(last)
    crowd.inside[first.pid + 1] = crowd.inside.pop(last.pid)
    crowd.guards.refresh()
    moved = crowd.guards.get(first), crowd.guards.get(last)
    other = a_guard(9, 9, "x.py", f"/x/{cgroup.PREFIX}9-9")
    crowd.records.append(other)
    crowd.inside[last.pid] = f"/x/{cgroup.PREFIX}9-9.scope"
    crowd.guards.refresh()

    assert (None, crowd.records[0]) == before
    assert (crowd.records[0], None) == moved
    assert crowd.guards.get(last) is other


def test_a_pipe_in_the_place_of_a_guards_record_is_no_record(tmp_path):
    """The reader must not wait for a writer of the pipe."""
    os.mkfifo(tmp_path / "guard.json")
    found = []
    reader = threading.Thread(target=lambda: found.append(record.read(str(tmp_path))), daemon=True)
    reader.start()
    reader.join(20)

    assert [None] == found
