"""What is said, and noted in the error, when the memory of a Keras fit ran out inside it."""

from __future__ import annotations


def note_of_callback(path: str | None, moment: str) -> str:
    """Memory ran out in a callback. `path`: of the rescue; `moment`: when they were called."""
    where = f"memory ran out in a callback, at {moment}"
    if path is None:
        return f"{where}; no rescue was saved. An earlier one, if there is one, stands."
    return (
        f"{where}. The training was saved as it was there: {path}. The next run of the program "
        'goes on from there; in this same process, Rescue(..., resume="newest") does. Let the '
        "callback take less memory, or leave it out."
    )


def note_of_step(
    path: str | None, *, whole: bool, advice: str, where: str = "in a training step"
) -> str:
    """Memory ran out there. `path`: of the rescue; `whole`: no gradient was half applied."""
    if not whole:
        return (
            f"memory ran out {where}, while its gradients were being applied: the weights in "
            "memory are half of this step and half of the one before. They were not saved; an "
            "earlier rescue, if there is one, stands and is gone on from by the next run."
        )
    if path is None:
        return f"memory ran out {where}; no rescue was saved. {advice}"
    return (
        f"memory ran out {where}. The training was saved as it was before that batch: {path}. The "
        'next run of the program goes on from there; in this same process, Rescue(..., resume="'
        f'newest") does. {advice}'
    )
