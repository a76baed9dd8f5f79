"""What a command may take: options for memory, time and iterations, and how they are enforced.

Beside the checks in the library (`graphkit.ir.limits`) the system holds the process to the memory, and a thread that
needs no interpreter ends it behind the time, where a kernel or another library does not come back.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import click

from graphkit import config
from graphkit.errors import InvalidModel, LimitReached, RuntimeFailure
from graphkit.executor.devices.loading import native_module
from graphkit.ir import limits

# Of a loop, where neither --max-iterations nor GRAPHKIT_MAX_ITERATIONS says it.
DEFAULT_ITERATIONS = 10_000_000

# Behind the time, in seconds: how long a step that does not ask about it may go on; how often the others are told.
_GRACE = 5.0
_AGAIN = 1.0


class Memory(click.ParamType):
    """An amount of memory."""

    name = "MEMORY"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = value if isinstance(value, int) else config.memory_size(value)
        if not size:
            self.fail(f"{value!r} is no amount of memory such as 500MB", param, ctx)
        return size


_OPTIONS = (
    click.option(
        "--max-memory", type=Memory(), metavar="MEMORY",
        help="What the command may take, such as 4GB (default: GRAPHKIT_MAX_MEMORY, else what the machine has left).",
    ),
    click.option(
        "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
        help="Fail when the command has not ended within so many seconds (default: never).",
    ),
    click.option(
        "--max-iterations", type=click.IntRange(1), metavar="N",
        help="Fail when a Loop or Scan goes on for longer (default: GRAPHKIT_MAX_ITERATIONS, else "
        f"{DEFAULT_ITERATIONS:,}).",
    ),
)  # fmt: skip


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of limits; the command runs under them and does not see them."""

    @functools.wraps(command)
    def within(
        *args: Any, max_memory: int | None, timeout: float | None, max_iterations: int | None, **kwargs: Any
    ) -> Any:
        model = kwargs.get("model")
        what = " ".join(filter(None, ("graphkit", command.__module__.rpartition(".")[2], model)))
        with _named(model), _limited(what, max_memory, timeout, max_iterations):
            return command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        within = option(within)
    return within


@contextlib.contextmanager
def _limited(what: str, memory: int | None, seconds: float | None, iterations: int | None) -> Iterator[None]:
    memory = config.MAX_MEMORY.get() if memory is None else memory
    iterations = config.MAX_ITERATIONS.get() if iterations is None else iterations
    before = limits.current()
    limits.set_process_limits(before.narrowed(memory, seconds, iterations or DEFAULT_ITERATIONS))
    try:
        with _held_to_memory(memory), _ended_in_time(what, seconds):
            yield
    finally:
        limits.set_process_limits(before)


@contextlib.contextmanager
def _named(model: str | None) -> Iterator[None]:
    """What fails while a model runs names nodes; here the file comes before them."""
    try:
        yield
    except (InvalidModel, RuntimeFailure) as error:
        if model is None or model in str(error):
            raise
        raise type(error)(f"{model}: {error}") from error


@contextlib.contextmanager
def _held_to_memory(memory: int | None) -> Iterator[None]:
    """The system refuses memory beyond the limit, which is an error that can be told; to be killed is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limits.private_memory() + (limits.available_memory() if memory is None else memory)
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def _ended_in_time(what: str, seconds: float | None) -> Iterator[None]:
    """Raise LimitReached behind the time, in whatever Python code the main thread is then, again until it ends.

    The library asks for the time as well, which may come first; what it raises is told the same way.
    """
    if seconds is None:
        yield
        return
    message = f"{what}: not done within {seconds:g} s (--timeout)"

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
