"""PyTorch: activations counted by hand, an unchanged module, a valid linear law."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from support.estimates import assert_largest_batch  # noqa: E402
from torch import nn  # noqa: E402

from watchdog_app.base.text.quantities import GIB, MIB  # noqa: E402
from watchdog_app.estimate import estimate  # noqa: E402
from watchdog_app.estimate.record import EstimateError, InputSpec  # noqa: E402
from watchdog_app.estimate.torch_step import step_memory, subject  # noqa: E402

pytestmark = pytest.mark.torch

BATCH = 8
F32 = 4


def two_layers():
    return nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 1))


def test_activations_of_a_small_net_are_those_counted_by_hand():
    """Backward keeps the hidden layer once, the output, and what the loss stores."""
    step = step_memory(two_layers(), [InputSpec((10,), "float32")], BATCH)

    # ReLU keeps its result and drops its input. Output, target and scalar loss remain.
    hidden, output, target, loss = BATCH * 100 * F32, BATCH * F32, BATCH * F32, F32
    assert hidden + output + target + loss == step.kept_bytes
    assert (10 * 100 + 100 + 100 + 1) * F32 == step.gradients_bytes
    assert BATCH * 10 * F32 == step.data_bytes


class OwnLion(torch.optim.Optimizer):
    """An optimizer of a program, which makes its state in its first step."""

    def __init__(self, weights, lr=0.1):
        super().__init__(weights, {"lr": lr})

    def step(self):
        for each in self.param_groups[0]["params"]:
            slot = self.state[each].setdefault("mean", torch.zeros_like(each))
            each.data.add_(slot.mul_(0.9).add_(each.grad).sign(), alpha=-0.1)


def own_lion(weights):
    return OwnLion(weights)


def of(kind, **settings):
    return lambda weights: getattr(torch.optim, kind)(weights, lr=1e-3, **settings)


@pytest.mark.parametrize(
    "make",
    [
        of("SGD"),
        of("SGD", momentum=0.9),
        of("Adam"),
        of("AdamW", amsgrad=True),
        of("NAdam"),
        of("RAdam"),
        of("Adamax"),
        of("Adagrad"),
        of("Adadelta"),
        of("Adafactor"),
        of("RMSprop", momentum=0.1, centered=True),
        of("Rprop"),
        of("ASGD"),
        own_lion,
    ],
)
def test_the_state_of_an_optimizer_is_estimated_exactly_before_its_first_step(make):
    """The estimate equals the bytes of the state after a step; the optimizer stays as it is."""
    module = two_layers()
    optimizer = make(module.parameters())
    before = len(optimizer.state)
    found = subject(module, None, optimizer, None, None, False, None)
    assert before == len(optimizer.state)

    module(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    held = sum(
        each.numel() * each.element_size()
        for state in optimizer.state.values()
        for each in state.values()
        if isinstance(each, torch.Tensor)
    )

    assert held == found.parts.optimizer_bytes
    assert type(optimizer).__name__ in found.parts.optimizer
    assert not any("not counted" in each for each in found.notes)


def test_an_optimizer_whose_step_cannot_be_traced_is_named():
    """Its state is unknown and not zero."""
    module = two_layers()
    found = subject(module, None, torch.optim.LBFGS(module.parameters()), None, None, False, None)

    assert found.parts.optimizer_bytes is None
    assert any("the state of LBFGS is not counted" in each for each in found.notes)


def test_an_attention_map_is_seen():
    """The trace holds the scores between all tokens, although no layer has that name."""

    class Maps(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return torch.softmax(x @ x.transpose(1, 2) * self.scale, -1) @ x

    small = step_memory(Maps(), [InputSpec((64, 4), "float32")], 2)
    large = step_memory(Maps(), [InputSpec((128, 4), "float32")], 2)

    assert large.kept_bytes > 3.5 * small.kept_bytes


def test_scores_of_every_word_are_those_of_classes():
    """A language model's cross entropy keeps as much memory again as the scores."""
    words = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000))
    step = step_memory(words, [InputSpec((16,), "int64")], BATCH)

    scores = BATCH * 16 * 1000 * F32
    # Backward keeps their logarithms, and adds the gradient of each.
    assert 2 * scores <= step.kept_bytes
    assert 4 * scores <= step.peak_bytes


def test_a_live_module_stays_as_it_is():
    """Weights, gradients, statistics, mode, optimizer and random state stay unchanged."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(),
                           nn.Linear(8 * 36, 4)).eval()  # fmt: skip
    optimizer = torch.optim.Adam(module.parameters())
    before = {name: each.clone() for name, each in module.state_dict().items()}
    random = torch.get_rng_state()

    estimate(module, 4, input_shape=(3, 8, 8), optimizer=optimizer)

    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())
    assert not module.training
    assert not optimizer.state
    assert torch.equal(random, torch.get_rng_state())


def test_hooks_of_the_program_are_not_called():
    """
    The program's hooks must not collect activations of the estimate.

    Weight normalisation still works.
    """
    seen = []
    module = nn.Sequential(nn.utils.spectral_norm(nn.Linear(10, 20)), nn.Linear(20, 1))
    handle = module[1].register_forward_hook(lambda *given: seen.append(given))

    found = estimate(module, 4, optimizer="sgd")

    assert found.activations_bytes > 0
    assert not seen
    assert handle.id in module[1]._forward_hooks


def conv():
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(32 * 28 * 28, 10))  # fmt: skip


def test_the_largest_batch_fits_and_one_more_does_not():
    """The linear law, the limit and the largest batch agree. A larger batch needs more memory."""
    found = estimate(conv(), 64, input_shape=(3, 32, 32), optimizer="adam", limit_bytes=2 * GIB)

    assert found.largest_batch > 64
    assert_largest_batch(found, 2 * GIB)
    assert found.fits
    again = estimate(conv(), found.largest_batch, input_shape=(3, 32, 32), optimizer="adam")
    assert again.peak_bytes == pytest.approx(2 * GIB, rel=0.1)
    assert found.low_bytes < found.peak_bytes < found.high_bytes


def test_a_process_holds_more_than_its_tensors():
    """
    The estimate adds gaps of the heap, as much as a step takes until they stop growing.
    """
    small, large, huge = (
        estimate(conv(), batch, input_shape=(3, 32, 32), optimizer="adam").allocator_bytes
        for batch in (8, 1024, 2048)
    )

    assert 0 < small < 20 * MIB
    assert 150 * MIB < large < huge < 1.2 * large


def test_the_peak_grows_with_the_batch():
    """More examples never need less memory."""
    peaks = [
        estimate(conv(), batch, input_shape=(3, 32, 32), optimizer="adam").peak_bytes
        for batch in (1, 4, 16, 64, 256)
    ]

    assert sorted(peaks) == peaks
    assert peaks[0] < peaks[-1]


def test_weights_that_do_not_fit_fit_with_no_batch():
    """The largest batch is zero, and the text says so."""
    found = estimate(two_layers(), 8, optimizer="adam", limit_bytes=100 * MIB)

    assert 0 == found.largest_batch
    assert "not even with a batch of 1" in str(found)


def test_a_model_without_memory_is_estimated():
    """On the meta device, 400 GB of weights need no memory."""
    module = nn.Linear(100_000, 1_000_000, bias=False, device="meta")

    found = estimate(module, 1, optimizer="sgd", limit_bytes=GIB)

    assert 4 * 100_000 * 1_000_000 == found.weights_bytes
    assert 0 == found.largest_batch


def test_mixed_precision_takes_less():
    """Activations need half the bytes, and the estimate gives the saving in advance."""
    plain = estimate(conv(), 64, input_shape=(3, 32, 32), optimizer="adam")
    mixed = estimate(conv(), 64, input_shape=(3, 32, 32), optimizer="adam", precision="bfloat16")

    assert mixed.activations_bytes < 0.7 * plain.activations_bytes
    assert "mixed precision" in [each.what for each in plain.savings]
    assert "mixed precision" not in [each.what for each in mixed.savings]


def test_batches_that_workers_hold_ready_count():
    """Two workers hold two batches each, besides the batch in use."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.zeros(8, 10), torch.zeros(8, 1))
    loader = DataLoader(data, batch_size=4, num_workers=2)

    found = estimate(two_layers(), optimizer="adam", dataset=loader)

    assert 4 == found.batch_size
    assert (1 + 4) * 4 * 10 * F32 == found.buffers_bytes
    assert any("worker processes" in each for each in found.notes)


def test_a_mask_that_is_looked_at_is_taken_for_causal():
    """An encoder reads its mask's values. The estimate assumes one answer and says so."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, x):
            return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(8))

    found = estimate(Masked(), 4, input_shape=(8, 16), optimizer="adam")

    assert found.activations_bytes > 0
    assert any("decides by values" in each for each in found.notes)


class ByValue(nn.Module):
    """A module whose behaviour depends on its input values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x[x.sum(1) > 0])


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (conv, {}, "does not tell what one example is"),
        (conv, {"input_shape": (7,)}, "cannot be traced"),
        (conv, {"input_shape": (3, 32, 32), "optimizer": "adm"}, "no optimizer 'adm'"),
        (conv, {"input_shape": (3, 0, 32)}, "no shape of one example"),
        (conv, {"input_shape": (3, 32, 32), "precision": "int4"}, "precision 'int4'"),
        (conv, {"input_shape": (3, 32, 32), "batch_size": 0}, "batch_size 0"),
        (ByValue, {"input_shape": (3,)}, "cannot be traced"),
        (object, {}, "neither a Keras model nor a PyTorch module"),
        (lambda: nn.Linear, {}, "not its class"),
    ],
)
def test_what_cannot_be_estimated_is_said(model, arguments, said):
    """The message says what happened and what to do."""
    with pytest.raises(EstimateError, match=said):
        estimate(model(), **arguments)
