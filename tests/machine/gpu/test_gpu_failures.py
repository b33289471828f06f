"""Each way in which a driver fails: the sample, the fault, and that the rest continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from gpu_stub.driver_stub import (
    ABORT,
    CRASH,
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    HANG,
    MISSING,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    DriverStub,
)
from support.waiting import until

from watchdog_app.base.linux.process import read_stat
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.machine.gpu.nvml_driver import Library

MEMORY = "nvmlDeviceGetMemoryInfo_v2"


def states(sample):
    return [gpu.state for gpu in sample.gpus]


def sources(sample):
    return [fault.source for fault in sample.faults]


def test_a_machine_without_a_driver_is_no_error(tmp_path, ticker):
    """There is no card, no reader, no fault."""
    watch = ticker(DriverStub(tmp_path, installed=False), find_library=lambda env, root: None)

    sample = watch.tick()

    assert ((), (), None) == (sample.gpus, sample.faults, sample.read_mono_s)
    assert watch.watch.reader_pid is None


def test_a_driver_that_appears_is_found(stub, ticker):
    """The library is searched for once a minute."""
    stub.uninstall()
    watch = ticker(stub, find_library=lambda env, root: _if_there(stub))
    watch.tick()
    stub.install()
    watch.tick(30)
    assert watch.watch.reader_pid is None

    watch.tick(31)

    assert 2 == len(watch.reading().gpus)


def test_a_loaded_module_is_a_reason_to_look_at_once(stub, ticker, root):
    """It does not wait for the minute to end."""
    stub.uninstall()
    watch = ticker(stub, find_library=lambda env, root: _if_there(stub))
    watch.tick()
    stub.install()
    root.module("570.124.06")

    watch.tick(1)

    assert watch.watch.reader_pid is not None


def _if_there(stub):
    return Library(str(stub.library)) if stub.library.exists() else None


def test_a_library_without_a_driver_is_no_fault(stub, ticker):
    """Images for any machine contain the library."""
    stub.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)

    watch = ticker(stub)
    watch.wait_for_call("nvmlInitWithFlags")

    sample = watch.until(lambda sample: watch.watch.reader_pid is None)

    assert ((), ()) == (sample.gpus, sample.faults)


def test_a_card_whose_driver_is_not_loaded_is_a_fault(stub, ticker, root):
    """The remedy is the command that loads it; the fault ends when it is loaded."""
    root.card("0000:05:00.0")
    stub.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    watch = ticker(stub)

    sample = watch.until(lambda sample: sample.faults)

    assert ["gpu.driver"] == sources(sample)
    assert "modprobe nvidia" in sample.faults[0].remedy
    stub.heal()
    sample = watch.until(lambda sample: len(sample.gpus) == 2, step_s=0.2)
    assert () == sample.faults


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (VERSION_MISMATCH, "was updated under the running system"),
        (NO_PERMISSION, "refuses this user"),
        (UNKNOWN, "does not answer: Unknown Error (999)"),
        (777, "(777)"),
    ],
)
def test_a_driver_that_refuses_to_begin_is_a_fault(stub, ticker, code, words):
    """Each has a remedy; the monitor retries, and the fault ends when the driver works."""
    stub.fail("nvmlInitWithFlags", code)
    watch = ticker(stub)

    sample = watch.until(lambda sample: sample.faults)

    assert words in sample.faults[0].message
    assert sample.faults[0].remedy
    assert () == sample.gpus
    stub.heal()
    sample = watch.until(lambda sample: len(sample.gpus) == 2, step_s=0.5)
    assert () == sample.faults


def test_the_fault_stays_between_two_tries(stub, ticker):
    """It does not come and go with each new reader."""
    stub.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    watch = ticker(stub)
    watch.until(lambda sample: sample.faults)
    stub.reset_calls()

    def tried_again(sample):
        assert ["gpu.driver.updated"] == sources(sample)
        return stub.calls().get("nvmlInitWithFlags", 0) >= 2

    watch.until(tried_again, step_s=0.1)


def test_an_update_underneath_is_the_one_story_when_the_reader_has_to_begin_anew(stub, watch):
    """The card that crashed the reader is silent, and is not a second fault."""
    stub.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    stub.fail("nvmlDeviceGetTemperature", CRASH, card=1)

    sample = watch.until(lambda sample: "gpu.driver.updated" in sources(sample), step_s=0.2)

    assert ["gpu.driver.updated"] == sources(sample)


def test_a_driver_updated_underneath_is_said_while_its_jobs_go_on(stub, ticker, root, tmp_path):
    """The running reader still works; new programs will fail, and the remedy says how to fix it."""
    root.module("570.124.06")
    installed = {"version": "570.124.06"}
    found = lambda env, root: Library(str(stub.library), None, installed["version"])  # noqa: E731
    watch = ticker(stub, find_library=found)
    assert () == watch.reading().faults
    installed["version"] = "575.51.02"
    stub.fail("nvmlInitWithFlags", VERSION_MISMATCH)
    stub.set(0, used=3 * GIB)

    watch.now += 61
    sample = watch.reading()

    assert ["gpu.driver.updated"] == sources(sample)
    assert "library 575.51.02, loaded module 570.124.06" in sample.faults[0].message
    assert "still watched" in sample.faults[0].message
    assert "modprobe -r" in sample.faults[0].remedy
    assert 3 * GIB == sample.gpus[0].memory_used_bytes


def test_a_card_that_falls_off_the_bus_hides_no_other(stub, watch):
    """It keeps its identity and loses its figures until it is back."""
    stub.set(1, used=GIB)
    stub.lose(0)

    sample = watch.reading()

    assert [GpuState.LOST, GpuState.OK] == states(sample)
    lost = sample.gpus[0]
    assert "GPU-00000000-1111-2222-3333-444444444444" == lost.uuid
    assert "NVIDIA GeForce RTX 3090" == lost.name
    assert (None, None) == (lost.memory_used_bytes, lost.temperature_c)
    assert GIB == sample.gpus[1].memory_used_bytes
    assert ["gpu.0"] == sources(sample)
    assert "Start the machine again" in sample.faults[0].remedy
    stub.find(0)
    sample = watch.until(lambda sample: states(sample) == [GpuState.OK] * 2, step_s=0.3)
    assert () == sample.faults


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (RESET_REQUIRED, GpuState.NEEDS_RESET),
        (GPU_IS_LOST, GpuState.LOST),
        (UNKNOWN, GpuState.UNREADABLE),
        (31337, GpuState.UNREADABLE),
    ],
)
@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_card_that_answers_with_errors_hides_no_other(stub, ticker, code, state, from_the_start):
    """Whether the handle or each call fails; other monitors lose all cards by that."""
    watch = ticker(stub)
    if not from_the_start:
        watch.reading()
    stub.fail_all(code, card=0)

    sample = watch.reading()

    assert [state, GpuState.OK] == states(sample)
    assert 0 == sample.gpus[0].index
    assert sample.gpus[0].id
    assert sample.gpus[0].notes
    assert ["gpu.0"] == sources(sample)
    assert sample.faults[0].remedy


def test_all_cards_broken_lets_the_reader_go_between_two_looks(stub, ticker):
    """A reset is refused while any process holds the card open."""
    for card in (0, 1):
        stub.fail_all(RESET_REQUIRED, card)
    watch = ticker(stub)

    sample = watch.until(lambda sample: sample.gpus and watch.watch.reader_pid is None)

    assert [GpuState.NEEDS_RESET] * 2 == states(sample)
    stub.heal()
    sample = watch.until(lambda sample: GpuState.OK in states(sample), step_s=1.0)
    assert () == sample.faults


@pytest.mark.parametrize("how", [HANG, CRASH, ABORT])
def test_a_call_that_hangs_or_crashes_hides_no_other_card(stub, watch, how):
    """The reader is ended, the card is skipped for a while, and the others are read again."""
    stub.reset_calls()
    stub.fail("nvmlDeviceGetUtilizationRates", how, card=0)
    watch.tick(1)
    watch.wait_for_call("nvmlDeviceGetUtilizationRates")

    sample = watch.until(lambda sample: GpuState.SILENT in states(sample), step_s=0.1)

    assert sample.gpus[0].memory_used_bytes is None
    assert "gpu.reader" in sources(sample)
    stub.set(1, used=2 * GIB)
    sample = watch.until(lambda sample: sample.gpus[1].memory_used_bytes == 2 * GIB, step_s=0.1)
    assert [GpuState.SILENT, GpuState.OK] == states(sample)
    assert ["gpu.0"] == sources(sample)
    assert "nvmlShutdown" not in stub.calls()
    stub.heal()
    sample = watch.until(lambda sample: states(sample) == [GpuState.OK] * 2, step_s=1.0)
    assert () == sample.faults


@pytest.mark.parametrize(("how", "least_s", "most_s"), [(CRASH, 10, 30), (HANG, 60, 90)])
def test_a_crash_leaves_a_card_out_for_a_shorter_time_than_a_hung_call(
    stub, watch, how, least_s, most_s
):
    """A crash costs the other cards no timeout, so the retry comes sooner."""
    stub.fail("nvmlDeviceGetUtilizationRates", how, card=0)
    watch.until(lambda sample: GpuState.SILENT in states(sample), step_s=0.1)
    silent_since = watch.now
    stub.heal()

    watch.until(lambda sample: states(sample) == [GpuState.OK] * 2, step_s=0.5)

    assert least_s <= watch.now - silent_since <= most_s


def test_a_card_that_was_left_out_is_silent_until_it_is_read_and_never_lost(ticker, tmp_path):
    """It was not read for a minute: it is neither lost nor well until it answers."""
    stub = DriverStub(tmp_path, cards=4)
    watch = ticker(stub)
    watch.reading()
    for card in (1, 2):
        stub.fail_all(HANG, card)
    watch.until(lambda sample: states(sample).count(GpuState.SILENT) == 2, step_s=0.1)
    stub.heal()
    seen = []

    def well(sample):
        seen.extend((gpu.state, gpu.memory_used_bytes is None) for gpu in sample.gpus)
        return states(sample) == [GpuState.OK] * 4

    watch.until(well, step_s=1.0)

    assert {(GpuState.OK, False), (GpuState.SILENT, True)} == set(seen)


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
@pytest.mark.parametrize("how", [HANG, CRASH])
def test_a_driver_that_hangs_or_crashes_as_a_whole_costs_the_figures(stub, ticker, function, how):
    """Nothing waits for it; the retries come ever later, until it works again."""
    stub.fail(function, how)
    watch = ticker(stub, start_deadline_s=30.0)
    watch.wait_for_call(function)

    sample = watch.until(lambda sample: sample.faults, step_s=0.5)

    assert ["gpu.reader"] == sources(sample)
    assert () == sample.gpus
    stub.heal()
    sample = watch.until(lambda sample: len(sample.gpus) == 2, step_s=0.2)
    assert () == sample.faults


def test_an_initialisation_that_hangs_is_a_fault_after_five_seconds(stub, ticker):
    """The reader is not ended yet; a driver that was merely slow clears the fault."""
    stub.fail("nvmlInitWithFlags", HANG)
    watch = ticker(stub, start_deadline_s=60.0)
    watch.wait_for_call("nvmlInitWithFlags")
    began = watch.now

    early = [watch.tick(1.0) for _ in range(4)]
    sample = watch.until(lambda sample: sample.faults, step_s=0.5)

    assert [()] * 4 == [each.faults for each in early]
    assert watch.now - began < 10.0
    assert ["gpu.reader"] == sources(sample)
    assert "initialisation" in sample.faults[0].message
    assert watch.watch.reader_pid is not None
    later = [watch.tick(5.0) for _ in range(8)]
    assert {"gpu.reader"} == {source for each in later for source in sources(each)}


def test_a_slow_initialisation_is_no_fault_once_it_has_ended(stub, ticker):
    """Eight cards take longer than five seconds to initialise."""
    stub.delay("nvmlInitWithFlags", 3_000_000)
    watch = ticker(stub, start_deadline_s=100_000.0)
    watch.wait_for_call("nvmlInitWithFlags")
    late = [watch.tick(2.0) for _ in range(5)][-1]

    sample = watch.until(lambda sample: sample.gpus)

    assert ["gpu.reader"] == sources(late)
    assert () == sample.faults


def test_old_figures_are_never_shown_as_new(stub, ticker):
    """A silent driver: its cards remain in the sample, without figures."""
    stub.set(0, used=9 * GIB)
    watch = ticker(stub)
    read_mono_s = watch.reading().read_mono_s
    stub.fail("nvmlEventSetWait_v2", HANG)
    stub.reset_calls()
    watch.tick(1)
    watch.wait_for_call("nvmlEventSetWait_v2")

    for _ in range(9):
        sample = watch.tick(1)
        assert sample.read_mono_s in (None, read_mono_s)
    sample = watch.tick(2)

    assert [GpuState.SILENT] * 2 == states(sample)
    assert (None, None) == (sample.gpus[0].memory_used_bytes, sample.read_mono_s)
    assert ["gpu.reader"] == sources(sample)  # and no further fault for each card


def test_tries_come_later_and_later(stub, ticker):
    """A driver that always crashes is not called every second."""
    stub.fail("nvmlInitWithFlags", CRASH)
    watch = ticker(stub)

    def tries() -> int:
        return stub.calls().get("nvmlInitWithFlags", 0)

    watch.until(lambda sample: watch.now > 2000 and tries() > 1, step_s=15.0)

    # 1, 2, 4 ... 256, 300, 300: ten retries in a thousand seconds, and the first try; fewer if a
    # reader starts slowly.
    assert tries() <= 12


def test_cards_that_appear_vanish_and_come_back_are_followed(stub, watch):
    """Indices move as in nvidia-smi; a missing card is reported as lost."""
    third = stub.add_card()
    watch.until(lambda sample: len(sample.gpus) == 3, step_s=0.3)
    stub.remove_card(0)

    def moved(sample):
        ready = {gpu.uuid: gpu.index for gpu in sample.gpus if gpu.state is GpuState.OK}
        return [0, 1] == list(ready.values())

    sample = watch.until(moved, step_s=0.3)

    by_uuid = {gpu.uuid[4:12]: gpu for gpu in sample.gpus}
    assert GpuState.LOST is by_uuid["00000000"].state
    assert (0, 1) == (by_uuid["00000001"].index, by_uuid[f"{third:08x}"].index)
    stub.set(0, uuid="GPU-00000000-1111-2222-3333-444444444444", present=1)
    sample = watch.until(lambda sample: states(sample) == [GpuState.OK] * 3, step_s=0.3)
    assert [0, 1, 2] == [gpu.index for gpu in sample.gpus]
    assert () == sample.faults


def test_a_card_given_to_another_driver_is_no_loss(stub, ticker, root):
    """A virtual machine uses it now."""
    root.card("0000:05:00.0", driver="nvidia")
    root.card("0000:06:00.0", driver="nvidia")
    watch = ticker(stub)
    watch.reading()
    stub.remove_card(0)
    root.card("0000:05:00.0", driver="vfio-pci")

    sample = watch.until(lambda sample: len(sample.gpus) == 1, step_s=0.3)

    assert () == sample.faults


def test_a_library_that_is_removed_is_a_fault_once_its_reader_is_gone(stub, ticker):
    """A running reader keeps working; cards that were there are not dropped silently."""
    watch = ticker(stub, find_library=lambda env, root: _if_there(stub))
    watch.reading()
    stub.uninstall()
    watch.now += 61
    assert 2 == len(watch.reading().gpus)

    os.kill(watch.watch.reader_pid, signal.SIGKILL)

    sample = watch.until(lambda sample: not sample.gpus, step_s=0.1)
    assert ["gpu.driver"] == sources(sample)
    assert "NVIDIA driver is gone" in sample.faults[0].message
    stub.install()
    watch.now += 61
    sample = watch.until(lambda sample: len(sample.gpus) == 2, step_s=0.1)
    assert () == sample.faults


@pytest.mark.parametrize("what", ["raise ImportError('no pynvml here')", "1/0"])
def test_a_broken_binding_is_a_fault(stub, ticker, tmp_path, what):
    """The fault names the package; the rest of the monitor works."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pynvml.py").write_text(what + "\n")

    watch = ticker(stub, env={**stub.env(), "PYTHONPATH": str(folder)})
    sample = watch.until(lambda sample: sample.faults)

    assert ["gpu.reader"] == sources(sample)
    assert "pip install nvidia-ml-py" in sample.faults[0].remedy


@pytest.mark.parametrize(
    "says",
    [
        "no json",
        "[1]",
        "{}",
        '{"ready": 5}',
        '{"ready": {}}\n{"id": 1, "device": 7}',
        "[" * 50_000,
        '{"id": ' + "9" * 5000 + "}",
    ],
)
def test_a_reader_that_talks_nonsense_is_started_anew(stub, ticker, tmp_path, says):
    """A damaged reader is not a source of figures."""
    script = tmp_path / "reader.py"
    script.write_text(f"import sys\nprint({says!r}, flush=True)\nsys.stdin.read()\n")
    watch = ticker(stub, reader_argv=(sys.executable, str(script)))

    sample = watch.until(lambda sample: sample.faults, step_s=0.05)

    assert ["gpu.reader"] == sources(sample)
    assert () == sample.gpus


@pytest.mark.parametrize(
    "figure",
    [
        '"index": -1',
        '"index": 1e999',
        '"index": 0, "memory_used_bytes": -5',
        '"index": 0, "temperature_c": NaN',
        '"index": 0, "processes": [[1e400, 1]]',
        '"index": 0, "state": "well"',
    ],
)
def test_a_card_that_cannot_be_is_none(stub, ticker, tmp_path, figure):
    """For any value the monitor continues and restarts the reader."""
    script = tmp_path / "reader.py"
    script.write_text(
        "import json, sys\n"
        'print(\'{"ready": {"driver": null, "library": null, "cuda": null}}\', flush=True)\n'
        "for line in sys.stdin:\n"
        "    number = json.loads(line)['id']\n"
        f'    print(\'{{"id": %d, "device": {{{figure}}}}}\' % number, flush=True)\n'
    )
    watch = ticker(stub, reader_argv=(sys.executable, str(script)))

    sample = watch.until(lambda sample: sample.faults, step_s=0.05)

    assert "damaged" in sample.faults[0].message
    assert () == sample.gpus


def test_a_reader_that_cannot_be_started_is_a_fault(stub, ticker):
    """For example, an update has removed the interpreter."""
    sample = ticker(stub, reader_argv=("/nonexistent/python",)).tick()

    assert ["gpu.reader"] == sources(sample)
    assert "cannot be started" in sample.faults[0].message


def test_the_reader_goes_with_the_daemon_even_in_a_hung_call(stub, tmp_path):
    """The daemon is killed with SIGKILL: no reader stays behind."""
    stub.fail("nvmlDeviceGetTemperature", HANG)
    program = textwrap.dedent(
        """
        import time
        from watchdog_app.machine.gpu.monitor import GpuMonitor
        watch = GpuMonitor(kernel_log=None)
        while True:
            watch.read(time.monotonic(), True)
            print(watch.reader_pid, flush=True)
            time.sleep(0.05)
        """
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", program], env=stub.env(), stdout=subprocess.PIPE, text=True
    )
    reader = int(daemon.stdout.readline())
    give_up = time.monotonic() + 60
    while not stub.calls().get("nvmlDeviceGetTemperature"):
        assert time.monotonic() < give_up
        time.sleep(0.02)

    daemon.kill()
    daemon.wait()
    daemon.stdout.close()

    until(lambda: (stat := read_stat(reader)) is None or stat.has_ended, "the reader stays")


def test_the_reader_is_a_modest_process_of_its_own(stub, ticker):
    """
    It has a lower priority and a separate session, without the user's CUDA settings and preloads.
    """
    env = {**stub.env(), "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": "", "SECRET_TOKEN": "x"}
    watch = ticker(stub, env=env)
    watch.reading()
    pid = watch.watch.reader_pid

    environ = Path(f"/proc/{pid}/environ").read_bytes()
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")

    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getsid(pid) == pid
    assert b"SECRET_TOKEN" not in environ
    assert b"CUDA_VISIBLE_DEVICES" not in environ
    assert b"watchdog_app.machine.gpu.reader" in argv
    descriptors = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert 2 == sum(name.startswith("pipe:") for name in descriptors), descriptors


def test_the_reader_ends_when_the_watch_is_closed(watch):
    """It leaves no zombie."""
    pid = watch.watch.reader_pid

    watch.watch.close()

    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.cgroup
@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/sys/fs/cgroup/freezer", os.W_OK),
    reason="needs root and a freezer control group (cgroup v1)",
)
def test_readers_that_cannot_be_ended_do_not_pile_up(stub, ticker):
    """SIGKILL does not end a frozen process, nor one in a hung system call."""
    group = Path(f"/sys/fs/cgroup/freezer/watchdog-gpu-{os.getpid()}")
    group.mkdir()
    frozen = []
    stub.fail("nvmlDeviceGetTemperature", HANG)
    watch = ticker(stub)
    try:
        for _ in range(2):
            watch.until(lambda sample: watch.watch.reader_pid, step_s=1.0)
            frozen.append(watch.watch.reader_pid)
            (group / "cgroup.procs").write_text(str(frozen[-1]))
            (group / "freezer.state").write_text("FROZEN")
            while watch.watch.reader_pid == frozen[-1]:
                watch.tick(1000.0 * 101)
        sample = watch.until(
            lambda sample: any("cannot be ended" in fault.message for fault in sample.faults),
            step_s=50.0,
        )
        assert watch.watch.reader_pid is None
        assert any("Restart the machine" in (fault.remedy or "") for fault in sample.faults)
    finally:
        (group / "freezer.state").write_text("THAWED")
        stub.heal()
        give_up = time.monotonic() + 30
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < give_up:
            watch.tick()
            time.sleep(0.02)
        group.rmdir()
    sample = watch.until(lambda sample: states(sample) == [GpuState.OK] * 2, step_s=10.0)
    assert () == sample.faults


def test_an_unsupported_question_is_not_asked_again_each_second(stub, ticker):
    """An unsupported value costs no further calls."""
    stub.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    stub.fail("nvmlDeviceGetTotalEccErrors", MISSING)
    watch = ticker(stub)
    watch.reading()
    stub.reset_calls()

    for _ in range(15):
        watch.reading()

    assert "nvmlDeviceGetPowerUsage" not in stub.calls()
    assert "nvmlDeviceGetTotalEccErrors" not in stub.calls()


def test_a_machine_that_stalls_is_not_taken_for_a_driver_that_hangs(stub, watch):
    """The monitor is late itself then: ten seconds between two ticks are not a missed deadline."""
    pid = watch.watch.reader_pid
    stub.delay("nvmlDeviceGetTemperature", 300_000)
    watch.tick(1)

    sample = watch.tick(10)

    assert pid == watch.watch.reader_pid
    assert () == sample.faults


def test_a_card_lost_before_the_daemon_began_is_found_in_the_kernel_log(stub, ticker, root):
    """It cannot report its UUID: its position in the count gives its address."""
    root.card("0000:05:00.0", driver="nvidia")
    root.card("0000:06:00.0", driver="nvidia")
    stub.fail_all(GPU_IS_LOST, card=0)
    reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    fell = b"4,1,900000000,-;NVRM: GPU 0000:05:00.0: GPU has fallen off the bus."
    os.write(writer, fell)

    gpu = ticker(stub, kernel_log=f"/proc/self/fd/{reader}").reading().gpus[0]

    assert GpuState.LOST is gpu.state
    assert [79] == [xid.code for xid in gpu.xids]
    os.close(writer)
    os.close(reader)
