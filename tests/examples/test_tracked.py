"""Experiment trackers continue at the right step; their own readers show each step once."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
from pathlib import Path

import pytest
from support.finished import finished

pytestmark = [pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"
DRIVER = Path(__file__).parent / "tracked_run.py"
SAVED, KILLED = 30, 47  # steps, of 60
BLOCK, HEADER = 32768, 7  # of the log files of LevelDB, which W&B writes

History = dict[str, list[tuple[int, float]]]


def run(folder: Path, example: str, *steps: int) -> int:
    name, *argument = example.split()
    words = [str(DRIVER), str(EXAMPLES / f"{name}.py"), *map(str, steps or (0, 0)), *argument]
    env = {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
        "HOME": str(folder),
        "WANDB_SILENT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = finished([sys.executable, *words], cwd=folder, env=env, timeout=280)
    assert done.returncode == (-9 if any(steps) else 0), done.stdout + done.stderr
    return done.stderr.count("resuming from")


def resumed_and_uninterrupted(tmp_path: Path, example: str) -> tuple[Path, Path]:
    """The folders of a training that was killed and resumed, and of one that was not."""
    folders = tmp_path / "resumed", tmp_path / "uninterrupted"
    for folder in folders:
        folder.mkdir()
    run(folders[0], example, SAVED, KILLED)
    assert 1 == run(folders[0], example)
    run(folders[1], example)
    return folders


def needs(module: str, for_what: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install {for_what}")


def board(folder: Path) -> History:
    """All scalars of TensorBoard files by folder and tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: History = {}
    for place in sorted({path.parent for path in folder.rglob("events.*")}):
        accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            values = [(each.step, each.value) for each in accumulator.Scalars(tag)]
            found[f"{place.name}/{tag}"] = values
        for tag in accumulator.Tags()["tensors"]:
            if tag != "keras":  # the model as a graph
                arrays = [(e.step, make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)]
                found[f"{place.name}/{tag}"] = [(step, float(value)) for step, value in arrays]
    return found


def steps(history: History, tag: str) -> list[int]:
    return [step for step, _ in history[tag]]


@pytest.mark.torch
def test_a_summary_writer_continues(tmp_path):
    needs("tensorboard", "tensorboard")
    resumed, uninterrupted = resumed_and_uninterrupted(tmp_path, "tracked_loop tensorboard")

    found = board(resumed)

    assert list(range(60)) == steps(found, "tracked-loop/loss")
    assert board(uninterrupted) == found


@pytest.mark.tensorflow
def test_the_callback_of_keras_continues_with_steps_and_epochs(tmp_path):
    needs("tensorboard", "tensorboard")
    resumed, uninterrupted = resumed_and_uninterrupted(tmp_path, "tracked_fit")

    found = board(resumed)

    assert list(range(1, 55)) == steps(found, "train/batch_loss")
    assert [0, 1, 2] == steps(found, "train/epoch_loss") == steps(found, "validation/epoch_loss")
    assert board(uninterrupted) == found


@pytest.mark.slow  # a minute, for its database; the others show the same way to continue
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of SQLAlchemy about MLflow
def test_a_run_of_mlflow_continues(tmp_path):
    needs("mlflow", "mlflow")
    needs("sqlalchemy", "mlflow")
    from mlflow import MlflowClient

    folders = resumed_and_uninterrupted(tmp_path, "tracked_loop mlflow")
    histories, ends = [], []
    for folder in folders:
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        runs = client.search_runs(["0"], order_by=["attributes.start_time"])
        ends.append([each.info.status for each in runs])
        loss = client.get_metric_history(runs[-1].info.run_id, "loss")
        histories.append([(each.step, each.value) for each in loss])

    assert list(range(60)) == [step for step, _ in histories[0]]
    assert histories[1] == histories[0]
    assert [["KILLED", "FINISHED"], ["FINISHED"]] == ends


@pytest.mark.torch
def test_an_offline_run_of_wandb_continues(tmp_path):
    needs("wandb", "wandb")
    resumed, uninterrupted = resumed_and_uninterrupted(tmp_path, "tracked_loop wandb")
    (run_id, history), (_, expected) = rows_of_wandb(resumed), rows_of_wandb(uninterrupted)

    assert list(range(60)) == [step for step, _ in history]
    assert expected == history
    folders = {path.parent.name for path in resumed.glob("wandb/offline-run-*/*.wandb")}
    assert {run_id} == {name.rpartition("-")[2] for name in folders}, "one id"
    assert 2 == len(folders)


def rows_of_wandb(folder: Path) -> tuple[str, list[tuple[int, float]]]:
    """Id of the newest offline run, and its rows: step and loss."""
    from wandb.proto.wandb_internal_pb2 import Record

    newest = (folder / "wandb" / "latest-run").resolve()
    (path,) = newest.glob("*.wandb")
    rows = []
    for text in records(path.read_bytes()):
        record = Record.FromString(text)
        if record.WhichOneof("record_type") == "history":
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append((values["_step"], values["loss"]))
    return newest.name.rpartition("-")[2], rows


def records(data: bytes) -> list[bytes]:
    """The records of a log file of LevelDB: each is in one part or in several."""
    found, at, parts = [], HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # complete, or the last part
            found.append(parts)
            parts = b""
    return found
