"""
Score the forecast on a folder of recorded memory traces, in one process.

    python bench/forecast_score.py FOLDER [--caution C] [--pace adaptive] [--traces] [--moved N]

FOLDER has index.csv and, for each trace, ID.json and ID.csv.gz; or files written by `watchdog
record` (bench/forecast_record.py). With --moved each program is played under N other limits instead
of its own. An episode is a run of alarms less than 5 s apart. On a failing trace an episode is true
if it is open at the end or began in the last 60 s, else premature. Lead is the time from the
earliest true episode to the end.
"""

from __future__ import annotations

import argparse
import collections
import csv
import glob
import gzip
import json
import os
import pickle
import time

from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.decisions import Caution, SaveCost
from watchdog_app.core.model.machine import HostMemory, Snapshot
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import StageSettings, WatchSettings
from watchdog_app.core.policy import cadence
from watchdog_app.core.policy.engine import TickResult
from watchdog_app.core.replay import trace

GAP_S, NEAR_S = 5.0, 60.0


def load(folder, signal="unrecl", cache=None):
    """Return [(sidecar, [(t, used, limit)])] of every trace in the folder."""
    if cache and os.path.exists(cache):
        with open(cache, "rb") as f:
            return pickle.load(f)
    traces = []
    if not os.path.exists(os.path.join(folder, "index.csv")):
        return recorded(folder)
    with open(os.path.join(folder, "index.csv")) as f:
        index = list(csv.DictReader(f))
    for entry in index:
        with open(os.path.join(folder, entry["id"] + ".json")) as f:
            side = json.load(f)
        limit = side["memsw_limit_bytes"]
        with gzip.open(os.path.join(folder, entry["id"] + ".csv.gz"), "rt") as f:
            rows = [
                (float(x["t"]), int(x[signal]) + int(x["swap"]), limit) for x in csv.DictReader(f)
            ]
        traces.append((side, rows))
    if cache:
        with open(cache, "wb") as f:
            pickle.dump(traces, f)
    return traces


def recorded(folder):
    """
    Return the same from a folder of recordings NAME-SEED by forecast_record.py.

    A leak that the recorder cut off before its end is left out: no alarm in it is false.
    """
    traces = []
    for path in sorted(glob.glob(os.path.join(folder, "*.csv.gz"))):
        one = trace.read(path)
        name = one.name.removesuffix(".csv.gz")
        end = one.ended_s
        if end is None and name.startswith("oom_"):
            continue
        rows = [r for r in one.samples if end is None or r[0] <= end]
        side = {
            "id": name,
            "family": name.rpartition("-")[0],
            "workload": name,
            "outcome": "ok" if end is None else "oom",
            "oom_time_s": end,
        }
        traces.append((side, rows))
    return traces


def episodes(times, alarms):
    """Return [[start, end]] of runs of alarms less than GAP_S apart."""
    found = []
    for t, alarm in zip(times, alarms, strict=True):
        if alarm:
            if found and t - found[-1][1] < GAP_S:
                found[-1][1] = t
            else:
                found.append([t, t])
    return found


def judge(side, times, alarms, etas, lows=None, highs=None):  # noqa: PLR0917
    """Return the figures of one trace."""
    found = episodes(times, alarms)
    failed = side["outcome"] in ("oom", "memory_error")
    m = {
        "id": side["id"],
        "family": side["family"],
        "workload": side["workload"],
        "fail": failed,
        "episodes": len(found),
        "dur": times[-1] - times[0],
    }
    if not failed:
        m["alarm"] = bool(found)
        m["first"] = found[0][0] if found else None
        return m
    end = side["oom_time_s"]
    true = [e for e in found if end - e[1] < GAP_S or end - e[0] <= NEAR_S]
    m["lead"] = end - true[0][0] if true else None
    m["premature"] = len(found) - len(true)
    errors = []
    inside = known = 0
    for i, (t, eta) in enumerate(zip(times, etas, strict=True)):
        left = end - t
        if 1 <= left <= 60:
            errors.append(1.0 if eta is None else abs(eta - left) / left)
            if eta is not None and lows is not None:
                known += 1
                inside += lows[i] <= left <= highs[i]
    if errors:
        m["eta_err"] = sorted(errors)[len(errors) // 2]
        m["known"] = known / len(errors)
        m["inside"] = inside / known if known else None
    return m


def summary(ms):
    """Return the figures of many traces together."""
    bad = [m for m in ms if m["fail"]]
    good = [m for m in ms if not m["fail"]]

    def recall(lead):
        return sum(m["lead"] is not None and m["lead"] >= lead for m in bad) / max(1, len(bad))

    hours = sum(m["dur"] for m in good) / 3600
    errs = sorted(m["eta_err"] for m in bad if "eta_err" in m)
    cover = [m["inside"] for m in bad if m.get("inside") is not None]
    return {
        "r3": recall(3),
        "r10": recall(10),
        "r30": recall(30),
        "premature": sum(m["premature"] > 0 for m in bad) / max(1, len(bad)),
        "fa": sum(m["alarm"] for m in good) / max(1, len(good)),
        "fah": sum(m["episodes"] for m in good) / hours if hours else 0.0,
        "eta_err": errs[len(errs) // 2] if errs else float("nan"),
        "cover": sum(cover) / len(cover) if cover else float("nan"),
    }


def text(name, s):
    return (
        f"{name:24.24s} r3 {s['r3']:4.0%} r10 {s['r10']:4.0%} r30 {s['r30']:4.0%} "
        f"prem {s['premature']:4.0%} | FA {s['fa']:4.0%} /h {s['fah']:5.1f} | "
        f"eta {s['eta_err']:4.0%} cover {s['cover']:4.0%}"
    )


def play(rows, watch):
    """Play one trace; return times, notify, rescue, eta, low, high, and seconds per sample."""
    times, notify, rescue, etas, lows, highs = [], [], [], [], [], []
    costs = SaveCost()
    began = time.process_time()
    for t, used, limit in rows:
        a = watch.step(t, used, limit, costs)
        f = a.forecast
        times.append(t)
        notify.append(a.notify)
        rescue.append(a.rescue)
        etas.append(None if f is None else f.eta_s)
        lows.append(None if f is None else f.low_s)
        highs.append(None if f is None else f.high_s)
    spent = time.process_time() - began
    return times, notify, rescue, etas, lows, highs, spent / len(rows)


def sampled(rows, watch, settings, adaptive):
    """
    Play a trace as `play`, but only with the samples that the daemon would take.

    Args:
        rows: the trace, with more samples than that.
        watch: the resource's monitor.
        settings: settings of the watch.
        adaptive: True: sample at the daemon's adaptive interval; False: every `interval_s`.
    """
    taken, before, due = [], (), -1.0
    for t, used, limit in rows:
        if t < due - 1e-6:
            continue
        a = watch.step(t, used, limit, SaveCost())
        f = a.forecast
        taken.append(
            (t, a.notify, a.rescue, *((None,) * 3 if f is None else (f.eta_s, f.low_s, f.high_s)))
        )
        key = ResourceKey(ResourceKind.RAM)
        readings = (Reading(key, "", used, limit, fatal=True, tasks=(), note=None),)
        interval_s = watch.next_sample_s
        if adaptive:
            host = HostMemory(int(limit), int(limit - used), 0, 0, None, None, None, None, None)
            result = TickResult({key: a}, (), (), (), {}, None, None, interval_s)
            interval_s = cadence.interval_s(
                result, Snapshot(t, t, host, ()), readings, before=before, agents=(),
                usual_s=settings.interval_s,
            )  # fmt: skip
        before, due = readings, t + interval_s
    if taken[-1][0] < rows[-1][0]:  # no sample was due before the end
        taken.append((rows[-1][0], False, False, None, None, None))
    return (*(list(each) for each in zip(*taken, strict=True)), 0.0)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("folder")
    ap.add_argument("--signal", default="unrecl")
    ap.add_argument("--caution", default="normal")
    ap.add_argument("--cache", help="keep the parsed traces here")
    ap.add_argument("--family", action="store_true")
    ap.add_argument("--traces", action="store_true")
    ap.add_argument(
        "--pace", choices=("samples", "usual", "adaptive"), default="samples",
        help="take every sample, or as the daemon: at interval_s, or less often at rest",
    )  # fmt: skip
    ap.add_argument("--moved", type=int, default=0, metavar="N", help="other limits, N times")
    a = ap.parse_args()
    settings = WatchSettings(caution=Caution(a.caution))
    judged = {"notify": [], "rescue": []}
    cost = []
    traces = load(a.folder, a.signal, a.cache)
    if a.moved:
        from forecast_fit import moved

        traces = [one for seed in range(10, 10 + a.moved) for one in moved(traces, seed)]
    for side, rows in traces:
        watch = ResourceMonitor(settings, StageSettings())
        if a.pace == "samples":
            played = play(rows, watch)
        else:
            played = sampled(rows, watch, settings, a.pace == "adaptive")
        times, notify, rescue, etas, lows, highs, us = played
        cost.append(us)
        judged["notify"].append(judge(side, times, notify, etas, lows, highs))
        judged["rescue"].append(judge(side, times, rescue, etas, lows, highs))
    for tier, ms in judged.items():
        if a.family:
            by = collections.defaultdict(list)
            for m in ms:
                by[m["family"]].append(m)
            for k in sorted(by, key=lambda k, by=by: (not by[k][0]["fail"], k)):
                print(text("  " + k, summary(by[k])))
        print(text(tier, summary(ms)), f"{1e6 * sum(cost) / len(cost):.0f} us")
        if a.traces:
            for m in ms:
                if m["fail"] and (m["lead"] is None or m["lead"] < 10 or m["premature"]):
                    lead = None if m["lead"] is None else round(m["lead"], 1)
                    print("   late or early", m["id"], lead, "premature", m["premature"])
                if not m["fail"] and m["alarm"]:
                    print("   false", m["id"], m["first"], m["episodes"], "of", round(m["dur"]))


if __name__ == "__main__":
    main()
