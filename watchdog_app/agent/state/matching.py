"""
Whether the tensors of a rescue fit the variables of a program, and which tensor fits which.

Names alone do not tell: Keras numbers them over the life of a process. It also puts into them the
scopes in which a variable was made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from watchdog_app.agent.state.rows import OPTIMIZER, NamedVariable, Row, row_differences
from watchdog_app.base.errors import RescueMismatch
from watchdog_app.rescue.identity.compare import mismatch as does_not_fit

# Keras numbers automatic names over the life of a process ("dense_3"). The same program gets other
# numbers in a notebook in which other cells ran before.
_NUMBER = re.compile(r"_\d+(?=[/_:]|$)")


def differences(saved: Sequence[Row], current: Sequence[NamedVariable]) -> list[str]:
    """Why a rescue does not fit: one phrase per variable, empty if it fits."""
    saved, current = _without_rates(saved, current)
    now = [item.row for item in current]
    if _pairs(saved, now) is not None:
        return []
    return row_differences(
        dict(_rows_by_key(saved, _plain_path)), dict(_rows_by_key(now, _plain_path))
    )


def mismatch(rescue: str, found: Sequence[str]) -> RescueMismatch:
    """The error that names the differences and the remedy."""
    # Slots follow their weights. If a layer became wider, the user changed the layer.
    found = [text for text in found if not text.startswith(f"{OPTIMIZER}/")] or found
    return does_not_fit(rescue, found, may_be_forced=False)


def load(
    saved: Sequence[Row],
    current: Sequence[NamedVariable],
    read: Callable[[str], np.ndarray[Any, Any]],
) -> None:
    """
    Set the variables from a rescue that fits, one at a time.

    Args:
        saved: name, dtype and shape of each tensor in the rescue, in the rescue's order.
        current: the variables to set.
        read: returns the array for a saved name.

    Raises:
        ValueError: the rescue does not fit; `differences` says why.
    """
    saved, current = _without_rates(saved, current)
    pairs = _pairs(saved, [item.row for item in current])
    if pairs is None:
        raise ValueError("the rescue does not fit these variables")
    for item, name in zip(current, pairs, strict=True):
        item.assign(read(name))


def load_matching(
    saved: Sequence[Row],
    current: Sequence[NamedVariable],
    read: Callable[[str], np.ndarray[Any, Any]],
) -> list[str]:
    """Like `load`, but only for variables on both sides; returns the names of the others."""
    if _pairs(saved, [item.row for item in current]) is not None:
        load(saved, current, read)
        return []
    before = dict(_rows_by_key(saved, _plain_path))
    left = []
    for item, (key, row) in zip(
        current, _rows_by_key([each.row for each in current], _plain_path), strict=True
    ):
        if key in before and before[key][1:] == row[1:]:
            item.assign(read(before[key][0]))
        else:
            left.append(item.name)
    return left


def _without_rates(
    saved: Sequence[Row], current: Sequence[NamedVariable]
) -> tuple[Sequence[Row], Sequence[NamedVariable]]:
    """Omit learning rates if one side has a schedule instead of a variable."""
    rates = [row[0] for row in saved if _is_rate(row[0])]
    if len(rates) == sum(_is_rate(item.name) for item in current):
        return saved, current
    return (
        [row for row in saved if row[0] not in rates],
        [item for item in current if not _is_rate(item.name)],
    )


def _is_rate(name: str) -> bool:
    return name.startswith(f"{OPTIMIZER}/") and _plain_path(name).endswith("/learning_rate")


def _pairs(saved: Sequence[Row], now: Sequence[Row]) -> list[str] | None:
    """The saved name for each current variable; None if they do not fit one to one."""
    for key_of in (_plain_path, _last_part, _last_word):
        before, after = _group_rows(saved, key_of), _group_rows(now, key_of)
        if before.keys() != after.keys():
            continue
        belongs: dict[str, str] = {}
        for key, rows in after.items():
            belongs.update(_pair_group(before[key], rows))
        if len(belongs) == len(now) == len(saved):
            return [belongs[name] for name, _dtype, _shape in now]
    return None


def _group_rows(rows: Iterable[Row], key_of: Callable[[str], str]) -> dict[str, list[Row]]:
    """Group rows whose reduced names are equal, in their order."""
    groups: dict[str, list[Row]] = {}
    for name, dtype, shape in rows:
        groups.setdefault(key_of(name), []).append((name, dtype, tuple(shape)))
    return groups


def _pair_group(before: Sequence[Row], after: Sequence[Row]) -> dict[str, str]:
    """Program name -> rescue name; empty if the rows do not fit."""
    # The user's own numbers ("tower_1", "tower_2") say more than the order. The program may build
    # the two in another order.
    if {row[0] for row in before} == {row[0] for row in after}:
        before, after = sorted(before), sorted(after)
    if [row[1:] for row in before] != [row[1:] for row in after]:
        return {}
    return {now[0]: then[0] for now, then in zip(after, before, strict=True)}


def _rows_by_key(rows: Iterable[Row], key_of: Callable[[str], str]) -> Iterator[tuple[Any, Row]]:
    """Each row with a key that is the same in every process: reduced name and ordinal."""
    counts: dict[str, int] = {}
    for name, dtype, shape in rows:
        plain = key_of(name)
        count = counts.get(plain, 0)
        counts[plain] = count + 1
        yield (plain, count), (name, dtype, tuple(shape))


def _plain_path(name: str) -> str:
    """The name without the numbers that Keras adds automatically."""
    return _NUMBER.sub("", name.partition("~")[0])


def _last_part(name: str) -> str:
    """
    Group and last part of the name.

    The parts between are the scopes in which a variable was made. They differ between a layer or
    optimizer that its first step built and one that was built beforehand.
    """
    first, _, last = _plain_path(name).rpartition("/")
    return f"{first.partition('/')[0]}/{last}"


def _last_word(name: str) -> str:
    """
    Group and last word of the name: `optimizer/momentum`.

    The names of slots contain the names of layers, which a user may have renamed.
    """
    group, _, rest = _last_part(name).partition("/")
    return f"{group}/{rest.rpartition('_')[2]}"
