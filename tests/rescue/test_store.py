"""A folder of rescues: it always has a complete one, and only complete ones are used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
import zlib

import pytest
import safetensors
from support.finished import finished

from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.base.linux.files import is_in_memory
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.owner import Owner, this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.checkpoint.stream import SaveFailed

DEAD = f"999999.1.{this_process().namespace}"  # beyond the largest pid of common kernels
STRANGER = "1234.5.00000000"  # written in another container or before the last boot


def tensors(seed=0, count=3, size=5000):
    found = []
    for number in range(count):
        data = bytes([(seed * 7 + number) % 256]) * (size + number)
        found.append(TensorEntry(f"t{number}", "U8", (len(data),), len(data), _view(data)))
    return found


def _view(data):
    return lambda: memoryview(data)


@pytest.fixture
def messages():
    return []


@pytest.fixture
def store(tmp_path, messages):
    made = RescueStore(str(tmp_path / "rescues"), report=messages.append)
    yield made
    made.close()


def folders(store):
    store.wait_idle()
    return sorted(os.listdir(store.directory))


def rename_owner(path, owner_text):
    """Make it look as if another process had written it."""
    name = names.RescueName.parse(os.path.basename(path))
    new = os.path.join(
        os.path.dirname(path), str(names.RescueName(name.sequence, name.step, owner_text))
    )
    os.rename(path, new)
    return new


def test_what_was_saved_is_found_again(store):
    """The rescue has the tensors, their lookup in any order, and all metadata."""
    entries = tensors(seed=3)
    meta = {"step": 12, "epoch": 2, "seed": [1, 2], "name": "a\nb\u00e9", "loss": float("inf")}

    saved = store.save(entries, meta)
    found = store.newest()

    assert saved.path == found.path
    assert (12, {**meta, "not_restored": []}) == (found.step, found.meta)
    assert abs(time.time() - found.created_unix_s) < 60
    assert {e.name: (e.dtype, e.shape) for e in entries} == {
        name: (info.dtype, info.shape) for name, info in found.tensors.items()
    }
    for each in entries:
        assert bytes(each.view()) == found.read(each.name)
    both = sum(each.stat().st_size for each in os.scandir(saved.path))
    assert (both, both) == (saved.bytes, found.bytes)
    assert saved.seconds > 0


def test_other_tools_read_both_files(store):
    """safetensors reads one, any JSON reader the other."""
    saved = store.save(tensors(), {"step": 1})

    with open(os.path.join(saved.path, "state.safetensors"), "rb") as file:
        found = dict(safetensors.deserialize(file.read()))
    assert {"t0", "t1", "t2"} == set(found)
    with open(os.path.join(saved.path, "rescue.json")) as file:
        assert 1 == json.load(file)["rescue"]["step"]


def test_a_training_without_tensors_or_with_empty_ones_is_saved(store):
    """An empty size is valid."""
    store.save([], {"step": 0})
    assert {} == dict(store.newest().tensors)

    store.save([TensorEntry("e", "F32", (0, 3), 0, _never)], {"step": 1})
    assert b"" == store.newest().read("e")


def _never():
    raise AssertionError("an empty tensor has no bytes to look at")


def test_nothing_is_found_where_nothing_was_saved(store):
    """There may be no folder yet, an empty one, or one with other files."""
    assert store.newest() is None

    os.makedirs(store.directory)
    for name in ("notes.txt", "rescue-1", "rescue-0000000001-000001-x", "best"):
        os.mkdir(os.path.join(store.directory, name))
    assert store.newest() is None


def test_the_older_are_pruned_when_the_new_one_is_complete(store):
    """`keep` of them stay."""
    paths = [store.save(tensors(), {"step": step}).path for step in range(4)]

    assert [os.path.basename(path) for path in paths[2:]] == folders(store)


def test_the_newest_is_the_one_saved_last(store, monkeypatch):
    """Steps may restart and clocks may go back; neither decides."""
    store.save(tensors(1), {"step": 900})
    monkeypatch.setattr("time.time", lambda: 1000.0)
    last = store.save(tensors(2), {"step": 3})

    assert last.path == store.newest().path


@pytest.mark.parametrize(("step", "written"), [(9, 7), (10, 10)])
def test_a_few_long_steps_are_more_progress(store, monkeypatch, step, written):
    store.save(tensors(1), {"step": 7})
    later = time.time() + 11
    monkeypatch.setattr("time.time", lambda: later)

    assert written == store.save(tensors(2), {"step": step, "not_restored": [COUNTED]}).step


COUNTED = "counters of the loop"
MOVED = "statistics as they were before the batch that ran out of memory"


@pytest.mark.parametrize("further", [0, 1, 2, 40])
def test_a_rescue_that_restores_less_does_not_shadow_the_one_before(store, messages, further):
    exact = store.save(tensors(1), {"step": 7, "not_restored": [COUNTED]})

    again = store.save(tensors(2), {"step": 7 + further, "not_restored": [COUNTED, MOVED]})

    assert (again.path, again.step, again.missing) == (exact.path, 7, (COUNTED,))
    assert folders(store) == [os.path.basename(exact.path)]
    assert MOVED in messages[-1]


def test_the_rescue_of_an_ended_fit_is_written_though_it_restores_less(store):
    """Otherwise its end is recorded for the rescue from within it, and a later run trains again."""
    store.save(tensors(1), {"step": 7})

    ended = {"step": 8, "not_restored": [COUNTED], "position": {"ended_of": 3}}

    assert 8 == store.save(tensors(2), ended).step


def test_a_rescue_that_lacks_more_names_of_a_kind_restores_less(store, messages):
    exact = store.save(tensors(1), {"step": 7, "not_restored": [f"{COUNTED}: total"]})

    again = store.save(tensors(2), {"step": 8, "not_restored": [f"{COUNTED}: lr, total, best"]})

    assert (again.path, again.step) == (exact.path, 7)
    assert messages[-1].endswith(f"It would lack {COUNTED}: lr, best.")


@pytest.mark.parametrize(
    ("step", "lost"),
    [(8, [COUNTED]), (8, [MOVED]), (8, []), (8, [f"{COUNTED}: lr", MOVED]), (6, [COUNTED, MOVED])],
)
def test_more_progress_or_an_equal_rescue_is_written(store, step, lost):
    store.save(tensors(1), {"step": 7, "not_restored": [COUNTED]})

    store.save(tensors(2), {"step": step, "not_restored": lost})

    with store.newest() as found:
        assert (found.step, found.meta["not_restored"]) == (step, lost)


def test_looking_at_the_one_before_takes_little_memory(store):
    """A save may begin at a memory limit, where a buffer of the largest size is refused."""
    store.save(tensors(1), {"step": 7, "not_restored": [COUNTED]})
    tracemalloc.start()
    try:
        store.save(tensors(2), {"step": 7, "not_restored": [COUNTED, MOVED]})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * 2**20


def test_a_rescue_from_before_this_training_stands_only_if_it_was_resumed(store):
    """A cell that is run again counts its steps from zero."""
    exact = store.save(tensors(1), {"step": 7})
    later = RescueStore(store.directory)
    resumed = RescueStore(store.directory)
    resumed.resumed_path = exact.path

    kept = resumed.save(tensors(2), {"step": 7, "not_restored": [MOVED]})
    written = later.save(tensors(3), {"step": 7, "not_restored": [MOVED]})

    assert kept.path == exact.path
    assert written.path != exact.path


def test_of_two_with_one_number_the_later_wins(store):
    """Two processes that saved at the same moment used the same sequence."""
    first = store.save(tensors(1), {"step": 1}).path
    second = store.save(tensors(2), {"step": 2}).path
    os.rename(second, second.replace("-000002-", "-000001-"))
    second = second.replace("-000002-", "-000001-")
    os.utime(first, (2e9, 2e9))

    assert first == store.newest().path

    os.utime(second, (2.1e9, 2.1e9))
    assert second == store.newest().path


@pytest.mark.parametrize("name", ["state.safetensors", "rescue.json"])
def test_a_damaged_one_is_passed_over_and_named(store, messages, name):
    """The rescue before it is used; one message names the damaged one and the reason."""
    good = store.save(tensors(1), {"step": 1}).path
    bad = store.save(tensors(2), {"step": 2}).path
    _flip(os.path.join(bad, name), -100)

    assert good == store.newest().path
    assert good == store.newest().path
    assert 1 == len(messages)
    assert bad in messages[0]
    assert "checksum" in messages[0]


@pytest.mark.parametrize("name", ["state.safetensors", "rescue.json"])
def test_a_missing_file_is_damage(store, messages, name):
    """A folder with a deleted file is not a rescue."""
    path = store.save(tensors(), {"step": 2}).path
    os.unlink(os.path.join(path, name))

    assert store.newest() is None
    assert f"{name} is missing" in messages[0]


def _flip(path, at, bit=0):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.parametrize("name", ["state.safetensors", "rescue.json"])
def test_every_flipped_bit_and_every_cut_is_noticed(store, name):
    """No wrong restore: header, padding, data and manifest, byte by byte, and any length."""
    entries = [*tensors(count=2, size=20), TensorEntry("f", "F64", (2,), 16, _view(bytes(16)))]
    saved = store.save(entries, {"step": 77, "epoch": 3})
    path = os.path.join(saved.path, name)
    with open(path, "rb") as file:
        whole = file.read()
    # A sample of the header's padding is enough.
    places = [at for at in range(len(whole)) if whole[at] != 0x20 or at % 97 == 0]

    for at in places:
        bit = at % 8
        _rewrite(path, whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        with pytest.raises(RescueDamaged), LoadedRescue(saved.path) as found:
            found.verify()
    for length in [*places, len(whole) - 1]:
        _rewrite(path, whole[:length])
        with pytest.raises(RescueDamaged), LoadedRescue(saved.path) as found:
            found.verify()
    _rewrite(path, whole + b"\0")
    with pytest.raises(RescueDamaged):
        LoadedRescue(saved.path)

    _rewrite(path, whole)
    with LoadedRescue(saved.path) as found:
        found.verify()


def _rewrite(path, content):
    with open(path, "wb") as file:
        file.write(content)


def test_a_rescue_of_two_saves_mixed_is_damage(store):
    """A complete state file of another rescue.json is not restored."""
    first = store.save(tensors(1), {"step": 1}).path
    second = store.save(tensors(2), {"step": 2}).path
    shutil.copy(os.path.join(first, "state.safetensors"), os.path.join(second, "state.safetensors"))

    assert first == store.newest().path


def _of_a_newer_format(path):
    manifest = os.path.join(path, "rescue.json")
    with open(manifest, "rb") as file:
        text = file.read().partition(b"\n")[2][:-2]
    text = text.replace(b'"format": 2', b'"format": 3')
    _rewrite(manifest, b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text) + text + b"}\n")


def test_a_newer_format_is_not_guessed_at(store, messages):
    """The message says to update, not that it is damaged."""
    _of_a_newer_format(store.save(tensors(), {"step": 2}).path)

    with pytest.raises(RescueError, match="update watchdog-app") as told:
        store.newest()
    assert not isinstance(told.value, RescueDamaged)
    assert [] == messages


def _unreadable(path):
    manifest = os.path.join(path, "rescue.json")
    os.unlink(manifest)
    os.symlink(manifest, manifest)  # a loop of links, because permissions would not stop root


@pytest.mark.parametrize("spoil", [_of_a_newer_format, _unreadable])
def test_what_cannot_be_judged_is_neither_passed_over_nor_pruned(store, spoil):
    """The work of a newer watchdog, or on a share that is offline, is not overwritten."""
    store.save(tensors(), {"step": 1})
    theirs = rename_owner(store.save(tensors(), {"step": 2}).path, DEAD)
    spoil(theirs)

    with pytest.raises(RescueError, match="left as it is"):
        store.newest()
    for step in range(3, 8):
        store.save(tensors(), {"step": step})

    assert os.path.basename(theirs) in folders(store)
    assert 3 == len(folders(store))


def _nest(path):
    text = b"[" * 200_000
    _rewrite(
        os.path.join(path, "rescue.json"),
        b'{"crc32": "%08x", "rescue":\n' % zlib.crc32(text) + text + b"}\n",
    )


def _pipe(path):
    os.unlink(os.path.join(path, "rescue.json"))
    os.mkfifo(os.path.join(path, "rescue.json"))


def _file(path):
    shutil.rmtree(path)
    _rewrite(path, b"")


@pytest.mark.parametrize("spoil", [_nest, _pipe, _file])
def test_nonsense_in_the_place_of_a_rescue_is_damage(store, messages, spoil):
    """Endless lists, a pipe without a writer, a file: the rescue before it is used."""
    good = store.save(tensors(1), {"step": 1}).path
    bad = store.save(tensors(2), {"step": 2}).path
    spoil(bad)

    assert good == store.newest().path
    assert bad in messages[0]
    store.save(tensors(), {"step": 3})
    store.save(tensors(), {"step": 4})


def test_a_view_stays_good_when_the_rescue_is_pruned(store):
    """One process may restore while another one saves."""
    store.save(tensors(1), {"step": 1})
    found = store.newest()
    view = found.read("t1")
    shutil.rmtree(found.path)
    found.close()

    assert bytes(tensors(1)[1].view()) == bytes(view)
    with pytest.raises(TypeError):
        view[0] = 1


def test_the_framework_failing_in_the_middle_leaves_the_older_rescue(store):
    """No partial file stays."""
    good = store.save(tensors(), {"step": 1}).path

    def broken():
        raise RuntimeError("deleted")

    with pytest.raises(RuntimeError, match="deleted"):
        store.save([*tensors(), TensorEntry("x", "U8", (1,), 1, broken)], {"step": 2})

    assert [os.path.basename(good)] == folders(store)


def test_meta_that_is_no_json_is_refused(store):
    """The message names the value."""
    with pytest.raises(RescueError, match="not JSON serializable"):
        store.save(tensors(), {"step": 1, "model": object()})

    assert [] == folders(store)


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(tmp_path, keep):
    """At least one stays."""
    with pytest.raises(ValueError, match="keep"):
        RescueStore(str(tmp_path), keep=keep)


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    """A program that changes its working folder still saves in the first one."""
    monkeypatch.chdir(tmp_path)
    store = RescueStore("here")
    monkeypatch.chdir("/")

    assert store.save(tensors(), {"step": 1}).path.startswith(str(tmp_path / "here"))
    store.close()


def test_unfinished_folders_of_dead_writers_are_removed_and_of_live_ones_are_not(store):
    """Only a dead writer's folder is rubbish; an unknown writer's is kept for an hour."""
    store.prepare(rehearse=False)
    kept = [f".partial-{os.getppid()}.{_start(os.getppid())}.{this_process().namespace}-1"]
    kept += [f".partial-{STRANGER}-1", ".partial-strange"]
    dead = [f".partial-{DEAD}-1", f".partial-{STRANGER}-2"]
    dead += [
        f".partial-{os.getpid()}.1.{this_process().namespace}-1"
    ]  # this pid, of an earlier process
    for name in (*kept, *dead):
        os.mkdir(os.path.join(store.directory, name))
        _rewrite(os.path.join(store.directory, name, "state.safetensors"), b"x" * 100)
    old = time.time() - 7200
    for name in (f".partial-{STRANGER}-2", f".partial-{STRANGER}-2/state.safetensors"):
        os.utime(os.path.join(store.directory, name), (old, old))

    store.save(tensors(), {"step": 1})

    assert sorted(kept) == [name for name in folders(store) if name.startswith(".partial")]


def _start(pid):
    from watchdog_app.rescue.checkpoint.owner import start_time

    return start_time(pid)


@pytest.mark.parametrize("owner", ["alive", DEAD, STRANGER], ids=["alive", "dead", "stranger"])
def test_rescues_of_others_are_never_pruned(store, owner):
    """Their training may still resume from them."""
    if owner == "alive":
        owner = f"{os.getppid()}.{_start(os.getppid())}.{this_process().namespace}"
    theirs = rename_owner(store.save(tensors(), {"step": 1}).path, owner)

    for step in range(4):
        store.save(tensors(), {"step": step})

    assert 3 == len(folders(store))
    assert os.path.isdir(theirs)


def test_a_rescue_that_was_renamed_is_kept_for_good(store):
    """A user who renames it has a reason."""
    path = store.save(tensors(), {"step": 1}).path
    os.rename(path, os.path.join(store.directory, "before-the-change"))
    for step in range(4):
        store.save(tensors(), {"step": step})

    assert 3 == len(folders(store))
    assert 1 == LoadedRescue(os.path.join(store.directory, "before-the-change")).step


def test_preparing_writes_nothing_that_stays_and_tells_the_cost(store):
    """The rehearsal saves a few MiB."""
    nbytes, seconds = store.prepare(tensors=100)

    assert [] == folders(store)
    assert nbytes > 2**20
    assert seconds > 0


def test_a_file_in_the_way_of_the_folder_is_told_in_words(tmp_path):
    """The error comes at the start of the training, not at its end."""
    (tmp_path / "file").write_text("")

    with pytest.raises(SaveFailed, match="is a file, not a folder"):
        RescueStore(str(tmp_path / "file" / "rescues")).prepare()


def test_a_folder_that_was_deleted_is_made_again(store):
    """A cleanup during the training costs only the old rescues."""
    store.save(tensors(), {"step": 1})
    shutil.rmtree(store.directory)

    assert 2 == store.save(tensors(), {"step": 2}).step


def test_owners_are_told_from_each_other():
    """This process lives, an earlier one with its pid does not, an unknown one may."""
    me = this_process()

    assert me == Owner.parse(str(me))
    assert me.alive is True
    assert Owner(me.pid, me.start_time + 1, me.namespace).alive is False
    assert Owner.parse(DEAD).alive is False
    assert Owner.parse(STRANGER).alive is None
    assert Owner.parse("../../etc") is None


def test_a_folder_in_memory_is_recognised(tmp_path):
    """A rescue on tmpfs uses the memory that is short."""
    assert is_in_memory("/dev/shm")
    assert not is_in_memory("/proc")
    assert not is_in_memory(str(tmp_path / "missing"))


@contextlib.contextmanager
def small_disk(path, size):
    """A file system of this size, to get a really full disk."""
    os.makedirs(path)
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "t", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, messages):
    """With numbers and a remedy; there is nothing to prune."""
    with small_disk(str(tmp_path / "d"), "8m"):
        store = RescueStore(str(tmp_path / "d"), report=messages.append)
        with pytest.raises(SaveFailed, match=r"has 8\.00 MiB free") as caught:
            store.save(tensors(count=1, size=9 << 20), {"step": 1})
        assert "another disk" in caught.value.remedy
        assert [] == os.listdir(tmp_path / "d")
        store.close()


def test_a_disk_that_fills_up_meanwhile_leaves_no_half_rescue(tmp_path, messages):
    """ENOSPC in the middle of the stream: reported and removed, and the older rescue stays."""
    with small_disk(str(tmp_path / "d"), "16m"):
        store = RescueStore(str(tmp_path / "d"), report=messages.append)
        good = store.save(tensors(), {"step": 1}).path
        filler = open(tmp_path / "d" / "filler", "wb")

        def fill():
            filler.write(bytes(14 << 20))
            filler.flush()
            return memoryview(bytes(5 << 20))

        with pytest.raises(SaveFailed, match="is full"):
            store.save([TensorEntry("x", "U8", (5 << 20,), 5 << 20, fill)], {"step": 2})
        filler.close()
        assert sorted(["filler", os.path.basename(good)]) == folders(store)
        assert good == store.newest().path
        store.close()


def test_short_of_space_an_older_rescue_makes_room(tmp_path, messages):
    """The store prunes down to one complete rescue, never below."""
    with small_disk(str(tmp_path / "d"), "20m"):
        store = RescueStore(str(tmp_path / "d"), keep=5, report=messages.append)
        for step in range(6):
            last = store.save(tensors(count=1, size=4 << 20), {"step": step})
            assert last.path == store.newest().path
        assert 3 == len(folders(store))

        with pytest.raises(SaveFailed):
            store.save(tensors(count=1, size=13 << 20), {"step": 7})
        assert [os.path.basename(last.path)] == folders(store)
        store.close()


def test_room_is_not_made_with_the_last_rescue_that_is_whole(tmp_path, messages):
    """A newer one that is damaged does not count."""
    with small_disk(str(tmp_path / "d"), "20m"):
        store = RescueStore(str(tmp_path / "d"), report=messages.append)
        good = store.save(tensors(count=1, size=4 << 20), {"step": 1}).path
        bad = store.save(tensors(count=1, size=4 << 20), {"step": 2}).path
        os.unlink(os.path.join(bad, "rescue.json"))

        with pytest.raises(SaveFailed):
            store.save(tensors(count=1, size=9 << 20), {"step": 3})
        assert good == store.newest().path
        store.close()


def test_a_read_only_disk_is_told_in_words(tmp_path):
    """The error comes when the training starts."""
    with small_disk(str(tmp_path / "d"), "4m"):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "d")], check=True)
        with pytest.raises(SaveFailed, match="Read-only file system") as caught:
            RescueStore(str(tmp_path / "d")).prepare()
        assert "another folder" in caught.value.remedy


def test_a_rescue_folder_in_memory_is_told_once(tmp_path, messages):
    """It uses the memory that runs out, and is lost at a reboot."""
    with small_disk(str(tmp_path / "d"), "16m"):
        store = RescueStore(str(tmp_path / "d"), report=messages.append)
        store.prepare()
        store.prepare()
        store.close()

    assert 1 == len(messages)
    assert "lies in memory" in messages[0]


def test_a_save_takes_no_second_copy(tmp_path):
    """Saving 60 MB of tensors raises the peak memory by only a few MiB."""
    program = (
        "import sys, mmap, resource\n"
        "from watchdog_app.rescue.checkpoint.store import RescueStore\n"
        "from watchdog_app.rescue.checkpoint.format import TensorEntry\n"
        "m = mmap.mmap(-1, 60 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "m[:1 << 20] = b'x' * (1 << 20)\n"
        "for at in range(0, len(m), 4096): m[at] = 1\n"
        "e = [TensorEntry('a', 'U8', (len(m),), len(m), lambda: memoryview(m))]\n"
        "s = RescueStore(sys.argv[1]); s.prepare(1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "s.save(e, {'step': 1})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = finished([sys.executable, "-c", program, str(tmp_path / "r")], check=True)

    assert int(done.stdout) < 8 * 1024  # KiB
