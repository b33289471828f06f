"""Kernels whose notebook only the agent knows, and kernels across restarts, by their id."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_tasks import info, sample

from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.core.model.tasks import KernelRegistry, group_processes

PATH = "/home/u/vs.ipynb"


def kernel(pid=10, kind=TaskKind.KERNEL, kernel_id="v3ab", notebook=None, start=None):
    """One task, as a sample without agents shows it."""
    process = sample(pid, start=start)
    found = replace(info(process, kind), kernel_id=kernel_id, notebook=notebook)
    return group_processes([process], {found.key: found})[0]


def told_of(key, path=PATH):
    """The registry after an agent in a process has reported its notebook."""
    found = KernelRegistry()
    found.set_notebook(key, path)
    return found


def test_kernel_has_the_name_that_its_agent_says():
    """VS Code gives the name to no other program."""
    task = told_of(ProcessKey(10, 100)).with_notebook_names([kernel()])[0]

    assert ("vs.ipynb", TaskKind.NOTEBOOK, PATH) == (task.name, task.kind, task.info.notebook)


def test_name_stays_when_the_agent_has_left_and_when_the_kernel_is_restarted():
    """The training ended, or the new process has not started one yet."""
    told = told_of(ProcessKey(10, 100))
    told.with_notebook_names([kernel()])

    left = told.with_notebook_names([kernel()])[0]
    restarted = told.with_notebook_names([kernel(11)])[0]
    other = told.with_notebook_names([kernel(12, kernel_id="v3other")])[0]
    reused = told.with_notebook_names([kernel(10, kernel_id=None, start=7)])[0]

    assert ["vs.ipynb", "vs.ipynb", "p12", "p10"] == [
        task.name for task in (left, restarted, other, reused)
    ]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (kernel(), {ProcessKey(99, 990): PATH}),  # the agent of another process
        (kernel(), {ProcessKey(10, 101): PATH}),  # an earlier process with the same pid
        (kernel(), {ProcessKey(10, 100): "vs.ipynb"}),
        (kernel(), {ProcessKey(10, 100): ""}),
        (kernel(kind=TaskKind.SCRIPT), {ProcessKey(10, 100): PATH}),
        (kernel(kind=TaskKind.NOTEBOOK, notebook="/p/known.ipynb"), {ProcessKey(10, 100): PATH}),
    ],
)
def test_strangers_and_relative_paths_name_nothing(task, told):
    """The name from the machine comes first; a script is named after its file."""
    ((key, path),) = told.items()

    assert (task,) == told_of(key, path).with_notebook_names([task])


def test_names_are_known_to_the_next_daemon():
    """The agents may not report again, and the kernel may have restarted meanwhile."""
    before, after = told_of(ProcessKey(10, 100)), KernelRegistry()
    before.with_notebook_names([kernel()])
    unchanged = before.revision
    before.set_notebook(ProcessKey(10, 100), PATH)
    before.with_notebook_names([kernel()])

    after.load(json.loads(json.dumps(before.dump())))

    assert unchanged == before.revision
    assert "vs.ipynb" == after.with_notebook_names([kernel()])[0].name
    assert "vs.ipynb" == after.with_notebook_names([kernel(11)])[0].name
    with pytest.raises(ValueError, match="not what was written down"):
        after.load([[3], []])


def test_name_that_was_said_before_the_kernel_was_seen_is_kept_for_it():
    """
    Its first cell runs within the same second; a different process with that pid is unrelated.
    """
    told = told_of(ProcessKey(10, 100))

    assert ["p11"] == [
        task.name for task in told.with_notebook_names([kernel(11, kernel_id="v3x")])
    ]
    assert ["vs.ipynb"] == [task.name for task in told.with_notebook_names([kernel()])]
    assert ["vs.ipynb"] == [task.name for task in told.with_notebook_names([kernel()])]
    for number in range(3000):
        told.set_notebook(ProcessKey(number, 1), PATH)
    assert "p10" == told.with_notebook_names([kernel(10, kernel_id=None, start=1)])[0].name


# Restarts


def test_restarted_kernel_is_followed_by_its_id():
    """Each restart gives one event."""
    kernels = KernelRegistry()
    first, second, third = (kernel(pid, kernel_id="k1") for pid in (10, 11, 12))
    assert () == kernels.update([first])
    assert () == kernels.update([])  # the moment between the two processes

    found = kernels.update([second])
    kernels.update([second])
    kernels.update([third, kernel(13, kernel_id="k2")])

    assert [("k1", first.key, second)] == [(one.kernel_id, one.before, one.now) for one in found]


def test_two_processes_of_one_id_are_no_restart():
    """A copy of the command line exists while the kernel itself runs."""
    kernels = KernelRegistry()
    real, copy = kernel(10, kernel_id="k1"), kernel(11, kernel_id="k1")
    kernels.update([real])

    assert () == kernels.update([real, copy])


def test_another_users_kernel_of_that_id_is_another():
    """File names can be copied."""
    kernels = KernelRegistry()
    kernels.update([kernel(10, kernel_id="k1")])

    assert () == kernels.update([replace(kernel(11, kernel_id="k1"), uid=7)])


def test_kernel_is_known_by_its_last_name_also_when_it_is_gone():
    """Its history is found by its id."""
    kernels = KernelRegistry()
    kernels.update([kernel(kernel_id="k1")])
    kernels.update([kernel(kernel_id="k1", kind=TaskKind.NOTEBOOK, notebook="/p/a.ipynb")])
    kernels.update([])

    assert "/p/a.ipynb" == kernels.journal_word("k1")
    assert "k2" == kernels.journal_word("k2")


def test_what_is_remembered_is_bounded():
    """There may be thousands of kernels."""
    kernels = KernelRegistry()
    for pid in range(100, 800):
        kernels.update([kernel(pid, kernel_id=f"n{pid}")])

    assert "n100" == kernels.journal_word("n100")
    assert "p799" == kernels.journal_word("n799")


def test_kernels_are_known_to_the_next_daemon():
    """A restart while no daemon ran counts."""
    before, after = KernelRegistry(), KernelRegistry()
    first, second, third = (kernel(pid, kernel_id="k1") for pid in (10, 11, 12))
    before.update([first])
    before.update([second])
    unchanged = before.revision
    before.update([second])

    after.load(json.loads(json.dumps(before.dump())))
    found = after.update([third])

    assert unchanged == before.revision
    assert [(second.key, third)] == [(one.before, one.now) for one in found]


@pytest.mark.parametrize(
    "value", [None, 3, {}, [3], [[1, "k", "n", None, 0, []]], [[1, "k", "n", None, "x", [[1, 2]]]]]
)
def test_what_no_daemon_has_written_changes_nothing(value: object):
    """The journal may be damaged."""
    kernels = KernelRegistry()
    kernels.update([kernel(kernel_id="k1")])
    known = kernels.dump()

    with pytest.raises(ValueError, match="not what was written down"):
        kernels.load(value)

    assert known == kernels.dump()
