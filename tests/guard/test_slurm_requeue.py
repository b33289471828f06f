"""Jobs of Slurm that are requeued, with a `scontrol` that notes what it is told."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.finished import finished
from support.waiting import until

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB
from watchdog_app.guard import slurm
from watchdog_app.guard.slurm import Limits
from watchdog_app.rescue.checkpoint import names

PROGRAM = Path(__file__).parents[1] / "agent" / "programs" / "announced.py"
RESCUE = "rescue-{step:010d}-000001-4711.815.1a2b3c4d-{run}"
SHOWN = """JobId=7 JobName=train.py
   JobState={state} Reason=None Dependency=(null)
   Requeue={requeue} Restarts={restarts} BatchFlag={batch} Reboot=0 ExitCode=0:0
   StartTime=1700000000 EndTime={end} Deadline=N/A
   PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime={preempt}
   Partition=low AllocNode:Sid=localhost:11902
   NumNodes=1 NumCPUs=2 NumTasks=1 CPUs/Task=1
   MinCPUsNode=1 {memory} MinTmpDiskNode=0
   Comment={comment}
"""
USUAL = {
    "state": "RUNNING", "requeue": 1, "restarts": 0, "batch": 1, "end": "Unknown",
    "preempt": "None", "memory": "MinMemoryNode=900M", "comment": "",
}  # fmt: skip
TOLD = f"""\
#!{sys.executable}
import json, os, sys
folder = os.path.dirname(sys.argv[0])
name = os.path.basename(sys.argv[0])
if name == "sinfo":
    print("4000\\n8000")
elif sys.argv[1] == "show":
    shown = "MaxMemPerNode=" + os.environ.get("MOST", "UNLIMITED")
    print(open(folder + "/shown").read() if sys.argv[2] == "job" else shown)
else:
    with open(folder + "/told", "a") as file:
        print(json.dumps(sys.argv[1:]), file=file)
    if sys.argv[1] == os.environ.get("FAILS"):
        sys.exit("Access/permission denied")
"""


UPDATE = "scontrol update JobId=7 'Comment=watchdog: "

# Programs that start the training: a shell passes no signal on, srun kills its task at SIGTERM.
SHELL = ("sh", "-c", '"$@"; echo after', "sh")
SRUN = (
    "bash", "-c", 'exec -a srun bash -c "$0" "$@"',
    """trap 'kill -KILL $!' TERM; trap 'kill -USR1 $!' USR1; "$@" & wait; wait; exit 138""", "srun",
)  # fmt: skip


class FakeSlurm:
    """The commands of Slurm in a folder that comes first in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("scontrol", "sinfo"):
            (folder / name).write_text(TOLD)
            (folder / name).chmod(0o755)
        self.show()

    def show(self, **different: object) -> None:
        (self.folder / "shown").write_text(SHOWN.format(**{**USUAL, **different}))

    @property
    def told(self) -> list[list[str]]:
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def environment(self, root: Path, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "WATCHDOG_RUNTIME_DIR": str(root / "run"),
            "WATCHDOG_STATE_DIR": str(root / "state"),
            "WATCHDOG_CONFIG": str(root / "config.toml"),
            "TMPDIR": str(root),
            **more,
        }


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found


def job(fake: FakeSlurm, **different: object) -> slurm.Job:
    fake.show(**different)
    return slurm.read_job("7")


def rescue(folder: Path, step: int, run: str = "d0f725f35bb2", *, finished: bool = False) -> str:
    path = folder / RESCUE.format(step=step, run=run)
    path.mkdir(parents=True)
    if finished:
        names.mark_finished(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("shown", "size"),
    [
        ("MinMemoryNode=900M", 900 * MIB),
        ("MinMemoryCPU=1G", 2048 * MIB),
        ("MinMemoryNode=0", None),
        ("", None),
    ],
)
def test_the_memory_of_a_job_is_that_of_one_node(fake: FakeSlurm, shown: str, size: object) -> None:
    assert size == job(fake, memory=shown).memory_bytes


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({"SLURM_MEM_PER_NODE": "900"}, 900 * MIB),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "4"}, 400 * MIB),
        ({"SLURM_MEM_PER_GPU": "1000", "SLURM_GPUS_ON_NODE": "2"}, 2000 * MIB),
        ({"SLURM_MEM_PER_NODE": "900", "SLURM_STEP_TASKS_PER_NODE": "3(x2)"}, 300 * MIB),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({}, None),
    ],
)
def test_the_environment_says_how_much_memory_the_job_has(
    variables: dict[str, str], size: int | None
) -> None:
    assert size == slurm.memory_bytes({"SLURM_JOB_ID": "7", **variables})
    assert slurm.memory_bytes(variables) is None


def test_the_guard_stays_inside_the_memory_of_the_job(tmp_path: Path, fake: FakeSlurm) -> None:
    shown = finished(
        [sys.executable, "-m", "watchdog_app", "exec", "--", sys.executable, "-c",
         "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"],
        env=fake.environment(tmp_path, SLURM_MEM_PER_NODE="900"),
    )  # fmt: skip
    assert 0 < int(shown.stdout) < 900 * MIB, shown.stderr
    assert "follows the machine" not in shown.stderr


def test_a_comment_keeps_what_the_user_wrote_and_remembers_the_rescue(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    path, comment = rescue(tmp_path, 5), "account=ml"
    for _ in range(2):
        found = job(fake, comment=comment)
        (update, *_) = slurm.commands(found, "its time was over", path, None)
        comment = update[-1].removeprefix("Comment=")
        assert comment == f"account=ml | watchdog: its time was over, requeued; saved {path}"
    assert path == job(fake, comment=comment).saved_before
    assert job(fake, comment="account=ml").saved_before is None


def test_a_job_without_progress_is_not_requeued_again(tmp_path: Path, fake: FakeSlurm) -> None:
    limits = Limits(0, 10)
    before = rescue(tmp_path, 5)
    found = job(fake, comment=f"watchdog: out of memory, requeued; saved {before}")

    def requeued(*saved: str) -> bool:
        return slurm.why_not(found, saved, limits) is None

    further = rescue(tmp_path, 6)
    assert requeued(further)
    assert not requeued(before)
    assert not requeued()
    # Another run of an unfinished program has started over.
    again = rescue(tmp_path, 7, "aaaaaaaaaaaa")
    assert not requeued(again)
    assert requeued(further, again)
    assert not requeued(rescue(tmp_path / "train.py-2", 7, "cccccccccccc"))
    os.rmdir(before)
    rescue(tmp_path, 5, finished=True)
    assert requeued(rescue(tmp_path, 1, "bbbbbbbbbbbb"))


def test_the_number_of_requeues_has_a_bound(fake: FakeSlurm) -> None:
    found = job(fake, restarts=3)
    assert slurm.why_not(found, ["x"], Limits(0, 4)) is None
    told = job(fake, restarts=3, comment="mine Restarts=0 Partition=high")
    assert (3, "low") == (told.restarts, told.partition)
    assert "slurm.max_requeues" in (slurm.why_not(found, ["x"], Limits(0, 3)) or "")


def test_the_next_memory_is_bounded_by_nodes_partition_and_setting(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = job(fake, memory="MinMemoryNode=4000M")
    assert 5000 * MIB == slurm.more_memory(found, 3000 * MIB, Limits(0, 1))
    assert 7500 * MIB == slurm.more_memory(found, 6000 * MIB, Limits(0, 1))
    assert 8000 * MIB == slurm.more_memory(found, 7900 * MIB, Limits(0, 1))
    assert 4500 * MIB == slurm.more_memory(found, 4000 * MIB, Limits(4500 * MIB, 1))
    for needed, limits in ((8001, Limits(0, 1)), (4000, Limits(4000 * MIB, 1))):
        with pytest.raises(WatchdogError, match=r"slurm\.max_memory"):
            slurm.more_memory(found, needed * MIB, limits)
    monkeypatch.setenv("MOST", "4200")
    assert 4200 * MIB == slurm.more_memory(found, 4000 * MIB, Limits(0, 1))


def watchdog(fake: FakeSlurm, root: Path, *words: str, **more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "watchdog_app", *words]
    return finished(command, env=fake.environment(root, **more))


def test_dry_run_prints_all_commands_and_runs_none(tmp_path: Path, fake: FakeSlurm) -> None:
    done = watchdog(fake, tmp_path, "slurm", "requeue", "--mem", "2G", "--dry-run")
    assert (0, []) == (done.returncode, fake.told)
    assert [
        "scontrol update JobId=7 'Comment=watchdog: asked for by hand, requeued with 2048M'",
        "scontrol requeuehold 7",
        "scontrol update JobId=7 MinMemoryNode=2048",
        "scontrol release 7",
    ] == done.stdout.splitlines()
    done = watchdog(fake, tmp_path, "slurm", "requeue", "--mem", "2048")
    assert "scontrol update JobId=7 MinMemoryNode=2048" in done.stdout.splitlines()
    assert ["update", "requeuehold", "update", "release"] == [each[0] for each in fake.told]


@pytest.mark.parametrize(
    ("different", "out_of_memory"),
    [
        (
            {},
            [
                "# out of memory:",
                f"{UPDATE}out of memory, requeued with 1125M; saved RESCUE'",
                "scontrol requeuehold 7",
                "scontrol update JobId=7 MinMemoryNode=1125",
                "scontrol release 7",
            ],
        ),
        (
            {"memory": ""},
            ["# out of memory: not requeued: it may use all memory of its node already"],
        ),
    ],
)
def test_exec_prints_the_commands_of_each_end_and_runs_nothing(
    tmp_path: Path, fake: FakeSlurm, different: dict[str, str], out_of_memory: list[str]
) -> None:
    fake.show(**different)
    words = ("exec", "--requeue", "--dry-run", "--", "touch", str(tmp_path / "ran"))
    done = watchdog(fake, tmp_path, *words)
    assert (0, []) == (done.returncode, fake.told), done.stderr
    assert not (tmp_path / "ran").exists()
    lines = done.stdout.splitlines()
    assert [
        "# its time was over:",
        f"{UPDATE}its time was over, requeued; saved RESCUE'",
        "scontrol requeue 7",
        "# preempted:",
    ] == lines[1:5]
    assert out_of_memory == lines[7:]


def test_a_job_that_was_requeued_too_often_has_no_commands_but_those_of_a_preemption(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    fake.show(restarts=99)
    done = watchdog(fake, tmp_path, "exec", "--requeue", "--dry-run", "--", "true")
    assert ["scontrol requeue 7"] == [
        each for each in done.stdout.splitlines() if "requeue 7" in each
    ]
    assert 2 == done.stdout.count("not requeued: it was requeued 99 times")


@pytest.mark.parametrize("words", ["slurm requeue", "exec --requeue -- true"])
@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({"SLURM_JOB_ID": ""}, "This is no Slurm job"),
        ({"PATH": "/nowhere"}, "There is no scontrol here"),
        ({"requeue": "0"}, "sbatch --requeue"),
        ({"batch": "0"}, "is interactive"),
        ({"comment": "\n\nJobId=8 JobName=x"}, "is an array of jobs"),
    ],
)
def test_what_cannot_be_requeued_is_an_error_before_anything_runs(
    tmp_path: Path, fake: FakeSlurm, words: str, different: dict[str, str], said: str
) -> None:
    fake.show(**different)
    done = watchdog(fake, tmp_path, *words.split(), **different)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert [] == fake.told


def test_a_script_announces_its_end_and_appends_to_its_output(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    words = ("--time", "1-12:00:00", "--mem", "32G", "--gpus", "2", "train.py", "--note", "a b")
    lines = watchdog(fake, tmp_path, "slurm", "script", *words).stdout.splitlines()
    for option in (
        "time=1-12:00:00", "mem=32768M", "gpus=2", "signal=B:USR1@120", "requeue",
        "open-mode=append",
    ):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith("train.py --note 'a b'")
    assert "exec --requeue --" in lines[-1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--mem 32.5G train.py", "#SBATCH --mem=33280M"),
        ("--mem 1GiB train.py", "#SBATCH --mem=1024M"),
        ("--mem '32 G' train.py", "#SBATCH --mem=32768M"),
        ("--mem 900 train.py", "#SBATCH --mem=900M"),
        ("'my dir/tr ain\n#ü.py'", "#SBATCH --job-name=tr_ain__ü.py"),
        ("--mem=-5 train.py", None),
        ("--mem '' train.py", None),
        ("--gpus '' train.py", None),
        ("--partition 'a b' train.py", None),
    ],
)
def test_a_script_has_only_values_that_sbatch_takes(words: str, line: str | None) -> None:
    done = finished([sys.executable, "-m", "watchdog_app", "slurm", "script", *shlex.split(words)])
    assert (2 if line is None else 0) == done.returncode
    assert line is None or line in done.stdout.splitlines()


def end_training(
    fake: FakeSlurm, root: Path, number: int, starter: Sequence[str] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Send a signal to the batch script, which runs a training."""
    folder = root / "rescues"
    folder.mkdir(exist_ok=True)
    marker = folder / "third-step"
    marker.unlink(missing_ok=True)
    command = [sys.executable, "-m", "watchdog_app", "exec", "--requeue", "--no-guard", "--"]
    with subprocess.Popen(
        [*command, *starter, sys.executable, str(PROGRAM), str(folder), "training"],
        env=fake.environment(root, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until(marker.exists, "three steps")
            process.send_signal(number)
            said, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


@pytest.mark.parametrize(
    ("starter", "code"), [((), 128 + signal.SIGUSR1), (SHELL, 128 + signal.SIGTERM), (SRUN, 138)]
)
def test_at_the_announced_end_of_its_time_it_is_saved_and_requeued(
    tmp_path: Path, fake: FakeSlurm, starter: Sequence[str], code: int
) -> None:
    done = end_training(fake, tmp_path, signal.SIGUSR1, starter)

    assert code == done.returncode, done.stderr
    assert "SIGUSR1: saved at step" in done.stderr
    update, requeue = fake.told
    assert ["requeue", "7"] == requeue
    comment = update[-1].removeprefix("Comment=")
    assert "its time was over, requeued; saved " in comment
    assert os.path.isdir(comment.rpartition("saved ")[2])


@pytest.mark.parametrize(
    ("before", "most", "said"),
    [
        (1, "10", "requeued; saved "),
        (9999, "10", "was not requeued: its time was over; it has made no progress"),
        (1, "2", "was not requeued: its time was over; it was requeued 2 times"),
    ],
)
def test_a_later_start_is_requeued_while_it_makes_progress(
    tmp_path: Path, fake: FakeSlurm, before: int, most: str, said: str
) -> None:
    end_training(fake, tmp_path, signal.SIGUSR1)
    comment = fake.told[0][-1].removeprefix("Comment=")
    # The program counts its steps from 0 again, so the step that it had is moved.
    comment = re.sub(r"rescue-\d+", f"rescue-{before:010d}", comment)
    fake.show(comment=comment, restarts=2)

    done = end_training(fake, tmp_path, signal.SIGUSR1, WATCHDOG_SLURM_MAX_REQUEUES=most)

    assert "resumed from step" in done.stdout
    assert said in done.stderr
    assert (4 if "not" not in said else 2) == len(fake.told)


def test_a_job_that_slurm_ends_by_itself_is_left_to_slurm(tmp_path: Path, fake: FakeSlurm) -> None:
    fake.show(state="COMPLETING")
    done = end_training(fake, tmp_path, signal.SIGTERM)
    assert "SIGTERM: saved at step" in done.stderr
    assert [] == fake.told


@pytest.mark.parametrize("starter", [(), SHELL, SRUN])
def test_a_preemption_with_a_grace_time_requeues_the_job(
    tmp_path: Path, fake: FakeSlurm, starter: Sequence[str]
) -> None:
    fake.show(preempt="2026-01-01T00:00:00")
    done = end_training(fake, tmp_path, signal.SIGTERM, starter)
    assert "preempted, requeued; saved " in done.stderr
    assert ["update", "requeue"] == [each[0] for each in fake.told]


def test_sigterm_near_the_end_of_a_running_job_announces_that_end(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    end = str(time.time() + 300)
    end_training(fake, tmp_path, signal.SIGTERM, SLURM_JOB_END_TIME=end)
    assert ["update", "requeue"] == [each[0] for each in fake.told]


def test_an_end_that_nothing_announces_is_met_in_time(tmp_path: Path, fake: FakeSlurm) -> None:
    end = time.time() + 20
    done = end_training(fake, tmp_path, 0, SLURM_JOB_END_TIME=str(end))  # 0 is no signal
    assert time.time() < end
    assert "its time was over, requeued; saved " in done.stderr
    assert ["update", "requeue"] == [each[0] for each in fake.told]


def test_a_training_that_is_ended_by_hand_is_not_requeued(tmp_path: Path, fake: FakeSlurm) -> None:
    done = end_training(fake, tmp_path, signal.SIGTERM)
    assert "SIGTERM: saved at step" in done.stderr
    assert [] == fake.told


def test_a_requeue_that_slurm_refuses_says_what_was_not_carried_out(
    tmp_path: Path, fake: FakeSlurm
) -> None:
    done = end_training(fake, tmp_path, signal.SIGUSR1, FAILS="requeue")
    assert "Access/permission denied. Not carried out: scontrol requeue 7" in done.stderr


def test_a_program_that_ends_keeps_its_exit_status(tmp_path: Path, fake: FakeSlurm) -> None:
    words = ("exec", "--requeue", "--no-guard", "--", "sh", "-c")
    assert 3 == watchdog(fake, tmp_path, *words, "exit 3").returncode
    assert 0 == watchdog(fake, tmp_path, *words, "exit 0").returncode
    assert 137 == watchdog(fake, tmp_path, *words, "kill -9 $$").returncode
    assert [] == fake.told
