"""
Frameworks of the user's environments:

whether they fit driver and GPU, and whether they start.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from doctor_tree import GIB, Tree, answers, card, fake_python, found, troubles

from watchdog_app.base.errors import UsageError
from watchdog_app.doctor import builds, environments, frameworks, versions
from watchdog_app.doctor.builds import Target
from watchdog_app.doctor.environments import Answer, Environment

RTX = Target(True, (550, 54, 14), (("GPU 0", (8, 6)),))
AMD = Target(gpu=False, amd=True)
CUDA12 = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True}
NO_CUDA = {"is_cuda_build": False, "cuda_version": None}
WHEELS = {"nvidia-cuda-runtime-cu12": "12.5.82", "nvidia-cudnn-cu12": "9.3.0.75"}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "machine").gpu()


def environment(dists, python="3.11.7", imported=None, **installed):
    values = {"python": python, "dists": dists} | installed
    return Environment("/venv/bin/python", "VIRTUAL_ENV", Answer(values), imported or {})


TF = {"tensorflow": "2.18.0", **WHEELS}


BUILT = {"tensorflow_build": CUDA12}


def on(driver, capability):
    return Target(True, driver, (("GPU 0", capability),))


def case(expected, dists, target=RTX, **installed):
    return expected, dists, installed, target


@pytest.mark.parametrize(
    ("expected", "dists", "installed", "target"),
    [
        case({}, TF, **BUILT),
        case({}, {"tensorflow": "2.18.0"}, Target(gpu=False), **BUILT),
        case({"framework.cpu-only": "error"}, {"tensorflow": "2.18.0"}, tensorflow_build=NO_CUDA),
        case({"framework.cpu-only": "error"}, {"tensorflow-cpu": "2.18.0"}),
        case({"framework.no-cuda-wheels": "warning"}, {"tensorflow": "2.18.0"}, **BUILT),
        case({"framework.driver-too-old": "error"}, TF, on((470, 256, 2), (8, 6)), **BUILT),
        case({}, TF, Target(True, (525, 60, 13)), **BUILT),
        case({}, TF, Target(True, (), ()), **BUILT),
        case({"framework.card-too-new": "warning"}, TF, on((580, 65, 6), (12, 0)), **BUILT),
        case({"framework.card-too-old": "error"}, TF, on((550, 1), (3, 7)), **BUILT),
        case(
            {"framework.cudnn-version": "error"}, {**TF, "nvidia-cudnn-cu12": "8.9.7.29"}, **BUILT
        ),
        case({"framework.python-version": "warning"}, TF, python="3.13.1"),
        case(
            {"framework.several-tensorflows": "error", "framework.cpu-only": "error"},
            {**TF, "tensorflow-cpu": "2.18.0"},
        ),
        case(
            {"framework.numpy": "error"},
            {"tensorflow": "2.16.1", **WHEELS, "numpy": "2.1.0", "nvidia-cudnn-cu12": "8.9.7"},
        ),
        case({}, {**TF, "numpy": "2.0.2"}),
        case({"framework.numpy": "error"}, {"torch": "2.1.0+cu121", "numpy": "2.0.0"}),
        case({}, {"torch": "2.4.0+cu121", "numpy": "2.0.0"}),
        case({"framework.cpu-only": "error"}, {"torch": "2.4.0+cpu"}),
        case(
            {"framework.cpu-only": "error"},
            {"torch": "2.4.0"},
            torch_cuda={"cuda": None, "hip": None},
        ),
        case({}, {"torch": "2.4.0"}, torch_cuda={"cuda": None, "hip": "6.1"}),
        case(
            {"framework.driver-too-old": "error"}, {"torch": "2.9.0"}, torch_cuda={"cuda": "13.0"}
        ),
        case({"framework.card-too-new": "error"}, {"torch": "2.5.0+cu124"}, on((570, 1), (12, 0))),
        # Code for the first GPU of a generation runs on its later GPUs.
        case({}, {"torch": "1.13.1+cu117"}, on((570, 1), (8, 9))),
        case({}, {"torch": "2.7.0+cu128"}, on((580, 95), (12, 1))),
        case({"framework.card-too-new": "error"}, {"torch": "1.13.1+cu117"}, on((570, 1), (9, 0))),
        case({"framework.no-rocm": "info"}, {"torch": "2.4.0"}, AMD, torch_cuda={"cuda": "12.1"}),
        case({}, {"torch": "2.4.0"}, AMD, torch_cuda={"cuda": None, "hip": "6.1"}),
        case({"framework.no-rocm": "info"}, TF, AMD, **BUILT),
        case({}, TF, AMD, tensorflow_build={"is_cuda_build": False, "is_rocm_build": True}),
        case({"framework.cpu-only": "warning"}, {"jax": "0.5.0", "jaxlib": "0.5.0"}),
        case({}, {"jax": "0.5.0", "jaxlib": "0.5.0", "jax-cuda12-plugin": "0.5.0"}),
        case(
            {"framework.several-cudas": "warning"},
            {"torch": "2.4.0+cu121", **WHEELS, "nvidia-cuda-runtime-cu11": "11.8.89"},
        ),
        case(
            {"framework.several-cudas": "warning"},
            {"torch": "2.9.0+cu126", **WHEELS, "nvidia-cuda-runtime": "13.0.48"},
        ),
        case({"framework.shadowed": "warning"}, TF, shadows=["tensorflow.py"]),
    ],
)
def test_packages_are_held_against_driver_and_card(expected, dists, installed, target):
    """The check only reads a table and the versions; it runs no code."""
    assert expected == troubles(builds.check(environment(dists, **installed), target))


@pytest.mark.parametrize(
    ("expected", "capability", "archs"),
    [
        (True, (8, 6), ["sm_80"]),
        (True, (9, 0), ["sm_70", "compute_80"]),
        (False, (9, 0), ["sm_70", "sm_80", "sm_89"]),
        (False, (12, 0), ["sm_80", "sm_90"]),
        (False, (5, 2), ["sm_60"]),
        (True, (9, 0), ["sm_90a"]),
        (False, (10, 0), ["sm_90a"]),
        (True, (12, 0), ["sm_120"]),
        (False, (8, 6), ["gfx1100", ""]),
    ],
)
def test_code_runs_on_later_cards_of_its_generation(expected, capability, archs):
    """CUDA guarantees binary compatibility within a generation, and PTX compiles at load time."""
    assert expected is builds.supports_card(capability, archs)


def test_an_old_driver_is_told_with_the_one_that_is_needed():
    """The finding shows both versions and a framework build that would work."""
    target = Target(True, (470, 256, 2))

    finding = found(builds.check(environment({"torch": "2.4.0+cu121"}), target))[
        "framework.driver-too-old"
    ]

    assert "525.60.13" in finding.what
    assert "470.256.02" in finding.what
    assert any("cu118" in command for command in finding.commands)


# Interpreters


def run_check(tree, python, **changes):
    return frameworks.check(tree.facts(answers(card()), python=str(python), **changes))


def test_a_framework_that_computes_on_the_gpu_is_fine(tree, tmp_path):
    """Messages on its standard error do not matter."""
    said = {"version": "2.18.0", "built_with_cuda": True, "gpus": 1, "product": 64.0}
    python = fake_python(
        tmp_path / "venv/bin/python", {"dists": TF, "tensorflow_build": CUDA12}, tensorflow=said
    )

    findings = found(run_check(tree, python))

    assert {} == troubles(findings.values())
    assert "computes on the GPU" in findings["framework.gpu"].what


def test_a_framework_that_finds_no_gpu_says_why_in_its_own_words(tree, tmp_path):
    """The finding quotes the relevant lines without their timestamps."""
    said = {"version": "2.18.0", "built_with_cuda": True, "gpus": 0}
    noise = "2026-11-21 10:00:00.1: W external/gpu_device.cc:2344] Cannot dlopen some GPU libraries"
    script = f'echo "{noise}" >&2; ' + f"echo '@watchdog-doctor {{\"result\": {_json(said)}}}'"
    python = fake_python(
        tmp_path / "venv/bin/python", {"dists": TF, "tensorflow_build": CUDA12}, tensorflow=script
    )

    finding = found(run_check(tree, python))["framework.no-gpu"]

    assert ("W external/gpu_device.cc:2344] Cannot dlopen some GPU libraries",) == finding.details


@pytest.mark.parametrize(
    ("expected", "script"),
    [
        ({"framework.slow": "warning"}, "sleep 600"),
        ({"framework.cpu-instructions": "error"}, "kill -ILL $$"),
        ({"framework.killed": "error"}, "kill -KILL $$"),
        ({"framework.broken": "error"}, "kill -SEGV $$"),
        (
            {"framework.broken": "error"},
            'echo \'@watchdog-doctor {"error": "ImportError: libcudart.so.12"}\'; exit 1',
        ),
        ({"framework.broken": "error"}, "exit 0"),
        ({"framework.broken": "error"}, "echo '@watchdog-doctor {broken'; exit 5"),
    ],
)
def test_an_import_that_goes_wrong_is_one_finding(tree, tmp_path, expected, script):
    """The import may raise, crash or hang."""
    dists = {"torch": "2.4.0+cu121"}
    python = fake_python(tmp_path / "venv/bin/python", {"dists": dists}, torch=script)
    begun = time.monotonic()

    assert expected == troubles(run_check(tree, python, timeout_s=3.0))
    assert time.monotonic() - begun < 60


def test_one_broken_framework_hides_no_other(tree, tmp_path):
    """The doctor imports each framework in its own process."""
    dists = {"torch": "2.4.0+cu121", **TF}
    said = {"version": "2.18.0", "built_with_cuda": True, "gpus": 1, "product": 64.0}
    python = fake_python(
        tmp_path / "venv/bin/python", {"dists": dists}, torch="kill -SEGV $$", tensorflow=said
    )

    findings = found(run_check(tree, python))

    assert "framework.gpu" in findings
    assert "framework.broken" in findings


def test_an_error_of_the_computation_is_an_error(tree, tmp_path):
    """The framework finds the GPU and cannot use it, mostly because of cuDNN."""
    said = {"version": "2.18.0", "built_with_cuda": True, "gpus": 1,
            "use_error": "UnimplementedError: DNN library is not found."}  # fmt: skip
    python = fake_python(
        tmp_path / "venv/bin/python", {"dists": TF, "tensorflow_build": CUDA12}, tensorflow=said
    )

    assert {"framework.gpu-fails": "error"} == troubles(run_check(tree, python))


def test_a_full_gpu_is_not_computed_on(tree, tmp_path):
    """The test computation must not take a training's last memory."""
    trace = tmp_path / "words"
    python = fake_python(
        tmp_path / "venv/bin/python",
        {"dists": TF, "tensorflow_build": CUDA12},
        tensorflow=f'echo "$@" > {trace}; echo \'@watchdog-doctor {{"result": {{}}}}\'',
    )

    full = tree.facts(answers(card(memory_free_bytes=GIB)), python=str(python))
    list(frameworks.check(full))
    assert "use" not in trace.read_text().split()
    list(run_check(tree, python))
    assert "use" in trace.read_text().split()


HANGS = 'import time; print(\'{"calling": "nvmlInit"}\', flush=True); time.sleep(600)'


@pytest.mark.parametrize(
    ("severity", "available_kib", "driver", "changes"),
    [
        # too little RAM: the import would kill the running training
        ("warning", 1 << 20, None, {}),
        ("warning", 12 << 20, (sys.executable, "-c", HANGS), {"timeout_s": 2.0}),
        ("info", 12 << 20, None, {"fast": True}),
    ],
)
def test_where_an_import_would_do_harm_nothing_is_imported(  # noqa: PLR0917
    tree, tmp_path, severity, available_kib, driver, changes
):
    """The doctor still compares the versions with the driver."""
    tree.meminfo(MemAvailable=available_kib)
    marker = tmp_path / "imported"
    python = fake_python(
        tmp_path / "venv/bin/python",
        {"dists": {"torch": "2.4.0", "numpy": "1.26.0"}, "torch_cuda": {"cuda": "13.0"}},
        torch=f"touch {marker}",
    )

    told = troubles(frameworks.check(tree.facts(driver, python=str(python), **changes)))

    assert {"framework.use": severity, "framework.driver-too-old": "error"} == told
    assert not marker.exists()


def test_an_interpreter_that_does_not_start_is_said(tree, tmp_path):
    """It is an error if the user named the interpreter, because the user asked about it."""
    python = tmp_path / "python"
    python.write_text("#!/no/such/interpreter\n")
    python.chmod(0o755)

    assert {"framework.environment": "error"} == troubles(run_check(tree, python))


# Which interpreters


@pytest.mark.parametrize("word", ["venv", "venv/bin/python", "./venv/", "gpu-env"])
def test_python_can_be_named_in_many_ways(tree, tmp_path, word):
    """A user may name an interpreter, a folder or a conda environment."""
    python = fake_python(tmp_path / "venv/bin/python")
    fake_python(tmp_path / "envs/gpu-env/bin/python")
    tree.write("home/ada/.conda/environments.txt", f"/gone\n{tmp_path}/envs/gpu-env\n")

    ((found_python, source),) = environments.find(tree.machine(python=word, cwd=str(tmp_path)), ())

    assert "--python" == source
    expected = tmp_path / "envs/gpu-env/bin/python" if word == "gpu-env" else python
    assert str(expected) == os.path.normpath(found_python)


@pytest.mark.parametrize("word", ["nothing-here", "empty", "file.txt", "", "/no/such/python"])
def test_a_python_that_is_not_there_is_a_usage_error(tree, tmp_path, word):
    """The user's argument was wrong, so it is not a finding."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")

    with pytest.raises(UsageError):
        environments.find(tree.machine(python=word, cwd=str(tmp_path)), ())


def test_environments_are_found_where_trainings_come_from(tree, tmp_path):
    """
    The list has the active environment, those of running kernels, the shell's and Jupyter's, each
    once.
    """
    activated = fake_python(tmp_path / "a/bin/python")
    kernel = fake_python(tmp_path / "b/bin/python3.11")
    script = fake_python(tmp_path / "c/bin/python")
    shell = fake_python(tree.root / "usr/bin/python3")
    jupyter = fake_python(tmp_path / "d/bin/python")
    tree.process(50, str(kernel), "-m", "ipykernel_launcher", "-f", "kernel-1.json")
    tree.process(51, str(script), "train.py", maps="7f00-7f01 r-xp /c/libtensorflow_cc.so.2\n")
    tree.process(52, str(fake_python(tmp_path / "e/bin/python")), "server.py")
    tree.write(
        "home/ada/.local/share/jupyter/kernels/tf/kernel.json",
        f'{{"argv": ["{jupyter}", "-m", "ipykernel_launcher"]}}',
    )
    tree.write("home/ada/.local/share/jupyter/kernels/broken/kernel.json", '{"argv": []}')
    facts = tree.facts(env={"VIRTUAL_ENV": str(tmp_path / "a")})

    pythons = [python for python, _ in environments.find(facts.machine, facts.processes())]

    assert [str(activated), str(kernel), str(script), str(shell)] == pythons
    assert jupyter.exists()  # the fifth environment: more than four would take minutes


def test_no_framework_anywhere_is_said_once(tree, tmp_path):
    """The finding says how to name another environment."""
    fake_python(tree.root / "usr/bin/python3")

    facts = tree.facts(env={"VIRTUAL_ENV": str(fake_python(tmp_path / "a/bin/python").parents[1])})

    assert {"framework.environment": "info"} == troubles(frameworks.check(facts))


def test_libraries_of_two_cudas_on_the_path_are_told(tree, tmp_path):
    """The loader takes the first library of each name."""
    for folder, name in (
        ("cuda-11/lib64", "libcudart.so.11.0"),
        ("cuda-12/lib64", "libcudart.so.12"),
    ):
        tree.write(f"usr/local/{folder}/{name}", "")
    path = "/usr/local/cuda-12/lib64:/usr/local/cuda-11/lib64"

    both = tree.facts(env={"LD_LIBRARY_PATH": path})
    one = tree.facts(env={"LD_LIBRARY_PATH": "/usr/local/cuda-12/lib64"})

    assert "warning" == troubles(frameworks.check(both))["framework.several-runtimes"]
    assert "info" == troubles(frameworks.check(one))["framework.runtime-on-path"]


# The probe itself


def test_the_probe_reads_this_environment_without_importing_it():
    """
    The real interpreter runs the probe, which reads TensorFlow's build from TensorFlow's file.
    """
    from watchdog_app.doctor.machine import Machine

    seen = environments.read_installed(Machine(), sys.executable, "--python")

    assert seen.installed.error is None
    assert sys.prefix == seen.installed.values["prefix"]
    assert ".".join(map(str, sys.version_info[:3])) == seen.installed.values["python"]
    assert "numpy" in seen.dists


def test_the_probe_does_not_hide_modules_of_the_users(tmp_path):
    """
    The probe removes its folder from the path, because it holds a versions.py and a memory.py.
    """
    from watchdog_app.doctor import children

    (tmp_path / "torch.py").write_text(
        "import sys\nprint('PATH', *sys.path, sep='|')\nraise ImportError('told')\n"
    )
    probe = Path(environments.__file__).with_name("probe.py")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    ended = children.run([sys.executable, str(probe), "torch"], 60.0, env)

    (path,) = [line for line in ended.stdout.splitlines() if line.startswith("PATH")]
    assert str(probe.parent) not in path.split("|")
    assert "ImportError: told" == environments.parse_probe(ended).error


@pytest.mark.tensorflow
def test_the_real_tensorflow_is_imported_and_heard():
    """TensorFlow itself reports its version and its build."""
    from watchdog_app.doctor.machine import Machine

    machine = Machine(timeout_s=200.0)
    seen = environments.read_installed(machine, sys.executable, "--python")

    answer = environments.import_frameworks(
        machine, seen, None, driver_hangs=False, use_gpu=True, report_progress=lambda _: None
    )
    said = answer.frameworks["tensorflow"]

    assert said.error is None
    assert seen.version("tensorflow") == said.values["version"]
    build = seen.installed.values["tensorflow_build"]
    assert build["is_cuda_build"] is said.values["built_with_cuda"]
    assert build["cuda_version"] == said.values["cuda"]


# The table


def test_every_entry_of_the_table_can_be_read():
    """Every entry has a source, a date and rising versions."""
    table = versions.table()

    assert all(part["source"].startswith("https://") and part["date"] for part in table.values())
    firsts = table["compute_capability"]["first_cuda"]
    assert all(number.isdigit() and versions.parse(cuda) for number, cuda in firsts.items())
    builds_ = [versions.parse(one["version"]) for one in table["tensorflow"]["build"]]
    assert sorted(builds_) == builds_
    for one in table["tensorflow"]["build"]:
        low, high = (versions.parse(text) for text in one["python"])
        assert low < high
        assert versions.minimum_driver(versions.parse(one["cuda"]))


@pytest.mark.parametrize(
    ("minimum", "cuda"),
    [
        ((525, 60, 13), (12, 5)),
        ((580, 65, 6), (13, 0)),
        ((410, 48), (10, 0)),
        ((), (9, 0)),
        ((), ()),
        ((), (14, 0)),
    ],
)
def test_the_driver_that_a_cuda_needs(minimum, cuda):
    """The table uses the major version, before CUDA 11 also the minor; empty if unknown."""
    assert minimum == versions.minimum_driver(cuda)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ((2, 3, 0), "2.3.0+cu121"),
        ((550, 54, 14), "550.54.14"),
        ((2, 18, 0), "v2.18.0rc1"),
        ((), "nightly"),
        ((), None),
        ((), b"2.1"),
    ],
)
def test_versions_are_read_as_far_as_they_are_numbers(expected, text):
    """Parsing foreign versions never raises."""
    assert expected == versions.parse(text)


def _json(value):
    import json

    return json.dumps(value)


def test_names_that_a_version_does_not_have_are_told_with_what_is_lost(tree, tmp_path):
    """The agent works without them, and the doctor finds them without an import."""
    place = tmp_path / "keras/src/trainers"
    place.mkdir(parents=True)
    (place / "epoch_iterator.py").write_text("_enumerate_iterator = _current_iterator = None\n")
    keras = environment({"keras": "3.9.0"}, packages={"keras": str(tmp_path)})

    finding = next(
        each
        for each in frameworks._environment_findings(tree.facts(), keras, RTX)
        if each.id == "framework.internals"
    )

    assert "info" == finding.severity
    assert "keras 3.9.0" in finding.what
    assert any("the place within the epoch" in each for each in finding.details)
    assert not any("_current_iterator" in each for each in finding.details)
