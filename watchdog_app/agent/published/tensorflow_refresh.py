"""
The state of a training on TensorFlow as it is a step later, at a fraction of the cost.

Variables may get new buffers with each step, so where they lie is asked each time: of memory, and
where that is not understood, of a graph that looks at all of them and puts the small ones together
by element type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from watchdog_app.agent.published import tensorflow_places
from watchdog_app.agent.published.contents import Contents, sampled
from watchdog_app.agent.published.guards import Bytes, Refreshed
from watchdog_app.agent.published.keras_guards import Told
from watchdog_app.agent.published.news import news
from watchdog_app.agent.published.tensorflow_places import Buffers, Moving, Places, address_of
from watchdog_app.airbag import table as tables
from watchdog_app.airbag.foreign_memory import Gathering
from watchdog_app.airbag.table import News


class TensorFlowRefresh:
    """Made once for the variables that there are; `take` is called at boundaries."""

    def __init__(self, told: Told, contents: Contents) -> None:
        """
        Args:
            told: the training.
            contents: as they were published whole.
        """
        self.meta: Mapping[str, Any] = {}  # as it was published whole last
        self._told = told
        self._rows = contents.rows
        held = {item.name: item.holder for item in told.variables()}
        self._holders = held
        small = sorted(
            (row for row in self._rows if row[4] is not None), key=lambda row: row[4] or 0
        )
        known = [row for row in small if row[0] in held]
        runs = [
            list(run)
            for is_known, run in (
                (key[0], run) for key, run in groupby(small, lambda row: (row[0] in held, row[1]))
            )
            if is_known
        ]
        spans = [(int(run[0][4] or 0), sum(row[3] for row in run)) for run in runs]
        self._whole = len(known) == len(small) and all(
            name in held for name, _, _ in contents.large
        )
        self._told_by: _Memory | _Graph
        large = [held[name] for name, _, _ in contents.large if name in held]
        try:
            ours = [(held[row[0]], row[3]) for row in known if row[3]]
            self._told_by = _Memory(ours, large, contents)
        except (tensorflow_places.Unknown, OSError):
            self._told_by = _Graph(
                [[held[row[0]] for row in run] for run in runs], large, contents, spans
            )

    def is_of(self, contents: Contents) -> bool:
        """Whether these are still the variables, and told in the same way."""
        held = {item.name: item.holder for item in self._told.variables()}
        return (
            self._rows == contents.rows
            and held.keys() == self._holders.keys()
            and all(held[name] is one for name, one in self._holders.items())
        )

    def take(self) -> Refreshed | None:
        """What is there now; None where it must be taken whole."""
        changing = self._told.changing() if self._whole else None
        if changing is None:
            return None
        found = list[News]()
        for key, value in changing.items():
            found += news(self.meta[key], value, (key,))
        values, samples, addresses = self._told_by.take()
        return Refreshed(found, values, samples, addresses)


class _Memory:
    """The way that `tensorflow_places` knows: no operation of TensorFlow's."""

    def __init__(
        self, small: Sequence[tuple[Any, int]], large: Sequence[Any], contents: Contents
    ) -> None:
        """
        Args:
            small: those whose bytes are in the table, in the order of these, and how many bytes.
            large: those that it tells the place of, likewise.
            contents: as they were published whole, just now.

        Raises:
            Unknown: TensorFlow says otherwise, or there are others in the table.
            OSError: see `Moving`.
        """
        self._buffers = Buffers(Places([*(each for each, _ in small), *large]))
        self._small = Moving([size for _, size in small])
        self._large = slice(len(small), None)
        offsets = [tables.sample_places(nbytes) for _name, _address, nbytes in contents.large]
        self._which = np.array([at for at, each in enumerate(offsets) for _ in each], np.intp)
        self._offsets = np.array([each for some in offsets for each in some], np.uint64)
        self._samples = Moving([tables.SAMPLE_BYTES] * len(self._which))
        seen = [bytes(contents.values), bytes(contents.samples), contents.addresses]
        if [bytes(each) for each in self.take()] != seen:
            raise tensorflow_places.Unknown

    def take(self) -> tuple[Bytes, Bytes, bytes]:
        """The bytes of the small ones, the noted elements of the large, and where these are."""
        addresses = self._buffers.addresses()
        large = addresses[self._large]
        return (
            self._small.take(addresses[: self._large.start]),
            self._samples.take(large[self._which] + self._offsets),
            large.tobytes(),
        )


class _Graph:
    """By TensorFlow itself, all variables at one call."""

    def __init__(
        self,
        runs: Sequence[Sequence[Any]],
        large: Sequence[Any],
        contents: Contents,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        """
        Args:
            runs: small ones of one element type each, that lie side by side in the table.
            large: those that it tells the place of.
            contents: as they were published whole.
            spans: of each run, place and length among the values.
        """

        def look() -> tuple[list[Any], list[Any]]:
            return (
                [each.read_value() for each in large],
                [tf.concat([_flat(each) for each in run], 0) for run in runs],
            )

        self._values = bytearray(contents.values)
        self._spans = spans
        self._offsets = [tables.sample_places(nbytes) for _name, _address, nbytes in contents.large]
        self._addresses = [address for _name, address, _nbytes in contents.large]
        self._samples = Gathering(sampled(contents.large))
        self._graph = tf.function(look, autograph=False).get_concrete_function()

    def take(self) -> tuple[Bytes, Bytes, bytes]:
        """As `_Memory.take`."""
        # In this thread, one after the other: they are many, and there is little to be done.
        with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            large, small = self._graph()
        for (at, length), each in zip(self._spans, small, strict=True):
            self._values[at : at + length] = _raw(each)
        addresses = [address_of(each) for each in large]
        if addresses != self._addresses:
            self._addresses = addresses
            self._samples.move(
                address + offset
                for address, offsets in zip(addresses, self._offsets, strict=True)
                for offset in offsets
            )
        samples = bytes(self._samples.take())
        # Let go of at once: a step writes into a buffer of its own while one is held.
        del large, small
        return self._values, samples, np.array(addresses, np.uint64).tobytes()


def _flat(variable: Any) -> Any:
    value = variable.read_value()
    return value if value.shape.rank == 1 else tf.reshape(value, [-1])


def _raw(tensor: Any) -> Any:
    return np.ascontiguousarray(tensor._numpy()).reshape(-1).view(np.uint8).data
