"""
Score what earlier runs of the same program change, on a folder of recorded memory traces.

    python bench/forecast_past.py FOLDER [--world NAME] [--spread 0.02]

Each trace (see forecast_score.py) is played through the daemon's engine. Its earlier run is made
from the trace itself, its levels up to `--spread` higher or lower. The worlds:

    nothing       no earlier run is known
    known N       N % of the programs are known: healthy ones ended well, failing ones were killed
                  at 80 % of the present limit
    same limit    failing programs were killed under the same limit
    arguments     every program is known with other arguments only
    leak N        a new leak after a run that ended well at N % of the limit
    short         healthy programs under 72 to 95 % of their peak: they will not fit

"told" is the share of failing traces with a notice in the first 3 s. In the last world a trace ends
where it exceeds its limit.
"""

from __future__ import annotations

import argparse
import random

from forecast_score import judge, load, summary, text

from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    Task,
    TaskKind,
)
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.runs import Run, RunEnd
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.engine import Engine

TASK = ProcessKey(1, 1)
INFO = ProcessInfo(
    TASK, 0, 1000, None, None, ("python", "x.py"), None, TaskKind.SCRIPT, "x.py",
    started_unix_s=0.0,
)  # fmt: skip
KEY = ResourceKey(ResourceKind.CGROUP, "/trace")


def past_run(rows, outcome, top=float("inf"), scale=1.0, exact="exact"):
    """
    Return the run that this trace would have left.

    Args:
        rows: the trace.
        outcome: how the run ended.
        top: level at which a killed run ended and any other stopped growing, in bytes.
        scale: factor of the levels.
        exact: key of its program.
    """
    run = Run(exact, -1000.0, int(rows[0][1] * scale))
    before = []
    for t, used, _ in rows:
        level = int(min(scale * used, top))
        run.add(t - rows[0][0], level, {})
        before.append((t, level))
        if outcome is RunEnd.KILLED_OOM and level >= top:
            break
    run.outcome = outcome
    return run


def play(rows, runs):
    """Return times, alarms, predicted times with their intervals, and when a notice was sent."""
    engine = Engine(Settings(), 1000)
    times, alarms, etas, lows, highs, told = [], [], [], [], [], None
    start = rows[0][0]
    for t, used, limit in rows:
        now, level = t - start, int(used)
        sample = ProcessSample(TASK, 0, "R", level, None, None, None, 0.0)
        task = Task(TASK, "x.py", INFO.kind, 1000, (sample,), level, None, 0.0, INFO)
        reading = Reading(KEY, "limit", used, limit, True, (TASK,))
        free = max(0, int(limit - used))
        host = HostMemory(int(limit), free, 0, 0, None, None, None, None, None)
        result = engine.tick(Snapshot(now, now, host, (sample,)), (task,), (reading,), {})
        run = engine.past.live[TASK]
        if not run.asked:
            run.asked = True
            run.set_known("exact", "x.py", runs)
        if any(each.evidence.get("topic") == "past" for each in result.decisions):
            told = now if told is None else told
        found = result.assessments[KEY]
        times.append(t)
        alarms.append(found.notify)
        forecast = found.forecast
        etas.append(None if forecast is None else forecast.eta_s)
        lows.append(None if forecast is None else forecast.low_s)
        highs.append(None if forecast is None else forecast.high_s)
    return times, alarms, etas, lows, highs, told


def failed(side):
    return side["outcome"] in ("oom", "memory_error")


def known_world(share):
    def runs(side, rows, chance):
        if chance.random() * 100 >= share:
            return []
        limit = rows[0][2]
        if failed(side):
            return [past_run(rows, RunEnd.KILLED_OOM, 0.8 * limit, chance.factor)]
        return [past_run(rows, RunEnd.ENDED, limit, chance.factor)]

    return runs


def leak_world(percent):
    def runs(side, rows, chance):
        top = percent / 100 * rows[0][2] if failed(side) else rows[0][2]
        return [past_run(rows, RunEnd.ENDED, top)]

    return runs


def same_limit(side, rows, chance):
    if failed(side):
        return [past_run(rows, RunEnd.KILLED_OOM, rows[0][2], chance.factor)]
    return [past_run(rows, RunEnd.ENDED, rows[0][2], chance.factor)]


def arguments(side, rows, chance):
    return [past_run(rows, RunEnd.ENDED, rows[0][2], chance.factor, exact="other")]


WORLDS = {
    "nothing": lambda side, rows, chance: [],
    "known 50": known_world(50),
    "known 80": known_world(80),
    "known 100": known_world(100),
    "same limit": same_limit,
    "arguments": arguments,
    "leak 70": leak_world(70),
    "leak 85": leak_world(85),
}


def shrunk(traces, chance):
    """Return healthy traces under a limit below their peak, each until it exceeds the limit."""
    found = []
    for side, rows in traces:
        if failed(side):
            continue
        limit = chance.uniform(0.72, 0.95) * max(used for _, used, _ in rows)
        end = next(place for place, row in enumerate(rows) if row[1] >= limit)
        cut = [(t, used, limit) for t, used, _ in rows[: end + 1]]
        if len(cut) > 1:
            end_s = cut[-1][0]
            found.append(({**side, "outcome": "oom", "oom_time_s": end_s}, cut, rows))
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folder")
    ap.add_argument("--signal", default="unrecl")
    ap.add_argument("--cache", help="keep the parsed traces here")
    ap.add_argument("--world", action="append", help="only these; default: all")
    ap.add_argument("--spread", type=float, default=0.02, help="of the levels of two runs")
    a = ap.parse_args()
    traces = load(a.folder, a.signal, a.cache)
    for name in a.world or [*WORLDS, "short"]:
        chance = random.Random(7)
        if name == "short":
            cases = [
                (side, rows, [past_run(whole, RunEnd.ENDED, scale=chance.uniform(1, 1 + a.spread))])
                for side, rows, whole in shrunk(traces, chance)
            ]
        else:
            cases = []
            for side, rows in traces:
                chance.factor = chance.uniform(1 - a.spread, 1 + a.spread)
                cases.append((side, rows, WORLDS[name](side, rows, chance)))
        judged, told, bad = [], 0, 0
        for side, rows, runs in cases:
            *played, at = play(rows, runs)
            judged.append(judge(side, *played))
            bad += failed(side)
            told += failed(side) and at is not None and at <= 3.0
            if not failed(side) and at is not None:
                print("   wrong notice", side["id"])
        print(text(name, summary(judged)), f"| told {told / max(1, bad):4.0%}", flush=True)


if __name__ == "__main__":
    main()
