"""
rescue.json: what a rescue holds, under a checksum of its own.

    {"crc32": "0f3a...", "rescue":
    { ... }}

The checksum is of the bytes between `"rescue":` and the last brace, so that a
flipped bit in an epoch number is found as surely as one in a weight. Any JSON
reader can read the file.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchdog_app.agent.saving.layout import TensorEntry
from watchdog_app.agent.saving.stream import CHECKSUM
from watchdog_app.base.errors import RescueDamaged, RescueError

FORMAT_VERSION = 2
_READ_VERSIONS = (1, FORMAT_VERSION)
# What a rescue of every framework has: beside `meta` on disk, and in one mapping here.
_BESIDE = ("reason", "run", "identity", "position")
_MISSING = "not_restored"
MOST_BYTES = 256 * 1024 * 1024  # a million tensors; whatever is longer is no rescue.json
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "rescue.json"

_HEAD = b'{"crc32": "%08x", "rescue":\n'
_HEAD_BYTES = len(_HEAD % 0)
_TAIL = b"}\n"
_FORMAT = re.compile(rb'\{"crc32": "[0-9a-f]{8}", "rescue":\n\{"format": (\d+),')
_NO_MANIFEST = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    OverflowError,  # a number without end where a whole one belongs
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a rescue.json that is whole."""

    format: int
    created_unix_s: float
    step: int
    meta: Mapping[str, Any]
    file_bytes: int
    header_crc32: int
    crc32: Mapping[str, int]  # of each tensor's bytes
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]]  # dtype, shape, bytes


def render(
    entries: Sequence[TensorEntry],
    checksums: Mapping[str, int],
    *,
    header_crc32: int,
    file_bytes: int,
    step: int,
    created_unix_s: float,
    meta: Mapping[str, Any],
    writer: str,
) -> bytes:
    """
    The bytes of rescue.json.

    Raises:
        RescueError: `meta` holds something that JSON has no form for.
    """
    missing = list(meta.get(_MISSING) or ())
    body = {
        "format": FORMAT_VERSION,
        "created_unix_s": created_unix_s,
        "writer": writer,
        "step": step,
        "exact": not missing,
        "missing": missing,
        **{key: meta.get(key) for key in _BESIDE},
        "meta": {key: value for key, value in meta.items() if key not in (*_BESIDE, _MISSING)},
        "state": {
            "file": STATE_FILE,
            "bytes": file_bytes,
            "checksum": CHECKSUM,
            "header": f"{header_crc32:08x}",
            "tensors": [
                {
                    "name": entry.name,
                    "dtype": entry.dtype,
                    "shape": entry.shape,
                    "bytes": entry.nbytes,
                    CHECKSUM: f"{checksums.get(entry.name, 0):08x}",
                }
                for entry in entries
            ],
        },
    }
    try:
        text = json.dumps(body).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise RescueError(
            f"What is to be saved beside the tensors cannot be written as JSON: {error}. "
            "Nothing was saved."
        ) from error
    return b"".join((_HEAD % zlib.crc32(text), text, _TAIL))


def read(data: bytes) -> Manifest:
    """
    The manifest in the bytes of a rescue.json.

    Raises:
        RescueDamaged: any byte of it is not as it was written.
        RescueError: it was written by a newer version of watchdog.
    """
    text = data[_HEAD_BYTES : -len(_TAIL)]
    if data != b"".join((_HEAD % zlib.crc32(text), text, _TAIL)):
        raise RescueDamaged(f"{MANIFEST_FILE} does not match its checksum")
    try:
        body = json.loads(text)
        version = body["format"]
        if version not in _READ_VERSIONS:
            raise RescueError(
                f"it is of format {version} and this watchdog reads format {FORMAT_VERSION}: "
                "update watchdog-app"
            )
        state = body["state"]
        tensors = state["tensors"]
        meta = dict(body["meta"])
        if version == FORMAT_VERSION:
            meta |= {key: body[key] for key in _BESIDE if body[key] is not None}
            meta[_MISSING] = list(body["missing"])
        return Manifest(
            format=version,
            created_unix_s=float(body["created_unix_s"]),
            step=int(body["step"]),
            meta=meta,
            file_bytes=int(state["bytes"]),
            header_crc32=int(state["header"], 16),
            crc32={item["name"]: int(item[state["checksum"]], 16) for item in tensors},
            tensors={
                item["name"]: (item["dtype"], tuple(item["shape"]), item["bytes"])
                for item in tensors
            },
        )
    except _NO_MANIFEST as error:
        raise RescueDamaged(f"{MANIFEST_FILE} lacks something ({error!r})") from error


def open_at_once(path: str, flags: int) -> int:
    """An opener that does not wait for a writer, should somebody have put a pipe there."""
    return os.open(path, flags | os.O_NONBLOCK)


def not_ours_to_judge(path: str) -> bool:
    """
    Whether the rescue in folder `path` may be whole without this process being able to tell.

    So it is with one of a newer format, and with one that may not or cannot be read now. Looks
    at a few bytes only.
    """
    try:
        for name in (STATE_FILE, MANIFEST_FILE):
            with open(os.path.join(path, name), "rb", opener=open_at_once) as file:
                head = file.read(80)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError:
        return True
    found = _FORMAT.match(head)
    return found is not None and int(found[1]) > FORMAT_VERSION
