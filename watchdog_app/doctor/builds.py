"""
Whether what an environment holds can work with the driver and the cards of this machine.

Pure: from what was read to findings. Nothing here imports or runs anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog_app.doctor import versions
from watchdog_app.doctor.environments import FRAMEWORKS, Environment
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.versions import Version, show, show_driver

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d\d))?$")
_CUDNN = re.compile(r"nvidia-cudnn(?:-cu(\d\d))?$")
_CPU_ONLY = ("tensorflow-cpu", "intel-tensorflow")


@dataclass(frozen=True, slots=True)
class Target:
    """What the environments have to work with."""

    gpu: bool  # whether there is an NVIDIA GPU
    driver: Version = ()
    capabilities: tuple[tuple[str, Version], ...] = ()  # name and compute capability of each card
    wsl: bool = False  # Windows' driver versions count otherwise
    answers: bool = True  # whether the driver could be asked


def pip(environment: Environment, verb: str = "install") -> str:
    """The command that installs into this very environment."""
    return f"{shlex.quote(environment.python)} -m pip {verb}"


def check(environment: Environment, target: Target) -> Iterator[Finding]:
    """Every mismatch between packages, Python, driver and cards."""
    yield from _tensorflow(environment, target)
    yield from _torch(environment, target)
    yield from _jax(environment, target)
    yield from _cuda_wheels(environment)
    yield from _numpy(environment)
    shadows = environment.installed.values.get("shadows") or []
    if shadows:
        yield Finding(
            "framework.shadowed",
            Severity.WARNING,
            f"The current folder holds {', '.join(shadows)}: a notebook here imports that file "
            "instead of the library of the same name.",
            "The import fails with an AttributeError or a circular import.",
            "Give the file another name.",
            tuple(f"mv {name} my_{name}" for name in shadows),
        )


def cuda_of(environment: Environment, framework: str) -> Version:
    """CUDA that a framework was built with; empty: none, or not known."""
    answer = environment.frameworks.get(framework)
    if answer and answer.values.get("cuda"):
        return versions.parse(answer.values["cuda"])
    values = environment.installed.values
    key, name = {
        "tensorflow": ("tensorflow_build", "cuda_version"),
        "torch": ("torch_cuda", "cuda"),
    }.get(framework, ("", ""))
    build = values.get(key)
    found = versions.parse(build.get(name)) if isinstance(build, dict) else ()
    if not found and framework == "torch":
        local = re.search(r"\+cu(\d\d)(\d)", environment.version("torch") or "")
        found = (int(local[1]), int(local[2])) if local else ()
    return found


def driver_too_old(
    environment: Environment, framework: str, target: Target, cuda: Version
) -> Iterator[Finding]:
    """A driver older than the CUDA of the framework needs."""
    minimum = versions.minimum_driver(cuda)
    if not (target.gpu and target.driver and minimum) or target.wsl or target.driver >= minimum:
        return
    title = FRAMEWORKS[framework]
    older = {
        "torch": f"{pip(environment)} torch --index-url https://download.pytorch.org/whl/cu118",
        "tensorflow": f"{pip(environment)} 'tensorflow[and-cuda]==2.14.*'",
    }.get(framework)
    commands = ["nvidia-smi --query-gpu=driver_version --format=csv"]
    runs_older = framework == "torch" or _python(environment)[:2] <= (3, 11)
    if older and runs_older and target.driver >= versions.minimum_driver((11,)):
        commands.append(older)
    yield Finding(
        "framework.driver-too-old",
        Severity.ERROR,
        f"{title} {environment.version(framework)} was built with CUDA {show(cuda[:2])}, which "
        f"needs driver {show_driver(minimum)} or newer; this machine has "
        f"{show_driver(target.driver)}.",
        f"{title} finds no GPU ('CUDA driver version is insufficient for CUDA runtime version').",
        f"Update the driver to {minimum[0]} or newer, or install a {title} built with an older "
        "CUDA.",
        tuple(commands),
    )


def _card_too_new_or_old(
    environment: Environment, framework: str, target: Target, cuda: Version
) -> Iterator[Finding]:
    answer = environment.frameworks.get(framework)
    if answer and answer.values.get("arch_list"):
        return  # the build itself tells what it holds code for
    for name, capability in target.capabilities:
        first = versions.first_cuda(capability)
        shown = f"{name}, compute capability {show(capability)},"
        title = FRAMEWORKS[framework]
        if first and cuda[:1] and cuda[:2] < first and len(cuda) > 1:
            yield Finding(
                "framework.card-too-new",
                Severity.ERROR if framework == "torch" else Severity.WARNING,
                f"{shown} is newer than the CUDA {show(cuda[:2])} that {title} was built with; "
                f"it needs {show(first)}.",
                "'no kernel image is available for execution on the device', or a first start of "
                "half an hour while every kernel is compiled.",
                f"Install a {title} built with CUDA {show(first)} or newer.",
                (
                    f"{pip(environment)} --upgrade "
                    + ("torch" if framework == "torch" else "'tensorflow[and-cuda]'"),
                ),
            )
        elif versions.gone_from(capability, cuda):
            yield Finding(
                "framework.card-too-old",
                Severity.ERROR,
                f"{shown} is no longer supported by CUDA {show(cuda[:1])}, which {title} was "
                "built with.",
                "'no kernel image is available for execution on the device'.",
                f"Install a {title} built with CUDA {cuda[0] - 1}.",
                (f"{pip(environment)} torch --index-url https://download.pytorch.org/whl/cu126",)
                if framework == "torch" and cuda[0] == 13
                else (),
            )


def _tensorflow(environment: Environment, target: Target) -> Iterator[Finding]:
    text = environment.version("tensorflow")
    if text is None:
        return
    version, python = versions.parse(text), _python(environment)
    several = [
        name
        for name in (
            "tensorflow",
            "tensorflow-gpu",
            "tensorflow-cpu",
            "tf-nightly",
            "intel-tensorflow",
        )
        if name in environment.dists
    ]
    if len(several) > 1 and set(several) != {"tensorflow", "intel-tensorflow"}:
        yield Finding(
            "framework.several-tensorflows",
            Severity.ERROR,
            f"{' and '.join(several)} are installed over each other: they share their files.",
            "Which one is imported is chance, and half of it may belong to the other.",
            "Remove all of them, then install one.",
            (
                f"{pip(environment, 'uninstall')} -y {' '.join(several)}",
                f"{pip(environment)} 'tensorflow[and-cuda]'",
            ),
        )
    tested = versions.tested_tensorflow(version)
    if tested and python:
        low, high = (versions.parse(one) for one in tested["python"])
        if not low <= python[:2] <= high:
            yield Finding(
                "framework.python-version",
                Severity.WARNING,
                f"TensorFlow {text} was tested with Python {show(low)} to {show(high)}; this "
                f"environment has {show(python[:2])}.",
                "What happens to work now can fail in an import or a save.",
                "Use one of those, in an environment of its own.",
                (
                    (
                        f"python{show(high)} -m venv ~/tf && ~/tf/bin/pip install "
                        "'tensorflow[and-cuda]'"
                    ),
                ),
            )
    if not target.gpu:
        return
    build = environment.installed.values.get("tensorflow_build")
    cuda = cuda_of(environment, "tensorflow")
    conda = [one for one in environment.conda if one.startswith(("tensorflow-", "tensorflow-base"))]
    cpu_only = (
        any(name in environment.dists for name in _CPU_ONLY)
        or (
            isinstance(build, dict)
            and build.get("is_cuda_build") is False
            and not build.get("is_rocm_build")
        )
        or any("cpu_" in one or "mkl_" in one or "eigen_" in one for one in conda)
    )
    if cpu_only:
        yield Finding(
            "framework.cpu-only",
            Severity.ERROR,
            f"TensorFlow {text} of {environment.python} was built without CUDA, and there is a "
            "GPU.",
            "Trainings run on the CPU, ten to a hundred times slower, and fill the RAM instead "
            "of the GPU's memory.",
            "Install the build with CUDA.",
            (
                f"{pip(environment, 'uninstall')} -y {' '.join(several) or 'tensorflow'}",
                f"{pip(environment)} 'tensorflow[and-cuda]'",
            )
            if not conda
            else ("conda install 'tensorflow=*=cuda*'",),
        )
        return
    yield from driver_too_old(environment, "tensorflow", target, cuda)
    yield from _card_too_new_or_old(environment, "tensorflow", target, cuda)
    gpus = (environment.frameworks.get("tensorflow") or environment.installed).values.get("gpus")
    wheels = any(_RUNTIME.match(name) for name in environment.dists)
    if version >= (2, 14) and not wheels and not environment.conda and not gpus:
        wanted = f"CUDA {tested['cuda']} and cuDNN {tested['cudnn']}" if tested else "CUDA"
        yield Finding(
            "framework.no-cuda-wheels",
            # Where the import has shown that no GPU is found, this is why.
            Severity.ERROR if gpus == [] and target.answers else Severity.WARNING,
            f"TensorFlow {text} was installed without its CUDA libraries: there is no "
            "nvidia-cuda-runtime beside it.",
            f"Unless the system has {wanted}, TensorFlow says 'Cannot dlopen some GPU libraries' "
            "and trains on the CPU.",
            "Install the libraries that belong to it.",
            (f"{pip(environment)} 'tensorflow[and-cuda]=={text}'",),
        )
    if tested and version >= (2, 14):
        yield from _cudnn_wheel(environment, versions.parse(tested["cudnn"]), text)


def _cudnn_wheel(environment: Environment, wanted: Version, text: str) -> Iterator[Finding]:
    for name, installed in environment.dists.items():
        found = versions.parse(installed)
        if _CUDNN.match(name) and found and (found[0] != wanted[0] or found[:2] < wanted[:2]):
            both = environment.version("torch") is not None
            yield Finding(
                "framework.cudnn-version",
                Severity.ERROR,
                f"TensorFlow {text} was built with cuDNN {show(wanted)}, and {name} is "
                f"{installed}"
                + (
                    ": PyTorch in the same environment may have asked for that one."
                    if both
                    else "."
                ),
                "'Loaded runtime CuDNN library ... but source was compiled with': the first "
                "convolution ends the training.",
                "Give each framework an environment of its own."
                if both
                else "Install the cuDNN that belongs to it.",
                ((f"python3 -m venv ~/tf && ~/tf/bin/pip install 'tensorflow[and-cuda]=={text}'"),)
                if both
                else (f"{pip(environment)} 'tensorflow[and-cuda]=={text}'",),
            )


def _torch(environment: Environment, target: Target) -> Iterator[Finding]:
    text = environment.version("torch")
    if text is None or not target.gpu:
        return
    cuda = cuda_of(environment, "torch")
    build = environment.installed.values.get("torch_cuda")
    answer = environment.frameworks.get("torch")
    known = bool(answer and "cuda" in answer.values) or isinstance(build, dict)
    hip = (isinstance(build, dict) and build.get("hip")) or (answer and answer.values.get("hip"))
    if (not cuda and known and not hip) or "+cpu" in text:
        yield Finding(
            "framework.cpu-only",
            Severity.ERROR,
            f"PyTorch {text} of {environment.python} was built without CUDA, and there is a GPU.",
            "Trainings run on the CPU, ten to a hundred times slower.",
            "Install the build with CUDA.",
            (f"{pip(environment, 'uninstall')} -y torch", f"{pip(environment)} torch"),
        )
        return
    yield from driver_too_old(environment, "torch", target, cuda)
    yield from _card_too_new_or_old(environment, "torch", target, cuda)
    archs = answer.values.get("arch_list") if answer else None
    if archs:
        for name, capability in target.capabilities:
            if capability and not runs_on(capability, archs):
                yield Finding(
                    "framework.arch",
                    Severity.ERROR,
                    f"PyTorch {text} holds no code for {name} (sm_{capability[0]}{capability[1]}); "
                    f"it was built for {', '.join(archs)}.",
                    "'no kernel image is available for execution on the device' at the first "
                    "operation.",
                    "Install a build that has it: the newest for new cards, an older one for old.",
                    (f"{pip(environment)} --upgrade torch",),
                )


def runs_on(capability: Version, archs: list[str]) -> bool:
    """
    Whether code for these architectures runs on a card.

    `sm_80` runs on 8.0 and on later cards of the same major number, `compute_80` on every
    later one, compiled at the start; `sm_90a` on 9.0 alone.
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


def _jax(environment: Environment, target: Target) -> Iterator[Finding]:
    text = environment.version("jax")
    if text is None or not target.gpu:
        return
    plugin = any("cuda" in name for name in environment.dists if name.startswith("jax"))
    if not plugin and "cuda" not in environment.dists.get("jaxlib", ""):
        yield Finding(
            "framework.cpu-only",
            Severity.WARNING,
            f"JAX {text} of {environment.python} has no CUDA plugin, and there is a GPU.",
            "JAX runs on the CPU.",
            "Install it with CUDA.",
            (f"{pip(environment)} 'jax[cuda12]'",),
        )


def _cuda_wheels(environment: Environment) -> Iterator[Finding]:
    """CUDA libraries of two major versions side by side."""
    majors: dict[str, list[str]] = {}
    for name, version in environment.dists.items():
        found = _RUNTIME.match(name) or _CUDNN.match(name)
        if found:
            major = found[1] or (str(versions.parse(version)[0]) if "runtime" in name else None)
            if major:
                majors.setdefault(major, []).append(f"{name} {version}")
    if len(majors) > 1:
        yield Finding(
            "framework.several-cudas",
            Severity.WARNING,
            "CUDA libraries of several major versions are installed side by side: "
            f"{' and '.join(f'CUDA {major}' for major in sorted(majors))}.",
            "They share folders and names: which cuDNN or cuBLAS a framework gets depends on "
            "what was imported first.",
            "Give each framework an environment of its own.",
            (f"{pip(environment, 'list')} | grep -i nvidia",),
            tuple(one for names in majors.values() for one in names),
        )


def _numpy(environment: Environment) -> Iterator[Finding]:
    numpy = versions.parse(environment.dists.get("numpy"))
    if not numpy:
        return
    tensorflow = versions.parse(environment.version("tensorflow"))
    tested = versions.tested_tensorflow(tensorflow)
    below = versions.parse(tested.get("numpy_below")) if tested else ()
    old_torch = versions.parse(environment.version("torch"))
    numpy_2_from = versions.parse(versions.table()["torch"]["numpy_2_from"])
    clash = ""
    if below and numpy >= below:
        clash = f"TensorFlow {show(tensorflow)} was made for NumPy below {show(below)}"
    elif old_torch and old_torch < numpy_2_from and numpy >= (2,):
        clash, below = f"PyTorch {show(old_torch)} was made for NumPy 1", (2,)
    if clash:
        yield Finding(
            "framework.numpy",
            # Across the change to 2 compiled code breaks; between others it rarely does.
            Severity.ERROR if below <= (2,) <= numpy else Severity.WARNING,
            f"{clash}; installed is {show(numpy)}.",
            "'A module that was compiled using NumPy 1.x cannot be run in NumPy 2': the import or "
            "the first conversion of an array crashes."
            if below <= (2,) <= numpy
            else "Functions that the newer NumPy took away fail when a training first comes to "
            "them.",
            "Install the older NumPy.",
            (f"{pip(environment)} 'numpy<{show(below)}'",),
        )


def _python(environment: Environment) -> Version:
    return versions.parse(environment.installed.values.get("python"))
