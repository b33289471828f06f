"""
Capture and restore the state of Keras callbacks, or name what is lost.

This module touches only fields that are known as state. Callbacks also keep settings that they
change while they run: ReduceLROnPlateau flips the sign of `min_delta` at first use. Restoring all
fields would break them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from watchdog_app.agent.identity import code
from watchdog_app.agent.state import values
from watchdog_app.agent.state.keras_model import is_keras_instance, is_keras_module

_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ReduceLROnPlateau", ("best", "wait", "cooldown_counter")),
    ("EarlyStopping", ("best", "wait", "best_epoch", "stopped_epoch")),
    ("ModelCheckpoint", ("best", "_batches_seen_since_last_saving", "_last_batch_seen")),
    ("BackupAndRestore", ("_batches_seen_since_last_saving", "_last_batch_seen")),
    ("History", ("history", "epoch")),
    ("SwapEMAWeights", ("_ema_weights_in_model",)),
    ("TensorBoard", ("_global_train_batch", "_global_test_batch")),
)
_STATELESS = ("ProgbarLogger", "Rescue", "AutomaticRescue", "_LastCallback")
_PLAIN = (bool, int, float, str, type(None))

Arrays = values.Arrays


def capture(callbacks: Sequence[Any]) -> tuple[list[dict[str, Any]], Arrays, list[str]]:
    """
    Capture the state of the callbacks.

    Returns:
        One JSON object per callback with state (`callback`, `fields`, `state`, `weights`). The
        callbacks' arrays by name, without copies. Texts about state that cannot be captured.
    """
    states: list[dict[str, Any]] = []
    arrays: Arrays = {}
    lost: list[str] = []
    for label, callback in _labelled(callbacks):
        state: dict[str, Any] = {"callback": label}
        held = {name: getattr(callback, name) for name in _known_fields(callback)}
        parts: list[tuple[str, Callable[[], Any]]] = [("fields", held.copy)] if held else []
        if _is_stateful(callback):
            parts.append(("state", callback.state_dict))
        for key, read in parts:
            own: Arrays = {}
            name = f"callback/{label}/{key}"
            # If the state of one callback cannot be captured, only that state is lost.
            try:
                state[key] = values.encode_arrays(read(), name, own, tensors_as_arrays=True)
                arrays.update(own)
            except Exception as error:
                lost.append(f"the memory of {label} ({type(error).__name__}: {error})")
        for kept, weights in _weights(callback).items():
            names = [f"callback/{label}/{kept}/{index}" for index in range(len(weights))]
            arrays.update(zip(names, weights, strict=True))
            state.setdefault("weights", {})[kept] = names
        if len(state) > 1:
            states.append(state)
    return states, arrays, lost


def restore(
    callbacks: Sequence[Any],
    states: Iterable[Mapping[str, Any]],
    read: Callable[[str], np.ndarray[Any, Any]],
) -> list[str]:
    """
    Restore the state of the callbacks.

    Returns:
        The callbacks in the rescue that this program does not have.
    """
    present = dict(_labelled(callbacks))
    absent = []
    for state in states:
        callback = present.get(state["callback"])
        if callback is None:
            absent.append(state["callback"])
            continue
        for name, value in values.decode_arrays(state.get("fields", {}), read).items():
            setattr(callback, name, value)
        if "state" in state and _is_stateful(callback):
            callback.load_state_dict(values.decode_arrays(state["state"], read))
        for kept, names in state.get("weights", {}).items():  # see `_weights`
            setattr(callback, kept, [np.array(read(name)) for name in names])
    return absent


def implements_hook(callback: Any, hook: str) -> bool:
    """Whether a callback implements a hook; False for callbacks that keep no state."""
    if type(callback).__name__ in _STATELESS:
        return False
    # The default `on_train_batch_*` of Keras calls the older name without `train_`.
    names = {hook, hook.replace("_train_", "_")}
    called = [found for name in names if (found := getattr(callback, name, None)) is not None]
    return any(not getattr(each, "_is_default", False) for each in called)


def keep_csv_rows(callbacks: Iterable[Any]) -> None:
    """Let CSVLoggers append to their files at a resume, instead of truncating them."""
    for callback in callbacks:
        if is_keras_instance(callback, "CSVLogger"):
            callback.append = True


def unknown(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """The callbacks whose state neither we nor their `state_dict` save, with their labels."""
    return [(label, each) for label, each in _labelled(callbacks) if not _is_known(each)]


def outside(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """
    What functions of callbacks change outside of them, with labels.

    These are objects of the program's classes, and a namespace of the lists, dicts and sets.
    """
    objects: dict[int, Any] = {}
    containers: dict[str, Any] = {}
    members = [each for one in callbacks for each in _members(one)]
    seen = set[int]()
    while members:
        member = members.pop()
        if id(member) in seen:
            continue
        seen.add(id(member))
        if isinstance(member, MethodType):
            members.append(member.__self__)
        function = code.unwrapped(member)[0] if callable(member) else None
        if function is not None:
            for name, value in _used(function):
                if isinstance(value, list | dict | set):
                    containers[name] = value
                else:
                    members.append(value)
        elif _keeps_state(member):
            objects[id(member)] = member
            members += _members(member)
    found = [
        (f"the {label} that callbacks use", each) for label, each in _labelled([*objects.values()])
    ]
    named = ("a function of callbacks", SimpleNamespace(**containers))
    return [*found, named] if containers else found


def _members(thing: Any) -> Iterator[Any]:
    """What an object and the program's own classes of it hold: functions, among others."""
    for each in (thing, *type(thing).__mro__):
        if each is thing or code.is_own(each):
            yield from [*vars(each).values()]


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The containers, functions and objects outside that a function names."""
    values = code.outer_values(function)
    for each in code.nested_codes(function.__code__):
        for name in (*each.co_names, *each.co_freevars):
            value = values.get(name)
            if isinstance(value, list | dict | set) or callable(value) or _keeps_state(value):
                yield name, value


def _keeps_state(value: Any) -> bool:
    """Whether a value is an object of a class of the program that Keras does not save."""
    kind = type(value)
    is_known = is_keras_instance(value, "Layer") or is_keras_instance(value, "Callback")
    return code.is_own(kind) and hasattr(value, "__dict__") and not is_known


def baseline(holders: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """Plain fields of the results of `unknown` and `outside`, for `changed_since`."""
    return {
        label: {name: _summarise(value) for name, value in vars(each).items()}
        for label, each in holders
    }


def changed_since(
    before: Mapping[str, Mapping[str, Any]],
    holders: Sequence[tuple[str, Any]],
    epoch: int,
    restored: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """
    Texts about fields of `holders` that training changed, which a resume does not restore.

    Fields that hold the number of the epoch do not count, because `on_epoch_begin` sets them again.
    The fields in `restored` do not count either.
    """
    changed = []
    weights = {label: _weights(each) for label, each in holders}
    for label, fields in baseline(holders).items():
        known = before.get(label, {})
        names = [
            name
            for name, value in fields.items()
            if value is not None and known.get(name) != value and value != _summarise(epoch)
            if name not in weights.get(label, ())
            if name not in restored.get(label, {})
        ]
        if names:
            changed.append(
                f"what {label.split('#')[0]} keeps in {', '.join(sorted(names))} "
                "(give it state_dict and load_state_dict)"
            )
    return changed


def _labelled(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Each callback with a name that a new run repeats: its class and a number."""
    counts: dict[str, int] = {}
    labelled = []
    for callback in callbacks:
        name = type(callback).__name__
        count = counts.get(name, 0)
        counts[name] = count + 1
        labelled.append((name if count == 0 else f"{name}#{count + 1}", callback))
    return labelled


def _known_fields(callback: Any) -> tuple[str, ...]:
    for kind, fields in _FIELDS:
        if is_keras_instance(callback, kind):
            return tuple(name for name in fields if hasattr(callback, name))
    return ()


def _weights(callback: Any) -> dict[str, list[Any]]:
    """Copies of a model's weights that a callback keeps, such as `best_weights`, by attribute."""
    return {
        name: value for name, value in vars(callback).items()
        if "weights" in name and isinstance(value, list) and value
        and all(isinstance(each, np.ndarray) for each in value)
    }  # fmt: skip


def _is_stateful(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _is_known(callback: Any) -> bool:
    """Whether we or its `state_dict` save its state; Keras's other callbacks have no state."""
    module = type(callback).__module__
    ours = is_keras_module(module) or module.startswith("watchdog_app.agent")
    return ours or bool(_known_fields(callback)) or _is_stateful(callback)


def _summarise(value: Any) -> Any:
    """A summary of a value that shows a change; None if that would be expensive."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple, dict, set)):
        return f"{type(value).__name__} of {len(value)}"
    return None
