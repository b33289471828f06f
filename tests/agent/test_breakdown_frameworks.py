"""The memory parts of real models, as the agent counts them."""

from __future__ import annotations

import pytest

from watchdog_app.agent.telemetry.memory import Breakdown

WEIGHTS = 64 * 32 + 32


def parts() -> Breakdown:
    found = Breakdown(lambda: 0.0, lambda: None)
    found.start()
    return found


@pytest.mark.torch
def test_a_torch_module_its_optimizer_and_its_loader():
    """Adam holds two tensors per weight and a counter; a scheduler holds nothing."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(64, 32)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(40, 64))
    known = parts()

    known.set_objects([module, optimizer, scheduler])
    known.set_dataset(torch.utils.data.DataLoader(data, batch_size=8))
    found = known.read(1)

    assert (4 * WEIGHTS, 4 * WEIGHTS) == (found["weights_bytes"], found["gradients_bytes"])
    assert 8 * WEIGHTS <= found["optimizer_bytes"] <= 8 * WEIGHTS + 64
    assert 8 == found["batch_size"]


@pytest.mark.tensorflow
def test_a_keras_model_and_the_pipeline_that_its_fit_reads():
    """
    The agent finds a pipeline that Keras wrapped.

    The shuffle buffer does not count as a batch.
    """
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras is on another backend in this process")
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    pipeline = tf.data.Dataset.range(100).shuffle(50).batch(16).prefetch(2)
    known = parts()

    known.set_objects([model])
    known.set_dataset(TFDatasetAdapter(pipeline))
    found = known.read(1)

    assert (4 * WEIGHTS, 4 * WEIGHTS) == (found["weights_bytes"], found["gradients_bytes"])
    assert 8 * WEIGHTS <= found["optimizer_bytes"] <= 8 * WEIGHTS + 64
    assert 16 == found["batch_size"]
