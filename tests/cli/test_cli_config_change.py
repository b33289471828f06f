"""`watchdog config` changes the file as its owner would, or not at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from functools import partial

import pytest

from watchdog_app.base.errors import ConfigError
from watchdog_app.config import editing, load, read_file

MINE = """\
# mine
[stages]   # times
warn_s = "5m"   # earlier

# where to
[notify]
command = [
  "page", # a script of mine
  "--me",
]

# never this one
[[rule]]
task = "interactive-*.ipynb"
pause = false

[[rule]] # two
task = "thesis.ipynb"
priority = "high"
"""


@pytest.fixture
def file(own_folders):
    """The path of the configuration file."""
    return own_folders / "config.toml"


# Functions from text to text


@pytest.mark.parametrize(
    ("key", "value", "gone", "come"),
    [
        ("stages.warn_s", 90, 'warn_s = "5m"   # earlier', "warn_s = 90   # earlier"),
        ("stages.pause_s", "1s", "[stages]   # times", '[stages]   # times\npause_s = "1s"'),
        ("notify.desktop", False, "[notify]", "[notify]\ndesktop = false"),
    ],
)
def test_a_change_touches_one_line(key, value, gone, come):
    """Comments, order and blank lines stay."""
    assert MINE.replace(gone, come) == editing.set_value(MINE, key, value)


def test_a_table_that_is_not_there_is_added_at_the_end():
    """The lines before it stay where they are."""
    assert f"{MINE}\n[actions]\npause = false\n" == editing.set_value(MINE, "actions.pause", False)
    assert "[actions]\npause = false\n" == editing.set_value("", "actions.pause", False)


@pytest.mark.parametrize(
    "text",
    [
        "stages.warn_s = 50\n",
        "stages = { warn_s = 50 } # one line\n",
        "[stages]\r\nwarn_s = 50\r\n",
        "['stages']\nwarn_s = 50\n",
        '[stages]\n"warn_s" = 50',
        "[stages] # x\n# pause_s = 2.0\nwarn_s = 50\n",
        "[notify]\n[stages]\nwarn_s = 50\n[journal]\n",
    ],
)
def test_every_way_to_write_a_table_is_understood(text):
    """In every form the result has both settings and no other change."""
    before = tomllib.loads(text)

    after = tomllib.loads(editing.set_value(text, "stages.pause_s", 1.5))

    before["stages"]["pause_s"] = 1.5
    assert before == after


def test_a_file_of_the_template_can_be_set(watchdog):
    """`config --default > config.toml`, then `config set`."""
    text = watchdog("config", "--default").stdout

    after = editing.set_value(text, "stages.pause_s", "1s")

    assert text.replace("[stages]\n", '[stages]\npause_s = "1s"\n') == after


def test_unset_takes_the_line_out_and_nothing_else():
    """Removing an unset key changes nothing."""
    assert MINE.replace('warn_s = "5m"   # earlier\n', "") == editing.remove_value(
        MINE, "stages.warn_s"
    )
    assert MINE == editing.remove_value(MINE, "stages.pause_s")
    assert MINE == editing.remove_value(MINE, "journal.max_bytes")


def test_a_new_rule_stands_before_all_others_and_below_what_is_said_above_them():
    """The first matching rule wins. A comment stays with its rule."""
    after = editing.add_rule(MINE, {"task": "a'\"\\b*.py", "pause": False})

    rules = tomllib.loads(after)["rule"]
    assert ["a'\"\\b*.py", "interactive-*.ipynb", "thesis.ipynb"] == [r["task"] for r in rules]
    assert '# never this one\n[[rule]]\ntask = "interactive' in after
    assert '[[rule]]\ntask = "x"\npause = false\n' == editing.add_rule(
        "", {"task": "x", "pause": False}
    )


@pytest.mark.parametrize(("number", "left"), [(1, ["thesis.ipynb"]), (2, ["interactive-*.ipynb"])])
def test_a_rule_goes_with_the_comment_above_it(number, left):
    """The comment would be wrong for the next rule."""
    after = editing.remove_rule(MINE, number)

    assert left == [rule["task"] for rule in tomllib.loads(after)["rule"]]
    assert (number == 1) is ("never this one" not in after)
    assert after.startswith(MINE[: MINE.index("# never")])


@pytest.mark.parametrize(
    "change",
    [partial(editing.remove_rule, number=1), partial(editing.add_rule, rule={"pause": True})],
)
def test_rules_in_brackets_are_changed_by_their_owner(change):
    """
    The command does not edit `rule = [{...}, {...}]`; the message says how to write it instead.
    """
    text = 'rule = [{task = "a", pause = false}, {task = "b", pause = false}]\n'

    with pytest.raises(ConfigError, match=r"write \[\[rule\]\] each"):
        change(text)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_rule_that_is_not_there_cannot_be_removed(number):
    """The command must not remove the last rule instead."""
    with pytest.raises(ConfigError, match="There is no rule"):
        editing.remove_rule(MINE, number)


@pytest.mark.parametrize(
    ("key", "words", "value"),
    [
        ("stages.warn_s", ["5m"], "5m"),
        ("stages.warn_s", ["90"], 90),
        ("stages.save_safety_factor", ["2.5"], 2.5),
        ("actions.pause", ["false"], False),
        ("actions.pause", ["FALSE"], False),
        ("notify.command", ["page", "--me"], ["page", "--me"]),
        ("notify.command", ["/bin/page"], ["/bin/page"]),
        ("notify.command", ['["a b", "c"]'], ["a b", "c"]),
        ("notify.command", ["[]"], []),
        ("notify.quiet_hours", ["22:00-07:00"], "22:00-07:00"),
        ("notify.quiet_hours", ["22:00-07:00", "12:00-13:00"], ["22:00-07:00", "12:00-13:00"]),
        ("journal.max_bytes", ["64", "MiB"], "64 MiB"),
        ("watch.caution", ["high"], "high"),
        ("task", ["[ab]*.py"], "[ab]*.py"),
        ("task", ["5"], "5"),
        ("task", ["1979-05-27"], "1979-05-27"),
    ],
)
def test_what_is_typed_becomes_what_the_key_accepts(key, words, value):
    """Users need not type TOML quotes inside shell quotes."""
    found = editing.parse_value(key, words)

    assert value == found
    assert type(value) is type(found)


# The command


def test_times_and_sizes_are_told_with_their_units(file, watchdog):
    """Text output adds them to the plain number of the file; JSON has only the number."""
    shown = watchdog("config", "show").stdout
    settings = json.loads(watchdog("config", "show", "--json").stdout)["settings"]

    assert "1209600.0 (14 d)" in shown
    assert "67108864 (64.0 MiB)" in shown
    assert 120.0 == next(one["value"] for one in settings if one["key"] == "stages.warn_s")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["config", "chekc"], "did you mean check?"),
        (["config", "set", "stages.warn_s", "5m", "--json"], "--json does not go with"),
        (["protect", "of"], "did you mean off?"),
        (["config", "rule", "lst"], "did you mean list?"),
        (["tray", "--theme", "drak"], "did you mean dark?"),
        (["snooze", "--for", "3d"], "at most 1 d"),
        (["exec", "--time", "abc", "--", "true"], "such as 15m, or 1-12:00:00"),
    ],
)
def test_a_slip_is_met_with_what_was_meant(watchdog, words, expected):
    """It suggests values of a choice as well as options, and states limits in words."""
    done = watchdog(*words)

    assert (2, "") == (done.returncode, done.stdout)
    assert expected in done.stderr


def test_set_get_unset(file, watchdog):
    """A set value is in force; after unset the default is."""
    assert "120.0\n" == watchdog("config", "get", "stages.warn_s").stdout

    done = watchdog("config", "set", "stages.warn_s", "5m")

    assert (0, "") == (done.returncode, done.stderr)
    assert "stages.warn_s is 300.0 (5 min) now" in done.stdout
    assert "watchdog start" in done.stdout
    assert 300.0 == load(str(file))[0].stages.warn_s
    assert "300.0\n" == watchdog("config", "get", "stages.warn_s").stdout
    found = json.loads(watchdog("config", "get", "stages.warn_s", "--json").stdout)
    assert (300.0, str(file)) == (found["value"], found["source"])
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert "by default" in watchdog("config", "unset", "stages.warn_s").stdout
    assert "120.0\n" == watchdog("config", "get", "stages.warn_s").stdout
    assert "Nothing to change" in watchdog("config", "unset", "stages.warn_s").stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["set", "stages.warn_s", "soon"], "from 1 s to 1 d"),
        # valid alone, but not with the other setting
        (["set", "stages.warn_s", "1"], "stages.pause_s"),
        (["set", "warn_s", "5"], "Did you mean stages.warn_s?"),
        (["set", "stages.hold_s", "5"], "is now called stages.pause_s"),
        (["set", "notify.quiet_hours", "night"], "22:00-07:00"),
        (["get", "nothing"], "no setting"),
        (["unset", "nothing"], "no setting"),
        (["rule", "add", "--task", "x"], "what the rule changes"),
        (["rule", "add", "--no-pause", "--resource", "rma"], "ram_swap"),
        (["rule", "remove", "3"], "There is no rule 3"),
        (["set", "stages.warn_s"], "VALUE"),
        (["frobnicate"], "invalid choice"),
        (["--default", "set", "stages.warn_s", "5"], "not both"),
    ],
)
def test_what_would_be_a_mistake_is_not_written(file, watchdog, words, named):
    """The message says which values are valid, and the file stays unchanged."""
    file.write_text(MINE)

    done = watchdog("config", *words)

    assert 2 == done.returncode, done.stdout
    assert named in done.stderr
    assert MINE == file.read_text()
    assert [file.name] == [each for each in os.listdir(file.parent) if "toml" in each]


def test_a_setting_can_mend_a_file_that_holds_a_mistake(file, watchdog):
    """Only the resulting text must be valid."""
    file.write_text("[stages]\nwarn_s = 'soon'\n")
    assert 2 == watchdog("config", "set", "stages.pause_s", "1").returncode

    assert 0 == watchdog("config", "set", "stages.warn_s", "5m").returncode

    assert 300.0 == load(str(file))[0].stages.warn_s


def test_every_mistake_is_named_with_its_line(file, watchdog):
    """The user can correct all of them at once, in the order of the file."""
    file.write_text(
        "[stages]\nwarn_s = 'soon'\n\n[notify]\nquiet = 1\n\n[[rule]]\npause = true\n"
        "[[rule]]\ntask = 'x'\npause = 5\n[nosuch]\n"
    )

    done = watchdog("config", "check")

    assert 2 == done.returncode
    lines = [line for line in done.stderr.splitlines() if str(file) in line]
    assert [f"{file}:{number}: " for number in (2, 5, 11, 12)] == [
        line.removeprefix("watchdog: ").partition(": ")[0] + ": " for line in lines
    ]
    for word, line in zip(
        ("stages.warn_s", "quiet_hours", "number 2", "nosuch"), lines, strict=True
    ):
        assert word in line


def test_a_link_is_followed_and_the_mode_kept(file, watchdog, tmp_path):
    """The file in a dotfiles folder stays there with its permissions."""
    real = tmp_path / "dotfiles.toml"
    real.write_text(MINE)
    real.chmod(0o640)
    file.symlink_to(real)

    assert 0 == watchdog("config", "set", "stages.warn_s", "90").returncode

    assert file.is_symlink()
    assert "warn_s = 90   # earlier" in real.read_text()
    assert 0o640 == stat.S_IMODE(real.stat().st_mode)


def test_a_change_of_somebody_else_is_not_lost(file):
    """Another program changes the file between the command's read and write."""
    file.write_text("[stages]\n")

    with pytest.raises(ConfigError, match="meanwhile"):
        editing.write(str(file), "", "something else")

    assert "[stages]\n" == file.read_text()


@pytest.mark.parametrize("name", ["", "plain/config.toml"], ids=["a folder", "below a file"])
def test_a_place_that_cannot_be_used_is_named(tmp_path, watchdog, name):
    """The command prints no traceback."""
    (tmp_path / "plain").touch()

    where = str(tmp_path / name)
    done = watchdog("config", "set", "stages.warn_s", "90", env={"WATCHDOG_CONFIG": where})

    assert 1 <= done.returncode <= 2
    assert where in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_are_added_listed_and_removed(file, watchdog):
    """The rules say "never pause this" and "protect this first"."""
    never = ("config", "rule", "add", "--task", "interactive-*.ipynb", "--no-pause")
    assert "no rules" in watchdog("config", "rule", "list").stdout
    assert 0 == watchdog(*never).returncode
    first = watchdog("config", "rule", "add", "--task", "thesis.ipynb", "--priority", "high")
    assert 0 == first.returncode

    listed = watchdog("config", "rule", "list").stdout.splitlines()

    assert listed[0].startswith("1  ")
    assert 'task = "thesis.ipynb"' in listed[0]
    assert 'priority = "high"' in listed[0]
    assert "pause = false" in listed[1]
    assert 0 == watchdog("config", "rule", "remove", "1").returncode
    (rule,) = load(str(file))[0].rules
    assert ("interactive-*.ipynb", False) == (rule.task, rule.pause)


# The editor


def editor(program: str) -> str:
    return f"{sys.executable} -c '{program}'"


def test_the_editor_gets_a_copy_and_a_good_one_is_taken(file, watchdog):
    """Comments stay."""
    file.write_text(MINE)
    swap = (
        'import sys; p = sys.argv[1]; t = open(p).read(); open(p, "w").write(t.replace("5m", "9m"))'
    )

    done = watchdog("config", "edit", env={"EDITOR": editor(swap), "VISUAL": ""})

    assert (0, "") == (done.returncode, done.stderr)
    assert MINE.replace("5m", "9m") == file.read_text()


def test_without_a_file_the_editor_gets_one_that_explains(file, watchdog):
    """VISUAL precedes EDITOR."""
    add = (
        "import sys; p = sys.argv[1]; t = open(p).read(); "
        'open(p, "w").write(t.replace("# warn_s =", "warn_s ="))'
    )

    done = watchdog("config", "edit", env={"VISUAL": editor(add), "EDITOR": "false"})

    assert 0 == done.returncode, done.stderr
    assert "every setting with its default" in file.read_text()


@pytest.mark.parametrize("named", ["", "vi"])
def test_vi_opens_only_for_who_has_named_it(file, watchdog, tmp_path, named):
    """Others do not know how to leave it."""
    for name in ("vi", "vim", "sensible-editor"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / name).chmod(0o700)

    done = watchdog("config", "edit", env={"EDITOR": named, "VISUAL": "", "PATH": str(tmp_path)})

    assert 1 == done.returncode
    assert ("status 7" if named else "Name an editor: EDITOR=") in done.stderr


@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        ({"EDITOR": "true"}, 0, "Nothing was changed."),
        ({"EDITOR": "false"}, 1, "ended with status 1"),
        ({"EDITOR": "/nonexistent --wait"}, 1, "could not be started"),
        ({"EDITOR": "'"}, 1, "cannot be read as a command"),
        ({"EDITOR": "rm"}, 1, "removed the file"),
    ],
)
def test_an_editor_that_does_nothing_changes_nothing(file, watchdog, env, code, said):
    """The editor may also fail or be missing."""
    file.write_text(MINE)

    done = watchdog("config", "edit", env={"VISUAL": "", **env})

    assert code == done.returncode
    assert said in done.stdout + done.stderr
    assert MINE == file.read_text()


def test_what_holds_mistakes_is_kept_beside_the_file(file, watchdog):
    """The old settings stay in force, and the user's edit is not lost."""
    file.write_text(MINE)
    spoil = 'import sys; open(sys.argv[1], "w").write("[stages]\\nwarn_s = 0\\n")'

    done = watchdog("config", "edit", env={"EDITOR": editor(spoil), "VISUAL": ""},
                    stdin=subprocess.DEVNULL)  # fmt: skip

    assert 2 == done.returncode
    assert ":2: stages.warn_s = 0 is not accepted" in done.stderr
    assert MINE == file.read_text()
    assert "warn_s = 0" in (file.parent / "config.toml.rejected").read_text()


# A running daemon


def test_a_running_daemon_takes_it_over_unless_told_not_to(daemon, file, watchdog):
    """The answer says whether the daemon uses the change."""
    state = {"value": 120.0}
    daemon.answers["config"] = lambda _: {
        "settings": [
            {"key": key, "value": state["value"] if key == "stages.warn_s" else value}
            for key, value in current(file).items()
        ]
    }

    def reload(_):
        state["value"] = 300.0
        return {}

    daemon.answers["reload"] = reload

    quiet = watchdog("config", "set", "stages.warn_s", "5m", "--no-reload")
    assert [] == daemon.called("reload")
    assert "watchdog reload" in quiet.stdout

    done = watchdog("config", "set", "stages.pause_s", "1")
    assert 1 == len(daemon.called("reload"))
    assert "The running daemon uses it." in done.stdout

    other = watchdog("config", "set", "stages.warn_s", "7m")
    assert "instead of 420.0" in other.stdout
    assert "another file" in other.stdout


def current(file) -> dict:
    from watchdog_app.config import describe

    return {one["key"]: one["value"] for one in describe(*load(str(file)))}


def test_a_read_only_file_is_not_overruled(file):
    """
    Replacing the file needs no write permission on it, but its owner made it read-only on purpose.
    """
    file.write_text(MINE)
    file.chmod(0o444)

    with pytest.raises(ConfigError, match="read-only"):
        editing.write(str(file), "", MINE)

    assert file.read_text() == MINE


@pytest.mark.parametrize("stranger", [False, True])
def test_a_file_that_others_may_have_written_is_neither_read_nor_kept(file, stranger):
    """A change would make the user own foreign content, such as `notify.command`."""
    file.write_text(MINE)
    if stranger:
        if os.geteuid():
            pytest.skip("only root can give a file away")
        os.chown(file, 65534, -1)
    else:
        file.chmod(0o666)

    with pytest.raises(ConfigError, match=r"notify\.command"):
        read_file(str(file))
    with pytest.raises(ConfigError, match=r"notify\.command"):
        editing.write(str(file), "", MINE)

    assert file.read_text() == MINE


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_never_replaced(file, kind):
    """WATCHDOG_CONFIG=/dev/null means no settings; the command must not replace /dev/null."""
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    before = file.lstat().st_ino

    with pytest.raises(ConfigError, match="no regular file"):
        editing.write(str(file), "", None)

    assert before == file.lstat().st_ino


def test_a_file_too_large_to_be_read_is_not_made_larger(file):
    """The daemon would refuse the result."""
    file.write_text("#\n" * 600_000)

    with pytest.raises(ConfigError, match=r"larger than 1\.00 MiB"):
        read_file(str(file))
