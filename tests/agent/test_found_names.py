"""The variable names by which the agent finds the program's objects."""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import types
import weakref
from typing import Any

import pytest

from watchdog_app.agent.identity import names as found_names
from watchdog_app.agent.identity.audit import unwrapped
from watchdog_app.agent.identity.code import is_program


class Thing:
    """An object to search for."""


class Trainer:
    """A class of the program."""

    def __init__(self, model):
        self.model = model
        self.parts = {"encoder": Thing(), 3: Thing()}

    def frame(self):
        return sys._getframe()


class Module(Trainer, Exception):
    """A class of the program, with a base of a library."""


shared = Thing()


def uses_shared():
    return shared


def program_folder():
    return sys._getframe(1)


def test_names_are_those_of_the_function_and_its_callers():
    """The innermost name counts. Globals count only if the code uses them."""
    outer_thing = Thing()

    def inner(network):
        uses = uses_shared
        return found_names.names_of([network, outer_thing, shared], sys._getframe()), uses

    names, _ = inner(outer_thing)

    assert {"network": outer_thing, "shared": shared} == names


def test_a_thing_inside_a_thing_has_a_name_too():
    """As the optimizer that a module holds; private attributes of a library's are not entered."""
    trainer, module = Trainer(Thing()), Module(Thing())
    trainer._hidden, module._buffers = Thing(), Thing()
    inside = {id(each) for owner in (trainer, module) for each in vars(owner).values()}

    def wanted(thing):
        return thing in (trainer, module) or id(thing) in inside

    found = found_names.search(sys._getframe(), wanted, ("inside",))

    expected = (
        "trainer trainer._hidden trainer.model trainer.parts module module.model module.parts"
    )
    assert {*expected.split()} == {each.expression for each in found}


def test_things_in_attributes_and_containers_have_names_too():
    """The agent reports the expression that reaches the object."""
    trainer = Trainer(Thing())

    found = found_names.search(trainer.frame(), lambda one: type(one) is Thing)

    assert {
        ("model", "self.model"),
        ("parts_encoder", "self.parts['encoder']"),
        ("parts_3", "self.parts[3]"),
    } <= {(one.name, one.expression) for one in found}


def test_two_things_of_one_name_are_told_apart():
    """A call accepts each keyword only once."""
    first, second = Trainer(Thing()), Trainer(Thing())

    names = found_names.names_of([first.model, second.model], here_of(first, second))

    assert {"model": first.model, "model_2": second.model} == names


def here_of(first, second):
    return sys._getframe()


def test_a_thing_without_a_name_is_left_out():
    """The agent does not invent a name."""
    names = found_names.names_of([Thing()], sys._getframe())

    assert {} == names


def test_the_look_keeps_nothing_alive():
    """A variable that the function deletes later is freed as without the agent."""
    big = Thing()
    gone = weakref.ref(big)

    found_names.names_of([], sys._getframe())
    del big
    gc.collect()

    assert gone() is None


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals() is a copy there")
def test_a_dict_of_locals_that_the_program_holds_is_left_as_it_is():
    """Many programs write `config = locals()`."""
    rate = 0.5
    config = locals()

    found_names.names_of([], sys._getframe())

    assert rate == config["rate"]


def test_hostile_things_do_not_stop_the_search():
    """Objects may raise on access, contain themselves or have odd names."""

    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    hostile, itself, _odd = Hostile(), [], {"a b\n": Thing(), "": Thing()}
    itself.append(itself)

    found = found_names.search(sys._getframe(), lambda one: type(one) is Thing)

    assert all(one.name.isidentifier() for one in found)
    assert 2 == len([one for one in found if one.expression.startswith("_odd")])
    assert hostile is not itself


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/u/train.py", True),
        ("<ipython-input-3-abc>", True),
        ("/tmp/ipykernel_12/99.py", True),
        ("/home/u/venv/lib/python3.11/site-packages/keras/x.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("<frozen importlib._bootstrap>", False),
        (os.path.join(sysconfig.get_path("scripts"), "pytest"), False),
        (os.path.join(sysconfig.get_path("scripts"), "train.py"), True),
        (types.__file__, False),
        (found_names.__file__, False),
    ],
)
def test_libraries_are_no_program(file, own):
    """Names in library code are not the user's."""
    code = compile("0", file, "exec")

    assert own == is_program(code)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Fabric
def test_an_optimizer_inside_fabrics_wrapper_is_found_by_the_wrappers_name():
    """Fabric steps the inner optimizer, and the program has a name for the wrapper only."""
    fabric = pytest.importorskip("lightning.fabric")
    torch = pytest.importorskip("torch")
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    wrapper = fabric.Fabric(accelerator="cpu", devices=1).setup_optimizers(inner)

    assert (inner, ".optimizer") == unwrapped(wrapper)
    assert (inner, "") == unwrapped(inner)


class Average:
    """With a state, as the averages of diffusers and torch_ema have."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_object_of_a_library_with_a_state_belongs_to_the_training(monkeypatch):
    """Not if a rescue cannot hold the state, or holds it already; own classes are read instead."""
    torch = pytest.importorskip("torch")
    from watchdog_app.agent.found.torch_objects import find_objects

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    average, weights = Average(mean=torch.ones(1), updates=2), Average(weight=weight)
    things = [average, weights, Average(it=object())]
    names = []

    for module in (__name__, "torch"):
        monkeypatch.setattr(Average, "__module__", module)
        names.append({each.name for each in find_objects([optimizer], sys._getframe())})

    assert 3 == len(things)
    assert [{"weight", "optimizer"}, {"weight", "optimizer", "average"}] == names
