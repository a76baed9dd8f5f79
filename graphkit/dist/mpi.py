"""MPI through mpi4py: the only module that imports it.

mpi4py's automatic initialisation is off, so that the thread level is asked for here and an import has no side
effect. An exception in one rank must end all of them: see `abort_on_error`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError, MissingDependency, RuntimeFailure

# Set by the process managers of MPICH and its derivatives, of Open MPI, and by Slurm's PMIx and PMI launchers.
_LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID")


def launched_by_mpi() -> bool:
    """Whether this process was started by an MPI launcher. Imports nothing."""
    return any(v in os.environ for v in _LAUNCHER_VARIABLES)


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


class MpiCommunicator:
    """All processes of MPI_COMM_WORLD. One thread at a time may call it."""

    def __init__(self) -> None:
        mpi = _mpi()
        if not mpi.Is_initialized():
            level = mpi.Init_thread(mpi.THREAD_SERIALIZED)
            if level < mpi.THREAD_SERIALIZED:
                raise RuntimeFailure(
                    f"MPI gives thread level {level}; MPI_THREAD_SERIALIZED ({mpi.THREAD_SERIALIZED}) is needed"
                )
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def allreduce(self, array: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(array)
        result = np.empty_like(source)
        # Half floats have no MPI type: they are summed in float32.
        if source.dtype.itemsize == 2 and source.dtype.kind in "fV":
            return self.allreduce(source.astype(np.float32)).astype(source.dtype)
        self._comm.Allreduce(source, result)
        return result.reshape(array.shape)

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        result = np.array(array, order="C", copy=True)
        # As bytes, so that every dtype travels.
        self._comm.Bcast(result.reshape(-1).view(np.uint8), root=root)
        return result

    def barrier(self) -> None:
        self._comm.Barrier()

    def abort(self, code: int) -> None:
        """End every process of the job."""
        self._comm.Abort(code)


@cache
def world() -> MpiCommunicator:
    """The communicator of all processes; initialises MPI at the first call."""
    return MpiCommunicator()


@contextlib.contextmanager
def abort_on_error() -> Iterator[None]:
    """End the whole job when this rank fails, so that the others do not wait for it for ever."""
    try:
        yield
    except BaseException as error:
        rank = world()
        if rank.size == 1 or (isinstance(error, SystemExit) and not error.code):
            raise
        code = error.exit_code if isinstance(error, GraphkitError) else 5
        if isinstance(error, GraphkitError):
            print(f"rank {rank.rank}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        rank.abort(code)
    finalize()


def finalize() -> None:
    """Close MPI if this process opened it."""
    mpi = _mpi()
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
        world.cache_clear()
