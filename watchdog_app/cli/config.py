"""`watchdog config`: the settings in force, where each comes from, and how to change them."""

from __future__ import annotations

import os

from watchdog_app.base import paths
from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.terminal import Table, plain, style_of
from watchdog_app.cli.config_text import (
    differences,
    literal,
    mapped,
    of_the_daemon,
    spoken,
    template,
)
from watchdog_app.cli.terminal import columns_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    Json = dict[str, Any]

NAME = "config"
HELP = "show and change settings, and where each comes from"
DESCRIPTION = """\
Show every setting, its value and its source: the file, the environment or the default. If the
running daemon still uses other values, that is shown. `config set` checks a value before it
writes it, keeps comments and order of the file, and makes a running daemon use it."""
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

    settings = describe(*load(warn=mapped))
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


def _table(settings: list[Json], where: str, args: argparse.Namespace) -> list[str]:
    appearance = style_of(args.color)
    rows = [["SETTING", "VALUE", "FROM"]]
    for one in settings:
        value = one["value"]
        if isinstance(value, dict):
            shown = ", ".join(f"{key} = {literal(item)}" for key, item in value.items())
        else:
            shown = spoken(str(one["key"]), value)
        source = "the file" if one["source"] == where else plain(one["source"])
        rows.append([str(one["key"]), plain(shown), source])
    head, *lines = Table(rows, set(), gives_way=1, gap=2).lines(columns_of(), appearance.ellipsis)
    colored = [
        line if row[2] == "default" else appearance.paint(line, "cyan")
        for line, row in zip(lines, rows[1:], strict=True)
    ]
    return [appearance.paint(head, "bold"), *colored]
