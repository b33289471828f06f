"""`watchdog explain` for ended processes: the plot, the text and the list."""

from __future__ import annotations

import pytest

from watchdog_app.base.text.terminal import Style, width
from watchdog_app.cli import explain
from watchdog_app.cli.explain import render_death
from watchdog_app.cli.plot import plot
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.store import RescueStore

GB = 1 << 30
PLAIN = Style(color=False, unicode=False)
DOTS = Style(color=False, unicode=True)

PAST = {
    "begin_unix_s": 0.0,
    "end_unix_s": 600.0,
    "name": "train.ipynb",
    "points": [[10.0 * n, n * GB / 8, None] for n in range(61)],
    "resource": {
        "kind": "cgroup",
        "label": "memory limit of the group jupyter",
        "limit": 8 * GB,
        "points": [[10.0 * n, n * GB / 7.6, 8 * GB] for n in range(61)],
    },
    "marks": [
        {"unix_s": 500.0, "kind": "warned"},
        {"unix_s": 560.0, "kind": "saved"},
        {"unix_s": 600.0, "kind": "death"},
    ],
}


@pytest.mark.parametrize("columns", [40, 61, 80, 100, 300])
@pytest.mark.parametrize("style", [PLAIN, DOTS])
def test_the_picture_fits_its_terminal(columns, style):
    """No line is wider than the terminal, and each letter stands below its time."""
    lines = plot(PAST, columns, style)

    assert max(map(width, lines)) <= min(columns, 100)
    letters = next(line for line in lines if line.strip().startswith("W"))
    assert ["W", "S", "X"] == letters.split()
    assert "the end" in "\n".join(lines)
    assert "8.0" in lines[0].replace("8.00", "8.0")


def test_marks_of_one_moment_stand_side_by_side():
    """The plot shows each letter that the legend explains."""
    marks = [{"unix_s": 600.0, "kind": kind} for kind in ("warned", "saved", "saved", "death")]
    lines = plot({**PAST, "marks": marks}, 80, PLAIN)

    assert any(line.endswith("WSX") for line in lines)


def test_a_mark_before_the_picture_begins_is_not_in_its_legend():
    """The rescue of an earlier run has no letter in the plot."""
    marks = [{"unix_s": -60.0, "kind": "saved"}, {"unix_s": 600.0, "kind": "death"}]
    text = "\n".join(plot({**PAST, "marks": marks}, 80, PLAIN))

    assert "X the end" in text
    assert "S saved" not in text


def test_without_dots_the_picture_is_ascii():
    """The kernel's console and log files lack Braille dots."""
    text = "\n".join(plot(PAST, 80, PLAIN))

    assert text.isascii()
    assert "*" in text
    assert "-" in text


def test_colour_only_where_it_is_wanted():
    """With NO_COLOR the output has no escape sequence; otherwise the characters are the same."""
    painted = "\n".join(plot(PAST, 80, Style(color=True)))

    assert "\x1b[" in painted
    assert "\x1b" not in "\n".join(plot(PAST, 80, DOTS))


def test_the_curves_are_told_apart_without_colour():
    """
    The task's curve is thick and continuous, the limit's thin and dashed.

    The legend shows both.
    """
    flat = {"points": [[t, 2.0, None] for t in (0.0, 300.0, 600.0)]}
    above = {"label": "the group", "limit": None, "points": [[0.0, 8.0], [600.0, 8.0]]}

    lines = plot({**PAST, **flat, "marks": [], "resource": above}, 80, DOTS)

    own = next(line.split("│")[1] for line in lines if line.count("⠶") > 20)
    ceiling = lines[0].split("┤")[1]
    assert " " not in own.strip()
    assert " " in ceiling.strip()
    assert not set("⠛⣤⠶") & set(ceiling)
    assert {"⣤⣤⣤", "⠒"} < set(lines[-1].split())


@pytest.mark.parametrize(
    "past",
    [
        {},
        {**PAST, "points": []},
        {**PAST, "points": PAST["points"][:1]},
        {**PAST, "points": PAST["points"][:2], "resource": None},
        {**PAST, "points": "many"},
        {**PAST, "end_unix_s": None},
        {**PAST, "points": [[float("nan"), 1.0, None]] * 9},
    ],
)
def test_too_little_to_draw_draws_nothing(past):
    """A missing plot is better than a wrong one."""
    assert [] == plot(past, 80, DOTS)


def test_a_terminal_too_narrow_gets_none():
    """The text still fits."""
    assert [] == plot(PAST, 30, DOTS)


@pytest.mark.parametrize(
    "change",
    [
        {"resource": None},
        {"resource": {"label": "x\x1b[31m", "limit": None, "points": []}},
        {"marks": [{"unix_s": None, "kind": "saved"}, {"kind": "odd"}, 7]},
        {"name": "a\nb\x1b[2J"},
        {"points": [[600.0, 0, None]] * 5},
        {"points": [[0.0, 1.0, None], [300.0, 1e18, None], [600.0, 0.0, None]]},
    ],
)
def test_odd_pasts_are_drawn_without_harm(change):
    """Examples are missing fields, hostile names and zeros."""
    lines = plot({**PAST, **change}, 80, DOTS)

    assert lines
    assert all("\x1b" not in line and width(line) <= 80 for line in lines)


def test_a_far_limit_does_not_flatten_what_happened():
    """The text below the plot names the limit."""
    far = {**PAST["resource"], "limit": 800 * GB}
    lines = plot({**PAST, "resource": far}, 100, DOTS)

    assert "far above" in "\n".join(lines)
    assert "800 GiB" in "\n".join(lines)


TEXT = (
    "train.ipynb (notebook, pid 42) died at 02:13:07, 2 h ago.\nWhy: Killed by the kernel.\n\n"
    "How we know:\n  [exact] It was ended by signal 9 (SIGKILL), and so on, a long line indeed.\n"
    "  [unknown] The kernel log could not be read.\n\n"
    "What was saved: step 90 (1.00 GiB) in\n  /r/rescue-1"
)


def test_a_death_is_folded_with_the_picture_after_what_happened():
    """
    The output has the event, the plot, the evidence, the save, and whether the save still exists.
    """
    lines = render_death(TEXT, ["PICTURE"], "It is there.", 60, DOTS)

    text = "\n".join(lines)
    assert text.index("Why:") < text.index("PICTURE") < text.index("How we know")
    assert "It is there." == lines[-1]
    assert max(map(width, lines)) <= 60
    assert any(line.startswith("      ") for line in lines)  # an indented continuation line


def test_a_dead_task_is_explained_as_the_daemon_tells_it(watchdog, daemon):
    """The command sends one request, no request for decisions, and checks the rescue on disk."""
    daemon.answers["explain"] = {
        "text": TEXT, "incidents": [], "death_text": TEXT, "plot": PAST,
        "death": {"pid": 42, "rescue": {"path": "/nowhere/rescue-1"}},
    }  # fmt: skip

    done = watchdog("explain", "42", "--minutes", "60", env={"COLUMNS": "80", "PYTHONUTF8": "1"})

    assert 0 == done.returncode, done.stderr
    assert [{"task": "42", "minutes": 60.0}] == daemon.called("explain")
    assert [] == daemon.called("history")
    assert "memory limit of the group jupyter" in done.stdout
    # not the task, which the sentence before named
    assert "The rescue is not there any more" in done.stdout


def test_commands_are_shown_as_this_shell_finds_them(monkeypatch):
    """An environment that is not active: its `watchdog` is not on PATH."""
    monkeypatch.setattr(explain, "type_program", lambda _: "~/tf/bin/watchdog")

    text = explain._type_commands(
        "cd watchdog && watchdog exec -- python t.py; the watchdog agents"
    )

    assert text == "cd watchdog && ~/tf/bin/watchdog exec -- python t.py; the watchdog agents"


def test_without_daemon_and_journal_the_kernels_log_is_named(watchdog):
    """Someone whose training has died before the first daemon is told where to look."""
    done = watchdog("explain")

    assert done.returncode == 3
    assert "dmesg" in done.stderr


@pytest.mark.parametrize(("level", "first"), [("warning", "RAM is"), ("watch", "train.ipynb")])
def test_a_danger_is_explained_before_a_past_death(watchdog, daemon, level, first):
    """Who asks in a danger wants to know about it; the death is one line with its command."""
    daemon.answers["history"] = {"entries": []}
    daemon.answers["explain"] = {
        "text": "RAM is full in 4 min.", "incidents": [{"id": "i1", "level": level}],
        "death_text": TEXT, "plot": PAST, "death": {"pid": 42, "unix_s": 1e9, "text": "It died."},
    }  # fmt: skip

    said = watchdog("explain", env={"COLUMNS": "200", "PYTHONUTF8": "1"}).stdout

    assert said.startswith(first), said
    assert ("How we know:" in said) == (level == "watch")
    assert ("It died. More: watchdog explain 42" in said) == (level == "warning")


def test_a_rescue_that_was_complete_right_before_the_end_is_named(watchdog, daemon, tmp_path):
    """SIGKILL came before the agent reported the save, so the command finds it in the folder."""
    store = RescueStore(str(tmp_path / "rescues"))
    first = store.save([], {"step": 1})
    store.save([], {"step": 2})
    store.close()
    died = {
        "pid": this_process().pid,
        "start_time": this_process().start_time,
        "agent": {"directory": store.directory},
    }

    def explained(**death):
        told = {**died, **death}
        daemon.answers["explain"] = {
            "text": TEXT, "incidents": [], "death_text": TEXT, "plot": PAST, "death": told,
        }  # fmt: skip
        return watchdog("explain", "42", env={"COLUMNS": "200", "PYTHONUTF8": "1"}).stdout

    assert "It saved step 2 right before its end" in explained()
    assert "It saved step 2 right before its end" in explained(rescue={"path": first.path})
    assert "right before its end" not in explained(start_time=1)
    assert "right before its end" not in explained(agent=None)


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--minutes", "2000"]])
def test_wrong_words_are_refused(watchdog, daemon, words):
    """The exit code is 2, and the command sends no request."""
    assert 2 == watchdog("explain", *words).returncode
    assert [] == daemon.called("explain")


JOURNALCTL = """#!/bin/sh
echo "$@" > "$0.asked"
echo 'Out of memory: Killed process 42 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB'
echo 'Out of memory: Killed process 43 (other) total-vm:1kB, anon-rss:1kB, file-rss:0kB'
printf 'usb 1-1: \\033[2J new device\\n'
"""


@pytest.mark.parametrize(("readable", "lines"), [(True, 0), (False, 1)])
def test_where_the_kernel_log_is_closed_the_systems_journal_is_asked(
    watchdog, daemon, tmp_path, readable, lines
):
    """Members of the group adm may read it. The command shows only entries about that process."""
    tool = tmp_path / "bin" / "journalctl"
    tool.parent.mkdir()
    tool.write_text(JOURNALCTL)
    tool.chmod(0o755)
    certainty = "exact" if readable else "unknown"
    daemon.answers["explain"] = {
        "text": TEXT, "incidents": [], "death_text": TEXT, "plot": None,
        "death": {"pid": 42, "unix_s": 1000.0,
                  "evidence": [{"source": "kernel", "certainty": certainty, "text": "x"}]},
    }  # fmt: skip

    said = watchdog("explain", "42", env={"PATH": f"{tool.parent}:/usr/bin:/bin"}).stdout

    assert lines == said.count("The system's journal says")
    assert "process 43" not in said
    assert readable is not (tmp_path / "bin" / "journalctl.asked").exists()
