"""Process trees that the user sees as one task."""

from __future__ import annotations

import pytest
from support import records

from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.core.model.tasks import group_processes, resident_bytes

MIB = 1 << 20


def sample(pid, ppid=1, *, rss=100, shared=0, swap=0, cow=None, state="S", cpu=1.0, start=None):
    """A process; sizes in MiB."""

    def size(value):
        return None if value is None else value * MIB

    return records.process(
        pid, ppid, start_time=start or pid * 10, state=state, rss=rss * MIB,
        shared_bytes=size(shared), swap_bytes=size(swap), cpu_s=cpu, cow_bytes=size(cow),
    )  # fmt: skip


def info(of, kind=TaskKind.SCRIPT, **more):
    """The info of a sample."""
    return records.info(of, kind, **{"name": f"p{of.key.pid}", **more})


def tree(samples, infos):
    """Pids of each task, root first."""
    return [
        [member.key.pid for member in task.members]
        for task in group_processes(samples, {found.key: found for found in infos})
    ]


K = TaskKind
FORK = {"argv": ("python", "-m", "ipykernel_launcher", "-f", "/r/kernel-k1.json")}
SHELL = {"ancestor": ProcessKey(10, 100)}  # there is a shell in between
TREES = {  # pid, parent, kind and other facts; then the tasks that they form
    "a script and its workers, parents first": (
        [(30, 20), (21, 10), (20, 10), (10, 1), (31, 20)], [[10, 20, 21, 30, 31]],
    ),
    "scripts of their own": ([(20, 1), (10, 1)], [[10], [20]]),
    "a notebook, whoever started it": ([(10, 1), (20, 10, K.NOTEBOOK), (30, 20)], [[10], [20, 30]]),
    "a kernel": ([(10, 1), (20, 10, K.KERNEL), (30, 20)], [[10], [20, 30]]),
    "a console": ([(10, 1), (20, 10, K.CONSOLE), (30, 20)], [[10], [20, 30]]),
    "what a server starts": (
        [(10, 1, K.SERVER), (20, 10, K.NOTEBOOK), (30, 10)], [[10], [20], [30]],
    ),
    "what works for a server": (
        [(10, 1, K.SERVER), (20, 10, K.PYTHON, {"name": "multiprocessing resource tracker"})],
        [[10, 20]],
    ),
    "a notebook's !python report.py": (
        [(10, 1, K.NOTEBOOK), (30, 25, K.SCRIPT, SHELL)], [[10, 30]],
    ),
    "an orphan whose shell has ended": (
        [(10, 1, K.NOTEBOOK), (30, 1, K.SCRIPT, {**SHELL, "ppid": 25})], [[10], [30]],
    ),
    "an orphan that pid 1 of a container has inherited, and its own worker": (
        [(1, 0), (30, 1, K.SCRIPT, {"ppid": 25}), (31, 1)], [[1, 31], [30]],
    ),
    "a worker whose parent is gone": ([(30, 25, K.SCRIPT, SHELL)], [[30]]),
    "another user's, through sudo": ([(10, 1), (20, 10, K.SCRIPT, {"uid": 0})], [[10], [20]]),
    "a training of a sweep, in a session of its own": (
        [(10, 1), (20, 10, K.SCRIPT, {"leads_session": True}), (21, 10), (22, 20)],
        [[10, 21], [20, 22]],
    ),
    "a worker that a pool detaches": (
        [(10, 1), (20, 10, K.PYTHON, {"leads_session": True})], [[10, 20]],
    ),
    "forks of a kernel, which bear its command line": (
        [
            (10, 1, K.NOTEBOOK, {**FORK, "kernel_id": "k1"}), (20, 10, K.PYTHON, FORK),
            (30, 10, K.SCRIPT, {**FORK, "leads_session": True}),
        ],
        [[10, 20, 30]],
    ),
    "a wrapper and its kernel, which name one connection file, and another kernel": (
        [
            (10, 1, K.KERNEL, {"kernel_id": "k1"}), (20, 10, K.KERNEL, {"kernel_id": "k1"}),
            (30, 10, K.KERNEL, {"kernel_id": "k2"}),
        ],
        [[10, 20], [30]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_processes_form_the_tasks_that_a_person_sees(name):
    """A task lists its root first, parents before children, in the order of pids."""
    rows, expected = TREES[name]
    samples = [sample(pid, ppid) for pid, ppid, *_ in rows]
    infos = [
        info(each, row[2] if row[2:] else K.SCRIPT, **(row[3] if row[3:] else {}))
        for each, row in zip(samples, rows, strict=True)
    ]

    assert expected == tree(samples, infos)


def test_circle_of_parents_loses_nobody():
    """Pids may be reused between two reads; a process may appear as its own parent."""
    samples = [sample(10, 20), sample(20, 10), sample(30, 30), sample(40, 20)]

    found = tree(samples, map(info, samples))

    assert [10, 20, 30, 40] == sorted(pid for task in found for pid in task)


def test_sample_without_an_info_is_left_out():
    """The process ended between the two reads."""
    known, unknown = sample(10), sample(20, 10)

    assert [[10]] == tree([known, unknown], [info(known)])


def test_nothing_makes_no_task():
    assert () == group_processes((), {})


def test_task_is_the_sum_of_its_members():
    """Name, kind and user of the root; processor time and swap of all."""
    root, worker = sample(10, cpu=2.0, swap=5), sample(20, 10, cpu=3.5, swap=7)
    infos = {
        root.key: info(root, TaskKind.NOTEBOOK, name="train.ipynb"),
        worker.key: info(worker, name="multiprocessing worker"),
    }

    (task,) = group_processes([worker, root], infos)

    assert ("train.ipynb", TaskKind.NOTEBOOK, 1000, root.key) == (
        task.name,
        task.kind,
        task.uid,
        task.key,
    )
    assert (5.5, 12 * MIB, infos[root.key]) == (task.cpu_s, task.swap_bytes, task.info)


def test_unknown_swap_of_one_member_is_unknown_swap():
    """A partial sum must not look complete."""
    root, worker = sample(10, swap=5), sample(20, 10, swap=None)

    (task,) = group_processes([root, worker], {s.key: info(s) for s in (root, worker)})

    assert task.swap_bytes is None


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([sample(1, rss=100, shared=30)], 100),
        # Libraries and shared batches count once.
        ([sample(1, rss=100, shared=30), sample(2, rss=80, shared=30)], 150),
        ([sample(1, rss=100, shared=10), sample(2, rss=80, shared=60)], 170),
        # A fork shares its parent's data until one of them writes.
        ([sample(1, rss=4100, shared=100), sample(2, rss=4050, shared=50, cow=3990)], 4110),
        # The root's parent is not a member: their shared pages count for the root.
        ([sample(1, rss=4100, shared=100, cow=4000)], 4100),
        # Figures from different moments never make a negative size.
        ([sample(1, rss=100, shared=300), sample(2, rss=50, shared=0, cow=90)], 100),
        ([sample(1, rss=100, shared=None), sample(2, rss=50, shared=None)], 150),
        ([sample(1, rss=0, shared=0)], 0),
    ],
)
def test_shared_pages_count_once(members, expected):
    assert expected * MIB == resident_bytes(members)


def test_task_is_paused_when_every_member_is_stopped():
    """With a running worker the task counts as running."""
    root, worker = sample(10, state="T"), sample(20, 10, state="T")
    infos = {s.key: info(s) for s in (root, worker)}

    assert group_processes([root, worker], infos)[0].paused
    assert not group_processes([root, sample(20, 10)], infos)[0].paused
