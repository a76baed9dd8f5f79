"""MPI through mpi4py: the only module that imports it.

mpi4py's automatic initialisation is off, so that the thread level is asked for here and an import has no side
effect. Which collectives there are, and in which order, the processes agree upon in `graphkit.dist.rounds.channel`;
`graphkit.dist.job.ending` is what happens at the end of a process.
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
from graphkit.dist.hosts.group import PART, Levels, as_bytes
from graphkit.dist.hosts.hosts import Hosts
from graphkit.dist.hosts.placement import Allowed, place
from graphkit.dist.hosts.relay import Relay
from graphkit.dist.hosts.watch import Board, Watch
from graphkit.dist.job import roll
from graphkit.dist.job.start import LEAST, check_company, checked_timeout, deadline
from graphkit.dist.rounds import announcement
from graphkit.dist.rounds.channel import Channel
from graphkit.dist.rounds.posted import placed
from graphkit.dist.wire.exchange import MOST, Exchange
from graphkit.dist.wire.mail import Mail
from graphkit.dist.wire.transfers import Messages
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, UsageError
from graphkit.text import quantity, short_repr

# Set by the process managers of MPICH and its derivatives, of Open MPI, and by Slurm's PMIx and PMI launchers.
_LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
# Processes of the job, and those of this host, as MPICH's and Open MPI's launchers and Slurm tell. Slurm's are host by
# host: a single number is that of one host.
_COUNTS = (
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "SLURM_STEP_TASKS_PER_NODE"),
)

# While others are awaited: how long a core of its own is kept, how long it is only offered to others, and the pauses
# after that, in seconds.
_KEEPS, _EAGER, _PAUSE = 2e-4, 0.02, 5e-5


def launched_by_mpi() -> bool:
    """Whether this process was started by an MPI launcher that is known. Imports nothing.

    It is for what is decided before MPI is loaded, which takes long and may not be repeated; where it is wrong, MPI's
    own word is an error (`graphkit train --processes`).
    """
    return any(v in os.environ for v in _LAUNCHER_VARIABLES)


def _on_one_host() -> bool:
    """Whether the launcher says that all processes are on this host. A call of MPI costs less then."""
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
    """The first words of what the MPI library says of itself: its name and version."""
    first = str(_mpi().Get_library_version()).strip("\0 \n").splitlines()[0]
    return " ".join(first.partition(",")[0].split())


def started() -> tuple[int, int] | None:
    """This process's rank and the number of all, where a script has started MPI itself; None where nobody has."""
    mpi = _mpi()
    return (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) if mpi.Is_initialized() else None


class MpiCommunicator:
    """The workers of MPI_COMM_WORLD: all processes but the last `servers`, which have a communicator of their own.

    MPI is called by one thread at a time, the one that drives the channel. `place` is this process's rank in the job,
    `mail` what workers and servers send each other. replicated: servers may be lost; there is no mail then, as MPI's
    messages do not get over that. unclosed: one was lost, so that MPI cannot be closed.
    """

    def __init__(self, servers: int = 0, replicated: bool = False) -> None:
        mpi = _mpi()
        self._opened = not mpi.Is_initialized()
        # Starting waits for every process, in a library that sees no signals of Python's.
        with _default_signals():
            if self._opened:
                # Leaders of hosts send each other signs of life beside the calls of another thread.
                level = mpi.Init_thread(mpi.THREAD_SERIALIZED if _on_one_host() else mpi.THREAD_MULTIPLE)
                if level < mpi.THREAD_SERIALIZED:
                    raise RuntimeFailure(
                        f"MPI provides thread level {level}, but graphkit needs MPI_THREAD_SERIALIZED "
                        f"({mpi.THREAD_SERIALIZED})"
                    )
            # A communicator of our own: what is sent here never meets what a script sends.
            self._job = mpi.COMM_WORLD.Dup()
            self.place, self.processes, self.servers = self._job.rank, self._job.size, servers
            check_company(self.processes)
            self.replicated, self.unclosed = replicated, False
            # Whether there is a store whose keys are on the servers.
            self.stores = False
            if not 0 <= servers < self.processes:
                raise UsageError(
                    f"{self.processes} process{'es' * (self.processes != 1)} and {servers} "
                    f"server{'s' * (servers != 1)}: no worker is left; start at least {servers + 1} processes, such as "
                    f"mpiexec -n {servers + 1} ..."
                )
            here = self._job.Split_type(mpi.COMM_TYPE_SHARED)
            apart = config.RANKS_PER_HOST.get()
            self._everywhere = self.hosts = Hosts(self._job, here, mpi.IN_PLACE, self._done, apart)
            self.local: int = here.rank
            # Whoever offers a core, on a busy machine gets it back some milliseconds later.
            self._keeps = _KEEPS if place(here.allgather(Allowed.here()), here.rank) else 0.0
            self._comm, self.mail = self._job, None
            if servers:
                self._comm = self._job.Split(int(self.serves), self.place)
                beside = here.Split(int(self.serves), self.place)
                self.hosts = Hosts(self._comm, beside, mpi.IN_PLACE, self._done, apart)
                beside.Free()
                self.mail = None if replicated else Mail(self._job.Dup(), mpi.Status, mpi.BYTE)
            here.Free()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.steps = 0
        self.process = os.getpid()
        self._kept: list[Any] = []
        self._tells_of_abort: list[Callable[[int], None]] = []
        self._watch = self._watched()
        self.channel = Channel(self)
        self.messages = Messages(self)
        # None: more processes than tell each other one by one.
        self._exchange: Exchange | None = None
        if self.size <= MOST:
            self._exchange = Exchange(self._comm.Dup(), _mpi().BYTE, announcement.LENGTH, self._complete)
        self.at_the_wheel = self.channel.at_the_wheel
        self.post, self.perform, self.flush = self.channel.post, self.channel.perform, self.channel.flush

    @property
    def serves(self) -> bool:
        """Whether this process is a server."""
        return bool(self.place >= self.processes - self.servers)

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
        # In parts, at least one: everybody has to take part in a sum of nothing, too.
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
        """MPI's own Allreduce, for comparisons: two contiguous arrays of one type, neither checked nor watched."""
        self._comm.Allreduce(array, out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return self.hosts.allgather(array)

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        if array.dtype.itemsize == 2:  # half floats have no MPI type
            return self.allreduce(array)[bounds[self.rank] : bounds[self.rank + 1]]
        return self.hosts.reduce_scatter(np.ascontiguousarray(array), bounds)

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        return self.hosts.allgather_parts(data, sizes)

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        result = np.array(array, order="C", copy=True)
        # As bytes, so that every dtype travels.
        self.hosts.broadcast(as_bytes(result), root)
        return result

    # --- messages --------------------------------------------------------------------------------

    def start_send(self, data: np.ndarray, to: int, tag: int) -> Any:
        return self._comm.Isend(data, dest=to, tag=tag)

    def start_receive(self, data: np.ndarray, source: int, tag: int) -> Any:
        return self._comm.Irecv(data, source=source, tag=tag)

    def fail(self, reason: str) -> None:
        self.channel.fail(reason)

    # --- losses ----------------------------------------------------------------------------------

    @property
    def host_by_rank(self) -> dict[int, int]:
        """The number of the host of each process of the job."""
        return {rank: index for index, host in enumerate(self._everywhere.all) for rank in host.ranks}

    def tell_all(self, mine: Any) -> list[Any]:
        """What each process of the job gives, by rank, at the start. Where they do not come within the timeout, this
        process ends as where they do not start.
        """
        with deadline(max(self.timeout, LEAST), (self.place, self.processes), "opened their store"):
            return list(self._job.allgather(mine))

    def called(self, rank: int) -> str:
        """A process of the job: its rank, its host, and its number there."""
        host = next(host.name for host in self._everywhere.all if rank in host.ranks)
        process = None if self._watch is None else self._watch.process_of(rank)
        return f"rank {rank} on {host}" + ("" if process is None else f" (process {process})")

    def excuse(self, rank: int) -> None:
        """That process is lost, and the others go on without it."""
        roll.say(roll.EXCUSED, rank)
        if self._watch is not None:
            self._watch.excuse(rank)

    def end_silent(self) -> None:
        """The job is over: so are processes of this host that show no sign."""
        if self._watch is not None:
            self._watch.end_silent()

    def before_abort(self, tell: Callable[[int], None]) -> None:
        """Call this with the exit code before this process ends the job; what was given last comes first."""
        self._tells_of_abort.insert(0, tell)

    # --- signs of life ---------------------------------------------------------------------------

    def _watched(self) -> Watch | None:
        """The watch over the processes of all hosts, or of this one where MPI takes calls of one thread at a time."""
        hosts, mpi = self._everywhere, _mpi()
        everywhere = hosts.several and self._job.allreduce(mpi.Query_thread(), mpi.MIN) == mpi.THREAD_MULTIPLE
        watched = hosts.all if everywhere else (hosts.all[hosts.index],)
        ranks = sorted(rank for host in watched for rank in host.ranks)
        if len(ranks) == 1:
            return None
        path, failure = None, None
        if hosts.leads:
            try:
                path = Board.create(len(ranks), len(watched))
            except OSError as error:
                failure = f"rank {self.place}: cannot allocate memory to share between processes: {error}"
        path, failure = hosts.inside.bcast((path, failure))
        if path is None:
            raise RuntimeFailure(failure)
        board = Board(path, len(ranks), len(watched))
        # Before anything waits for other hosts: who is lost there leaves no file here.
        hosts.inside.Barrier()
        if hosts.leads:
            os.unlink(path)
        relay = Relay(hosts.leaders.Dup(), board, watched) if everywhere and hosts.leads else None
        here, mine = watched.index(hosts.all[hosts.index]), ranks.index(self.place)
        complete = len(ranks) == self.processes
        watch = Watch(board, ranks, mine, config.RANK_TIMEOUT.get(), watched, here, relay, complete)
        return watch

    @property
    def timeout(self) -> float:
        """Seconds after which a process is given up."""
        return config.RANK_TIMEOUT.get() if self._watch is None else self._watch.timeout

    def set_timeout(self, seconds: float) -> None:
        """Give up processes that show no sign, or do not go on, for so long."""
        checked = checked_timeout(seconds)
        if self._watch is not None:
            self._watch.timeout = checked

    def working(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watch is None else self._watch.working()

    def running(self, code: str) -> AbstractContextManager[None]:
        return nullcontext() if self._watch is None else self._watch.running(code, self.steps)

    def doing(self, call: bytes) -> None:
        if self._watch is not None:
            self._watch.doing(call, self.steps)

    def went_on(self) -> None:
        """What this process waits for has made progress."""
        if self._watch is not None:
            self._watch.went_on()

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        if self._watch is None:
            return nullcontext()
        return self._watch.for_progress if for_steps else self._watch.for_life

    def lost(self) -> str | None:
        return None if self._watch is None else self._watch.lost()

    # --- waiting ---------------------------------------------------------------------------------

    def tell(self, mine: bytes) -> list[bytes]:
        if _mpi().Is_finalized():
            raise RuntimeFailure(f"rank {self.rank} continues after the end of MPI")
        if self._exchange is not None and len(mine) == announcement.LENGTH:
            return self._exchange(mine)
        gathered = bytearray(self.size * len(mine))
        self._complete(self._comm.Iallgather(mine, gathered), mine, gathered)
        return [bytes(gathered[at : at + len(mine)]) for at in range(0, len(gathered), len(mine))]

    def _done(self, request: Any, *used: Any) -> None:
        """`_complete` for a request of a collective: with each that is done, this process goes on."""
        self._complete(request, *used)
        self.went_on()

    def _complete(self, request: Any, *used: Any) -> None:
        """Wait until the request is done, which uses these objects.

        Others get the core meanwhile, signals are seen, and so is who is lost. A call of MPI's own that blocks would
        see none of them, and take the core from processes that it waits for.
        """
        start = time.monotonic()
        try:
            while not request.Test():
                # While this process computes, the core is wanted.
                if self.channel.awaited and (waited := time.monotonic() - start) < _EAGER:
                    if waited >= self._keeps:
                        os.sched_yield()
                else:
                    time.sleep(_PAUSE)
                    self.channel.idle()
        except BaseException:
            # The others may be in this call still: MPI goes on to write here.
            self._kept += [request, *used]
            raise

    # --- the end ---------------------------------------------------------------------------------

    @property
    def disagreement(self) -> str | None:
        """Why the processes do not go on together."""
        return self.channel.disagreement

    def meet(self, seconds: float) -> bool:
        """Whether all processes came here within that time."""
        end = time.monotonic() + seconds
        if not self.channel.quiet(seconds):
            return False
        request = self._comm.Ibarrier()
        while not (met := request.Test()) and time.monotonic() < end:
            time.sleep(_PAUSE)
        return bool(met)

    def finalize(self) -> None:
        """Close MPI, if it was opened here."""
        self.channel.close()
        if self._watch is not None:
            self._watch.end()
        mpi = _mpi()
        if self._opened and not self.unclosed and not mpi.Is_finalized():
            # MPI would wait for ever for one that is lost from here on.
            with deadline(max(self.timeout, LEAST), (self.place, self.processes), "closed MPI"):
                mpi.Finalize()

    def abort(self, code: int) -> None:
        """End every process of the job."""
        for tell in self._tells_of_abort:
            tell(code)
        self._job.Abort(code)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"rank {self.rank} of {self.size}"
        yield quantity(self.servers, "server")


def _summands(array: np.ndarray, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """What is summed, and where to: into the same array where that is `out`."""
    source = np.ascontiguousarray(array)
    # Half floats have no MPI type: they are summed in float32.
    if source.dtype.itemsize == 2 and source.dtype.kind in "fV":
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
    """Ctrl-C ends the process at once: Python's own handler would wait for the call to return."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
