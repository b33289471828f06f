"""The real command in its own process, against a fake daemon with prepared answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.finished import finished
from support.statuses import HOSTILE_NAMES, MIB, NOW_UNIX_S, leaking, process, status

from watchdog_app.base.errors import WatchdogError
from watchdog_app.cli import hello
from watchdog_app.core.model.status import Gpu

ASKING = [
    ["status"],
    ["status", "--json"],
    ["status", "--check"],
    ["status", "--watch"],
    ["status", "--watch", "--json"],
    ["stop"],
    ["reload"],
    ["pause", "a"],
    ["resume", "a"],
    ["checkpoint", "a"],
    ["explain"],
    ["history"],
    ["watch"],
    ["protect"],
    ["snooze"],
    ["notify", "test"],
    ["stacks", "a"],
    ["leaks", "a"],
]


def fresh(**more):
    return status(time_unix_s=time.time(), **more)


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_a_daemon_every_command_ends_with_3(watchdog, words):
    """The command says how to start a daemon: on standard error, in its JSON or in its line."""
    done = watchdog(*words)

    assert 3 == done.returncode
    assert "watchdog start" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_valid_without_a_daemon(watchdog):
    """The object has the usual shape, and its errors contain the reason."""
    done = watchdog("status", "--json")

    found = json.loads(done.stdout)
    assert [] == found["tasks"] == found["resources"] == found["gpus"]
    assert 2 == found["schema_version"]
    assert "not running" in found["problems"][0]["message"]
    assert "watchdog start" in found["problems"][0]["remedy"]


def test_status_shows_the_table(watchdog, daemon):
    """Exit code 0, no colours into a pipe, and an empty standard error."""
    daemon.answers["status"] = fresh()

    done = watchdog("status")

    assert (0, "") == (done.returncode, done.stderr)
    assert "train.ipynb" in done.stdout
    assert "\x1b" not in done.stdout


def test_status_of_the_gpus_shows_nothing_else(watchdog, daemon):
    """The headline and the problems stay."""
    daemon.answers["status"] = fresh(
        gpus=[Gpu(index=0, name="H100", state="ok", graphics_clock_mhz=1755.0).to_json()]
    )

    done = watchdog("status", "--gpu")

    assert 0 == done.returncode
    assert done.stdout.startswith("OK: ")
    assert "clocks   graphics 1755 MHz of N/A" in done.stdout
    assert "RAM" not in done.stdout
    assert "PID" not in done.stdout


def test_an_incident_is_no_failure_of_status(watchdog, daemon):
    """Only --check returns alert codes."""
    daemon.answers["status"] = {**leaking(), "time_unix_s": time.time()}

    assert 0 == watchdog("status").returncode
    checked = watchdog("status", "--check")
    assert 2 == checked.returncode
    assert 1 == len(checked.stdout.splitlines())


def test_colours_on_request(watchdog, daemon):
    """A pipe gets colours only if the user requests them."""
    daemon.answers["status"] = fresh()

    assert "\x1b[" in watchdog("status", "--color=always").stdout


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_every_name_can_be_printed_in_every_encoding(watchdog, daemon, encoding):
    """An old terminal gets escapes and ASCII bars instead of a traceback."""
    tasks = [process(i, name or "?", MIB) for i, name in enumerate([*HOSTILE_NAMES, "分析.py"], 1)]
    daemon.answers["status"] = fresh(tasks=tasks)

    done = watchdog("status", "--all", env={"PYTHONIOENCODING": encoding})

    assert (0, "") == (done.returncode, done.stderr)


def test_json_is_strictly_valid(watchdog, daemon):
    """Strict parsers refuse lone surrogates, so each becomes the replacement character."""
    daemon.answers["status"] = fresh(tasks=[process(1, "caf\udce9.py", 1)])

    done = watchdog("status", "--json")

    assert "\\udce9" not in done.stdout
    assert "caf?.py" == json.loads(done.stdout)["tasks"][0]["name"]


@pytest.mark.parametrize("command", ["status", "protect", "limit", "config", "history"])
def test_every_json_object_names_the_version_of_its_schema(watchdog, daemon, command):
    """`Output.json` adds it, so no command can forget it."""
    daemon.answers["status"] = fresh()
    daemon.answers["history"] = {"entries": []}

    found = json.loads(watchdog(command, "--json").stdout)

    assert (2 if command == "status" else 1) == found["schema_version"]


def test_json_names_its_time(watchdog, daemon):
    """The object has the time of the sample as seconds and as text."""
    daemon.answers["status"] = status(time_unix_s=NOW_UNIX_S + 0.25)

    found = json.loads(watchdog("status", "--json").stdout)

    assert ("2026-11-21T07:00:00.250Z", NOW_UNIX_S + 0.25) == (found["time"], found["time_unix_s"])


def test_watch_json_prints_one_object_a_line(watchdog, daemon):
    """The command prints as many objects as requested."""
    daemon.answers["status"] = fresh()

    done = watchdog("status", "--watch", "--json", "--count", "3", "--interval", "10ms")

    assert 0 == done.returncode
    assert [2, 2, 2] == [json.loads(line)["schema_version"] for line in done.stdout.splitlines()]


def test_watch_prints_blocks_into_a_pipe(watchdog, daemon):
    """A pipe gets plain blocks with the time, separated by a blank line."""
    daemon.answers["status"] = fresh()

    done = watchdog("status", "--watch", "-n", "2", "-i", "10ms")

    assert 0 == done.returncode
    assert 2 == done.stdout.count("OK: nothing is about to run out.")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--check", "--json"],
        ["status", "--gpu", "--json"],
        ["status", "-g", "--check"],
        ["status", "--interval", "2s"],
        ["status", "--count", "2"],
        ["status", "--watch", "--interval", "0"],
        ["status", "--watch", "--interval", "soon"],
        ["status", "--sort", "beauty"],
        ["status", "extra"],
        ["status", "--jsno"],
        ["pause"],
        ["resume"],
        ["resume", "a", "--all"],
        ["checkpoint"],
        ["checkpoint", "a", "--all"],
        ["checkpoint", "a", "--timeout", "3s"],
        ["history", "--since", "yesterday"],
        ["history", "--limit", "0"],
        ["history", "--since", "1h", "--until", "2h"],
        ["config", "--json", "--default"],
        ["completion", "powershell"],
        ["statsu"],
        ["--jsno"],
        ["-x", "status"],
    ],
    ids=" ".join,
)
def test_words_that_make_no_sense_end_with_2(watchdog, words):
    """Standard output stays empty, standard error has the reason, and no daemon is needed."""
    done = watchdog(*words)

    assert (2, "") == (done.returncode, done.stdout)
    assert "watchdog" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("near", "words"),
    [
        ("watchdog status", ["statsu"]),
        ("watchdog resume", ["resum"]),
        ("watchdog status", ["Status"]),
        ("--json", ["status", "--jsno"]),
        ("--timeout", ["checkpoint", "a", "--tiemout=3"]),
    ],
)
def test_a_mistyped_word_gets_the_nearest_one(watchdog, near, words):
    """The user reads a suggestion instead of the manual."""
    assert f"id you mean {near}?" in watchdog(*words).stderr.replace("mean: ", "mean ").replace(
        f"{near}\n", f"{near}?\n"
    )


def test_a_mistyped_word_is_not_obeyed_by_the_terminal(watchdog):
    """The command escapes even its own user's word."""
    assert "\x1b" not in watchdog("\x1b[2J").stderr


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"], ["help", "pause"]])
def test_help_goes_to_standard_output(watchdog, words):
    """Help exits with 0."""
    done = watchdog(*words)

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("usage: watchdog")


def test_the_first_screen_fits_a_narrow_terminal(watchdog):
    """Each command stands on a line of its own there."""
    found = watchdog(env={"COLUMNS": "60"}).stdout.splitlines()

    assert "              watchdog start" in found
    assert all(len(line) <= 60 and line == line.rstrip() for line in found[1:]), found


@pytest.mark.parametrize(
    ("topic", "said"),
    [("saving", "watchdog exec -- python"), ("exit-codes", "2  critical"), ("colours", "red")],
)
def test_topics_have_a_help_of_their_own(watchdog, topic, said):
    """Messages refer to a topic, because an installation has no pages."""
    done = watchdog("help", topic)

    assert (0, "") == (done.returncode, done.stderr)
    assert said in done.stdout
    assert topic in watchdog("--help").stdout
    assert all(len(line) <= 95 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (True, "Daemon running, 1 task watched watchdog status"),
        (False, "Daemon not running: nothing is watched watchdog start"),
    ],
)
def test_without_a_command_it_says_what_is_set_up_and_what_to_type_next(
    request, watchdog, own_folders, runs, expected
):
    """The first words of a new user lead to the daemon, to saving and to the start at login."""
    if runs:
        request.getfixturevalue("daemon").answers["status"] = status()
    done = watchdog()

    assert (0, "") == (done.returncode, done.stderr)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert expected in lines
    assert any(line.startswith("Saving off") for line in lines)
    assert any("At login" in line for line in lines)


def test_the_first_words_fit_a_terminal_of_80_columns(own_folders, monkeypatch):
    """Three environments with long paths, or an error, do not move the other commands."""
    paths = [f"/home/lea/miniconda3/envs/tensorflow-2.{minor}" for minor in (17, 18, 19)]
    monkeypatch.setattr("watchdog_app.cli.agent.enabled_environments", lambda: paths)
    assert all(len(line) <= 80 for line in hello.lines())
    assert any("on in 3 environments" in line for line in hello.lines())

    def fail():
        raise WatchdogError("The list of placed files is damaged. " * 3)

    monkeypatch.setattr("watchdog_app.cli.agent.enabled_environments", fail)
    assert 1 == sum(len(line) > 80 for line in hello.lines())


def test_version(watchdog):
    from watchdog_app import __version__

    assert f"watchdog {__version__}\n" == watchdog("--version").stdout


@pytest.mark.parametrize(
    ("kind", "said", "unsaid"),
    [("notebook", "do not press restart", "type fg"), ("script", "type fg", "restart")],
)
def test_pause_says_what_it_means_for_that_kind(watchdog, daemon, kind, said, unsaid):
    """In Jupyter a kernel restart loses the state; in a terminal the shell prints Stopped."""
    daemon.answers["task.pause"] = {
        "task": 4711,
        "name": "train",
        "kind": kind,
        "pids": [4711, 4712],
        "method": "signals",
    }

    done = watchdog("pause", "it")

    assert 0 == done.returncode
    assert [{"task": "it"}] == daemon.called("task.pause")
    assert "Paused train (pid 4711) and 1 child process." in done.stdout
    assert "watchdog resume 4711" in done.stdout
    assert said in done.stdout.lower()
    assert unsaid not in done.stdout.lower()
    assert [] == daemon.called("status")


def test_a_name_that_fits_several_tasks_lists_them(watchdog, daemon, refusal):
    """The list has PIDs and escaped names to choose from."""

    def several(_):
        found = [{"pid": 1, "name": "a\x1b[2J.ipynb"}, {"pid": 2, "name": "b.ipynb"}]
        raise refusal(-32003, "2 tasks answer to 'ipynb'.", {"candidates": found})

    daemon.answers["task.pause"] = several

    done = watchdog("pause", "ipynb")

    assert (1, "") == (done.returncode, done.stdout)
    assert "1  a\\x1b[2J.ipynb" in done.stderr
    assert "2  b.ipynb" in done.stderr


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("fit.py", "No task called 'fit.py' runs, and the history knows no end of one. Watched"),
        ("42", "No task answers. Watched"),
    ],
)
def test_explain_says_since_when_it_knows_of_ends(watchdog, daemon, refusal, task, said):
    """A training may have ended before the daemon started."""

    def unknown(_):
        raise refusal(-32002, "No task answers.", {"candidates": [{"pid": 1, "name": "a.py"}]})

    daemon.answers["explain"] = unknown
    daemon.answers["status"] = fresh()

    done = watchdog("explain", task)

    assert (1, "") == (done.returncode, done.stdout)
    assert f"watchdog: {said} since " in done.stderr
    assert "1  a.py" in done.stderr


@pytest.mark.parametrize("command", ["checkpoint", "resume"])
@pytest.mark.parametrize("known", [True, False])
def test_who_asks_for_a_task_that_died_is_told_of_its_death(
    watchdog, daemon, refusal, command, known
):
    """The message names the rescue and the command that shows more."""

    def gone(_):
        raise refusal(-32002, "No task has the pid 42.", {"candidates": [{"pid": 1, "name": "a"}]})

    text = "fit.py (pid 42): killed by the kernel. Its rescue of step 40 is complete."
    death = {"pid": 42, "unix_s": time.time(), "text": text, "name": "fit.py", "cause": "killed"}
    death |= {"task_kind": "script", "argv": ["python", "fit.py"], "cwd": "/a", "rescue": {}}
    daemon.answers[f"task.{command}"] = gone
    daemon.answers["explain"] = {"death": death} if known else gone

    done = watchdog(command, "42")

    assert (1, "") == (done.returncode, done.stdout)
    assert "No task has the pid 42." in done.stderr
    assert known == ("Ended at " in done.stderr)
    assert known == (f": {text} More: watchdog explain 42" in done.stderr)
    restart = (
        "watchdog: fit.py has ended; resume is for paused tasks.\n"
        "To continue its training:\n  cd /a && watchdog exec -- python fit.py\n"
    )
    assert (known and command == "resume") == done.stderr.startswith(restart)
    assert [{"task": "42"}] == daemon.called("explain")


def test_resume_one_and_all(watchdog, daemon):
    """
    Resuming all tasks sends the task null. The message names the task, not the first child that
    runs again.
    """
    done = {"task": 4711, "name": "train.ipynb", "kind": "notebook", "pids": [4712, 4711]}
    daemon.answers["task.resume"] = {"resumed": [done]}

    one, every = watchdog("resume", "train"), watchdog("resume", "--all", "--json")

    assert "train.ipynb (pid 4711) resumed." in one.stdout
    assert [4712, 4711] == json.loads(every.stdout)["resumed"][0]["pids"]
    assert [{"task": "train"}, {"task": None}] == daemon.called("task.resume")


def test_nothing_to_resume(watchdog, daemon):
    """This is success with --all and an error for a named task."""
    daemon.answers["task.resume"] = {"resumed": []}

    assert 0 == watchdog("resume", "--all").returncode
    assert 1 == watchdog("resume", "train").returncode


SAVED = {
    "task": 4711,
    "name": "train.ipynb",
    "status": "done",
    "rescue": {"path": "/r/step-1210", "step": 1210, "bytes": 500 * MIB, "seconds": 0.81},
    "detail": "",
}


def test_checkpoint_waits_and_says_what_was_saved(watchdog, daemon):
    """The output has path, step, size and seconds."""
    daemon.answers["task.checkpoint"] = {"requests": [SAVED]}

    done = watchdog("checkpoint", "train", "--wait", "--timeout", "90s")

    assert (0, "") == (done.returncode, done.stderr)
    assert "train.ipynb: saved at step 1210, 500 MiB in 0.81 s: /r/step-1210\n" == done.stdout
    assert [{"task": "train", "wait": True, "timeout_s": 90.0}] == daemon.called("task.checkpoint")


def test_waiting_shows_on_a_terminal_how_long_it_takes(watchdog, daemon):
    """The progress line goes to standard error and is erased before the result."""

    def slow(_):
        time.sleep(1)
        return {"requests": [SAVED]}

    daemon.answers["task.checkpoint"] = slow
    master, terminal = os.openpty()

    done = watchdog("checkpoint", "train", "--wait", stdout=subprocess.PIPE, stderr=terminal)

    shown = os.read(master, 65536).decode()
    os.close(master)
    os.close(terminal)
    assert "saving at the next step ... 0 s" in shown
    assert shown.endswith("\r\x1b[K")
    assert done.stdout.startswith("train.ipynb: saved")


@pytest.mark.parametrize(
    ("code", "words", "outcome"),
    [
        (0, [], "requested"),
        (1, ["--wait"], "requested"),
        (1, ["--wait"], "failed"),
        (1, [], "refused"),
        (0, ["--wait"], "done"),
    ],
)
def test_checkpoint_fails_when_one_fails(watchdog, daemon, code, words, outcome):
    """A script that saves before a shutdown needs the exit code."""
    second = {"task": 5, "name": "b.py", "status": outcome, "detail": "The disk is full."}
    daemon.answers["task.checkpoint"] = {"requests": [SAVED, second]}

    done = watchdog("checkpoint", "--all", *words)

    assert code == done.returncode
    assert ("The disk is full." in done.stdout) == (outcome in ("failed", "refused"))


def test_checkpoint_of_nothing_is_said(watchdog, daemon):
    """With --all a machine without a training agent is not an error."""
    daemon.answers["task.checkpoint"] = {"requests": []}

    done = watchdog("checkpoint", "--all")

    assert 0 == done.returncode
    assert "nothing to save" in done.stdout


def test_explain_says_what_is_seen_and_what_was_decided(watchdog, daemon):
    """For one task the output has the daemon's text and the task's history, folded and escaped."""
    words = "train.ipynb holds 5 GiB.\n  " + "word " * 30 + "\x1b[31m"
    daemon.answers["explain"] = {"text": words, "incidents": [], "pid": 4711}
    daemon.answers["history"] = {
        "entries": [
            {
                "unix_s": NOW_UNIX_S,
                "kind": "decision",
                "decision_kind": "checkpoint",
                "name": "train\x1b[2J",
                "reason": "exhausted in 31 s at the earliest",
            }
        ]
    }

    done = watchdog("explain", "train", env={"COLUMNS": "60"})

    assert (0, "") == (done.returncode, done.stderr)
    assert [{"task": "train"}] == daemon.called("explain")
    assert "4711" == daemon.called("history")[0]["task"]
    assert "train.ipynb holds 5 GiB.\n  word word" in done.stdout
    assert "checkpoint: exhausted in 31 s at the earliest" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 60 for line in done.stdout.splitlines())


def test_history_asks_for_what_was_wanted(watchdog, daemon):
    """The command sends time span, task, kinds and limit to the daemon."""
    daemon.answers["history"] = {"entries": []}
    before = time.time()

    done = watchdog("history", "--since", "2h", "--task", "a", "--kind", "exit", "--limit", "7")

    (asked,) = daemon.called("history")
    assert done.stdout.startswith("Nothing has happened in that time. ")
    assert before - 7200 <= asked["since_unix_s"] <= time.time() - 7200
    assert ("a", 7, ["exit"]) == (asked["task"], asked["limit"], asked["kinds"])


def test_reload_shows_why_a_file_is_bad(watchdog, daemon, refusal):
    """The command shows the daemon's text. The current settings stay in force."""

    def bad(_):
        raise refusal(-32000, "config.toml: warn_s = 'x' is not accepted.")

    daemon.answers["reload"] = bad

    done = watchdog("reload")

    assert 1 == done.returncode
    assert "warn_s = 'x'" in done.stderr


def test_a_broken_pipe_is_quiet(daemon, own_folders):
    """`watchdog status | true` prints no error."""
    daemon.answers["status"] = fresh(tasks=[process(n, f"{n}.py", MIB) for n in range(1200)])

    done = finished(
        f"{sys.executable} -m watchdog_app status --all | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
    )

    assert "" == done.stderr
    assert done.returncode in (0, 141)  # 0: the output fitted into the pipe before `true` closed it


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_said(watchdog, daemon):
    """Exit code 0 would claim that the output was written."""
    daemon.answers["status"] = fresh()
    with open("/dev/full", "w") as full:
        done = watchdog("status", stdout=full, stderr=subprocess.PIPE)

    assert 1 == done.returncode
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_standard_output_is_no_failure(daemon, own_folders):
    """`watchdog status >&-` succeeds."""
    daemon.answers["status"] = fresh()

    done = finished(f"{sys.executable} -m watchdog_app status >&-", shell=True)

    assert (0, "") == (done.returncode, done.stderr)


def test_ctrl_c_ends_quietly_with_130(daemon, own_folders):
    """The command is waiting for its answer."""

    def slow(_):
        time.sleep(30)

    daemon.answers["explain"] = slow
    command = subprocess.Popen(
        [sys.executable, "-m", "watchdog_app", "explain"], stderr=subprocess.PIPE, text=True
    )
    while not daemon.called("explain"):
        time.sleep(0.01)

    command.send_signal(signal.SIGINT)

    _, said = command.communicate(timeout=20)
    assert (130, "") == (command.returncode, said)


def test_status_imports_no_more_than_it_needs(daemon, own_folders):
    """`watchdog status` is fast because it loads none of the usual slow modules."""
    daemon.answers["status"] = {**leaking(), "time_unix_s": time.time()}

    code = "import watchdog_app.cli as cli; raise SystemExit(cli.main(['status']))"
    done = finished([sys.executable, "-X", "importtime", "-c", code])

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {
        "argparse",
        "asyncio",
        "dataclasses",
        "difflib",
        "inspect",
        "logging",
        "numpy",
        "psutil",
        "shutil",
        "sqlite3",
        "subprocess",
        "tempfile",
        "threading",
        "tomllib",
        "typing",
        "watchdog_app.core.explain.notifications",
        "watchdog_app.core.explain.status",
        "watchdog_app.core.policy",
        "watchdog_app.daemon",
    }
    assert 0 == done.returncode
    assert "watchdog_app.cli.status_text" in loaded
    assert set() == heavy & loaded


@pytest.mark.parametrize(
    ("named", "delivered", "status"),
    [
        ([], {"desktop": False, "ntfy": True}, 0),
        ([], {"desktop": True, "ntfy": False}, 1),
        ([], {"desktop": False}, 1),
        ([], {}, 1),
        (["desktop", "ntfy"], {"desktop": False, "ntfy": True}, 1),
        (["ntfy"], {"ntfy": True}, 0),
    ],
)
def test_a_test_of_the_channels_works_without_a_desktop(watchdog, daemon, named, delivered, status):
    rows = [{"name": name, "delivered": each, "detail": ""} for name, each in delivered.items()]
    daemon.answers["notify.test"] = {"channels": rows}
    assert status == watchdog("notify", "test", *named).returncode


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            ("status", words)
            for words in ([], ["--json"], ["--check"], ["-a"], ["--all", "--watch"], ["-w"])
        ),
        *(("run", words) for words in ([], ["-v"], ["--verbose"])),
    ],
)
def test_the_short_way_means_what_argparse_means(name, words):
    """The dispatcher parses these commands without argparse, so both must give the same result."""
    from watchdog_app.cli.dispatch import load_command

    command, parser = load_command(name)
    short = {**command.DEFAULTS, **{command.FLAGS[word]: True for word in words}}

    assert vars(parser.parse_args(words)) == short
