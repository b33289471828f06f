"""Facts about a training before its first step, for a later check that a rescue fits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

Json = Any
LIST = "list"
MAPPING = "mapping"


def _json_field(kind: str) -> Any:
    default = list if kind == LIST else dict
    return field(default_factory=default, metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """
    Facts about a training, all of them JSON values.

    Attributes:
        framework: what trains, with its backend: "a Keras fit on torch".
        version: of the framework; another one may name settings differently.
        model: per layer or module in order: `label`, `class`, `inputs` (the outputs that it reads),
            `settings`, and `attributes` for a class of the program.
        moved: names of attributes that training has changed since.
        code: per function of the program that computes: `name`, `at` (file and line) and
            `functions` (name and hash of the function and of its callees).
        loss: its class, configuration and weights.
        optimizers: name to class.
        settings: values that training may change and a program may set again: learning rate,
            momentum.
        data: `kind`, `rows`, `batch_size`, `batches`, `elements` (types and shapes of a row),
            `sample` (a checksum of a few rows), and `code` and `settings` that make it, if known.
        seeds: of the global random generators.
        statements: a hash of each top-level statement of the program.
        lines: first and last line of each statement; not saved.
    """

    framework: str
    version: str = ""
    model: Sequence[Mapping[str, Json]] = _json_field(LIST)
    moved: Sequence[str] = _json_field(LIST)
    code: Sequence[Mapping[str, Json]] = _json_field(LIST)
    loss: Mapping[str, Json] = _json_field(MAPPING)
    optimizers: Mapping[str, str] = _json_field(MAPPING)
    settings: Mapping[str, Json] = _json_field(MAPPING)
    data: Mapping[str, Json] = _json_field(MAPPING)
    seeds: Mapping[str, Json] = _json_field(MAPPING)
    statements: Sequence[str] = _json_field(LIST)
    lines: Sequence[tuple[int, int]] = ()

    def to_json(self) -> dict[str, Json]:
        """The facts for rescue.json."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        del told["lines"]
        return told

    @classmethod
    def read(cls, saved: object) -> RunIdentity:
        """
        Read the facts in a rescue.json.

        Raises:
            ValueError: it is not a result of `to_json`.
        """
        if not isinstance(saved, dict) or not isinstance(saved.get("framework"), str):
            raise ValueError("no identity")  # noqa: TRY004 - from a file, not from a caller
        found: dict[str, Json] = {"framework": saved["framework"]}
        for each in fields(cls):
            kind = each.metadata.get("kind")
            if kind is None:
                continue
            value = saved.get(each.name)
            if not isinstance(value, list if kind == LIST else dict):
                raise ValueError(f"no {each.name}")  # noqa: TRY004 - from a file, not from a caller
            found[each.name] = value
        return cls(**found, version=str(saved.get("version", "")))
