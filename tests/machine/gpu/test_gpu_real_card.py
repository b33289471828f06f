"""
A real card: its figures next to nvidia-smi's, and a training that grows to its limit.

`make test-gpu` runs these; without a card each is skipped with the reason.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from watchdog_app.core.model.hardware import Gpu, GpuState
from watchdog_app.machine.gpu.backend import GpuSample
from watchdog_app.machine.gpu.monitor import GpuMonitor

MIB = 1024**2
FIELDS = {
    "uuid": "uuid",
    "name": "name",
    "memory.total": "total_mib",
    "memory.used": "used_mib",
    "memory.reserved": "reserved_mib",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "enforced.power.limit": "limit_w",
    "driver_version": "driver",
    "clocks.gr": "graphics_clock_mhz",
    "clocks.max.gr": "graphics_clock_max_mhz",
    "clocks.max.mem": "memory_clock_max_mhz",
    "pcie.link.gen.max": "pcie_generation_max",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "utilization.memory": "memory_utilization_percent",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "ecc.errors.corrected.aggregate.total": "ecc_corrected_aggregate",
    "ecc.errors.uncorrected.aggregate.total": "ecc_uncorrected_aggregate",
}
BUSY = """
import torch
a = torch.randn(4096, 4096, device="cuda")
while True:
    a = (a @ a).clamp_(-1, 1)
    torch.cuda.synchronize()
"""
GROW = """
import sys, time, torch
held, model = [], torch.nn.Linear(1024, 1024, device="cuda")
step = torch.cuda.get_device_properties(0).total_memory // 40
try:
    while True:
        model(torch.randn(256, 1024, device="cuda")).sum().backward()
        held.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
        print(torch.cuda.memory_reserved(), flush=True)
        time.sleep(0.5)
except torch.cuda.OutOfMemoryError:
    print("full", flush=True)
    sys.stdin.readline()
"""


def _why_not() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi: there is no NVIDIA driver here"
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if done.returncode or "GPU" not in done.stdout:
        return f"nvidia-smi finds no card: {(done.stdout + done.stderr).strip()[:100]}"
    return None


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "there is a card"),
]


def nvidia_smi() -> list[dict[str, str]]:
    """nvidia-smi's values of each card."""
    query = f"--query-gpu={','.join(FIELDS)}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(FIELDS.values(), row, strict=True)) for row in rows]


def samples(watch: GpuMonitor, seconds: float):
    """A sample every quarter of a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield watch.read(time.monotonic(), busy=True)
        time.sleep(0.25)


def first(watch: GpuMonitor) -> GpuSample:
    for sample in samples(watch, 90):
        if sample.read_mono_s is not None:
            return sample
    pytest.fail("the card was not read within 90 s")


@pytest.fixture
def watch():
    found = GpuMonitor()
    yield found
    found.close()


def cards(sample: GpuSample) -> list[Gpu]:
    return [gpu for gpu in sample.gpus if gpu.parent_id is None]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # [N/A], [Not Supported]


def differing(row: dict[str, str], gpu: Gpu) -> list[str]:
    """The figures of a card that are not those of nvidia-smi."""
    near = (
        ("total_mib", gpu.memory_total_bytes, MIB, 1),
        ("used_mib", gpu.memory_used_bytes, MIB, 64),
        ("reserved_mib", gpu.memory_reserved_bytes, MIB, 8),
        ("temperature_c", gpu.temperature_c, 1, 5),
        ("power_w", gpu.power_w, 1, 60),
        ("limit_w", gpu.power_limit_w, 1, 1),
        ("graphics_clock_mhz", gpu.graphics_clock_mhz, 1, 2000),  # follows the load at once
        ("graphics_clock_max_mhz", gpu.graphics_clock_max_mhz, 1, 0),
        ("memory_clock_max_mhz", gpu.memory_clock_max_mhz, 1, 0),
        ("pcie_generation_max", gpu.pcie_generation_max, 1, 0),
        ("pcie_width", gpu.pcie_width, 1, 0),
        ("pcie_width_max", gpu.pcie_width_max, 1, 0),
        ("memory_utilization_percent", gpu.memory_utilization_percent, 1, 50),
        ("ecc_corrected", gpu.ecc_corrected, 1, 0),
        ("ecc_uncorrected", gpu.ecc_uncorrected, 1, 0),
        ("ecc_corrected_aggregate", gpu.ecc_corrected_aggregate, 1, 0),
        ("ecc_uncorrected_aggregate", gpu.ecc_uncorrected_aggregate, 1, 0),
    )
    found = []
    for field, ours, unit, tolerance in near:
        theirs = _number(row[field])
        if (theirs is None) is not (ours is None):
            found.append(f"{field}: nvidia-smi {row[field]}, watchdog {ours}")
        if theirs is not None and ours is not None and abs(theirs - ours / unit) > tolerance:
            found.append(f"{field}: nvidia-smi {theirs}, watchdog {ours / unit}")
    return found


def test_figures_are_those_of_nvidia_smi(watch):
    """
    Identity, memory and limits must be equal; varying figures have a tolerance for one second.
    """
    differences: list[str] = []
    first(watch)
    for sample in samples(watch, 20):
        said = nvidia_smi()
        assert [row["uuid"] for row in said] == [gpu.uuid for gpu in cards(sample)]
        assert said[0]["driver"] == sample.driver_version
        differences = []
        for row, gpu in zip(said, cards(sample), strict=True):
            assert GpuState.OK is gpu.state
            assert row["name"] == gpu.name
            differences += differing(row, gpu)
        if not differences:
            print(sample.gpus)
            return
    # Another program may have taken or freed memory between two readings, but not for 20 s.
    pytest.fail("; ".join(differences))


def test_a_training_that_grows_to_its_limit_is_seen(watch):
    """Its memory as a process and on the card rises to the end, and falls after its exit."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")
    if not torch.cuda.is_available():
        pytest.skip("this torch does not reach the card")
    before = cards(first(watch))[0].memory_used_bytes
    training = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(GROW)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    on_card: list[int] = []
    by_process: list[int] = []
    try:
        for sample in samples(watch, 120):
            gpu = cards(sample)[0]
            if gpu.memory_used_bytes is not None:
                on_card.append(gpu.memory_used_bytes)
                by_process += [
                    process.memory_bytes
                    for process in gpu.processes
                    if process.pid == training.pid and process.memory_bytes is not None
                ]
                if gpu.memory_used_bytes > 0.93 * gpu.memory_total_bytes:
                    break
        total = gpu.memory_total_bytes
    finally:
        training.kill()
        training.wait()
        training.stdin.close()
        training.stdout.close()

    assert max(on_card) > 0.9 * total
    assert sorted(on_card) == pytest.approx(on_card, abs=256 * MIB)
    if by_process:  # in a container the driver may report other pids
        assert max(by_process) > 0.8 * total
    for sample in samples(watch, 20):
        after = cards(sample)[0].memory_used_bytes
        if after is not None and after < before + 1024 * MIB:
            return
    pytest.fail("its memory was not given back")


def test_the_use_of_a_busy_program_is_its_own(watch):
    """A program that computes without a pause keeps the processors busy, under its name."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")
    if not torch.cuda.is_available():
        pytest.skip("this torch does not reach the card")
    first(watch)
    program = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        for sample in samples(watch, 60):
            for each in cards(sample)[0].processes:
                if each.pid == program.pid and (each.utilization_percent or 0) > 30:
                    assert "python" in each.name
                    print(each, cards(sample)[0])
                    return
            if any(each.foreign for each in cards(sample)[0].processes):
                pytest.skip("the driver counts pids of another namespace")
    finally:
        program.kill()
        program.wait()
    pytest.fail("its use was not seen in 60 s")


def test_one_reading_is_cheap(watch):
    """The time of a reading is printed for docs/measurements.md."""
    first(watch)
    taken = []
    for _ in range(10):
        time.sleep(1.0)
        begin = time.monotonic()
        sample = watch.read(begin, busy=True)
        while (sample.read_mono_s or 0) < begin and time.monotonic() < begin + 5:
            time.sleep(0.001)
            sample = watch.read(begin, busy=True)
        taken.append(time.monotonic() - begin)
    print(f"one reading: {sorted(taken)[5] * 1e3:.1f} ms (median of 10)")
    assert max(taken) < 5
