"""
Load the model that a name refers to: import a script or a module, and call a function.

A script may do anything during its import except train. At the start of a training it is stopped,
and the estimate uses the model that exists by then.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from watchdog_app.estimate.record import EstimateError, framework_of


class TrainingStarted(BaseException):
    """Stops a script at its training. A BaseException, so that `except Exception` lets it pass."""

    def __init__(self, model: Any = None, batch: int | None = None) -> None:
        super().__init__("it began to train")
        self.model = model  # None: PyTorch does not say which model
        self.batch = batch


class LoadedModel(NamedTuple):
    """The model that a script created, and notes on how it was loaded."""

    model: Any
    batch: int | None = None  # batch size of the training that the script started
    notes: tuple[str, ...] = ()


def load_model(name: str, thing: str, arguments: dict[str, Any]) -> LoadedModel:
    """
    Import `name`, find `thing` in it, and call it if it is a function.

    Args:
        name: FILE.py, a module, or FILE.keras.
        thing: a name in it, dotted; empty for a model file.
        arguments: of the function.

    Raises:
        EstimateError: `thing` does not exist, or neither is nor returns a model.
    """
    if name.endswith(".keras"):
        import keras

        with _without_contents():
            return LoadedModel(keras.saving.load_model(name, compile=True))
    sys.argv = [name]  # a script that parses its command line gets an empty one
    with _block_training():
        module, started = _import_module(name)
        where = f"{name}, line {_start_line(started, module)}, begins to train" if started else ""
        found: Any = module
        for part in thing.split("."):
            found = getattr(found, part, None)
            if found is None:
                raise EstimateError(_missing_text(name, thing, module, where))
        notes = (f"{where} when it is imported: it was stopped there.",) if started else ()
        batch = None if started is None else started.batch
        if framework_of(found):
            return LoadedModel(found, batch, notes)
        if not callable(found):
            raise EstimateError(
                f"{thing} in {name} is no model and no function, but of type "
                f"{type(found).__name__}."
            )
        _check_arguments(found, thing, arguments)
        try:
            built = _build_model(found, arguments)
        except TrainingStarted as stopped:
            if stopped.model is None:
                raise EstimateError(
                    f"{thing}() in {name} begins to train in line {_start_line(stopped, module)}. "
                    "Name a function that makes the model and returns it."
                ) from None
            note = f"{thing}() begins to train: it was stopped there, and that model taken."
            return LoadedModel(stopped.model, stopped.batch, (*notes, note))
    if isinstance(built, tuple) and built and framework_of(built[0]):
        built = built[0]
    if not framework_of(built):
        raise EstimateError(
            f"{thing}() in {name} should return the model, and returns "
            f"{'nothing' if built is None else f'a value of type {type(built).__name__}'}."
        )
    return LoadedModel(built, batch, notes)


def _missing_text(name: str, thing: str, module: Any, where: str) -> str:
    if where:
        return (
            f"{where} when it is imported, before there is a {thing}: it was stopped there. "
            'Put the training under `if __name__ == "__main__":`.' + _list_candidates(module)
        )
    return f"There is no {thing} in {name}.{_list_candidates(module)}"


def _build_model(function: Any, arguments: dict[str, Any]) -> Any:
    try:
        with _without_contents():
            return function(**arguments)
    except Exception:
        if "tensorflow" not in sys.modules:
            raise
        return function(**arguments)  # the function reads its own weights, so they need contents


def _without_contents() -> Any:
    """Make TensorFlow create weights without contents, so that a model of any size can be built."""
    if "tensorflow" not in sys.modules or "keras" not in sys.modules:
        return nullcontext()
    import keras

    if keras.config.backend() != "tensorflow":
        return nullcontext()
    from watchdog_app.estimate import keras_trace

    return keras_trace.hollow_variables()


@contextmanager
def _block_training() -> Iterator[None]:
    """Raise TrainingStarted if a script calls fit, train_on_batch or backward."""

    def fit(model: Any, *given: Any, **settings: Any) -> None:  # (x, y, batch_size, ...)
        batch = settings.get("batch_size", given[2] if len(given) > 2 else None)
        raise TrainingStarted(model, batch if isinstance(batch, int) and batch > 0 else None)

    def train_on_batch(model: Any, x: Any = None, *_: Any, **__: Any) -> None:
        raise TrainingStarted(model, len(x) if hasattr(x, "__len__") and len(x) else None)

    def backward(*_: Any, **__: Any) -> None:
        raise TrainingStarted

    wanted = []
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    if keras is not None:
        wanted += [(keras.Model, "fit", fit), (keras.Model, "train_on_batch", train_on_batch)]
    if torch is not None:
        wanted.append((torch.Tensor, "backward", backward))
    before = [(kind, name, vars(kind).get(name)) for kind, name, _ in wanted]
    for kind, name, own in wanted:
        setattr(kind, name, own)
    try:
        yield
    finally:
        for kind, name, old in before:
            if old is None:
                delattr(kind, name)
            else:
                setattr(kind, name, old)


def _import_module(name: str) -> tuple[Any, TrainingStarted | None]:
    """Import a module; also return where it started to train, which leaves it incomplete."""
    if not name.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(name), None
        except SystemExit as error:
            raise _exit_error(name, error) from None
        except TrainingStarted as stopped:
            raise EstimateError(
                f"{name} begins to train when it is imported. "
                'Put the training under `if __name__ == "__main__":`.'
            ) from stopped
    if not os.path.isfile(name):
        raise EstimateError(f"There is no file {name}.")
    folder, title = _import_path(name)
    sys.path.insert(0, folder)
    # Not as __main__: code under `if __name__ == "__main__"` must not start to train.
    if "." in title:
        importlib.import_module(title.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(title, name)
    if spec is None or spec.loader is None:
        raise EstimateError(f"{name} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise _exit_error(name, error) from None
    except TrainingStarted as stopped:
        return module, stopped
    return module, None


def _import_path(path: str) -> tuple[str, str]:
    """
    Return the folder to import from and the script's name there, so that relative imports work.
    """
    folder, file = os.path.split(os.path.abspath(path))
    title = os.path.splitext(file)[0]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, part = os.path.split(folder)
        title = f"{part}.{title}"
    # A script must not replace a loaded module of the same name, such as `random.py`.
    return folder, f"script_{title}" if title in sys.modules else title


def _exit_error(name: str, error: SystemExit) -> EstimateError:
    said = f" ({error.code})" if error.code not in (None, 0) else ""
    return EstimateError(
        f"{name} ended itself{said} when it was imported. What reads the command line or calls "
        'sys.exit() belongs under `if __name__ == "__main__":`.'
    )


def _start_line(started: BaseException | None, module: Any) -> int:
    """Return the line where a script started to train; 0 if not in the script itself."""
    frames = traceback.extract_tb(None if started is None else started.__traceback__)
    own = [each.lineno or 0 for each in frames if each.filename == getattr(module, "__file__", "")]
    return own[-1] if own else 0


def _list_candidates(module: Any) -> str:
    own = [
        name
        for name, each in vars(module).items()
        if not name.startswith("_")
        and (framework_of(each) or inspect.isfunction(each) or inspect.isclass(each))
        and getattr(each, "__module__", module.__name__) == module.__name__
    ]
    return f" It has: {', '.join(sorted(own)[:12])}." if own else ""


def _check_arguments(found: Any, thing: str, arguments: dict[str, Any]) -> None:
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise EstimateError(
            f"{thing} cannot be called so: {error}. --arg NAME=VALUE gives what it needs."
        ) from None
    except ValueError:
        pass  # the signature is unknown
