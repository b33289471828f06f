"""Of what a program under `ulimit -v` died."""

from __future__ import annotations

import signal

import pytest

from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.diagnosis.exits import should_notify
from watchdog_app.core.model.exits import CauseKind, ExitFacts

FULL = "291 MiB of 293 MiB"


@pytest.mark.parametrize(
    ("wait_status", "kind"),
    [
        (1 << 8, CauseKind.ADDRESS_SPACE),  # Python's own MemoryError
        (None, CauseKind.ADDRESS_SPACE),
        (signal.SIGSEGV, CauseKind.ADDRESS_SPACE),  # a library that did not look at malloc's answer
        (signal.SIGABRT, CauseKind.ADDRESS_SPACE),
        (0, CauseKind.ENDED),
        (signal.SIGINT, CauseKind.SIGNAL),
        (signal.SIGTERM, CauseKind.SIGNAL),
        (signal.SIGKILL, CauseKind.KILLED),
    ],
)
def test_an_end_with_the_address_space_used_up(wait_status, kind):
    """An error or a crash is laid to it, a good end and somebody's signal are not."""
    cause = diagnose(ExitFacts(wait_status=wait_status, address_space_full=FULL))

    assert kind is cause.kind
    if kind is CauseKind.ADDRESS_SPACE:
        assert FULL in cause.text
        assert should_notify(cause, None)


def test_a_good_bye_is_a_good_end():
    """Whatever was in use then."""
    facts = ExitFacts(said_bye=True, address_space_full=FULL)

    assert CauseKind.ENDED is diagnose(facts).kind


def test_without_a_used_up_address_space_an_error_is_just_an_error():
    """No guess where nothing points to it."""
    assert CauseKind.FAILED is diagnose(ExitFacts(wait_status=1 << 8)).kind
