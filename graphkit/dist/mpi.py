"""MPI through mpi4py: the only module that imports it.

mpi4py's automatic initialisation is off, so that the thread level is asked for here and an import has no side
effect. Before each collective the processes tell each other what they are about to do; a process that ends does so too.
Where they do not agree, all of them raise the same error and none waits for ever. `graphkit.dist.ending` is what
happens at the end of a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from graphkit import config
from graphkit.dist.communicator import placed
from graphkit.dist.hosts import Hosts
from graphkit.dist.placement import Allowed, place
from graphkit.dist.relay import Relay
from graphkit.dist.watch import Board, Watch
from graphkit.errors import MissingDependency, RuntimeFailure, UsageError

# Set by the process managers of MPICH and its derivatives, of Open MPI, and by Slurm's PMIx and PMI launchers.
_LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
# Processes of the job, and those of this host, as MPICH's and Open MPI's launchers tell.
_COUNTS = (("PMI_SIZE", "MPI_LOCALNRANKS"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))

# What a process says that takes part in nothing any more.
ENDED = "ended"

# While others are awaited: how long the core is only offered to others, and the pauses after that, in seconds.
_EAGER, _PAUSE = 0.02, 5e-4
# ... and the time between two looks at who is awaited.
_LOOK = 0.25


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
            "MPI needs mpi4py and an MPI library; install them with: pip install 'graphkit[mpi]'"
        ) from None
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"mpi4py finds no MPI library ({error}); install one with: pip install 'graphkit[mpi]', or load your site's"
        ) from None
    return MPI


_FORMAT = struct.Struct("<qqq104s")
# Where the digest lies in it.
_DIGEST = slice(16, 24)

# Calls whose announcements are kept.
_KEPT = 4096


class Announcement(NamedTuple):
    """What a process is about to do: the call, how many steps it has begun, how many calls it made before."""

    steps: int
    calls: int
    digest: int  # of the call and the arrays that it takes
    call: str

    @classmethod
    def unpack(cls, data: bytes) -> Announcement:
        steps, calls, digest, call = _FORMAT.unpack(data)
        return cls(steps, calls, digest, call.rstrip(b"\0").decode(errors="replace"))

    def __str__(self) -> str:
        if self.call == ENDED:
            return f"{ENDED} after {self.steps} steps"
        return f"{self.call} in step {self.steps}" if self.steps else f"{self.call} as call {self.calls + 1}"


class MpiCommunicator:
    """All processes of MPI_COMM_WORLD. One thread at a time may call it.

    on_lost: what ends this process, given the reason, when another one is given up in a call that cannot be left.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        mpi = _mpi()
        self._opened = not mpi.Is_initialized()
        # Starting waits for every process, in a library that sees no signals of Python's.
        with _default_signals():
            if self._opened:
                # Leaders of hosts send each other signs of life beside the calls of another thread.
                level = mpi.Init_thread(mpi.THREAD_SERIALIZED if _on_one_host() else mpi.THREAD_MULTIPLE)
                if level < mpi.THREAD_SERIALIZED:
                    raise RuntimeFailure(
                        f"MPI gives thread level {level}; MPI_THREAD_SERIALIZED ({mpi.THREAD_SERIALIZED}) is needed"
                    )
            # A communicator of our own: what is sent here never meets what a script sends.
            self._comm = mpi.COMM_WORLD.Dup()
            here = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
            self.hosts = Hosts(self._comm, here, mpi.IN_PLACE, config.RANKS_PER_HOST.get())
            place(here.allgather(Allowed.here()), here.rank)
            here.Free()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.steps = 0
        self.calls = 0
        self.process = os.getpid()
        self.disagreement: str | None = None
        self._interrupted: str | None = None
        self._kept: list[Any] = []
        self._announced: dict[Any, tuple[int, bytes]] = {}
        self._watch = self._watched(on_lost)
        # In a call that cannot be left.
        self._bound: AbstractContextManager[None] = nullcontext() if self._watch is None else self._watch.bound

    @property
    def sent_between_hosts(self) -> int:
        return self.hosts.sent

    # --- collectives -----------------------------------------------------------------------------

    def agree(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Wait until every process is about to make the same call with arrays of the same types.

        Raises RuntimeFailure in all processes, naming ranks and steps, where they are not.
        """
        if self.size == 1:
            return
        digest, text = self._told(call, arrays)
        if self._watch is not None:
            self._watch.doing(text, self.steps)
        if (reason := self.disagreement or self._interrupted) is not None:
            raise RuntimeFailure(reason)
        if _mpi().Is_finalized():
            raise RuntimeFailure(f"rank {self.rank}: {call} after the end of MPI")
        mine = _FORMAT.pack(self.steps, self.calls, digest, text)
        self.calls += 1
        rows = self._gathered(mine, call)
        # What ends is no call of the others: its digest is another one, too.
        if all(row[_DIGEST] == mine[_DIGEST] for row in rows):
            return
        self.disagreement = _disagreement([Announcement.unpack(row) for row in rows])
        raise RuntimeFailure(self.disagreement)

    def _told(self, call: str, arrays: Sequence[np.ndarray]) -> tuple[int, bytes]:
        """The digest of a call with its arrays, and what is said of it."""
        key = (call, *((a.dtype, a.shape) for a in arrays))
        found = self._announced.get(key)
        if found is None:
            if len(self._announced) >= _KEPT:
                self._announced.clear()
            what = " ".join((call, *(f"{a.dtype}{list(a.shape)}" for a in arrays)))
            text = (what if len(arrays) <= 1 else call).encode()[:104]
            found = self._announced[key] = zlib.crc32(what.encode()), text
        return found

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        source = np.ascontiguousarray(array)
        # Half floats have no MPI type: they are summed in float32.
        if source.dtype.itemsize == 2 and source.dtype.kind in "fV":
            return placed(self.allreduce(source.astype(np.float32)).astype(source.dtype).reshape(array.shape), out)
        fits = out is not None and out.dtype == source.dtype and out.shape == array.shape and out.flags.c_contiguous
        result = out if fits and out is not None and not np.may_share_memory(out, source) else np.empty_like(source)
        with self._bound:
            self.hosts.allreduce(source, result)
        return result if result is out else placed(result.reshape(array.shape), out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(array)
        result = np.empty((self.size, *source.shape), source.dtype)
        # As bytes, so that every dtype travels.
        with self._bound:
            self.hosts.allgather(source.reshape(-1).view(np.uint8), result.reshape(-1).view(np.uint8))
        return result

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        result = np.array(array, order="C", copy=True)
        # As bytes, so that every dtype travels.
        with self._bound:
            self.hosts.broadcast(result.reshape(-1).view(np.uint8), root)
        return result

    def barrier(self) -> None:
        with self._bound:
            self._comm.Barrier()

    # --- signs of life ---------------------------------------------------------------------------

    def _watched(self, on_lost: Callable[[str], None]) -> Watch | None:
        """The watch over the processes of all hosts, or of this one where MPI takes calls of one thread at a time."""
        hosts, mpi = self.hosts, _mpi()
        everywhere = hosts.several and self._comm.allreduce(mpi.Query_thread(), mpi.MIN) == mpi.THREAD_MULTIPLE
        watched = hosts.all if everywhere else (hosts.all[hosts.index],)
        ranks = sorted(rank for host in watched for rank in host.ranks)
        if len(ranks) == 1:
            return None
        path, failure = None, None
        if hosts.leads:
            try:
                path = Board.create(len(ranks), len(watched))
            except OSError as error:
                failure = f"rank {self.rank}: no memory to share between processes: {error}"
        path, failure = hosts.inside.bcast((path, failure))
        if path is None:
            raise RuntimeFailure(failure)
        board = Board(path, len(ranks), len(watched))
        relay = Relay(hosts.leaders.Dup(), board, watched) if everywhere and hosts.leads else None
        here, mine = watched.index(hosts.all[hosts.index]), ranks.index(self.rank)
        watch = Watch(board, ranks, mine, config.RANK_TIMEOUT.get(), on_lost, watched, here, relay)
        hosts.inside.Barrier()
        if hosts.leads:
            os.unlink(path)
        return watch

    def set_timeout(self, seconds: float) -> None:
        """Give up processes that show no sign, or do not go on, for so long."""
        if not seconds > 0:
            raise UsageError(f"a timeout of ranks is a number of seconds above 0, not {seconds!r}")
        if self._watch is not None:
            self._watch.timeout = seconds

    def working(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watch is None else self._watch.working()

    # --- waiting ---------------------------------------------------------------------------------

    def _gathered(self, mine: bytes, call: str) -> list[bytes]:
        """What each process announces."""
        gathered = bytearray(self.size * len(mine))
        request = self._comm.Iallgather(mine, gathered)
        try:
            self._wait_for_others(request, for_progress=call != ENDED)
        except BaseException as error:
            # The others may be in this call still: MPI goes on to write here.
            self._kept = [request, mine, gathered]
            self._interrupted = f"rank {self.rank} was interrupted in step {self.steps}, at {call}"
            if isinstance(error, RuntimeFailure):
                self._interrupted = str(error)
            raise
        return [bytes(gathered[at : at + len(mine)]) for at in range(0, len(gathered), len(mine))]

    def _wait_for_others(self, request: Any, for_progress: bool) -> None:
        """Wait until all have come. Raises RuntimeFailure when one of them is given up."""
        if self._watch is None:
            self._wait(request)
            return
        with self._watch.for_progress if for_progress else self._watch.for_life:
            while not self._wait(request, _LOOK):
                if (reason := self._watch.lost()) is not None:
                    raise RuntimeFailure(reason)

    @staticmethod
    def _wait(request: Any, seconds: float = float("inf")) -> bool:
        """Whether the request was done in time. Other threads and processes get the core, and signals are seen."""
        start = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - start
            if waited > seconds:
                return False
            if waited < _EAGER:
                os.sched_yield()
            else:
                time.sleep(_PAUSE)
        return True

    # --- the end ---------------------------------------------------------------------------------

    def meet(self, seconds: float) -> bool:
        """Whether all processes came here within that time."""
        return self._wait(self._comm.Ibarrier(), seconds)

    def finalize(self) -> None:
        """Close MPI, if it was opened here."""
        if self._watch is not None:
            self._watch.end()
        mpi = _mpi()
        if self._opened and not mpi.Is_finalized():
            mpi.Finalize()

    def abort(self, code: int) -> None:
        """End every process of the job."""
        self._comm.Abort(code)


def _disagreement(found: Sequence[Announcement]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, announced in enumerate(found):
        groups.setdefault(str(announced), []).append(rank)
    said = [f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {what}" for what, r in groups.items()]
    if len(said) == 1:  # texts that were cut
        said.append("with different arrays")
    return (
        f"the processes do not go on together: {'; '.join(said)}. All must take the same steps and make the same calls"
    )


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
