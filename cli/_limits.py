"""Options that limit memory, time and iterations of a command, and how they are enforced.

The library checks the limits itself (`graphkit.ir.limits`). In addition, the operating system limits the memory of the
process (RLIMIT_DATA), with an allowance for libraries. A native thread ends the process after the time limit, even if a
kernel never returns.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import click

from graphkit import config
from graphkit.cli._failure import names_node
from graphkit.cli._groups import LIMITS, option
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import InvalidModel, LimitReached, NotFinite, OutOfMemory, RuntimeFailure
from graphkit.executor.devices.loading import native_module
from graphkit.ir import limits
from graphkit.text import human

# Seconds after the time limit until the native thread ends the process; seconds between two alarms until then.
_GRACE = 5.0
_AGAIN = 1.0

# Bytes that imports of Python and of libraries take (ONNX Runtime: 40 MB), and a thread's stack without a limit.
_LIBRARIES = 96 << 20
_STACK = 8 << 20


class Memory(click.ParamType):
    """An amount of memory."""

    name = "MEMORY"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = value if isinstance(value, int) else config.memory_size(value)
        if not size:
            self.fail(f"{value!r} is not an amount of memory such as 500MB", param, ctx)
        return size


_OPTIONS = (
    option(
        "--max-memory", group=LIMITS, type=Memory(), metavar="MEMORY",
        help="Memory limit of the command, such as 4GB. Default: GRAPHKIT_MAX_MEMORY, else the free memory of the "
        "machine.",
    ),
    option(
        "--timeout", group=LIMITS, type=FloatRange(0, min_open=True), metavar="SECONDS",
        help="Time limit of the command in seconds. Default: none.",
    ),
    option(
        "--max-iterations", group=LIMITS, type=IntRange(1), metavar="N",
        help="Limit on the iterations of a Loop or Scan. Default: GRAPHKIT_MAX_ITERATIONS, else "
        f"{config.COMMAND_ITERATIONS:,}.",
    ),
)  # fmt: skip


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of limits. The command runs within the limits and does not get the options as arguments."""

    @functools.wraps(command)
    def within(
        *args: Any, max_memory: int | None, timeout: float | None, max_iterations: int | None, **kwargs: Any
    ) -> Any:
        model = kwargs.get("model")
        what = " ".join(filter(None, ("graphkit", command.__module__.rpartition(".")[2], model)))
        with _named(model), _limited(what, max_memory, timeout, max_iterations):
            return command(*args, **kwargs)

    for add in reversed(_OPTIONS):
        within = add(within)
    return within


@contextlib.contextmanager
def _limited(what: str, memory: int | None, seconds: float | None, iterations: int | None) -> Iterator[None]:
    memory = config.MAX_MEMORY.get() if memory is None else memory
    iterations = config.MAX_ITERATIONS.get() if iterations is None else iterations
    before = limits.current()
    limits.set_process_limits(before.narrowed(memory, seconds, iterations or config.COMMAND_ITERATIONS))
    try:
        with _held_to_memory(memory), _ended_in_time(what, seconds):
            yield
    finally:
        limits.set_process_limits(before)


@contextlib.contextmanager
def _named(model: str | None) -> Iterator[None]:
    """Put the name of the model's file in front of errors about its graph that do not name the file.

    Other errors do not change: they are about another file, a device or a process.
    """
    try:
        yield
    except (InvalidModel, RuntimeFailure) as error:
        if model is None or model in str(error) or not _is_of_the_graph(error):
            raise
        raise type(error)(f"{model}: {error}") from error


def _is_of_the_graph(error: InvalidModel | RuntimeFailure) -> bool:
    """Return whether an error is about the graph of a model: it names a node, a limit, or is from the native engine."""
    native = native_module()
    return (
        names_node(str(error))
        or isinstance(error, (LimitReached, NotFinite, OutOfMemory))
        or (native is not None and isinstance(error.__cause__, native.Error))
    )


@contextlib.contextmanager
def _held_to_memory(memory: int | None) -> Iterator[None]:
    """Let the system refuse memory beyond the limit: the command then reports an error and is not killed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    beyond = limits.available_memory() if memory is None else memory + _allowance()
    most = limits.private_memory() + beyond
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    except (MemoryError, OSError, ImportError) as error:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # the message takes memory as well
        if not _is_refusal(error):
            raise
        limit = "the machine has" if memory is None else f"the limit of {human(memory)} (--max-memory) allows"
        raise OutOfMemory(f"Python or a library needs more memory than {limit}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _allowance() -> int:
    """Return the bytes that Python, libraries and the stacks of threads may take in addition to the user's limit.

    Without this allowance, a library could run out of memory under a low limit, and end the process (std::terminate).
    """
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _LIBRARIES + (os.cpu_count() or 1) * (_STACK if stack == resource.RLIM_INFINITY else stack)


def _is_refusal(error: MemoryError | OSError | ImportError) -> bool:
    """Return whether the system refused memory to Python or to a library, with an error that names no tensor.

    The loader of libraries only gives a text: glibc's "cannot allocate memory" or "failed to map segment".
    """
    if isinstance(error, MemoryError):
        return not str(error)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return any(text in str(error) for text in ("llocate memory", "failed to map segment"))


@contextlib.contextmanager
def _ended_in_time(what: str, seconds: float | None) -> Iterator[None]:
    """Raise LimitReached in the main thread after the time limit, and again every second until the command ends.

    The library checks the time as well, and may be first: its error gets the same message.
    """
    if seconds is None:
        yield
        return
    message = f"{what}: not finished within {seconds:g} s (--timeout)"

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise LimitReached(message)

    native = native_module()
    last = (
        None
        if native is None
        else native.Deadline(seconds + _GRACE, 0.0, f"graphkit: {message}\n", RuntimeFailure.exit_code)
    )
    alarmed = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, end) if alarmed else None
    if alarmed:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except LimitReached as error:
        if message in str(error) or time.monotonic() < limits.current().deadline:
            raise
        raise LimitReached(f"{message}: {error}") from error
    finally:
        if alarmed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if last is not None:
            last.cancel()
