"""Which training a rescue belongs to: real programs, killed and started again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import zygote
from support.finished import finished

from watchdog_app.rescue.checkpoint import format

pytestmark = pytest.mark.timeout(900)

PROGRAM = Path(__file__).parent / "programs" / "whose.py"
STRANGER = 65534
LOOPS = [
    pytest.param("torch", marks=pytest.mark.torch),
    pytest.param("tensorflow", marks=pytest.mark.tensorflow),
    pytest.param("keras", marks=pytest.mark.tensorflow),
    pytest.param("found", marks=pytest.mark.tensorflow),
]


# The framework of the process that a program is forked from, by its FRAMEWORK or WAY.
FORKED = {"tensorflow": "tensorflow", "keras": "tensorflow", "found": "tensorflow"}
FORKED |= {"torch": "torch", "two": "torch", "threads": "torch"}


@dataclass(frozen=True)
class Ran:
    """The output of one run of a program."""

    code: int
    began: list[int]  # steps after which its trainings started
    ended: list[int]
    lines: list[str]

    @property
    def words(self) -> str:
        return "\n".join(self.lines)


class Place:
    """A folder with programs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rescues_in = folder / "rescues"
        self.copy("train.py")

    def copy(self, name: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, self.folder / name)

    def command(self, *words: str, program: str) -> list[str]:
        return [sys.executable, program, *words]

    def environment(self, **told: object) -> dict[str, str]:
        own = {"WATCHDOG_RUNTIME_DIR": "no-daemon", "WATCHDOG_STATE_DIR": "state"}
        own["WATCHDOG_AGENT_STRICT"] = "1"
        return {**os.environ, **own, **{name: str(value) for name, value in told.items()}}

    def run(
        self,
        *words: str,
        program: str = "train.py",
        before: tuple[str, ...] = (),
        cwd: Path | None = None,
        **told: object,
    ) -> Ran:
        where, env = cwd or self.folder, self.environment(**told)
        framework = FORKED.get(str(told.get("FRAMEWORK") or told.get("WAY")))
        if framework and not before and program.endswith(".py"):
            done = zygote.run(where / program, *words, env=env, cwd=where, framework=framework)
        else:
            command = [*before, *self.command(*words, program=program)]
            done = finished(command, cwd=where, env=env)
        assert done.returncode in (0, -signal.SIGKILL, 137), done.stdout + done.stderr
        return ran(done.returncode, done.stdout, done.stderr)

    def kill(self, *words: str, step: int = 3, **told: object) -> Ran:
        """Train, save after a step, and be killed."""
        done = self.run(*words, STOP=step, **told)
        assert done.code != 0, done
        return done

    @contextmanager
    def alive(self, *words: str, before: tuple[str, ...] = (), **told: object) -> Iterator[None]:
        """A training that has saved and still runs."""
        process = subprocess.Popen(
            [*before, *self.command(*words, program="train.py")],
            cwd=self.folder,
            env=self.environment(STOP=3, WAIT=1, **told),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            assert process.stdout is not None
            try:
                assert any(line == "WAITS\n" for line in process.stdout)
                yield
            finally:
                process.kill()

    def rescues(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("rescue-*") if path.is_dir())


def ran(code: int, stdout: str, stderr: str) -> Ran:
    def after(word: str) -> list[int]:
        return [int(found) for found in re.findall(rf"^{word} (\d+)$", stdout, re.MULTILINE)]

    lines = [line for line in stderr.splitlines() if line.startswith("watchdog:")]
    return Ran(code, after("BEGINS"), after("ENDS"), lines)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def left_alone(done: Ran, *words: str) -> bool:
    """Check that the run started over, and that one line names the rescue and the difference."""
    lines = [line for line in done.lines if "left alone" in line]
    return [0] == done.began and 1 == len(lines) and all(word in lines[0] for word in words)


# The same training


@pytest.mark.parametrize("framework", LOOPS)
def test_the_same_program_goes_on_twice_and_is_then_finished(place: Place, framework: str):
    """A second kill comes after a resume; the run after the end starts over."""
    place.kill("--fold", "1", FRAMEWORK=framework)

    again = place.kill("--fold", "1", step=7, FRAMEWORK=framework)
    third = place.run("--fold", "1", FRAMEWORK=framework)
    anew = place.run("--fold", "1", FRAMEWORK=framework)

    assert [3] == again.began
    assert ([7], [10]) == (third.began, third.ended)
    assert ([0], [10]) == (anew.began, anew.ended)
    assert "left alone" not in third.words + anew.words


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("--seed 1 --fold 2", "--fold 2 --seed 1"),
        ("--seed=1 --data x", "--data=x --seed 1"),
        ("--data-dir x", "--data_dir x"),
        ("--seed 1", "--seed 1 --resume"),
        ("data --seed 1", "--seed 1 data"),
    ],
)
def test_another_way_to_write_the_same_arguments_is_the_same(place: Place, first: str, then: str):
    """Order and spelling differ."""
    place.kill(*first.split())

    assert [3] == place.run(*then.split()).began


@pytest.mark.parametrize(
    ("first", "then", "named"),
    [
        ("--epochs 2", "--epochs 4", "--epochs 4 (was 2)"),
        ("--num-workers 2", "--num-workers 4", "--num-workers 4 (was 2)"),
        ("--lr 0.1", "--lr 0.2", "--lr 0.2 (was 0.1)"),
        ("--batch-size=2", "--batch-size=4", "--batch-size 4 (was 2)"),
        ("", "--device cpu", "--device cpu (was not given)"),
        ("--log-dir a --verbose", "--log-dir b", "--log-dir b (was a)"),
        ("trainer.max_epochs=2", "trainer.max_epochs=4", "trainer.max_epochs 4 (was 2)"),
    ],
)
def test_more_epochs_workers_and_the_like_go_on_and_are_named(
    place: Place, first: str, then: str, named: str
):
    """These options do not make another training."""
    place.kill(*first.split())

    done = place.run(*then.split())

    assert [3] == done.began
    assert 1 == sum(named in line for line in done.lines)


@pytest.mark.parametrize("framework", [LOOPS[0], LOOPS[2]])
def test_more_epochs_are_really_trained(place: Place, framework: str):
    """The resume trains them."""
    place.kill("--epochs", "2", FRAMEWORK=framework)

    done = place.run("--epochs", "4", FRAMEWORK=framework, EPOCHS=4)

    assert ([3], [20]) == (done.began, done.ended)


def test_the_way_to_the_script_and_the_working_folder_do_not_matter(place: Place):
    """The start uses an absolute path, another folder, a link or interpreter options."""
    folder = str(place.rescues_in)
    (place.folder / "link.py").symlink_to("train.py")
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    place.kill(FOLDER=folder, step=1)

    began = [
        place.kill(program="./train.py", FOLDER=folder, step=2).began,
        place.kill(program=str(place.folder / "train.py"), FOLDER=folder, step=3).began,
        place.kill(program="../train.py", FOLDER=folder, step=4, cwd=elsewhere).began,
        place.kill(program="link.py", FOLDER=folder, step=5).began,
        place.kill("train.py", program="-uBWignore", FOLDER=folder, step=6).began,
        place.kill("train", program="-m", FOLDER=folder, step=7).began,
    ]

    assert [[1], [2], [3], [4], [5], [6]] == began


@pytest.mark.parametrize("words", [(), ("--seed", "1", "--data", "data")])
def test_a_program_that_moved_with_its_rescues_goes_on_and_is_named(
    tmp_path: Path, words: tuple[str, ...]
):
    """Another checkout or mount changes the path, but not relative to the rescues."""
    before, now = tmp_path / "before", tmp_path / "now"
    (before / "data").mkdir(parents=True)
    place = Place(before)
    place.kill(*words)
    before.rename(now)
    place.folder = now

    done = place.run(*words)

    assert [3] == done.began
    assert f"{before}/train.py and its rescues have moved to {now}/train.py" in done.words


def test_a_script_that_moved_away_from_its_rescues_is_another(place: Place):
    """The agent cannot tell them apart."""
    place.kill(FOLDER=place.rescues_in)
    (place.folder / "elsewhere").mkdir()
    (place.folder / "train.py").rename(place.folder / "elsewhere" / "train.py")

    assert left_alone(
        place.run(program="elsewhere/train.py", FOLDER=place.rescues_in), "elsewhere/train.py"
    )


def test_a_program_that_starts_itself_anew_in_its_process_goes_on(place: Place):
    """After `os.execv` the process has lost its memory."""
    done = place.run(EXECV=1, STOP=3)

    assert ([0, 3], [10]) == (done.began, done.ended)


@pytest.mark.parametrize("argv", [[], [""], ["x", "--seed", "9"], None, "x"])
def test_what_a_program_does_to_its_arguments_does_not_matter(place: Place, argv: object):
    """The original command line counts."""
    place.kill("--seed", "1")

    other = place.run("--seed", "2", ARGV=json.dumps(argv))
    same = place.run("--seed", "1", ARGV=json.dumps(argv))

    assert left_alone(other, "--seed")
    assert [3] == same.began


# Another training


@pytest.mark.parametrize("framework", LOOPS[:3])
def test_the_rescue_of_another_script_is_left_alone(place: Place, framework: str):
    """Both use one folder and the same variables."""
    place.kill(FRAMEWORK=framework)
    place.copy("eval.py")

    done = place.run(program="eval.py", FRAMEWORK=framework)

    assert left_alone(done, "train.py", "eval.py", 'resume="force"')
    assert 1 == len(place.rescues())


def test_the_same_name_in_another_folder_is_another_script(place: Place):
    """The real path counts, and the message shows it."""
    place.copy("copy/train.py")
    place.kill(FOLDER=place.rescues_in)

    done = place.run(program="copy/train.py", FOLDER=place.rescues_in)

    assert left_alone(done, f"{place.folder}/train.py", f"{place.folder}/copy/train.py")


@pytest.mark.parametrize("framework", LOOPS[:3])
def test_other_arguments_are_another_training_and_never_shown(place: Place, framework: str):
    """Neither value is printed or stored in the folder."""
    place.kill("--seed", "s3cret-1", FRAMEWORK=framework)

    done = place.run("--seed", "s3cret-2", FRAMEWORK=framework)

    assert left_alone(done, "--seed")
    assert "s3cret" not in done.words
    for path in place.rescues_in.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()
    assert 1 == len(place.rescues())


@pytest.mark.parametrize(
    ("first", "then", "named"),
    [
        ("--fold 1", "--fold 2", "--fold"),
        ("--data a", "--data b", "--data"),
        ("mnist", "cifar", "argument 1"),
        ("--amp", "", "--amp"),
        ("", "--amp", "--amp"),
        ("-s 1", "-s 2", "-s"),
        ("--verbose mnist", "--verbose cifar", "argument 1"),
        ("data.name=a lr=0.1", "data.name=b lr=0.1", "data.name"),
    ],
)
def test_each_kind_of_other_argument_is_named(place: Place, first: str, then: str, named: str):
    """The message has the argument's name."""
    place.kill(*first.split())

    assert left_alone(place.run(*then.split()), named)


def test_each_of_two_argument_sets_gets_its_own_state_back(place: Place):
    """Two folds in one folder are killed and restarted in the other order."""
    place.kill("--fold", "1", step=3)
    place.kill("--fold", "2", step=4)

    assert [4] == place.kill("--fold", "2", step=5).began
    assert [3] == place.run("--fold", "1").began
    assert [5] == place.run("--fold", "2").began


def test_another_program_never_prunes_the_only_rescue(place: Place):
    """It saves often, and keeps one rescue."""
    place.kill("--fold", "1")
    (only,) = place.rescues()

    for step in (1, 2, 3, 4):
        place.kill("--fold", "2", step=step, WISHES='{"keep": 1}')

    assert only in place.rescues()
    assert 2 == len(place.rescues())
    assert [3] == place.run("--fold", "1").began


@pytest.mark.parametrize("wish", ["newest", True])
def test_newest_does_not_take_another_programs_rescue(place: Place, wish: object):
    place.kill("--fold", "1")

    done = place.run("--fold", "2", WISHES=json.dumps({"resume": wish}))

    assert left_alone(done, "--fold")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_force_takes_another_trainings_rescue_and_goes_on_by_itself_later(place: Place, how: str):
    """The rescue then belongs to this training."""
    place.kill("--fold", "1")
    force = {"WISHES": '{"resume": "force"}'} if how == "argument" else {}
    force |= {"WATCHDOG_AGENT_RESUME": "force"} if how == "environment" else {}

    taken = place.kill("--fold", "2", step=6, **force)
    after = place.run("--fold", "2")

    assert [3] == taken.began
    assert "--fold" in taken.words
    assert [6] == after.began


def test_a_rescue_of_an_earlier_version_is_left_alone_until_it_is_forced(place: Place):
    """It does not name a program."""
    place.kill()
    (name,) = place.rescues()
    old = place.rescues_in / name
    old.rename(place.rescues_in / name.rpartition("-")[0])
    for lock in place.rescues_in.glob("run-*.lock"):
        lock.unlink()

    assert left_alone(place.run(), "an earlier watchdog", 'resume="force"')
    assert [3] == place.run(WISHES='{"resume": "force"}').began
    assert [0] == place.run().began


def test_a_rescue_of_the_first_format_is_left_alone_until_it_is_forced(place: Place):
    """It says too little about its program."""
    place.kill()
    (name,) = place.rescues()
    described = place.rescues_in / name / format.MANIFEST_FILE
    body = json.loads(described.read_text())["rescue"]
    body["meta"]["run"] = body.pop("run")
    text = json.dumps({**body, "format": 1}).encode()
    head = b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text)
    described.write_bytes(head + text + b"}\n")

    assert left_alone(place.run(), "an earlier watchdog, which noted too little", 'resume="force"')
    assert [3] == place.run(WISHES='{"resume": "force"}').began


@pytest.mark.tensorflow
def test_a_fit_without_a_line_in_its_code_names_what_lies_beside(place: Place):
    """Each script and its arguments have their own rescue folder."""
    place.copy("eval.py")
    place.kill("--seed", "1", FRAMEWORK="found")

    other = place.run("--seed", "2", FRAMEWORK="found")
    script = place.run(program="eval.py", FRAMEWORK="found")

    assert left_alone(other, "--seed")
    assert left_alone(script, "train.py", "eval.py")
    assert [3] == place.run("--seed", "1", FRAMEWORK="found").began


@pytest.mark.tensorflow
def test_a_fit_without_a_line_in_its_code_goes_on_however_it_is_started(place: Place):
    """Examples are a start as a module and another spelling of the same path."""
    (place.folder / "c.yaml").touch()
    place.kill("--config", "c.yaml", FRAMEWORK="found")

    done = place.run("train", "--config", "./c.yaml", program="-m", FRAMEWORK="found")

    assert [3] == done.began


# Which process is alive


PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.parametrize("outer", [(), PID_NAMESPACE], ids=["here", "pid-namespace"])
@pytest.mark.parametrize("inner", [(), PID_NAMESPACE], ids=["here", "pid-namespace"])
def test_a_training_that_is_alive_is_left_alone(place: Place, outer, inner):
    """No option takes its rescue. After a kill it resumes."""
    if os.geteuid() != 0 and (outer or inner):
        pytest.skip("unshare --pid needs root")
    with place.alive(before=outer):
        done = place.run(before=inner)
        forced = place.run(before=inner, WISHES='{"resume": "force"}')

    assert left_alone(done, "still runs")
    assert left_alone(forced, "still runs")
    assert [3] == place.run(before=inner).began


def test_a_lock_file_that_was_copied_over_frees_no_training_that_is_alive(place: Place):
    """The agent also checks the process, even for a copy of the whole folder."""
    with place.alive():
        (lock,) = place.rescues_in.glob("run-*.lock")
        copy = place.folder / "copy"
        shutil.copytree(place.rescues_in, copy)
        lock.unlink()
        shutil.copy(copy / lock.name, lock)

        replaced = place.run()
        copied = place.run(FOLDER=copy)

    assert left_alone(replaced, "still runs")
    assert left_alone(copied, "still runs")
    assert [3] == place.run().began


def test_a_worker_that_outlives_its_parent_keeps_nothing(place: Place):
    """The training is dead, but its forked child still sleeps."""
    process = subprocess.Popen(
        place.command(program="train.py"), cwd=place.folder, start_new_session=True,
        env=place.environment(WAY="forked", STOP=3),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert -signal.SIGKILL == process.wait(timeout=200)
        done = place.run()
    finally:
        os.killpg(process.pid, signal.SIGKILL)

    assert [3] == done.began


def test_two_that_start_at_once_do_not_swap(place: Place):
    """Both run one program in one folder: the second starts over, and both can be resumed."""
    with place.alive():
        place.kill(step=5)

    newest = place.kill(step=8)
    assert [5] == newest.began
    assert 1 == sum("another unfinished run" in line for line in newest.lines)
    assert ([8], [10]) == ((last := place.run()).began, last.ended)
    assert [3] == place.run().began


def test_each_of_two_learning_rates_gets_its_own_state_back(place: Place):
    """They run in two terminals: exact options take precedence over the newest rescue."""
    with place.alive("--lr", "0.1"):
        place.kill("--lr", "0.01", step=5)

    assert [3] == place.kill("--lr", "0.1", step=7).began
    assert [5] == place.kill("--lr", "0.01", step=8).began
    other = place.run("--lr", "0.2")
    assert [8] == other.began
    assert "--lr 0.2 (was 0.01)" in other.words


def test_a_requeued_slurm_job_goes_on_although_its_node_was_seen_just_now(place: Place):
    """The rescue of the same restarted job on another machine counts."""
    place.kill(SLURM_JOB_ID=77)
    on_another_machine(place, age_s=5)

    assert [0] == place.run().began
    assert [3] == place.run(SLURM_JOB_ID=77, SLURM_RESTART_COUNT=1).began


@pytest.mark.parametrize(
    ("age_s", "began", "word"), [(5, 0, "may still run"), (3600, 3, "left 1 h")]
)
def test_another_machine_is_believed_dead_after_a_quarter_of_an_hour(
    place: Place, age_s: int, began: int, word: str
):
    """The time of its last sign of life decides, and the message says so."""
    place.kill()
    on_another_machine(place, age_s=age_s)

    done = place.run()

    assert [began] == done.began
    assert word in done.words
    assert "gpu3" in done.words


def on_another_machine(place: Place, age_s: int) -> None:
    (lock,) = place.rescues_in.glob("run-*.lock")
    owner = json.loads(lock.read_text())
    other = {"host": "gpu3", "machine": "0" * 32, "boot": "x", "namespace": "00000000"}
    lock.write_text(json.dumps({**owner, **other}))
    (rescue,) = (each for each in place.rescues_in.glob("rescue-*"))
    then = os.stat(lock).st_mtime - age_s
    for path in (lock, rescue, *rescue.iterdir()):
        os.utime(path, (then, then))


# Two trainings of one program


@pytest.mark.torch
def test_the_second_of_two_trainings_goes_on_in_its_turn(place: Place):
    """The first had ended: it trains from the start and does not take the other's state."""
    place.kill(WAY="two", ORDER="first second", HALT="second")

    done = place.run(WAY="two", ORDER="first second")

    assert ([0, 3], [10, 10]) == (done.began, done.ended)


@pytest.mark.torch
@pytest.mark.parametrize("named", ["", "1"])
def test_trainings_that_change_places_get_their_own_state_back(place: Place, named: str):
    """The starting function or a name identifies them."""
    place.kill(WAY="two", ORDER="first second", HALT="first", NAMED=named)

    done = place.run(WAY="two", ORDER="second first", NAMED=named)

    assert ([0, 3], [10, 10]) == (done.began, done.ended)


@pytest.mark.parametrize("way", ["folds", "loop"])
def test_a_rerun_that_skips_finished_folds_gives_each_fold_its_own_state(place: Place, way: str):
    """The fold decides, not the number of trainings that this process started before."""
    place.kill(WAY=way, HALT=1)
    (place.folder / "result-1").touch()  # the user skips this fold for now

    other = place.kill(WAY=way, HALT=2, step=4)
    assert left_alone(other, "belongs to another training of train.py (another value of", "fold)")
    (place.folder / "result-1").unlink()
    rest = place.run(WAY=way)

    assert ([3, 4], [10, 10]) == (rest.began, rest.ended)


def test_a_rerun_that_skips_the_first_of_two_calls_of_a_helper_begins_anew(place: Place):
    """The helper gets only objects, so the call's position identifies the training."""
    place.kill(WAY="helper", HALT="first")

    other = place.run(WAY="helper", SKIP="first")
    same = place.run(WAY="helper")

    assert left_alone(other, "belongs to another training of train.py")
    assert ([3, 0], [10, 10]) == (same.began, same.ended)


def test_another_name_is_another_training(place: Place):
    """The message names it."""
    place.kill(WISHES='{"name": "a"}')

    assert left_alone(place.run(WISHES='{"name": "b"}'), "another training", "name=")
    assert [3] == place.run(WISHES='{"name": "a"}').began


@pytest.mark.torch
def test_two_threads_train_in_one_folder(place: Place):
    """Both finish."""
    done = place.run(WAY="threads")

    assert ([0, 0], [10, 10]) == (done.began, done.ended)
    assert not list(place.rescues_in.rglob("*.lock"))


@pytest.mark.parametrize(
    ("variable", "first", "then"),
    [("RANK", "0", "1"), ("SLURM_ARRAY_TASK_ID", "1", "2")],
)
def test_each_worker_and_each_task_of_an_array_has_its_own(
    place: Place, variable: str, first: str, then: str
):
    """They share script, arguments and folder."""
    place.kill(**{variable: first})

    assert left_alone(place.run(**{variable: then}), "another worker or task")
    assert [3] == place.run(**{variable: first}).began


# Folders that others can write, and odd files


@pytest.mark.parametrize("kind", ["stranger", "everybody", "link", "pipe", "hard link"])
def test_a_note_that_may_be_a_strangers_is_not_believed(place: Place, kind: str):
    """It claims that all trainings have finished."""
    if kind == "stranger" and os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    place.kill()
    (name,) = place.rescues()
    note = place.rescues_in / name / "finished"
    target = place.folder / "elsewhere"
    if kind == "pipe":
        os.mkfifo(note)
    elif kind in ("link", "hard link"):
        target.touch()
        note.symlink_to(target) if kind == "link" else note.hardlink_to(target)
    else:
        note.touch()
        note.chmod(0o666 if kind == "everybody" else 0o600)
        if kind == "stranger":
            os.chown(note, STRANGER, STRANGER)

    assert [3] == place.kill(step=4).began


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_stranger_who_copies_a_rescue_takes_nothing_from_its_training(place: Place):
    """
    The copy has the run's name and is the newest:

    the training neither resumes from it nor counts it.
    """
    place.kill(step=3)
    (name,) = place.rescues()
    planted = place.rescues_in / f"rescue-0000000009-000099-{name.split('-', 3)[3]}"
    shutil.copytree(place.rescues_in / name, planted)
    for path in (planted, *planted.iterdir()):
        os.chown(path, STRANGER, STRANGER)

    again = place.kill(step=5, WISHES='{"keep": 1}')
    last = place.run()

    assert ([3], [5]) == (again.began, last.began)
    assert "was put there by another user: to resume from it, copy it yourself." in again.words


ODD = (
    "rescue-0000000001-000001-1.1.00000000",
    f"rescue-0000000001-{'9' * 200}-1.1.00000000",
    "rescue-0000000001-999999999999-1.1.00000000-000000000000",
    "rescue-0000000001-999999999-1.1.00000000-000000000000",
    "rescue-",
    "rescue--",
    "rescue-\udcff\udcfe-x",
    ".partial-1.1.00000000-1",
    ".partial-",
    "run-.lock",
    "run-000000000000.lock",
    " ",
    "-",
    "x" * 255,
)


@pytest.mark.parametrize("kind", ["folder", "file", "link", "loop", "pipe"])
def test_odd_names_end_no_save_and_no_resume(place: Place, kind: str):
    """These are empty folders, links, pipes and files with similar names."""
    place.kill()
    for name in ODD:
        path = os.fsencode(str(place.rescues_in)) + b"/" + os.fsencode(name)
        if kind == "folder":
            os.mkdir(path)
        elif kind == "file":
            with open(path, "wb") as file:
                file.write(b"\xff\0{")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            os.symlink(b"/nowhere" if kind == "link" else path, path)

    assert [3] == place.kill(step=5).began
    last = place.run()
    assert ([5], [10]) == (last.began, last.ended)


@pytest.mark.parametrize("content", [b"", b"[" * 9000, b'{"pid": 1e999}', b"\xff", b'{"pid": "x"}'])
def test_a_lock_file_may_hold_anything(place: Place, content: bytes):
    """Its lock counts, and the rescue names the owner."""
    place.kill()
    (lock,) = place.rescues_in.glob("run-*.lock")
    lock.write_bytes(content)

    assert [3] == place.run().began


def test_locks_of_trainings_that_saved_nothing_go_away(place: Place):
    """The folder must not fill with them; a finished training leaves none."""
    place.kill(UNSAVED=1)
    left = list(place.rescues_in.glob("run-*.lock"))
    place.run()

    assert 1 == len(left)
    assert [] == list(place.rescues_in.glob("run-*.lock"))


def test_files_of_a_run_are_private(place: Place):
    """No other user can read them."""
    place.kill()

    (lock,) = place.rescues_in.glob("run-*.lock")
    (rescue,) = place.rescues_in.glob("rescue-*")
    assert [0o600, 0o700] == [path.stat().st_mode & 0o777 for path in (lock, rescue)]
