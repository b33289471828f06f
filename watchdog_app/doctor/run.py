"""
Runs all checks, each with a deadline; a failed check does not stop the others.

Each check has its own thread; the threads share their facts. A check that does not end in time is
abandoned and yields one finding. A run takes about as long as its slowest step, an import of
TensorFlow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from watchdog_app.base.errors import UsageError
from watchdog_app.doctor import (
    cards,
    desktop,
    driver,
    frameworks,
    memory,
    power,
    storage,
    variables,
    versions,
    watchdogs,
)
from watchdog_app.doctor.environments import FRAMEWORKS
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import RANK, Finding, Report

Check = Callable[[Facts], Iterable[Finding]]

GROUPS: dict[str, tuple[Check, ...]] = {
    "driver": (driver.check, cards.check_driver, cards.check, variables.check),
    "framework": (frameworks.check, variables.check),
    "memory": (memory.check, memory.shell_limits, memory.killers),
    "storage": (storage.check,),
    "power": (power.check,),
    "desktop": (desktop.check,),
    "watchdog": (watchdogs.check,),
}
# Added to the deadline of a check's own steps: ending its child processes takes a moment.
_GRACE_S = 15.0
# A signal that another thread receives, or that comes just before a wait, does not end the wait.
_SIGNAL_CHECK_S = 0.5


@dataclass(slots=True)
class _Running:
    """One running check."""

    check: Check
    groups: frozenset[str]  # requested groups
    findings: list[Finding] = field(default_factory=list)
    problem: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, facts: Facts) -> None:
        """Run the check; findings before an error are kept."""
        try:
            for finding in self.check(facts):
                if finding.group in self.groups:
                    self.findings.append(finding)
        except BaseException as error:
            self.problem = error
        finally:
            self.done.set()

    @property
    def succeeded(self) -> bool:
        """Whether the check has completed without an error."""
        return self.done.is_set() and self.problem is None


def run(facts: Facts, groups: Iterable[str] = tuple(GROUPS), grace_s: float = _GRACE_S) -> Report:
    """
    Run all checks in these groups.

    Args:
        facts: of the machine.
        groups: names in GROUPS.
        grace_s: how long a check may take beyond the deadline of its own steps.

    Raises:
        UsageError: unknown group, or --python names no interpreter.
    """
    wanted = tuple(dict.fromkeys(groups))
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown:
        raise UsageError(f"There is no group {unknown[0]!r}; there are {', '.join(GROUPS)}.")
    begun = time.monotonic()
    checks: dict[Check, _Running] = {}
    for name, members in GROUPS.items():
        for check in members if name in wanted else ():
            checks.setdefault(check, _Running(check, frozenset(wanted)))
    for running in checks.values():
        # A daemon thread, because a dead disk may block it while the command must end.
        threading.Thread(target=running.run, args=(facts,), daemon=True).start()
    # Each environment takes three imports in sequence; everything else is much shorter.
    deadline = begun + facts.machine.timeout_s * (1 + 4 * len(FRAMEWORKS)) + grace_s
    short = begun + facts.machine.timeout_s + grace_s
    findings: list[Finding] = []
    for running in checks.values():
        end = deadline if running.check is frameworks.check else short
        while not running.done.wait(_SIGNAL_CHECK_S) and time.monotonic() < end:
            pass
        if isinstance(running.problem, UsageError):
            raise running.problem
        findings += _findings_of(facts, running)
    order = {name: rank for rank, name in enumerate(GROUPS)}
    findings.sort(key=lambda one: (order.get(one.group, 99), RANK[one.severity]))
    shown = tuple(name for name in GROUPS if name in wanted)
    more: dict[str, object] = {
        "driver": _driver_facts(facts, checks),
        "environments": _environment_facts(facts, checks),
    }
    return Report(tuple(findings), shown, time.monotonic() - begun, more)


def _findings_of(facts: Facts, running: _Running) -> Iterator[Finding]:
    yield from list(running.findings)
    if running.succeeded:
        return
    group = next(name for name, checks in GROUPS.items() if running.check in checks)
    part = running.check.__module__.rpartition(".")[2]
    error = running.problem
    if error is None:
        found = facts.finding("run.unchecked.late", part=part, group=group)
    else:
        reason = f"{type(error).__name__}: {error}"
        found = facts.finding("run.unchecked.fault", part=part, reason=reason)
    yield replace(found, id=f"{group}.unchecked")


def _driver_facts(facts: Facts, checks: dict[Check, _Running]) -> dict[str, object] | None:
    """Return driver and cards for other programs; None: not checked, or no answer."""
    asked = checks.get(cards.check_driver)
    if asked is None or not asked.done.is_set():
        return None
    if not any(one.id == "driver.answer" and one.checked for one in asked.findings):
        return None
    told = facts.driver()
    return {
        "version": versions.format_driver_version(told.version) or None,
        "cuda": versions.format_version(told.cuda) or None,
        "gpus": [
            {key: card.get(key) for key in ("index", "name", "uuid", "bus_id")}
            for card in told.cards
        ],
    }


def _environment_facts(facts: Facts, checks: dict[Check, _Running]) -> list[dict[str, object]]:
    """Return the environments that were examined, for other programs."""
    running = checks.get(frameworks.check)
    if running is None or not running.succeeded:
        return []
    return [
        {
            "python": one.python,
            "source": one.source,
            "version": one.installed.values.get("python"),
            "frameworks": {name: one.version(name) for name in FRAMEWORKS if one.version(name)},
        }
        for one in facts.environments()
    ]
