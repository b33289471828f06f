"""Shell completion: real shells query the real command."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.finished import finished
from support.statuses import process, status

from watchdog_app.cli import completion
from watchdog_app.cli.completion import candidates
from watchdog_app.cli.dispatch import COMMANDS, load_command
from watchdog_app.core.model.status import Status

SHARE = Path(__file__).parents[2] / "packaging/linux/share"
SCRIPTS = {
    "bash": SHARE / "bash-completion/completions/watchdog",
    "zsh": SHARE / "zsh/site-functions/_watchdog",
    "fish": SHARE / "fish/vendor_completions.d/watchdog.fish",
}
BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_watchdog; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# _describe needs a terminal; the stub prints its arguments instead.
ZSH = """
compdef() {{ :; }}
_describe() {{ print -l -- "${{(@P)2}}"; }}
_files() {{ print -- "FILES"; }}
source {script}
words=({words}); CURRENT=${{#words}}
_watchdog
"""


@pytest.fixture
def shell_env(tmp_path):
    """The environment of a shell in which `watchdog` is this checkout's command."""
    command = tmp_path / "bin/watchdog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m watchdog_app "$@"\n')
    command.chmod(0o755)
    root = str(Path(__file__).parents[2])
    path = f"{command.parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": root, "HOME": str(tmp_path)}


def ask(shell, text, env):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    argv = {"bash": ["bash", "-c"], "zsh": ["zsh", "-f", "-c"], "fish": ["fish", "-N", "-c"]}[shell]
    done = finished([*argv, text], env=env)
    assert "" == done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("st", ["status", "stacks", "start", "stop"]),
        ("status --js", ["--json"]),
        ("status --sort u", ["urgency"]),
        ("status --sort = u", ["urgency"]),  # as bash splits --sort=u
        ("completion b", ["bash"]),
        ("completion w", []),
        ("help pa", ["pause"]),
        ("history --limit 5", []),
        ("rescues verif", ["verify"]),
        ("rescues show verif", []),
        ("rescues --json verif", ["verify"]),
        ("config se", ["set"]),
        ("config set --no", ["--no-reload"]),
        ("config set stages.warn", ["stages.warn_s"]),
        ("config rule re", ["remove"]),
        ("nonsense ", []),
        ("--v", ["--version"]),
        ("", [*COMMANDS, "help"]),
    ],
)
def test_words_that_can_follow(typed, found):
    """
    Completion offers the command's options, their values, and subcommands only at the first
    position.
    """
    assert found == [word for word, _ in candidates(typed.split(" "))]


@pytest.mark.parametrize("typed", ["pause ", "history --task "])
def test_running_tasks_are_offered(monkeypatch, typed):
    """It offers names that are safe in a shell, then PIDs with their names."""
    shown = status(tasks=[process(4711, "train.ipynb", 1), process(5, "a;rm x", 1)])
    monkeypatch.setattr(completion, "find_status", lambda timeout_s: Status.read(shown))

    assert [("train.ipynb", ""), ("4711", "train.ipynb"), ("5", "a;rm x")] == candidates(
        typed.split(" ")
    )


def test_every_command_and_option_is_offered():
    """A user can type no option that completion lacks."""
    for name in COMMANDS:
        _, parser = load_command(name)
        options = {
            option
            for one in parser._actions
            if one.help != argparse.SUPPRESS
            for option in one.option_strings
        }
        assert options == {word for word, _ in candidates([name, "-"])}, name


@pytest.mark.parametrize(
    ("typed", "found"),
    [("watchdog st", ["status", "stacks", "start", "stop"]), ("watchdog rescues show verif", [])],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete(shell_env, shell, typed, found):
    """The test runs the shells. zsh completes files if the command offers nothing."""
    template = BASH if shell == "bash" else ZSH
    printed = ask(shell, template.format(script=SCRIPTS[shell], words=typed), shell_env)

    words = [line.partition(":")[0] for line in printed.split("\n") if line]
    assert (found or (["FILES"] if shell == "zsh" else [])) == words


def test_fish_completes(shell_env, tmp_path):
    """fish shows each word's meaning, and files if the command offers nothing."""
    (tmp_path / "verified.txt").touch()
    shell_env |= {"PWD": str(tmp_path)}
    lines = ("watchdog rescues verif", "watchdog rescues show verif", "watchdog status ")
    words = "; echo; ".join(f"complete -C '{line}'" for line in lines)
    text = f"cd {tmp_path}; source {SCRIPTS['fish']}; {words}"

    verbs, files, _ = ask("fish", text, shell_env).split("\n\n")

    assert ["verify"] == verbs.split()
    assert ["verified.txt"] == files.split()


def test_a_shell_takes_no_further_words(capsys):
    """An extra word is an error."""
    from watchdog_app.cli.dispatch import main

    assert 2 == main(["completion", "bash", "zsh"])
    assert "takes no further words" in capsys.readouterr().err
    assert sorted(completion.SCRIPTS) == ["bash", "fish", "zsh"]
