"""
NVIDIA's library through nvidia-ml-py, with its errors in one form. Runs in the child alone.

The binding raises more than its own error: NVMLLibraryMismatchError for an old driver,
UnicodeDecodeError for a name that is no UTF-8; and its own can neither be hashed nor compared
with None. Here each is a `DriverError` with a number of nvml.h.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any


class Code(IntEnum):
    """Errors of nvml.h; a driver may know more of them."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


# The GPU cannot tell, or this driver knows no such question: asking again is of no use.
UNABLE = {
    Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.INVALID_ARGUMENT,
    Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED,
}  # fmt: skip


class DriverError(Exception):
    """A question that the driver did not answer; `code` is a number of nvml.h."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code
        self.said = said


class Driver:
    """The library: every question goes through `ask` or `text`."""

    def __init__(self, binding: Any, trace: Callable[[str], None] | None = None) -> None:
        """
        Args:
            binding: the module pynvml.
            trace: gets the name of each function before it is called.
        """
        self.binding = binding
        self._trace = trace

    def ask(self, name: str, *arguments: Any) -> Any:
        """
        The answer of one function of the binding.

        Raises:
            DriverError: there is none.
        """
        function = getattr(self.binding, name, None)
        if function is None:  # an older nvidia-ml-py
            raise DriverError(Code.FUNCTION_NOT_FOUND, f"nvidia-ml-py has no {name}")
        if self._trace is not None:
            self._trace(name)
        try:
            return function(*arguments)
        except self.binding.NVMLError as error:
            code = getattr(error, "value", Code.UNKNOWN)
            raise DriverError(
                code if isinstance(code, int) else Code.UNKNOWN, _said(error)
            ) from error
        except self.binding.NVMLLibraryMismatchError as error:
            raise DriverError(Code.FUNCTION_NOT_FOUND, _said(error)) from error
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
            raise DriverError(Code.UNKNOWN, f"{name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception as failed:  # the binding asks the library for the words
        return f"{type(error).__name__} ({type(failed).__name__})"
