"""Attribution of growth compared with a recording, in random worlds of three tasks."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support import decisions
from support.records import process, task

from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.policy.attribution import attribute

MB = 1 << 20
LIMIT = 8192 * MB
END_S = 300

Level = Callable[[float], float]  # in MB


def _task(pid: int, copied_mb: int) -> Task:
    return task(process(pid, rss=MB), process(pid + 1, pid, rss=MB, cow_bytes=copied_mb * MB))


def _level(draw: random.Random) -> tuple[float, Level]:
    """When a task starts, and its size from then on."""
    begin_s = draw.choice((0, 0, 0, 250, 285, 296, 299))
    rate = draw.choice((0.0, 0.0, -5.0, 0.1, 1.0, 5.0, 5.0, 20.0))
    every_s = draw.choice((0, 0, 10, 45))
    end_s = draw.choice((END_S, END_S, 296, 270))

    def level(t: float) -> float:
        passed = min(t, end_s) - (begin_s if begin_s < 200 else 0)
        return max(0.0, 600 + rate * (every_s * (passed // every_s) if every_s else passed))

    return begin_s, level


@pytest.mark.parametrize("listed_s", [None, 3.0], ids=str)
@pytest.mark.parametrize("kind", [ResourceKind.RAM, ResourceKind.GPU_MEMORY])
def test_growth_is_attributed_as_before(kind: ResourceKind, listed_s: float | None) -> None:
    for seed in range(45):
        draw = random.Random(seed)
        tasks = [_task(100 * n, draw.choice((0, 0, 20, 200))) for n in (1, 2, 3)]
        levels = {each.key: _level(draw) for each in tasks}
        foreign_rate = draw.choice((None, 0.0, 2.0, 30.0))
        hidden_rate = draw.choice((0.0, 0.0, 1.0, 10.0))
        used, unwatched = History(), None if foreign_rate is None else History()
        held: dict[ProcessKey, History] = {}
        for t in range(END_S + 1):
            whole = (foreign_rate or 0.0) * t + hidden_rate * t
            for key, (begin_s, level) in levels.items():
                if t >= begin_s:
                    whole += level(t)
                    if listed_s is None or t % listed_s == 0:
                        held.setdefault(key, History()).add(float(t), level(t) * MB)
            used.add(float(t), whole * MB)
            if unwatched is not None and foreign_rate is not None and t % 5 == 0:
                unwatched.add(float(t), foreign_rate * t * MB)
        reading = Reading(
            ResourceKey(kind), "x", used.last or 0.0, LIMIT, True, tuple(levels),
            listed_mono_s=None if listed_s is None else END_S - END_S % listed_s,
        )  # fmt: skip
        for slope in (0.0, 10.0 * MB, 100.0 * MB):
            found = attribute(reading, slope, used, tasks, held, unwatched=unwatched)
            decisions.note(
                {
                    "of": f"world {seed}, slope {slope / MB:.0f}",
                    "window_s": found.window_s,
                    "shares": [
                        [one.task, round(one.share, 4), round(one.slope_bytes_per_s / MB, 4)]
                        for one in found.contributors
                    ],
                    "others": round(found.others, 4),
                    "unaccounted": round(found.unaccounted, 4),
                }
            )


@pytest.mark.parametrize("kind", [ResourceKind.TEMPERATURE, ResourceKind.GPU_ALLOCATOR])
def test_work_and_ownership_are_attributed_as_before(kind: ResourceKind) -> None:
    for seed in range(30):
        draw = random.Random(seed)
        tasks = [_task(100 * n, 0) for n in range(1, draw.choice((2, 4)))]
        used = History()
        rate = draw.choice((-1.0, 0.0, 1.0))
        for t in range(20):
            used.add(float(t), 100.0 + rate * t)
        percent = {each.key: draw.choice((None, 0.0, 4.9, 5.0, 50.0, 400.0)) for each in tasks}
        keys = tuple(each.key for each in tasks)
        reading = Reading(ResourceKey(kind, "x"), "x", 1.0, 2.0, True, keys)
        for slope in (0.0, 0.5, 2.0):
            found = attribute(reading, slope, used, tasks, {}, cpu_percent=percent)
            decisions.note({"of": f"world {seed}, slope {slope}", "found": found})


def test_where_no_driver_lists_the_holders_all_are_alike() -> None:
    used = History()
    for t in range(20):
        used.add(float(t), 50.0 * MB * t)
    tasks = [_task(100, 0), _task(200, 0)]
    key = ResourceKey(ResourceKind.GPU_MEMORY, "GPU-0")
    reading = Reading(key, "x", used.last or 0.0, LIMIT, True, tuple(each.key for each in tasks))
    decisions.note({"found": attribute(reading, 0.0, used, tasks, {})})
