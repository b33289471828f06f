"""
All checks, each with a deadline and none able to end the others.

Checks run side by side, one thread a check; the threads share their facts. A
check that does not end in time is left behind and costs one finding. The whole
takes about as long as its longest wait, an import of TensorFlow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from watchdog_app.base.errors import UsageError
from watchdog_app.doctor import (
    cards,
    desktop,
    driver,
    driver_answer,
    frameworks,
    killers,
    memory,
    power,
    shell_limits,
    storage,
    versions,
    visible,
    watchdogs,
)
from watchdog_app.doctor.environments import FRAMEWORKS
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import RANK, Finding, Report, Severity, unchecked

Check = Callable[[Facts], Iterable[Finding]]

GROUPS: dict[str, tuple[Check, ...]] = {
    "driver": (driver.check, driver_answer.check, cards.check, visible.check),
    "framework": (frameworks.check, visible.check),
    "memory": (memory.check, shell_limits.process_limits, killers.check),
    "storage": (storage.check,),
    "power": (power.check,),
    "desktop": (desktop.check,),
    "watchdog": (watchdogs.check,),
}
# Beyond the deadline of what a check waits for: its children need a moment to be ended.
_GRACE_S = 15.0


@dataclass(slots=True)
class _Running:
    """One check under way."""

    check: Check
    groups: frozenset[str]  # that were asked for
    findings: list[Finding] = field(default_factory=list)
    problem: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, facts: Facts) -> None:
        """Carry it out; what it found before an error is kept."""
        try:
            for finding in self.check(facts):
                if finding.group in self.groups:
                    self.findings.append(finding)
        except BaseException as error:
            self.problem = error
        finally:
            self.done.set()


def run(facts: Facts, groups: Iterable[str] = tuple(GROUPS), grace_s: float = _GRACE_S) -> Report:
    """
    Look at everything in these groups.

    Args:
        facts: of the machine.
        groups: names in GROUPS.
        grace_s: how long a check may take beyond the deadline of what it waits for.

    Raises:
        UsageError: no group of that name, or no Python at the place that was named.
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
        # A thread that a dead disk holds must not keep the command from ending.
        threading.Thread(target=running.run, args=(facts,), daemon=True).start()
    # Three imports an environment, one after the other; everything else is much shorter.
    deadline = begun + facts.machine.timeout_s * (1 + 4 * len(FRAMEWORKS)) + grace_s
    short = begun + facts.machine.timeout_s + grace_s
    findings: list[Finding] = []
    for running in checks.values():
        end = deadline if running.check is frameworks.check else short
        running.done.wait(max(0.0, end - time.monotonic()))
        if isinstance(running.problem, UsageError):
            raise running.problem
        findings += _outcome(running)
    order = {name: rank for rank, name in enumerate(GROUPS)}
    findings.sort(key=lambda one: (order.get(one.group, 99), RANK[one.severity]))
    return Report(tuple(findings), tuple(name for name in GROUPS if name in wanted),
                  time.monotonic() - begun, _facts(facts, wanted, checks))  # fmt: skip


def _outcome(running: _Running) -> Iterator[Finding]:
    module = running.check.__module__.rpartition(".")[2]
    group = next(name for name, checks in GROUPS.items() if running.check in checks)
    findings = list(running.findings)
    yield from findings
    if running.problem is not None:
        error = running.problem
        yield unchecked(
            f"{group}.unchecked",
            f"A part of this group ({module})",
            f"{type(error).__name__}: {error}",
            remedy="This is a fault of watchdog's own; please report it with this line.",
            severity=Severity.WARNING,
        )
    elif not running.done.is_set():
        yield unchecked(
            f"{group}.unchecked",
            f"A part of this group ({module})",
            "it did not answer in time; a disk or a driver may hang",
            remedy="Give it more time.",
            commands=(f"watchdog doctor --only {group} --timeout 5min",),
            severity=Severity.WARNING,
        )


def _facts(
    facts: Facts, wanted: tuple[str, ...], checks: dict[Check, _Running]
) -> dict[str, object]:
    """What was learned on the way, for other programs; only what some check has asked for."""
    found: dict[str, object] = {"driver": None, "environments": []}
    answered = checks.get(driver_answer.check)
    if "driver" in wanted and answered and answered.done.is_set() and facts.expects_gpu:
        told = (
            facts.driver()
            if any(one.id == "driver.answer" and one.checked for one in answered.findings)
            else None
        )
        if told is not None:
            found["driver"] = {
                "version": versions.show_driver(told.version) or None,
                "cuda": versions.show(told.cuda) or None,
                "gpus": [
                    {key: card.get(key) for key in ("index", "name", "uuid", "bus_id")}
                    for card in told.cards
                ],
            }
    looked = checks.get(frameworks.check)
    if looked and looked.done.is_set() and looked.problem is None:
        found["environments"] = [
            {
                "python": one.python,
                "source": one.source,
                "version": one.installed.values.get("python"),
                "frameworks": {name: one.version(name) for name in FRAMEWORKS if one.version(name)},
            }
            for one in facts.environments()
        ]
    return found
