"""The status as metrics, read by Prometheus's own parser and checked by promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.hostile import NAMES
from support.prometheus import tool
from support.statuses import GIB, leaking, process

from watchdog_app.core.explain.metrics import METRICS, MOST_TASKS, OTHERS, metrics_text
from watchdog_app.core.model.exits import CauseKind, cause_spec
from watchdog_app.core.model.status import Count, Daemon, Gpu, Resource, Status, Task

PACKAGING = Path(__file__).parents[2] / "packaging/prometheus"


def samples(status: Status) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels; the parser refuses duplicates and wrong syntax."""
    families = text_string_to_metric_families(metrics_text(status))
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


def tasks(*names: str, **more) -> Status:
    rows = [Task.read(process(at, name, GIB, **more)) for at, name in enumerate(names, 10)]
    return Status(tasks=tuple(rows))


def test_a_status_becomes_metrics_with_units():
    found = samples(Status.read(leaking()))
    by_name = {name for name, _ in found}
    assert by_name <= {*METRICS, *(f"{name}_total" for name in METRICS)}
    levels = {dict(each)["kind"]: found[name, each] for name, each in found if "ce_level" in name}
    assert (levels["cgroup"], levels["ram"]) == (3, 0)
    ends = {
        dict(each)["bound"]: value for (name, each), value in found.items() if "bound" in dict(each)
    }
    assert ends == {"low": 31, "median": 43, "high": 70}
    assert found["watchdog_task_paused", (("task", "分析ノート.ipynb"),)] == 1


def test_tasks_of_one_name_are_one_series():
    found = samples(tasks("a.py", "a.py", "b.py", swap_bytes=7))
    assert found["watchdog_task_ram_bytes", (("task", "a.py"),)] == 2 * GIB
    assert found["watchdog_task_swap_bytes", (("task", "b.py"),)] == 7


def test_no_pid_and_no_path_becomes_a_label():
    task = tasks("train.py").tasks[0]
    kinds = ("guard", "rlimit_as", "disk", "walltime")
    resources = [
        Resource(kind=kind, subject="/home/ada/4711", label=f"limit of pid 4711 in /home/ada {at}",
                 ratio=at / 10, tasks=(task.pid,))
        for kind in kinds for at in (1, 2)
    ]  # fmt: skip
    text = metrics_text(Status(tasks=(task,), resources=tuple(resources)))
    assert "4711" not in text
    assert "/home" not in text
    assert 'watchdog_resource_used_ratio{kind="guard",name="train.py"} 0.2' in text, "the worst"


def test_an_unbounded_forecast_has_an_infinite_bound():
    status = Status(resources=(Resource(kind="ram", label="RAM", eta_s=5.0, eta_low_s=3.0),))
    assert 'bound="high"} +Inf' in metrics_text(status)


def test_many_names_share_a_series():
    status = tasks(*(f"{at}.py" for at in range(3 * MOST_TASKS)))
    guards = [Resource(kind="guard", ratio=at.pid / 100, tasks=(at.pid,)) for at in status.tasks]
    found = samples(Status(tasks=status.tasks, resources=tuple(guards)))
    limits = {labels for name, labels in found if name == "watchdog_resource_level"}
    assert len(limits) == MOST_TASKS + 1
    ram = {labels: value for (name, labels), value in found.items() if name.endswith("ram_bytes")}
    assert len(ram) == MOST_TASKS + 1
    assert ram[(("task", OTHERS),)] == 2 * MOST_TASKS * GIB


def test_names_keep_their_places_while_memory_moves_a_little():
    """A name that leaves the first ones ends its series."""
    rows = [
        process(at, f"{at}.py", 3 * GIB // 2 + (at * 7919) % 97) for at in range(2 * MOST_TASKS)
    ]
    moved = [
        {**each, "ram_bytes": each["ram_bytes"] + 1000 - 50 * at} for at, each in enumerate(rows)
    ]
    texts = [
        metrics_text(Status(tasks=tuple(Task.read(each) for each in some)))
        for some in (rows, moved, moved[::-1])
    ]
    names = [re.findall('watchdog_task_ram_bytes{task="(.*)"}', text) for text in texts]
    assert names[0] == names[1] == names[2]


def test_unknown_figures_are_absent():
    found = samples(Status(resources=(Resource(kind="ram"),), gpus=(Gpu(id="0"),)))
    assert (
        "watchdog_gpu_power_watts",
        (("gpu", ""), ("id", "0"), ("name", "(no name)")),
    ) not in found
    assert not [name for name, _ in found if name == "watchdog_resource_used_bytes"]


def test_counters_of_deaths_begin_at_zero():
    daemon = Daemon(deaths=(Count(what="host_memory", count=3),))
    found = samples(Status(daemon=daemon))
    assert found["watchdog_deaths_total", (("cause", "host_memory"),)] == 3
    assert found["watchdog_deaths_total", (("cause", "killed"),)] == 0
    deaths = [labels for name, labels in found if name == "watchdog_deaths_total"]
    assert len(deaths) == sum(not cause_spec(each).by_itself for each in CauseKind)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_stays_in_its_label(name):
    resources = tuple(Resource(kind="cgroup", subject=name, label=name) for _ in range(2))
    status = Status(tasks=tasks(name).tasks, resources=resources)
    found = samples(status)
    assert len([each for each, _ in found if each == "watchdog_task_ram_bytes"]) == 1
    assert all(each.startswith("watchdog_") for each, _ in found)
    assert all(line.isprintable() for line in metrics_text(status).splitlines())


def test_promtool_finds_nothing_to_complain_about():
    text = metrics_text(Status.read(leaking()), open_metrics=False)
    words = [tool("promtool"), "check", "metrics"]
    checked = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_alert_rules_fire_when_they_should():
    words = [tool("promtool"), "test", "rules", "watchdog.test.yml"]
    checked = subprocess.run(words, cwd=PACKAGING, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
