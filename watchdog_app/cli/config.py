"""
Show every setting, its value and its source: the file, the environment or the default. If the
running daemon still uses other values, that is shown. `config set` checks a value before it
writes it, keeps comments and order of the file, and makes a running daemon use it.

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

watchdog config --default says what each setting means.

exit codes: 0 the settings are good, 1 failure,
  2 usage, or the file holds a mistake
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from watchdog_app import config
from watchdog_app.base import paths
from watchdog_app.base.errors import (
    EXIT_OK,
    ConfigError,
    DaemonNotRunning,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.text.quantities import exact_duration, format_bytes
from watchdog_app.base.text.terminal import Table, plain, wrap
from watchdog_app.cli.output import Output, remark
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request
from watchdog_app.config import editing
from watchdog_app.core.model.settings import Settings

Json = dict[str, Any]


_SWITCHES = {
    "notify": "show notifications of it, or not",
    "checkpoint": "ask it to save, or not",
    "pause": "pause it as the last resort, or never",
}
_REJECTED = ".rejected"


def add_arguments(parser: Parser) -> None:
    """Add the options of the command and its verbs."""
    parser.json("print the settings as JSON")
    parser.flag("--default", "print a file with every default, explained")
    parser.color_option()
    verb = parser.subcommands(dest="verb", help="what to do with the settings; absent: show them")
    # A default here would overwrite the same option given before the verb.
    show = verb("show", "show every setting and where it comes from")
    show.json("as JSON", default=argparse.SUPPRESS)
    get = verb("get", "print one setting as it is in force")
    get.positional("KEY", "such as stages.warn_s")
    get.json("as JSON, with its source", default=argparse.SUPPRESS)
    set_ = verb("set", "write one setting into the file")
    set_.positional("KEY", "such as stages.warn_s")
    set_.positional("VALUE", "such as 5m; several make a list", nargs="+")
    unset = verb("unset", "take one setting out of the file: the default holds again")
    unset.positional("KEY", "such as stages.warn_s")
    edit = verb("edit", "open the file in your editor and check it before it is used")
    check = verb("check", "only say whether a file is good")
    check.positional("FILE", "absent: the one in use", nargs="?")
    verb("path", "print where the file is, or would be")
    rules = verb("rule", "other actions for some tasks or resources")
    rule = rules.subcommands(dest="rule_verb", required=True)
    rule("list", "show the rules with their numbers")
    add = rule("add", "add a rule before all others: the first that matches wins")
    add.option("--task PATTERN", "name or path of notebook or script; default: every one")
    add.option("--resource PATTERN", "such as ram or gpu_*; default: every one")
    for name, text in _SWITCHES.items():
        add.add_argument(
            f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text
        )
    add.option(
        "--priority PRIORITY",
        "high: saved before others, paused after them; low: the other way round",
        choices=("high", "normal", "low"),
    )
    remove = rule("remove", "remove a rule")
    remove.positional("N", "its number in the list", type=int)
    for changing in (set_, unset, edit, add, remove):
        changing.flag("--no-reload", "do not tell a running daemon to read it")


def run(args: Args, out: Output) -> int:
    """Show, check, print or change settings."""
    if args.verb not in (None, "show", "get") and (args.json or args.default):
        raise UsageError("Give an option or a verb, not both.")
    if args.json and args.default:
        raise UsageError("Choose one of --json and --default.")
    path = paths.config_file()
    if args.verb == "path":
        out.lines(path)
    elif args.default:
        out.lines(*template())
    elif args.verb == "check":
        out.lines(_check_file(args.file or "", path))
    elif args.verb in (None, "show"):
        _print_settings(path, out)
    elif args.verb == "get":
        _print_setting(args, out)
    elif args.verb == "rule" and args.rule_verb == "list":
        out.lines(*_list_rules())
    elif args.verb == "edit":
        if _edit_file(path, out):
            _reload_daemon(path, args, out)
    else:
        _change_file(path, args, out)
    return EXIT_OK


def _check_file(file: str, path: str) -> str:
    config.load(file or None, required=bool(file))
    what = plain(file or path)
    there = file or os.path.exists(path)
    return f"{what} is good." if there else f"There is no {what}: the defaults are in force."


def _effective_settings() -> list[Json]:
    """Return every setting with its value and source."""
    return config.describe(*config.load(warn=warn_of_old_key))


def _print_settings(path: str, out: Output) -> None:
    settings = _effective_settings()
    running = _read_daemon_settings()
    exists = os.path.exists(path)
    missing = "" if exists else " (does not exist)"
    out.result(
        {"path": path, "exists": exists, "settings": settings, "daemon": running},
        lambda: [
            f"file: {plain(path)}{missing}",
            "",
            *_settings_table(settings, path, out),
            *_compare_with_daemon(settings, running),
        ],
    )


def _settings_table(settings: list[Json], path: str, out: Output) -> list[str]:
    appearance = out.style
    rows = [["SETTING", "VALUE", "FROM"]]
    for setting in settings:
        value = setting["value"]
        if isinstance(value, dict):
            shown = ", ".join(f"{key} = {format_value(item)}" for key, item in value.items())
        else:
            shown = format_value_with_unit(str(setting["key"]), value)
        source = "the file" if setting["source"] == path else plain(setting["source"])
        rows.append([str(setting["key"]), plain(shown), source])
    head, *lines = Table(rows, set(), gives_way=1, gap=2).lines(out.columns, appearance.ellipsis)
    colored = [
        line if row[2] == "default" else appearance.paint(line, "bold")
        for line, row in zip(lines, rows[1:], strict=True)
    ]
    return [appearance.paint(head, "bold"), *colored]


def _print_setting(args: Args, out: Output) -> None:
    key = editing.check_key(args.key)
    found = next(setting for setting in _effective_settings() if setting["key"] == key)
    value = found["value"]
    # In a pipe print the bare value for scripts (a list as in the file). On a terminal add the
    # unit.
    shown = format_value_with_unit(key, value) if sys.stdout.isatty() else format_value(value)
    out.result(found, lambda: [plain(value) if isinstance(value, str) else shown])


def _list_rules() -> list[str]:
    rules = [
        setting for setting in _effective_settings() if str(setting["key"]).startswith("rule ")
    ]
    lines = []
    for number, setting in enumerate(rules, 1):
        parts = [f"{name} = {format_value(value)}" for name, value in setting["value"].items()]
        lines.append(f"{number}  {plain(', '.join(parts))}")
    return lines or ["There are no rules. Add one: watchdog config rule add --help"]


def _change_file(path: str, args: Args, out: Output) -> None:
    """Change the file at `path` as the verb says."""
    before = config.read_file(path)
    text = before or ""
    if args.verb == "set":
        after = editing.set_value(
            text, args.key, editing.parse_value(editing.check_key(args.key), args.value)
        )
        done = f"{args.key} is {_format_effective_value(after, path, args.key)} now"
    elif args.verb == "unset":
        after = editing.remove_value(text, editing.check_key(args.key))
        done = f"{args.key} is {_format_effective_value(after, path, args.key)} again, by default"
    elif args.rule_verb == "add":
        after = editing.add_rule(text, _rule_from_args(args))
        done = "The rule stands before all others now"
    else:
        after = editing.remove_rule(text, args.n)
        done = f"Rule {args.n} is removed"
    config.loads(after, path, {})
    if after == text:
        out.lines(f"Nothing to change in {plain(path)}.")
        return
    editing.write(path, after, before)
    out.lines(f"{plain(done)}, in {plain(path)}.")
    _reload_daemon(path, args, out)


def _rule_from_args(args: Args) -> dict[str, Any]:
    rule: dict[str, Any] = {}
    for name in ("task", "resource", "priority"):
        given = getattr(args, name)
        if given is not None:
            rule[name] = editing.parse_value(name, [given])
    for name in _SWITCHES:
        if getattr(args, name) is not None:
            rule[name] = getattr(args, name)
    if not rule.keys() & {*_SWITCHES, "priority"}:
        raise UsageError(
            "Say what the rule changes: --no-pause, --no-checkpoint, --no-notify or --priority."
        )
    return rule


def _format_effective_value(text: str, path: str, key: str) -> str:
    """
    Return a setting's value as text, read from the text of a configuration file.

    Raises:
        ConfigError: the text contains a mistake.
    """
    return format_value_with_unit(
        key,
        next(
            setting["value"]
            for setting in config.describe(*config.loads(text, path, {}))
            if setting["key"] == key
        ),
    )


def _reload_daemon(path: str, args: Args, out: Output) -> None:
    """Make a running daemon read the file, and print the settings that still differ."""
    if args.no_reload:
        out.lines("A running daemon takes it over with: watchdog reload")
        return
    try:
        request("reload")
    except DaemonNotRunning:
        out.lines("No daemon runs; it holds when one is started: watchdog start")
        return
    except WatchdogError as error:
        out.lines(f"The running daemon has not taken it over: {plain(error)}")
        return
    lines = _compare_with_daemon(config.describe(*config.load(path)), _read_daemon_settings())
    if lines:
        lines[-1] = "It reads another file or has other variables in its environment."
    out.lines(*(lines or ["The running daemon uses it."]))


def template() -> list[str]:
    """Return the lines of a file that sets nothing: every key explained, with its default."""
    lines = ["# watchdog: every setting with its default. Take the # away to change one."]
    section = ""
    for setting in config.describe(Settings(), {}):
        part, _, name = str(setting["key"]).partition(".")
        if not name:
            continue  # skip rules: by default there are none
        if part != section:
            lines += ["", f"[{part}]"]
            section = part
        lines.append("")
        lines += wrap(str(setting["help"]), 96, first="# ", rest="# ")
        lines += wrap(f"accepted: {setting['accepted']}", 96, first="# ", rest="#   ")
        lines.append(f"# {name} = {format_value(setting['value'])}")
    return [
        *lines,
        "",
        "# Other actions for some tasks or resources; the first rule that matches wins.",
        "# [[rule]]",
        '# task = "*.ipynb"',
        '# resource = "*"',
        "# pause = false",
    ]


def warn_of_old_key(message: str) -> None:
    """Warn that the file has a key of an earlier version."""
    remark(f"{message}. Rename it: watchdog config edit")


def format_value(value: Any) -> str:
    """Format a value as TOML. JSON has the same syntax for every value that a setting can have."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    return json.dumps(value, ensure_ascii=True)


def format_value_with_unit(key: str, value: Any) -> str:
    """Format a value as TOML; after a time or a size add a readable form: `120.0 (2 min)`."""
    text = format_value(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return text
    if key.endswith("_bytes"):
        return f"{text} ({format_bytes(value)})"
    if key.endswith("_s"):
        return f"{text} ({exact_duration(value)})"
    return text


def _read_daemon_settings() -> list[Json] | None:
    """Return the settings that a running daemon uses; None if no daemon answers."""
    try:
        result = request("config", wait_s=2.0)
    except WatchdogError:
        return None
    settings = result.get("settings") if isinstance(result, dict) else None
    return [setting for setting in settings or [] if isinstance(setting, dict)]


def _compare_with_daemon(settings: list[Json], running: list[Json] | None) -> list[str]:
    """List the settings that differ in a running daemon, and how to update the daemon."""
    if running is None:
        return []
    here = {str(setting["key"]): setting["value"] for setting in settings}
    there = {str(setting.get("key")): setting.get("value") for setting in running}
    lines = [
        f"  {plain(key)}: {plain(format_value_with_unit(key, there.get(key)))} instead of "
        f"{plain(format_value_with_unit(key, here.get(key)))}"
        for key in dict.fromkeys([*here, *there])
        if here.get(key) != there.get(key)
    ]
    if not lines:
        return []
    return ["", "The daemon still uses:", *lines, "Make it read the file again: watchdog reload"]


def _edit_file(path: str, out: Output) -> bool:
    """
    Let the user edit the file; return whether it changed.

    The editor opens a copy. The copy replaces the file only if it is valid; until then the old
    settings stay in force. If there is no file, the copy is the template of all settings.

    Raises:
        WatchdogError: no editor was found, the editor failed, or the file changed in the meantime.
        ConfigError: the edited text contains mistakes; it is saved next to the file.
    """
    command = _find_editor()
    before = config.read_file(path)
    text = "\n".join([*template(), ""]) if before is None else before
    begun = text
    while True:
        text = _run_editor(command, text)
        if text == begun:
            out.lines("Nothing was changed.")
            return False
        try:
            config.loads(text, path, {})
        except ConfigError as error:
            remark(error, lead="")
            if _ask_to_edit_again():
                continue
            kept = f"{path}{_REJECTED}"
            editing.write(kept, text, config.read_file(kept))
            raise ConfigError(
                f"The settings of before stay in force. What you wrote is in {kept}"
            ) from None
        break
    editing.write(path, text, before)
    out.lines(f"{plain(path)} is changed.")
    return True


def _find_editor() -> list[str]:
    """
    Return the command line of the user's editor.

    Raises:
        WatchdogError: no editor was found, or its variable is not a valid command line.
    """
    for name in ("VISUAL", "EDITOR"):
        given = os.environ.get(name, "").strip()
        if given:
            try:
                return shlex.split(given)
            except ValueError as error:
                raise WatchdogError(f"{name} cannot be read as a command: {error}.") from error
    if shutil.which("nano"):  # not vi: who has not named it may not know how to leave it
        return ["nano"]
    raise WatchdogError("There is no nano here. Name an editor: EDITOR=vi watchdog config edit")


def _run_editor(command: list[str], text: str) -> str:
    """Open a text in the editor; return the text that was saved."""
    with tempfile.TemporaryDirectory(prefix="watchdog-") as folder:
        # the suffix selects the editor's syntax highlighting
        path = os.path.join(folder, "config.toml")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        try:
            status = subprocess.run([*command, path], check=False).returncode
        except OSError as error:
            raise WatchdogError(
                f"{command[0]} could not be started: {error.strerror}. "
                "Name another: EDITOR=nano watchdog config edit"
            ) from error
        if status != 0:
            raise WatchdogError(f"{command[0]} ended with status {status}; nothing was changed.")
        found = config.read_file(path)
    if found is None:
        raise WatchdogError("The editor removed the file; nothing was changed.")
    return found


def _ask_to_edit_again() -> bool:
    """Ask whether to open the editor again; False without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Edit it again? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")
