"""What `watchdog config` does besides showing: get, set, unset, edit and rules."""

from __future__ import annotations

import sys

from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

_SWITCHES = ("notify", "checkpoint", "pause")


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """The verbs, each with options of its own."""
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", help="what to do with the settings; absent: show them"
    )

    def verb(name: str, help_: str) -> argparse.ArgumentParser:
        return _child(verbs, name, help_)

    import argparse

    show = verb("show", "show every setting and where it comes from")
    # A default here would undo what was said before the verb.
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON")
    get = verb("get", "print one setting as it is in force")
    get.add_argument("key", metavar="KEY", help="such as stages.warn_s")
    get.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="as JSON, with its source"
    )
    set_ = verb("set", "write one setting into the file")
    set_.add_argument("key", metavar="KEY", help="such as stages.warn_s")
    set_.add_argument("value", nargs="+", metavar="VALUE", help="such as 5m; several make a list")
    unset = verb("unset", "take one setting out of the file: the default holds again")
    unset.add_argument("key", metavar="KEY", help="such as stages.warn_s")
    edit = verb("edit", "open the file in your editor and check it before it is used")
    check = verb("check", "only say whether a file is good")
    check.add_argument("file", nargs="?", metavar="FILE", help="absent: the one in use")
    verb("path", "print where the file is, or would be")
    rule = verb("rule", "other actions for some tasks or resources")
    changing = [set_, unset, edit, *_add_rule_verbs(rule)]
    for each in changing:
        each.add_argument(
            "--no-reload", action="store_true", help="do not tell a running daemon to read it"
        )


def _add_rule_verbs(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    import argparse

    verbs = parser.add_subparsers(dest="rule_verb", metavar="VERB", required=True)
    _child(verbs, "list", "show the rules with their numbers")
    add = _child(verbs, "add", "add a rule before all others: the first that matches wins")
    add.add_argument(
        "--task", metavar="PATTERN", help="name or path of notebook or script; default: every one"
    )
    add.add_argument(
        "--resource", metavar="PATTERN", help="such as ram or gpu_*; default: every one"
    )
    for name, help_ in (
        ("notify", "show notifications of it, or not"),
        ("checkpoint", "ask it to save, or not"),
        ("pause", "pause it as the last resort, or never"),
    ):
        add.add_argument(
            f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=help_
        )
    add.add_argument(
        "--priority",
        choices=("high", "normal", "low"),
        metavar="PRIORITY",
        help="high: saved before others, paused after them; low: the other way round",
    )
    remove = _child(verbs, "remove", "remove a rule")
    remove.add_argument("number", type=int, metavar="N", help="its number in the list")
    return [add, remove]


def _child(verbs: Any, name: str, help_: str) -> argparse.ArgumentParser:
    from watchdog_app.cli.parser import Formatter

    child: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help_,
        description=f"{help_[:1].upper()}{help_[1:]}.",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    setattr(child, "color", False)  # noqa: B010 - no attribute before Python 3.14
    return child


def carry_out(args: argparse.Namespace, where: str) -> int:
    """Do what the verb says with the file at `where`."""
    if args.verb == "get":
        return _get(args)
    if args.verb == "edit":
        from watchdog_app.cli.config_editor import edit

        if edit(where):
            _tell(where, args)
        return EXIT_OK
    if args.verb == "rule" and args.rule_verb == "list":
        return _list_rules()
    from watchdog_app.config import editing, loads, read_file

    before = read_file(where)
    text = before or ""
    if args.verb == "set":
        after = editing.with_value(
            text, args.key, editing.value_of(editing.known(args.key), args.value)
        )
        done = f"{args.key} is {_shown(after, where, args.key)} now"
    elif args.verb == "unset":
        after = editing.without(text, editing.known(args.key))
        done = f"{args.key} is {_shown(after, where, args.key)} again, by default"
    elif args.rule_verb == "add":
        after = editing.with_rule(text, _rule(args))
        done = "The rule stands before all others now"
    else:
        after = editing.without_rule(text, args.number)
        done = f"Rule {args.number} is removed"
    loads(after, where, {})
    if after == text:
        print(f"Nothing to change in {plain(where)}.")
        return EXIT_OK
    editing.write(where, after, before)
    print(f"{plain(done)}, in {plain(where)}.")
    if args.verb == "set" and args.key == "notify.command":
        _warn_of_missing_program(after, where)
    _tell(where, args)
    return EXIT_OK


def _shown(text: str, where: str, key: str) -> str:
    """The value of a key by a file's text; raises ConfigError where that holds a mistake."""
    from watchdog_app.cli.config_text import spoken
    from watchdog_app.config import describe, loads

    return spoken(
        key, next(one["value"] for one in describe(*loads(text, where, {})) if one["key"] == key)
    )


def _warn_of_missing_program(text: str, where: str) -> None:
    """Warn of a notify command that is missing: it is set all the same."""
    import shutil

    from watchdog_app.config import loads

    command = loads(text, where, {})[0].notify.command
    if command and shutil.which(command[0]) is None:
        print(
            f"watchdog: there is no program {plain(command[0])} that could be run: no notification "
            "reaches you by it until there is. The daemon searches it in the PATH that it was "
            "started with; a full path is surest.",
            file=sys.stderr,
        )


def _get(args: argparse.Namespace) -> int:
    from watchdog_app.cli.config_text import literal, mapped, spoken
    from watchdog_app.config import describe, editing, load

    key = editing.known(args.key)
    found = next(one for one in describe(*load(warn=mapped)) if one["key"] == key)
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(found))
    else:
        value = found["value"]
        # Bare, for scripts; a list as it stands in the file. A person is told the unit, too.
        shown = spoken(key, value) if sys.stdout.isatty() else literal(value)
        print(plain(value) if isinstance(value, str) else shown)
    return EXIT_OK


def _rule(args: argparse.Namespace) -> dict[str, Any]:
    from watchdog_app.config import editing

    rule: dict[str, Any] = {}
    for name in ("task", "resource", "priority"):
        given = getattr(args, name)
        if given is not None:
            rule[name] = editing.value_of(name, [given])
    for name in _SWITCHES:
        if getattr(args, name) is not None:
            rule[name] = getattr(args, name)
    if not rule.keys() & {*_SWITCHES, "priority"}:
        raise UsageError(
            "Say what the rule changes: --no-pause, --no-checkpoint, --no-notify or --priority."
        )
    return rule


def _list_rules() -> int:
    from watchdog_app.cli.config_text import literal, mapped
    from watchdog_app.config import describe, load

    rules = [one for one in describe(*load(warn=mapped)) if str(one["key"]).startswith("rule ")]
    for number, one in enumerate(rules, 1):
        parts = [f"{name} = {literal(value)}" for name, value in one["value"].items()]
        print(f"{number}  {plain(', '.join(parts))}")
    if not rules:
        print("There are no rules. Add one: watchdog config rule add --help")
    return EXIT_OK


def _tell(where: str, args: argparse.Namespace) -> None:
    """Make a running daemon read the file, and say what it still does otherwise."""
    from watchdog_app.base.errors import DaemonNotRunning
    from watchdog_app.cli.config_text import differences, of_the_daemon
    from watchdog_app.client.client import Client
    from watchdog_app.config import describe, load

    if args.no_reload:
        print("A running daemon takes it over with: watchdog reload")
        return
    try:
        with Client.connect(timeout_s=5.0) as daemon:
            daemon.call("reload")
    except DaemonNotRunning:
        print("No daemon runs; it holds when one is started: watchdog start")
        return
    except WatchdogError as error:
        print(f"The running daemon has not taken it over: {plain(error)}")
        return
    lines = differences(describe(*load(where)), of_the_daemon())
    if lines:
        lines[-1] = "It reads another file or has other variables in its environment."
    for line in lines or ["The running daemon uses it."]:
        print(line)
