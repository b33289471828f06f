"""A real daemon on laid-out machines without a card of NVIDIA's."""

from __future__ import annotations

import os

import pytest
from gpu_stub.gpu_trees import GIB, MACHINES, A, Tree, amd_client

WAIT_S = 90
IDLE = "import time\nwhile True: time.sleep(0.2)\n"
STARTUP = "from watchdog_app.machine import gpu\ngpu.Gpus.__init__.__defaults__ = ({!r},)\n"
COMMANDS = (("status",), ("status", "--gpu"), ("status", "--json"), ("explain",))


@pytest.fixture
def tree(world, tmp_path):
    """A tree of /sys and /proc in which the daemon looks for GPUs."""
    tree = Tree(tmp_path / "root")
    (world.folder / "sitecustomize.py").write_text(STARTUP.format(str(tree.folder)))
    world.env["PYTHONPATH"] = os.pathsep.join(
        path for path in (str(world.folder), world.env.get("PYTHONPATH")) if path
    )
    world.env["LD_LIBRARY_PATH"] = ""
    world.config.write_text(world.config.read_text().replace("notify = false", "notify = true", 1))
    return tree


def card(world, client) -> dict:
    """The first card, once its figures are read."""
    world.until(
        lambda: [gpu for gpu in client.call("status")["gpus"] if gpu["notes"] or gpu["power_w"]],
        "the cards are read",
        WAIT_S,
    )
    return client.call("status")["gpus"][0]


def test_the_memory_of_an_amd_card_is_a_resource_of_the_script_on_it(world, tree):
    """As that of any card, whose filling other tests cover."""
    MACHINES["amd_old"](tree)
    client = world.start()
    script = world.script(IDLE, "grows.py")
    world.seen(script)
    tree.process(script, amd_client(A, 9, 3 * GIB))

    task = world.until(
        lambda: (found := world.task(script)) and found["gpu_memory_bytes"] and found,
        "the script is seen on the card",
        WAIT_S,
    )

    (memory,) = (e for e in client.call("status")["resources"] if e["kind"] == "gpu_memory")
    assert (4 * GIB, 24 * GIB) == (memory["used"], memory["limit"])
    assert (3 * GIB, [0]) == (task["gpu_memory_bytes"], [each["index"] for each in task["gpus"]])


@pytest.mark.parametrize("name", ["amd_new", "integrated", "hybrid"])
def test_no_command_speaks_of_nvidia(world, tree, name):
    """Nor is what such a card does not report 0."""
    MACHINES[name](tree)
    client = world.start()

    first = card(world, client)
    shown = "\n".join(world.command(*words).stdout for words in COMMANDS)

    assert first["name"] in shown
    assert "nvidia" not in shown.lower()
    assert "cuda" not in shown.lower()
    assert first["performance_state"] is first["pcie_rx_bytes_per_s"] is None
    if name == "integrated":
        assert first["power_w"] is first["temperature_c"] is first["utilization_percent"] is None
