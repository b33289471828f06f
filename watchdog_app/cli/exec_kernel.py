"""`watchdog exec --kernel`: a Jupyter kernel that starts under a guard, and its exact undoing."""

from __future__ import annotations

import os

from watchdog_app.base import paths
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from watchdog_app.install.placed_files import PlacedFiles

_KERNEL = "python3"
_LISTED = "guard-kernels.json"


def run(args: argparse.Namespace, words: list[str]) -> int:
    """Place the kernelspec, or take it away."""
    if words:
        raise UsageError("--kernel runs nothing now: it makes a kernel. Leave the command out.")
    return _undo(args.name or _KERNEL) if args.undo else _make(args, args.name or _KERNEL)


def _make(args: argparse.Namespace, name: str) -> int:
    from watchdog_app.base import children
    from watchdog_app.install import guard_kernel, pythons, trust

    trust.refuse_untrusted()
    kernel = pythons.kernel(name)
    command = [*children.command(["exec"]), *_options(args), "--"]
    where = guard_kernel.folder(kernel.name)
    found = guard_kernel.files(kernel, command)
    _placed().place({os.path.join(where, each): data for each, data in found.items()})
    print(f"There is a kernel {os.path.basename(where)} now: {plain(name)}, under a guard.")
    print(f"Placed: {plain(where)}")
    print("Choose it in the notebook's list of kernels; VS Code shows it under Jupyter Kernel.")
    print(f"Undo: watchdog exec --kernel{'' if name == _KERNEL else f' --name {name}'} --undo")
    return EXIT_OK


def _options(args: argparse.Namespace) -> list[str]:
    """Those of this call, for every start of the kernel."""
    found = []
    for name in ("limit", "reserve"):
        value = getattr(args, name)
        if value is not None:
            found += [f"--{name}", str(value)]
    if args.swap:
        found += ["--swap", str(args.swap)]
    if args.at_limit != "auto":
        found += ["--at-limit", args.at_limit]
    if args.hold_for is not None:
        found += ["--hold-for", f"{args.hold_for}s"]
    found += ["--no-refuse"] if args.no_refuse else []
    found += ["--no-guard"] if args.no_guard else []
    return found


def _undo(name: str) -> int:
    from watchdog_app.install import guard_kernel

    for suffix, listed in ((guard_kernel.SUFFIX, _LISTED), ("-airbag", "airbag-kernels.json")):
        where = guard_kernel.folder(name, suffix)  # the second one by earlier versions
        placed = _placed(listed)
        ours = [path for path in placed.files if os.path.dirname(path) == where]
        if ours:
            break
    else:
        raise WatchdogError(f"No kernel of {plain(name)} under a guard was made here.")
    report = placed.remove(ours)
    if report.kept:
        kept = ", ".join(plain(path) for path in report.kept)
        print(f"Changed by somebody since, and left as it is: {kept}")
    else:
        print(f"The kernel {os.path.basename(where)} was removed; running kernels continue.")
    return EXIT_OK


def _placed(listed: str = _LISTED) -> PlacedFiles:
    from watchdog_app.install.placed_files import PlacedFiles

    return PlacedFiles(os.path.join(paths.state_dir(), listed), "watchdog exec --kernel --undo")
