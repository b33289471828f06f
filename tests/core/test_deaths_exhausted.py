"""An exception about memory is the cause of the death, and the account says what to change."""

from __future__ import annotations

import signal

import pytest

from watchdog_app.base.oom_text import out_of_memory
from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.evidence import collect_evidence, journal_level, should_notify
from watchdog_app.core.explain import exits
from watchdog_app.core.model.exits import (
    CauseKind,
    Certainty,
    ExitFacts,
    KernelEvent,
    KernelLogLine,
    LastError,
)

ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 536870912 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB"
FAILED = 1 << 8


def of(error, message=None, status=FAILED, **more):
    """The cause of an end with this exception."""
    words = LastError(error, message, frames=("<modules/conv.py>:5 in f", "train.py:42 in step"))
    return diagnose(ExitFacts(status, pid=42, words=words, **more))


@pytest.mark.parametrize(
    ("error", "message", "kind", "asked"),
    [
        ("MemoryError", None, CauseKind.PROGRAM_MEMORY, ""),
        ("MemoryError", "Unable to allocate 4.00 GiB for an array", CauseKind.PROGRAM_MEMORY,
         "4.00 GiB"),
        ("_ArrayMemoryError", "Unable to allocate 16.0 MiB", CauseKind.PROGRAM_MEMORY, "16.0 MiB"),
        ("RuntimeError", ALLOCATOR, CauseKind.PROGRAM_MEMORY, "512 MiB"),
        ("OSError", "[Errno 12] Cannot allocate memory", CauseKind.PROGRAM_MEMORY, ""),
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[9] on /device:CPU:0",
         CauseKind.PROGRAM_MEMORY, ""),
        ("ResourceExhaustedError", "OOM when allocating tensor on /device:GPU:0 by GPU_0_bfc",
         CauseKind.GPU_MEMORY, ""),
        ("OutOfMemoryError", CUDA, CauseKind.GPU_MEMORY, "2.00 GiB"),
        ("RuntimeError", "CUDA error: out of memory", CauseKind.GPU_MEMORY, ""),
        ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.",
         CauseKind.PROGRAM_MEMORY, "4.00 KiB"),
        # Text that only mentions memory, and other resources that run out.
        ("ValueError", "out of memory", CauseKind.FAILED, ""),
        ("HTTPError", "500: the server is out of memory", CauseKind.FAILED, ""),
        ("OSError", "[Errno 28] No space left on device", CauseKind.FAILED, ""),
        ("ResourceExhaustedError", "/rescues; No space left on device", CauseKind.FAILED, ""),
        ("ResourceExhausted", "429 Quota exceeded", CauseKind.FAILED, ""),
        ("RuntimeError", "shapes do not match", CauseKind.FAILED, ""),
    ],
)  # fmt: skip
def test_an_error_is_of_memory_by_its_name_or_its_text(error, message, kind, asked):
    """Exact, because the program said so; with the line and the size it asked for."""
    cause = of(error, message)

    assert (kind, Certainty.EXACT) == (cause.kind, cause.certainty)
    assert "at train.py:42 in step" in cause.text
    assert asked in cause.text
    assert cause.text.startswith("out of") is (kind is not CauseKind.FAILED)


def test_the_program_is_believed_before_levels_and_counts_of_others():
    """A worker was killed and the group was full, but the main program ended with its own error."""
    full = {"group_kills_before": 0, "group_kills_after": 1, "group_limit_bytes": 100,
            "group_used_bytes": 99.0}  # fmt: skip

    assert CauseKind.FAILED is of("RuntimeError", "a worker was killed", None, **full).kind
    assert CauseKind.PROGRAM_MEMORY is of("MemoryError", None, None, **full).kind
    assert CauseKind.GROUP_LIMIT is of("MemoryError", None, signal.SIGKILL, **full).kind


def test_a_full_card_explains_no_error_of_another_kind():
    """PyTorch keeps a card full all the time, so a full card does not explain a ValueError."""
    assert CauseKind.FAILED is of("ValueError", "bad", device_full="memory of GPU 0: full").kind


def test_a_good_end_is_none_whatever_was_said_before():
    """With status 0 the program has caught the exception."""
    assert CauseKind.ENDED is of("MemoryError", None, 0).kind


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_with_the_address_space_used_up_is_told_as_that_signal(number):
    """The signal and the library are facts; the failed allocation is only likely."""
    other = KernelLogLine(KernelEvent.CRASH, 0.9, "python[7]: segfault", 7, library="libbar.so")
    word = KernelLogLine(KernelEvent.CRASH, 1.0, "python[42]: segfault", 42, library="libfoo.so")
    cause = diagnose(
        ExitFacts(number, pid=42, kernel=(other, word), address_space_full="1.39 of 1.43 GiB")
    )

    assert (CauseKind.ADDRESS_SPACE, Certainty.LIKELY) == (cause.kind, cause.certainty)
    assert f"ended by {signal.Signals(number).name} in libfoo.so" in cause.text
    assert "most likely because an allocation failed" in cause.text
    assert "MemoryError" not in cause.text


def test_an_agent_that_told_of_an_exception_is_believed_without_status_and_words():
    """The parent has collected the status, and the home folder is read-only."""
    cause = diagnose(ExitFacts(failed=True, group_limit_bytes=100, group_used_bytes=99.0))

    assert (CauseKind.FAILED, Certainty.EXACT) == (cause.kind, cause.certainty)
    assert "exception" in cause.text


def test_an_end_for_memory_is_told_and_written_down():
    """The notice and the entry depend neither on an agent nor on the running time."""
    cause = of("MemoryError")

    assert cause.spec.own
    assert should_notify(cause, None)
    assert journal_level(
        ExitFacts(FAILED), cause, seen=False, kernel=False, age_s=0.0, cared_for=False
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"cause": "program_memory", "agent": {"step": 3}},
            ('on_oom="shrink"', "batch", "estimate"),
        ),
        ({"cause": "gpu_memory", "agent": {}}, ("--gpu", "mixed precision")),
        ({"cause": "program_memory"}, ("Smaller batches",)),
        ({"cause": "address_space"}, ("ulimit -v",)),
    ],
)
def test_what_to_change_follows_from_the_error(entry, words):
    """A training gets its batch size, a program its chunks, a shell's limit that limit."""
    told = " ".join(exits.advice_after_exit(entry))

    for word in words:
        assert word in told


def test_the_kernel_s_count_is_evidence_where_a_worker_was_killed():
    """The program's own status is 1; the count is about the end of its worker."""
    words = LastError("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed.")
    counts = {"group_kills_before": 3, "group_kills_after": 3}

    lost = collect_evidence(ExitFacts(FAILED, pid=42, words=words, **counts))
    assert "no_kill" in {each.source for each in lost}
    own = collect_evidence(ExitFacts(FAILED, pid=42, words=LastError("KeyError", "7"), **counts))
    assert "no_kill" not in {each.source for each in own}


def test_other_ends_get_no_advice_about_memory():
    """Without evidence there is no advice."""
    assert [] == list(exits.advice_after_exit({"cause": "failed", "agent": {}}))
    assert None is out_of_memory(None, None)


def test_a_training_that_lost_a_worker_is_told_about_workers():
    """The exception is in the training, the reason in its worker."""
    text = "An exception ...: RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    entry = {"cause": "failed", "evidence": [{"source": "python", "text": text}]}

    assert "fewer workers" in " ".join(exits.advice_after_exit(entry))
    entry["evidence"].append({"source": "no_kill", "text": "its count stayed at 0"})
    assert "counted no kill" in " ".join(exits.advice_after_exit(entry))
    entry["evidence"][0]["source"] = "kernel"
    assert [] == list(exits.advice_after_exit(entry))
