"""Whether the frameworks of the user's environments start, and whether they find the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from watchdog_app.agent import internals
from watchdog_app.doctor import builds, gpu, versions
from watchdog_app.doctor.builds import Target
from watchdog_app.doctor.environments import FRAMEWORKS, GIVEN, Answer, Environment
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.machine import libraries, module_version
from watchdog_app.machine.gpu.pci import AMD

# Lines of a framework's standard error that say why it found no GPU.
_TELLING = re.compile(
    r"could not load dynamic library|cannot dlopen|failed call to cuinit|could not find cuda|"
    r"does not match dso|driver version is insufficient|no kernel image|cudnn|"
    r"cuda initialization|skipping registering gpu|unable to register|not compiled to use",
    re.IGNORECASE,
)
_NOISE = re.compile(r"^(\d{4}-\d\d-\d\d [\d:.]+: |[IWEF]\d+ [\d:.]+\s+\d+ |[IWEF]0000 \S+\s+\d+ )")
_RUNTIMES = ("libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13",
             "libcudnn.so.8", "libcudnn.so.9")  # fmt: skip
_PACKAGES = {"tensorflow": "'tensorflow[and-cuda]'", "torch": "torch", "jax": "'jax[cuda12]'"}


def check(facts: Facts) -> Iterator[Finding]:
    """Check each environment, then what they share."""
    target = _target(facts)
    found = facts.environments()
    empty = [one for one in found if _is_empty(one)]
    several = len(found) - len(empty) > 1
    for environment in found:
        if environment not in empty:
            where = f"environment: {environment.python} ({environment.source})"
            for one in _environment_findings(facts, environment, target):
                yield replace(one, details=(where, *one.details)) if several else one
    if len(empty) == len(found):
        pythons = " or ".join(one.python for one in empty)
        yield facts.finding(
            "framework.environment.none",
            *(f"{one.python}: Python {one.installed.values.get('python')}, {one.source}"
              for one in empty),
            searched=f" in {pythons}" if pythons else ": there is no Python to look into",
        )  # fmt: skip
    yield from _runtimes_on_path(facts)


def _target(facts: Facts) -> Target:
    """Collect the driver and the cards that the environments must work with."""
    if not facts.expects_gpu:
        return Target(gpu=False, amd=bool(facts.pci_gpus(AMD)))
    driver = facts.driver()
    cards = tuple(
        (gpu.label(card), tuple(card["capability"][:2]))
        for card in driver.usable
        if card.get("capability")
    )
    version = driver.version or module_version(facts.machine)
    for library in libraries(facts.machine, "libcuda.so.1")[:1]:
        if library.forward:  # programs load their CUDA driver from it
            version = max(version, library.version)
    return Target(True, version, cards, wsl=facts.machine.is_wsl, answers=driver.answers)


def _is_empty(environment: Environment) -> bool:
    """Return whether an environment was read and has no framework."""
    return environment.installed.error is None and not any(map(environment.version, FRAMEWORKS))


def _environment_findings(
    facts: Facts, environment: Environment, target: Target
) -> Iterator[Finding]:
    installed = environment.installed
    if installed.error is not None:
        yield _unreadable(facts, environment, installed.error)
        return
    names = [
        f"{title} {environment.version(name)}"
        for name, title in FRAMEWORKS.items()
        if environment.version(name)
    ]
    yield facts.fine(
        "framework.environment",
        python=environment.python,
        version=installed.values.get("python", ""),
        source=environment.source,
        frameworks=names,
    )
    against = list(builds.check(environment, target))
    yield from against
    yield from _missing_internals(facts, environment)
    explained = target.gpu and (
        not target.answers or any(one.severity is Severity.ERROR for one in against)
    )
    for name, answer in environment.frameworks.items():
        yield from _framework_findings(facts, environment, name, answer, target.gpu, explained)
    if facts.machine.fast:
        yield facts.finding("framework.use.fast", framework=" and ".join(names))


def _unreadable(facts: Facts, environment: Environment, error: str) -> Finding:
    """Report an interpreter that did not list its packages."""
    words = {"python": environment.python, "source": environment.source, "reason": error}
    if environment.installed.cause == "framework.slow":
        return facts.finding("framework.environment.late", **words)
    # The user named this environment, so its failure is an error.
    severity = Severity.ERROR if environment.source == GIVEN else None
    kind = "too-old" if "SyntaxError" in error else "silent"
    return facts.finding(f"framework.environment.{kind}", severity=severity, **words)


def _missing_internals(facts: Facts, environment: Environment) -> Iterator[Finding]:
    """Report private names that the agent needs and this version lacks."""
    places = environment.installed.values.get("packages")
    for package, folder in places.items() if isinstance(places, dict) else ():
        gone = list(internals.missing(package, Path(folder)))
        if gone:
            yield facts.finding(
                "framework.internals",
                *(f"{row.lost} ({', '.join(names)})" for row, names in gone),
                package=package,
                version=environment.version(package) or environment.dists.get(package, ""),
            )


def _framework_findings(  # noqa: PLR0917
    facts: Facts,
    environment: Environment,
    name: str,
    answer: Answer,
    has_gpu: bool,
    explained: bool,
) -> Iterator[Finding]:
    """
    Report what a framework said about itself.

    Args:
        facts: of the machine.
        environment: environment of the framework.
        name: of the framework.
        answer: what the framework said.
        has_gpu: whether this machine has an NVIDIA GPU.
        explained: whether another finding already says why it finds no GPU.
    """
    values, memory = answer.values, facts.memory()
    words = environment.text_values(name) | {
        "version": values.get("version") or environment.version(name),
        "reinstall": f"{environment.pip} install --force-reinstall {_PACKAGES[name]}",
        "count": values.get("gpus") or 0,
        "available": memory.available_bytes if memory else None,
    }
    details = _relevant_lines(answer)
    error = answer.error or values.get("use_error")
    if answer.error is not None:
        # The text of the finding already says that the import failed, so leave out that step.
        step = answer.step if answer.step and "import" not in answer.step else ""
        at = f" while it was to {step}" if step else ""
        words |= {"error": _first_line(answer.error), "at": at}
        yield facts.finding(answer.cause, *details, **words)
    elif error:
        full = any(word in error.lower() for word in ("out of memory", "oom", "resource"))
        kind = "memory" if full else "broken"
        words["error"] = _first_line(error)
        yield facts.finding(f"framework.gpu-fails.{kind}", *details, **words)
    elif words["count"]:
        kind = "computes" if values.get("product") is not None else "not-tried"
        yield facts.fine(f"framework.gpu.{kind}", **words)
    elif not has_gpu:
        yield facts.fine("framework.gpu.cpu", **words)
    elif name == "jax" or values.get("built_with_cuda", values.get("cuda")):
        # `builds` reports a build without CUDA.
        kind = "explained" if explained else "alone"
        yield facts.finding(f"framework.no-gpu.{kind}", *details, **words)


def _first_line(text: str) -> str:
    line = next((one for one in text.splitlines() if one.strip()), text)
    return line if len(line) <= 300 else line[:297] + "..."


def _relevant_lines(answer: Answer) -> list[str]:
    lines = [line for line in answer.stderr.splitlines() if _TELLING.search(line)]
    lines += [str(one) for one in answer.values.get("warnings") or ()]
    cleaned = dict.fromkeys(_NOISE.sub("", line).strip()[:400] for line in lines)
    return list(cleaned)[:6]


def _runtimes_on_path(facts: Facts) -> Iterator[Finding]:
    """Report CUDA runtimes on LD_LIBRARY_PATH, which take precedence over an environment's own."""
    listed = facts.machine.env.get("LD_LIBRARY_PATH", "").split(":")
    found: dict[str, list[str]] = {}
    for folder in (one.rstrip("/") for one in listed if one[:1] == "/"):
        for name in _RUNTIMES:
            if facts.machine.exists(folder, name):
                found.setdefault(name.split(".so.")[0], []).append(f"{folder}/{name}")
    if not found:
        return
    several = any(
        len({versions.parse(path.rpartition(".so.")[2])[:1] for path in paths}) > 1
        for paths in found.values()
    )
    wheels = any(name.startswith("nvidia-cu") for one in facts.environments() for name in one.dists)
    yield facts.finding(
        "framework.several-runtimes"
        if several
        else f"framework.runtime-on-path.{'wheels' if wheels else 'alone'}",
        *(path for paths in found.values() for path in paths),
    )
