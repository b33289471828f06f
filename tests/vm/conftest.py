"""Fixtures of the tests in the virtual machine. Outside of it nothing here is collected."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

collect_ignore_glob = [] if os.path.ismount("/share") else ["test_*.py"]

if not collect_ignore_glob:
    sys.path.insert(0, str(Path(__file__).parent))

    from guest import Session, write_down
    from guest_guards import Guarded, GuardedTraining
    from guest_shell import GuardedInShell

    B = TypeVar("B", bound=Guarded)

    @pytest.fixture
    def me() -> Iterator[Session]:
        """The session of the user `me`, with a daemon that is not started yet; cleaned up after."""
        session = Session()
        try:
            yield session
        finally:
            session.close()

    def starter(kind: type[B], me: Session) -> Iterator[Callable[..., B]]:
        """Yield a function that starts programs of this kind in guards; end them."""
        started: list[B] = []

        def start(*words: str, **more: Any) -> B:
            started.append(kind(me, *words, **more))
            return started[-1]

        yield start
        for each in started:
            each.close()

    @pytest.fixture
    def guarded(me: Session) -> Iterator[Callable[..., Guarded]]:
        """Start programs in guards; end them."""
        yield from starter(Guarded, me)

    @pytest.fixture
    def guarded_training(me: Session) -> Iterator[Callable[..., GuardedTraining]]:
        """Start trainings in guards; end them."""
        yield from starter(GuardedTraining, me)

    @pytest.fixture
    def guarded_in_shell(me: Session) -> Iterator[Callable[..., GuardedInShell]]:
        """Start programs in guards from a shell prompt; end them."""
        yield from starter(GuardedInShell, me)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
        """Add a test's measurements and failures to the report, whether it passed or not."""
        report = yield
        if report.failed:  # at once, because the machine may not survive all tests
            write_down(item.name, "failed", report.longreprtext)
        if call.when == "call":
            for name, value in item.user_properties:
                write_down(item.name, name, value)
        return report
