"""
PyTorch training loops that Lightning or the Trainer of Hugging Face runs, and their rescues.

These libraries keep their own counters, so a rescue of such a loop holds them as well.
`watchdog_app.agent.lightning` and `.transformers` convert a rescue to a checkpoint of the library.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from watchdog_app.agent.adapters.report import Report
from watchdog_app.agent.adapters.torch_state import SavedTorch, environment_record
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.identity import code, environment, keras_facts, names, torch_facts
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.runtime import relation, run_choice
from watchdog_app.agent.source import edits
from watchdog_app.agent.state import own_random, torch_tensors
from watchdog_app.agent.state.torch_parts import ModulePart
from watchdog_app.agent.telemetry.stacks import callers, frame_locals
from watchdog_app.base.errors import RescueMismatch
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.identity.compare import check_verdict, compare, describe_rescue
from watchdog_app.rescue.identity.run import RunIdentity

MEANS = "means of losses and metrics that the library logs, over the steps before the resume"
KEY = "library"  # key in the meta of a rescue
LIGHTNING, TRANSFORMERS = "lightning", "transformers"
_OF = "callback "  # before the name of a callback in a rescue
_LOOP_FACTS = ("code", "loss", "optimizers")  # keys of `_loop_facts`
_MOST_FRAMES = 8
_LOGS = frozenset(("log", "log_dict"))  # methods that collect means
_LIGHTNING = {LIGHTNING, "pytorch_lightning"}


def find_loop_owner(frame: FrameType | None) -> Any:
    """The library's object that runs the loop around `frame`; None for the program's own loop."""
    for each in callers(frame):
        is_method = each.f_code.co_varnames[:1] == ("self",)
        if is_method and _package(each) in (TRANSFORMERS, *_LIGHTNING):
            owner = frame_locals(each).get("self")
            if _library_name(owner) is not None:
                return owner
    return None


def own_checkpoint(frame: FrameType | None) -> str:
    """Why no lines resume the loop around `frame`, if a library without a resume runs it."""
    known = filter(edits.OWN_CHECKPOINTS.get, map(_package, callers(frame)))
    return next((f"{edits.OWN_CHECKPOINTS[package]}." for package in known), "")


def owners_in_program(frame: FrameType | None, library: str) -> list[Any]:
    """The library's objects that variables of the program around `frame` hold."""
    found = {}
    for each in code.program_frames(frame, _MOST_FRAMES):
        for value in (*each.f_globals.values(), *frame_locals(each).values()):
            if _library_name(value) == library:
                found[id(value)] = value
    return list(found.values())


def trained_objects(owner: Any) -> list[Any]:
    """The modules and schedulers that the library's object trains with."""
    library = _library_name(owner)
    if library == TRANSFORMERS:
        return [each for each in (owner.model, owner.lr_scheduler) if each is not None]
    if library == LIGHTNING:
        trainer = owner.trainer
        return [
            trainer.lightning_module,
            *(each.scheduler for each in trainer.lr_scheduler_configs),
        ]
    return []


def library_counts(owner: Any) -> dict[str, Any] | None:
    """The counters of the library's object, as JSON values; None without a library."""
    library = _library_name(owner)
    if library == TRANSFORMERS:
        state = dataclasses.asdict(owner.state)
        counts = {"name": library, "state": json.loads(json.dumps(state, default=str))}
        return {**counts, **_loop_facts(owner)}
    if library == LIGHTNING:
        trainer = owner.trainer
        return {
            "name": library,
            "loops": json.loads(json.dumps(trainer.fit_loop.state_dict(), default=str)),
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            **_loop_facts(owner),
        }
    return None


def kept_state(owner: Any) -> dict[str, Any]:
    """What the callbacks and the program's own objects keep, to be encoded."""
    library = _library_name(owner)
    if library is None:
        return {}
    states: dict[str, Any] = {}
    for key, each in callbacks_by_key(owner).items():
        try:
            if library == LIGHTNING:
                if kept := each.state_dict():
                    states[f"{_OF}{each.state_key}"] = kept
            elif hasattr(each, "state"):
                states[f"{_OF}{key}"] = each.state()["attributes"]
        except Exception as error:  # of the program
            states[f"{_OF}{key}"] = error  # a rescue cannot hold it, and names it
    now = _attributes(owner)
    attributes = {"attributes": now.changed_values(), "containers": now.held_values()}
    generators = {name: own_random.capture(each) for name, each in _generators(owner).items()}
    return {**attributes, "generators": generators, **copy.deepcopy(states)}


def not_restored(owner: Any) -> list[str]:
    """What a resume will not restore of what the library and its callbacks keep."""
    library, module = _library_name(owner), trained_objects(owner)[0]
    arrays = [
        f"{type(each).__name__}.{name}"
        for each in (owner, *_callbacks(owner))
        for name in code.attributes_named(type(each)) & code.attributes_set(type(each))
        if hasattr(value := vars(each).get(name), "shape") and not torch_tensors.is_held(value)
    ]
    logs = any(_LOGS & code.attributes_named(type(each)) for each in (module, *_callbacks(owner)))
    means = [MEANS] if logs or library == TRANSFORMERS or not code.is_own(type(module)) else []
    return [*means, *arrays, *_attributes(owner).lost()]


def callbacks_by_key(owner: Any) -> dict[str, Any]:
    """The callbacks by class and number among those of the class, as a program may add others."""
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for each in _callbacks(owner):
        name = type(each).__name__
        found[f"{name} {seen[name]}"] = each
        seen[name] += 1
    return found


def _callbacks(owner: Any) -> list[Any]:
    if _library_name(owner) == LIGHTNING:
        return list(owner.trainer.callbacks)
    return list(owner.callback_handler.callbacks)


def _attributes(owner: Any) -> Attributes:
    return Attributes(_objects(owner), begins=False, holds=torch_tensors.is_held)


def _objects(owner: Any) -> list[tuple[str, Any]]:
    """The objects of the program that the loop uses, with labels."""
    callbacks = ((type(each).__name__, each) for each in _callbacks(owner))
    modules = torch_facts.modules_of({"model": trained_objects(owner)[0]})
    trainer = owner.trainer if _library_name(owner) == LIGHTNING else owner
    roots = [*modules, *callbacks, ("trainer", trainer)]
    return [*roots, *names.objects_in(roots)]


def _generators(owner: Any) -> dict[str, Any]:
    """The random generators of the program's objects, by the names of their attributes."""
    return {
        f"{label}.{name}": each
        for label, thing in _objects(owner)
        for name, each in code.attributes_of(thing).items()
        if own_random.is_generator(each) and not own_random.is_global(each)
    }


def add_callback(owner: Any, **hooks: Callable[..., Any]) -> None:
    """Have the trainer of a Lightning loop call these hooks, named as in its `Callback`."""
    if _library_name(owner) == LIGHTNING:
        package = sys.modules.get("lightning.pytorch") or sys.modules["pytorch_lightning"]
        owner.trainer.callbacks.append(package.callbacks.LambdaCallback(**hooks))


def _loop_facts(owner: Any) -> dict[str, Any]:
    """What the loop of the library's object computes besides the model; see `RunIdentity`."""
    if _library_name(owner) == LIGHTNING:
        classes = [keras_facts.class_of(each) for each in owner.trainer.optimizers]
        return {"optimizers": {f"optimizer {n}": each for n, each in enumerate(classes, 1)}}
    given = getattr(owner, "compute_loss_func", None)  # not in old versions
    functions = keras_facts.function_entry(given, "compute_loss_func")
    for name in ("compute_loss", "training_step"):
        functions += keras_facts.function_entry(getattr(type(owner), name, None), name)
    settings = {
        "label smoothing": owner.args.label_smoothing_factor,
        "optimizer": str(getattr(owner.args.optim, "value", owner.args.optim)),
    }
    return {"code": functions, "loss": settings}


class LibraryRescue:
    """A rescue of a library's training, split into the parts that the library loads."""

    def __init__(self, path: str, library: str) -> None:
        """
        Args:
            path: folder of the rescue.
            library: name of the library that ran the loop.

        Raises:
            RescueMismatch: another library ran the loop, or the program itself did.
            RescueError: the rescue cannot be read.
        """
        self.path = path
        self._loaded = LoadedRescue(path)
        self.step = self._loaded.step
        self.meta: Mapping[str, Any] = self._loaded.meta
        self._saved = SavedTorch(path, self.meta, self._loaded.read)
        self.library: Mapping[str, Any] = self.meta.get(KEY) or {}
        if self.library.get("name") != library:
            raise RescueMismatch(
                f"The rescue {path} was not saved in a training loop of {library}. Nothing was "
                "loaded. Give each training a folder of its own."
            )

    def check_fit(self, model: torch.nn.Module, owner: Any) -> None:
        """
        Compare what a model computes with the rescue, and report allowed differences.

        Args:
            model: the model that the library trains.
            owner: the library's object that runs the loop.

        Raises:
            RescueMismatch: it computes something else.
        """
        shown = describe_rescue(self.path, self.step, self._loaded.created_unix_s)
        identity = self.meta.get("identity")
        try:
            before = RunIdentity.read(identity)
        except ValueError:
            before = RunIdentity(torch_facts.FRAMEWORK)
        now = torch_facts.gather({"model": model}, begins=False)
        saved = {
            key: each
            for key in _LOOP_FACTS
            if isinstance(each := self.library.get(key), list | dict)
        }
        then = dataclasses.replace(before, **_joined(before, saved))
        # Not the statements: the program has got the line that resumes it.
        facts = {name: getattr(now, name) for name in ("version", "model", "code")}
        after = dataclasses.replace(before, **facts)
        if saved:
            after = dataclasses.replace(after, **_joined(after, _loop_facts(owner)))
        verdict = compare(then.to_json(), after)
        remedies = (f"set {relation.RESUME}=force", f"set {relation.RESUME}=no")
        forced = relation.is_forced()
        for line in check_verdict(verdict, shown, forced=forced, remedies=remedies):
            print_message(line)

    def callbacks(self) -> dict[str, Any]:
        """The states of the callbacks, see `kept_state`."""
        found = self._saved.variables()
        return {
            name.removeprefix(_OF): each for name, each in found.items() if name.startswith(_OF)
        }

    def restore_attributes(self, owner: Any) -> None:
        """Set what no checkpoint of the library holds: modes, buffers, attributes, generators."""
        (state,) = self._parts_with("asleep")
        ModulePart("model", trained_objects(owner)[0]).restore(state, self._saved.read)
        saved, now = self._saved.variables(), _attributes(owner)
        for each in ("attributes", "containers"):
            now.restore(saved.get(each))
        states, found = saved.get("generators", {}), _generators(owner)
        for name in states.keys() & found.keys():
            own_random.restore_all([found[name]], [states[name]])

    def modules(self) -> list[dict[str, torch.Tensor]]:
        """The `state_dict` of each module."""
        return [self._decode(part["state"]) for part in self._parts_with("asleep")]

    def optimizers(self) -> list[dict[str, Any]]:
        """The `state_dict` of each optimizer."""
        return [self._decode(part) for part in self._parts_with("param_groups")]

    def schedulers(self) -> list[dict[str, Any]]:
        """The `state_dict` of each scheduler."""
        return [self._decode(part) for part in self._parts_with("last_epoch")]

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor."""
        return self._saved.read(name)

    def report_resumed(self) -> None:
        """Record that this process resumes from the rescue, and print what that lacks."""
        run_choice.adopt(os.path.dirname(self.path), self.path)
        changed = environment.differences(self.meta["environment"], environment_record())
        Report().resumed(self._loaded, "", (), changed, folders.start_over_advice())

    def _parts_with(self, key: str) -> list[dict[str, Any]]:
        """The states, among those of all objects, that have this key."""
        return [
            each for each in self.meta["parts"].values() if isinstance(each, dict) and key in each
        ]

    def _decode(self, part: Any) -> Any:
        return torch_tensors.decode(part, self._saved.read)


def _joined(identity: RunIdentity, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an identity to replace, so that it has the facts of the loop as well."""
    return {**facts, "code": [*identity.code, *facts.get("code", ())]}


def newest_unfinished(directory: str | os.PathLike[str], library: str) -> LibraryRescue | None:
    """
    The newest unfinished rescue of a process that has ended; None: there is none, or no resume.

    Args:
        directory: the folder that the agent printed when it saved.
        library: name of the library that ran the loop.
    """
    may_resume = folders.is_resume_enabled()
    left = run_choice.waiting_run(os.fspath(directory)) if may_resume else None
    return None if left is None else LibraryRescue(left.path, library)


def is_of(owner: Any, *packages: str) -> bool:
    """Whether a package defines a class of an object: a program may use its own subclass."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(owner).__mro__)


def _library_name(owner: Any) -> str | None:
    if is_of(owner, TRANSFORMERS) and hasattr(owner, "state") and hasattr(owner, "args"):
        return TRANSFORMERS
    if is_of(owner, *_LIGHTNING) and hasattr(owner, "trainer"):
        return LIGHTNING
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
