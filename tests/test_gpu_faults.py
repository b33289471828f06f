"""Every row of the table of device faults: all outputs about a card agree."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from core.card_world import WALL_S, CardWorld
from doctor.doctor_tree import Tree
from gpu_stub.driver_stub import GIB, RESET_REQUIRED, UNKNOWN, DriverStub

from watchdog_app.cli.status import check
from watchdog_app.cli.status_text import render
from watchdog_app.core.diagnosis.gpu_faults import FAULTS, RECOVERIES, UNKNOWN_XID, XIDS, FaultKind
from watchdog_app.core.explain.status import describe_task
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.hardware import GpuProcess, GpuState
from watchdog_app.core.model.status import Daemon, Status
from watchdog_app.daemon.status import AssessedSample, status
from watchdog_app.doctor import cards, gpu
from watchdog_app.machine.gpu.monitor import GpuMonitor
from watchdog_app.top.rows import gpu_rows
from watchdog_app.tray.state import tray_state

_CARD_STATES = (FaultKind.LOST, FaultKind.NEEDS_RESET, FaultKind.SILENT, FaultKind.UNREADABLE)
_MEMORY = (FaultKind.ECC, FaultKind.REMAP_FAILED, FaultKind.REMAP_PENDING)
ROWS = {
    **{trouble.value: FAULTS[trouble] for trouble in (*_CARD_STATES, *_MEMORY)},
    **{f"recovery {name}": row for name, row in RECOVERIES.items()},
    **{f"Xid {code}": row for row in XIDS for code in row.codes},
    "Xid 999": UNKNOWN_XID,
}
SHOWN = {
    Stage.WATCH: ("note", "watch", "low", "info"),
    Stage.WARN: ("warning", "warning", "normal", "warning"),
    Stage.SAVE: ("critical", "critical", "critical", "error"),
}
NOW = 1000.0
SELDOM_S = 400.0  # memory errors and recovery actions are read less often


def break_card(stub: DriverStub, index: int, name: str) -> None:
    """Change the answers of the driver library from now on."""
    kind, _, rest = name.partition(" ")
    if kind == "Xid":
        stub.xid(index, int(rest))
    elif kind == "recovery":
        stub.set(index, recovery=1 + list(RECOVERIES).index(rest))
    elif kind == "lost":
        stub.lose(index)
    elif kind == "needs_reset":
        stub.fail_all(RESET_REQUIRED, card=index)
    elif kind == "unreadable":
        stub.fail_all(UNKNOWN, card=index)
    elif kind != "silent":
        stub.set(index, **{kind: 1})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One card per row, read by the real reader through nvidia-ml-py and followed by the engine."""
    folder = tmp_path_factory.mktemp("faults")
    stub = DriverStub(folder / "stub", cards=len(ROWS))
    world = CardWorld(cards=len(ROWS))
    clock = NOW
    watch = GpuMonitor(
        env=stub.env(),
        root=str(folder / "root"),
        kernel_log=None,
        start_deadline_s=1e5,
        wall_clock=lambda: WALL_S + clock,
    )

    def read(seconds: float = 1.0) -> None:
        nonlocal clock
        clock += seconds
        since, give_up = clock, time.monotonic() + 60
        while (sample := watch.read(clock, True)).read_mono_s is None or sample.read_mono_s < since:
            assert time.monotonic() < give_up, sample
            time.sleep(0.005)
        world.gpus = [
            replace(each, processes=(GpuProcess(100 + each.index, GIB),))
            if each.state is GpuState.OK
            else each
            for each in sample.gpus
        ]

    for index in range(len(ROWS)):
        world.program(100 + index, f"job{index}.py")
    try:
        read()
        world.run(5)
        for index, name in enumerate(ROWS):
            break_card(stub, index, name)
        read(SELDOM_S)
        read()
        world.now = clock
        # A hung call would end the reader of all cards; the reader's own tests cover that.
        world.set(list(ROWS).index("silent"), state=GpuState.SILENT, processes=())
        world.run(70)
        yield world, stub
    finally:
        watch.close()


@pytest.fixture(scope="module")
def told(world):
    """The status object of all cards."""
    return status_of(world[0], world[0].snapshot.hardware.gpus, world[0].result.incidents)


def status_of(world, gpus, incidents):
    """The status object with only these cards and incidents."""
    snapshot = replace(world.snapshot, hardware=replace(world.snapshot.hardware, gpus=tuple(gpus)))
    result = replace(world.result, incidents=tuple(incidents))
    now = WALL_S + world.now
    sample = AssessedSample(snapshot, tuple(world.tasks()), (), result)
    return status(
        sample, daemon=Daemon(), host_name="host", paused=(), faults=(), now_unix_s=now
    ).to_json()


@pytest.mark.parametrize("index", range(len(ROWS)), ids=list(ROWS))
def test_all_that_speak_of_a_card_agree(world, told, index, tmp_path, monkeypatch):
    """The outputs are notification, explain, status, its JSON, doctor, tray and top."""
    world, row = world[0], list(ROWS.values())[index]
    quiet = row.trouble is FaultKind.XID and not row.restart and row is not UNKNOWN_XID
    severity, level, urgency, found_as = SHOWN[row.stage]
    card, remedy, now = told["gpus"][index], row.remedy(index), told["time_unix_s"]
    incidents = [one for one in told["incidents"] if one["subject"] == card["id"]]
    gpu = world.snapshot.hardware.gpus[index]
    open_ones = [one for one in world.result.incidents if one.resource.subject == gpu.id]
    alone = {**status_of(world, [gpu], open_ones), "tasks": []}
    notices = [one for one in world.notices if one.title.startswith(f"GPU {index} ")]
    facts = Tree(tmp_path).gpu().library().facts()
    monkeypatch.setattr(facts, "daemon", lambda: alone)
    findings = [
        one
        for one in cards.check(facts)
        if one.id == "driver.incident" and f"GPU {index} " in one.what
    ]
    if quiet:
        assert ("ok", None) == (card["health"]["severity"], card["health"]["title"])
        assert [] == notices == incidents == findings
        return

    works, lost = row.device_works, row.restart and not row.device_works
    shown = card["health"]
    assert (severity, works, lost) == tuple(
        shown[key] for key in ("severity", "device_works", "work_lost")
    )
    assert remedy in shown["remedy"]

    (notice,) = notices
    assert (urgency, True) == (notice.urgency, remedy in notice.body)
    assert notice.title.startswith(f"GPU {index} {row.title}")

    read = Status.read(alone)
    line, code = check(read, now)
    assert {Stage.WATCH: 0, Stage.WARN: 1, Stage.SAVE: 2}[row.stage] == code, line
    text = "\n".join(render(read, now))
    assert text.startswith(("WARNING", "! WARNING", "CRITICAL", "!! CRITICAL")) is (code > 0)
    (shown_gpu,) = (one for one in read.gpus if one.id == card["id"])
    assert level == shown_gpu.level.name.lower()
    found = tray_state(read, now)
    assert (level, f"GPU {index}" in found.headline) == (found.picture.level.name.lower(), code > 0)
    title = shown["title"].removeprefix("is ")
    for one in (text, "\n".join(map(str, gpu_rows(read, 200, True, 4)))):
        assert title.lower() in one.lower()

    (finding,) = findings
    assert (found_as, True) == (finding.severity.value, remedy in finding.remedy)

    if row.stage > Stage.WATCH:
        said = describe_task(Status.read(told), Status.read(told).task(100 + index), now)
        assert (works, not works, lost, True) == (
            "reports a fault" in said,
            "is out of order" in said,
            "What it held there is lost" in said,
            remedy in said,
        )


def test_the_doctor_without_a_daemon_says_the_same(world, tmp_path):
    """For faults that the card itself reports: the same severity, title and remedy."""
    facts = Tree(tmp_path).gpu().facts(gpu.READER, env=world[1].env(), timeout_s=60.0)

    found = [*cards.check_driver(facts), *cards.check(facts)]

    for index, (name, row) in enumerate(ROWS.items()):
        if name.startswith("Xid") or name in {"silent", "unreadable"}:
            continue
        (one,) = [each for each in found if f"GPU {index} " in each.what and each.why]
        assert (SHOWN[row.stage][3], row.remedy(index)) == (one.severity.value, one.remedy)
        assert row.title in one.what
