"""What the environment lets CUDA see and load: visible devices, library paths, odd variables."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine

_ALLOCATORS = {"cuda_malloc_async"}
_TORCH_KEYS = {
    "max_split_size_mb", "roundup_power2_divisions", "roundup_bypass_threshold_mb",
    "garbage_collection_threshold", "expandable_segments", "backend",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads", "pinned_use_background_threads", "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc", "max_non_split_rounding_mb", "per_process_memory_fraction",
    "graph_capture_record_stream_reuse", "pinned_max_round_threshold_mb",
    "pinned_max_power2_size_mb", "pinned_reserve_segment_size_mb", "throw_on_cudamalloc_oom",
    "pinned_max_cached_size_mb",
}  # fmt: skip
_TRUE_OR_FALSE = {"true", "false", "1", "0"}


def check(facts: Facts) -> Iterator[Finding]:
    """Variables of the shell that the doctor was started from."""
    yield from _visible(facts)
    yield from _memory_growth(facts)
    yield from _torch_allocator(facts)
    env = facts.machine.env
    if env.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield Finding(
            "driver.launch-blocking",
            Severity.INFO,
            "CUDA_LAUNCH_BLOCKING is set: the CPU waits for every kernel.",
            "Good for finding an error, and slow.",
            "Unset it for real trainings.",
            ("unset CUDA_LAUNCH_BLOCKING",),
        )
    if facts.machine.container and env.get("NVIDIA_VISIBLE_DEVICES") in ("", "none", "void"):
        yield Finding(
            "driver.container-devices",
            Severity.ERROR if facts.expects_gpu else Severity.INFO,
            f"NVIDIA_VISIBLE_DEVICES is {env['NVIDIA_VISIBLE_DEVICES'] or 'empty'!r} in this "
            "container: it is given no GPU.",
            "CUDA finds no device.",
            "Start the container with its GPUs.",
            ("docker run --gpus all IMAGE",),
        )


def _visible(facts: Facts) -> Iterator[Finding]:
    value = facts.machine.env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    if not facts.expects_gpu:
        yield Finding(
            "driver.visible-devices",
            Severity.INFO,
            f"CUDA_VISIBLE_DEVICES is {value!r}; it has no effect without a GPU.",
        )
        return
    id_ = "driver.visible-devices"
    unset = ("unset CUDA_VISIBLE_DEVICES",)
    words = [word.strip() for word in value.split(",")] if value.strip() else []
    if not words:
        yield Finding(
            id_,
            Severity.ERROR,
            "CUDA_VISIBLE_DEVICES is empty: it hides every GPU.",
            "Trainings run on the CPU, without a word.",
            "Unset it, or name the GPUs to be used, and start the notebook server again.",
            unset,
        )
        return
    driver = facts.driver()
    uuids = [str(card.get("uuid")) for card in driver.usable]
    uuids += [str(one) for card in driver.usable for one in card.get("mig_uuids") or []]
    count = driver.devices
    wrong, good = None, 0
    for word in words:
        if word.isdigit():
            bad = count is not None and int(word) >= count
        elif word.startswith(("GPU-", "MIG-")):
            bad = driver.answers and not any(uuid.startswith(word) for uuid in uuids)
        else:
            bad = True
        if bad:
            wrong = word
            break
        good += 1
    if wrong is not None:
        number = f"{count} GPU{'' if count == 1 else 's'}" if count is not None else "the GPUs"
        hidden = "every GPU" if not good else f"all but the first {good} that it names"
        yield Finding(
            id_,
            Severity.ERROR if not good else Severity.WARNING,
            f"CUDA_VISIBLE_DEVICES={value} hides {hidden}: {wrong!r} is none of {number} here, and "
            "CUDA ignores all that follows such a word.",
            "Trainings run on the CPU, or on fewer GPUs than meant.",
            "Unset it, or name GPUs by the index that nvidia-smi -L shows.",
            (*unset, "nvidia-smi -L"),
        )
    elif len(set(words)) < len(words):
        yield Finding(
            id_,
            Severity.ERROR,
            f"CUDA_VISIBLE_DEVICES={value} names a GPU twice.",
            "CUDA then finds no device at all.",
            "Name each once.",
            unset,
        )
    else:
        yield fine(id_, f"CUDA_VISIBLE_DEVICES={value} names GPUs that are there.")


def _memory_growth(facts: Facts) -> Iterator[Finding]:
    env = facts.machine.env
    growth = env.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth is not None and growth.lower() not in ("true", "false"):
        yield Finding(
            "framework.memory-growth",
            Severity.WARNING,
            f"TF_FORCE_GPU_ALLOW_GROWTH={growth} is neither true nor false; TensorFlow ignores it.",
            "TensorFlow then takes nearly all memory of the GPU at its start, and the second "
            "notebook on it dies.",
            "Write it out.",
            ("export TF_FORCE_GPU_ALLOW_GROWTH=true",),
        )
    allocator = env.get("TF_GPU_ALLOCATOR")
    if allocator and allocator not in _ALLOCATORS:
        yield Finding(
            "framework.allocator",
            Severity.WARNING,
            f"TF_GPU_ALLOCATOR={allocator} is no allocator that TensorFlow knows.",
            "TensorFlow falls back to its own, or refuses to start on the GPU.",
            "Unset it, or choose the one that there is.",
            ("unset TF_GPU_ALLOCATOR", "export TF_GPU_ALLOCATOR=cuda_malloc_async"),
        )


def _torch_allocator(facts: Facts) -> Iterator[Finding]:
    env = facts.machine.env
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = env.get(name)
        problem = torch_allocator_problem(value) if value else None
        if problem:
            yield Finding(
                "framework.torch-allocator",
                # Options come and go with releases of PyTorch.
                Severity.WARNING if "no option" in problem else Severity.ERROR,
                f"{name}={value} is not understood: {problem}.",
                "PyTorch ends with an error at the first tensor on the GPU.",
                "Correct or unset it. Against fragmentation this one helps:",
                (f"export {name}=expandable_segments:True", f"unset {name}"),
            )


def torch_allocator_problem(value: str) -> str | None:
    """What PyTorch would refuse of an allocator setting; None: nothing that we know of."""
    depth, part, parts = 0, "", []
    for char in value:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    for one in [*parts, part]:
        key, colon, word = (text.strip() for text in one.partition(":"))
        if not key and not colon:
            continue
        if key not in _TORCH_KEYS:
            return f"there is no option {key!r}"
        if not colon or not word:
            return f"{key} has no value; write {key}:VALUE"
        if key == "max_split_size_mb" and (not word.isdigit() or int(word) <= 20):
            return f"max_split_size_mb is {word!r} and has to be a number above 20"
        if key == "expandable_segments" and word.lower() not in _TRUE_OR_FALSE:
            return f"expandable_segments is {word!r} and has to be True or False"
        if key == "garbage_collection_threshold" and not _between_0_and_1(word):
            return f"garbage_collection_threshold is {word!r} and has to lie between 0 and 1"
        if key == "backend" and word not in ("native", "cudaMallocAsync"):
            return f"backend is {word!r} and has to be native or cudaMallocAsync"
    return None


def _between_0_and_1(word: str) -> bool:
    try:
        return 0 < float(word) < 1
    except ValueError:
        return False
