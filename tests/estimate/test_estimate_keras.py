"""Keras on TensorFlow: a simulated graph, an unchanged live model, weights without memory."""

from __future__ import annotations

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from support.estimates import assert_largest_batch  # noqa: E402

from watchdog_app.base.text.quantities import GIB, MIB  # noqa: E402
from watchdog_app.estimate import estimate  # noqa: E402
from watchdog_app.estimate.keras_subject import subject  # noqa: E402
from watchdog_app.estimate.keras_trace import hollow_variables, step_graph  # noqa: E402
from watchdog_app.estimate.record import EstimateError, InputSpec  # noqa: E402
from watchdog_app.estimate.tf_graph import graph_memory  # noqa: E402

pytestmark = pytest.mark.tensorflow

layers = keras.layers
F32 = 4


def dense():
    return keras.Sequential([layers.Input((10,)), layers.Dense(100, "relu"), layers.Dense(1)])


def convolution():
    return keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def test_activations_of_a_small_net_are_those_counted_by_hand():
    """Backward keeps the hidden layer once, because bias and ReLU work in place."""
    batch = 100_000
    graph = step_graph(dense(), [InputSpec((10,), "float32")], batch, loss="mse")

    memory = graph_memory(graph)

    hidden, output = batch * 100 * F32, batch * F32
    # The loss keeps the difference between output and target.
    assert hidden <= memory.kept_bytes <= hidden + 4 * output
    # At the peak, memory holds the hidden layer and its gradient, which is computed while the layer
    # is read.
    assert 2 * hidden <= memory.peak_bytes <= 2 * hidden + 8 * output


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {}),
        ("Adam", {"amsgrad": True, "use_ema": True}),
        ("AdamW", {"gradient_accumulation_steps": 4}),
        ("RMSprop", {"momentum": 0.1, "centered": True}),
        ("Adafactor", {}),
        ("Adagrad", {}),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("Ftrl", {}),
        ("Lion", {}),
        ("Lamb", {}),
        ("Muon", {}),
    ],
)
def test_the_state_of_an_optimizer_is_estimated_exactly_before_it_is_built(kind, settings):
    """The estimate equals the bytes of its variables; the optimizer stays as it is."""
    model = dense()
    optimizer = getattr(keras.optimizers, kind)(**settings)
    parts = subject(model, None, [], optimizer, None, False, None, None, None).parts
    assert not optimizer.built

    optimizer.build(model.trainable_variables)
    held = sum(
        each.value.shape.num_elements() * each.value.dtype.size for each in optimizer.variables
    )

    assert held == parts.optimizer_bytes
    assert parts.optimizer.startswith(kind)


def test_a_loop_over_time_keeps_what_every_turn_leaves():
    """
    A recurrent layer keeps its gates of all time steps:

    twice the steps need twice the memory.
    """
    kept = []
    for steps in (20, 40):
        model = keras.Sequential([layers.Input((steps, 8)), layers.GRU(64), layers.Dense(1)])
        graph = step_graph(model, [InputSpec((steps, 8), "float32")], 32, loss="mse")
        kept.append(graph_memory(graph).kept_bytes)

    assert 32 * 64 * 4 * F32 * 20 <= kept[0]
    assert kept[1] == pytest.approx(2 * kept[0], rel=0.1)


def test_what_is_computed_twice_is_held_once():
    """TensorFlow merges identical operations, so two readers share one result."""
    size = 1_000_000 * F32

    @tf.function(autograph=False)
    def step(x):
        return tf.reduce_sum(tf.cumsum(x)) + tf.reduce_max(tf.cumsum(x))

    graph = step.get_concrete_function(tf.TensorSpec((1_000_000,))).graph

    assert size <= graph_memory(graph).peak_bytes < 1.1 * size


def test_random_numbers_that_are_drawn_twice_are_two():
    """TensorFlow never merges stateful operations."""
    size = 1_000_000 * F32

    @tf.function(autograph=False)
    def step():
        return tf.random.uniform((1_000_000,)), tf.random.uniform((1_000_000,))

    assert graph_memory(step.get_concrete_function().graph).peak_bytes >= 2 * size


def test_a_process_holds_more_than_its_tensors():
    """On the CPU TensorFlow's heap has gaps, a share of the step's memory; on a GPU it has none."""
    found = estimate(convolution(), 64, optimizer="adam")
    card = estimate(convolution(), 64, optimizer="adam", gpu=True)

    assert 0.2 * found.activations_bytes <= found.allocator_bytes < found.activations_bytes
    assert card.allocator_bytes < found.allocator_bytes


def test_a_live_model_stays_as_it_is():
    """The estimate must not change weights, optimizer, seeds or metrics of the user's model."""
    model = convolution()
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    before = [each.numpy().copy() for each in model.variables]
    names = [each.path for each in model.variables]
    tf.random.set_seed(7)
    first = float(tf.random.uniform(()))
    tf.random.set_seed(7)

    estimate(model, 16)

    assert first == float(tf.random.uniform(()))
    assert not model.optimizer.built
    assert names == [each.path for each in model.variables]
    assert all((old == new.numpy()).all() for old, new in zip(before, model.variables, strict=True))


def test_law_limit_and_largest_batch_agree():
    """
    One more than the largest batch does not fit, more examples need more, and the parts are exact.
    """
    found = estimate(convolution(), 64, optimizer="adam", limit_bytes=4 * GIB)
    small = estimate(convolution(), 8, optimizer="adam", limit_bytes=4 * GIB)

    trained = (3 * 9 * 32 + 32 + 64 + 30 * 30 * 32 * 10 + 10) * F32
    assert trained == found.gradients_bytes
    assert trained + 2 * 32 * F32 <= found.weights_bytes <= trained + 2 * 32 * F32 + 64  # the seed
    assert 2 * trained + 12 == found.optimizer_bytes
    assert small.peak_bytes < found.peak_bytes
    assert_largest_batch(found, 4 * GIB)
    assert small.largest_batch == pytest.approx(found.largest_batch, rel=0.15)
    assert "Fits into 4.00 GiB" in str(found)
    assert "<pre>" in found._repr_html_()


def test_a_model_is_built_without_the_memory_of_its_weights():
    """A layer of 40 GB needs no memory for the estimate. Small variables are real."""
    with hollow_variables():
        model = keras.Sequential([layers.Input((100_000,)), layers.Dense(100_000)])
    held = estimate(model, 1, optimizer="adam", limit_bytes=GIB)

    assert 4 * (100_000**2 + 100_000) == held.weights_bytes
    assert 0 == held.largest_batch


def test_a_pipeline_gives_shape_batch_and_buffers():
    """The dataset is the only input. Its shuffle buffer counts, and the advice can reduce it."""
    data = tf.data.Dataset.from_tensor_slices((tf.zeros((1000, 1000)), tf.zeros((1000, 1))))
    data = data.repeat().shuffle(50_000).batch(16)
    model = keras.Sequential([layers.Input((1000,)), layers.Dense(1)])

    found = estimate(model, optimizer="sgd", dataset=data)

    assert 16 == found.batch_size
    assert 190 * MIB < found.buffers_bytes < 220 * MIB
    assert "a smaller buffer" == found.savings[0].what
    assert 170 * MIB < found.savings[0].bytes < 200 * MIB


class ByValue(layers.Layer):
    """A layer whose graph depends on values, so it cannot be traced for a known batch."""

    def call(self, x):
        if x.shape[0] is not None:
            raise ValueError("only with values")
        return x


def test_what_cannot_be_traced_is_counted_by_its_layers():
    """The result is approximate, and the estimate says so."""
    inputs = layers.Input((1000,))
    model = keras.Model(inputs, layers.Dense(1)(ByValue()(layers.Dense(500)(inputs))))

    found = estimate(model, 1000, optimizer="adam")

    assert any("layer by layer" in each for each in found.notes)
    assert found.activations_bytes > 1000 * 500 * F32


def test_a_model_that_is_not_built_is_refused():
    """An unbuilt model has no weights. The message names the call that builds it."""
    with pytest.raises(EstimateError, match="not built"):
        estimate(keras.Sequential([layers.Dense(3)]), 4)


def test_an_open_dimension_has_to_be_named():
    """None is not a length."""
    model = keras.Sequential([layers.Input((None, 8)), layers.LSTM(4), layers.Dense(1)])

    with pytest.raises(EstimateError, match="None can be anything"):
        estimate(model, 4)
    assert estimate(model, 4, input_shape=(30, 8), optimizer="sgd").peak_bytes > 0
