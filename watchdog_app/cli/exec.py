"""
Run a program so that its trainings are saved when memory runs out, without a change to its
code: Keras fits, loops in TensorFlow and PyTorch, in every Python that it starts. The program
replaces this command: exit code, signals, terminal and pid are its own.

It runs in a memory group of its own (the guard). At the limit of that group the program is
stopped, not killed, and its training is saved from outside. Then it continues, gets no more
memory, stays stopped, or ends (--at-limit). One array that cannot fit is a MemoryError.

Without --limit it may use the machine's memory, less a margin. Where no group can be made,
each process gets a limit on what it may reserve, and a message says so.

With --time its trainings are saved twice before the time is over, and again at the end. Then all
of its processes get SIGTERM, and SIGKILL if they do not end. Without a group the program and its
process group get SIGTERM. In a Slurm job its trainings are saved before the job's end, too.

examples:
  watchdog exec -- python train.py --epochs 50
  watchdog exec --limit 12G -- python train.py
  watchdog exec --limit 12G --at-limit hold -- jupyter lab
  watchdog exec --time 1-12:00:00 -- python train.py
  watchdog exec --no-resume -- ./run-all-folds.sh
  watchdog exec --kernel
  watchdog exec --kernel --undo

Raise the limit of what runs: watchdog limit train.py 16G

exit codes: those of the program; 126 it cannot be run, 127 there is none, 2 usage
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from typing import NoReturn

from watchdog_app.base import children, paths, signals, time_limit
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, remark
from watchdog_app.cli.parser import Args, Parser, duration, size, wall_time
from watchdog_app.guard import launch, slurm
from watchdog_app.install import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.install.placed_files import PlacedFiles

_CANNOT_RUN = 126  # the exit code of shells for a program that cannot be run
_NOT_FOUND = 127
_KERNEL = "python3"
_LONGEST_NAME = 200
_SAVE_ON = "WATCHDOG_AGENT_SAVE_ON"  # same name as in `agent.runtime.ends`


def add_arguments(parser: Parser) -> None:
    """Add the program, its arguments and the options of its guard."""
    parser.option("--limit SIZE", "memory that it may hold (default: what is free)", size)
    parser.option("--reserve SIZE", "kept back for saving (default: 256M or more)", size)
    parser.option("--swap SIZE", "swap that it may use (default: 0)", size, default=0)
    parser.add_argument(
        "--at-limit",
        choices=("auto", "go-on", "refuse", "hold", "end"),
        default="auto",
        help="after saving: remove the limit; refuse more memory; stay stopped; end. auto: a "
        "saved script is refused more, all else stays stopped",
    )
    parser.option("--hold-for TIME", "end a program that was stopped for this long", duration)
    parser.flag("--no-refuse", "let it reserve more than can fit")
    parser.flag("--no-guard", "no memory group: the agent alone")
    parser.option("--save-on SIGNALS", "save at these signals too, such as USR1,USR2", _signals)
    parser.option("--time TIME", "save and end it after this time: 2h, 90m, 1-12:00:00", wall_time)
    parser.flag("--requeue", "in a Slurm job: requeue it before its end, or with more memory")
    parser.flag("--dry-run", "with --requeue: print the commands that requeue the job, run nothing")
    parser.flag("--no-resume", "start from the beginning although there is an unfinished rescue")
    parser.flag("--kernel", "make a Jupyter kernel that starts this way")
    parser.option("--name KERNEL", "with --kernel: the kernel to start so (default: python3)")
    parser.flag("--undo", "with --kernel: take that kernel away again")
    parser.positional("COMMAND", "program and its arguments", nargs=argparse.REMAINDER)


def run(args: Args, out: Output) -> int:
    """Replace this process by the program."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.kernel:
        if sys.platform == "linux" and not args.undo:
            launch.check_sizes(args.limit, args.reserve, args.swap)
        if command:
            raise UsageError("--kernel runs nothing now: it makes a kernel. Leave the command out.")
        name = args.name or _KERNEL
        out.lines(*(_remove_kernel(name) if args.undo else _install_kernel(args, name)))
        return EXIT_OK
    if args.name or args.undo:
        raise UsageError("--name and --undo go with --kernel.")
    if args.dry_run and not args.requeue:
        raise UsageError("--dry-run goes with --requeue.")
    if not command:
        raise UsageError("Name a program: watchdog exec -- python train.py")
    if args.dry_run:
        from watchdog_app.cli.slurm import commands_at_the_end

        out.lines(*commands_at_the_end())
        return EXIT_OK
    trust.refuse_untrusted()
    env = dict(os.environ)
    env["PYTHONPATH"] = _python_path(env.get("PYTHONPATH", ""))
    if args.no_resume:
        env["WATCHDOG_AGENT_RESUME"] = "no"
    if args.save_on:
        env[_SAVE_ON] = args.save_on
    end_unix_s = _announce_end(args, env)
    if args.requeue:
        _wait_as_batch_job(args, env)
    supervised = not args.no_guard and _enter_guard(args, command, env, end_unix_s)
    if end_unix_s is not None and not supervised:
        launch.end_without_supervisor(end_unix_s)
    return _exec_program(command, env)


def _wait_as_batch_job(args: Args, env: dict[str, str]) -> None:
    """Fork: the child returns and becomes the program, the parent requeues the job after it."""
    from watchdog_app.cli.slurm import limits
    from watchdog_app.guard import batch_job  # not on Windows

    job = slurm.read_job()
    slurm.check_requeue(job)
    if args.at_limit == "auto":
        args.at_limit = "end"  # no person decides in a batch job
    # Slurm sends them to a step's processes, and srun to its tasks.
    env[_SAVE_ON] = " ".join((*env.get(_SAVE_ON, "").split(), "USR1", "USR2"))
    if env.get("SLURM_PROCID", "0") == "0":  # one task of a step requeues the job
        batch_job.begin(job, limits(), env)


def _signals(text: str) -> str:
    """The names of signals in an option, separated by spaces."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    try:
        return " ".join(each.name for each in signals.parse(names or [text]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _announce_end(args: Args, env: dict[str, str]) -> float | None:
    """
    Put the first end of the program into its environment: of --time, of the Slurm job, or known.

    Returns:
        The end of --time, in seconds since 1970.
    """
    own = None if args.time is None else time.time() + args.time
    ends = (own, slurm.end_unix_s(env), time_limit.end_unix_s(env))
    found = [each for each in ends if each is not None and each > time.time()]
    if found:
        env[time_limit.ENDS] = str(min(found))
    return own


def _enter_guard(
    args: Args, command: list[str], env: dict[str, str], end_unix_s: float | None
) -> bool:
    """Enter a guard; return whether its supervisor ends the program in time."""
    if not _can_run(command[0], env):
        return True  # the exec below reports the missing program; no guard is needed
    entered = launch.enter(
        args.limit,
        args.reserve,
        swap_bytes=args.swap,
        at_limit=args.at_limit,
        hold_s=args.hold_for,
        refuse=not args.no_refuse,
        notebook=launch.is_notebook(command),
        name=launch.display_name(command, env, folder := _current_folder())[:_LONGEST_NAME],
        directory=folder,
        command=launch.pasteable_command(command),
        ends_unix_s=end_unix_s,
    )
    env.update(entered.environment)
    remark(entered.line, lead="")
    return entered.supervised


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed in the meantime
        return "a folder that is gone"


def _can_run(program: str, env: dict[str, str]) -> bool:
    return shutil.which(program, path=env.get("PATH", os.defpath)) is not None


def _python_path(before: str) -> str:
    package = trust.importable_package("agent/shim/sitecustomize.py")
    shim = os.path.join(package, "agent", "shim")
    # Leave out an empty PYTHONPATH: an empty part would mean the current folder.
    rest = [part for part in before.split(os.pathsep) if part != shim] if before else []
    return os.pathsep.join([shim, *rest])


def _exec_program(command: list[str], env: dict[str, str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # Python ignores these signals in its own process. Restore the defaults, because the program
    # would inherit the ignored signals.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - the program must keep this pid
    except OSError as error:
        failure = WatchdogError(f"{command[0]} cannot be run: {error.strerror}.")
        failure.exit_code = _CANNOT_RUN
        if isinstance(error, FileNotFoundError):
            failure = WatchdogError(f"There is no program {command[0]}.")
            failure.exit_code = _NOT_FOUND
        raise failure from error


def _install_kernel(args: Args, name: str) -> list[str]:
    """Place a kernelspec that starts the kernel under a guard; return the lines to print."""
    from watchdog_app.install import pythons

    trust.refuse_untrusted()
    kernel = pythons.find_kernel(name)
    command = [*children.watchdog_argv(["exec"]), *_exec_options(args), "--"]
    where = pythons.guarded_folder(kernel.name)
    found = pythons.guarded_kernel(kernel, command)
    _open_placed_files().place({os.path.join(where, each): data for each, data in found.items()})
    return [
        f"There is a kernel {os.path.basename(where)} now: {plain(name)}, under a guard.",
        f"Placed: {plain(where)}",
        "Choose it in the notebook's list of kernels; VS Code shows it under Jupyter Kernel.",
        f"Undo: watchdog exec --kernel{'' if name == _KERNEL else f' --name {name}'} --undo",
    ]


def _exec_options(args: Args) -> list[str]:
    """Return the options of this call, for the command line of the kernelspec."""
    given = {
        "--limit": args.limit,
        "--reserve": args.reserve,
        "--swap": args.swap or None,
        "--at-limit": None if args.at_limit == "auto" else args.at_limit,
        "--hold-for": None if args.hold_for is None else f"{args.hold_for}s",
        "--time": None if args.time is None else f"{args.time}s",
        "--save-on": args.save_on and args.save_on.replace(" ", ","),
    }
    options = [
        word for name, value in given.items() if value is not None for word in (name, str(value))
    ]
    options += ["--no-refuse"] if args.no_refuse else []
    return options + (["--no-guard"] if args.no_guard else [])


def _remove_kernel(name: str) -> list[str]:
    """Remove the kernelspec; return the lines to print."""
    from watchdog_app.install import pythons

    where = pythons.guarded_folder(name)
    placed = _open_placed_files()
    ours = [path for path in placed.files if os.path.dirname(path) == where]
    if not ours:
        raise WatchdogError(f"No kernel of {plain(name)} under a guard was made here.")
    report = placed.remove(ours)
    if report.kept:
        kept = ", ".join(plain(path) for path in report.kept)
        return [f"Changed by somebody since, and left as it is: {kept}"]
    return [f"The kernel {os.path.basename(where)} was removed; running kernels continue."]


def _open_placed_files() -> PlacedFiles:
    from watchdog_app.install.placed_files import PlacedFiles

    path = os.path.join(paths.state_dir(), "guard-kernels.json")
    return PlacedFiles(path, "watchdog exec --kernel --undo")
