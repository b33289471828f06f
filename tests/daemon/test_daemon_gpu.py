"""A real daemon with a stub driver: cards that fill up, get lost, hang."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from gpu_stub.driver_stub import GIB, HANG, NOT_SUPPORTED, DriverStub

RSS_MOST_BYTES = 27_000_000  # the budget is 25 MB at rest; the test machine is not at rest
WAIT_S = 90
IDLE = "import time\nwhile True: time.sleep(0.2)\n"


@pytest.fixture
def stub(tmp_path):
    """A driver with two busy cards."""
    stub = DriverStub(tmp_path / "driver", cards=2)
    for card in (0, 1):
        stub.set(card, used=4 * GIB, utilization=95, temperature=60)
    return stub


@pytest.fixture
def client(world, stub):
    """The daemon with that driver; it decides on notices but shows none."""
    world.config.write_text(world.config.read_text().replace("notify = false", "notify = true", 1))
    world.env |= stub.env(world.env)
    return world.start()


def shows_on_bus(world, addresses: tuple[str, ...]) -> None:
    """Make processes that start from now on find these NVIDIA cards on the PCI bus."""
    for address in addresses:
        folder = world.folder / "bus" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030000\n")
    (world.folder / "sitecustomize.py").write_text(
        f"from watchdog_app.machine.gpu import pci\npci.DEVICES = {str(world.folder / 'bus')!r}\n"
    )
    world.env["PYTHONPATH"] = os.pathsep.join(
        path for path in (str(world.folder), world.env.get("PYTHONPATH")) if path
    )


def incident(client, kind: str) -> dict | None:
    found = client.call("status")["incidents"]
    return next((each for each in found if each["resource"] == kind), None)


def decisions(client, topic: str) -> list[dict]:
    entries = client.call("history", kinds=["decision"])["entries"]
    return [each for each in entries if (each.get("evidence") or {}).get("topic") == topic]


def cards(world, client, count: int) -> list[dict]:
    def read():
        gpus = client.call("status")["gpus"]
        return len(gpus) == count and gpus

    return world.until(read, f"{count} cards are read", WAIT_S)


def test_figures_and_programs_of_a_card_reach_the_status(world, stub, client):
    """A program that is not Python has the name of its process, a task that of its script."""
    script = world.script(IDLE, "job.py")
    world.seen(script)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        stub.set(0, graphics_clock=1755, pstate=0, pcie_width=8, rx_kib=0, ecc_corrected=3)
        stub.fail("nvmlDeviceGetFanSpeed", NOT_SUPPORTED, card=0)
        stub.processes(0, [(script, 2 * GIB), (other.pid, GIB)])

        def used():
            stub.samples(0, {script: 60})
            card = client.call("status")["gpus"][0]
            return [60, 0] == [each["utilization_percent"] for each in card["processes"]] and card

        cards(world, client, 2)
        card = world.until(used, "the use of both programs is read", WAIT_S)
    finally:
        other.kill()
        other.wait()

    assert [("job.py", script), ("sleep", None)] == [
        (each["name"], each["task"]) for each in card["processes"]
    ]
    # Clocks are read every five seconds, PCIe and ECC every ten.
    world.until(
        lambda: (
            (1755, "P0", 8, 0, 3, None)
            == tuple(
                client.call("status")["gpus"][0][name]
                for name in (
                    "graphics_clock_mhz",
                    "performance_state",
                    "pcie_width",
                    "pcie_rx_bytes_per_s",
                    "ecc_corrected",
                    "fan_percent",
                )
            )
        ),
        "the figures are read",
        WAIT_S,
    )


def test_a_card_that_fills_up_warns_and_names_the_script(world, stub, client):
    """The memory of one script on the card grows; the other script's does not."""
    grows, still = world.script(IDLE, "grows.py"), world.script(IDLE, "still.py")
    stub.processes(1, [(still, GIB)])
    world.seen(grows)
    cards(world, client, 2)
    began = time.monotonic()

    def filled():
        used = int(min(23.5, 4 + 1.0 * (time.monotonic() - began)) * GIB)
        stub.set(0, used=used)
        stub.processes(0, [(grows, used)])
        return incident(client, "gpu_memory")

    found = world.until(filled, "the card fills up", WAIT_S)

    assert ["grows.py"] == [each["name"] for each in found["contributors"]]
    assert any("batch" in line for line in found["advice"])
    task = world.task(grows)
    assert task["gpu_memory_bytes"] > 4 * GIB
    assert [0] == [each["index"] for each in task["gpus"]]
    (row,) = client.call("status")["gpus"][0]["processes"]
    assert (grows, "grows.py", False) == (row["task"], row["name"], row["foreign"])


def test_a_lost_card_opens_an_incident_that_names_the_script_on_it(world, stub, client):
    """The other card works, and its script is not asked for anything."""
    left, right = world.script(IDLE, "left.py"), world.script(IDLE, "right.py")
    stub.processes(0, [(left, GIB)])
    stub.processes(1, [(right, GIB)])
    world.seen(right)
    world.until(lambda: (world.task(right) or {}).get("gpus"), "right.py is on its card", WAIT_S)

    stub.xid(1, 79)
    stub.lose(1)

    # a late sample may find the card lost before it has read the processes
    def named() -> dict | None:
        found = incident(client, "gpu_fault")
        return found if found and found["contributors"] else None

    found = world.until(named, "the loss is seen", WAIT_S)
    assert ["right.py"] == [each["name"] for each in found["contributors"]]
    assert [None] == [each["share"] for each in found["contributors"]]
    assert any("Start the machine again" in line for line in found["advice"])
    told = world.until(lambda: decisions(client, "gpu_lost"), "the loss is told", WAIT_S)
    assert [right] == [each["pid"] for each in told]
    status = client.call("status")
    assert ["ok", "lost"] == [gpu["state"] for gpu in status["gpus"]]
    assert "left.py" not in client.call("explain", task=None)["text"].partition("To do:")[2]


def test_a_driver_that_hangs_costs_the_cards_and_nothing_else(world, stub, client):
    """The daemon samples everything else as usual, and reports the silent card."""
    pid = world.sleeper("job.py")
    cards(world, client, 2)

    stub.fail("nvmlDeviceGetMemoryInfo_v2", HANG)
    before = client.call("status")["daemon"]["samples"]
    began = time.monotonic()
    world.until(
        lambda: any(gpu["state"] == "silent" for gpu in client.call("status")["gpus"]),
        "the hung driver is noticed",
        WAIT_S,
    )
    passed = time.monotonic() - began
    ticks = client.call("status")["daemon"]["samples"] - before

    assert ticks >= 0.5 * passed
    assert world.task(pid) is not None
    assert any(error["source"].startswith("gpu") for error in client.call("status")["problems"])
    stub.heal()


def test_the_daemon_itself_never_loads_the_driver(world, stub, client):
    """A crash in the driver must not end the daemon, and its five megabytes must not count."""
    world.seen(world.script(IDLE, "job.py"))
    cards(world, client, 2)
    assert world.process is not None
    pid = world.process.pid

    mapped = Path(f"/proc/{pid}/maps").read_text()

    assert "libnvidia-ml" not in mapped
    assert client.call("status")["daemon"]["rss_bytes"] < RSS_MOST_BYTES


def test_a_death_before_its_gpu_is_read_waits_for_that_and_is_told_with_its_cause(
    world, stub, client
):
    """A training ends at once and its GPU's fault is read seconds later: one diagnosis."""
    pid = world.script(
        "import os, sys, time\nwhile not os.path.exists('end'): time.sleep(0.01)\nos.abort()\n",
        "train.py",
    )
    stub.processes(1, [(pid, GIB)])
    world.seen(pid)
    world.until(lambda: (world.task(pid) or {}).get("gpus"), "train.py is on its card", WAIT_S)

    (world.folder / "end").touch()
    stub.lose(1)
    world.until(lambda: world.task(pid) is None, "it has ended", WAIT_S)
    stub.processes(1, [])

    (death,) = world.until(lambda: world.ends(pid), "its cause is found", WAIT_S)
    assert (pid, "train.py", "gpu_lost") == (death["pid"], death["name"], death["cause"])
    assert "ended by a fault of its card: GPU 1" in death["text"]
    assert 1 == len(world.until(lambda: decisions(client, "gpu_lost"), "the loss is told", WAIT_S))
    assert ["GPU 1" in each["reason"] for each in decisions(client, "exited")] == [True]


def test_a_daemon_after_one_that_was_killed_tells_of_a_lost_card_no_second_time(
    world, stub, client
):
    """The lost card cannot report its UUID; its incident stays the same."""
    shows_on_bus(world, ("0000:05:00.0", "0000:06:00.0"))
    pid = world.script(IDLE, "right.py")
    stub.processes(1, [(pid, GIB)])
    world.until(lambda: (world.task(pid) or {}).get("gpus"), "right.py is on its card", WAIT_S)
    stub.lose(1)
    world.until(lambda: decisions(client, "gpu_lost"), "the loss is told", WAIT_S)
    time.sleep(0.5)  # time to record it

    world.kill()
    again = world.start()
    ticks = again.call("status")["daemon"]["samples"]
    world.until(
        lambda: [gpu["state"] for gpu in again.call("status")["gpus"]] == ["ok", "lost"],
        "the loss is seen again",
        WAIT_S,
    )
    world.until(lambda: again.call("status")["daemon"]["samples"] > ticks + 5, "looks", WAIT_S)

    assert 1 == len(decisions(again, "gpu_lost"))
    found = incident(again, "gpu_fault")
    assert "GPU 1 (NVIDIA GeForce RTX 3090)" == found["label"]
    assert ["right.py"] == [each["name"] for each in found["contributors"]]
