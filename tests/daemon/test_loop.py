"""The loop continues when a part of it fails, and does not spin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from support.waiting import until

from watchdog_app.base.errors import ConfigError
from watchdog_app.client.client import Client
from watchdog_app.core.model.decisions import Decision, DecisionKind, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.methods import Methods


def _fails(*_: object, **__: object) -> None:
    raise ValueError("broken")


def _sources(parts) -> set[str]:
    return {fault.source for fault in parts.faults.all()}


@pytest.fixture
def running(parts, control, loop):
    """The loop in a thread, with a counter of its turns."""
    turns: list[None] = []
    wait = parts.poller.wait

    def counted(wait_s: float) -> None:
        turns.append(None)
        wait(wait_s)

    parts.poller.wait = counted
    parts.server.open(Methods(parts, control))
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield lambda: len(turns)
    control.stopping = True
    parts.waker.wake()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda parts: ("guards", "limits"), id="before the machine is read"),
        pytest.param(lambda parts: ("observer", "sample"), id="while it is read"),
        pytest.param(lambda parts: ("observer", "tasks"), id="after it was read"),
    ],
)
def test_a_look_that_fails_is_a_fault_and_is_repeated(
    parts, loop, monkeypatch, broken: Callable[..., tuple[str, str]]
):
    """The daemon keeps running, and the next successful sample clears the fault."""
    part, function = broken(parts)
    with monkeypatch.context() as patched:
        patched.setattr(getattr(parts, part), function, _fails)
        parts.pace.sample_now()
        loop._run_once()
        assert "daemon.look" in _sources(parts)
        assert parts.pace.next_sample_mono_s > 0.0, "not at once"

    parts.pace.sample_now()
    loop._run_once()
    assert "daemon.look" not in _sources(parts)


def test_without_a_runtime_folder_the_faults_stay_and_protection_comes_on_again(
    parts, control, loop, monkeypatch
):
    """A step that fails keeps no other from being done, and no other clears its fault."""
    for part, function in ((loop._lock, "reacquire"), (parts.server, "restore_socket")):
        monkeypatch.setattr(part, function, _fails)
    monkeypatch.setattr(parts.missed_exits, "save_alive", _fails)
    control.protect(on=False, for_s=0.0, by="a test")

    loop._run_once()
    parts.pace.sample_soon()
    loop._run_once()

    assert {"daemon.lock", "daemon.socket", "daemon.alive tasks"} <= _sources(parts)
    assert parts.notification_filter.protecting


def test_a_client_hears_of_looks_that_fail(parts, running, monkeypatch):
    """The loop answers the client without spinning."""
    monkeypatch.setattr(parts.observer, "sample", _fails)
    until(lambda: "daemon.look" in _sources(parts))
    client = Client.connect(parts.socket_path, "cli", timeout_s=60)
    before = running()
    status = client.call("status")
    turns = running() - before
    client.close()

    assert "daemon.look" in {fault["source"] for fault in status["problems"]}
    assert turns < 20


@pytest.mark.parametrize(
    ("error", "source"), [(ConfigError("a mistake"), None), (ValueError("broken"), "daemon.reload")]
)
def test_a_configuration_that_cannot_be_read_again_ends_nothing(
    parts, loop, monkeypatch, error: Exception, source: str | None
):
    """A configuration error is reported separately; an unexpected exception is a fault."""

    def fails() -> None:
        raise error

    monkeypatch.setattr(loop._control, "reload", fails)
    loop._control.reloading = True
    parts.pace.sample_now()
    loop._run_once()

    assert not loop._control.reloading
    assert ({source} if source else set()) == _sources(parts) & {"daemon.reload"}


def test_what_a_second_measurement_does_not_confirm_is_not_done(parts, loop, monkeypatch):
    """Memory that was freed in between saves a task from its pause."""
    done, skipped = [], []
    monkeypatch.setattr(Executor, "carry_out", lambda _, found, __: done.extend(found))
    monkeypatch.setattr(Executor, "skip", lambda _, each, __, why: skipped.append((each, why)))
    ram, task = ResourceKey(ResourceKind.RAM), ProcessKey(4242, 7)

    def pause(used: float, limit: float) -> Decision:
        """A pause that was decided with so many bytes in use."""
        figures = {"used": used, "limit": limit}
        kind, stage = DecisionKind.PAUSE, Stage.PAUSE
        return Decision(str(used), kind, "i", ram, stage, task, 0.0, 0.0, "", figures)

    full, roomy = pause(1e6, 1e6), pause(0.0, 1e18)
    loop._carry_out_decisions(
        SimpleNamespace(tasks=(), result=SimpleNamespace(decisions=(full, roomy)))
    )

    assert [roomy] == done
    assert [(full, "Measured again, and no longer true.")] == skipped


def test_a_machine_that_slept_forgets_its_trends(parts, loop, monkeypatch):
    """What was measured before and after a sleep makes no trend."""
    asked: list[str] = []
    engine = SimpleNamespace(reset_trends=lambda: asked.append("reset"))
    monkeypatch.setattr(parts.observer, "call_engine", lambda question: question(engine))
    for slept_s in (0.0, 3600.0):
        monkeypatch.setattr(loop._clocks, "poll", lambda slept_s=slept_s: (slept_s, 0.0))
        loop._check_clocks()

    assert ["reset"] == asked
