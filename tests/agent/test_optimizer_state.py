"""The agent refuses an optimizer state that PyTorch could not step with, before loading it."""

from __future__ import annotations

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")

from watchdog_app.agent.state.optimizer_state import unusable_reason  # noqa: E402

pytestmark = pytest.mark.torch

KINDS = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD"),
)
OPTIONS = ("amsgrad", "centered", "fused", "momentum")
CASES = [
    (name, {option: 0.9 if option == "momentum" else True} if option else {})
    for name in KINDS
    for option in (None, *OPTIONS)
    if option is None or option in inspect.signature(getattr(torch.optim, name)).parameters
]


def weights():
    return [torch.ones(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)]


def stepped(kind, **options):
    """Return the state after two steps; the last weight has no gradient."""
    trained = weights()
    optimizer = kind([*trained, *weights()[:1]], lr=0.01, **options)

    def closure():
        for each in trained:
            each.grad = torch.ones_like(each)
        return torch.tensor(1.0)

    for _ in range(2):
        optimizer.step(closure)
    return optimizer.state_dict()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_its_own_state_is_taken(name, options):
    """The states of each class and each option that creates slots load into other settings."""
    kind = getattr(torch.optim, name)
    state = stepped(kind, **options)

    assert unusable_reason(kind([*weights(), *weights()[:1]], lr=0.5), state) is None


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("group", "amsgrad", True),  # the state has no slots for it
        ("group", "betas", None),
        ("group", "maximize", float("nan")),  # NaN counts as true
        ("group", "lr", "fast"),
        ("group", "lr", 10**400),
        ("weight", "exp_avg", {}),
        ("weight", "exp_avg", torch.zeros(4)),
        ("weight", "exp_avg", torch.zeros(1, 4)),
        ("weight", "step", torch.zeros(3, 4)),
        ("weight", "step", -1),
        ("group", "betas", (float("nan"), 0.9)),
        ("weight", "exp_avg_sq", None),
    ],
)
def test_what_a_step_would_fail_with_is_told(where, key, value):
    """The reason is PyTorch's own error, or the slot that differs."""
    state = copy.deepcopy(stepped(torch.optim.Adam))
    (state["param_groups"] if where == "group" else state["state"])[0][key] = value

    assert unusable_reason(torch.optim.Adam([*weights(), *weights()[:1]]), state)


def test_a_learning_rate_in_a_tensor_needs_no_value():
    """The outline of a rescue holds no values."""
    state = stepped(torch.optim.Adam)
    state["param_groups"][0]["lr"] = torch.empty((), device="meta")

    assert unusable_reason(torch.optim.Adam([*weights(), *weights()[:1]]), state) is None


def test_an_optimizer_of_the_users_is_not_tried():
    """Its step could do anything."""

    class Own(torch.optim.Adam):
        def step(self, closure=None):
            raise AssertionError

    state = stepped(torch.optim.Adam)
    state["param_groups"][0]["lr"] = "fast"

    assert unusable_reason(Own([*weights(), *weights()[:1]]), state) is None
