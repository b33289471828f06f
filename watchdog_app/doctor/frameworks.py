"""Whether the frameworks of the user's environments start, and whether they reach the GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from watchdog_app.agent import internals
from watchdog_app.doctor import builds, driver_files, gpu, versions
from watchdog_app.doctor.builds import Target
from watchdog_app.doctor.environments import FRAMEWORKS, GIVEN, Answer, Environment
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked

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


def check(facts: Facts) -> Iterator[Finding]:
    """Each environment by itself, then what they share."""
    machine = facts.machine
    target = target_of(facts)
    found = facts.environments()
    empty = [one for one in found if _is_empty(one)]
    several = len(found) - len(empty) > 1
    for environment in found:
        if environment not in empty:
            for finding in _environment(environment, target, machine.fast):
                yield _located(finding, environment) if several else finding
    if len(empty) == len(found):
        yield _nothing_found(empty)
    yield from _runtimes_on_path(facts)


def target_of(facts: Facts) -> Target:
    """The driver and the cards that the environments have to work with."""
    if not facts.expects_gpu:
        return Target(gpu=False)
    driver = facts.driver()
    cards = tuple(
        (gpu.label(card), tuple(card["capability"][:2]))
        for card in driver.usable
        if card.get("capability")
    )
    version = driver.version or driver_files.module_version(facts.machine)
    for library in driver_files.libraries(facts.machine, "libcuda.so.1")[:1]:
        if library.forward:  # programs take their CUDA driver from it
            version = max(version, library.version)
    return Target(True, version, cards, wsl=facts.machine.is_wsl, answers=driver.answers)


def _is_empty(environment: Environment) -> bool:
    """Whether an environment was looked at and holds no framework."""
    return environment.installed.error is None and not any(
        environment.version(name) for name in FRAMEWORKS
    )


def _nothing_found(empty: list[Environment]) -> Finding:
    return Finding(
        "framework.environment",
        Severity.INFO,
        "No TensorFlow, PyTorch or JAX was found"
        + (
            f" in {' or '.join(one.python for one in empty)}."
            if empty
            else ": there is no Python environment to look into."
        ),
        remedy="If your trainings run in another environment, name it.",
        commands=("watchdog doctor --python ~/my-venv",),
        details=tuple(
            f"{one.python}: Python {one.installed.values.get('python')}, {one.source}"
            for one in empty
        ),
    )


def _located(finding: Finding, environment: Environment) -> Finding:
    """The finding with the environment that it is about, where there are several."""
    from dataclasses import replace

    where = f"environment: {environment.python} ({environment.source})"
    return replace(finding, details=(where, *finding.details))


def _environment(environment: Environment, target: Target, fast: bool) -> Iterator[Finding]:
    installed = environment.installed
    if installed.error is not None:
        given = environment.source == GIVEN
        subject = f"The environment of {environment.python} ({environment.source})"
        if "did not end within" in installed.error:
            yield unchecked(
                "framework.environment",
                subject,
                installed.error,
                remedy="Its disk is slow or hangs, or something runs at each start of it "
                "(sitecustomize). Give it more time.",
                commands=(
                    f"watchdog doctor --python {shlex.quote(environment.python)} --timeout 5min",
                ),
                severity=Severity.WARNING,
            )
            return
        yield unchecked(
            "framework.environment",
            subject,
            installed.error,
            remedy="It is older than Python 3.7, which no framework here still runs on."
            if "SyntaxError" in installed.error
            else "See whether that interpreter starts at all.",
            commands=(f"{shlex.quote(environment.python)} -c 'import sys; print(sys.version)'",),
            severity=Severity.ERROR if given else Severity.WARNING,
        )
        return
    names = [
        f"{title} {environment.version(name)}"
        for name, title in FRAMEWORKS.items()
        if environment.version(name)
    ]
    python = installed.values.get("python", "")
    yield fine(
        "framework.environment",
        f"{environment.python} (Python {python}, {environment.source}): {', '.join(names)}.",
    )
    against = list(builds.check(environment, target))
    yield from against
    yield from _internals(environment)
    explained = target.gpu and (
        not target.answers or any(one.severity is Severity.ERROR for one in against)
    )
    for name, answer in environment.frameworks.items():
        yield from _answer(environment, name, answer, target, explained)
    if fast:
        yield unchecked(
            "framework.use",
            f"Whether {' and '.join(names)} start{'s' if len(names) == 1 else ''}",
            "with --fast nothing is imported",
            remedy="Run it once without.",
            commands=("watchdog doctor --only framework",),
        )


def _internals(environment: Environment) -> Iterator[Finding]:
    """Private names that the agent relies on and this version does not have."""
    places = environment.installed.values.get("packages")
    for package, folder in places.items() if isinstance(places, dict) else ():
        gone = list(internals.missing(package, Path(folder)))
        if gone:
            version = environment.version(package) or environment.dists.get(package, "")
            yield Finding(
                "framework.internals",
                Severity.INFO,
                f"Rescues do not hold everything with {package} {version}: it lacks names that "
                "watchdog relies on.",
                remedy="Use a version that this watchdog knows, or a newer watchdog.",
                details=tuple(f"{row.lost} ({', '.join(names)})" for row, names in gone),
            )


def _answer(
    environment: Environment, name: str, answer: Answer, target: Target, explained: bool
) -> Iterator[Finding]:
    title, values = FRAMEWORKS[name], answer.values
    version = values.get("version") or environment.version(name)
    if answer.error is not None:
        yield _broken(environment, name, answer)
        return
    count = _gpu_count(name, values)
    error = values.get("use_error")
    if error:
        memory = any(word in error.lower() for word in ("out of memory", "oom", "resource"))
        yield Finding(
            "framework.gpu-fails",
            Severity.WARNING if memory else Severity.ERROR,
            f"{title} {version} finds the GPU and cannot compute on it: {_short(error)}",
            "A training fails in the same way at its first step.",
            "Make room on the GPU."
            if memory
            else "See the findings on versions and the driver; "
            "install the framework again with the libraries that belong to it.",
            ("watchdog status",) if memory else _reinstall(environment, name),
            tuple(_details_of(answer)),
        )
    elif count:
        used = values.get("product") is not None
        yield fine(
            "framework.gpu",
            f"{title} {version} "
            + (
                f"computes on the GPU ({count} found)."
                if used
                else f"finds {count} GPU{'' if count == 1 else 's'}; it was not tried, since "
                "their memory is nearly full or the driver is slow."
            ),
        )
    elif target.gpu:
        built = values.get("built_with_cuda", values.get("cuda"))
        if name != "jax" and not built:
            return  # said already: a build without CUDA
        yield Finding(
            "framework.no-gpu",
            Severity.ERROR,
            f"{title} {version} of {environment.python} finds no GPU, though there is one.",
            "Trainings run on the CPU, ten to a hundred times slower, without an error.",
            "Mend the driver and the other errors first, then look again."
            if explained
            else "Install it again with the CUDA libraries that belong to it.",
            (f"watchdog doctor --python {shlex.quote(environment.python)}",)
            if explained
            else _reinstall(environment, name),
            tuple(_details_of(answer)),
        )
    else:
        yield fine("framework.gpu", f"{title} {version} starts; it uses the CPU.")


def _gpu_count(name: str, values: dict[str, object] | object) -> int:
    if not hasattr(values, "get"):
        return 0
    if name == "tensorflow":
        return len(values.get("gpus") or ())
    if name == "torch":
        return int(values.get("count") or 0) if values.get("available") else 0
    devices = values.get("devices") or ()
    return len(devices) if "gpu" in (values.get("platforms") or ()) else 0


def _broken(environment: Environment, name: str, answer: Answer) -> Finding:
    """An import that failed, crashed or did not end."""
    title = FRAMEWORKS[name]
    error = answer.error or ""
    at = f" while it was to {answer.step}" if answer.step and "import" not in answer.step else ""
    details = tuple(_details_of(answer))
    if "would hang with it" in error:
        return unchecked(
            "framework.use",
            f"Whether {title} starts",
            error,
            remedy="Mend the driver first.",
            severity=Severity.WARNING,
        )
    if "of RAM is available" in error:
        return unchecked(
            "framework.use",
            f"Whether {title} starts",
            error,
            remedy="Run this again when there is more room.",
            severity=Severity.WARNING,
        )
    if "did not end within" in error:
        return Finding(
            "framework.slow",
            Severity.WARNING,
            f"{title} did not come to an end{at or ' with its import'}: {error}.",
            "A driver that hangs, a network disk that is slow, or a CPU that is busy.",
            "Give it more time; if that does not help, look at the driver.",
            (f"watchdog doctor --python {shlex.quote(environment.python)} --timeout 5min",),
            details,
            checked=False,
        )
    if "SIGILL" in error:
        return Finding(
            "framework.cpu-instructions",
            Severity.ERROR,
            f"{title} was ended by an illegal instruction{at}: this CPU (or virtual machine) "
            "lacks one that it was built for, mostly AVX.",
            "Nothing that imports it can run here.",
            "Let the virtual machine pass the host's CPU through, or install a build for older "
            "CPUs.",
            ("grep -o -m1 -w avx2* /proc/cpuinfo", "conda install -c conda-forge tensorflow"),
            details,
        )
    if "SIGKILL" in error:
        return Finding(
            "framework.killed",
            Severity.ERROR,
            f"{title} was killed{at}: most likely memory ran out.",
            "A training needs far more than an import.",
            "See the findings on memory.",
            ("watchdog status",),
            details,
        )
    return Finding(
        "framework.broken",
        Severity.ERROR,
        f"{title} of {environment.python} does not start{at}: {_short(error)}",
        "Every training that imports it ends there.",
        "Install it again with what it needs.",
        _reinstall(environment, name),
        details,
    )


def _reinstall(environment: Environment, name: str) -> tuple[str, ...]:
    package = {"tensorflow": "'tensorflow[and-cuda]'", "torch": "torch", "jax": "'jax[cuda12]'"}
    return (f"{builds.pip(environment)} --force-reinstall {package[name]}",)


def _short(text: str) -> str:
    line = next((one for one in text.splitlines() if one.strip()), text)
    return line if len(line) <= 300 else line[:297] + "..."


def _details_of(answer: Answer) -> list[str]:
    lines = [line for line in answer.stderr.splitlines() if _TELLING.search(line)]
    lines += [str(one) for one in answer.values.get("warnings") or ()]
    cleaned = dict.fromkeys(_NOISE.sub("", line).strip()[:400] for line in lines)
    return list(cleaned)[:6]


def _runtimes_on_path(facts: Facts) -> Iterator[Finding]:
    """Several CUDA runtimes on LD_LIBRARY_PATH go before what an environment brings."""
    machine = facts.machine
    folders = [one for one in machine.env.get("LD_LIBRARY_PATH", "").split(":") if one[:1] == "/"]
    found: dict[str, list[str]] = {}
    for folder in folders:
        for name in _RUNTIMES:
            if machine.exists(folder, name):
                found.setdefault(name.split(".so.")[0], []).append(f"{folder.rstrip('/')}/{name}")
    details = tuple(path for paths in found.values() for path in paths)
    majors = {
        name: {versions.parse(path.rpartition(".so.")[2])[:1] for path in paths}
        for name, paths in found.items()
    }
    if any(len(of) > 1 for of in majors.values()):
        yield Finding(
            "framework.several-runtimes",
            Severity.WARNING,
            "LD_LIBRARY_PATH leads to CUDA libraries of several versions.",
            "Programs take the first of each name, so that libraries of two versions come "
            "together in one process: it crashes, or finds no GPU.",
            "Take LD_LIBRARY_PATH out of your shell's start files; wheels and conda find theirs "
            "without it.",
            ("grep -n LD_LIBRARY_PATH ~/.bashrc ~/.profile ~/.zshrc", "unset LD_LIBRARY_PATH"),
            details,
        )
    elif found:
        wheels = any(
            name.startswith("nvidia-cu") for one in facts.environments() for name in one.dists
        )
        yield Finding(
            "framework.runtime-on-path",
            Severity.WARNING if wheels else Severity.INFO,
            "LD_LIBRARY_PATH leads to CUDA libraries of the system"
            + (", and the environment brings its own." if wheels else "."),
            "The system's go first: if they are older, cuDNN or cuBLAS fail to load or crash."
            if wheels
            else "They have to be of the version that the framework was built with.",
            "Unset it where trainings are started." if wheels else "",
            ("unset LD_LIBRARY_PATH",) if wheels else (),
            details,
        )
