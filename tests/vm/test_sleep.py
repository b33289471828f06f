"""The machine sleeps and wakes while a training leaks."""

from __future__ import annotations

import time

from guest import until
from guest_sleep import sleep

SLEEP_S = 30


def test_a_machine_that_wakes_says_no_false_word_and_saves_what_goes_on_to_leak(
    me, record_property
):
    """A gap is not a trend: it causes no decision, and the forecast starts again."""
    me.start_daemon()
    first = me.daemon_pid()
    steady = me.train("--seconds", "1200", name="steady")
    leaking = me.train("--leak-mb-s", "3", "--leak-after-s", "20", "--seconds", "1200",
                       properties=["MemoryMax=400M", "MemorySwapMax=0"])  # fmt: skip
    me.until_watched(steady)
    me.until_watched(leaking)
    before = len(leaking.steps())
    missed = me.status()["daemon"]["missed_samples"]

    slept_s = sleep(SLEEP_S)
    woke_unix_s = time.time()

    record_property("slept by the clocks, s", round(slept_s, 1))
    assert slept_s > SLEEP_S / 2
    told = until(
        lambda: [e for e in me.history("daemon") if "slept for" in e.get("what", "")], "the note"
    )
    assert len(told) == 1
    until(lambda: len(leaking.steps()) > before + 5, "the training goes on")
    record_property("missed looks for it", me.status()["daemon"]["missed_samples"] - missed)
    assert first == me.daemon_pid()
    until(leaking.rescues, "a rescue")
    leaking.wait()
    saved = me.first("checkpoint")
    record_property("saved, s after it woke", round(saved - woke_unix_s, 1))
    assert woke_unix_s < saved < leaking.last_sign_unix_s()
    # The steady training causes no decision.
    assert steady.ended() is None
    assert steady.pid not in {e.get("pid") for e in me.history("decision")}
