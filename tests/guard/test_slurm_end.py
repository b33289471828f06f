"""The end of a Slurm job: from the environment, else from scontrol."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchdog_app.guard import slurm

SHOWN = "JobId=7 JobName=x\n   StartTime=1700000000 EndTime={end} Deadline=N/A\n"


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job whose scontrol prints the text in $SHOWN, if asked for seconds."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$SLURM_TIME_FORMAT $*" = "%s show job 7" ] && printf "$SHOWN"\n'
    )
    scontrol.chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}, "7_0"),
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}, None),
    ],
)
def test_a_task_of_an_array_is_a_job_of_its_own(
    variables: dict[str, str], number: str | None
) -> None:
    assert number == slurm.job_id(variables)


def test_a_newer_slurm_says_its_end_in_the_environment(job: dict[str, str]) -> None:
    job |= {"SLURM_JOB_END_TIME": "1700000060", "SHOWN": SHOWN.format(end=1)}
    assert 1700000060.0 == slurm.end_unix_s(job)


def test_an_older_slurm_is_asked(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", job["PATH"])
    assert 1700000060.0 == slurm.end_unix_s(job | {"SHOWN": SHOWN.format(end=1700000060)})
    assert slurm.end_unix_s(job | {"SHOWN": SHOWN.format(end="Unknown")}) is None


def test_without_a_job_or_without_scontrol_there_is_no_end(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", job["PATH"])
    assert slurm.end_unix_s({**job, "SLURM_JOB_ID": "", "SLURM_JOB_END_TIME": "5"}) is None
    (tmp_path / "scontrol").unlink()
    assert slurm.end_unix_s(job) is None
