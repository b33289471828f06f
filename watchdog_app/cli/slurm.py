"""
Run trainings as batch jobs of Slurm that save at their end and continue in the next start.

script prints a batch script for a program. requeue puts a batch job of yours back into the queue,
the one that it runs in if no number is given; --mem gives it more memory. --dry-run prints the
commands and runs none. A size without a unit is in MiB, as Slurm has it.

examples:
  watchdog slurm script --time 12:00:00 --mem 32G --gpus 1 train.py --epochs 50 > train.sh
  sbatch train.sh
  watchdog slurm requeue 4711 --mem 48G --dry-run

exit codes: 0 done, 1 failure, 2 usage
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil

from watchdog_app import config
from watchdog_app.base import children
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, size, wall_time
from watchdog_app.guard import slurm
from watchdog_app.guard.slurm import OUT_OF_MEMORY, PREEMPTED, TIME_IS_OVER, Limits

_BEFORE_END_S, _BEFORE_END_SHARE = 120, 0.1  # SIGUSR1 so long before the end, of the time at most


def add_arguments(parser: Parser) -> None:
    """Add the verbs and their options."""
    verb = parser.subcommands(dest="verb", required=True)
    script = verb("script", "print a batch script that runs a program")
    script.option(
        "--time TIME", "time limit: 12h, 1-12:00:00 (default: the partition's)", wall_time
    )
    script.option(
        "--mem SIZE", "memory of the node, such as 32G (default: the partition's)", _memory
    )
    script.option("--gpus GPUS", "number of GPUs, as sbatch takes it", _word)
    script.option("--cpus CPUS", "processors of the task", _word)
    script.option("--partition NAMES", "partitions to run in", _word)
    script.add_argument("program", nargs="...", metavar="PROGRAM", help="script and its arguments")
    requeue = verb("requeue", "requeue a batch job")
    requeue.positional("JOB", "number of the job (default: the job around this command)", nargs="?")
    requeue.option("--mem SIZE", "memory of its next start, such as 48G", _memory)
    requeue.flag("--dry-run", "print the commands, run none")


def run(args: Args, out: Output) -> int:
    """Print a script, or requeue a job."""
    if args.verb == "script":
        out.lines(*_script(args))
        return EXIT_OK
    job = slurm.read_job(args.job)
    slurm.check_requeue(job)
    most = limits().memory_bytes
    if args.mem is not None and most and args.mem > most:
        raise UsageError(
            f"--mem {format_bytes(args.mem)} is more than slurm.max_memory, {format_bytes(most)}."
        )
    lines = slurm.commands(job, "asked for by hand", job.saved_before, args.mem)
    out.lines(*slurm.typed(lines))
    if not args.dry_run:
        slurm.run(lines)
    return EXIT_OK


def commands_at_the_end() -> list[str]:
    """The commands that requeue this job after each end of its program, with what is known now."""
    job = slurm.read_job()
    slurm.check_requeue(job)
    lines = ["# RESCUE is the newest rescue then. The memory is the least: the peak decides."]
    for why in (TIME_IS_OVER, PREEMPTED, OUT_OF_MEMORY):
        reason = None if why == PREEMPTED else slurm.why_not(job, ["RESCUE"], limits())
        try:
            memory = None
            if why == OUT_OF_MEMORY and reason is None:
                memory = slurm.more_memory(job, 0, limits())
        except WatchdogError as error:
            reason = str(error)
        found = slurm.commands(job, why, "RESCUE", memory)
        lines.append(f"# {why}" + (":" if reason is None else f": not requeued: {reason}"))
        lines += slurm.typed(found) if reason is None else []
    return lines


def limits() -> Limits:
    """What the settings allow a job to get."""
    settings, _ = config.load()
    return Limits(settings.slurm.max_memory, settings.slurm.max_requeues)


def _script(args: Args) -> list[str]:
    """The lines of a batch script."""
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise UsageError("Name a program: watchdog slurm script train.py")
    name = os.path.basename(program[0])
    if name.endswith(".py"):
        python = shutil.which("python") or shutil.which("python3") or "python3"
        program = [python, *program]
    before_s = _BEFORE_END_S
    if args.time is not None:
        before_s = int(min(before_s, args.time * _BEFORE_END_SHARE))
    options = {
        "job-name": re.sub(r"[^\w.+-]", "_", name),
        "partition": args.partition,
        "time": None if args.time is None else _time_limit(args.time),
        "mem": None if args.mem is None else f"{-(-args.mem // MIB)}M",
        "gpus": args.gpus,
        "cpus-per-task": args.cpus,
        # To this script alone: `watchdog exec` takes its place, and saves the program.
        "signal": f"B:USR1@{before_s}",
        "output": "slurm-%j.out",
        "open-mode": "append",  # later starts do not remove what the earlier ones printed
    }
    given = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    found = shutil.which("watchdog")
    watchdog = [found] if found else children.watchdog_argv([])
    command = shlex.join([*watchdog, "exec", "--requeue", "--", *program])
    return ["#!/bin/sh", *given, "#SBATCH --requeue", f"exec {command}"]


def _word(text: str) -> str:
    """A value that is one word of a batch script."""
    if not re.fullmatch(r"[^\s#\"'\\]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one word")
    return text


def _memory(text: str) -> int:
    """A size in bytes; a number without a unit is in MiB, as Slurm has it."""
    return int(text) * MIB if text.isdecimal() else size(text)


def _time_limit(seconds: float) -> str:
    """A duration as sbatch takes it: days, hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minutes:02}:{rest:02}"
