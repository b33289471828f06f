"""
The output of a command: results on standard output, remarks and progress on standard error.

A result is text for the user or JSON for a program. Width and colours depend on the terminal.
NO_COLOR and FORCE_COLOR work as on no-color.org and force-color.org.
"""

from __future__ import annotations

import os
import sys
import time

from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.base.text.terminal import Style, plain_block, shorten, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Literal, Self, TextIO

    When = Literal["auto", "always", "never"]

_JSON_VERSION = 1  # of every command; the status has its own
_TICK_S = 0.25
_FALLBACK_COLUMNS = 80


class Output:
    """
    The output of one command.

    Args:
        args: the parsed options; `json` and `color` are used if the command has them.
    """

    def __init__(self, args: object = None) -> None:
        self.is_json = getattr(args, "json", False) is True
        self._when: When = getattr(args, "color", "auto")

    @property
    def columns(self) -> int | None:
        """Width of the output in columns; None: a pipe or a file, where nothing is wrapped."""
        return terminal_columns()

    @property
    def style(self) -> Style:
        """Colours and symbols of standard output."""
        return make_style(self._when)

    def lines(self, *lines: str) -> None:
        """Print lines of text and flush."""
        if lines:
            print("\n".join(lines), flush=True)

    def json(self, value: Any, *, indent: int | None = 2) -> None:
        """Print a value as JSON and flush; an object says the version of its schema."""
        if isinstance(value, dict):
            value = {"schema_version": _JSON_VERSION, **value}
        print(dumps(value, indent=indent), flush=True)

    def result(self, value: Any, lines: Callable[[], Iterable[str]]) -> None:
        """
        Print the value as JSON with --json, else the lines.

        Args:
            value: the result as JSON types.
            lines: function that returns the lines of text; called only if they are printed.
        """
        if self.is_json:
            self.json(value)
        else:
            self.lines(*lines())

    def progress(self, text: str = "") -> Progress:
        """
        Show a progress line that names what the command waits for; none with --json or a pipe.
        """
        return Progress(text, wanted=not self.is_json)


def make_style(
    when: When = "auto", stream: TextIO | None = None, env: Mapping[str, str] = os.environ
) -> Style:
    """
    The style for a stream.

    Args:
        when: value of the --color option.
        stream: the stream; None: standard output.
        env: environment with NO_COLOR, FORCE_COLOR and TERM.
    """
    stream = sys.stdout if stream is None else stream
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-")
    return Style(color=_wants_color(when, stream, env), unicode=encoding.startswith("utf"))


def _wants_color(when: When, stream: TextIO | None, env: Mapping[str, str]) -> bool:
    if when != "auto":
        return when == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream is not None and stream.isatty() and env.get("TERM", "") not in ("dumb", "")


class Progress:
    """
    A line on the terminal's standard error: what the command waits for, and for how long so far.

    Args:
        text: what the command waits for; empty: show nothing until `update`.
        wanted: False: show nothing.
    """

    def __init__(self, text: str = "", *, wanted: bool = True) -> None:
        self._text = text
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = wanted and terminal and os.environ.get("TERM", "") != "dumb"
        self._drawn = False

    def update(self, text: str) -> None:
        """Replace the text; safe to call from any thread."""
        self._text = text

    def __enter__(self) -> Self:
        if self._shown:
            import threading

            self._end = threading.Event()
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._end.set()
            self._thread.join()
        if self._drawn:
            self._write("")

    def _draw(self) -> None:
        begin_mono_s = time.monotonic()
        while not self._end.wait(_TICK_S):
            if self._text:
                seconds = time.monotonic() - begin_mono_s
                room = (terminal_columns(sys.stderr) or _FALLBACK_COLUMNS) - 1
                self._write(shorten(f"{plain_block(self._text)} ... {seconds:.0f} s", room))

    def _write(self, line: str) -> None:
        self._drawn = True
        try:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        except OSError:
            pass  # the terminal was closed


def remark(text: object, lead: str = "watchdog: ") -> None:
    """Print a line on standard error; control characters in the text are escaped."""
    try:
        print(f"{lead}{plain_block(text)}", file=sys.stderr, flush=True)
    except OSError:
        pass  # standard error was closed


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """
    Return valid JSON in ASCII; one line if `indent` is None.

    Strict JSON parsers refuse infinite numbers and lone surrogates (from file names that are not
    UTF-8). Infinite numbers become null; surrogates become the replacement character.
    """
    import json

    separators = (",", ":") if indent is None else None
    return json.dumps(_replace_invalid(value), indent=indent, separators=separators)


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Return the width: COLUMNS, else the terminal's width, else None (a pipe or a file)."""
    columns_text = os.environ.get("COLUMNS", "")
    if columns_text.isascii() and columns_text.isdigit() and int(columns_text) > 0:
        return max(20, int(columns_text))
    size = _terminal_size(sys.stdout if stream is None else stream)
    return max(20, size[0]) if size and size[0] else None


def terminal_rows() -> int:
    """Return the number of lines of the terminal; 24 if unknown."""
    size = _terminal_size(sys.stdout)
    return size[1] if size and size[1] else 24


def _terminal_size(stream: TextIO | None) -> tuple[int, int] | None:
    """Return columns and lines of the terminal. Importing shutil for this would cost time."""
    try:
        if stream is None or not stream.isatty():
            return None
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return None
    return size.columns, size.lines


def _replace_invalid(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if isinstance(value, dict):
        return {_replace_invalid(key): _replace_invalid(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_invalid(item) for item in value]
    return value


def with_timestamp(status: dict[str, Any], now_unix_s: float) -> dict[str, Any]:
    """Add the time of the status as text (RFC 3339, UTC)."""
    at = status.get("time_unix_s")
    # Use milliseconds, because a watch interval can be below a second. Round before splitting:
    # 59.9996 s would otherwise be printed as 60.000.
    millis = round((at if isinstance(at, int | float) else now_unix_s) * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(millis // 1000))
    return {**status, "time": f"{whole}.{millis % 1000:03d}Z"}


def format_timestamp(unix_s: object) -> str:
    """Format local date and time, to the second."""
    known = number_or_none(unix_s)
    if known is None:
        return "unknown time       "
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known))


def shorten_path(path: str) -> str:
    """Return the path relative to the current folder if it is inside, else unchanged."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def type_program(path: str) -> str:
    """
    Return how a program is typed in this shell: its name if PATH leads to it, else its path.

    Args:
        path: of the program; `watchdog`: of the one that runs.
    """
    import shutil

    from watchdog_app.core.explain.saving import typed_path

    name = os.path.basename(path)
    found = shutil.which(name)
    if path == "watchdog":
        path = os.path.abspath(sys.argv[0])
        if os.path.basename(path) != name or (found and os.path.samefile(found, path)):
            return name
    # An environment's python is a link: the folder says which environment it is.
    elif found and os.path.realpath(os.path.dirname(found)) == os.path.realpath(
        os.path.dirname(path)
    ):
        return name
    return typed_path(path)


def wrap_lines(text: str, columns: int | None) -> list[str]:
    """Wrap each line of a text at its own indent; `columns` None: no wrapping."""
    lines = []
    for line in plain_block(text).rstrip().split("\n"):
        blanks = " " * (len(line) - len(line.lstrip()))
        rest = f"{blanks}    " if line.lstrip().startswith("[") else None
        lines += [part.rstrip() for part in wrap(line, columns, first=blanks, rest=rest)]
    return lines
