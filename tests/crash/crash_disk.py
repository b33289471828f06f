"""
Folders as a crash would leave them, computed from a record of a program's operations.

    shim = compiled()                       # crash_shim.c, once per machine
    before = Before(root)                   # then the program runs with the shim
    record = Record(read(path), before)     # the recorded operations
    for state in record.states():           # after each operation: killed, or without power
        state.lay_out(folder)

A kill keeps every completed operation. A power failure may lose what no sync made durable. This
concerns writes of an unsynced file and names in an unsynced folder, in any order, and half of a
write. The test says what must hold afterwards.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).with_name("crash_shim.c")
_BLOCK = 512  # a disk writes this size atomically


def compiled() -> str:
    """Compile the shim if it is missing; return its path."""
    name = (
        f"watchdog-crash-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}-{os.getuid()}.so"
    )
    path = os.path.join(tempfile.gettempdir(), name)
    if not os.path.exists(path):
        made = f"{path}.{os.getpid()}"
        subprocess.run(
            ["gcc", "-O1", "-shared", "-fPIC", "-o", made, str(_SOURCE), "-ldl", "-lpthread"],
            check=True,
        )
        os.replace(made, path)
    return path


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the record; see crash_shim.c."""

    kind: str
    inode: int
    number: int
    data: bytes


def read(path: str) -> list[Operation]:
    """Read the record of a program."""
    found = []
    content = Path(path).read_bytes()
    at = 0
    while at < len(content):
        end = content.index(b"\n", at)
        kind, inode, number, length = content[at:end].decode().split()
        at = end + 1 + int(length)
        found.append(Operation(kind, int(inode), int(number), content[end + 1 : at]))
    return found


@dataclass(slots=True)
class _File:
    content: bytes = b""


@dataclass(slots=True)
class _Folder:
    names: dict[str, int] = field(default_factory=dict)  # name to number of the object


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation with the objects that it concerns, even if the kernel reuses their inodes."""

    kind: str  # "write", "cut", "name", "sync", "mark"
    thing: int = -1
    number: int = 0
    data: bytes = b""
    # Names that one step removes and adds: (folder, name, object or None).
    names: tuple[tuple[int, str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A possible state of the folder after a crash."""

    done: int  # number of completed operations
    how: str  # "killed", or what the power failure lost
    marks: tuple[str, ...]  # marks before the crash
    tree: tuple[tuple[str, bytes | None], ...]  # path below the root; None: a folder

    def lay_out(self, folder: str) -> None:
        """Make the folder equal this state, whatever it contains."""
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name, content in self.tree:
            path = os.path.join(folder, name)
            if content is None:
                os.mkdir(path)
            else:
                Path(path).write_bytes(content)


class Before:
    """The current folder: its contents and the identity of its files."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.things: list[_File | _Folder] = [_Folder()]
        self.by_inode = {os.stat(root).st_ino: 0}
        self._take(root, 0)

    def _take(self, path: str, number: int) -> None:
        held = self.things[number]
        assert isinstance(held, _Folder)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            folder = entry.is_dir(follow_symlinks=False)
            self.things.append(_Folder() if folder else _File(Path(entry.path).read_bytes()))
            inner = held.names[entry.name] = len(self.things) - 1
            self.by_inode[entry.inode()] = inner
            if folder:
                self._take(entry.path, inner)


class Record:
    """
    The operations of a program below a folder.

    Args:
        operations: from `read`.
        before: the folder before the first operation.
    """

    def __init__(self, operations: Sequence[Operation], before: Before) -> None:
        self._root = before.root
        self._before = [
            _Folder(dict(thing.names)) if isinstance(thing, _Folder) else thing
            for thing in before.things
        ]
        self._things = before.things
        self._by_inode = dict(before.by_inode)
        self._top = 0
        self._steps: list[_Step] = []
        names = _Names(self._things, self._top)
        for operation in operations:
            step = self._step(operation, names)
            if step is not None:
                self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def states(
        self, chances: int = 2, seed: int = 1, every: int = 1, *, power: bool = True
    ) -> Iterator[State]:
        """
        Return each possible state of the folder once.

        Args:
            chances: number of random losses per operation, besides the plain ones.
            seed: of the random losses.
            every: only after every n-th operation.
            power: False: only kills.
        """
        seen = set()
        for done in range(0, len(self._steps) + 1, every):
            steps = self._steps[:done]
            marks = tuple(step.data.decode() for step in steps if step.kind == "mark")
            variants = [("killed", set(range(done)), frozenset())]
            if power:
                variants += self._losses(steps, chances, random.Random(f"{seed}-{done}"))
            for how, kept, torn in variants:
                tree = self._after(steps, kept, torn)
                key = hash((how == "killed", marks, tree))
                if key not in seen:
                    seen.add(key)
                    yield State(done, how, marks, tree)

    def _losses(
        self, steps: Sequence[_Step], chances: int, draw: random.Random
    ) -> list[tuple[str, set[int], frozenset[int]]]:
        safe = self._synced(steps)
        names = {at for at, step in enumerate(steps) if step.kind == "name"}
        data = {at for at, step in enumerate(steps) if step.kind in ("write", "cut")}
        loose = sorted((names | data) - safe)
        found: list[tuple[str, set[int], frozenset[int]]] = [
            ("nothing that was not synced", safe, frozenset()),
            ("names alone", safe | names, frozenset()),
            ("contents alone", safe | data, frozenset()),
        ]
        writes = [at for at in loose if steps[at].kind == "write"]
        if writes:
            found.append(("a write torn", safe | names | data, frozenset((writes[-1],))))
        for number in range(chances if loose else 0):
            kept = {at for at in loose if draw.random() < 0.5}
            torn = frozenset(at for at in kept if steps[at].kind == "write" and draw.random() < 0.2)
            found.append((f"chance {number}", safe | kept, torn))
        return found

    def _synced(self, steps: Sequence[_Step]) -> set[int]:
        """
        Return the operations that a sync made durable.

        A name is durable when its folders are.
        """
        last: dict[int, int] = {}
        for at, step in enumerate(steps):
            if step.kind == "sync":
                last[step.thing] = at
        safe = set()
        for at, step in enumerate(steps):
            if step.kind in ("write", "cut"):
                if last.get(step.thing, -1) > at:
                    safe.add(at)
            elif step.kind == "name" and all(
                last.get(folder, -1) > at for folder, _, _ in step.names
            ):
                safe.add(at)
        return safe

    def _after(
        self, steps: Sequence[_Step], kept: set[int], torn: frozenset[int]
    ) -> tuple[tuple[str, bytes | None], ...]:
        contents: dict[int, bytearray] = {}
        folders: dict[int, dict[str, int]] = {
            number: dict(thing.names)
            for number, thing in enumerate(self._before)
            if isinstance(thing, _Folder)
        }

        def content(thing: int) -> bytearray:
            if thing not in contents:
                was = self._before[thing] if thing < len(self._before) else _File()
                contents[thing] = bytearray(was.content if isinstance(was, _File) else b"")
            return contents[thing]

        for at, step in enumerate(steps):
            if at not in kept:
                continue
            if step.kind == "write":
                data = step.data
                if at in torn:
                    data = data[: len(data) // 2 // _BLOCK * _BLOCK]
                file = content(step.thing)
                file.extend(bytes(max(0, step.number + len(data) - len(file))))
                file[step.number : step.number + len(data)] = data
            elif step.kind == "cut":
                file = content(step.thing)
                del file[step.number :]
                file.extend(bytes(step.number - len(file)))
            elif step.kind == "name":
                for folder, name, thing in step.names:
                    held = folders.setdefault(folder, {})
                    held.pop(name, None)
                    if thing is not None:
                        held[name] = thing
        found: list[tuple[str, bytes | None]] = []
        queue = [("", self._top)]
        for path, number in queue:
            for name, thing in sorted(folders.get(number, {}).items()):
                inner = f"{path}/{name}".lstrip("/")
                if isinstance(self._things[thing], _Folder):
                    found.append((inner, None))
                    queue.append((inner, thing))
                else:
                    found.append((inner, bytes(content(thing))))
        return tuple(found)

    def _new(self, thing: _File | _Folder) -> int:
        self._things.append(thing)
        return len(self._things) - 1

    def _step(self, operation: Operation, names: _Names) -> _Step | None:
        kind = operation.kind
        if kind == "A":
            return _Step("mark", data=operation.data)
        if kind in "WTS":
            thing = self._by_inode[operation.inode]
            what = {"W": "write", "T": "cut", "S": "sync"}[kind]
            return _Step(what, thing, operation.number, operation.data)
        paths = [
            os.path.relpath(os.path.normpath(os.fsdecode(each)), self._root)
            for each in operation.data.split(b"\0")
        ]
        if kind in "CM":
            thing = self._new(_File() if kind == "C" else _Folder())
            self._by_inode[operation.inode] = thing
            return _Step("name", names=(names.give(paths[0], thing),))
        if kind in "UD":
            return _Step("name", names=(names.take(paths[0]),))
        moved = names.find(paths[0])
        gone = names.take(paths[0])
        return _Step("name", names=(gone, names.give(paths[1], moved)))


class _Names:
    """The path of each object while the operations are replayed."""

    def __init__(self, things: list[_File | _Folder], top: int) -> None:
        self._things = things
        self._top = top

    def find(self, path: str) -> int:
        number = self._top
        for name in path.split("/"):
            if name not in ("", "."):
                number = self._folder(number).names[name]
        return number

    def give(self, path: str, thing: int) -> tuple[int, str, int | None]:
        above, _, name = path.rpartition("/")
        folder = self.find(above)
        self._folder(folder).names[name] = thing
        return folder, name, thing

    def take(self, path: str) -> tuple[int, str, int | None]:
        above, _, name = path.rpartition("/")
        folder = self.find(above)
        self._folder(folder).names.pop(name, None)
        return folder, name, None

    def _folder(self, number: int) -> _Folder:
        found = self._things[number]
        assert isinstance(found, _Folder)
        return found
