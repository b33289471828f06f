"""`watchdog agent status`: where the agent runs now, and which kernels will have it."""

from __future__ import annotations

import json

from support import statuses

HOSTILE = "evil\x1b[2J\nname.ipynb"


def test_running_trainings_are_shown_with_what_they_are_at(daemon, watchdog):
    """The list has name, process, framework, position and rescue. It escapes control characters."""
    training = statuses.agent(pid=41, framework="tensorflow", step=1200, epoch=3)
    idle = statuses.agent(pid=42, training=False, rescue=None, directory=None)
    rows = [
        statuses.process(41, HOSTILE, 1, agent=training),
        statuses.process(42, "b.py", 1, agent=idle),
        statuses.process(43, "c.py", 1, agent=None),
    ]
    daemon.answers["status"] = statuses.status(tasks=rows)

    shown = watchdog("agent", "status", "--user")
    told = json.loads(watchdog("agent", "status", "--user", "--json").stdout)

    assert 0 == shown.returncode
    assert "2 programs with an agent" in shown.stdout
    assert "(pid 41): tensorflow, epoch 4, step 1200" in shown.stdout
    assert "b.py (pid 42)" in shown.stdout
    assert "not training; no rescue yet" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "c.py" not in shown.stdout
    assert [41, 42] == [one["pid"] for one in told["running"]]
    assert HOSTILE == told["running"][0]["name"]
    assert [] == told["errors"]


def test_without_a_daemon_that_is_said_and_the_rest_is_shown(watchdog):
    """The exit code is 0, because files alone show where the agent is enabled."""
    shown = watchdog("agent", "status", "--user")
    told = json.loads(watchdog("agent", "status", "--user", "--json").stdout)

    assert 0 == shown.returncode
    assert "Trainings now: not known. The watchdog daemon is not running" in shown.stdout
    assert (None, 1) == (told["running"], len(told["errors"]))


def test_each_kernel_is_told_whether_it_will_have_the_agent(watchdog, tmp_path):
    """If a kernel will not have the agent, the line says why or how to enable it."""
    kernels = tmp_path / "jupyter" / "kernels"
    specs = {"gone": ["/gone/bin/python", "-m", "ipykernel_launcher"], "ir": ["R"]}
    for name, argv in specs.items():
        (kernels / name).mkdir(parents=True)
        (kernels / name / "kernel.json").write_text(json.dumps({"argv": argv}))
    env = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "HOME": str(tmp_path)}

    told = json.loads(watchdog("agent", "status", "--json", env=env).stdout)
    shown = watchdog("agent", "status", env=env).stdout

    found = {one["name"]: (one["on"], one["why"]) for one in told["kernels"]}
    assert (False, "its Python, /gone/bin/python, does not answer") == found["gone"]
    assert (False, "it runs no ipykernel") == found["ir"]
    assert "gone  will not: its Python" in shown
