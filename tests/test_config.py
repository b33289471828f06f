"""config.toml: which values are accepted, which are refused, and with what message."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from watchdog_app.base.errors import ConfigError
from watchdog_app.config import describe, load
from watchdog_app.core.model.decisions import Caution
from watchdog_app.core.model.settings import (
    CHANNELS,
    RENAMED,
    RULE_SETTINGS,
    SETTINGS,
    Priority,
    RuleSettings,
    Settings,
)

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"


@pytest.fixture
def read(tmp_path):
    """Read settings from a text, with a separate environment."""
    path = tmp_path / "config.toml"

    def load_text(text: str, **env: str):
        path.write_text(text)
        return load(str(path), env)

    load_text.path = str(path)
    return load_text


def test_no_file_means_defaults(tmp_path):
    """Every setting has a default, so no file is needed."""
    settings, sources = load(str(tmp_path / "none.toml"), {})

    assert Settings() == settings
    assert {"default"} == set(sources.values())


def test_a_file_that_must_be_there_is_missed(tmp_path):
    """A file that the user names must exist."""
    with pytest.raises(ConfigError, match="does not exist"):
        load(str(tmp_path / "none.toml"), {}, required=True)


def test_every_field_of_the_settings_can_be_set():
    """Every setting has a key, and every key has a setting."""
    found = {
        f"{section.name}.{field.name}"
        for section in fields(Settings)
        if section.name != "rules"
        for field in fields(getattr(Settings(), section.name))
    }
    assert {*SETTINGS, "notify.tables"} == found  # tables of channels
    assert {field.name for field in fields(RuleSettings)} == set(RULE_SETTINGS)
    assert set(RENAMED.values()) <= {*SETTINGS, *(f"rule.{name}" for name in RULE_SETTINGS)}


def test_every_default_is_accepted_by_its_own_key():
    """Otherwise the default could not be written into the file."""
    for entry in describe(Settings(), {}):
        assert SETTINGS[entry["key"]].values.read(entry["value"]) is not None


def test_every_setting_is_documented_with_its_default():
    """docs/configuration.md has a row for each key, with the default and the accepted values."""
    text = DOCS.read_text()
    for entry in describe(Settings(), {}):
        section, _, name = entry["key"].partition(".")
        part = text[text.index(f"## [{section}]") :]
        part = part[: part.find("\n## ", 5)]
        assert re.search(rf"^\| `{name}` \|", part, re.MULTILINE), entry["key"]
        assert entry["help"] in part, entry["help"]
    for name, setting in RULE_SETTINGS.items():
        assert re.search(rf"^\| `{name}` \|", text[text.index("## [[rule]]") :], re.MULTILINE)
        assert setting.help in text


@pytest.mark.parametrize("key", SETTINGS)
def test_the_documentation_says_why_and_a_default_that_can_be_read(key):
    """Each row's default is valid for its key, and equals the default."""
    section, _, name = key.partition(".")
    part = DOCS.read_text().partition(f"## [{section}]")[2].partition("\n## ")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| `{name}` |")]
    _, _, default, _, _, why, _ = (cell.strip() for cell in row.split("|"))

    assert SETTINGS[key].default == SETTINGS[key].values.read(default.strip("`").strip('"'))
    assert 30 < len(why)


def test_the_example_of_the_documentation_is_accepted(read):
    """Users copy it."""
    examples = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)

    assert examples
    for example in examples:
        read(example)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("[stages]\nwarn_s = 90", "stages.warn_s", 90.0),
        ("[stages]\nwarn_s = '90'", "stages.warn_s", 90.0),
        ("[stages]\nwarn_s = '15m'", "stages.warn_s", 900.0),
        ("[watch]\nfast_interval_s = '250 ms'", "watch.fast_interval_s", 0.25),
        ("[journal]\nmax_age_s = '7d'", "journal.max_age_s", 604800.0),
        ("[journal]\nmax_bytes = '64 MiB'", "journal.max_bytes", 67108864),
        ("[journal]\nmax_bytes = '1.5g'", "journal.max_bytes", 1610612736),
        ("[journal]\nmax_bytes = 2000000", "journal.max_bytes", 2000000),
        ("[watch]\ncaution = 'high'", "watch.caution", Caution.HIGH),
        ("[stages]\nsave_safety_factor = 2", "stages.save_safety_factor", 2.0),
        ("[actions]\npause = false", "actions.pause", False),
        ("[notify]\ncommand = ['a', '-b']", "notify.command", ("a", "-b")),
        ("[notify]\ncommand = []", "notify.command", ()),
        ("\ufeff[actions]\npause = false", "actions.pause", False),
    ],
)
def test_values_are_read_as_people_write_them(read, text, key, value):
    """Durations and sizes as numbers or as texts; the source is the file."""
    settings, sources = read(text)

    section, _, name = key.partition(".")
    assert value == getattr(getattr(settings, section), name)
    assert type(value) is type(getattr(getattr(settings, section), name))
    assert read.path == sources[key]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[stages]\nwarn = 20", ["'warn'", "[stages]", "Did you mean warn_s?"]),
        ("[stages]\nwarm_s = 20", ["'warm_s'", "Did you mean warn_s?"]),
        ("[stage]\nwarn_s = 20", ["'stage'", "Did you mean stages?"]),
        ("warn_s = 20", ["'warn_s'", "It belongs in [stages]"]),
        ("[rules]\ntask = 'x'", ["Did you mean rule?"]),
        ("[rule]\ntask = 'x'", ["[[rule]] with two brackets"]),
        ("stages = 5", ["stages = 5", "must be a table"]),
        ("[stages]\nwarn_s = true", ["stages.warn_s = True", "duration"]),
        ("[stages]\nwarn_s = nan", ["stages.warn_s = nan", "to 1 d"]),
        ("[stages]\nwarn_s = inf", ["stages.warn_s = inf"]),
        ("[stages]\nwarn_s = -1", ["stages.warn_s = -1", "from 1 s"]),
        ("[stages]\nwarn_s = 'soon'", ["'soon'"]),
        ("[stages]\nwarn_s = []", ["stages.warn_s = []"]),
        ("[stages]\nwarn_s = 1e400", ["inf"]),
        ("[stages]\nwarn_s = '" + "9" * 400 + "'", ["stages.warn_s"]),
        ("[watch]\ncaution = 'medium'", ["'medium'", '"low" or "normal" or "high"']),
        ("[actions]\npause = 'no'", ["actions.pause = 'no'", "true or false"]),
        ("[actions]\npause = 1", ["actions.pause = 1", "true or false"]),
        ("[notify]\ncommand = 'notify me'", ["notify.command", "a list of texts"]),
        ("[notify]\ncommand = ['']", ["notify.command"]),
        ("[notify]\ncommand = ['a', 5]", ["notify.command"]),
        ("[journal]\nmax_bytes = 5", ["journal.max_bytes = 5", "from 1 MiB"]),
        ("[stages]\npause_s = 130", ["stages.pause_s = 130", "must not be above stages.warn_s"]),
        ("[watch]\nfast_interval_s = 2", ["watch.fast_interval_s", "watch.interval_s = 1"]),
        ("[[rule]]\npausing = false", ["'pausing'", "number 1", "Did you mean pause?"]),
        ("[[rule]]\ntask = 'x'", ["changes nothing"]),
        ("[[rule]]\nresource = 'gpu'\npause = false", ["resource = 'gpu'", "gpu_memory"]),
        ("[[rule]]\ntask = ''\npause = false", ["task = ''"]),
        ("[watch\ninterval_s = 1", ["not valid TOML", "line 1"]),
        ("a" * 2_000_000, ["larger than 1.00 MiB"]),
        ('[watch]\n"int\\nerval" = 1', ["'int\\nerval'"]),
    ],
)
def test_a_mistake_is_named_with_file_key_value_and_what_is_accepted(read, text, parts):
    """Nothing is guessed, and no line is silently ignored."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    for part in (read.path, *parts):
        assert part in str(caught.value)
    assert 2 == caught.value.exit_code


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A folder, and bytes that are not UTF-8."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path), {})
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(str(tmp_path / "latin.toml"), {})


def test_a_table_of_notify_is_a_channel_s_own(read, monkeypatch):
    """The daemon hands it to the channel. Any other unknown key or table is a mistake."""
    monkeypatch.setitem(CHANNELS, "file", "file:FileChannel")
    settings, sources = read('[notify]\ndesktop = false\n[notify.file]\npath = "/x"\n')

    assert {"file": {"path": "/x"}} == settings.notify.tables
    (shown,) = [each for each in describe(settings, sources) if each["key"] == "notify.file"]
    assert ({"path": "***"}, read.path) == (shown["value"], shown["source"])  # it may be a secret
    with pytest.raises(ConfigError, match="is not known"):
        read("[notify]\nfile = 1\n")
    with pytest.raises(
        ConfigError, match=r":2: \[notify.comand\] names no channel.* mean command\?"
    ):
        read('[notify]\n[notify.comand]\npath = "/x"\n')


def test_the_environment_goes_before_the_file(read):
    """The source names it, and so does an error."""
    settings, sources = read(
        "[stages]\nwarn_s = 20",
        WATCHDOG_STAGES_WARN_S="2m",
        WATCHDOG_ACTIONS_PAUSE="false",
        WATCHDOG_NOTIFY_COMMAND='["a", "b"]',
    )

    assert 120.0 == settings.stages.warn_s
    assert not settings.actions.pause
    assert ("a", "b") == settings.notify.command
    assert "environment" == sources["stages.warn_s"]
    with pytest.raises(ConfigError, match="environment variable WATCHDOG_STAGES_WARN_S"):
        read("", WATCHDOG_STAGES_WARN_S="never")


def test_rules_keep_their_order_and_leave_open_what_they_do_not_say(read):
    """The first match wins, so the order counts."""
    settings, sources = read(
        "[[rule]]\ntask = 'a*'\npause = false\n[[rule]]\nresource = 'gpu_*'\nnotify = false\n"
    )

    assert (
        RuleSettings(task="a*", pause=False),
        RuleSettings(resource="gpu_*", notify=False),
    ) == settings.rules
    last = describe(settings, sources)[-1]
    assert ("rule 2", {"task": "*", "resource": "gpu_*", "notify": False}, read.path) == (
        last["key"],
        last["value"],
        last["source"],
    )


def test_a_slip_in_an_environment_variable_is_told(read):
    """Otherwise it would silently have no effect."""
    with pytest.raises(ConfigError, match="Did you mean WATCHDOG_STAGES_WARN_S"):
        read("", WATCHDOG_STAGES_WRN_S="5m")


def test_other_variables_of_ours_are_no_settings(read):
    """Variables also name folders."""
    assert read("", WATCHDOG_RUNTIME_DIR="/x", WATCHDOG_AGENT_STRICT="1")


OLD = """\
[stages]
hold_s = 5
rescue_floor_s = "20s"

[[rule]]
ceiling = "gpu_*"
protect = "first"
"""


def test_a_key_of_an_earlier_version_is_mapped_and_reported(read):
    """The daemon starts with it, and reports the new name and the line."""
    warned = []
    Path(read.path).write_text(OLD)

    settings, sources = load(read.path, {}, warn=warned.append)

    stages = settings.stages
    assert (5.0, 20.0) == (stages.pause_s, stages.save_floor_s)
    assert read.path == sources["stages.pause_s"]
    assert (RuleSettings(resource="gpu_*", priority=Priority.HIGH),) == settings.rules
    assert [
        f"[stages] hold_s = 5 is now pause_s = 5 ({read.path}:2)",
        f"[stages] rescue_floor_s = '20s' is now save_floor_s = '20s' ({read.path}:3)",
        f"[[rule]] number 1 ceiling = 'gpu_*' is now resource = 'gpu_*' ({read.path}:6)",
        f"[[rule]] number 1 protect = 'first' is now priority = 'high' ({read.path}:7)",
    ] == warned


def test_a_key_of_an_earlier_version_is_a_mistake_where_a_file_is_checked(read):
    """`config check` and `config set` name the new key of each."""
    with pytest.raises(ConfigError) as caught:
        read(OLD)
    for number, name in ((2, "pause_s"), (3, "save_floor_s"), (6, "resource"), (7, "priority")):
        assert f"{read.path}:{number}: " in str(caught.value)
        assert f"is now {name} = " in str(caught.value)
    with pytest.raises(ConfigError, match="names no setting"):
        read("", WATCHDOG_STAGES_HOLD_S="2")


def test_where_old_and_new_key_stand_together_the_new_one_counts(read):
    Path(read.path).write_text("[stages]\nhold_s = 5\npause_s = 6\n")

    assert 6.0 == load(read.path, {}, warn=print)[0].stages.pause_s


@pytest.mark.parametrize("text", ["[stages]\nhold_s = []", "rule = 5", "[[rule]]\nprotect = {}"])
def test_an_old_key_with_a_wrong_value_is_a_mistake(read, text):
    Path(read.path).write_text(text)
    with pytest.raises(ConfigError):
        load(read.path, {}, warn=print)
