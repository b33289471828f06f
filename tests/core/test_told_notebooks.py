"""Kernels that only the agent inside can name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_tasks import info, sample

from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.core.model.tasks import KernelRegistry, group

PATH = "/home/u/vs.ipynb"


def kernel(pid=10, kind=TaskKind.KERNEL, kernel_id="v3ab", notebook=None, start=None):
    """One task, as a look without agents shows it."""
    process = sample(pid, start=start)
    found = replace(info(process, kind), kernel_id=kernel_id, notebook=notebook)
    return group([process], {found.key: found})[0]


def told_of(key, path=PATH):
    """What is known after an agent in a process has said its notebook."""
    found = KernelRegistry()
    found.hear(key, path)
    return found


def test_kernel_has_the_name_that_its_agent_says():
    """VS Code tells nobody else."""
    task = told_of(ProcessKey(10, 100)).name([kernel()])[0]

    assert ("vs.ipynb", TaskKind.NOTEBOOK, PATH) == (task.name, task.kind, task.info.notebook)


def test_name_stays_when_the_agent_has_left_and_when_the_kernel_is_restarted():
    """The training ended, or the new process has not begun one."""
    told = told_of(ProcessKey(10, 100))
    told.name([kernel()])

    left = told.name([kernel()])[0]
    restarted = told.name([kernel(11)])[0]
    other = told.name([kernel(12, kernel_id="v3other")])[0]
    reused = told.name([kernel(10, kernel_id=None, start=7)])[0]

    assert ["vs.ipynb", "vs.ipynb", "p12", "p10"] == [
        task.name for task in (left, restarted, other, reused)
    ]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (kernel(), {ProcessKey(99, 990): PATH}),  # another process's agent
        (kernel(), {ProcessKey(10, 101): PATH}),  # the same pid, long ago
        (kernel(), {ProcessKey(10, 100): "vs.ipynb"}),
        (kernel(), {ProcessKey(10, 100): ""}),
        (kernel(kind=TaskKind.SCRIPT), {ProcessKey(10, 100): PATH}),
        (kernel(kind=TaskKind.NOTEBOOK, notebook="/p/known.ipynb"), {ProcessKey(10, 100): PATH}),
    ],
)
def test_strangers_and_relative_paths_name_nothing(task, told):
    """What the machine itself says goes before; a script is its script."""
    ((key, path),) = told.items()

    assert (task,) == told_of(key, path).name([task])


def test_names_are_known_to_the_next_daemon():
    """Their agents may not speak again; the kernel may have been restarted meanwhile."""
    before, after = told_of(ProcessKey(10, 100)), KernelRegistry()
    before.name([kernel()])
    unchanged = before.revision
    before.hear(ProcessKey(10, 100), PATH)
    before.name([kernel()])

    after.load(json.loads(json.dumps(before.dump())))

    assert unchanged == before.revision
    assert "vs.ipynb" == after.name([kernel()])[0].name
    assert "vs.ipynb" == after.name([kernel(11)])[0].name
    with pytest.raises(ValueError, match="not what was written down"):
        after.load([[3], []])


def test_name_that_was_said_before_the_kernel_was_seen_is_kept_for_it():
    """Its first cell runs within the same second; another process of that pid is another."""
    told = told_of(ProcessKey(10, 100))

    assert ["p11"] == [task.name for task in told.name([kernel(11, kernel_id="v3x")])]
    assert ["vs.ipynb"] == [task.name for task in told.name([kernel()])]
    assert ["vs.ipynb"] == [task.name for task in told.name([kernel()])]
    for number in range(3000):
        told.hear(ProcessKey(number, 1), PATH)
    assert "p10" == told.name([kernel(10, kernel_id=None, start=1)])[0].name
