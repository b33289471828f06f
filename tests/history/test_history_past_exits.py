"""The resource in the plot of a dead task: the one at which it died."""

from __future__ import annotations

from contextlib import closing

import pytest

from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, Task, TaskKind
from watchdog_app.history import past_exits
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.series import Point, SeriesPoints

MIB = 1 << 20
END = 1000.0


def series(ident, kind, *values, **more):
    points = [Point(at, used * MIB, None if top is None else top * MIB) for at, used, top in values]
    return SeriesPoints(ident, kind, more.pop("name", ident), "bytes", points, **more)


def plot_of(tmp_path, cause, *resources, **data):
    """The plot of a task that died at END, on a machine that is 95 % full."""
    ram = series("ram:", "ram", (990.0, 95, 100), (999.0, 95, 100), name="RAM")
    own = series(
        "b:7:70", "task", (998.0, 10, None), (999.0, 90, None),
        pid=7, resources=[each.ident for each in (ram, *resources)],
    )  # fmt: skip
    entry = {"pid": 7, "name": "fit.py", "start_time": 70, "cause": cause, **data}
    with closing(Journal(str(tmp_path), 1e9, 10**8)) as journal:
        journal.add(
            [Entry(END, "exit", {**entry, "notable": True}, 7, "fit.py")], [ram, *resources, own]
        )
        return past_exits.explain_death(journal, "7", 10.0, END + 5)["plot"]


@pytest.mark.parametrize("cause", ["group_limit", "guard"])
def test_a_death_by_a_group_is_drawn_with_that_group_up_to_its_limit(tmp_path, cause):
    """Even if the machine was fuller in the last sample, and the group is empty afterwards."""
    group = series(
        "cgroup:/g", "cgroup", (998.0, 20, 200), (999.0, 96, 200), (1000.5, 0, 200), name="group g"
    )

    resource = plot_of(tmp_path, cause, group)["resource"]

    assert ("cgroup", "group g", 200 * MIB) == tuple(
        resource[key] for key in ("kind", "label", "limit")
    )
    assert [END, 200 * MIB, 200 * MIB] == resource["points"][-1]
    assert 96 * MIB == resource["points"][-2][1]


def test_a_group_that_nobody_had_looked_at_is_drawn_by_its_limit(tmp_path):
    """The group filled between two samples, so the machine's memory is not drawn."""
    group = {"label": "memory limit of the group g", "limit_bytes": 200 * MIB}

    resource = plot_of(tmp_path, "group_limit", group=group)["resource"]

    assert ("memory limit of the group g", 200 * MIB) == (resource["label"], resource["limit"])


def test_a_death_by_a_group_that_is_not_known_is_drawn_without_a_ceiling(tmp_path):
    """No resource is better than a wrong one."""
    assert plot_of(tmp_path, "group_limit")["resource"] is None


def test_any_other_death_is_drawn_with_the_ceiling_that_it_was_nearest_to(tmp_path):
    """The machine, which is fuller than the group."""
    group = series("cgroup:/g", "cgroup", (998.0, 20, 200), (999.0, 96, 200))

    assert "ram" == plot_of(tmp_path, "host_memory", group)["resource"]["kind"]


@pytest.mark.parametrize(
    ("began_s", "args", "taken"),
    [
        pytest.param(END + 3.0, {}, True, id="started anew"),
        pytest.param(END - 40.0, {}, False, id="ran beside it"),
        pytest.param(END - 40.0, {"kernel_id": "k"}, True, id="a kernel is known by its id"),
        pytest.param(None, {}, True, id="nobody knows since when"),
    ],
)
def test_what_ran_beside_a_script_takes_not_its_place(tmp_path, began_s, args, taken):
    """Two folds of one script run at once: one dies, the other continues."""
    path = "/home/ann/fit.py"
    key = ProcessKey(8, 80)
    kernel = args.get("kernel_id")
    info = ProcessInfo(
        key, 1, 1000, "ann", "/usr/bin/python3", ("python3", path), "/home/ann",
        TaskKind.KERNEL if kernel else TaskKind.SCRIPT, "fit.py", script=path, kernel_id=kernel,
        started_unix_s=began_s,
    )  # fmt: skip
    other = Task(key, "fit.py", TaskKind.SCRIPT, 1000, (), MIB, 0, 1.0, info)
    entry = {"pid": 7, "name": "fit.py", "start_time": 70, "cause": "killed", "path": path, **args}
    with closing(Journal(str(tmp_path), 1e9, 10**8)) as journal:
        journal.add([Entry(END, "exit", {**entry, "notable": True}, 7, "fit.py")], [])
        found = past_exits.explain_death(journal, "7", 10.0, END + 60.0, tasks=[other])

    assert taken == ("fit.py runs again" in found["death_text"])
