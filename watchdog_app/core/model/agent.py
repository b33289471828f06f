"""Records about a training from its agent and from thread dumps."""

from __future__ import annotations

import os

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.status import Allocator, MemoryParts


@dataclass(frozen=True, slots=True)
class RescueRecord:
    """A complete rescue on disk, as the agent reported it."""

    path: str
    step: int
    bytes: int
    seconds: float
    saved_unix_s: float
    # The agent found the loop without a call from the program. The next run starts from the
    # beginning and prints the lines that resume this rescue.
    by_lines: bool = False
    exact: bool | None = None  # a resumed training is bit for bit the same; None: unknown
    missing: tuple[str, ...] = ()  # state that a resume does not restore
    reason: str | None = None  # why the state was saved


@dataclass(frozen=True, slots=True)
class GrowingLine:
    """A source line whose Python objects grow in number or size."""

    file: str
    line: int
    bytes: int  # growth of the objects that this line allocated
    bytes_per_step: float | None
    own: bool = True  # the line belongs to the program, not to a library


@dataclass(frozen=True, slots=True)
class MoreTensors:
    """Tensors of one type and shape whose number has grown."""

    type: str  # "float32"
    shape: tuple[int, ...]  # sizes of the dimensions
    more: int  # increase in the number of tensors


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Memory growth that an agent measured over some seconds."""

    seconds: float  # length of the measurement
    steps: int | None  # training steps during the measurement
    refused: str | None  # reason why the lines are unknown
    lines: tuple[GrowingLine, ...]  # largest growth first
    tensors: tuple[MoreTensors, ...]
    complete: bool  # the agent examined all objects
    tensors_counted: bool = True  # false: counting would copy pages shared with forked workers
    cut_short: bool = False  # the agent stopped early: the traces took too much memory


@dataclass(frozen=True, slots=True)
class AgentState:
    """The daemon's knowledge of the agent inside a task. None: not known yet."""

    key: ProcessKey  # process of the agent; a member of the task
    framework: str  # "keras", "torch", "tensorflow"
    directory: str  # directory of the agent's rescues
    outdated: bool = False  # older protocol: the agent accepts no requests
    rank: int | None = None  # of its process, as the launcher set it
    world_size: int | None = None  # processes of the launcher
    cell: int | None = (
        None  # number for the notebook's training cell and the constants of its cells
    )
    training: bool = False  # between the first step and the end of training
    state_bytes: int | None = None  # size in memory of the state that a rescue saves
    step_s: float | None = None  # duration of a recent step
    save_s: float | None = None  # expected time of the next save, measured if possible
    step: int | None = None  # steps of the optimizer since the training began
    epoch: int | None = None  # number of the epoch, counted from 0
    batch: int | None = None  # number of the batch in the epoch
    steps_left: int | None = None  # iterations of the program's loops that have not begun
    epoch_steps: int | None = None  # iterations in one pass over the data
    loss: float | None = None
    phase: str | None = None  # "train", "validate", "save", "epoch_end", or the program's name
    expected_bytes: int | None = None  # growth that the program announced, before it stops growing
    expected_for: str | None = None  # purpose of the announced growth
    expected_number: int | None = None  # number of the announcement; each has a new one
    expected_at_most: bool = False  # upper bound: explains growth, but predicts none
    reported_mono_s: float | None = None  # time when the daemon received this report
    saving: bool = False
    rescue: RescueRecord | None = None
    rescue_mono_s: float | None = None  # time when the rescue was complete
    not_saved: str | None = None  # why its last save failed; None: it did not
    allocators: tuple[Allocator, ...] = ()
    not_restored: tuple[str, ...] = ()  # state that a resume does not restore, in words
    memory: MemoryParts | None = None
    place: Frame | None = None  # source line of the training at its last report


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack. Never holds the value of a variable."""

    file: str
    line: int | None
    function: str

    @property
    def place(self) -> str:
        """`train.py:42 in step`; a common file name such as `core.py` includes its folder."""
        folder, name = os.path.split(self.file)
        if name in ("__init__.py", "__main__.py", "core.py", "base.py"):
            name = os.path.join(os.path.basename(folder), name)
        at = "" if self.line is None else f":{self.line}"
        return f"{name}{at} in {self.function}"


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread. A field that could not be read is None or empty."""

    tid: int | None  # the kernel's thread id; for the first thread it is the pid
    name: str  # Python's name, else the kernel's; untrusted
    state: str | None = None  # one letter as in /proc/PID/stat
    wchan: str | None = None  # kernel function in which it sleeps; None: not asleep, or unknown
    syscall: str | None = None  # "futex"; None: not in a system call, or unknown
    kernel: tuple[str, ...] = ()  # functions of the kernel stack, innermost first
    frames: tuple[Frame, ...] = ()  # Python stack, innermost first
    trains: bool = False  # this thread runs the training steps

    @property
    def waits(self) -> str | None:
        """The kernel function or system call it waits in: `futex`, `pipe_read`; None: unknown."""
        return self.wchan or self.syscall


@dataclass(frozen=True, slots=True)
class ProcessThreads:
    """One process of the task."""

    pid: int
    ppid: int
    name: str  # name as the kernel has it; untrusted
    state: str  # one letter as in /proc/PID/stat
    threads: tuple[ThreadState, ...] = ()  # the first thread of the process first
    thread_count: int = 0  # all threads; `threads` may hold fewer
    agent: bool = False  # the process has an agent

    @property
    def main(self) -> ThreadState | None:
        """The thread that runs the training steps; if unknown, the first thread."""
        for thread in self.threads:
            if thread.trains:
                return thread
        return self.threads[0] if self.threads else None


@dataclass(frozen=True, slots=True)
class ThreadDump:
    """The threads of a task at one moment."""

    processes: tuple[ProcessThreads, ...]  # root first
    # Whether the agent sent the Python stacks. None: the task has no agent. False: the agent is
    # connected and was asked, but its thread did not get to run.
    answered: bool | None = None
    last_seen: Frame | None = None  # source line of the training at its agent's last report
    last_seen_s: float | None = None  # age of that report

    @property
    def root(self) -> ProcessThreads | None:
        """The process of the agent, else the task's first process."""
        for process in self.processes:
            if process.agent:
                return process
        return self.processes[0] if self.processes else None
