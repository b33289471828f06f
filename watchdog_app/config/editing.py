"""
Edits config.toml and keeps the user's comments and order.

All functions but `write` take and return text. The daemon must not import this module: tomlkit
takes a quarter of the daemon's memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watchdog_app.base.durable import make_folders, write_atomic
from watchdog_app.base.errors import ConfigError
from watchdog_app.config import UNREADABLE, line_of, read_file, rejection, suggestion
from watchdog_app.core.model.settings import RENAMED, RULE_SETTINGS, SETTINGS

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def parse_value(key: str, arguments: Sequence[str]) -> Any:
    """
    The TOML value of command line arguments, valid for this key.

    Args:
        key: such as "stages.warn_s", or a key of a rule.
        arguments: `5m`, `true`, `["a", "b"]`, or the items of a list one by one.

    Raises:
        ConfigError: the key does not exist or does not accept the value.
    """
    spec = RULE_SETTINGS.get(key) or SETTINGS[check_key(key)]
    import tomllib

    joined = " ".join(arguments)
    candidates: list[Any] = []
    try:
        candidates.append(tomllib.loads(f"x = {joined}")["x"])
    except ValueError:
        pass
    candidates += [joined, list(arguments)] if len(arguments) == 1 else [list(arguments), joined]
    for candidate in candidates:
        try:
            spec.values.read(candidate)
        except UNREADABLE:
            continue
        if isinstance(candidate, str) and candidate.lower() in ("true", "false"):
            return candidate.lower() == "true"
        return candidate
    raise ConfigError(rejection(key, joined, spec))


def check_key(key: str) -> str:
    """
    The key of a setting, unchanged.

    Raises:
        ConfigError: the setting does not exist; the message suggests a similar key.
    """
    if key in SETTINGS:
        return key
    if key in RENAMED:
        raise ConfigError(f"{key} is now called {RENAMED[key]}.")
    same = [one for one in SETTINGS if one.partition(".")[2] == key]
    hint = f" Did you mean {same[0]}?" if same else suggestion(key, [*SETTINGS])
    raise ConfigError(f"There is no setting {key!r}.{hint} All settings: watchdog config")


def set_value(text: str, key: str, value: Any) -> str:
    """
    The text with this key set, at its present place or at the top of its table.

    Args:
        text: the content of the file.
        key: such as "stages.warn_s".
        value: from `parse_value`.
    """
    import tomlkit

    document = _parse_document(text)
    section, _, name = key.partition(".")
    line = f"{name} = {_to_toml(value)}\n"
    header, lines = line_of(text, (section,)), text.splitlines(keepends=True)
    if section not in document:
        blank = "\n" if text.strip() else ""
        after = f"{_with_line_end(text)}{blank}[{section}]\n{line}"
    elif name not in document[section] and header and lines[header - 1].lstrip().startswith("["):
        # Insert at the top: comments at the end of a table may belong to the next table.
        lines[header - 1 : header] = [_with_line_end(lines[header - 1]), line]
        after = "".join(lines)
    else:
        document[section][name] = value
        after = _with_line_end(tomlkit.dumps(document))
    return after


def remove_value(text: str, key: str) -> str:
    """
    The text without this key. A table left without keys and comments is removed, too.

    Args:
        text: the content of the file.
        key: such as "stages.warn_s".
    """
    import tomlkit

    document = _parse_document(text)
    section, _, name = key.partition(".")
    if section not in document or name not in document[section]:
        return text
    del document[section][name]
    if not document[section].as_string().strip():
        del document[section]
    return tomlkit.dumps(document)


def add_rule(text: str, rule: Mapping[str, Any]) -> str:
    """
    The text with one more rule. It comes before all others, as the first rule that matches wins.

    Args:
        text: the content of the file.
        rule: values by key of `RULE_SETTINGS`.

    Raises:
        ConfigError: the file writes its rules as `rule = [...]`, to which none can be added.
    """
    block = "".join(
        ["[[rule]]\n", *(f"{name} = {_to_toml(value)}\n" for name, value in rule.items())]
    )
    if "rule" not in _parse_document(text):
        return f"{_with_line_end(text)}\n{block}" if text.strip() else block
    line, lines = _rule_line(text, 1), text.splitlines(keepends=True)
    lines.insert(_comment_start(lines, line - 1), f"{block}\n")
    return "".join(lines)


def remove_rule(text: str, number: int) -> str:
    """
    The text without one rule and without the comment directly above it.

    Args:
        text: the content of the file.
        number: the rule, counted from 1.

    Raises:
        ConfigError: the rule does not exist, or the file writes its rules as `rule = [...]`.
    """
    count = len(_parse_document(text).get("rule", []))
    if not 1 <= number <= count:
        raise ConfigError(f"There is no rule {number}; there are {count}.")
    header, lines = _rule_line(text, number), text.splitlines(keepends=True)
    end = header
    while end < len(lines) and not lines[end].lstrip().startswith("["):
        end += 1
    del lines[_comment_start(lines, header - 1) : _comment_start(lines, end)]
    return "".join(lines)


def _rule_line(text: str, number: int) -> int:
    line = line_of(text, ("rule", number))
    if line is None or not text.splitlines()[line - 1].lstrip().startswith("[["):
        raise ConfigError("The rules of the file are written as rule = [...]: write [[rule]] each.")
    return line


def write(path: str, text: str, before: str | None) -> None:
    """
    Replace the content of the file, all or nothing. Follows links and keeps the mode.

    Args:
        path: the file; its folder is created if missing.
        text: the new content.
        before: the content that the caller read; None: the file did not exist.

    Raises:
        ConfigError: the file is not writable, not a regular file, or was changed by somebody else
            since the caller read it.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real):
        if not os.path.isfile(real):
            raise ConfigError(f"{path} is no regular file; nothing was written.")
        # Renaming over a read-only file would succeed without permission to write it.
        if not os.access(real, os.W_OK) or not os.stat(real).st_mode & 0o222:
            raise ConfigError(
                f"{path} is read-only; nothing was written. If another program makes it "
                "(dotfiles, NixOS), change it there; else: chmod u+w"
            )
    try:
        make_folders(os.path.dirname(real), 0o700)
        if read_file(real) != before:
            raise ConfigError(f"{path} was changed by somebody else meanwhile. Try again.")
        mode, owner = 0o600, None
        if before is not None:
            status = os.stat(real)
            mode, owner = status.st_mode & 0o7777, (status.st_uid, status.st_gid)
        write_atomic(real, text.encode("utf-8"), mode, owner if hasattr(os, "chown") else None)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def _parse_document(text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"The file is not valid TOML: {error}. Mend it: watchdog config edit"
        ) from error


def _comment_start(lines: Sequence[str], at: int) -> int:
    """The index of the first line of the comment directly above a line."""
    while 0 < at < len(lines) and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _to_toml(value: Any) -> str:
    import tomlkit

    return str(tomlkit.item(value).as_string())


def _with_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
