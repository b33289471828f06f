"""Completion scripts for bash, zsh and fish, made from the parsers of the commands themselves."""

from __future__ import annotations

import argparse

from watchdog_app.base.errors import WatchdogError
from watchdog_app.cli.dispatch import COMMANDS, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What a value is, told by the word that stands for it in the help.
_FILES = ("FILE", "DIR", "TRACE", "OUT", "PATH", "CSV")
_TASKS = ("TASK", "PID")
_HEAD = "# Completion of watchdog for {name}; made by: watchdog completion {name}\n"


class Word:
    """One option, or the words that stand without one."""

    def __init__(self, action: argparse.Action, verbs: Sequence[str] = ()) -> None:
        self.names = tuple(action.option_strings)
        self.takes_value = action.nargs != 0
        self.value_optional = action.nargs == "?"
        self.choices: Sequence[str] = [str(one) for one in action.choices or ()]
        self.verbs = tuple(verbs)  # that may stand in the first place instead
        meta = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        self.value = meta
        self.help = (action.help or "").replace("%(default)s", str(action.default))

    @property
    def source(self) -> str:
        """Where its values come from: "choices", "tasks", "files" or "" for nowhere."""
        if self.choices:
            return "choices"
        if any(one in self.value for one in _TASKS):
            return "tasks"
        return "files" if self.value in _FILES else ""


def words_of(command: str) -> tuple[list[Word], list[Word]]:
    """The options and the positional words of a command."""
    try:
        module, parser = parser_of(command)
    except WatchdogError:
        return [], []  # a command that this installation lacks
    verbs = getattr(module, "VERBS", ())
    actions = [
        Word(one, () if one.option_strings else verbs)
        for one in parser._actions
        if one.help != argparse.SUPPRESS
    ]
    return [one for one in actions if one.names], [one for one in actions if not one.names]


def script(shell: str) -> str:
    """The completion script of "bash", "zsh" or "fish"."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _bash() -> str:
    cases, values = [], []
    for command in COMMANDS:
        options, positional = words_of(command)
        names = " ".join(name for word in options for name in word.names)
        source = _bash_source(positional[0]) if positional else ""
        cases.append(f'    {command}) options="{names}"; rest="{source}" ;;')
        for word in options:
            if word.takes_value:
                key = "|".join(f"{command}:{name}" for name in word.names)
                values.append(f'    {key}) rest="{_bash_source(word)}"; value=1 ;;')
    return (
        _HEAD.format(name="bash")
        + f"""\
_watchdog() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command=${{COMP_WORDS[1]}} options="" rest="" value=""
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "{" ".join(COMMANDS)} help --help --version" -- "$current")
    return
  fi
  case $command in
    help) rest="{" ".join(COMMANDS)}" ;;
"""
        + "\n".join(cases)
        + """
  esac
  case $command:$previous in
"""
        + "\n".join(values)
        + """
  esac
  if [[ -z $value && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ $rest == @tasks ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(watchdog completion tasks 2>/dev/null)" -- "$current")
  elif [[ $rest == @files* ]]; then
    mapfile -t COMPREPLY < <(
      ((COMP_CWORD == 2)) && compgen -W "${rest#@files}" -- "$current"
      compgen -f -- "$current"
    )
    compopt -o filenames 2>/dev/null
  elif [[ -n $rest ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$rest" -- "$current")
  fi
}
complete -F _watchdog watchdog
"""
    )


def _bash_source(word: Word) -> str:
    files = " ".join(("@files", *word.verbs))
    return {"choices": " ".join(_visible(word)), "tasks": "@tasks", "files": files}.get(
        word.source, ""
    )


def _zsh() -> str:
    lines = ["#compdef watchdog", _HEAD.format(name="zsh").rstrip(), ""]
    lines += [
        "_watchdog_tasks() {",
        "  local -a tasks",
        '  tasks=(${(f)"$(watchdog completion tasks 2>/dev/null)"})',
        "  compadd -a -- tasks",
        "}",
        "",
        "_watchdog() {",
        "  local -a commands",
        "  commands=(",
    ]
    lines += [f"    {_quoted(f'{name}:{help_}')}" for name, help_ in COMMANDS.items()]
    lines += [
        "    'help:show the help of a command'",
        "  )",
        "  if ((CURRENT == 2)); then",
        "    _describe command commands",
        "    _values option --help --version",
        "    return",
        "  fi",
        "  local command=$words[2]",
        "  shift words",
        "  ((CURRENT--))",
        "  case $command in",
    ]
    for command in COMMANDS:
        options, positional = words_of(command)
        specs = [_zsh_option(word) for word in options]
        specs += [_zsh_verbs(word) for word in positional[:1] if word.verbs]
        specs += [f"'*:{_zsh_text(word.value)}:{_zsh_source(word)}'" for word in positional[:1]]
        body = " \\\n        ".join(specs)
        lines.append(f"    {command})\n      _arguments -s \\\n        {body} ;;")
    lines += ["    help) _describe command commands ;;", "  esac", "}", "", '_watchdog "$@"']
    return "\n".join(lines) + "\n"


def _zsh_option(word: Word) -> str:
    text = f"[{_zsh_text(word.help)}]"
    value = ""
    if word.takes_value:
        mark = "::" if word.value_optional else ":"
        value = f"{mark}{_zsh_text(word.value)}:{_zsh_source(word)}"
    tail = _quoted(text + value)
    if len(word.names) == 1:
        return word.names[0] + tail
    return f"'({' '.join(word.names)})'{{{','.join(word.names)}}}{tail}"


def _zsh_verbs(word: Word) -> str:
    """The first word is a verb, or already one of those that may follow it."""
    verbs = f'"verbs:verb:({" ".join(word.verbs)})"'
    what = _zsh_text(word.value)
    return f"'1:{what}: _alternative {verbs} \"words:{what}:{_zsh_source(word)}\"'"


def _zsh_source(word: Word) -> str:
    return {
        "choices": f"({' '.join(_visible(word))})",
        "tasks": "_watchdog_tasks",
        "files": "_files",
    }.get(word.source, "")


def _zsh_text(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace(":", " -").replace("'", "")


def _fish() -> str:
    names = " ".join(COMMANDS)
    lines = [
        _HEAD.format(name="fish").rstrip(),
        "complete -c watchdog -f",
        "complete -c watchdog -n __fish_use_subcommand -l help -d 'show the help'",
        "complete -c watchdog -n __fish_use_subcommand -l version -d 'show the version'",
        "complete -c watchdog -n __fish_use_subcommand -a help -d 'show the help of a command'",
        f"complete -c watchdog -n '__fish_seen_subcommand_from help' -a '{names}'",
    ]
    for command, help_ in COMMANDS.items():
        start = f"complete -c watchdog -n '__fish_seen_subcommand_from {command}'"
        lines.append(
            f"complete -c watchdog -n __fish_use_subcommand -a {command} -d {_quoted(help_)}"
        )
        options, positional = words_of(command)
        for word in options:
            flags = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in word.names
            )
            value = _fish_source(word) if word.takes_value else ""
            wants = ""
            if word.takes_value:
                wants = " -r" if word.source == "files" else " -x"
            lines.append(f"{start} {flags}{wants}{value} -d {_quoted(word.help)}")
        for word in positional[:1]:
            if word.source:
                lines.append(f"{start}{_fish_source(word)}")
            if word.verbs:
                verbs = " ".join(word.verbs)
                first = f"{start[:-1]}; and not __fish_seen_subcommand_from {verbs}'"
                lines.append(f"{first} -a '{verbs}'")
    return "\n".join(lines) + "\n"


def _fish_source(word: Word) -> str:
    return {
        "choices": f" -a '{' '.join(_visible(word))}'",
        "tasks": " -a '(watchdog completion tasks 2>/dev/null)'",
        "files": " -F",
    }.get(word.source, "")


def _visible(word: Word) -> list[str]:
    return [one for one in word.choices if one != "tasks"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
