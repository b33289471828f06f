"""Process trees that a user thinks of as one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, ProcessSample, TaskKind
from watchdog_app.core.model.tasks import group, resident_bytes

MIB = 1 << 20


def sample(pid, ppid=1, *, rss=100, shared=0, swap=0, cow=None, state="S", cpu=1.0, start=None):
    """A process; sizes in MiB."""
    return ProcessSample(
        key=ProcessKey(pid, start or pid * 10),
        ppid=ppid,
        state=state,
        rss_bytes=rss * MIB,
        shared_bytes=None if shared is None else shared * MIB,
        swap_bytes=None if swap is None else swap * MIB,
        vsize_bytes=None,
        cpu_s=cpu,
        cow_bytes=None if cow is None else cow * MIB,
    )


def info(of, kind=TaskKind.SCRIPT, *, name=None, uid=1000, ancestor=None, ppid=None):
    """The info of a sample."""
    return ProcessInfo(
        key=of.key,
        ppid=of.ppid if ppid is None else ppid,
        uid=uid,
        user=None,
        exe=None,
        argv=(),
        cwd=None,
        kind=kind,
        name=name or f"p{of.key.pid}",
        ancestor=ancestor,
    )


def tree(samples, infos):
    """Pids of each task, root first."""
    return [
        [member.key.pid for member in task.members]
        for task in group(samples, {found.key: found for found in infos})
    ]


def test_script_and_its_workers_are_one_task():
    """Root first, parents before children, in the order of pids."""
    samples = [sample(30, 20), sample(21, 10), sample(20, 10), sample(10), sample(31, 20)]

    assert [[10, 20, 21, 30, 31]] == tree(samples, map(info, samples))


def test_unrelated_scripts_are_tasks_of_their_own():
    """Ordered by pid."""
    samples = [sample(20), sample(10)]

    assert [[10], [20]] == tree(samples, map(info, samples))


@pytest.mark.parametrize("kind", [TaskKind.NOTEBOOK, TaskKind.KERNEL, TaskKind.CONSOLE])
def test_kernel_is_a_root_whoever_started_it(kind):
    """papermill, nbconvert or a test; its own workers are its own."""
    launcher, kernel, worker = sample(10), sample(20, 10), sample(30, 20)

    assert [[10], [20, 30]] == tree(
        [launcher, kernel, worker], [info(launcher), info(kernel, kind), info(worker)]
    )


def test_what_a_server_starts_is_not_a_part_of_it():
    """Kernels, and scripts in its terminals."""
    server, kernel, script = sample(10), sample(20, 10), sample(30, 10)

    assert [[10], [20], [30]] == tree(
        [server, kernel, script],
        [info(server, TaskKind.SERVER), info(kernel, TaskKind.NOTEBOOK), info(script)],
    )


def test_clerk_of_a_server_is_a_part_of_it():
    """What keeps its books for it is nobody's program."""
    samples = [sample(10), sample(20, 10)]
    server = info(samples[0], TaskKind.SERVER)
    tracker = info(samples[1], TaskKind.PYTHON, name="multiprocessing resource tracker")

    assert [[10, 20]] == tree(samples, [server, tracker])


def test_process_below_a_shell_belongs_to_its_ancestor():
    """A notebook's `!python report.py`."""
    kernel, script = sample(10), sample(30, 25)

    assert [[10, 30]] == tree(
        [kernel, script],
        [info(kernel, TaskKind.NOTEBOOK), info(script, ancestor=kernel.key)],
    )


def test_orphan_goes_its_own_way():
    """The shell between ended: nobody waits for the script any more."""
    kernel, script = sample(10), sample(30, 1)

    assert [[10], [30]] == tree(
        [kernel, script],
        [info(kernel, TaskKind.NOTEBOOK), info(script, ppid=25, ancestor=kernel.key)],
    )


def test_an_orphan_is_no_worker_of_the_first_python_of_a_container():
    """Pid 1 has only inherited it; what pid 1 itself has started is its worker."""
    first, orphan, worker = sample(1, 0), sample(30, 1), sample(31, 1)

    tasks = tree([first, orphan, worker], [info(first), info(orphan, ppid=25), info(worker)])

    assert [[1, 31], [30]] == tasks


def test_worker_whose_parent_is_gone_is_a_task():
    """Neither parent nor ancestor is there."""
    worker = sample(30, 25)

    assert [[30]] == tree([worker], [info(worker, ancestor=ProcessKey(10, 1))])


def test_other_users_processes_are_other_tasks():
    """Started through sudo: it may not be paused with the rest."""
    script, other = sample(10), sample(20, 10)

    assert [[10], [20]] == tree([script, other], [info(script), info(other, uid=0)])


def test_circle_of_parents_loses_nobody():
    """Pids reused between two reads; also a process that is its own parent."""
    samples = [sample(10, 20), sample(20, 10), sample(30, 30), sample(40, 20)]

    found = tree(samples, map(info, samples))

    assert [10, 20, 30, 40] == sorted(pid for task in found for pid in task)


def test_sample_without_an_info_is_left_out():
    """It was dropped between the two."""
    known, unknown = sample(10), sample(20, 10)

    assert [[10]] == tree([known, unknown], [info(known)])


def test_nothing_makes_no_task():
    """An idle machine."""
    assert () == group((), {})


def test_task_is_the_sum_of_its_members():
    """Name, kind and user of the root; processor time and swap of all."""
    root, worker = sample(10, cpu=2.0, swap=5), sample(20, 10, cpu=3.5, swap=7)
    infos = {
        root.key: info(root, TaskKind.NOTEBOOK, name="train.ipynb"),
        worker.key: info(worker, name="multiprocessing worker"),
    }

    (task,) = group([worker, root], infos)

    assert ("train.ipynb", TaskKind.NOTEBOOK, 1000, root.key) == (
        task.name,
        task.kind,
        task.uid,
        task.key,
    )
    assert (5.5, 12 * MIB, infos[root.key]) == (task.cpu_s, task.swap_bytes, task.info)


def test_unknown_swap_of_one_member_is_unknown_swap():
    """A part must not pass for the whole."""
    root, worker = sample(10, swap=5), sample(20, 10, swap=None)

    (task,) = group([root, worker], {s.key: info(s) for s in (root, worker)})

    assert task.swap_bytes is None


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([sample(1, rss=100, shared=30)], 100),
        # Libraries and shared batches once.
        ([sample(1, rss=100, shared=30), sample(2, rss=80, shared=30)], 150),
        ([sample(1, rss=100, shared=10), sample(2, rss=80, shared=60)], 170),
        # A fork shares its parent's data until one of them writes.
        ([sample(1, rss=4100, shared=100), sample(2, rss=4050, shared=50, cow=3990)], 4110),
        # The parent of the root is no member: what they share is nobody else's figure.
        ([sample(1, rss=4100, shared=100, cow=4000)], 4100),
        # Figures of different moments never make a negative size.
        ([sample(1, rss=100, shared=300), sample(2, rss=50, shared=0, cow=90)], 100),
        ([sample(1, rss=100, shared=None), sample(2, rss=50, shared=None)], 150),
        ([sample(1, rss=0, shared=0)], 0),
    ],
)
def test_shared_pages_count_once(members, expected):
    """In MiB."""
    assert expected * MIB == resident_bytes(members)


def test_task_is_paused_when_every_member_is_stopped():
    """A worker that still runs makes it a running task."""
    root, worker = sample(10, state="T"), sample(20, 10, state="T")
    infos = {s.key: info(s) for s in (root, worker)}

    assert group([root, worker], infos)[0].paused
    assert not group([root, sample(20, 10)], infos)[0].paused


def test_a_program_in_a_session_of_its_own_is_no_worker():
    """A sweep starts trainings apart from itself: each is named and judged alone."""
    samples = [sample(10), sample(20, 10), sample(21, 10), sample(22, 20)]
    infos = [info(each) for each in samples]
    infos[1] = replace(infos[1], leads_session=True)

    assert [[10, 21], [20, 22]] == tree(samples, infos)


def test_an_interpreter_in_a_session_of_its_own_still_belongs_to_its_script():
    """Some pools detach their workers; those run `python -c` and are nobody's program."""
    samples = [sample(10), sample(20, 10)]
    infos = [info(samples[0]), replace(info(samples[1], TaskKind.PYTHON), leads_session=True)]

    assert [[10, 20]] == tree(samples, infos)


def test_forked_workers_of_a_kernel_belong_to_it():
    """They bear its command line, and may lead a session of their own."""
    words = ("python", "-m", "ipykernel_launcher", "-f", "/r/kernel-k1.json")
    samples = [sample(10), sample(20, 10), sample(30, 10)]
    kernel = replace(info(samples[0], TaskKind.NOTEBOOK), argv=words, kernel_id="k1")
    worker = replace(info(samples[1], TaskKind.PYTHON), argv=words)
    leader = replace(info(samples[2], TaskKind.SCRIPT), argv=words, leads_session=True)

    assert [[10, 20, 30]] == tree(samples, [kernel, worker, leader])


def test_a_wrapper_and_the_kernel_that_it_starts_are_one_task():
    """Both name the same connection file."""
    samples = [sample(10), sample(20, 10), sample(30, 10)]
    infos = [
        replace(info(each, TaskKind.KERNEL), kernel_id=id_)
        for each, id_ in zip(samples, ("k1", "k1", "k2"), strict=True)
    ]

    assert [[10, 20], [30]] == tree(samples, infos)
