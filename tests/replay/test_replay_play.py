"""Replay of a trace: the daemon's engine, the output lines and the command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from watchdog_app.cli import main
from watchdog_app.core.model.decisions import Caution, DecisionKind, Regime, Stage
from watchdog_app.core.model.settings import Settings, WatchSettings
from watchdog_app.core.replay import trace
from watchdog_app.core.replay.play import answer_lines, as_lines, play

MIB = 1024.0**2
LIMIT = 1000 * MIB
WATCHDOG = (sys.executable, "-m", "watchdog_app")
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def ran(*words, **more):
    """Run the command and return the finished process."""
    given = {"text": True, **more}
    return subprocess.run([*WATCHDOG, *words], capture_output=True, check=False, **given)


def leak(rate=15.0, quiet=20.0):
    """A trace: 300 MiB at first, then a leak of the given MiB/s until the kill."""
    samples, t = [], 0.0
    while (used := 300 * MIB + max(0.0, t - quiet) * rate * MIB) < LIMIT:
        samples.append((round(t, 3), used, LIMIT))
        t += 0.1
    return trace.Trace("leak.csv", samples, ended_s=t)


def first(played, tier):
    """The time of the first moment at which the tier `notify` or `rescue` is open."""
    times = (m.t for m in played.moments if getattr(m.assessment, tier))
    return next(times, None)


def calm():
    return trace.Trace("calm.csv", [(i * 0.1, 300 * MIB, LIMIT) for i in range(300)])


def test_a_leak_is_told_of_and_saved_before_it_ends():
    """The replay reports a notice and a checkpoint at least ten seconds before the end."""
    played = play(leak(), Settings())
    kinds = {act.kind for act in played.decisions}

    assert kinds >= {DecisionKind.NOTIFY, DecisionKind.CHECKPOINT}
    assert first(played, "notify") < played.trace.ended_s - 10.0


def test_nothing_is_done_about_a_series_at_rest():
    """A steady series causes neither a stage nor an action."""
    played = play(calm(), Settings())

    assert ((), None) == (played.decisions, first(played, "rescue"))
    assert "Nothing would have been done." in as_lines(played)


def test_without_an_agent_nobody_is_asked_to_save():
    """The engine must not decide an action that no agent can carry out."""
    played = play(leak(), Settings(), costs=None)

    assert DecisionKind.CHECKPOINT not in {act.kind for act in played.decisions}


def test_more_caution_never_warns_later():
    """High caution warns first or at the same time as normal, and normal as low."""
    firsts = [
        first(play(leak(), Settings(watch=WatchSettings(caution=c))), "rescue")
        for c in (Caution.HIGH, Caution.NORMAL, Caution.LOW)
    ]

    assert sorted(firsts) == firsts


def lines_of(text, stage=Stage.WARN):
    out = io.StringIO()
    bad = answer_lines(text.splitlines(), out, Settings(), stage)
    return bad, [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_line_gets_an_answer_of_the_agreed_form():
    """Each answer has the documented keys, types, stages and regimes."""
    text = "\n".join(
        json.dumps({"t": t, "used": used, "limit": limit}) for t, used, limit in leak().samples
    )
    bad, answers = lines_of(text)

    assert (0, len(leak().samples)) == (bad, len(answers))
    assert {"eta_s", "low_s", "high_s", "alarm", "stage", "regime"} == set(answers[0])
    assert answers[-1]["low_s"] <= answers[-1]["eta_s"] <= answers[-1]["high_s"]
    assert {a["regime"] for a in answers} <= {r.value for r in Regime}
    assert {a["stage"] for a in answers} <= {s.name.lower() for s in Stage}
    assert answers[-1]["alarm"] is True
    assert answers[0]["alarm"] is False


def test_the_rescue_is_the_alarm_where_it_is_asked_for():
    """The silent checkpoint comes no later than the notice."""
    text = "\n".join(
        json.dumps({"t": t, "used": u, "limit": n}) for t, u, n in leak(rate=40.0).samples
    )
    warn = [a["alarm"] for a in lines_of(text)[1]]
    rescue = [a["alarm"] for a in lines_of(text, Stage.SAVE)[1]]

    assert rescue.index(True) <= warn.index(True)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "7",
        "{}",
        '{"t": 1, "used": "2", "limit": 3}',
        '{"t": 1, "used": NaN, "limit": 3}',
        '{"t": true, "used": 2, "limit": 3}',
        '{"t": 1, "used": 1' + "0" * 400 + ', "limit": 3}',
        '{"t": 1, "used": -2, "limit": 3}',
        '{"t": 1, "used": 2, "limit": -3}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_sample_is_answered_by_an_error(line):
    """The replay answers the lines after it as usual."""
    bad, answers = lines_of(line + '\n{"t": 1, "used": 2, "limit": 3}\n')

    assert 1 == bad
    assert "error" in answers[0]
    assert {"eta_s", "low_s", "high_s", "alarm", "stage", "regime"} == answers[0].keys() - {"error"}
    assert answers[1].keys() == answers[0].keys() - {"error"}


def at(times):
    return lines_of("".join(f'{{"t": {t}, "used": 5, "limit": 10}}\n' for t in times))


@pytest.mark.parametrize(
    ("times", "bad"),
    [
        pytest.param([1, 2, 2, 3], [2], id="twice"),
        pytest.param([1, 3, 2, 4], [2], id="out of order"),
        pytest.param([1, 2, 1e6, 1e6 + 1, 1e6 + 2], [], id="a suspend of days"),
        pytest.param([500, 501, 0, 1, 502, 503], [2, 3], id="the clock was set back for a while"),
        pytest.param([1, 2, 80000, 80001], [], id="a gap of hours"),
    ],
)
def test_a_time_that_does_not_follow_is_an_error_and_no_end(times, bad):
    """The replay answers later samples again and reports each skipped one."""
    count, answers = at(times)

    assert bad == [i for i, one in enumerate(answers) if "error" in one]
    assert len(bad) == count


def test_whoever_has_read_enough_ends_the_answers_quietly(tmp_path):
    """`--jsonl FILE | head -1` prints no error about the file."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"t": {t}, "used": 5, "limit": 10}}\n' for t in range(20_000)))
    command = [*WATCHDOG, "replay", "--jsonl", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert b"" == process.stderr.read()


def test_a_bad_line_does_not_end_an_alarm():
    """The replay repeats the answer of the previous line, so the alarm stays."""
    full = "".join(f'{{"t": {t}, "used": 99.5, "limit": 100}}\n' for t in (1, 2, 3))
    bad, answers = lines_of(full + "7\n" + '{"t": 60, "used": 9, "limit": null}\n')

    assert 1 == bad
    assert [True, True, False] == [a["alarm"] for a in answers[-3:]]


def test_bytes_that_are_no_text_are_a_bad_line():
    """The replay answers it with an error, even in a locale whose encoding accepts such bytes."""
    sample = b'\xff\xfe\n{"t": 1, "used": 2, "limit": 3}\n'
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    result = ran("replay", "--jsonl", "-", text=False, input=sample, env=strict)
    answers = [json.loads(line) for line in result.stdout.splitlines()]

    assert (1, b"") == (result.returncode, result.stderr)
    assert [True, False] == ["error" in answer for answer in answers]


def test_each_line_is_answered_before_the_next_is_sent():
    """A sampler exchanges one line at a time over pipes."""
    with subprocess.Popen([*WATCHDOG, "replay", "--jsonl", "-"], **PIPES) as process:
        for i in range(5):
            process.stdin.write(f'{{"t": {i}, "used": 5, "limit": 10}}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["alarm"] is False
        process.stdin.close()
        assert 0 == process.wait(20)


def written(tmp_path, one):
    path = str(tmp_path / one.name)
    with open(path, "w") as file:
        file.write("t,used,limit\n" + "".join(f"{t},{u},{limit}\n" for t, u, limit in one.samples))
    return path


def test_the_command_tells_what_would_have_been_done(tmp_path, capsys, monkeypatch):
    """The command prints text or JSON."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = written(tmp_path, leak())

    assert 0 == main(["replay", path])
    text = capsys.readouterr().out
    assert "What would have been done:" in text
    assert "checkpoint" in text
    assert 0 == main(["replay", path, "--json", "--caution", "high"])
    found = json.loads(capsys.readouterr().out)["traces"][0]
    assert "notify" in {act["kind"] for act in found["decisions"]}
    assert {"notify", "checkpoint"} <= {d["kind"] for d in found["decisions"]}


def test_a_setting_can_be_tried(tmp_path, capsys, monkeypatch):
    """--set stages.warn_s=1 warns later than the default."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = written(tmp_path, leak())

    def first(*words):
        assert 0 == main(["replay", path, "--json", *words])
        acts = json.loads(capsys.readouterr().out)["traces"][0]["decisions"]
        return next(act["t"] for act in acts if act["kind"] == "notify")

    assert first() < first("--set", "stages.warn_s=5")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a.csv", "--jsonl", "-"],
        ["/nowhere/a.csv"],
        ["--jsonl", "/nowhere/a.jsonl"],
        ["a.csv", "--set", "stages.nothing=1"],
        ["a.csv", "--set", "warn_s"],
    ],
)
def test_words_that_make_no_sense_end_with_the_usage_code(words, capsys, monkeypatch, tmp_path):
    """The exit code is 2, and the message says what to pass."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert 2 == main(["replay", *words])
    assert capsys.readouterr().err.strip()
