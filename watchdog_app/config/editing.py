"""
config.toml changed by a program, with the comments and the order of its owner kept.

Text in, text out; `write` alone touches the disk. Never used by the daemon:
tomlkit is as large as a quarter of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watchdog_app.base.durable import make_folders, write_whole
from watchdog_app.base.errors import ConfigError
from watchdog_app.config import UNREADABLE, read_file
from watchdog_app.config.lines import line_of
from watchdog_app.core.model.settings import RENAMED, RULE_SETTINGS, SETTINGS

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def value_of(key: str, words: Sequence[str]) -> Any:
    """
    What was typed, as a TOML value that this key accepts.

    Args:
        key: such as "stages.warn_s", or the name of a key of a rule.
        words: `5m`, `true`, `["a", "b"]`, or the items of a list one by one.

    Raises:
        ConfigError: there is no such key, or it does not accept that.
    """
    spec = RULE_SETTINGS.get(key) or SETTINGS[known(key)]
    import tomllib

    joined = " ".join(words)
    candidates: list[Any] = []
    try:
        candidates.append(tomllib.loads(f"x = {joined}")["x"])
    except ValueError:
        pass
    candidates += [joined, list(words)] if len(words) == 1 else [list(words), joined]
    for candidate in candidates:
        try:
            spec.values.read(candidate)
        except UNREADABLE:
            continue
        if isinstance(candidate, str) and candidate.lower() in ("true", "false"):
            return candidate.lower() == "true"
        return candidate
    raise ConfigError(f"{key} = {joined!r} is not accepted. It must be {spec.values.accepted}.")


def known(key: str) -> str:
    """
    The key of a setting, unchanged.

    Raises:
        ConfigError: there is no such setting; the message names the one that was meant.
    """
    if key in SETTINGS:
        return key
    from difflib import get_close_matches

    if key in RENAMED:
        raise ConfigError(f"{key} is now called {RENAMED[key]}.")
    same = [one for one in SETTINGS if one.partition(".")[2] == key]
    near = same or get_close_matches(key, list(SETTINGS), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"There is no setting {key!r}.{hint} All settings: watchdog config")


def with_value(text: str, key: str, value: Any) -> str:
    """
    The file with this key set: where it stood before, else at the top of its table.

    Args:
        text: of the file.
        key: such as "stages.warn_s".
        value: from `value_of`.
    """
    import tomlkit

    text = _without_old_names(text, key)
    document = _document(text)
    section, _, name = key.partition(".")
    if section in document:
        table = document[section]
        added = None if name in table else _below_header(text, section, f"{name} = {_toml(value)}")
        table[name] = value
        if added is not None and _same(added, document):
            return _ends_as(text, added)
    else:
        table = tomlkit.table()
        table[name] = value
        if text.strip():
            document.add(tomlkit.nl())
        document[section] = table
    return _ends_as(text, _with_line_end(tomlkit.dumps(document)))


def without(text: str, key: str) -> str:
    """
    The file without this key; a table that holds nothing more, comments neither, goes too.

    Args:
        text: of the file.
        key: such as "stages.warn_s".
    """
    return _without(_without_old_names(text, key), key)


def _without_old_names(text: str, key: str) -> str:
    for old, new in RENAMED.items():
        if new == key:
            text = _without(text, old)
    return text


def _without(text: str, key: str) -> str:
    import tomlkit

    document = _document(text)
    section, _, name = key.partition(".")
    if section not in document or name not in document[section]:
        return text
    del document[section][name]
    if not document[section].as_string().strip():
        del document[section]
    return tomlkit.dumps(document)


def with_rule(text: str, rule: Mapping[str, Any]) -> str:
    """
    The file with one rule more, before all others: the first that matches wins.

    Args:
        text: of the file.
        rule: values by key of `RULE_SETTINGS`.

    Raises:
        ConfigError: the rules of the file are written in a way that takes no further one.
    """
    block = "".join(["[[rule]]\n", *(f"{name} = {_toml(value)}\n" for name, value in rule.items())])
    if "rule" not in _document(text):
        return _ends_as(text, f"{_with_line_end(text)}\n{block}") if text.strip() else block
    line = line_of(text, ("rule", 1))
    if line is None:
        raise ConfigError("The rules of the file are written as rule = [...]: write [[rule]] each.")
    lines = text.splitlines(keepends=True)
    lines.insert(_comment_above(lines, line - 1), f"{block}\n")
    return _ends_as(text, "".join(lines))


def without_rule(text: str, number: int) -> str:
    """
    The file without one rule.

    Args:
        text: of the file.
        number: of the rule, from 1.

    Raises:
        ConfigError: there is no rule of this number, counted from 1.
    """
    import tomlkit

    document = _document(text)
    rules = document.get("rule", [])
    if not 1 <= number <= len(rules):
        raise ConfigError(f"There is no rule {number}; there are {len(rules)}.")
    cut = _without_lines(text, number)
    if len(rules) == 1:
        del document["rule"]
    else:
        del rules[number - 1]
    return cut if _same(cut, document) else tomlkit.dumps(document)


def write(path: str, text: str, before: str | None) -> None:
    """
    Put a text in the place of the file, all or nothing. Links are followed, the mode is kept.

    Args:
        path: the file; its folder is made where there is none.
        text: what is to stand there.
        before: what stood there when it was read, None: nothing did.

    Raises:
        ConfigError: it cannot be written, is read-only or no file, or somebody else has changed it
            meanwhile.
    """
    real = os.path.realpath(path)
    _check_place(path, real)
    try:
        make_folders(os.path.dirname(real), 0o700)
        if read_file(real) != before:
            raise ConfigError(f"{path} was changed by somebody else meanwhile. Try again.")
        mode, owner = 0o600, None
        if before is not None:
            status = os.stat(real)
            mode, owner = status.st_mode & 0o7777, (status.st_uid, status.st_gid)
        write_whole(real, text.encode("utf-8"), mode, owner if hasattr(os, "chown") else None)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def _check_place(path: str, real: str) -> None:
    """Replacing a file needs no right to it: who made it read-only is asked, not overruled."""
    if not os.path.lexists(real):
        return
    if not os.path.isfile(real):
        raise ConfigError(f"{path} is no regular file; nothing was written.")
    if not os.access(real, os.W_OK) or not os.stat(real).st_mode & 0o222:
        raise ConfigError(
            f"{path} is read-only; nothing was written. If another program makes it (dotfiles, "
            "NixOS), change it there; else: chmod u+w"
        )


def _document(text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"The file is not valid TOML: {error}. Mend it: watchdog config edit"
        ) from error


def _below_header(text: str, section: str, line: str) -> str | None:
    """
    The file with a line more right below the header of a table; None where it has no header.

    What stands at the end of a table, comments mostly, may belong to the next one.
    """
    at = line_of(text, (section,))
    lines = text.splitlines(keepends=True)
    if at is None or not lines[at - 1].lstrip().startswith("["):
        return None
    lines[at - 1 : at] = [_with_line_end(lines[at - 1]), f"{line}\n"]
    return "".join(lines)


def _without_lines(text: str, number: int) -> str:
    """The file without the lines of one rule and the comment right above it."""
    lines = text.splitlines(keepends=True)
    header = line_of(text, ("rule", number))
    if header is None:
        return text
    end = header
    while end < len(lines) and not lines[end].lstrip().startswith("["):
        end += 1
    del lines[_comment_above(lines, header - 1) : _comment_above(lines, end)]
    return "".join(lines)


def _comment_above(lines: Sequence[str], at: int) -> int:
    """Where the comment right above a line begins; at the end of the file nothing is above."""
    while 0 < at < len(lines) and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _same(text: str, document: TOMLDocument) -> bool:
    """Whether a text says what was wanted: lines were moved by rules of thumb."""
    import tomllib

    try:
        return tomllib.loads(text) == document.unwrap()
    except ValueError:
        return False


def _ends_as(before: str, after: str) -> str:
    """Line ends as they were: a file of Windows does not become one of both kinds."""
    windows = before.count("\r\n") == before.count("\n") > 0
    return after.replace("\r\n", "\n").replace("\n", "\r\n") if windows else after


def _toml(value: Any) -> str:
    import tomlkit

    return str(tomlkit.item(value).as_string())


def _with_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
