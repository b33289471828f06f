"""Predicts that a training will run out of memory, names the notebook and saves the work."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["__version__", "resume"]
__version__ = "0.1.0"


def resume(run: str | None = "training", *, skip: Collection[int] = ()) -> None:
    """
    Continue the training of a notebook whose kernel was killed and restarted.

    Lists the cells that had run. Then runs them again, up to and including the cell that trained.
    That cell continues from its rescue.

    Args:
        run: "training": skip cells that had failed and shell commands; "all": run those too; None:
            only list the cells.
        skip: numbers of the cells to leave out.

    Raises:
        ValueError: `run` is not one of these three values.
    """
    # Import by name: `watchdog_app` is the lowest layer and must not import its subpackages.
    from importlib import import_module

    import_module("watchdog_app.agent.resume").resume(run, skip=skip)
