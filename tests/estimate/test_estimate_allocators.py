"""The two allocators, played: what is kept of what was given back."""

from __future__ import annotations

from watchdog_app.base.text.quantities import MIB
from watchdog_app.estimate.heap import Memory
from watchdog_app.estimate.pool import Pool
from watchdog_app.estimate.process import Weight, tensorflow_cpu


def test_large_blocks_go_back_to_the_system_at_once():
    """Above 32 MiB malloc maps each block by itself."""
    memory = Memory()
    memory.take(1, 100 * MIB)
    memory.give_back(1)

    assert memory.resident < MIB
    assert 100 * MIB <= memory.peak < 101 * MIB


def test_a_hole_in_the_heap_stays_and_is_used_again():
    """A block under another one is not given back; what fits takes its place."""
    memory = Memory()
    memory.take(0, 30 * MIB)  # mapped
    memory.give_back(0)  # from now on blocks of its size come from the heap
    for key in (1, 2):
        memory.take(key, 20 * MIB)
    memory.give_back(1)
    assert memory.resident >= 40 * MIB
    memory.take(3, 10 * MIB)

    assert 40 * MIB <= memory.peak < 41 * MIB
    assert 30 * MIB == memory.live


def test_the_free_end_of_the_heap_is_trimmed():
    """A free end longer than twice the largest mapped block goes back."""
    memory = Memory()
    memory.take(0, 4 * MIB)
    memory.give_back(0)
    for key in range(1, 8):
        memory.take(key, 3 * MIB)
    for key in range(1, 8):
        memory.give_back(key)

    assert memory.resident < 10 * MIB


def test_a_thread_does_not_use_what_another_gave_back():
    """Threads have arenas of their own."""
    alone, two = Memory(), Memory()
    for memory, thread in ((alone, 0), (two, 1)):
        memory.take(9, 8 * MIB)
        memory.give_back(9)
        memory.take(1, 6 * MIB)
        memory.take(2, 6 * MIB)
        memory.give_back(1)
        memory.take(3, 6 * MIB, thread)

    assert alone.peak < two.peak


def test_the_pool_never_gives_back():
    """What TensorFlow's pool has once written to stays with the process."""
    pool = Pool()
    pool.take(1, 100 * MIB)
    pool.give_back(1)

    assert 0 == pool.live
    assert 100 * MIB <= pool.resident < 101 * MIB
    pool.take(2, 60 * MIB)
    assert pool.resident < 101 * MIB


def test_the_pool_joins_free_neighbours():
    """Two free blocks side by side serve one that needs both."""
    pool = Pool()
    pool.take(0, 64 * MIB)
    pool.give_back(0)  # a region of 64 MiB
    for key in (1, 2, 3, 4):
        pool.take(key, 16 * MIB)
    pool.give_back(2)
    pool.give_back(3)
    pool.take(5, 32 * MIB)

    assert pool.resident < 65 * MIB


def test_what_is_not_known_is_not_given_back():
    """A key of nobody changes nothing, in both."""
    for memory in (Memory(), Pool()):
        memory.take(1, MIB)
        memory.give_back(7)
        assert MIB == memory.live


def test_a_pool_has_holes_as_large_as_the_part_of_the_steps_that_races():
    """No two steps have the same order: weights leave no holes, what steps take does."""
    weights = [Weight(100 * MIB, False, 0)]
    step = [(1, 200 * MIB, 0), (1, 0, 0)]

    idle = tensorflow_cpu(weights, [[]], 0, True)
    busy = tensorflow_cpu(weights, [step], 0, True)
    heap = tensorflow_cpu(weights, [step], 0, False)

    assert 100 * MIB <= idle.resident_bytes < 102 * MIB
    assert 325 * MIB < busy.resident_bytes < 335 * MIB
    assert heap.resident_bytes < 305 * MIB
