"""The time at which a program ends although it is not finished, from its environment."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENDS = "WATCHDOG_ENDS_UNIX_S"  # set by `watchdog exec`
SLURM_JOB = "SLURM_JOB_ID"
SLURM_END = "SLURM_JOB_END_TIME"  # since Slurm 23.02
VARIABLES = frozenset((ENDS, SLURM_JOB, SLURM_END))


def end_unix_s(env: Mapping[str, str]) -> float | None:
    """
    The end of a program, in seconds since 1970; None: the environment announces none.

    Args:
        env: its environment; the `VARIABLES` are enough.
    """
    for name in (ENDS, SLURM_END):
        if name != SLURM_END or env.get(SLURM_JOB):
            try:
                return float(env.get(name, ""))
            except ValueError:
                continue
    return None
