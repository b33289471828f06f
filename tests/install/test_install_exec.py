"""`watchdog exec`: the program runs unchanged, with the agent in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.finished import finished

WATCHDOG = [sys.executable, "-m", "watchdog_app", "exec"]
IS_ON = "import sys; print('watchdog_app.agent.hook' in sys.modules)"


def execute(*words, **more):
    environment = {**os.environ, **more.pop("env", {})}
    return finished([*WATCHDOG, *words], env=environment, **more)


def besides_guard(stderr):
    """Return the lines on stderr without the line about the guard."""
    return [line for line in stderr.splitlines() if not line.startswith("watchdog: guard: ")]


def test_the_agent_is_on_in_the_program_and_in_what_it_starts():
    """No other process gets the agent."""
    code = f"{IS_ON}; import subprocess; subprocess.run([sys.executable, '-c', {IS_ON!r}])"

    done = execute("--", sys.executable, "-u", "-c", code)

    assert ("True\nTrue\n", [], 0) == (done.stdout, besides_guard(done.stderr), done.returncode)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["--", "sh", "-c", "exit 7"], 7),
        (["--", "sh", "-c", "kill -9 $$"], -signal.SIGKILL),
        (["--", "sh", "-c", "kill -15 $$"], -signal.SIGTERM),
        (["--", "nosuch-program"], 127),
        (["--", "/"], 126),
        ([], 2),
        (["--"], 2),
    ],
)
def test_the_end_of_the_program_is_the_end_of_the_command(words, code):
    """The command passes on exit codes and signals."""
    assert code == execute(*words).returncode


def test_the_program_has_the_pid_of_the_command():
    """Job control and signals work because no process is between the shell and the program."""
    process = subprocess.Popen(
        [*WATCHDOG, "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True
    )

    assert f"{process.pid}\n" == process.communicate(timeout=60)[0]


def test_a_broken_pipe_ends_the_program_as_usual():
    """Python ignores SIGPIPE in itself; the program must not inherit that."""
    code = "import signal; print(signal.getsignal(signal.SIGPIPE))"
    shell = f"{sys.executable} -c '{code}'; grep SigIgn /proc/self/status"

    done = execute("--", "sh", "-c", shell)

    ignored = int(done.stdout.split()[-1], 16)
    assert 0 == ignored & (1 << (signal.SIGPIPE - 1))


def test_a_sitecustomize_of_the_program_runs_and_is_the_one_that_is_found(tmp_path):
    """Watchdog's sitecustomize removes itself and restores sys.path."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = True")
    code = "import sys, sitecustomize as s; print(sys.theirs, s.__file__); print(sys.path)"
    env = {"PYTHONPATH": str(tmp_path)}

    done = execute("--", sys.executable, "-c", code, env=env)
    plain = finished([sys.executable, "-c", code], check=True, env={**os.environ, **env})

    assert [] == besides_guard(done.stderr)
    assert plain.stdout == done.stdout


def test_an_error_in_the_sitecustomize_of_the_program_is_told_as_ever(tmp_path):
    """The user must see that error."""
    (tmp_path / "sitecustomize.py").write_text("1 / 0")

    done = execute("--", sys.executable, "-c", "print(1)", env={"PYTHONPATH": str(tmp_path)})

    assert "1\n" == done.stdout
    assert "ZeroDivisionError" in done.stderr


def test_words_of_the_program_are_its_own():
    """The command passes options and empty arguments on unread."""
    code = "import sys; print(sys.argv[1:])"

    done = execute("--", sys.executable, "-c", code, "--json", "-h", "a b", "--", "x")

    assert f"{['--json', '-h', 'a b', '--', 'x']}\n" == done.stdout


def test_a_python_of_another_environment_has_the_agent_and_nothing_else_of_ours(tmp_path):
    """pipx may have installed watchdog: the program must not find its other packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    code = (
        f"{IS_ON}\ntry: import psutil; print(psutil.__file__)\n"
        "except ImportError: print('nothing else')"
    )

    done = execute("--", str(tmp_path / "v" / "bin" / "python"), "-c", code, cwd=tmp_path)

    assert "True\nnothing else\n" == done.stdout


def test_no_resume_reaches_the_program():
    """The option reaches the program through the environment."""
    done = execute("--no-resume", "--", "sh", "-c", "echo $WATCHDOG_AGENT_RESUME")

    assert "no\n" == done.stdout


@pytest.mark.parametrize("guard", [[], ["--no-guard"]], ids=["under a guard", "no guard"])
@pytest.mark.parametrize(
    "closed", ["0", "1", "2", "01", "02", "12", "012"], ids=lambda fds: f"without {fds}"
)
def test_a_program_starts_with_the_standard_streams_closed_that_the_command_had_not(
    tmp_path, closed, guard
):
    """Closed streams stay closed, so that no file of watchdog gets their number."""
    code = (
        "import os\n"
        "def is_open(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "found = [is_open(fd) for fd in range(3)]\n"
        f"open({str(tmp_path / 'found')!r}, 'w').write(str(found))\n"
    )
    words = [*WATCHDOG, *guard, "--", sys.executable, "-c", code]
    shell = 'exec "$@"' + "".join(f" {fd}{'<' if fd == '0' else '>'}&-" for fd in closed)

    done = subprocess.run(["sh", "-c", shell, "sh", *words], timeout=60, check=False)

    assert 0 == done.returncode
    assert str([str(fd) not in closed for fd in range(3)]) == (tmp_path / "found").read_text()


def _unread():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(lambda: os.open("/dev/full", os.O_WRONLY), id="full"),
        pytest.param(lambda: os.open("/dev/null", os.O_RDONLY), id="for reading"),
        pytest.param(_unread, id="unread"),
    ],
)
def test_a_program_starts_where_nothing_can_be_written_to_standard_error(tmp_path, opened):
    """The program loses only the message about the guard."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w'); raise SystemExit(7)"
    stderr = opened()

    done = subprocess.run(
        [*WATCHDOG, "--", sys.executable, "-c", code], stderr=stderr, timeout=60, check=False
    )
    os.close(stderr)

    assert (7, True) == (done.returncode, (tmp_path / "ran").exists())


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_ends_as_ever(tmp_path, closed):
    """A kernel starts, and a missing program gives exit code 127."""
    env = {**os.environ, "HOME": str(tmp_path), "WATCHDOG_STATE_DIR": str(tmp_path / "state")}
    env["JUPYTER_DATA_DIR"] = str(tmp_path / "jupyter")
    shell = f'exec "$@" {closed}'

    made, none = (
        subprocess.run(
            ["sh", "-c", shell, "sh", *WATCHDOG, *words], timeout=60, check=False, env=env
        )
        for words in (["--kernel"], ["--", "nosuch-program"])
    )

    assert (0, 127) == (made.returncode, none.returncode)
    assert (tmp_path / "jupyter" / "kernels" / "python3-guarded" / "kernel.json").exists()
