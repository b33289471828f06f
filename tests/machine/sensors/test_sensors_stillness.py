"""The short way through a glance: it says what the glance would say, and forgets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog_app.core.model.machine import (
    CgroupMemory,
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    TaskKind,
)
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.tasks import group
from watchdog_app.core.policy.glance import Glance, Rest
from watchdog_app.machine.sensors.stillness import Stillness

GIB = 1 << 30
MIB = 1 << 20


def rest_of(swap: int = 0, groups: tuple[CgroupMemory, ...] = (), *, shm: int = 12 * GIB) -> Rest:
    """After a look that found 20 of 24 GiB free, and half of what swap there is."""
    host = HostMemory(24 * GIB, 20 * GIB, swap, swap // 2, None, None, 0, shm, None)
    key = ProcessKey(7, 70)
    sample = ProcessSample(key, 1, "S", GIB, 0, 0, 3 * GIB, 0.0)
    info = ProcessInfo(
        key, 1, 0, "ann", "/usr/bin/python3", ("python3", "a.py"), "/", TaskKind.SCRIPT, "a.py",
        cgroup="/g",
    )  # fmt: skip
    seen = Snapshot(0.0, 1e9, host, (sample,), cgroups=groups, infos={key: info})
    return Rest(seen, readings(seen, group(seen.processes, seen.infos)), 3.0, 60.0)


def write(proc: Path, available: int, swap_free: int) -> None:
    lines = (("MemTotal", 24 * GIB), ("MemFree", GIB), ("MemAvailable", available))
    more = (("Buffers", 0), ("Cached", GIB), ("SwapTotal", 4 * GIB), ("SwapFree", swap_free))
    text = "".join(f"{name + ':':16}{value >> 10:8} kB\n" for name, value in (*lines, *more))
    (proc / "meminfo").write_text(text)


def stillness(
    proc: Path, *, begun: bool = False, limited: bool = False, changed: bool = False
) -> Stillness:
    return Stillness(str(proc), lambda _: begun, lambda: limited, lambda _: changed)


@pytest.mark.parametrize("swap", [0, 4 * GIB])
@pytest.mark.parametrize("moved", [0, 90, -90, 110, -110, -9000])
@pytest.mark.parametrize("swapped", [0, 60, -60, 200, -200])
def test_it_says_what_a_glance_would_say(tmp_path: Path, swap: int, moved: int, swapped: int):
    """Whatever of memory and swap has moved, in MiB, and in whichever direction."""
    available = 20 * GIB + moved * MIB
    swap_free = max(0, swap // 2 + swapped * MIB) if swap else 0
    write(tmp_path, available, swap_free)
    short = rest_of(swap)

    held = stillness(tmp_path).holds(short, 3.0)

    long = rest_of(swap)
    assert held is long.holds(Glance(3.0, available, swap_free, None, False))
    if held:
        assert long.past() == short.past()
    else:
        assert not short.still  # the glance that follows is the one that counts


@pytest.mark.parametrize("what", ["begun", "limited", "changed"])
def test_whatever_else_has_happened_is_left_to_the_glance(tmp_path: Path, what: str):
    """A Python, a limit, another group; what says so only once is kept for the glance."""
    write(tmp_path, 20 * GIB, 0)

    assert stillness(tmp_path).holds(rest_of(), 3.0)
    asked = stillness(tmp_path, **{what: True})
    assert not asked.holds(rest_of(), 3.0)
    assert asked.turned_up is (what == "changed")


def test_where_two_figures_do_not_do_it_says_nothing(tmp_path: Path):
    """Groups with a limit, scarce shared memory, a full look that is due, an odd meminfo."""
    limited = CgroupMemory("/g", 1, GIB, 0, 0, 4 * GIB, None, 0, None, None, 0)
    write(tmp_path, 20 * GIB, 0)
    asked = stillness(tmp_path)

    assert asked.holds(rest_of(), 59.9)
    assert not asked.holds(rest_of(), 60.0)
    assert not asked.holds(rest_of(groups=(limited,)), 3.0)
    assert not asked.holds(rest_of(shm=64 * MIB), 3.0)
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    assert not asked.holds(rest_of(), 3.0)


def test_a_machine_at_rest_takes_the_short_way(tmp_path: Path):
    """The real one, of whose memory a part stands in a file; a moved process is told of once."""
    from watchdog_app.machine.sensors.machine import Machine

    write(tmp_path, 20 * GIB, 0)
    machine = Machine(runtime_dirs=[])
    try:
        machine.sample(0.0, 1e9)
        machine._stillness._memory.path = str(tmp_path / "meminfo")
        machine._stillness._begun = lambda _: False
        machine._stillness._limited = lambda: False  # other programs of this machine are at work
        machine._stillness._changed = lambda now: now > 3.0
        rest = rest_of()

        assert machine.still(rest, 3.0)
        assert not machine.still(rest, 6.0)
        machine._stillness._changed = lambda _: False
        glance = machine.glance(rest, 6.0)
        assert glance is not None
        assert glance.changed
        again = machine.glance(rest, 9.0)
        assert again is not None
        assert not again.changed
    finally:
        machine.close()
