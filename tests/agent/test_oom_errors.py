"""Which errors mean that memory ran out, and how batches are divided, without a framework."""

from __future__ import annotations

import pytest

from watchdog_app.agent.identity.data_facts import flatten
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.micro import FIELD, MicroBatches, slice_batch


def of(module: str, name: str, *bases: type[BaseException]) -> type[BaseException]:
    """Return a framework's error class without the framework."""
    return type(name, bases or (Exception,), {"__module__": module})


TensorFlowError = of("tensorflow.python.framework.errors_impl", "OpError")
Exhausted = of("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", TensorFlowError)
JaxError = of("jaxlib._jax", "XlaRuntimeError", RuntimeError)
Unknown = of("tensorflow.python.framework.errors_impl", "UnknownError", TensorFlowError)
Unknown.error_code = 2  # type: ignore[attr-defined]  # as every error of TensorFlow has


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("std::bad_alloc"),
        of("numpy._core._exceptions", "_ArrayMemoryError", MemoryError)("Unable to allocate 3 GiB"),
        of("torch", "OutOfMemoryError", RuntimeError)(
            "CUDA out of memory. Tried to allocate 2 GiB"
        ),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 67108864 bytes. Error code 12"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
        Exhausted("OOM when allocating tensor with shape[64,400] and type float on /device:GPU:0"),
        Exhausted("Out of memory while trying to allocate 1.14GiB. [Op:__inference_step_2332]"),
        JaxError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
        Unknown("MemoryError: Unable to allocate 3.00 GiB for an array\nTraceback ..."),
    ],
    ids=lambda error: f"{type(error).__name__}-{str(error)[:20]}",
)
def test_each_framework_s_word_for_it_is_known(error):
    """These are Python, NumPy, PyTorch on every device, TensorFlow, XLA and JAX."""
    assert watch.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("out of memory"),
        KeyboardInterrupt(),
        OSError(12, "Cannot allocate memory"),
        OSError(28, "No space left on device"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        Exhausted("/data/model.ckpt; No space left on device [Op:SaveV2]"),
        Exhausted("/data/x.tfrecord; Too many open files"),
        Exhausted("Received message larger than max (5000000 vs. 4194304)"),
        of("mine", "BudgetError", RuntimeError)("the memory of the cache is out of memory pages"),
        StopIteration(),
    ],
    ids=lambda error: f"{type(error).__name__}-{str(error)[:20]}",
)
def test_other_errors_are_not_taken_for_it(error):
    """Examples are a full disk, too many files, and a user's own error with similar words."""
    assert not watch.is_out_of_memory(error)


def test_an_error_that_was_raised_from_it_counts():
    """Trainers wrap errors. An error that was only being handled at the time does not count."""
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = MemoryError()
    beside = ValueError("the handler failed")
    beside.__context__ = MemoryError()

    assert watch.is_out_of_memory(wrapped)
    assert not watch.is_out_of_memory(beside)


@pytest.mark.parametrize("wrong", ["grow", True, 1, ""])
def test_what_is_no_choice_is_refused(wrong):
    """The error lists the choices."""
    with pytest.raises(ValueError, match="shrink"):
        watch.check_on_oom(wrong)


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        (None, 64, [64]),
        (64, 64, [64]),
        (100, 64, [64]),
        (32, 64, [32, 32]),
        (32, 57, [29, 28]),
        (16, 33, [11, 11, 11]),
        (1, 3, [1, 1, 1]),
    ],
)
def test_parts_are_few_and_of_nearly_one_size(size, count, expected):
    """All samples appear once and in order, with at most two sizes, because each size compiles."""
    micro = MicroBatches()
    micro.size = size

    parts = micro.parts(count)

    assert expected == [part.stop - part.start for part in parts]
    assert list(range(count)) == [row for part in parts for row in range(count)[part]]


def test_halves_are_tried_down_to_single_samples():
    """The sizes are 57, 29, 15, 8, 4, 2 and 1."""
    micro = MicroBatches()

    tried = []
    while micro.halve(57):
        tried.append(micro.size)

    assert [29, 15, 8, 4, 2, 1] == tried
    assert not micro.halve(1)


@pytest.mark.parametrize("damaged", [None, 0, -4, True, "16", 2.5])
def test_a_rescue_without_a_sensible_size_teaches_nothing(damaged):
    """The rescue may be old, or a user changed the file."""
    micro = MicroBatches()

    micro.restore_size({FIELD: damaged})

    assert micro.size is None


def test_batches_of_any_structure_are_cut_alike():
    """Structures are tuples, lists, dicts and None."""
    batch = ({"a": [1, 2, 3][:], "b": None}, "xyz")

    assert "xyz" in list(flatten(batch))
    assert "yz" == slice_batch("xyz", slice(1, 3))
    assert ({"b": None}, ("yz",)) == slice_batch(({"b": None}, ("xyz",)), slice(1, 3))


def test_frames_of_an_error_that_goes_no_further_hold_nothing():
    """The local variables of a failed attempt are freed at once."""
    import weakref

    class Large:
        pass

    seen = []

    def attempt():
        held = Large()
        seen.append(weakref.ref(held))
        raise MemoryError

    try:
        attempt()
    except MemoryError as error:
        kept = error
        watch.drop_frames(error)

    assert seen[0]() is None
    assert kept.__traceback__ is None


@pytest.mark.torch
@pytest.mark.parametrize(("name", "inside"), [("Adam", False), ("LBFGS", True)])
def test_an_error_in_the_closure_of_a_step_leaves_the_weights_as_they_were(name, inside):
    """Lightning computes each batch in a closure; LBFGS calls it between its own changes."""
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = getattr(torch.optim, name)([weight])

    def closure():
        raise MemoryError

    with pytest.raises(MemoryError) as caught:
        optimizer.step(closure)

    assert inside == watch.raised_in_optimizer(caught.value)
