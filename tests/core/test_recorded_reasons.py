"""
The reasons of a stall and the causes of a slow machine, compared with a recording.

Only the kinds are compared, so that the wording may change.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from card_world import CardWorld
from support import decisions
from test_suspects import GET, NEXT, POOL, READS, SILENT, STEP, main, picture, program, worker

from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons, training_line
from watchdog_app.core.model.agent import ProcessThreads, ThreadState
from watchdog_app.core.model.hardware import ClockEvent

THREADS = {
    "in a lock": main(),
    "in a lock of a library": main(NEXT, STEP),
    "waits for workers": main(POOL, STEP),
    "at a queue": main(GET, STEP),
    "reads a pipe": main(**READS),
    "reads a socket": main(wchan="sk_wait_data", syscall="recvfrom"),
    "computes": main(state="R", wchan=None, syscall=None),
    "writes to a pipe": main(wchan="pipe_write", syscall="write"),
    "sleeps": main(wchan="hrtimer_nanosleep", syscall=None),
    "in the driver": main(state="D", wchan="os_acquire_rwlock_write", syscall="ioctl"),
    "in swap": main(state="D", wchan="folio_wait_bit", kernel=("do_swap_page",)),
    "on a network disk": main(state="D", wchan="rpc_wait_bit_killable"),
    "on a disk": main(state="D", wchan="io_schedule"),
    "cannot be read": ThreadState(100, "MainThread", trains=True),
}
OTHERS: dict[str, tuple[ProcessThreads, ...]] = {
    "no worker": (),
    "a worker in a lock": (worker(),),
    "two workers in a lock": (worker(200), worker(201)),
    "a worker of two threads in a lock": (worker(threads=2),),
    "a worker that listens": (worker(200), worker(201, **READS)),
    "a worker that computes": (worker(200), worker(201, state="R", wchan=None, syscall=None)),
    "a worker that writes": (worker(writes=True),),
    "a worker that has ended": (ProcessThreads(200, 100, "python", "Z"),),
    "a worker that is stopped": (worker(state="T"),),
}
FEW = ("no worker", "a worker in a lock", "a worker that is stopped")
CONTEXTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing more": ({}, {}),
    "the agent does not answer": (SILENT, {}),
    "it computes": ({}, {"cores": 0.11}),
    "it hardly computes": ({}, {"cores": 0.1}),
    "a fault of the card": ({}, {"card_fault": "GPU 0: Xid 79"}),
    "a worker is gone": ({}, {"lost": (200,)}),
    "stopped by us": ({}, {"stopped_by_us": frozenset({200})}),
}


@pytest.mark.parametrize("name", THREADS)
def test_the_same_reasons_are_named_as_before(name: str) -> None:
    second = ThreadState(101, "feeder", "S", "futex_do_wait", "futex", frames=(STEP,))
    worlds = {*product(OTHERS, CONTEXTS, (1,)), *product(OTHERS, ["nothing more"], (1, 2))}
    for workers, context, threads in sorted(worlds):
        if context != "nothing more" and workers not in FEW:
            continue
        seen, known = CONTEXTS[context]
        root = program(*(THREADS[name], second)[:threads])
        dump = picture(root, *OTHERS[workers], **seen)
        found = stall_reasons(dump, StallContext(**known))
        if found:
            decisions.note(
                {
                    "of": f"{workers}, {context}, threads: {threads}",
                    "reasons": [f"{each.why}: {len(each.reasons)}" for each in found],
                }
            )
    decisions.note({"at": training_line(picture(program(THREADS[name]), **SILENT))})


CLOCKS = {
    "hot": {ClockEvent.HARDWARE_THERMAL},
    "hot, as the driver says": {ClockEvent.SOFTWARE_THERMAL},
    "braked": {ClockEvent.POWER_BRAKE},
    "slowed down by heat": {ClockEvent.HARDWARE_SLOWDOWN, ClockEvent.HARDWARE_THERMAL},
}


def _noted(world: CardWorld, seconds: int, each: Callable[[int], None]) -> None:
    """Note each change of the open incidents."""
    before: list[str] = []
    for second in range(seconds):
        each(second)
        world.run(1)
        now = [f"{one.resource.kind} {one.resource.subject}" for one in world.result.incidents]
        if now != before:
            decisions.note({"t": second, "open": now})
        before = now


@pytest.mark.parametrize(
    ("name", "on_s", "of_s", "seconds"),
    [
        *(("braked", *part, 1300) for part in ((2, 3), (1, 10), (30, 100))),
        *(("hot", *part, 700) for part in ((2, 3), (1, 10), (30, 100))),
        ("hot, as the driver says", 2, 3, 700),
        ("slowed down by heat", 2, 3, 700),
    ],
)
def test_a_card_that_is_slowed_down_is_found_as_before(
    name: str, on_s: int, of_s: int, seconds: int
) -> None:
    """It is slowed down for part of the time, then less often, then never."""
    world = CardWorld(cards=1)
    world.on(0, world.program(100, "fit.py", agent=True))

    def events(second: int) -> None:
        slow = second % of_s < on_s if second < 400 else second % 10 < 3 and second < 600
        world.set(0, throttling=frozenset(CLOCKS[name] if slow else ()))

    _noted(world, seconds, events)
