"""
Python's and NumPy's global random numbers as they lie in memory, at a hundredth of the cost.

`randomness.take` makes thousands of Python's numbers of them. Between two steps they are mostly
what they were, which two comparisons of bytes tell; and where they are not, the bytes say all.

Source: `RandomObject` in CPython's Modules/_randommodule.c (an index, then 624 words);
`BitGenerator.ctypes.state_address` of NumPy (624 words, then a position); `aug_bitgen_t` in NumPy's
legacy-distributions.h, which is looked for. Each is compared with what its library says.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

_WORDS = 624
_BYTES = 4 * (_WORDS + 1)
_FEW, _ONE = struct.Struct("<7I"), struct.Struct("<I")
_HEAD = 16  # of an object: count of references, type
_GAUSS = struct.Struct("<QiId")  # bit generator, whether there is one, nothing, the number


class Unknown(Exception):
    """They lie in another way here."""


class RawRandom:
    """The two generators, where they were when this was made."""

    def __init__(self) -> None:
        """
        Raises:
            Unknown: one of them does not lie as expected, or is another kind.
        """
        self._own: Any = getattr(random.getstate, "__self__", None)
        if type(self._own) is not random.Random or _Random.__basicsize__ < _HEAD + _BYTES:
            raise Unknown
        numpy = sys.modules.get("numpy")
        legacy = getattr(getattr(numpy, "random", None), "get_state", None)
        self._legacy: Any = getattr(legacy, "__self__", None)
        bits = getattr(self._legacy, "_bit_generator", None)
        if bits is None or type(bits).__name__ != "MT19937":
            raise Unknown
        self._keep = bits
        self._view = _view(int(bits.ctypes.state_address), _BYTES)
        self._own_view = _view(id(self._own) + _HEAD, _BYTES)
        self._gauss = _view(self._find_gauss(), _GAUSS.size)
        self._check()

    def words(self) -> bytes:
        """Those of Python's, with their index last, and those of NumPy's, with their position."""
        own = bytes(self._own_view)
        return own[4:] + own[:4] + bytes(self._view)

    def sketch(self) -> tuple[int, ...]:
        """
        A few words that are others whenever a number was drawn or a state was set.

        A draw counts an index on, or makes new words; whoever sets a state sets other words.
        """
        return (
            *_FEW.unpack_from(self._own_view),
            *_FEW.unpack_from(self._view),
            *_ONE.unpack_from(self._view, 4 * _WORDS),
        )

    def spare(self) -> tuple[float | None, int, float]:
        """The normal number that Python has in store; whether NumPy has one, and which."""
        _, there, _, number = _GAUSS.unpack_from(self._gauss)
        return self._own.gauss_next, there, number

    def _find_gauss(self) -> int:
        """NumPy keeps it in the object, behind the address of a part of the same object."""
        first = id(self._legacy)
        end = first + type(self._legacy).__basicsize__
        for at in range(first + _HEAD, end - _GAUSS.size + 1, 8):
            inside, there, _, _ = _GAUSS.unpack(ctypes.string_at(at, _GAUSS.size))
            if first < inside < end and there in (0, 1):
                return at
        raise Unknown

    def _check(self) -> None:
        words = struct.unpack(f"<{2 * (_WORDS + 1)}I", self.words())
        _, python, gauss = random.getstate()
        _, keys, position, there, number = self._legacy.get_state()
        said = (*python, *keys.tolist(), position)
        spare = self.spare()
        if words != said or spare[:2] != (gauss, there) or (there and spare[2] != number):
            raise Unknown


def sketch(generator: random.Random) -> tuple[int, ...]:
    """As `RawRandom.sketch`, of one generator of Python's, where a `RawRandom` could be made."""
    return _FEW.unpack(ctypes.string_at(id(generator) + _HEAD, _FEW.size))


def tensorflow_draws() -> Any:
    """
    What changes when TensorFlow draws a seed for an operation that names none.

    None where it is not loaded, or draws none. As `sketch`.
    """
    module = sys.modules.get("tensorflow.python.eager.context")
    context = None if module is None else module.context()
    drawn = getattr(context, "_rng", None)
    return None if drawn is None else (getattr(context, "_seed", None), sketch(drawn))


def _view(address: int, size: int) -> memoryview:
    """Of memory that stays for as long as its owner is held."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


_Random: Any = random.Random.__mro__[1]  # of C
