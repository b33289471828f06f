"""The Slurm job that this process is part of: its number, its end and its memory."""

from __future__ import annotations

import os
import re
import subprocess

from watchdog_app.base import time_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_S = 10.0
_MIB = 1 << 20
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
_END = re.compile(r"\bEndTime=(\d+)\b")


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
            timeout=_ANSWER_S,
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
    return size * _MIB // tasks or None


def _number(env: Mapping[str, str], name: str) -> int:
    """The first number in a variable such as `4(x2),3`; 0: none."""
    found = re.match(r"\d+", env.get(name, ""))
    return 0 if found is None else int(found[0])
