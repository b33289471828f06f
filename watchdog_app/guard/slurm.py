"""
The Slurm job that this process is part of: its number, end and memory, and how it is requeued.

`scontrol` puts a job back into the queue, with more memory if it ran out. All commands are those of
an ordinary user for a job of his own. The comment of the job says why it was requeued and names the
rescue. It is also the memory between two starts, on whichever node: a job that has saved nothing
new since its last requeue is not requeued again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from watchdog_app.base import time_limit
from watchdog_app.base.errors import UsageError, WatchdogError
from watchdog_app.base.text.quantities import MIB, parse_bytes
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.names import RescueName

_QUESTION_S = 10.0
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
_END = re.compile(r"\bEndTime=(\d+)\b")
# Why a job is requeued, as its comment says.
OUT_OF_MEMORY, PREEMPTED, TIME_IS_OVER = "out of memory", "preempted", "its time was over"

_MORE = 1.25  # times the memory that was needed
_ANSWER_S = 30.0
_TRIES, _RETRY_S = 10, 0.5
_USERS_TEXT = re.compile(r"\b(JobName|(Admin|System)?Comment)=.*")  # the user may write `A=b` in it
_COMMENT = re.compile(r"(?:^|\| )watchdog: .*?(?:; saved (.+))?$")


def job_id(env: Mapping[str, str] = os.environ) -> str | None:
    """The number of the job or of this task of an array, for `scontrol`; None: not in a job."""
    job, array, task = (env.get(name) for name in (time_limit.SLURM_JOB, *_ARRAY))
    # The number of an array's last task is that of the whole array.
    return f"{array}_{task}" if job and array and task else job or None


def end_unix_s(env: Mapping[str, str] = os.environ) -> float | None:
    """
    The end of the job, in seconds since 1970; None: not in a job, or it has no time limit.

    Slurm before 23.02 does not put it into the environment. Then this runs `scontrol`.

    Args:
        env: environment of the job.
    """
    job = job_id(env)
    known = time_limit.end_unix_s({**env, time_limit.ENDS: ""})
    if job is None or known is not None:
        return known
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job],
            env={**env, "SLURM_TIME_FORMAT": "%s"},  # seconds since 1970, in no time zone
            capture_output=True,
            timeout=_QUESTION_S,
            check=True,
            text=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = _END.search(shown)
    return None if found is None else float(found[1])


def memory_bytes(env: Mapping[str, str] = os.environ) -> int | None:
    """
    Memory of the job on this node, or the part of it that this task of a step has.

    None: not in a job, or the job has no limit of memory.

    Args:
        env: environment of the job.
    """
    if job_id(env) is None:
        return None
    size = _number(env, "SLURM_MEM_PER_NODE")
    size = size or _number(env, "SLURM_MEM_PER_CPU") * _number(env, "SLURM_CPUS_ON_NODE")
    size = size or _number(env, "SLURM_MEM_PER_GPU") * _number(env, "SLURM_GPUS_ON_NODE")
    tasks = max(1, _number(env, "SLURM_STEP_TASKS_PER_NODE"))  # set by srun
    return size * MIB // tasks or None


def _number(env: Mapping[str, str], name: str) -> int:
    """The first number in a variable such as `4(x2),3`; 0: none."""
    found = re.match(r"\d+", env.get(name, ""))
    return 0 if found is None else int(found[0])


@dataclass(frozen=True, slots=True)
class Job:
    """A job as `scontrol show job` tells it. `memory_bytes`: of one node; None: the whole node."""

    number: str
    state: str
    partition: str
    is_batch: bool
    may_requeue: bool
    is_preempted: bool  # it has the grace time of its partition
    restarts: int
    memory_bytes: int | None
    comment: str

    @property
    def saved_before(self) -> str | None:
        """The rescue that the job had when it was requeued last; None: none, or never."""
        found = _COMMENT.search(self.comment)
        return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings allow. `memory_bytes`: 0 for no limit but that of the nodes."""

    memory_bytes: int
    requeues: int


def read_job(number: str | None = None) -> Job:
    """
    Ask Slurm for a job.

    Args:
        number: of the job; None: the job that this process is part of.

    Raises:
        UsageError: this process is in no job.
        WatchdogError: there is no `scontrol`, or it knows no such job.
    """
    job = number or job_id()
    if job is None:
        raise UsageError(
            "This is no Slurm job: SLURM_JOB_ID is not set. Start it with sbatch; "
            "watchdog slurm script prints a script for it."
        )
    return parse_job(job, _ask(["scontrol", "show", "job", job], _TRIES))


def parse_job(number: str, shown: str) -> Job:
    """
    The job in the output of `scontrol show job NUMBER`.

    Raises:
        WatchdogError: the number is that of an array of several jobs.
    """
    if len(re.findall(r"^JobId=", shown, re.MULTILINE)) > 1:
        raise WatchdogError(f"{number} is an array of jobs. Name one of them, such as {number}_1.")
    comment = re.search(r"^\s*Comment=(.*?)\s*$", shown, re.MULTILINE)
    facts = _USERS_TEXT.sub("", shown)
    values = dict(reversed(re.findall(r"(\w+)=(\S*)", facts)))  # the first of each name
    memory = None
    with suppress(ValueError, ZeroDivisionError):
        if "MinMemoryCPU" in values:
            share = int(values["NumCPUs"]) / int(values["NumNodes"].partition("-")[0])
            memory = int(parse_bytes(values["MinMemoryCPU"]) * share)
        else:
            memory = parse_bytes(values.get("MinMemoryNode", ""))
    return Job(
        number=number,
        state=values.get("JobState", ""),
        partition=values.get("Partition", ""),
        is_batch=values.get("BatchFlag") == "1",
        may_requeue=values.get("Requeue") == "1",
        is_preempted=values.get("PreemptTime", "None") not in ("None", "Unknown"),
        restarts=int(values["Restarts"]) if values.get("Restarts", "").isdecimal() else 0,
        memory_bytes=memory or None,
        comment="" if comment is None else comment[1],
    )


def check_requeue(job: Job) -> None:
    """
    Refuse a job that Slurm does not requeue.

    Raises:
        WatchdogError: why, and what to do.
    """
    if not job.is_batch:
        raise WatchdogError(
            f"Slurm job {job.number} is interactive (srun, salloc) and cannot be requeued. "
            "Submit a batch script with sbatch, or leave --requeue out."
        )
    if not job.may_requeue:
        raise WatchdogError(
            f"Slurm job {job.number} may not be requeued. Submit it with sbatch --requeue, or "
            f"allow it now: scontrol update JobId={job.number} Requeue=1"
        )


def why_not(job: Job, saved: Sequence[str], limits: Limits) -> str | None:
    """
    Why a job is not requeued now; None: it is.

    Args:
        job: which job.
        saved: the rescues of this start, the newest last.
        limits: what the settings allow.
    """
    if job.restarts >= limits.requeues:
        return f"it was requeued {job.restarts} times, and slurm.max_requeues allows no more"
    if not saved:
        return "nothing of it was saved"
    before = job.saved_before
    if before is not None and not any(_is_progress(before, each) for each in saved):
        return f"it has made no progress since its last requeue; saved {saved[-1]}"
    return None


def _is_progress(before: str, now: str) -> bool:
    """Whether a rescue is further than the one before, or of the program's next training."""
    old, new = (RescueName.parse(os.path.basename(path)) for path in (before, now))
    if old is None or new is None:
        return before != now
    if old.run == new.run:
        return new.step > old.step
    # A program that does not resume starts over, as another run and in another folder.
    return names.is_finished(before) or not os.path.isdir(before)


def more_memory(job: Job, needed_bytes: int, limits: Limits) -> int:
    """
    Bytes of memory for the next start of a job that ran out.

    Args:
        job: which job.
        needed_bytes: what it used at its peak, and what it was refused then.
        limits: what the settings allow.

    Raises:
        WatchdogError: no node has more, the setting allows no more, or the size is unknown.
    """
    if job.memory_bytes is None:
        raise WatchdogError("it may use all memory of its node already")
    shown = _ask(["sinfo", "--noheader", "-N", "-o", "%m", "-p", job.partition])
    sizes = [int(each) for each in re.findall(r"\d+", shown)]
    most = max(sizes, default=0) * MIB
    shown = _ask(["scontrol", "show", "partition", job.partition])
    found = re.search(r"MaxMemPerNode=(\d+)", shown)
    if found is not None and int(found[1]):
        most = min(most, int(found[1]) * MIB)
    if limits.memory_bytes:
        most = min(most, limits.memory_bytes)
    wanted = int(_MORE * max(needed_bytes, job.memory_bytes))
    size = min(-(-wanted // MIB) * MIB, most)
    if size <= job.memory_bytes or size < needed_bytes:
        raise WatchdogError(
            f"it needs {_mib(wanted)}, and {_mib(most)} is the most that its partition and "
            "slurm.max_memory allow"
        )
    return size


def commands(job: Job, why: str, saved: str | None, memory_bytes: int | None) -> list[list[str]]:
    """
    The commands that requeue a job, in their order.

    Args:
        job: which job.
        why: for the comment, a phrase.
        saved: the rescue that it resumes from.
        memory_bytes: for its next start; None: as much as now.
    """
    with_more = "" if memory_bytes is None else f" with {_mib(memory_bytes)}"
    text = f"watchdog: {why}, requeued{with_more}{f'; saved {saved}' if saved else ''}"
    update = ["scontrol", "update", f"JobId={job.number}"]
    found = [[*update, f"Comment={_merge_comment(job.comment, text)}"]]
    if memory_bytes is None:
        return [*found, ["scontrol", "requeue", job.number]]
    # Only a waiting job can get more memory, and a held one does not start before it has.
    return [
        *found,
        ["scontrol", "requeuehold", job.number],
        [*update, f"MinMemoryNode={memory_bytes // MIB}"],
        ["scontrol", "release", job.number],
    ]


def typed(lines: Sequence[Sequence[str]]) -> list[str]:
    """Commands as a person types them."""
    return [shlex.join(each) for each in lines]


def run(lines: Sequence[Sequence[str]]) -> None:
    """
    Run the commands of `commands`, also while Slurm ends this job: SIGTERM is ignored from now on.

    Raises:
        WatchdogError: one failed; the message has those that were not carried out.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # and so do the commands
    for place, each in enumerate(lines):
        try:
            _ask(each, _TRIES)
        except WatchdogError as error:
            left = "; ".join(typed(lines[place:]))
            raise WatchdogError(f"{error}. Not carried out: {left}") from error


def _merge_comment(before: str, text: str) -> str:
    """A comment with ours; that of the user, which may name an account, comes first."""
    users = _COMMENT.sub("", before).strip()
    return f"{users} | {text}" if users else text


def _mib(size: int) -> str:
    return f"{size // MIB}M"  # as Slurm writes it


def _ask(command: Sequence[str], tries: int = 1) -> str:
    """
    The output of a command of Slurm.

    Raises:
        WatchdogError: there is no such command, or it failed each time.
    """
    if shutil.which(command[0]) is None:
        raise WatchdogError(f"There is no {command[0]} here: Slurm's commands are not in PATH.")
    said = "no answer"
    for left in reversed(range(tries)):
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
            )
            if done.returncode == 0:
                return done.stdout
            said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        if "Invalid job id" in said:
            break
        if left:
            time.sleep(_RETRY_S)
    raise WatchdogError(f"{shlex.join(command)} failed: {said}")
