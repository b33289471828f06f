"""The processes of a training agree on a step through files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.rescue.checkpoint import ranks as ranks_module
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.ranks import Ranks
from watchdog_app.rescue.checkpoint.reader import LoadedPart, LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue

SAME, OTHER = TensorEntry.of_bytes("same", b"weights"), "other"


@pytest.fixture
def two(tmp_path: Path) -> list[Ranks]:
    """The two ranks of one training."""
    folder = Ranks.make_folder(str(tmp_path))
    return [Ranks(folder, rank, 2, sharded=False) for rank in range(2)]


def together(*calls: Callable[[], object]) -> list[object]:
    """The results of calls that run at the same time; an error is a result."""
    results: list[object] = [None] * len(calls)

    def run(at: int) -> None:
        try:
            results[at] = calls[at]()
        except RescueError as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return results


def save(rank: Ranks, folder: Path, step: int) -> SavedRescue:
    entries = [SAME, TensorEntry.of_bytes(OTHER, b"of rank %d" % rank.rank)]
    return rank.save(RescueStore(str(folder)), entries, {"mine": rank.rank}, step)


def test_a_part_holds_only_what_differs_from_rank_0(two: list[Ranks], tmp_path: Path):
    """Rank 0 writes everything."""
    assert not two[1].reached(5, "asked")
    assert not two[0].reached(6, None)
    assert not two[1].reached(6, "asked")
    come = together(lambda: two[0].reached(7, None), lambda: two[1].reached(7, "asked"))
    saved = together(*(lambda each=each: save(each, tmp_path, 7) for each in two))

    assert [True, True] == come
    assert saved[0].path == saved[1].path
    whole = LoadedRescue(saved[0].path)
    part = LoadedPart(whole, 1)
    whole.verify()
    assert [{"same", OTHER}, {OTHER}] == [set(whole.tensors), set(part.tensors)]
    assert [b"weights", b"of rank 1"] == [bytes(part.read("same")), bytes(part.read(OTHER))]
    assert [0, 1] == [whole.meta["mine"], part.meta["mine"]]


def test_a_rank_that_sees_an_order_too_late_gets_a_later_one(two: list[Ranks]):
    """The next order is as far ahead as the ranks were apart, and more."""
    assert not two[0].reached(5, "asked")
    assert not two[1].reached(20, None)  # past step 7 already
    assert not two[0].reached(6, "asked")
    assert not two[0].reached(7, "asked")
    assert not two[0].reached(8, "asked")

    two[1].reached(21, None)

    come = together(lambda: two[0].reached(36, "asked"), lambda: two[1].reached(36, None))
    assert [True, True] == come


def test_a_rank_that_never_comes_ends_the_wait(
    two: list[Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The message names it; the next step is not an order."""
    monkeypatch.setattr(ranks_module, "_DEADLINE_S", 0.2)
    assert not two[0].reached(5, "asked")
    assert not two[0].reached(6, "asked")

    assert two[0].reached(7, "asked")

    with pytest.raises(RescueError, match=r"Rank 1 \(pid \d+\) did not reach step 7 within"):
        save(two[0], tmp_path, 7)
    assert not two[0].reached(8, None)
    assert not two[1].reached(8, None)


def test_a_failed_save_of_one_rank_fails_all(
    two: list[Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No part of it is left behind."""
    store = RescueStore(str(tmp_path))

    def fail(*_: object) -> str:
        raise RescueError("its disk is full")

    monkeypatch.setattr(store, "write_part", fail)
    together(*(lambda each=each: each.order_here(3, "asked") for each in two))

    found = together(lambda: save(two[0], tmp_path, 3), lambda: two[1].save(store, [], {}, 3))

    assert ["its disk is full"] * 2 == [str(each) for each in found]
    assert [".ranks"] == [each.name.split("-")[0] for each in tmp_path.iterdir()]


def test_a_damaged_part_makes_the_rescue_of_all_ranks_invalid(two: list[Ranks], tmp_path: Path):
    """The rescue before it is the newest that all can resume from."""
    paths = []
    for step in (3, 4):
        together(*(partial(each.order_here, step, "asked") for each in two))
        saved = together(*(partial(save, each, tmp_path, step) for each in two))
        paths.append(saved[0].path)
    part = Path(paths[1], "rank-1", "state.safetensors")
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)

    with pytest.raises(RescueDamaged, match="other"):
        LoadedRescue(paths[1]).verify()
    assert paths[0] == RescueStore(str(tmp_path)).newest().path
