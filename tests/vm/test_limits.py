"""Limits of control groups of version 2: which one counts, and that the rescue comes before it."""

from __future__ import annotations

from guest import MB, until


def ceilings_of(me, pid: int) -> list[dict]:
    """Those of the status that a task lies under, the tightest limit first."""
    found = [c for c in me.status()["ceilings"] if pid in c["tasks"] and c["kind"] == "cgroup"]
    return sorted(found, key=lambda c: c["limit"])


def test_a_scope_with_memory_max_is_rescued_before_the_kernel_kills_in_it(me, record_property):
    """systemd-run --user --scope -p MemoryMax: seen, warned of, saved, and the death explained."""
    me.start_daemon()
    training = me.train(
        "--leak-mb-s", "6", properties=["MemoryMax=190M", "MemorySwapMax=0"]
    )  # fmt: skip
    pid = training.pid
    me.until_watched(training)

    assert training.wait() != 0
    died = training.last_sign_unix_s()
    saved, warned = me.first("checkpoint"), me.first("notify")
    record_property("saved, s before the end", died - (saved or died))
    record_property("warned, s before the end", died - (warned or died))
    assert training.rescues(), me.daemon_log()
    assert saved is not None
    assert saved < died
    deaths = until(lambda: [e for e in me.history("death") if e["pid"] == pid], "the death")
    assert deaths[0]["memory"]
    assert "limit" in deaths[0]["text"]


def test_memory_high_slows_a_training_down_and_it_is_saved_while_it_lives(me, record_property):
    """Throttled above memory.high: no kill comes, and the rescue is complete all the same."""
    me.start_daemon()
    training = me.train(
        "--leak-mb-s", "6", "--seconds", "1200",
        properties=["MemoryHigh=140M", "MemoryMax=600M", "MemorySwapMax=0"],
    )  # fmt: skip
    me.until_watched(training)

    until(training.rescues, "a rescue")

    record_property(
        "used at the rescue, MB", int((training.group / "memory.current").read_text()) / MB
    )
    events = (training.group / "memory.events").read_text()
    assert training.ended() is None
    assert "oom_kill 0" in events
    (ceiling,) = ceilings_of(me, training.pid)
    assert 140 * 2**20 == ceiling["limit"]
    assert "memory.high" in ceiling["note"]


def test_of_nested_limits_the_tightest_ancestor_counts(me):
    """The scope may have more than the slice around it: the slice's limit is the ceiling."""
    me.start_daemon()
    me.systemctl("set-property", "--runtime", "tight.slice", "MemoryMax=300M")
    me.systemctl("set-property", "--runtime", "tight-inner.slice", "MemoryMax=250M")
    training = me.train(
        "--seconds", "1200", properties=["Slice=tight-inner.slice", "MemoryMax=700M"]
    )
    pid = training.pid

    found = until(lambda: ceilings_of(me, pid), "its ceilings")

    assert 250 * 2**20 == found[0]["limit"]
