"""
Three ends of a batch job on a real Slurm: its time, its memory, a job that is more important.

    sudo python examples/slurm/three_ends.py [time] [memory] [preempted] [--user NAME]

It starts a cluster of one node in a folder of its own, submits what `watchdog slurm script` prints,
and ends the cluster. Each job is requeued, resumes, and must end with the losses and weights of the
same training outside of Slurm, bit for bit. With --user the jobs are those of an ordinary user.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import one_node

TRAIN = Path(__file__).with_name("train.py")
PATIENCE_S = 420.0
WATCHDOG = (sys.executable, "-m", "watchdog_app")


class Case:
    """
    One job in a folder.

    Args:
        cluster: where it runs.
        folder: for its files.
        options: for `watchdog slurm script`.
        kept_mib, wait_s: arguments of the training.
    """

    def __init__(
        self, cluster: one_node.Cluster, folder: Path, options: str, kept_mib: int, wait_s: float
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.arguments = (str(kept_mib), str(wait_s))
        folder.mkdir(parents=True)
        shutil.copy(TRAIN, folder)
        if cluster.user is not None:
            for each in (folder, *folder.iterdir()):
                shutil.chown(each, cluster.user, cluster.user)
        program = (str(folder / "train.py"), "losses", *self.arguments)
        script = subprocess.run(
            [*WATCHDOG, "slurm", "script", *options.split(), "--", *program],
            env=cluster.env,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        (folder / "train.sh").write_text(script)
        submitted = cluster.run("sbatch", str(folder / "train.sh"), folder=folder)
        self.job = submitted.split()[-1]
        print(f"job {self.job}: {options}", flush=True)

    @property
    def losses(self) -> list[str]:
        """The lines that the training has written so far."""
        path = self.folder / "losses"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def shown(self) -> str:
        """What Slurm says about the job."""
        return self.cluster.job(self.job)

    @property
    def output(self) -> str:
        """What the job has printed, in all of its starts."""
        path = self.folder / f"slurm-{self.job}.out"
        return path.read_text() if path.exists() else ""

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not in time\n{self.shown}\n{self.output}")
            time.sleep(0.2)

    def has_completed(self) -> bool:
        """Whether the job has ended without an error; raises if it has ended with one."""
        shown = self.shown
        state = re.search(r"JobState=(\w+)", shown)
        if state and state[1] in ("FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY"):
            raise RuntimeError(f"the job ended: {shown}\n{self.output}")
        return bool(state) and state[1] == "COMPLETED"

    def finish(self, reference: dict[str, str]) -> None:
        """Wait for the end, and compare with the training outside of Slurm."""
        self.wait(self.has_completed, "the end of the job")
        shown = self.shown
        restarts = re.search(r"Restarts=(\d+)", shown)
        if restarts is None or restarts[1] == "0":
            raise RuntimeError(f"the job was not requeued\n{shown}\n{self.output}")
        written: dict[str, set[str]] = {}
        for line in self.losses:
            step, _, value = line.partition(" ")
            written.setdefault(step, set()).add(value)
        if written != {step: {value} for step, value in reference.items()}:
            raise RuntimeError(f"other losses than without Slurm\n{self.output}")
        for line in self.output.splitlines():
            if "watchdog:" in line:
                print(f"    {line}")
        comment = re.search(r"Comment=(.*)", shown)
        print(f"    comment: {comment[1] if comment else 'none'}")
        print(f"    restarts: {restarts[1]}; {len(reference) - 1} losses and the weights are equal")


def reference_losses(folder: Path) -> dict[str, str]:
    """The losses, by step, and the hash of the weights of an uninterrupted training."""
    folder.mkdir()
    command = [sys.executable, str(TRAIN), "losses", "0", "0"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "losses").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def time_case(cluster: one_node.Cluster, folder: Path) -> Case:
    """A time limit of two minutes for a training of two and a half."""
    return Case(cluster, folder, "--time 2m --mem 900M", 0, 0.37)


def memory_case(cluster: one_node.Cluster, folder: Path) -> Case:
    """More and more memory is kept, up to the limit."""
    return Case(cluster, folder, "--time 30m --mem 900M", 2, 0.02)


def preempted_case(cluster: one_node.Cluster, folder: Path) -> Case:
    """A job of a more important partition needs the node."""
    case = Case(cluster, folder, "--time 30m --mem 2500M", 0, 0.05)
    case.wait(lambda: len(case.losses) > 100, "a hundred steps")
    options = ("--partition=high", "--mem=2500M", "--output=/dev/null", "--wrap=sleep 2")
    cluster.run("sbatch", *options, folder=folder)
    return case


CASES = {"time": time_case, "memory": memory_case, "preempted": preempted_case}


def main() -> int:
    """Run the cases; 0 if each ended as it must."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--user", help="name of the user who submits the jobs")
    args = parser.parse_args()
    why = one_node.missing()
    if why is not None:
        print(f"There is no Slurm for this here: {why}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="watchdog-slurm-"))
    folder.chmod(0o755)
    cluster = None
    try:
        reference = reference_losses(folder / "reference")
        cluster = one_node.Cluster(folder / "cluster", args.user)
        for name in args.cases or CASES:
            CASES[name](cluster, folder / name).finish(reference)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if cluster is not None:
            cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    sys.exit(main())
