"""Users' scripts as they are: what they do at import; none may train there."""

from __future__ import annotations

import sys

import pytest

from watchdog_app.estimate import script
from watchdog_app.estimate.record import EstimateError


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch, tmp_path):
    """Remove these scripts' modules after each test."""
    monkeypatch.setattr(sys, "argv", ["watchdog", "a plan"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def find(path, thing, **arguments):
    return script.load_model(str(path), thing, arguments)


def test_a_script_in_a_package_imports_its_neighbours(tmp_path):
    """`from .layers import width` works as it does in the program."""
    pytest.importorskip("torch")
    folder = tmp_path / "vision" / "models"
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        (each / "__init__.py").write_text("")
    (folder.parent / "sizes.py").write_text("width = 7\n")
    (folder / "net.py").write_text(
        "from ..sizes import width\nfrom torch import nn\n"
        "def build():\n    return nn.Linear(width, 1)\n"
    )

    assert 7 == find(folder / "net.py", "build").model.in_features


def test_a_script_sees_an_empty_command_line_and_may_not_end_itself(tmp_path):
    """The message advises to move argparse calls below `if __name__ == "__main__"`."""
    path = tmp_path / "net.py"
    path.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()\n"
    )

    with pytest.raises(EstimateError, match=r"ended itself \(2\).*__main__"):
        find(path, "build")


def test_a_script_named_like_a_module_does_not_replace_it(tmp_path):
    """The user's `random.py` must not replace Python's own module, which other modules use."""
    import random

    path = tmp_path / "random.py"
    path.write_text("value = 3\n")

    with pytest.raises(EstimateError, match=r"is no model and no function, but of type int"):
        find(path, "value")
    assert random is sys.modules["random"]


@pytest.mark.torch
def test_a_script_that_trains_when_it_is_imported_is_stopped_there(tmp_path):
    """Objects made before the training exist, no step ran, and `backward` is restored."""
    torch = pytest.importorskip("torch")
    backward = torch.Tensor.backward
    path = tmp_path / "flat.py"
    path.write_text(
        "import torch\nnet = torch.nn.Linear(3, 1)\n"
        "for _ in range(10**9):\n"
        "    try:\n        net(torch.ones(1, 3)).sum().backward()\n"
        "    except Exception:\n        pass\n"
        "late = 1\n"
    )

    found = find(path, "net")

    assert 3 == found.model.in_features
    assert found.model.weight.grad is None
    assert "line 5, begins to train" in found.notes[0]
    with pytest.raises(EstimateError, match=r"before there is a late.*__main__"):
        find(path, "late")
    assert backward is torch.Tensor.backward


@pytest.mark.tensorflow
def test_a_function_that_fits_gives_its_model_and_its_batch(tmp_path):
    """Most scripts have a `main()`: the estimate takes the model that it would fit."""
    keras = pytest.importorskip("keras")
    fit = keras.Model.fit
    path = tmp_path / "flat.py"
    path.write_text(
        "import keras\n"
        "def main():\n"
        "    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])\n"
        "    model.compile('adam', 'mse')\n"
        "    model.fit([[1, 2, 3]], [[1, 2]], batch_size=48, epochs=10**9)\n"
    )

    found = find(path, "main")

    assert (48, 8) == (found.batch, found.model.count_params())
    assert "main() begins to train" in found.notes[0]
    assert fit is keras.Model.fit
