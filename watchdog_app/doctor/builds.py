"""
Whether an environment's packages work with the driver and the cards of this machine.

Pure: from readings to findings. This module neither imports frameworks nor runs programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchdog_app.doctor import versions
from watchdog_app.doctor.environments import TENSORFLOWS, Environment
from watchdog_app.doctor.finding import Finding, Severity, finding
from watchdog_app.doctor.versions import Version

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d\d))?$")
_CUDNN = re.compile(r"nvidia-cudnn(?:-cu(\d\d))?$")
# What says that a build has ROCm.
_ROCM = {"torch": ("torch_cuda", "hip"), "tensorflow": ("tensorflow_build", "is_rocm_build")}
_CPU_ONLY = ("tensorflow-cpu", "intel-tensorflow")
_TORCH_OF = "torch --index-url https://download.pytorch.org/whl/"
# Builds with CUDA 11, for drivers that do not support a newer one.
_CUDA_11_PACKAGES = {"torch": f"{_TORCH_OF}cu118", "tensorflow": "'tensorflow[and-cuda]==2.14.*'"}
_NEWEST = {"torch": "torch", "tensorflow": "'tensorflow[and-cuda]'"}


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that the environments must work with."""

    gpu: bool  # whether there is an NVIDIA GPU
    driver: Version = ()
    capabilities: tuple[tuple[str, Version], ...] = ()  # name and compute capability of each card
    wsl: bool = False  # Windows numbers its driver versions differently
    answers: bool = True  # whether the driver answered
    amd: bool = False  # whether the only GPU is AMD's


def check(environment: Environment, target: Target) -> Iterator[Finding]:
    """Find every mismatch between packages, Python, driver and cards."""
    if environment.version("tensorflow") is not None:
        yield from _tensorflow(environment, target)
    if environment.version("torch") is not None and target.gpu:
        yield from _torch(environment, target)
    if environment.version("jax") is not None and target.gpu:
        yield from _jax(environment)
    if target.amd:
        yield from _without_rocm(environment)
    yield from _cuda_wheels(environment)
    yield from _numpy(environment)
    for name in environment.installed.values.get("shadows") or ():
        yield finding("framework.shadowed", name=name)


def _built_cuda(environment: Environment, framework: str) -> Version:
    """Return the CUDA version that a framework was built with; empty: none, or unknown."""
    answer = environment.frameworks.get(framework)
    if answer and answer.values.get("cuda"):
        return versions.parse(answer.values["cuda"])
    key, name = {
        "tensorflow": ("tensorflow_build", "cuda_version"),
        "torch": ("torch_cuda", "cuda"),
    }[framework]
    found = versions.parse(_build(environment, key).get(name))
    if not found and framework == "torch":
        local = re.search(r"\+cu(\d\d)(\d)", environment.version("torch") or "")
        found = (int(local[1]), int(local[2])) if local else ()
    return found


def _build(environment: Environment, key: str) -> dict[str, Any]:
    """Return what a framework's files say about its build; empty: nothing."""
    build = environment.installed.values.get(key)
    return build if isinstance(build, dict) else {}


def _without_rocm(environment: Environment) -> Iterator[Finding]:
    """Find frameworks that cannot use an AMD card."""
    for name, (key, built) in _ROCM.items():
        if environment.version(name) and not _build(environment, key).get(built):
            yield finding("framework.no-rocm", **environment.text_values(name))


def _driver_and_cards(
    environment: Environment, framework: str, target: Target
) -> Iterator[Finding]:
    """Find a driver too old for the framework's CUDA, and cards that this CUDA does not support."""
    cuda = _built_cuda(environment, framework)
    words = environment.text_values(framework)
    minimum = versions.minimum_driver(cuda)
    if target.driver and minimum and not target.wsl and target.driver < minimum:
        runs_older = framework == "torch" or environment.python_version[:2] <= (3, 11)
        fits = runs_older and target.driver >= versions.minimum_driver((11,))
        yield finding(
            "framework.driver-too-old",
            cuda=cuda[:2],
            minimum=minimum,
            driver=target.driver,
            major=minimum[0],
            older=f"{environment.pip} install {_CUDA_11_PACKAGES[framework]}" if fits else "",
            **words,
        )
    answer = environment.frameworks.get(framework)
    if answer and answer.values.get("arch_list"):
        return  # the caller compares the build's own list of architectures
    for name, capability in target.capabilities:
        first = versions.first_cuda(capability)
        words |= {"card": name, "capability": capability, "first": first}
        if first and cuda[:2] < first and len(cuda) > 1:
            severity = Severity.ERROR if framework == "torch" else Severity.WARNING
            words |= {"cuda": cuda[:2], "package": _NEWEST[framework]}
            yield finding("framework.card-too-new", severity=severity, **words)
        elif versions.is_dropped(capability, cuda):
            has_older = framework == "torch" and cuda[0] == 13
            older = f"{environment.pip} install {_TORCH_OF}cu126" if has_older else ""
            words |= {"cuda": cuda[0], "before": cuda[0] - 1, "older": older}
            yield finding("framework.card-too-old", **words)


def _tensorflow(environment: Environment, target: Target) -> Iterator[Finding]:
    words, dists = environment.text_values("tensorflow"), environment.dists
    version, python = versions.parse(words["version"]), environment.python_version
    several = [name for name in TENSORFLOWS if name in dists]
    if len(several) > 1 and set(several) != {"tensorflow", "intel-tensorflow"}:
        yield finding("framework.several-tensorflows", packages=several, **words)
    tested = versions.tested_tensorflow(version)
    if tested and python:
        low, high = tested["python"]
        if not versions.parse(low) <= python[:2] <= versions.parse(high):
            more = {"low": low, "high": high, "python": python[:2]}
            yield finding("framework.python-version", **words | more)
    if not target.gpu:
        return
    conda = [one for one in environment.conda if one.startswith("tensorflow-")]
    build = _build(environment, "tensorflow_build")
    without_cuda = build.get("is_cuda_build") is False and not build.get("is_rocm_build")
    of_conda = any(word in one for one in conda for word in ("cpu_", "mkl_", "eigen_"))
    if without_cuda or of_conda or any(name in dists for name in _CPU_ONLY):
        kind = "conda" if conda else "tensorflow"
        packages = " ".join(several) or "tensorflow"
        yield finding(f"framework.cpu-only.{kind}", packages=packages, **words)
        return
    yield from _driver_and_cards(environment, "tensorflow", target)
    if version >= (2, 14):
        yield from _cuda_libraries(environment, target, tested, words)


def _cuda_libraries(
    environment: Environment, target: Target, tested: dict[str, Any] | None, words: dict[str, Any]
) -> Iterator[Finding]:
    """Check the CUDA libraries installed as wheels for TensorFlow: missing, or another version."""
    dists = environment.dists
    gpus = (environment.frameworks.get("tensorflow") or environment.installed).values.get("gpus")
    if not (any(map(_RUNTIME.match, dists)) or environment.conda or gpus):
        # If the import found no GPU, this is the reason.
        severity = Severity.ERROR if gpus == 0 and target.answers else Severity.WARNING
        wanted = f"CUDA {tested['cuda']} and cuDNN {tested['cudnn']}" if tested else "CUDA"
        yield finding("framework.no-cuda-wheels", severity=severity, wanted=wanted, **words)
    wanted = tested["cudnn"] if tested else ""
    needs = versions.parse(wanted)
    for name, installed in dists.items() if needs else ():
        found = versions.parse(installed)
        if _CUDNN.match(name) and found and (found[0] != needs[0] or found[:2] < needs[:2]):
            both = ".with-torch" if environment.version("torch") is not None else ""
            more = {"wanted": wanted, "package": name, "installed": installed}
            yield finding(f"framework.cudnn-version{both}", **words | more)


def _torch(environment: Environment, target: Target) -> Iterator[Finding]:
    words, answer = environment.text_values("torch"), environment.frameworks.get("torch")
    build = _build(environment, "torch_cuda")
    told = answer.values if answer else {}
    known = "cuda" in told or bool(build)
    without = known and not build.get("hip") and not told.get("hip")
    if (without and not _built_cuda(environment, "torch")) or "+cpu" in words["version"]:
        yield finding("framework.cpu-only.torch", **words)
        return
    yield from _driver_and_cards(environment, "torch", target)
    archs: list[str] = told.get("arch_list") or []
    for name, capability in target.capabilities if archs else ():
        if capability and not supports_card(capability, archs):
            arch = f"sm_{capability[0]}{capability[1]}"
            yield finding("framework.arch", card=name, arch=arch, archs=archs, **words)


def supports_card(capability: Version, archs: list[str]) -> bool:
    """
    Return whether code for these architectures runs on a card.

    `sm_80` runs on 8.0 and on later cards of the same major number. `compute_80` runs on every
    later card, after compilation at the start. `sm_90a` runs on 9.0 only.
    """
    for arch in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not found:
            continue
        built = (int(found[2]), int(found[3]))
        if found[4] == "a":
            fits = capability[:2] == built
        elif found[1] == "compute":
            fits = built <= capability[:2]
        else:
            fits = built[0] == capability[0] and built <= capability[:2]
        if fits:
            return True
    return False


def _jax(environment: Environment) -> Iterator[Finding]:
    plugin = any("cuda" in name for name in environment.dists if name.startswith("jax"))
    if not plugin and "cuda" not in environment.dists.get("jaxlib", ""):
        yield finding("framework.cpu-only.jax", **environment.text_values("jax"))


def _cuda_wheels(environment: Environment) -> Iterator[Finding]:
    """Find CUDA libraries of two major versions in one environment."""
    majors: dict[str, list[str]] = {}
    for name, version in environment.dists.items():
        found = _RUNTIME.match(name) or _CUDNN.match(name)
        if found:
            major = found[1] or (str(versions.parse(version)[0]) if "runtime" in name else None)
            if major:
                majors.setdefault(major, []).append(f"{name} {version}")
    if len(majors) > 1:
        yield finding(
            "framework.several-cudas",
            *(one for names in majors.values() for one in names),
            majors=[f"CUDA {major}" for major in sorted(majors)],
            pip=environment.pip,
        )


def _numpy(environment: Environment) -> Iterator[Finding]:
    numpy = versions.parse(environment.dists.get("numpy"))
    tensorflow = versions.parse(environment.version("tensorflow"))
    torch = versions.parse(environment.version("torch"))
    tested = versions.tested_tensorflow(tensorflow)
    below = versions.parse(tested.get("numpy_below")) if tested else ()
    title, version = "TensorFlow", tensorflow
    if not (below and numpy >= below):
        numpy_2_from = versions.parse(versions.table()["torch"]["numpy_2_from"])
        below = (2,) if torch and torch < numpy_2_from else ()
        title, version = "PyTorch", torch
    if below and numpy >= below:
        # Code compiled for numpy 1 fails with numpy 2; a change within one major version rarely
        # breaks it.
        two = ".two" if below <= (2,) else ""
        words: dict[str, Any] = {
            "framework": title,
            "version": version,
            "below": below,
            "numpy": numpy,
        }
        yield finding(f"framework.numpy{two}", pip=environment.pip, **words)
