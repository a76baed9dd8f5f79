"""MPI through mpi4py, which only this module imports.

mpi4py does not initialise MPI by itself: imports have no side effects, and this module chooses the thread level.
`graphkit.dist.progress.engine` runs collectives in one order; `graphkit.dist.job.ending` ends a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from graphkit import config
from graphkit.dist.arrays import as_bytes, is_half
from graphkit.dist.hosts.groups import PART, Hosts, Levels
from graphkit.dist.hosts.heartbeats import HeartbeatBoard, HeartbeatMonitor, HeartbeatRelay
from graphkit.dist.hosts.placement import Allowed, place
from graphkit.dist.job import status_pipe
from graphkit.dist.job.start import LEAST_TIMEOUT, check_launcher, checked_timeout, deadline
from graphkit.dist.progress import announcement
from graphkit.dist.progress.engine import ProgressEngine
from graphkit.dist.progress.pending import placed
from graphkit.dist.wire.messages import Messages
from graphkit.dist.wire.point_to_point import MOST_RANKS, Mailbox, PersistentAllgather
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, UsageError
from graphkit.text import quantity, short_repr

_LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
# Variables of MPICH, Open MPI and Slurm: the number of processes of the job, and of this host. Slurm's second variable
# lists the number of processes on each host of the job.
_COUNTS = (
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "SLURM_STEP_TASKS_PER_NODE"),
)

# A waiting process yields its core after _SPIN seconds (at once if others use the core). After _EAGER seconds, it
# sleeps, _PAUSE seconds at a time.
_SPIN, _EAGER, _PAUSE = 2e-4, 0.02, 5e-5

# Before an abort, seconds to wait for each thread inside a call of MPI.
_STOPPING = 0.2


def launched_by_mpi() -> bool:
    """Whether a known MPI launcher has started this process. Imports nothing.

    MPI takes long to start, so commands ask this first.
    """
    return any(v in os.environ for v in _LAUNCHER_VARIABLES)


def _on_one_host() -> bool:
    environment = os.environ
    return config.RANKS_PER_HOST.get() is None and any(
        size in environment and environment[size] == environment.get(local) for size, local in _COUNTS
    )


@cache
def _mpi() -> Any:
    try:
        import mpi4py
    except ImportError:
        raise MissingDependency(
            f"MPI needs mpi4py and an MPI library; install them with: {how_to_install('mpi')}"
        ) from None
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"mpi4py finds no MPI library ({error}); install one with: {how_to_install('mpi')}, or load the MPI "
            "module of your cluster"
        ) from None
    return MPI


def library() -> str:
    first = str(_mpi().Get_library_version()).strip("\0 \n").splitlines()[0]
    return " ".join(first.partition(",")[0].split())


def started() -> tuple[int, int] | None:
    """Return (rank, number of processes) if the script has initialised MPI; otherwise None."""
    mpi = _mpi()
    return (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) if mpi.Is_initialized() else None


class MpiCommunicator:
    """The workers of MPI_COMM_WORLD. The last `servers` processes get a communicator of their own.

    Only one thread at a time calls MPI: the one that drives the progress engine, or that uses `mail` or `messages`.
    With several hosts, a further thread of each leader exchanges heartbeats.

    Args:
        replicated: Whether the job survives the loss of a server. Messages to servers then do not use MPI.
    """

    def __init__(self, servers: int = 0, replicated: bool = False) -> None:
        mpi = _mpi()
        self._opened = not mpi.Is_initialized()
        # Initialisation waits for every process, and does not run Python's signal handlers.
        with _default_signals():
            if self._opened:
                # With several hosts, leaders exchange heartbeats while another thread calls MPI.
                level = mpi.Init_thread(mpi.THREAD_SERIALIZED if _on_one_host() else mpi.THREAD_MULTIPLE)
                if level < mpi.THREAD_SERIALIZED:
                    raise RuntimeFailure(
                        f"MPI provides thread level {level}, but graphkit needs MPI_THREAD_SERIALIZED "
                        f"({mpi.THREAD_SERIALIZED})"
                    )
            # Separate from messages of the user's script.
            self._job = mpi.COMM_WORLD.Dup()
            self.job_rank, self.processes, self.servers = self._job.rank, self._job.size, servers
            check_launcher(self.processes)
            self.replicated, self.cannot_finalize = replicated, False
            self.has_server_store = False
            if not 0 <= servers < self.processes:
                raise UsageError(
                    f"{self.processes} process{'es' * (self.processes != 1)} and {servers} "
                    f"server{'s' * (servers != 1)}: no worker is left; start at least {servers + 1} processes, such as "
                    f"mpiexec -n {servers + 1} ..."
                )
            here = self._job.Split_type(mpi.COMM_TYPE_SHARED)
            ranks_per_host = config.RANKS_PER_HOST.get()
            self._all_hosts = self.hosts = Hosts(
                self._job, here, mpi.IN_PLACE, self._complete_collective, ranks_per_host
            )
            self.local: int = here.rank
            # On a busy machine, a yielded core comes back only after milliseconds. A process with its own cores first
            # waits without yielding.
            self._spin_seconds = _SPIN if place(here.allgather(Allowed.here()), here.rank) else 0.0
            self._comm, self.mail = self._job, None
            if servers:
                self._comm = self._job.Split(int(self.is_server), self.job_rank)
                same_role = here.Split(int(self.is_server), self.job_rank)
                self.hosts = Hosts(self._comm, same_role, mpi.IN_PLACE, self._complete_collective, ranks_per_host)
                same_role.Free()
                self.mail = None if replicated else Mailbox(self._job.Dup(), mpi.Status, mpi.BYTE)
            here.Free()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.steps = 0
        self.process = os.getpid()
        self._abandoned: list[Any] = []
        self._abort_callbacks: list[Callable[[int], None]] = []
        self._monitor = self._started_monitor()
        self.engine = ProgressEngine(self)
        self.messages = Messages(self)
        # None with more than MOST_RANKS processes: every process would send a message to every other process.
        self._allgather_small: PersistentAllgather | None = None
        if self.size <= MOST_RANKS:
            self._allgather_small = PersistentAllgather(
                self._comm.Dup(), _mpi().BYTE, announcement.LENGTH, self._complete
            )
        self.driving = self.engine.driving
        self.post, self.perform, self.flush = self.engine.post, self.engine.perform, self.engine.flush

    @property
    def is_server(self) -> bool:
        return bool(self.job_rank >= self.processes - self.servers)

    @property
    def sent_between_hosts(self) -> int:
        return self.hosts.sent

    @property
    def levels(self) -> Levels | None:
        return self.hosts.levels

    # --- collectives -----------------------------------------------------------------------------

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        source, result = _summands(array, out)
        given, total = source.reshape(-1), result.reshape(-1)
        # At least one part: every process must take part in an empty sum.
        step = PART // source.itemsize
        for at in range(0, max(1, given.size), step):
            self.hosts.allreduce(given[at : at + step], total[at : at + step], source is result)
        if result.dtype != array.dtype:
            result = result.astype(array.dtype)
        return placed(result.reshape(array.shape), out)

    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        source, result = _summands(array, out)
        return self.hosts.start_allreduce(source, result, source is result), result

    def raw_allreduce(self, array: np.ndarray, out: np.ndarray) -> None:
        """Call MPI's own Allreduce, for comparisons. The arrays must be contiguous and of one type."""
        self._comm.Allreduce(array, out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return self.hosts.allgather(array)

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        if is_half(array.dtype):  # MPI has no types for float16 and bfloat16
            return self.allreduce(array)[bounds[self.rank] : bounds[self.rank + 1]]
        return self.hosts.reduce_scatter(np.ascontiguousarray(array), bounds)

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        return self.hosts.allgather_parts(data, sizes)

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        result = np.array(array, order="C", copy=True)
        self.hosts.broadcast(as_bytes(result), root)  # as bytes: MPI lacks types for some dtypes
        return result

    # --- messages --------------------------------------------------------------------------------

    def start_send(self, data: np.ndarray, to: int, tag: int) -> Any:
        return self._comm.Isend(data, dest=to, tag=tag)

    def start_receive(self, data: np.ndarray, source: int, tag: int) -> Any:
        return self._comm.Irecv(data, source=source, tag=tag)

    def fail(self, reason: str) -> None:
        self.engine.fail(reason)

    # --- lost processes --------------------------------------------------------------------------

    @property
    def host_by_rank(self) -> dict[int, int]:
        return {rank: index for index, host in enumerate(self._all_hosts.all) for rank in host.ranks}

    def allgather_objects(self, mine: Any) -> list[Any]:
        """Return the values of all processes of the job, by rank.

        If a process does not call it within the timeout, this process ends with an error.
        """
        with deadline(max(self.timeout, LEAST_TIMEOUT), (self.job_rank, self.processes), "opened their store"):
            return list(self._job.allgather(mine))

    def describe(self, rank: int) -> str:
        host = next(host.name for host in self._all_hosts.all if rank in host.ranks)
        process = None if self._monitor is None else self._monitor.process_of(rank)
        return f"rank {rank} on {host}" + ("" if process is None else f" (process {process})")

    def exclude(self, rank: int) -> None:
        status_pipe.report(status_pipe.EXCLUDED, rank)
        if self._monitor is not None:
            self._monitor.exclude(rank)

    def end_silent(self) -> None:
        if self._monitor is not None:
            self._monitor.end_silent()

    def on_abort(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the exit code before this process aborts the job. Callbacks run in reverse order."""
        self._abort_callbacks.insert(0, callback)

    # --- heartbeats ------------------------------------------------------------------------------

    def _started_monitor(self) -> HeartbeatMonitor | None:
        """Return a monitor of all hosts, or only of this host if threads cannot call MPI concurrently.

        None if it would monitor only this process.
        """
        hosts, mpi = self._all_hosts, _mpi()
        everywhere = hosts.several and self._job.allreduce(mpi.Query_thread(), mpi.MIN) == mpi.THREAD_MULTIPLE
        monitored = hosts.all if everywhere else (hosts.all[hosts.index],)
        ranks = sorted(rank for host in monitored for rank in host.ranks)
        if len(ranks) == 1:
            return None
        path, failure = None, None
        if hosts.leads:
            try:
                path = HeartbeatBoard.create(len(ranks), len(monitored))
            except OSError as error:
                failure = f"rank {self.job_rank}: cannot allocate memory to share between processes: {error}"
        path, failure = hosts.inside.bcast((path, failure))
        if path is None:
            raise RuntimeFailure(failure)
        board = HeartbeatBoard(path, len(ranks), len(monitored))
        # Remove the file before any wait for other hosts: a lost host must not leave it behind.
        hosts.inside.Barrier()
        if hosts.leads:
            os.unlink(path)
        relay = HeartbeatRelay(hosts.leaders.Dup(), board, monitored) if everywhere and hosts.leads else None
        here, mine = monitored.index(hosts.all[hosts.index]), ranks.index(self.job_rank)
        complete = len(ranks) == self.processes
        return HeartbeatMonitor(board, ranks, mine, config.RANK_TIMEOUT.get(), monitored, here, relay, complete)

    @property
    def timeout(self) -> float:
        return config.RANK_TIMEOUT.get() if self._monitor is None else self._monitor.timeout

    def set_timeout(self, seconds: float) -> None:
        checked = checked_timeout(seconds)
        if self._monitor is not None:
            self._monitor.timeout = checked

    def working(self) -> AbstractContextManager[None]:
        return nullcontext() if self._monitor is None else self._monitor.working()

    def running(self, code: str) -> AbstractContextManager[None]:
        return nullcontext() if self._monitor is None else self._monitor.running(code, self.steps)

    def doing(self, call: bytes) -> None:
        if self._monitor is not None:
            self._monitor.doing(call, self.steps)

    def depart(self, number: int) -> None:
        if self._monitor is not None:
            self._monitor.depart(number)

    def departures(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self._monitor is None else self._monitor.departures()

    def made_progress(self) -> None:
        if self._monitor is not None:
            self._monitor.made_progress()

    def waiting(self, for_progress: bool) -> AbstractContextManager[None]:
        if self._monitor is None:
            return nullcontext()
        return self._monitor.for_progress if for_progress else self._monitor.for_heartbeats

    def lost(self) -> str | None:
        return None if self._monitor is None else self._monitor.lost()

    # --- waiting ---------------------------------------------------------------------------------

    def allgather_bytes(self, mine: bytes) -> list[bytes]:
        if _mpi().Is_finalized():
            raise RuntimeFailure(f"rank {self.rank} cannot communicate any more: MPI was finalized (MPI_Finalize)")
        if self._allgather_small is not None and len(mine) == announcement.LENGTH:
            return self._allgather_small(mine)
        gathered = bytearray(self.size * len(mine))
        self._complete(self._comm.Iallgather(mine, gathered), mine, gathered)
        return [bytes(gathered[at : at + len(mine)]) for at in range(0, len(gathered), len(mine))]

    def _complete_collective(self, request: Any, *used: Any) -> None:
        self._complete(request, *used)
        self.made_progress()

    def _complete(self, request: Any, *used: Any) -> None:
        """Wait until a request is complete. used: the objects that the request uses.

        Unlike a blocking call of MPI, it yields the core, lets signal handlers run, and notices lost ranks.
        """
        start = time.monotonic()
        try:
            while not request.Test():
                # If no thread waits, this process computes, and needs the core.
                if self.engine.awaited and (waited := time.monotonic() - start) < _EAGER:
                    if waited >= self._spin_seconds:
                        os.sched_yield()
                else:
                    time.sleep(_PAUSE)
                    self.engine.poll()
        except BaseException:
            self._abandoned += [request, *used]
            raise

    # --- the end ---------------------------------------------------------------------------------

    @property
    def disagreement(self) -> str | None:
        return self.engine.disagreement

    def reach_barrier(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        if not self.engine.stop_driving(seconds):
            return False
        request = self._comm.Ibarrier()
        while not (met := request.Test()) and time.monotonic() < end:
            time.sleep(_PAUSE)
        return bool(met)

    def announce_end(self) -> None:
        self.perform(announcement.ENDED)

    def report_failure(self) -> None:
        status_pipe.report(status_pipe.FAILED, self.job_rank)

    def finalize(self) -> None:
        """Report the end to the command that started the job, stop the threads, and finalise MPI.

        MPI is finalised only if this object has initialised it, and `cannot_finalize` is false.
        """
        status_pipe.report(status_pipe.ENDED, self.job_rank)
        self.engine.close()
        self.messages.close()
        if self._monitor is not None:
            self._monitor.end()
        mpi = _mpi()
        if self._opened and not self.cannot_finalize and not mpi.Is_finalized():
            # If a process is lost from now on, MPI_Finalize never returns.
            with deadline(max(self.timeout, LEAST_TIMEOUT), (self.job_rank, self.processes), "finalised MPI"):
                mpi.Finalize()

    def abort(self, code: int) -> None:
        for callback in self._abort_callbacks:
            callback(code)
        # MPI_Abort calls exit(), and so may a concurrent call of MPI. Two concurrent calls of exit() crash.
        self.engine.stop_driving(_STOPPING)
        self.messages.stop(_STOPPING)
        self._job.Abort(code)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"rank {self.rank} of {self.size}"
        yield quantity(self.servers, "server")


def _summands(array: np.ndarray, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the array to sum, and the array for the sum. If both are the same, the sum is in place."""
    source = np.ascontiguousarray(array)
    # MPI has no types for float16 and bfloat16: sum them in float32.
    if is_half(source.dtype):
        source = source.astype(np.float32)
        return source, source
    if out is None or out.dtype != source.dtype or out.shape != array.shape or not out.flags.c_contiguous:
        return source, np.empty_like(source)
    if not np.may_share_memory(out, source):
        return source, out
    same = out is source or out.ctypes.data == source.ctypes.data
    return (out, out) if same else (source, np.empty_like(source))


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
    """Context in which Ctrl-C ends the process at once: Python's handler would wait for the MPI call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
