"""A training meets a thousand rescues that were damaged, forged or saved by other programs."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import zygote

from watchdog_app.rescue.checkpoint import format
from watchdog_app.rescue.checkpoint.names import RescueName

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent / "programs" / "offered.py"
OTHERS = ("activation", "wider", "optimizer", "data", "loss")
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 5000, "\udcff", []),
    *({}, [[[[]]]], {"__tuple__": 3}, {"": None}, [None] * 100),
)
# Facts that decide nothing: texts for the user, and settings, which the state holds too.
CODE = (("identity", "code"), ("identity", "losses"))
FREE = ("version", "settings", "at", "label", "place", "salt")

Json = Any
Spoiled = Callable[[random.Random, Path], None]


# Ways to spoil a rescue, without and with correct checksums


def read(folder: Path) -> dict[str, Json]:
    text = (folder / format.MANIFEST_FILE).read_bytes()
    found: dict[str, Json] = json.loads(text)["rescue"]
    return found


def write(folder: Path, body: Json) -> None:
    text = json.dumps(body).encode("ascii")
    (folder / format.MANIFEST_FILE).write_bytes(
        b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text) + text + b"}\n"
    )


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths in a JSON value; a long list of numbers counts as one place."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list) and len(value) < 30:
        for at, item in enumerate(value):
            yield from places(item, (*path, at))


def at(value: Json, path: tuple[Any, ...]) -> Json:
    for step in path:
        value = value[step]
    return value


def replaced(value: Json, path: tuple[Any, ...], new: Json) -> Json:
    value = copy.deepcopy(value)
    at(value, path[:-1])[path[-1]] = new
    return value


def flipped(chance: random.Random, folder: Path) -> None:
    path = folder / chance.choice((format.STATE_FILE, format.MANIFEST_FILE))
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 8, 500))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(chance: random.Random, folder: Path) -> None:
    path = folder / chance.choice((format.STATE_FILE, format.MANIFEST_FILE))
    data = path.read_bytes()
    path.write_bytes(chance.choice((data[: chance.randrange(len(data))], data + b"\0", b"")))


def zeroed(chance: random.Random, folder: Path) -> None:
    path = folder / format.STATE_FILE
    data = bytearray(path.read_bytes())
    begin = chance.randrange(len(data) - 64)
    data[begin : begin + 64] = b"\1" * 64
    path.write_bytes(data)


def swapped(chance: random.Random, folder: Path) -> None:
    first, second = folder / format.STATE_FILE, folder / format.MANIFEST_FILE
    way = chance.randrange(4)
    if way == 0:
        first.rename(folder / "x")
        second.rename(first)
        (folder / "x").rename(second)
    elif way == 1:
        chance.choice((first, second)).unlink()
    elif way == 2:
        second.unlink()
        os.mkfifo(second)
    else:
        second.unlink()
        second.mkdir()


def nonsense(chance: random.Random, folder: Path) -> None:
    """Any value at any place of the description, with a correct checksum."""
    body = read(folder)
    for _ in range(chance.choice((1, 1, 3))):
        path = chance.choice(list(places(body)))
        body = replaced(body, path, chance.choice(ODD))
    write(folder, body)


def deep(chance: random.Random, folder: Path) -> None:
    body = json.dumps(read(folder))
    key = chance.choice(('"reason": ', '"identity": ', '"position": ', '"meta": '))
    depth = chance.choice((50, 2000, 100_000))
    text = body.replace(key, f'{key}{"[" * depth}{"]" * depth}, "old": ', 1).encode()
    head = b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text)
    (folder / format.MANIFEST_FILE).write_bytes(head + text + b"}\n")


def header(chance: random.Random, folder: Path) -> None:
    """Any value in the list of tensors, with correct checksums."""
    data = (folder / format.STATE_FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    path = chance.choice(list(places(table)))
    table = replaced(table, path, chance.choice((*ODD, 1, 4, "F16", [1, 2], 2**63)))
    text = json.dumps(table).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    head = len(text).to_bytes(8, "little") + text
    (folder / format.STATE_FILE).write_bytes(head + data[8 + length :])
    body = read(folder)
    body["state"]["header"] = f"{zlib.crc32(head):08x}"
    body["state"]["bytes"] = len(head) + len(data) - 8 - length
    write(folder, body)


def renamed(chance: random.Random, folder: Path) -> None:
    """The name of another run, of another process, or an odd number."""
    kind, step, sequence, owner, run = folder.name.split("-")
    way = chance.randrange(4)
    if way == 0:
        run = f"{chance.getrandbits(48):012x}"
    elif way == 1:
        owner = f"{chance.randrange(1, 2**22)}.{chance.randrange(10**6)}.{owner[-8:]}"
        run = f"{chance.getrandbits(48):012x}"
    elif way == 2:
        sequence = chance.choice(("999999999999", "x", "", "9" * 300))[:200]
    else:
        step = chance.choice(("-000000001", "9" * 25, ""))
    folder.rename(folder.with_name("-".join((kind, step, sequence, owner, run))))


def another(chance: random.Random, folder: Path) -> None:
    """One fact of its identity or its computation differs, with a correct checksum."""
    body = read(folder)
    facts = [
        path
        for path in places(body)
        if (path[0] == "identity" or path[:2] == ("run", "key") or path == ("run", "id"))
        and not isinstance(at(body, path), dict | list)
        and path[-1] not in FREE
        and path[1] not in FREE
        # A name of code is a label for messages: the hashes decide.
        and not (path[:2] in CODE and path[3:4] == ("name",))
        and path[:3] != ("run", "key", "functions")
        and ("functions" not in path or path[-1] == 1)
    ]
    path = chance.choice(facts)
    new = changed(chance, at(body, path))
    body = replaced(body, path, new)
    if "functions" in path:  # its code is known by either of two hashes
        body = replaced(body, (*path[:-1], 3), new)
    write(folder, body)


def changed(chance: random.Random, value: Json) -> Json:
    if isinstance(value, bool) or value is None:
        return chance.choice((3, "another"))
    if isinstance(value, int | float):
        return value + chance.choice((1, 7))
    return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}" if value else "another"


DAMAGED: tuple[Spoiled, ...] = (flipped, cut, zeroed, swapped)
HOSTILE: tuple[Spoiled, ...] = (nonsense, nonsense, deep, header, renamed)


# The training that gets them


def program(folder: Path, **told: str) -> None:
    own = {
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "RESULTS": str(folder / "results"),
    }
    env = {**os.environ, **own, **told}
    done = zygote.run(PROGRAM, env=env, framework="torch", timeout_s=1500)
    expected = -signal.SIGKILL if told["MODE"] == "save" else 0
    assert expected == done.returncode, done.stdout + done.stderr


def saved(folder: Path, what: str) -> Path:
    program(folder, MODE="save", FOLDER=str(folder / f"saved-{what}"), WHAT=what)
    return folder / f"saved-{what}"


def offered(folder: Path, copies: Path) -> list[dict[str, Any]]:
    program(folder, MODE="offer", FOLDER=str(copies))
    return [json.loads(line) for line in (folder / "results").read_text().splitlines()]


def harmless(each: dict[str, Any], own: dict[str, Any]) -> bool:
    """Refused; or trained to the end, with a message if it did not use its own rescue."""
    if "refused" in each:
        return True
    if "ended" in each:
        return False
    unnamed = RescueName.parse(each["rescue"]) is None
    usual = ("resuming from", "bring back", "come back")  # part of every resume of this training
    told = any(not any(word in line for word in usual) for line in each["said"])
    foreign = each["name"].endswith(("another", "foreign"))
    silent_is_right = unnamed or (each["began"] == 7 and not foreign)
    return told or (silent_is_right and each["left"] == own["left"])


@pytest.mark.parametrize("count", [160, pytest.param(1200, marks=pytest.mark.slow)])
def test_no_spoiled_or_foreign_rescue_is_gone_on_from_silently(tmp_path: Path, count: int):
    """Each is refused, ignored with a message, or makes no difference; none ends the training."""
    own = saved(tmp_path, "")
    others = {what: saved(tmp_path, what) for what in OTHERS}
    copies = tmp_path / "copies"
    chance = random.Random(count)
    kinds = Counter()
    for number in range(count):
        kind = ("damaged", "hostile", "another", "foreign")[number % 4]
        kinds[kind] += 1
        source = others[OTHERS[number // 4 % len(OTHERS)]] if kind == "foreign" else own
        copy_ = copies / f"{number:04}-{kind}"
        shutil.copytree(source, copy_)
        (rescue,) = copy_.glob("rescue-*")
        if kind != "foreign":
            ways = {"damaged": DAMAGED, "hostile": HOSTILE, "another": (another,)}[kind]
            chance.choice(ways)(chance, rescue)
    shutil.copytree(own, copies / "own")
    (copies / "none").mkdir()

    results = {each["name"]: each for each in offered(tmp_path, copies)}

    own_one, none = results.pop("own"), results.pop("none")
    assert (7, 0) == (own_one["began"], none["began"])
    assert own_one["left"] == none["left"]  # a resume changes nothing
    assert [] == [each for each in results.values() if not harmless(each, own_one)]
    assert count == len(results)
    assert kinds["another"] >= count // 4
