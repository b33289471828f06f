"""
Run a workload below a folder under the shim: python crash_run.py ROOT WORKLOAD HOW ...

    record TRACE BEFORE     once, completely; operations go to TRACE, the old folder to BEFORE
    kill N,N,...            a fresh run for each N, killed at the Nth operation
    fail ERRNO N,N,...      a fresh run for each N, every operation from the Nth on is refused

`kill` and `fail` print one line per problem, and at the end the number of kills.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from crash.crash_disk import Before, read
from crash.crash_workloads import WORKLOADS, Workload


def steer(text: str) -> None:
    """Write the order for the shim; without the shim the file does not exist."""
    os.unlink(f"/crash-control/{text}")


def fresh(root: str, workload: Workload) -> None:
    """Set the folder up in a process that has ended before the workload starts."""
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    in_child(lambda: workload.set_up(root))


def in_child(what: Callable[[], object]) -> int:
    """Return the exit status of a child that runs it: 9 if it was killed, 0 after success."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            what()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return abs(os.waitstatus_to_exitcode(status))


def traced(root: str, workload: Workload, trace: str, order: str) -> tuple[int, tuple[str, ...]]:
    """Run it with an order for the shim; return the child's status and marks."""

    def work() -> None:
        steer(f"trace {trace}")
        if order:
            steer(order)
        workload.run(root)

    status = in_child(work)
    marks = tuple(each.data.decode() for each in read(trace) if each.kind == "A")
    return status, marks


def main(root: str, name: str, how: str, *words: str) -> int:
    """Run the command line of the module's docstring."""
    workload = WORKLOADS[name]
    if how == "record":
        fresh(root, workload)
        with open(words[1], "wb") as file:
            pickle.dump(Before(root), file)
        status, _ = traced(root, workload, words[0], "")
        return 1 if status else 0
    number = words[0] if how == "fail" else ""
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace")
        for at in map(int, words[-1].split(",")):
            fresh(root, workload)
            order = f"fail {number} {at} 1000000" if how == "fail" else f"kill {at}"
            status, marks = traced(root, workload, trace, order)
            killed += status == 9
            if how == "fail" and status:
                print(f"{name}: refused from operation {at} on: ended with {status:#x}")
            in_child(lambda at=at, marks=marks: judge(workload, root, marks, how, at))
    print(f"killed {killed}")
    return 0


def judge(workload: Workload, root: str, marks: tuple[str, ...], how: str, at: int) -> None:
    """Print the errors; a separate process checks, as the next program start would."""
    try:
        problems = workload.check(root, marks, how)
    except Exception:
        problems = [traceback.format_exc()]
    for problem in problems:
        print(f"{workload.name}, {how} at operation {at}, after {marks}: {problem}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
