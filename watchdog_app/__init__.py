"""Sees a training run out of memory coming, names the notebook, saves the work."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["__version__", "resume"]
__version__ = "0.1.0"


def resume(run: str | None = "training", *, skip: Collection[int] = ()) -> None:
    """
    In a notebook that was killed and restarted: go on where its training was saved.

    Lists the cells that had run, and runs them again up to and with the one that trained, which
    goes on from its rescue.

    Args:
        run: "training": without cells that had failed and without shell commands; "all": those
            too; None: only list them.
        skip: numbers of cells that are to be left out.

    Raises:
        ValueError: `run` is none of the three.
    """
    # By its name: the package itself stands below all of its parts.
    from importlib import import_module

    import_module("watchdog_app.agent.resume.notebook").resume(run, skip=skip)
