"""The import hook: costs nothing before Keras is imported, attaches to it, and detaches cleanly."""

from __future__ import annotations

import json
import statistics
import sys
import zipapp

import pytest
from support.finished import finished

# A fake Keras with the parts that the hook reads: the class and a fit that creates one.
CALLBACK_LIST = """
class CallbackList:
    def __init__(self, callbacks=None, add_history=False, **params):
        self.callbacks = list(callbacks or [])
"""


@pytest.fixture
def keras(tmp_path):
    """A folder with a package shaped like Keras."""
    folder = tmp_path / "keras" / "src" / "callbacks"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent, folder.parent.parent):
        (each / "__init__.py").write_text("")
    (folder / "callback_list.py").write_text(CALLBACK_LIST)
    return tmp_path


def python(code, folder=None, **more):
    head = f"import sys; sys.path.insert(0, {str(folder)!r})\n" if folder else ""
    done = finished([sys.executable, "-c", head + code], **more)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_switching_on_costs_a_tenth_of_importing_argparse_and_logging(tmp_path, monkeypatch):
    """The reference is 8 ms in the same process. The hook imports no framework."""
    code = (
        "import sys, time, json\n"
        "try: import no_such_module\n"  # fills the cache of the folders in sys.path
        "except ImportError: a = time.perf_counter()\n"
        "from watchdog_app.agent.hook import switch_on; switch_on(); b = time.perf_counter()\n"
        "import argparse, logging; c = time.perf_counter()\n"
        "print(json.dumps([(b - a) / (c - b), len({'keras', 'numpy'} & set(sys.modules))]))"
    )
    # Compiled once, as in every installation.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    python(code)

    found = [json.loads(python(code)) for _ in range(7)]

    assert 0.1 > statistics.median(ratio for ratio, _ in found)
    assert {0} == {frameworks for _, frameworks in found}


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_the_hook_gets_at_keras_whenever_it_is_imported(keras, early):
    """The hook may be installed before or after Keras, and the module keeps its own loader."""
    module = "keras.src.callbacks.callback_list"
    steps = ["from watchdog_app.agent import hook; hook.switch_on()", f"import {module} as m"]
    code = "\n".join(steps if early else reversed(steps)) + (
        "\nprint(m.CallbackList.__init__.__module__, type(m.__spec__.loader).__name__,"
        " m.__loader__ is m.__spec__.loader, m.CallbackList([1]).callbacks)"
    )

    # functools.wraps gives watchdog's function the module name of Keras's function.
    assert "keras.src.callbacks.callback_list SourceFileLoader True [1]\n" == python(code, keras)


def test_switching_off_restores_exactly(keras):
    """The class has its own function and sys.meta_path its old objects again."""
    code = (
        "import keras.src.callbacks.callback_list as m\n"
        "from watchdog_app.agent import hook\n"
        "before = m.CallbackList.__init__, list(sys.meta_path)\n"
        "print(hook.switch_on(), hook.switch_on(), before[0] is not m.CallbackList.__init__)\n"
        "print(hook.switch_off(), hook.switch_off())\n"
        "print(m.CallbackList.__init__ is before[0], sys.meta_path == before[1], hook.is_on())"
    )

    assert "True False True\nTrue False\nTrue True False\n" == python(code, keras)


def test_what_stands_on_top_of_ours_stays(keras):
    """Another tool's later wrapper must still work after watchdog detaches."""
    code = (
        "import keras.src.callbacks.callback_list as m\n"
        "from watchdog_app.agent import hook\n"
        "hook.switch_on(); ours = m.CallbackList.__init__\n"
        "def other(self, *a, **k): ours(self, *a, **k); self.seen = True\n"
        "m.CallbackList.__init__ = other\n"
        "hook.switch_off(); print(m.CallbackList.__init__ is other, m.CallbackList([2]).seen)"
    )

    assert "True True\n" == python(code, keras)


def test_a_keras_that_cannot_be_attached_to_is_imported_all_the_same(keras):
    """A later Keras may differ; the program prints one line about it."""
    (keras / "keras/src/callbacks/callback_list.py").write_text("class Other: pass")
    code = (
        f"import sys; sys.path.insert(0, {str(keras)!r})\n"
        "from watchdog_app.agent import hook; hook.switch_on()\n"
        "import keras.src.callbacks.callback_list as m; print(m.Other)"
    )

    done = finished([sys.executable, "-c", code], check=True)

    assert "Other" in done.stdout
    assert "Your program is not affected" in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_asking_for_a_spec_without_importing_leaves_the_hook_where_it_is(keras):
    """TensorFlow looks for Keras this way before it imports it."""
    code = (
        "from watchdog_app.agent import hook; hook.switch_on()\n"
        "import importlib.util\n"
        "print(importlib.util.find_spec('keras') is not None)\n"
        "print(importlib.util.find_spec('keras.src.callbacks.callback_list').origin[-16:])\n"
        "import keras.src.callbacks.callback_list as m; before = m.CallbackList.__init__\n"
        "hook.switch_off(); print(before is not m.CallbackList.__init__)"
    )

    assert "True\ncallback_list.py\nTrue\n" == python(code, keras)


@pytest.mark.parametrize("place", ["0", "len(sys.meta_path)", "1"])
@pytest.mark.parametrize("ours", ["first", "last"])
def test_another_finder_that_asks_everybody_is_no_endless_circle(keras, place, ours):
    """Tracers and profilers do the same, so two finders could call each other without end."""
    on = "from watchdog_app.agent import hook; hook.switch_on()\n"
    other = (
        "class Everybody:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        others = [each for each in sys.meta_path if each is not self]\n"
        "        found = (each.find_spec(name, path, target) for each in others)\n"
        "        return next((spec for spec in found if spec), None) if 'keras' in name else None\n"
        f"sys.meta_path.insert({place}, Everybody())\n"
    )
    code = (on + other if ours == "first" else other + on) + (
        "import importlib, keras.src.callbacks.callback_list as m\n"
        "print(hasattr(m.CallbackList.__init__, '__wrapped__'), m.CallbackList([1]).callbacks)\n"
        "importlib.reload(m); init = m.CallbackList.__init__\n"
        "print(hasattr(init, '__wrapped__'), hasattr(init.__wrapped__, '__wrapped__'))\n"
        "print(type(m.__loader__).__name__)"
    )

    assert "True [1]\nTrue False\nSourceFileLoader\n" == python(code, keras)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (["train.py"], "rescues/train.py"),
        (["train.py", "--fold", "1"], "rescues/train.py-"),
        (["-m", "pack.train"], "rescues/pack.train"),
        (["-m", "pack"], "rescues/pack"),
        (["pack"], "rescues/pack"),
        (["app.pyz"], "rescues/app.pyz"),
        (["-c", "import train"], "rescues/unnamed-"),
    ],
)
def test_rescues_lie_beside_the_program_under_its_name(tmp_path, run, name):
    """Other arguments mean another training."""
    code = "from watchdog_app.agent.found.folders import rescue_folder; print(*rescue_folder())"
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "pack").mkdir()
    for each in ("__init__", "__main__", "train"):
        (tmp_path / "pack" / f"{each}.py").write_text("" if each == "__init__" else code)
    zipapp.create_archive(tmp_path / "pack", tmp_path / "app.pyz")

    out = finished([sys.executable, *run], cwd=tmp_path, check=True).stdout

    folder, known = out.split()
    assert folder.startswith(f"{tmp_path}/{name}")
    assert folder == f"{tmp_path}/{name}" or name.endswith("-")
    assert str("-c" not in run) == known
