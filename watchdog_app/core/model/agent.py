"""What agents and dumps of threads tell of a training."""

from __future__ import annotations

import os
from dataclasses import dataclass

from watchdog_app.core.model.machine import ProcessKey


@dataclass(frozen=True, slots=True)
class RescueRecord:
    """A complete rescue on disk, as its agent reported it."""

    path: str
    step: int
    bytes: int
    seconds: float
    saved_unix_s: float
    # Of a loop that was found by itself: its next run begins anew, and says which lines resume it.
    by_lines: bool = False


@dataclass(frozen=True, slots=True)
class AllocatorMemory:
    """
    What a framework's own allocator says of one device: live figures that no driver knows.

    `limit_bytes` is what it can have: the allocator's limit (TensorFlow), or what it holds plus
    what is free on the card (PyTorch).
    """

    device: str  # "GPU:0", "cuda:0"
    used_bytes: int  # live tensors, and what cannot be given out again
    limit_bytes: int
    gpu_uuid: str | None = None
    peak_bytes: int | None = None
    retries: int | None = None  # allocations that first failed (PyTorch num_alloc_retries)
    ooms: int | None = None  # out-of-memory errors so far


@dataclass(frozen=True, slots=True)
class BufferMemory:
    """What a buffer of the data pipeline holds once it is full."""

    what: str  # "the shuffle buffer of 12,000 examples"; untrusted
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What the memory of a training is for, as its agent has counted and measured it."""

    batch_size: int | None = None
    weights_bytes: int | None = None
    gradients_bytes: int | None = None  # one of each trained weight
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None  # measured; with what the first step brings
    resident_bytes: int | None = None  # of the process, all of it
    base_bytes: int | None = None  # the same before the first step: weights, Python, libraries
    buffers: tuple[BufferMemory, ...] = ()
    python_blocks: int | None = None  # small objects of Python's
    python_blocks_per_step: float | None = None  # so many more with each step


@dataclass(frozen=True, slots=True)
class GrowingLine:
    """A line of the program at which Python objects become more."""

    file: str
    line: int
    bytes: int  # more than before, held by objects that were made at this line
    bytes_per_step: float | None
    own: bool = True  # of the program, and of no library


@dataclass(frozen=True, slots=True)
class MoreTensors:
    """Tensors of one type and shape of which more live than before."""

    type: str  # "float32"
    shape: tuple[int, ...]  # sizes of its dimensions
    more: int  # tensors


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """What an agent has seen growing in some seconds."""

    seconds: float  # it has looked for so long
    steps: int | None  # of the training, in that time
    refused: str | None  # why lines are not known
    lines: tuple[GrowingLine, ...]  # the largest growth first
    tensors: tuple[MoreTensors, ...]
    complete: bool  # all objects were looked at
    tensors_counted: bool = True  # false: that would have copied what forked workers share
    cut_short: bool = False  # it ended before its time: the traces took too much memory


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the daemon knows of the agent inside a task. None: not known yet."""

    key: ProcessKey  # the process that holds the agent; a member of its task
    framework: str  # "keras", "torch", "tensorflow"
    directory: str  # of its rescues
    outdated: bool = False  # it speaks an older protocol and cannot be asked for anything
    training: bool = False  # between the first step and the end of training
    state_bytes: int | None = None  # of what a rescue holds, in memory
    step_s: float | None = None  # duration of a step, lately
    save_s: float | None = None  # expected cost of the next save, measured where it can be
    step: int | None = None  # steps of the optimizer since the training began
    epoch: int | None = None  # counted from 0
    batch: int | None = None  # in the epoch
    loss: float | None = None
    phase: str | None = None  # "train", "validate", "save", "epoch_end", or the program's own word
    expected_bytes: int | None = None  # it said that it would grow by so much, and then stop
    expected_for: str | None = None  # ... and what for
    expected_number: int | None = None  # of that announcement: each is a new one
    expected_at_most: bool = False  # it may be less: explains growth, and foretells none
    reported_mono_s: float | None = None  # when this was received
    saving: bool = False
    rescue: RescueRecord | None = None
    rescue_mono_s: float | None = None  # when that rescue was complete
    allocators: tuple[AllocatorMemory, ...] = ()
    not_restored: tuple[str, ...] = ()  # what a resume will not bring back, in words
    memory: MemoryParts | None = None
    place: Frame | None = None  # where in the program the training was when it last reported


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack. Never holds the value of a variable."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        """`train.py:42 in step`; a path that says little has its folder before it."""
        folder, name = os.path.split(self.file)
        if name in ("__init__.py", "__main__.py", "core.py", "base.py"):
            name = os.path.join(os.path.basename(folder), name)
        at = "" if self.line is None else f":{self.line}"
        return f"{name}{at} in {self.function}"


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread. What could not be read is None or empty."""

    tid: int | None  # as the kernel numbers it; the first thread's is its process's pid
    name: str  # as Python knows it, else as the kernel does; untrusted
    state: str | None = None  # one letter as in /proc/PID/stat
    wchan: str | None = None  # where in the kernel it sleeps; None: not asleep there, or not told
    syscall: str | None = None  # "futex"; None: in none, unknown, or not told
    kernel: tuple[str, ...] = ()  # functions of the kernel's stack, innermost first
    frames: tuple[Frame, ...] = ()  # Python's stack, innermost first
    trains: bool = False  # it makes the steps of the training

    @property
    def waits(self) -> str | None:
        """Where it waits, as short as that can be said: `futex`, `pipe_read`; None: not known."""
        return self.wchan or self.syscall


@dataclass(frozen=True, slots=True)
class ProcessThreads:
    """One process of the task."""

    pid: int
    ppid: int
    name: str  # the kernel's; untrusted
    state: str  # one letter
    threads: tuple[ThreadState, ...] = ()  # the first one first
    thread_count: int = 0  # of all, also where fewer were looked at
    agent: bool = False  # it has one

    @property
    def main(self) -> ThreadState | None:
        """The thread that makes the steps; the first thread if that is not known."""
        for thread in self.threads:
            if thread.trains:
                return thread
        return self.threads[0] if self.threads else None


@dataclass(frozen=True, slots=True)
class ThreadDump:
    """A task at one moment."""

    processes: tuple[ProcessThreads, ...]  # the root first
    # Whether the agent has told the Python stacks: None, there is none; False, it was asked and is
    # connected, and its thread did not get to run.
    answered: bool | None = None
    last_seen: Frame | None = None  # where the training was when its agent last reported
    last_seen_s: float | None = None  # ... so long before

    @property
    def root(self) -> ProcessThreads | None:
        """The program itself: where the agent is, else the task's first process."""
        for process in self.processes:
            if process.agent:
                return process
        return self.processes[0] if self.processes else None
