"""Settings as text: a file that explains each, values as TOML, what a running daemon differs in."""

from __future__ import annotations

import json
import sys

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.terminal import plain, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


def template() -> list[str]:
    """The lines of a file that sets nothing and explains everything."""
    from watchdog_app.config import describe
    from watchdog_app.core.model.settings import Settings

    return as_toml(describe(Settings(), {}))


def as_toml(settings: list[Json]) -> list[str]:
    """A configuration file that sets nothing: every key with its default, commented out."""
    lines = ["# watchdog: every setting with its default. Take the # away to change one."]
    section = ""
    for one in settings:
        part, _, name = str(one["key"]).partition(".")
        if not name:
            continue  # a rule: none is there by default
        if part != section:
            lines += ["", f"[{part}]"]
            section = part
        lines.append("")
        lines += wrap(str(one["help"]), 96, first="# ", rest="# ")
        lines += wrap(f"accepted: {one['accepted']}", 96, first="# ", rest="#   ")
        lines.append(f"# {name} = {literal(one['value'])}")
    return [
        *lines,
        "",
        "# Other actions for some tasks or resources; the first rule that matches wins.",
        "# [[rule]]",
        '# task = "*.ipynb"',
        '# resource = "*"',
        "# pause = false",
    ]


def mapped(message: str) -> None:
    """Say on standard error that the file has a key of an earlier version."""
    print(f"watchdog: {plain(message)}. Rename it: watchdog config edit", file=sys.stderr)


def literal(value: Any) -> str:
    """A value as TOML: JSON has the same forms for what a setting can be."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    return json.dumps(value, ensure_ascii=True)


def spoken(key: str, value: Any) -> str:
    """A value as TOML, with what it means where that is a time or a size: `120.0 (2 min)`."""
    text = literal(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return text
    if key.endswith("_bytes"):
        from watchdog_app.base.text.quantities import format_bytes

        return f"{text} ({format_bytes(value)})"
    if key.endswith("_s"):
        from watchdog_app.base.text.quantities import exact_duration

        return f"{text} ({exact_duration(value)})"
    return text


def of_the_daemon() -> list[Json] | None:
    """The settings that a running daemon uses; None when there is none to ask."""
    from watchdog_app.client.client import Client

    try:
        with Client.connect(timeout_s=2.0) as daemon:
            result = daemon.call("config")
    except WatchdogError:
        return None
    settings = result.get("settings") if isinstance(result, dict) else None
    return [one for one in settings or [] if isinstance(one, dict)]


def differences(settings: list[Json], running: list[Json] | None) -> list[str]:
    """What a running daemon does differently, and how to change that."""
    if running is None:
        return []
    here = {str(one["key"]): one["value"] for one in settings}
    there = {str(one.get("key")): one.get("value") for one in running}
    lines = [
        f"  {plain(key)}: {plain(spoken(key, there.get(key)))} instead of "
        f"{plain(spoken(key, here.get(key)))}"
        for key in dict.fromkeys([*here, *there])
        if here.get(key) != there.get(key)
    ]
    if not lines:
        return []
    return ["", "The daemon still uses:", *lines, "Make it read the file again: watchdog reload"]
