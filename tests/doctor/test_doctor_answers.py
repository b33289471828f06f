"""The driver's answers: a real child process and the real binding over a stub library."""

from __future__ import annotations

import json
import sys
import time

import pytest
from doctor_tree import GIB, Tree, answers, card, found, troubles
from gpu_stub import driver_stub
from gpu_stub.driver_stub import DriverStub
from support.fake_daemon import FakeDaemon
from support.finished import finished

from watchdog_app.doctor import cards, driver, gpu, power
from watchdog_app.machine.gpu.pci import short_address


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "machine").gpu()


@pytest.fixture
def stub(tmp_path):
    return DriverStub(tmp_path / "stub", cards=2)


def asked(tree, stub, timeout_s=10.0):
    return gpu.ask(tree.machine(env=stub.env(), timeout_s=timeout_s))


def test_a_healthy_driver_is_read_in_full(tree, stub):
    """The doctor reads the version, the CUDA version and every GPU."""
    told = asked(tree, stub)

    assert told.answers
    assert (570, 124, 6) == told.version
    assert (12, 8) == told.cuda
    assert [0, 1] == [one["index"] for one in told.usable]
    assert [24 * GIB] * 2 == [one["memory_total_bytes"] for one in told.usable]
    assert told.hung_in is None


def test_what_the_driver_never_says_is_none(tree, stub):
    """The stub lacks these functions, as old drivers do."""
    (first, _) = asked(tree, stub).usable

    assert first.get("compute_mode") is None
    assert first.get("power_default_w") is None


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        ("driver.api-mismatch", driver_stub.VERSION_MISMATCH),
        ("driver.init-failed", driver_stub.DRIVER_NOT_LOADED),
        ("driver.init-failed", driver_stub.UNKNOWN),
        ("driver.crashed", driver_stub.CRASH),
        ("driver.crashed", driver_stub.ABORT),
    ],
)
def test_a_driver_that_cannot_begin_is_one_error(tree, stub, expected, code):
    """Each error code has its own message."""
    stub.fail("nvmlInitWithFlags", code)

    facts = tree.facts(gpu.READER, env=stub.env())

    assert {expected: "error"} == troubles(cards.check_driver(facts))


def test_a_mismatch_that_the_files_show_is_told_once(tree, stub):
    """The check of the files reports it with both versions."""
    tree.library("550.90.07")
    stub.fail("nvmlInitWithFlags", driver_stub.VERSION_MISMATCH)

    assert {} == troubles(cards.check_driver(tree.facts(gpu.READER, env=stub.env())))


def test_a_call_that_never_returns_costs_its_deadline_and_is_named(tree, stub):
    """nvidia-smi would hang in this call forever."""
    stub.fail("nvmlDeviceGetTemperature", driver_stub.HANG, card=1)
    facts = tree.facts(gpu.READER, env=stub.env(), timeout_s=3.0)
    begun = time.monotonic()

    finding = found(cards.check_driver(facts))["driver.hung"]

    assert "nvmlDeviceGetTemperature" in finding.what
    assert time.monotonic() - begun < 60
    assert [0] == [one["index"] for one in facts.driver().usable]
    stub.heal()


@pytest.mark.parametrize("behaviour", [driver_stub.HANG, driver_stub.CRASH])
def test_a_card_whose_handle_is_bad_hides_no_other(tree, stub, behaviour):
    """The finding names that GPU, and separate children read the other GPUs."""
    third = stub.add_card()
    stub.fail_all(behaviour, card=0)
    stub.fail("nvmlDeviceGetTemperature", behaviour, card=third)
    facts = tree.facts(gpu.READER, env=stub.env(), timeout_s=4.0)

    told = [one for one in cards.check_driver(facts) if one.severity.value == "error"]

    assert ["GPU 0", "GPU 2"] == sorted(
        word for one in told for word in ("GPU 0", "GPU 1", "GPU 2") if word in one.what
    )
    assert [1] == [one["index"] for one in facts.driver().usable]
    assert 3 == facts.driver().devices
    assert (behaviour == driver_stub.HANG) is facts.driver().hangs
    stub.heal()


def test_a_memory_call_that_hangs_the_daemon_hangs_the_doctor_as_well(tree, stub):
    """Daemon and doctor use the newer memory call first, so they agree on the result."""
    stub.fail("nvmlDeviceGetMemoryInfo_v2", driver_stub.HANG, card=0)
    facts = tree.facts(gpu.READER, env=stub.env(), timeout_s=4.0)

    assert "GPU 0" in found(cards.check_driver(facts))["driver.hung"].what
    assert ["driver.card"] == [one.id for one in cards.check(facts) if "healthy" in one.what]
    stub.heal()


def test_what_the_daemon_knows_of_a_card_is_not_called_healthy(tree, stub, tmp_path):
    """
    The doctor reports an open incident with its remedy, and a GPU that the daemon cannot read.
    """
    ids = [short_address(one["bus_id"]) for one in asked(tree, stub).usable]
    status = {
        "incidents": [
            {
                "resource": "gpu_fault",
                "subject": ids[1],
                "label": "GPU 1 (RTX)",
                "level": "critical",
                "reason": "Xid 79, the card has fallen off the bus",
                "advice": ["Start the machine again."],
                "contributors": [{"name": "train.py", "pid": 7}],
            }
        ],
        "gpus": [{"id": ids[0], "index": 0, "name": "RTX", "state": "silent"}],
    }
    daemon = FakeDaemon(tmp_path / "run" / "daemon.sock", status)
    daemon.start()
    facts = tree.facts(gpu.READER, env=stub.env() | {"WATCHDOG_RUNTIME_DIR": str(tmp_path / "run")})
    findings = list(cards.check(facts))
    daemon.stop()

    assert ["error", "warning"] == [
        one.severity.value for one in findings if one.id == "driver.incident"
    ]
    assert "Xid 79" in findings[0].what
    assert "Start the machine again." == findings[0].remedy
    assert "GPU 0 (RTX) does not answer" in findings[1].what
    assert not any("healthy" in one.what for one in findings)


def test_one_lost_card_hides_no_other(tree, stub):
    """The doctor still reports the other GPU in full."""
    stub.lose(0)

    facts = tree.facts(gpu.READER, env=stub.env())

    assert {"driver.gpu-lost": "error"} == troubles(cards.check_driver(facts))
    assert [1] == [one["index"] for one in facts.driver().usable]


def test_a_card_that_asks_for_a_reset_is_named(tree, stub):
    """The finding shows the reset command."""
    stub.fail_all(driver_stub.RESET_REQUIRED, card=1)

    findings = found(cards.check_driver(tree.facts(gpu.READER, env=stub.env())))

    assert "sudo nvidia-smi --gpu-reset -i 1" in findings["driver.reset-required"].commands[0]


def test_the_real_binding_reports_ill_cards(tree, stub):
    """
    The binding reads recovery action, memory rows and ECC through the library's own structures.
    """
    stub.set(0, recovery=2, remap_failed=1, ecc=3)

    told = troubles(cards.check(tree.facts(gpu.READER, env=stub.env())))

    assert (
        told.items()
        >= {
            "driver.recovery": "warning",
            "driver.remap-failed": "warning",
            "driver.ecc": "warning",
        }.items()
    )


def test_mig_without_an_instance_is_an_error_and_with_one_is_not(tree, stub):
    """A GPU in MIG mode is unusable until it has an instance."""
    stub.set(1, mig=1)
    empty = troubles(cards.check(tree.facts(gpu.READER, env=stub.env())))
    stub.partition(1, 2)
    parted = troubles(cards.check(tree.facts(gpu.READER, env=stub.env())))

    assert "error" == empty.get("driver.mig-empty")
    assert "driver.mig-empty" not in parted


def test_a_sleeping_card_is_left_asleep(tree, stub):
    """A query would wake a laptop's GPU."""
    tree.write("sys/bus/pci/devices/0000:01:00.0/power/runtime_status", "suspended\n")
    facts = tree.facts(gpu.READER, env=stub.env())

    findings = found([*cards.check_driver(facts), *power.check(facts), *cards.check(facts)])

    assert not findings["driver.answer"].checked
    assert {} == stub.calls()


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (set(), driver_stub.OK),
        ({"driver.api-mismatch"}, driver_stub.VERSION_MISMATCH),
        ({"driver.crashed"}, driver_stub.CRASH),
        ({"driver.device"}, driver_stub.DRIVER_NOT_LOADED),
    ],
)
def test_a_gpu_that_only_the_library_shows_is_a_gpu(tmp_path, stub, expected, code):
    """
    Sandboxes hide the PCI bus and /proc/driver.

    A library without a driver does not count as a GPU.
    """
    tree = Tree(tmp_path / "sandbox").library()
    stub.fail("nvmlInitWithFlags", code)
    facts = tree.facts(gpu.READER, env=stub.env())

    told = troubles([*driver.check(facts), *cards.check_driver(facts), *cards.check(facts)])

    assert expected == set(told)
    assert (code != driver_stub.DRIVER_NOT_LOADED) is facts.expects_gpu


def test_a_driver_that_hangs_before_its_first_card_is_told(tmp_path, stub):
    """The doctor reports it even if only the library indicates a GPU."""
    tree = Tree(tmp_path / "sandbox").library()
    stub.fail("nvmlDeviceGetMemoryInfo_v2", driver_stub.HANG)
    facts = tree.facts(gpu.READER, env=stub.env(), timeout_s=3.0)

    assert {"driver.hung": "error"} == troubles(cards.check_driver(facts))
    stub.heal()


def test_a_container_that_lost_its_right_is_told_apart(tree):
    """A daemon-reload on the host removes the container's right to the device."""
    tree.write(".dockerenv", "")
    facts = tree.facts([{"failed": {"code": driver_stub.UNKNOWN, "said": "Unknown Error"}}])

    assert {"driver.container-lost": "error"} == troubles(cards.check_driver(facts))


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        ({}, {}),
        ({"driver.compute-mode": "error"}, {"compute_mode": 2}),
        ({"driver.compute-mode": "warning"}, {"compute_mode": 3}),
        ({"driver.persistence": "info"}, {"persistence": 0}),
        ({"driver.remap-pending": "info"}, {"remap_pending": True}),
        ({"driver.remap-pending": "info"}, {"retired_pending": 1}),
        ({"driver.pcie-width": "info"}, {"pcie_width": 4, "pcie_width_max": 16}),
        ({"driver.memory-taken": "warning"}, {"memory_free_bytes": GIB}),
        ({}, {"memory_total_bytes": None, "memory_free_bytes": None}),
    ],
)
def test_each_state_of_a_card_has_its_finding(tree, expected, values):
    """A healthy GPU has no finding."""
    assert expected == troubles(cards.check(tree.facts(answers(card(**values)))))


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        ({}, {}),
        ({}, {"throttling": ["software_power_cap"]}),  # normal at full load
        ({"power.gpu-heat": "warning"}, {"throttling": ["software_thermal"], "temperature_c": 86}),
        (
            {"power.gpu-heat": "error"},
            {"throttling": ["hardware_slowdown", "hardware_thermal"], "temperature_c": 96},
        ),
        ({"power.gpu-heat": "warning"}, {"temperature_c": 91}),
        ({"power.brake": "error"}, {"throttling": ["hardware_slowdown", "power_brake"]}),
        ({"power.hardware-slowdown": "warning"}, {"throttling": ["hardware_slowdown"]}),
        ({"power.gpu-limit": "info"}, {"power_limit_w": 200, "power_default_w": 350}),
        ({"power.fan": "warning"}, {"fan_percent": 0, "temperature_c": 80}),
        ({}, {"fan_percent": 0, "temperature_c": 45}),
        ({}, {"temperature_c": None, "slowdown_c": None, "throttling": None}),
    ],
)
def test_heat_and_power_of_a_card(tree, expected, values):
    """The doctor reports what limits the clock, and what is normal."""
    assert expected == troubles(power.check(tree.facts(answers(card(**values)))))


def test_who_holds_the_memory_is_named(tree):
    """The list includes a PID that is missing from the container's /proc."""
    tree.process(4711, "/venv/bin/python", name="python")
    full = card(memory_free_bytes=GIB, processes=[[4711, 20 * GIB, 80], [99, None, None]])

    finding = found(cards.check(tree.facts(answers(full))))["driver.memory-taken"]

    assert "pid 4711 (python): 20.0 GiB" == finding.details[0]
    assert "N/A" in finding.details[1]


@pytest.mark.parametrize(
    ("severity", "line"),
    [
        ("warning", "4,1,1,-;NVRM: Xid (PCI:0000:05:00): 79, pid=7, GPU has fallen off the bus."),
        ("warning", "4,1,1,-;NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."),
        ("info", "4,1,1,-;NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=python"),
        (None, "4,1,1,-;usb 1-1: Xid nothing"),
        (None, "4,1,1,-;NVRM: Xid (PCI:0000:05:00): what"),
    ],
)
def test_faults_in_the_kernel_log_are_counted(tree, severity, line):
    """An error of a program does not count as a fault of the GPU."""
    tree.write("dev/kmsg", f"6,0,0,-;Linux version\n{line}\n SUBSYSTEM=pci\n")

    assert severity == troubles(cards.check(tree.facts())).get("driver.xid")


@pytest.mark.parametrize(
    "code",
    [
        "",
        "print('no json'); print('[1, 2]'); print('{\"calling\": 5}')",
        "import os; print('{\"ready\"', flush=True); os.abort()",
        "raise SystemExit(3)",
    ],
)
def test_whatever_the_child_prints_is_no_trouble_of_ours(tree, code):
    """The doctor reports a missing answer instead of failing."""
    facts = tree.facts((sys.executable, "-c", code))

    assert not facts.driver().answers
    assert set(troubles(cards.check_driver(facts)).values()) <= {"warning", "error"}


def test_a_child_that_cannot_be_started_is_said(tree):
    """The doctor reports it instead of raising an exception."""
    facts = tree.facts(("/no/such/program",))

    assert {"driver.answer": "warning"} == troubles(cards.check_driver(facts))


def test_the_command_tells_of_an_initialisation_that_hangs(tmp_path):
    """`watchdog doctor` names the hanging call after its deadline and advises what to do."""
    stub = DriverStub(tmp_path / "stub")
    stub.fail("nvmlInitWithFlags", driver_stub.HANG)
    env = stub.env() | {"WATCHDOG_RUNTIME_DIR": str(tmp_path / "run")}

    done = finished([sys.executable, "-m", "watchdog_app", "doctor", "--json"], env=env)
    stub.heal()

    told = {one["id"]: one for one in json.loads(done.stdout)["findings"]}["driver.hung"]
    assert ("error", True) == (told["severity"], "nvmlInit" in told["what"])
    assert "restart the machine" in told["remedy"]
    assert done.returncode != 0
