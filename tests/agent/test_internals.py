"""The frameworks' private names that the agent uses exist and are listed in one table."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import watchdog_app.agent
from watchdog_app.agent import internals

AGENT = Path(watchdog_app.agent.__file__).parent
PACKAGES = sorted({row.package for row in internals.rows()})
# Each framework with an oldest version in pyproject.toml: its package and its wheel.
OLDEST = {
    "keras": "keras",
    "tensorflow": "tensorflow",
    "tf_keras": "tf-keras",
    "torch": "torch",
}
NAMES = {name for row in internals.rows() for name in row.names}
MODULES = {
    row.files.removesuffix(".py").replace("/", ".")
    for row in internals.rows()
    if row.files.endswith(".py")
}
# Documented although they begin with an underscore: of Python, named tuples and IPython.
DOCUMENTED = {"_getframe", "_current_frames", "_fields", "_replace", "_i", "_i1"}
# Not a framework's name: C modules, a part of a word, an attribute that the agent sets.
OTHERS = {"_thread", "_multiprocessing", "_train_", "_watchdog_counts"}
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_PRIVATE_MODULE = re.compile(r"(tf_)?keras\.src\.[\w.]*\w|tensorflow\.python\.[\w.]*\w")


@cache
def own_names() -> set[str]:
    """Return the agent's own names: functions, classes, variables, attributes of self."""
    found: set[str] = set()
    for path in AGENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
                found.add(node.attr)
    return found


def private_names(source: str) -> Iterator[str]:
    """
    Return private attributes of other objects, private names in strings, and framework modules.

    Parts of f-strings are no names.
    """
    tree = ast.parse(source)
    texts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.JoinedStr)
        for part in (node.values if isinstance(node, ast.JoinedStr) else [node.value])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _PRIVATE.fullmatch(node.attr):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and _PRIVATE_MODULE.fullmatch(node.module or ""):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_name = _PRIVATE.fullmatch(node.value) or _PRIVATE_MODULE.fullmatch(node.value)
            if is_name and id(node) not in texts:
                yield node.value


def is_in_table(name: str) -> bool:
    if "." not in name:
        return name in NAMES
    return any(
        f"{name}.".startswith(f"{module}.") or module.startswith(f"{name}.") for module in MODULES
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_installed_version_has_each_name(package):
    """
    If a new version lacks a name, a developer must replace its row before watchdog supports it.
    """
    place = Path(threading.__file__).parent
    if not (place / f"{package}.py").exists():
        found = find_spec(package)
        if found is None or found.origin is None:
            pytest.skip(f"{package} is not installed")
        place = Path(found.origin).parents[1]

    assert [] == list(internals.missing(package, place))


def oldest_version(wheel: str) -> str:
    """Return the version that pyproject.toml asks for at least."""
    text = (AGENT.parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"].values()
    (found,) = {each for extra in extras for each in extra if each.startswith(f"{wheel}>=")}
    return found.removeprefix(f"{wheel}>=")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("package", "wheel"), OLDEST.items())
def test_the_oldest_supported_version_has_each_name(package, wheel, tmp_path):
    """A user with the oldest versions of pyproject.toml loses nothing to a missing name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "watchdog-test-wheels"
    version = oldest_version(wheel)
    requirement = f"{wheel}=={version}.*"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version=3.11", "--dest", str(cache)]
    done = subprocess.run([*command, requirement], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot download {requirement}: {done.stderr.strip()[-200:]}")
    (file, *_) = cache.glob(f"{package}-{version}.*.whl")
    with zipfile.ZipFile(file) as packed:
        for name in packed.namelist():
            if name.startswith(f"{package}/") and name.endswith((".py", ".pyi")):
                packed.extract(name, tmp_path)

    assert [] == list(internals.missing(package, tmp_path))


@pytest.mark.parametrize("path", sorted(AGENT.rglob("*.py")), ids=lambda path: path.stem)
def test_a_module_uses_no_other_private_name(path):
    """A developer who needs another name adds a row, which says what a user loses without it."""
    if path.name == "internals.py":
        return
    allowed = own_names() | DOCUMENTED | OTHERS
    found = {name for name in private_names(path.read_text()) if not is_in_table(name)}

    assert set() == found - allowed


def test_every_row_is_used():
    """A developer removes the row of a name that no module uses."""
    text = "\n".join(
        path.read_text() for path in AGENT.rglob("*.py") if path.name != "internals.py"
    )

    assert [] == sorted(name for name in NAMES if not re.search(rf"\b{name}\b", text))


def test_what_has_no_row_would_be_found():
    """The test tries each way to write such a name."""
    source = (
        "from keras.src.losses import loss\nimport sys\n"
        "model._hidden\ngetattr(model, '_other')\nsys.modules.get('tensorflow.python.eager.x')\n"
    )

    expected = {"keras.src.losses.loss", "_hidden", "_other", "tensorflow.python.eager.x"}
    assert expected == set(private_names(source))


def test_a_name_that_a_version_lacks_is_reported(tmp_path):
    """The doctor checks other environments this way, so it imports no framework."""
    place = tmp_path / "torch/optim"
    place.mkdir(parents=True)
    (place / "lr_scheduler.py").write_text("each._dynamo\n")

    found = [(row.files, gone) for row, gone in internals.missing("torch", tmp_path)]

    assert ("torch/optim/lr_scheduler.py", ["_schedulers"]) in found
    assert ("torch/_C/__init__.pyi", ["_version"]) in found
