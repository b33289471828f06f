"""
A Slurm cluster of one node, which is this machine, in a folder of its own.

It runs munged, slurmctld and slurmd as plain processes of root, without systemd and without a
change to /etc. On Debian: apt-get install slurm-wlm munge
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
MEMORY_MIB = 4000

_CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MailProg=/bin/true
KillWait=15
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=high Nodes={host} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str | None:
    """Why no cluster can run here; None: it can."""
    lacking = [each for each in PROGRAMS if shutil.which(each) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (Debian: apt-get install slurm-wlm munge)"
    return "it needs root" if os.getuid() else None


class Cluster:
    """
    The running cluster; `close` ends it.

    Args:
        folder: for its configuration, logs and sockets; other users must be able to enter it.
        user: name of the user who submits jobs; None: root.
    """

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self.user = user
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                host=os.uname().nodename.partition(".")[0],
                folder=folder,
                cpus=os.cpu_count(),
                memory=MEMORY_MIB,
                controller_port=_free_port(),
                node_port=_free_port(),
            )
        )
        # A job gets the environment in which it was submitted: this Python comes first in it.
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        home = os.path.expanduser(f"~{user or ''}")
        self.env = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf", "PATH": path, "HOME": home}
        try:
            munge = [f"--key-file={key}", f"--socket={folder}/munge/socket"]
            munge += [f"--pid-file={folder}/munge/pid", f"--seed-file={folder}/munge/seed"]
            self._start("munged", "--foreground", "--force", *munge, "--num-threads=1")
            _wait_for((folder / "munge/socket").exists, "munged")
            self._start("slurmctld", "-D", "-c")
            _wait_for(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld")
            self._start("slurmd", "-D", "-c")
            _wait_for(lambda: "idle" in self.run("sinfo", check=False), "slurmd")
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, check: bool = True, folder: Path | None = None) -> str:
        """
        What a command of Slurm prints, run as the user.

        Args:
            command: and its arguments.
            check: raise if it fails.
            folder: where it runs.
        """
        done = subprocess.run(
            command,
            env=self.env,
            cwd=folder,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            check=False,
            capture_output=True,
            text=True,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def job(self, number: str) -> str:
        """What `scontrol show job` prints of a job."""
        return self.run("scontrol", "show", "job", number)

    def close(self) -> None:
        """End all jobs and all processes of the cluster."""
        if len(self._processes) == 3:
            self.run("scancel", "--state=RUNNING", "--full", "--me", check=False)
            self.run("scancel", "--me", check=False)
            end = time.monotonic() + 30
            while self.run("squeue", "--noheader", check=False) and time.monotonic() < end:
                time.sleep(0.2)
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *command: str) -> None:
        self._processes.append(
            subprocess.Popen(
                command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )


def _wait_for(condition: object, name: str) -> None:
    end = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f"{name} did not start; see its log")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
