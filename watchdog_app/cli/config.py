"""`watchdog config`: the settings in force, where each comes from, and how to change them."""

from __future__ import annotations

import json
import os

from watchdog_app.base import paths
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.cli.color import look
from watchdog_app.cli.grid import Grid
from watchdog_app.cli.terminal import columns_of
from watchdog_app.cli.text import plain, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    Json = dict[str, Any]

NAME = "config"
HELP = "show and change the settings, and where each comes from"
DESCRIPTION = """\
Show every setting, its value and where it comes from: the file, the environment or the
default. Says so when a running daemon still uses other values. What is set is checked before
it is written, comments and order of the file are kept, and a running daemon takes it over."""
EPILOG = """\
examples:
  watchdog config
  watchdog config get stages.warn_s          on a terminal with its unit, in a pipe bare
  watchdog config set stages.warn_s 5m
  watchdog config set notify.quiet_hours 22:00-07:00
  watchdog config set notify.command -- page-me --phone 123
  watchdog config unset stages.warn_s
  watchdog config rule add --task 'interactive-*.ipynb' --no-pause
  watchdog config edit
  watchdog config check ./other.toml
  watchdog config --default > "$(watchdog config path)"

What each setting means: docs/configuration.md, or watchdog config --default.

exit codes: 0 the settings are good, 1 failure,
  2 usage, or the file holds a mistake"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command, and its verbs."""
    from watchdog_app.cli.config_verbs import add_verbs
    from watchdog_app.cli.parser import add_color

    parser.add_argument("--json", action="store_true", help="print the settings as JSON")
    parser.add_argument("--path", action="store_true", help="print where the file is, or would be")
    parser.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="FILE",
        help="only say whether a file is good; without FILE the one in use",
    )
    parser.add_argument(
        "--default", action="store_true", help="print a file with every default, explained"
    )
    add_color(parser)
    add_verbs(parser)


def run(args: argparse.Namespace) -> int:
    """Show, check, print or change."""
    chosen = sum((args.json, args.path, args.check is not None, args.default))
    if args.verb not in (None, "show", "get") and chosen > 0:
        raise UsageError("Give an option or a verb, not both.")
    if chosen > 1:
        raise UsageError("Choose one of --json, --path, --check and --default.")
    where = paths.config_file()
    if args.path or args.verb == "path":
        print(where)
        return EXIT_OK
    if args.default:
        print("\n".join(template()))
        return EXIT_OK
    if args.check is not None or args.verb == "check":
        return _check((args.file if args.verb == "check" else args.check) or "", where)
    if args.verb in (None, "show"):
        return _show(args, where)
    from watchdog_app.cli import config_verbs

    return config_verbs.carry_out(args, where)


def _check(file: str, where: str) -> int:
    from watchdog_app.config import load

    load(file or None, required=bool(file))
    what = plain(file or where)
    there = file or os.path.exists(where)
    print(f"{what} is good." if there else f"There is no {what}: the defaults are in force.")
    return EXIT_OK


def _show(args: argparse.Namespace, where: str) -> int:
    from watchdog_app.config import describe, load

    settings = describe(*load())
    running = of_the_daemon()
    if args.json:
        from watchdog_app.cli.json_output import dumps

        exists = os.path.exists(where)
        print(dumps({"path": where, "exists": exists, "settings": settings, "daemon": running}))
        return EXIT_OK
    missing = "" if os.path.exists(where) else " (does not exist)"
    print(f"file: {plain(where)}{missing}\n")
    print("\n".join(_table(settings, where, args)))
    for line in differences(settings, running):
        print(line)
    return EXIT_OK


def template() -> list[str]:
    """The lines of a file that sets nothing and explains everything."""
    from watchdog_app.config import describe
    from watchdog_app.core.settings import Settings

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
        "# Other actions for some tasks or ceilings; the first rule that matches wins.",
        "# [[rule]]",
        '# task = "*.ipynb"',
        '# ceiling = "*"',
        "# pause = false",
    ]


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
        # In the largest unit that needs no fraction, as the documentation has them.
        for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
            if value >= unit_s and value % unit_s == 0:
                return f"{text} ({value / unit_s:g} {unit})"
        return f"{text} ({value:g} s)"
    return text


def _table(settings: list[Json], where: str, args: argparse.Namespace) -> list[str]:
    appearance = look(args.color)
    rows = [["SETTING", "VALUE", "FROM"]]
    for one in settings:
        value = one["value"]
        if isinstance(value, dict):
            shown = ", ".join(f"{key} = {literal(item)}" for key, item in value.items())
        else:
            shown = spoken(str(one["key"]), value)
        source = "the file" if one["source"] == where else plain(one["source"])
        rows.append([str(one["key"]), plain(shown), source])
    head, *lines = Grid(rows, set(), gives_way=1, gap=2).lines(columns_of(), appearance.ellipsis)
    colored = [
        line if row[2] == "default" else appearance.paint(line, "cyan")
        for line, row in zip(lines, rows[1:], strict=True)
    ]
    return [appearance.paint(head, "bold"), *colored]


def of_the_daemon() -> list[Json] | None:
    """The settings that a running daemon uses; None when there is none to ask."""
    from watchdog_app.protocol.client import Client

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
