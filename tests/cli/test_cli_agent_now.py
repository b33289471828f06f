"""`watchdog agent status`: which kernels will have the agent."""

from __future__ import annotations

import json


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
