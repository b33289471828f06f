"""
The key of a program, for its earlier runs. Runs as a process of its own.

The daemon reads no file that may be on a slow disk. `hashlib` would load OpenSSL there: 4 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence

from watchdog_app.base.durable import write_atomic
from watchdog_app.rescue.identity import program_key

_SECRET_BYTES = 32


def program_hash(
    *,
    argv: Sequence[str],
    cwd: str | None,
    script: str | None,
    notebook: str | None,
    cell: int | None,
    secret_file: str,
) -> tuple[str, str] | None:
    """
    The exact key of a program and the path of its file; None: its file is not known.

    Args:
        argv: command line of its process.
        cwd: folder of its process.
        script: path of its script.
        notebook: path of its notebook.
        cell: checksum of the notebook's training cell; None: the whole program.
        secret_file: the secret of this user, created if it is missing.

    Raises:
        OSError: the program or the secret cannot be read.
    """
    files: list[str] = []
    if cell is None:
        program = program_key.started_program(argv, cwd or "", script)
        # A launcher such as torchrun names the training's script among its arguments.
        words = (os.path.join(cwd or "", each) for each in argv[1:] if each.endswith(".py"))
        files = [each for each in (program.path, *words) if each and os.path.isfile(each)]
    else:
        program = program_key.started_cell(notebook, cell)
    if program.path is None:
        return None
    contents = []
    for path in files:
        with open(path, "rb") as file:
            contents.append(hashlib.file_digest(file, hashlib.blake2b).hexdigest())
    if not os.path.exists(secret_file):
        write_atomic(secret_file, os.urandom(_SECRET_BYTES), 0o600)
    with open(secret_file, "rb") as file:
        secret = file.read(_SECRET_BYTES)
    return program_key.digest(program, secret, cwd or "", *contents), program.path


if __name__ == "__main__":
    print(json.dumps(program_hash(**json.load(sys.stdin))))
