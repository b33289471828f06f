"""
The workloads: every part of watchdog that writes files, and the required state afterwards.

`run` writes marks ("saved 3") after each promise. `check` gets the marks before the crash and
returns the errors of the folder. `how` is "killed", "kill" or "fail" if every completed operation
is there; otherwise it says what the power failure lost.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchdog_app.base.errors import RescueDamaged, RescueError, WatchdogError
from watchdog_app.config import editing, read_file
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon import pauses
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter
from watchdog_app.install.placed_files import PlacedFiles
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.names import (
    RescueName,
    complete_rescues,
    is_finished,
    mark_finished,
)
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore

DAY_S = 86400.0
MIB = 1 << 20


def mark(text: str) -> None:
    """Write a mark among the operations."""
    os.unlink(f"/crash-mark/{text}")


def last(marks: tuple[str, ...], word: str) -> int | None:
    """Return the number of the last mark with this word."""
    return next((int(each.split()[1]) for each in reversed(marks) if each.startswith(word)), None)


class Workload:
    """A program that writes files."""

    name = ""

    def set_up(self, root: str) -> None:
        """Create the state before the workload."""

    def run(self, root: str) -> None:
        """Run the part that may be cut short."""
        raise NotImplementedError

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """Return the errors; empty if all is well."""
        raise NotImplementedError


def tensors(step: int) -> list[TensorEntry]:
    """Return the tensors of a rescue at this step; they need more than one buffer."""
    data = {name: bytes([step + number]) * size
            for number, (name, size) in enumerate((("w", 1_100_000), ("b", 700)))}  # fmt: skip
    return [
        TensorEntry(name, "U8", (len(each),), len(each), lambda each=each: memoryview(each))
        for name, each in data.items()
    ]


class Rescues(Workload):
    """A training that saves repeatedly and ends well."""

    name = "rescues"

    def set_up(self, root: str) -> None:
        """Create one rescue of an earlier process."""
        self._save(self._store(f"{root}/rescues"), 0)

    def _store(self, directory: str, report: Callable[[str], None] | None = None) -> RescueStore:
        """Return the store of the same training, in any process."""
        return RescueStore(directory, report=report, run=Run("0123456789ab", directory))

    def run(self, root: str) -> None:
        """Save, prune and record the end."""
        store = self._store(f"{root}/rescues")
        # A process whose save fails reports it and continues, as a training does.
        with suppress(RescueError):
            store.prepare(2)
        for step in (1, 2, 3):
            try:
                self._save(store, step)
            except RescueError as error:
                mark(f"refused {step} {error}"[:200].replace("/", "|"))
            else:
                mark(f"saved {step}")
        saved = [f"{store.directory}/{each}" for each in complete_rescues(store.directory)]
        with suppress(OSError):
            for path in saved:
                mark_finished(path)
            mark(f"finished {len(saved)}")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """The newest promised rescue exists, all that open are valid, and no leftovers remain."""
        problems: list[str] = []
        directory = f"{root}/rescues"
        said: list[str] = []
        whole = how in ("killed", "kill", "fail")
        for name in complete_rescues(directory):
            problems += self._judge(f"{directory}/{name}", name, whole)
        store = self._store(directory, said.append)
        found = store.newest()
        promised = last(marks, "saved")
        if self.name == "rescues":
            promised = promised or 0  # set_up made one
        if promised is not None and (found is None or found.step < promised):
            problems.append(f"{found} where step {promised} was promised")
        if whole and said:
            problems.append(f"damage is reported: {said}")
        ended = all(is_finished(f"{directory}/{each}") for each in complete_rescues(directory))
        if last(marks, "finished") is not None and not ended:
            problems.append("the end of the training was forgotten")
        return problems + self._goes_on(store, directory)

    def _goes_on(self, store: RescueStore, directory: str) -> list[str]:
        """Check that the next process saves and removes leftovers."""
        store.prepare(2, rehearse=False)
        self._save(store, 50)
        self._save(store, 51)
        store.wait_idle()
        store.close()
        left = sorted(os.listdir(directory))
        names = [each for each in left if RescueName.parse(each)]
        strange = set(left) - set(names)
        if len(names) != 2 or strange:
            return [f"left over after the next saves: {left}"]
        return []

    @staticmethod
    def _save(store: RescueStore, step: int) -> None:
        store.save(tensors(step), {"step": step, "double": 2 * step})
        store.wait_idle()

    @staticmethod
    def _judge(path: str, name: RescueName, whole: bool) -> list[str]:
        try:
            with LoadedRescue(path) as found:
                found.verify()
                right = {each.name: bytes(each.view()) for each in tensors(name.step)}
                there = {each: bytes(found.read(each)) for each in found.tensors}
                if right != there or found.meta["double"] != 2 * found.step != 2 * name.step:
                    return [f"{name} claims to be whole and is not"]
        except RescueDamaged as error:
            return [f"{name} is damaged: {error}"] if whole else []
        return []


class FirstRescue(Rescues):
    """A training whose folder does not exist yet."""

    name = "first-rescue"

    def set_up(self, root: str) -> None:
        """Create nothing."""

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """Check as for `Rescues` if the workload created anything."""
        if not os.path.isdir(f"{root}/rescues"):
            return ["the first rescue is gone"] if last(marks, "saved") else []
        return super().check(root, marks, how)


class History(Workload):
    """A daemon's journal: decisions before their actions, batches, the end."""

    name = "journal"

    def run(self, root: str) -> None:
        """Write as the daemon does."""
        writer = JournalWriter(f"{root}/state", DAY_S, 64 * MIB, lambda: None)
        writer.open()
        for number in (1, 2, 3):
            if writer.write_durably([decision(number)], 10):
                mark(f"decided {number}")
            if settled(writer, lambda j: j.save_state("engine", {"x": "y" * 5000})):
                mark(f"kept {number}")
            if number == 2:
                settled(writer, lambda j: j.trim(time.time()))
        writer.close(10)
        mark("closed 0")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """Decisions were durable before their actions, and the journal is valid."""
        problems = []
        journal = Journal(f"{root}/state", DAY_S, 64 * MIB)
        if journal.set_aside:
            problems.append(f"a good journal was set aside: {journal.set_aside}")
        known = {each["id"] for each in journal.history(kinds=["decision"])}
        decided = last(marks, "decided") or 0
        missing = {f"d{number}" for number in range(1, decided + 1)} - known
        if missing:
            problems.append(f"acted on and not in the journal: {sorted(missing)}")
        journal.add([decision(77)], sync=True)
        journal.close()
        journal = Journal(f"{root}/state", DAY_S, 64 * MIB)
        if "d77" not in {each["id"] for each in journal.history()}:
            problems.append("it cannot be written any more")
        journal.close()
        left = sorted(os.listdir(f"{root}/state"))
        if left != ["journal.db"]:
            problems.append(f"left over: {left}")
        return problems


def settled(writer: JournalWriter, job: Callable[[Journal], object]) -> bool:
    """Return whether a job succeeded within 10 s."""
    answers: list[Exception | None] = []
    writer.submit(job, lambda _, error: answers.append(error))
    end = time.monotonic() + 10
    while not answers and time.monotonic() < end:
        writer.collect()
        time.sleep(0.001)
    return answers == [None]


def decision(number: int) -> Entry:
    """Return a decision with its own number."""
    return Entry(time.time(), "decision", {"id": f"d{number}", "why": "x" * 300}, pid=number)


class PausesKept(Workload):
    """The file of pauses, written before a task is stopped and after it resumes."""

    name = "pauses"
    BOOT = "b"

    def run(self, root: str) -> None:
        """Pause three tasks in turn and resume the second."""
        held: dict[str, pauses.Pause] = {}
        for number in (1, 2, 3):
            held[f"p{number}"] = pauses.Pause(ProcessKey(number, 1), f"p{number}", "")
            with suppress(OSError):
                pauses.write(root, pauses.encode_file(self.BOOT, held.values()))
                mark(f"stopped {number}")
        mark("resuming 2")
        del held["p2"]
        with suppress(OSError):
            pauses.write(root, pauses.encode_file(self.BOOT, held.values()))
            mark("resumed 2")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """The file has every stopped task. After a reboot it asks for nothing."""
        if how not in ("killed", "kill", "fail"):
            return []
        there = {each.name for each in pauses.read((root, root), self.BOOT) or ()}
        wanted = {f"p{number}" for number in range(1, (last(marks, "stopped") or 0) + 1)}
        free = {"p2"} if "resuming 2" in marks else set()
        problems = []
        if not wanted - free <= there:
            problems.append(f"stopped and not known: {sorted(wanted - free - there)}")
        if "resumed 2" in marks and "p2" in there:
            problems.append("what runs again is still known as paused")
        pauses.write(root, pauses.encode_file(self.BOOT, ()))
        if os.listdir(root) != [pauses.FILE]:
            problems.append(f"left over: {os.listdir(root)}")
        return problems


class SetAside(Workload):
    """A damaged journal that the daemon moves aside for a new one."""

    name = "set-aside"
    DAMAGED = b"no database at all" * 3000

    def set_up(self, root: str) -> None:
        """Create a file that SQLite rejects."""
        os.mkdir(f"{root}/state")
        with open(f"{root}/state/journal.db", "wb") as file:
            file.write(self.DAMAGED)

    def run(self, root: str) -> None:
        """Start the daemon's journal; if it cannot create a new one, it continues without."""
        with suppress(sqlite3.Error, OSError):
            Journal(f"{root}/state", DAY_S, MIB).close()
            mark("begun 0")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """The old content exists under one of the two names, and the next start works."""
        problems = []
        Journal(f"{root}/state", DAY_S, MIB).close()
        kept = []
        for name in os.listdir(f"{root}/state"):
            with open(f"{root}/state/{name}", "rb") as file:
                kept.append(file.read() == self.DAMAGED)
        if kept.count(True) != 1:
            problems.append(
                f"what was damaged is there {kept.count(True)} times: {os.listdir(root)}"
            )
        return problems


class Configuration(Workload):
    """`watchdog config set`, twice."""

    name = "config"
    BEFORE = '# mine\n[watch]\ninterval = "2s"\n'
    TEXTS = (BEFORE, BEFORE + "# one\n", BEFORE + "# one\n# two\n")

    def set_up(self, root: str) -> None:
        """Create a configuration file of the user."""
        os.mkdir(f"{root}/config")
        with open(f"{root}/config/config.toml", "w") as file:
            file.write(self.BEFORE)

    def run(self, root: str) -> None:
        """Make two edits."""
        path = f"{root}/config/config.toml"
        for number in (1, 2):
            before = read_file(path)
            assert before is not None
            with suppress(WatchdogError):
                editing.write(
                    path, before + self.TEXTS[number][len(self.TEXTS[number - 1]) :], before
                )
                mark(f"set {number}")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """The file has one of the texts, complete."""
        problems = []
        found = read_file(f"{root}/config/config.toml")
        promised = last(marks, "set") or 0
        if found not in self.TEXTS[promised : promised + 2]:
            problems.append(f"{found!r} where {promised} was promised")
        editing.write(f"{root}/config/config.toml", "# after\n", found)
        left = os.listdir(f"{root}/config")
        if left != ["config.toml"]:
            problems.append(f"left over: {left}")
        return problems


class Placed(Workload):
    """`watchdog desktop install` or `agent enable` next to a user's file, partly undone."""

    name = "placed"
    MINE = "the user's own\n"

    def set_up(self, root: str) -> None:
        """Create a folder with a file in it."""
        os.makedirs(f"{root}/share")
        with open(f"{root}/share/mine", "w") as file:
            file.write(self.MINE)

    def run(self, root: str) -> None:
        """Place three files, remove one, and place it again."""
        try:
            placed = PlacedFiles(f"{root}/state/placed.json")
            placed.place(self._wanted(root))
            mark("placed 0")
            placed.remove([f"{root}/deep/er/one"])
            mark("taken 0")
        except WatchdogError as error:
            mark(f"refused 0 {error}"[:200].replace("/", "|"))

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """After another install all files exist; after the removal all is as before."""
        problems = []
        placed = PlacedFiles(f"{root}/state/placed.json")
        placed.place(self._wanted(root))
        for path, content in self._wanted(root).items():
            if Path(path).read_bytes() != content:
                problems.append(f"{path} is not as it was placed")
        PlacedFiles(f"{root}/state/placed.json").remove()
        left = sorted(
            os.path.relpath(os.path.join(path, name), root)
            for path, folders, files in os.walk(root)
            for name in (*folders, *files)
        )
        if left not in (["share", "share/mine"], ["share", "share/mine", "state"]):
            problems.append(f"after it was taken away: {left}")
        elif Path(root, "share", "mine").read_text() != self.MINE:
            problems.append("the user's file is not what it was")
        return problems

    @staticmethod
    def _wanted(root: str) -> dict[str, bytes]:
        return {
            f"{root}/{name}": f"ours {name}\n".encode() * 50
            for name in ("deep/er/one", "share/two", "share/three")
        }


class TakenAway(Placed):
    """`watchdog desktop remove`."""

    name = "taken-away"

    def set_up(self, root: str) -> None:
        """Install all files."""
        super().set_up(root)
        PlacedFiles(f"{root}/state/placed.json").place(self._wanted(root))

    def run(self, root: str) -> None:
        """Remove everything."""
        with suppress(WatchdogError):
            PlacedFiles(f"{root}/state/placed.json").remove()
            mark("taken 0")


class Careless(Workload):
    """A careless program that is not part of watchdog. The simulated disk must find its error."""

    name = "careless"

    def run(self, root: str) -> None:
        """Write, rename, and promise without a sync."""
        for number in (1, 2):
            with open(f"{root}/new", "w") as file:
                file.write(f"{number}" * 5000)
            os.rename(f"{root}/new", f"{root}/file")
            mark(f"wrote {number}")

    def check(self, root: str, marks: tuple[str, ...], how: str) -> list[str]:
        """The file is the promised one or the next, complete."""
        promised = last(marks, "wrote")
        if promised is None:
            return []
        try:
            with open(f"{root}/file") as file:
                found = file.read()
        except OSError:
            return [f"gone, {how}"]
        whole = [f"{number}" * 5000 for number in (promised, promised + 1)]
        return [] if found in whole else [f"not whole, {how}"]


WORKLOADS: dict[str, Workload] = {
    each.name: each
    for each in (
        *(Rescues(), FirstRescue(), History(), SetAside(), PausesKept(), Configuration()),
        *(Placed(), TakenAway(), Careless()),
    )
}
