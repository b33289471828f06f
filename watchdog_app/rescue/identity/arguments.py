"""
The arguments of a program as options with values; tells options that change the training.

More epochs or another log folder make the same training; another fold, seed or data set makes
another one. Values of the first kind are plain numbers and paths and are stored in clear. All
others may be secrets, so only a salted scrypt hash is stored, for comparison.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Options that do not change the training: names in lower case with underscores, and values.
_COUNT = r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?"
_SWITCH = r"true|false|yes|no|on|off|none|auto"
_PLAIN_PATH = r"(?!-)[^\0\n=]*"
_CHECKPOINT_FILE = (
    r"[^\0\n]+\.(pt|pth|ckpt|h5|keras|safetensors|tar|bin)|"
    r"latest|last|best|must|allow|never|" + _SWITCH
)
_CHECKPOINT = r"[^\0\n]*/[^\0\n]*|" + _CHECKPOINT_FILE
# A folder that a training wrote, not one with data.
_RUN_FOLDER = (
    r"(.*/)?(checkpoints?|ckpts?|exps?|experiments?|logs?|outputs?|rescues?|results?|runs?|"
    r"lightning_logs)(\W.*|_?\d.*)?"
)
_OUTPUT = (
    r"logs?|logging|tensorboard|tb|summary|out|outputs?|results?|save|checkpoints?|ckpts?|rescues?"
)


@dataclass(frozen=True, slots=True)
class _Benign:
    """Options that do not change the training."""

    names: re.Pattern[str]
    values: re.Pattern[str]
    # Any other following word is a separate argument: `--verbose mnist`, `--resume 3`.
    following: re.Pattern[str]


def _benign(names: str, values: str, *, following: str | None = None) -> _Benign:
    """
    Compile a row.

    `following`: values after a space, for options that may be switches without a value.
    """
    after = values if following is None else following
    return _Benign(
        re.compile(names), re.compile(values, re.IGNORECASE), re.compile(after, re.IGNORECASE)
    )


_RATES = _benign(
    r"((base|init|initial|max|min|peak)_)?(lr|learning_?rate)(_(init|initial|max|min|start))?"
    r"|lr0|learn_rate",
    _COUNT,
)
# How far a training runs.
_LENGTHS = (
    _benign(
        r"((max|num|n|nb|no|total|train|training|num_train|n_train|max_train|train_num)_)?epochs?"
        r"|(max|num|n|total)epochs",
        _COUNT,
    ),
    _benign(r"(start|initial|first|last|resume)_epoch", _COUNT),  # for a rerun by hand
    _benign(
        r"((max|num|n|nb|total|train|training|num_train|num_training|max_train)_)?"
        r"(steps|iters|iterations|updates)|(max_|num_|n_?)iters?",
        _COUNT,
    ),
)
_BENIGN_OPTIONS = (
    _RATES,
    *_LENGTHS,
    _benign(
        r"((train|eval|val|valid|test|global|micro|mini|per_device|per_gpu|"
        r"per_device_train|per_device_eval|per_gpu_train|per_gpu_eval)_)?"
        r"(batch_?size|bs|batch|bsz)",
        _COUNT,
    ),
    _benign(
        r"(n|(num|n|nb|data|loader|dataloader|num_data|dataloader_num|train|eval|val)_)?workers"
        r"|(n|num_|n_)?(threads|jobs)|nproc|num_proc|workers_per_(gpu|device)|j",
        r"-?\d+|auto|none",
    ),
    _benign(
        r"((num|n|nb)_)?(devices?|gpus?)|gpu_ids?|device_ids?|cuda|cuda_device|accelerator",
        r"\[[\d, ]*\]|(cpu|gpu|cuda|mps|xpu|tpu|hpu|npu|rocm)?(:?\d+)?(,\d+)*|-1|"
        r"/?(cpu|gpu|device:gpu):\d+|" + _SWITCH,
    ),
    _benign(
        r"verbose|verbosity|v+|log_?level|logging_level",
        r"\d+|debug|info|warn|warning|error|critical|" + _SWITCH,
    ),
    _benign(
        r"quiet|silent|q|use_cuda|no_cuda|use_gpu|no_gpu|cpu",
        r"\d|" + _SWITCH,
        following=_SWITCH,
    ),
    _benign(
        rf"({_OUTPUT}|runs?|work)_?(dir|directory|path|folder|file|root)|"
        r"save_to|outputs?|out|logs|rescues?",
        _PLAIN_PATH,
    ),
    # -o mnist and --save mnist may be switches before a data set.
    _benign(
        r"o|log|tensorboard|tb|summary|results?|save", r"(?!-)[^\0\n=]*(/|\.\w{1,8}$)[^\0\n=]*"
    ),
    _benign(
        r"(auto_?)?resume|(auto_?)?restart|continue|continue_training",
        _CHECKPOINT,
        following=rf"{_CHECKPOINT_FILE}|{_RUN_FOLDER}",
    ),
    _benign(
        r"resume_(from|path|checkpoint|ckpt|from_checkpoint|training|run)|load_checkpoint|"
        r"checkpoints?|ckpts?",
        _CHECKPOINT,
    ),
)
# A file with start weights, if it exists before the training begins.
_WEIGHTS = re.compile(r"(load_)?(checkpoint|ckpt)s?")
_HYDRA = re.compile(r"hydra\.((run|sweep)\.(sub)?dir|output_subdir|verbose)")
# Prefixes before the last dot that do not change the meaning of the last word.
_SECTIONS = frozenset(
    (
        *("args", "cfg", "conf", "config", "data", "dataloader", "datamodule", "dataset"),
        *("experiment", "fit", "hparams", "loader", "optim", "optimizer", "params", "run"),
        *("solver", "train", "trainer", "training", "training_args", "settings"),
    )
)
# `lr=0.1`, `+data.fold=3`. A value padded with `=` (base64) may be a secret: it does not match.
_ASSIGNMENT = re.compile(r"[+]{0,2}(~?[A-Za-z_]\w*(?:[./@-]\w+)*)=(?!=)(.+)", re.DOTALL)
# After these options come assignments; after any other option comes its value.
_BEFORE_ASSIGNMENTS = frozenset(
    ("multirun", "m", "cfg_options", "options", "opts", "overrides", "override", "set")
)
_NUMBER = re.compile(rf"({_COUNT})")
_QUANTITY = re.compile(r"[+-]?((0|[1-9]\d*)?\.(0|\d*[1-9])|(0|[1-9]\d*)\.?)([eE][+-]?\d+)?")
# The first part of a path: a prefix (`tmp`, `pytorch-errorfile-`), random characters, a suffix.
_RANDOM = re.compile(r"^(tmp|[^/]*[-_])[a-z0-9_]{8}(?=[./]|$)")
# A URL (of a webhook, or with a user's name and password), or a value named like a secret.
_SECRET_PATH = re.compile(r"[@?]|://|(pass|token|secret|key|auth|signature)\w*=", re.IGNORECASE)
# arguments of Rescue that concern one run only
RESCUE_ARGUMENTS = frozenset(("resume", "keep", "on_oom"))
_LONGEST_CLEAR = 300
_MOST_POSITIONAL = 8  # more, such as a glob of files, are compared as one value
_MOST_TOKENS = 5000  # an expanded glob may give more; they become one value
_NO_VALUE = "given"  # stands for the value of an option without one

# Each guess at a short value costs about 5 ms and 2 MiB of memory.
_SCRYPT = {"n": 2**11, "r": 8, "p": 1}
SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Arguments:
    """
    Options by name, in any order.

    Attributes:
        clear: values of options that do not change the training.
        others: values of all others, positional arguments included. Never store them.
        written: each name as the user wrote it, for messages.
        paths: real paths of values in `others` that name an existing file.
    """

    clear: Mapping[str, str]
    others: Mapping[str, str]
    written: Mapping[str, str]
    paths: Mapping[str, str] = field(default_factory=dict)


def parse(tokens: Sequence[str]) -> Arguments:
    """Parse a command line. If a benign option is given twice, the last value counts."""
    clear: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    if len(tokens) > _MOST_TOKENS:
        return Arguments({}, {"arguments": "\0".join(tokens)}, {"arguments": "arguments"})
    for shown, value in _options(tokens):
        name = _canonical(shown)
        written.setdefault(name, shown)
        if _benign_kind(shown) is not None if value is None else is_benign(shown, value):
            clear[name] = _NO_VALUE if value is None else value
        else:
            others.setdefault(name, []).append(_NO_VALUE if value is None else value)
    positional = [name for name in others if name.startswith("argument ")]
    if len(positional) > _MOST_POSITIONAL:
        others["arguments"] = [value for name in positional for value in others.pop(name)]
    return _build_arguments(clear, others, written)


def parse_values(values: Iterable[tuple[str, str]]) -> Arguments:
    """Like `parse`, for variables and functions' arguments: `fold`, `train.fold`."""
    clear: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    for name, value in values:
        if is_benign(name.rpartition(".")[2], value):
            clear[name] = value
        else:
            others.setdefault(name, []).append(value)
    return _build_arguments(clear, others, {name: name for name in (*clear, *others)})


def strip_temporary_path(value: str) -> str:
    """
    A text that is the same in another run: paths become relative to the temporary folder.

    Removes the eight random characters that `tempfile` adds to names there.
    """
    folder = os.path.join(tempfile.gettempdir(), "")
    return _RANDOM.sub(r"\1", value.removeprefix(folder)) if value.startswith(folder) else value


def is_benign_variable(name: str, value: str) -> bool:
    """Whether a variable with this value does not change the training."""
    last = name.rpartition(".")[2]
    return last in RESCUE_ARGUMENTS or is_benign(last, value)


def is_length(name: str) -> bool:
    """Whether a variable says how far a training runs, such as `epoch`."""
    return any(kind.names.fullmatch(name.lower()) for kind in _LENGTHS)


def record(found: Arguments, salt: bytes) -> dict[str, Any]:
    """The arguments as JSON values, without a value that may be a secret."""
    return {
        "salt": salt.hex(),
        "clear": dict(found.clear),
        "hashed": {name: _hash_value(value, salt) for name, value in found.others.items()},
        "paths": {name: _hash_value(value, salt) for name, value in found.paths.items()},
    }


def differing_options(
    saved: Mapping[str, Any], now: Arguments, *, common: bool = False
) -> list[str]:
    """
    Options that make this another training than the saved one, as the user writes them.

    Args:
        saved: the result of `record`.
        now: of this process.
        common: compare only options that both have.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: `saved` is not a result of `record`.
    """
    hashed = {str(name): str(value) for name, value in saved["hashed"].items()}
    paths = {str(name): str(value) for name, value in saved["paths"].items()}
    salt = bytes.fromhex(saved["salt"])
    found = []
    for name in sorted(hashed.keys() | now.others.keys()):
        value = now.others.get(name)
        if common and (value is None or name not in hashed):
            continue
        if name in paths and name in now.paths:
            same = paths[name] == _hash_value(now.paths[name], salt)
        else:
            same = value is not None and hashed.get(name) == _hash_value(value, salt)
        if not same:
            found.append(now.written.get(name, option_text(name)))
    for name in sorted(saved["clear"].keys() & now.clear.keys()):
        value = now.clear[name]
        if _WEIGHTS.fullmatch(name) and value != saved["clear"][name] and os.path.isfile(value):
            found.append(now.written.get(name, option_text(name)))
    return found


def changed_options(saved: Mapping[str, Any], now: Arguments) -> list[str]:
    """Benign options that differ from the saved run: `--epochs 20 (was 10)`."""
    before = {str(name): str(value) for name, value in saved["clear"].items()}
    found = []
    for name in sorted(before.keys() | now.clear.keys()):
        old, new = before.get(name), now.clear.get(name)
        if old is not None and new is not None and _normalise_number(old) == _normalise_number(new):
            continue
        shown = now.written.get(name, option_text(name))
        if new is None:
            text = f"no {shown} (was {old})"
        elif old is None:
            text = f"{shown} {new} (was not given)"
        else:
            text = f"{shown} {new} (was {old})"
        found.append(text.replace(f" {_NO_VALUE} ", " "))
    return found


def option_text(name: str, value: str | None = None) -> str:
    """An option as a user writes it, from the name and value that `record` stores."""
    shown = name if name.startswith(("argument", "-")) or "." in name else f"--{name}"
    shown = shown.replace("_", "-") if shown.startswith("--") else shown
    return shown if value in (None, _NO_VALUE) else f"{shown} {value}"


def _options(tokens: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option as written, and its value; positional arguments are numbered."""
    position = 0
    place = 0
    only_positional = False
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token == "--" and not only_positional:  # noqa: S105 - an argument
            only_positional = True
            continue
        if only_positional or not _is_option(token):
            assigned = None if only_positional else _ASSIGNMENT.fullmatch(token)
            if assigned is not None and not assigned[1].startswith("/"):
                yield assigned[1], assigned[2]
                continue
            position += 1
            yield f"argument {position}", token
            continue
        name, equals, value = token.partition("=")
        attached = ""
        if len(name) > 2 and not name.startswith("--") and not _is_known(name):
            name, attached = name[:2], name[2:]  # `-phunter2`, or another program's `-data`
        if equals:
            yield name, f"{attached}\0{value}" if attached else value
            continue
        if attached[:1].isdecimal():
            yield name, attached  # `-s1` is `-s 1`
            continue
        following = tokens[place] if place < len(tokens) else None
        if following is None or _is_option(following) or following == "--":
            yield name, attached or None
            continue
        if attached:
            place += 1
            yield name, f"{attached}\0{following}"
            continue
        kind = _benign_kind(name)
        if kind is not None and not kind.following.fullmatch(following):
            yield name, None  # a switch; the next word is a separate argument
            continue
        if _last_part(name) in _BEFORE_ASSIGNMENTS and _ASSIGNMENT.fullmatch(following):
            yield name, None  # `--multirun lr=0.1`: the next word has its own name
            continue
        place += 1
        yield name, following


def _is_option(token: str) -> bool:
    return len(token) > 1 and token[0] == "-" and not _NUMBER.fullmatch(token)


def _is_known(name: str) -> bool:
    return _benign_kind(name) is not None or _last_part(name) in _BEFORE_ASSIGNMENTS


def _canonical(shown: str) -> str:
    bare = shown.lstrip("-").replace("-", "_")
    if shown.startswith("argument "):
        return shown
    return bare if len(bare) > 1 else f"-{bare}"


def _last_part(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()


def _benign_kind(shown: str) -> _Benign | None:
    """The kind of benign option; None: it may change the training."""
    name = shown.lstrip("-").replace("-", "_")
    sections, _, last = name.rpartition(".")
    if len(name) == 1 and shown.startswith("-") and name != name.lower():
        return None  # -J, -V, -O: meaning unknown
    known = all(each.lower() in _SECTIONS for each in sections.split(".")) if sections else True
    for kind in _BENIGN_OPTIONS:
        if not kind.names.fullmatch(last.lower()):
            continue
        if len(last) == 1 and not shown.startswith("-"):
            return None
        if known or (kind is _RATES and sections.lower() == "model"):
            return kind
    return None


def is_benign(shown: str, value: str) -> bool:
    """Whether an option with this value does not change the training."""
    if shown.startswith("argument ") or len(value) > _LONGEST_CLEAR or _SECRET_PATH.search(value):
        return False
    if _HYDRA.fullmatch(shown):
        return True
    kind = _benign_kind(shown)
    return kind is not None and kind.values.fullmatch(value) is not None


def _build_arguments(
    clear: Mapping[str, str], others: Mapping[str, Sequence[str]], written: Mapping[str, str]
) -> Arguments:
    paths = {
        name: "\0".join(map(os.path.realpath, values))
        for name, values in others.items()
        if all(not _NUMBER.fullmatch(each) and os.path.exists(each) for each in values)
    }
    joined = {name: "\0".join(map(_normalise_number, values)) for name, values in others.items()}
    return Arguments(clear, joined, written, paths)


def _normalise_number(value: str) -> str:
    """
    One text for all spellings of a number: `1e-4` and `0.0001`, `1.0` and `1`.

    `1.10` and `1.1`, `1_1` and `11`, `007` and `7` stay different: they may be versions or names.
    """
    if not _QUANTITY.fullmatch(value):
        return value
    number = float(value)
    if value.lstrip("+-").isdecimal() or not math.isfinite(number):
        return value.removeprefix("+")
    return str(int(number)) if number.is_integer() else repr(number)


@functools.lru_cache(maxsize=512)
def _hash_value(value: str, salt: bytes) -> str:
    data = value.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(data, salt=salt, dklen=SALT_BYTES, **_SCRYPT).hex()
