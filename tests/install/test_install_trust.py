"""Watchdog later runs only code that no other user can change, and only from its recorded place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_kernel import kernel
from support.finished import finished

from watchdog_app.install import trust

PACKAGE = Path(trust.package_folder())
STRANGER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
IS_ON = (
    "import sys; print('ON' if 'watchdog_app.agent.hook' in sys.modules"
    " and sys.modules['watchdog_app.agent.hook'].is_on() else 'OFF')"
)


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that no other user can write to, nor its parents; pytest's folders are in /tmp."""
    for above in (Path.home(), PACKAGE.parent):
        if _closed(above):
            break
    else:
        pytest.skip("there is no folder here that others cannot write to")
    folder = Path(tempfile.mkdtemp(prefix=".watchdog-test-", dir=above.resolve()))
    yield folder
    shutil.rmtree(folder)


def _closed(folder: Path) -> bool:
    return all(
        at.stat().st_uid in (os.geteuid(), 0) and not at.stat().st_mode & 0o022
        for at in (folder.resolve(), *folder.resolve().parents)
    )


@pytest.fixture
def package(private: Path) -> Path:
    """A copy of the package."""
    copied = private / "lib" / "watchdog_app"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for each in (private, *private.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    return copied


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A notebook folder with a package named like watchdog's, which records that it ran."""
    folder = tmp_path / "notebooks"
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'RAN')!r}).touch()\n"
    for name in ("__init__", "agent/__init__", "agent/hook", "agent/ipython"):
        path = folder / "watchdog_app" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code + "def switch_on(): pass\ndef kernel_starts(): pass\n")
    return folder


def enabled(folder: Path, package: Path = PACKAGE) -> None:
    """Place the startup file of that package for IPython in `folder`."""
    file = folder / "ipython" / "profile_default" / "startup" / "90-watchdog.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(trust.startup_file().replace(os.fsencode(PACKAGE), os.fsencode(package)))


def ipython(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Return the output of a real IPython with the startup file."""
    return finished(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", code],
        cwd=folder,
        env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), **env},
        timeout=120,
    )


def watchdog(package: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a watchdog command of the copy in `package`."""
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "PYTHONPATH": str(package.parent)}
    names = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "WATCHDOG_STATE_DIR")
    return finished(
        [sys.executable, "-P", "-m", "watchdog_app", *words],
        cwd=home,
        env={**{key: value for key, value in os.environ.items() if key not in names}, **own},
        timeout=120,
    )


def test_a_kernel_runs_nothing_of_a_package_of_our_name_in_the_folder_of_the_notebook(
    hostile: Path, tmp_path: Path
):
    """Neither the kernel's start nor later imports of the agent's modules run it."""
    enabled(hostile)

    with kernel(sys.executable, hostile) as started:
        on = started.run(IS_ON)
        place = started.run("import watchdog_app; print(watchdog_app.__file__)")
        later = started.run(
            f"import os; os.chdir({str(hostile / 'watchdog_app')!r})\n"
            "from watchdog_app.agent.telemetry import memory; print(memory.__file__)"
        )

    assert "ON\n" == on
    assert f"{PACKAGE / '__init__.py'}\n" == place
    assert f"{PACKAGE / 'agent' / 'telemetry' / 'memory.py'}\n" == later
    assert not (tmp_path / "RAN").exists()


def test_a_package_of_our_name_is_not_run_where_the_recorded_one_is_gone(
    hostile: Path, tmp_path: Path
):
    enabled(hostile, tmp_path / "gone")

    done = ipython(hostile, "print(1)")

    assert ("1\n", "") == (done.stdout, done.stderr)
    assert not (tmp_path / "RAN").exists()


def test_a_package_of_our_name_that_the_user_has_imported_before_is_left_alone(
    hostile: Path, tmp_path: Path
):
    (hostile / "watchdog_app" / "__init__.py").write_text("mine = 1\n")
    enabled(hostile)
    first = hostile / "ipython" / "profile_default" / "startup" / "00-mine.py"
    first.write_text("import watchdog_app\n")

    done = ipython(hostile, "print(watchdog_app.mine)")

    assert ("1\n", "") == (done.stdout, done.stderr)
    assert not (tmp_path / "RAN").exists()


def test_a_program_of_exec_runs_nothing_of_a_package_of_our_name_on_its_path(
    hostile: Path, tmp_path: Path
):
    code = f"{IS_ON}; import watchdog_app.base.durable as d; print(d.__file__)"
    program = f'PYTHONPATH="{hostile}:$PYTHONPATH" exec "{sys.executable}" -c "{code}"'

    done = watchdog(PACKAGE, tmp_path / "home", "exec", "--no-guard", "--", "sh", "-c", program)

    assert (f"ON\n{PACKAGE / 'base/durable.py'}\n", "") == (done.stdout, done.stderr)
    assert not (tmp_path / "RAN").exists()


def _to_a_stranger(package: Path) -> Path:
    for each in (package.parent, package, *package.rglob("*")):
        os.chown(each, STRANGER, STRANGER)
    return package


def _one_file_open(package: Path) -> Path:
    (package / "rescue" / "checkpoint" / "store.py").chmod(0o666)
    return package / "rescue" / "checkpoint" / "store.py"


def _one_file_of_a_stranger(package: Path) -> Path:
    os.chown(package / "base/durable.py", STRANGER, STRANGER)
    return package / "base/durable.py"


def _folder_of_another_group(package: Path) -> Path:
    os.chown(package / "agent", -1, STRANGER)
    (package / "agent").chmod(0o775)
    return package / "agent"


def _sticky_above(package: Path) -> Path:
    package.parent.chmod(0o1777)
    return package.parent


def _bytecode_open(package: Path) -> Path:
    compiled = package / "__pycache__" / "bytecode.cpython-311.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(b"")
    compiled.chmod(0o646)
    return compiled


def _link_to_an_open_file(package: Path) -> Path:
    target = package.parent / "elsewhere" / "quantities.py"
    target.parent.mkdir()
    shutil.move(package / "base/text/quantities.py", target)
    (package / "base/text/quantities.py").symlink_to(target)
    target.parent.chmod(0o777)
    return target.parent


_WEAK = [
    pytest.param(_to_a_stranger, marks=AS_ROOT),
    _one_file_open,
    pytest.param(_one_file_of_a_stranger, marks=AS_ROOT),
    pytest.param(_folder_of_another_group, marks=AS_ROOT),
    _sticky_above,
    _bytecode_open,
    _link_to_an_open_file,
]


@pytest.mark.parametrize("weaken", _WEAK)
def test_a_kernel_starts_without_an_agent_that_others_can_change_and_says_nothing(
    package: Path, tmp_path: Path, weaken: Callable[[Path], Path]
):
    enabled(tmp_path, package)
    before = ipython(tmp_path, IS_ON)
    weaken(package)

    after = ipython(tmp_path, IS_ON)

    assert ("ON\n", "") == (before.stdout, before.stderr)
    assert ("OFF\n", "") == (after.stdout, after.stderr)


@pytest.mark.parametrize("weaken", _WEAK)
def test_code_that_others_can_change_is_refused_with_its_place(
    package: Path, tmp_path: Path, weaken: Callable[[Path], Path]
):
    place = weaken(package)

    done = watchdog(package, tmp_path / "home", "exec", "--no-guard", "--", "echo", "ran")

    assert (1, "") == (done.returncode, done.stdout)
    assert f"{place} belongs to " in done.stderr
    assert "pipx install watchdog-app" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("agent", "enable", "--user"),
        ("agent", "enable", "--python", sys.executable),
        ("exec", "--", "echo", "ran"),
        ("exec", "--kernel"),
        ("desktop", "install"),
        ("desktop", "install", "--login"),
    ],
    ids=" ".join,
)
def test_each_command_that_lets_code_run_later_refuses_code_that_others_can_change(
    package: Path, tmp_path: Path, words: tuple[str, ...]
):
    place = _one_file_open(package)

    done = watchdog(package, tmp_path / "home", *words)

    assert (1, "") == (done.returncode, done.stdout)
    assert f"{place} belongs to " in done.stderr
    assert f"chmod -R go-w {package}" in done.stderr
    assert [] == list((tmp_path / "home").rglob("*"))


def test_a_program_that_others_can_change_is_not_started_at_login(package: Path, tmp_path: Path):
    """
    Only the user can change the package, but others can change the script that the unit names.
    """
    script = package.parent / "watchdog"
    script.write_text("from watchdog_app.cli import main\nraise SystemExit(main())\n")
    script.chmod(0o777)

    done = finished(
        [sys.executable, script, "desktop", "install"],
        env={"HOME": str(tmp_path / "home"), "PATH": os.defpath},
        timeout=120,
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert f"{script} belongs to " in done.stderr
    assert f"chmod go-w {script}" in done.stderr


@pytest.mark.parametrize("words", [("agent", "disable", "--user"), ("desktop", "remove")])
def test_what_was_placed_can_be_taken_away_by_code_that_others_can_change(
    package: Path, tmp_path: Path, words: tuple[str, ...]
):
    _one_file_open(package)

    done = watchdog(package, tmp_path / "home", *words)

    assert (0, "") == (done.returncode, done.stderr)


def test_nobody_is_told_to_close_a_folder_that_is_for_everybody(package: Path, tmp_path: Path):
    place = _sticky_above(package)

    done = watchdog(package, tmp_path / "home", "exec", "--", "echo", "ran")

    assert f"{place} belongs to " in done.stderr
    assert "chmod" not in done.stderr


@AS_ROOT
def test_code_that_the_private_group_of_its_owner_can_write_is_trusted(
    package: Path, tmp_path: Path
):
    """A checkout made with umask 002 is group-writable."""
    for each in (package.parent, package, *package.rglob("*")):
        each.chmod(0o775 if each.is_dir() else 0o664)

    done = watchdog(package, tmp_path / "home", "exec", "--no-guard", "--", "echo", "ran")
    on = watchdog(package, tmp_path / "home", "agent", "enable", "--user")
    shown = ipython(tmp_path, IS_ON, IPYTHONDIR=str(tmp_path / "home" / ".ipython"))

    assert (0, "ran\n") == (done.returncode, done.stdout)
    assert (0, "") == (on.returncode, on.stderr)
    assert "ON\n" == shown.stdout


def test_a_link_to_the_package_is_followed_once_and_its_target_recorded(
    package: Path, private: Path, tmp_path: Path
):
    """A later change of the link does not change the recorded target."""
    link = private / "linked"
    link.symlink_to(package.parent)
    code = "import watchdog_app; print(watchdog_app.__file__)"
    words = ("exec", "--no-guard", "--", sys.executable, "-c", code)

    done = watchdog(link / "watchdog_app", tmp_path / "home", *words)

    assert (f"{package / '__init__.py'}\n", "") == (done.stdout, done.stderr)
