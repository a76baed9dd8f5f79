"""KVStore: arrays by key, shared by the processes of a job (the interface of MXNet's).

`local` lives in one process. `dist_sync` sums what all processes push, by an allreduce: every process must push
the same keys in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from graphkit.dist import compression
from graphkit.dist.communicator import Communicator, LocalCommunicator, placed
from graphkit.dist.compression import Compression
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.weights import read_arrays, write_arrays

Key: TypeAlias = int | str
Updater: TypeAlias = Callable[[Key, np.ndarray, np.ndarray], Any]

TYPES = ("local", "dist_sync")
# What MXNet calls them, and the store that is meant here.
_ALIASES = {"device": "local", "dist": "dist_sync", "dist_device_sync": "dist_sync", "dist_sync_device": "dist_sync"}


@runtime_checkable
class StatefulUpdater(Protocol):
    """An updater with states of its own, as arrays by name."""

    def __call__(self, key: Key, gradient: np.ndarray, stored: np.ndarray) -> Any: ...
    def states(self) -> dict[str, np.ndarray]: ...
    def restore(self, states: Mapping[str, np.ndarray]) -> None: ...


class HasUpdater(Protocol):
    """What `set_optimizer` takes, as an Optimizer is."""

    def updater(self) -> Updater: ...


class KVStore:
    """`push` adds up the values given for a key, here and in all processes, and stores or applies the sum.

    Without an updater the sum replaces the stored value; `set_updater(f)` calls f(key, sum, stored) instead, which
    changes `stored` in place. Keys are ints or strings; a sequence of keys takes a sequence of values. `sent_bytes`
    counts what this process has given to be summed.
    """

    def __init__(self, type: str, communicator: Communicator):
        self.type = type
        self._communicator = communicator
        self._values: dict[Key, np.ndarray] = {}
        self._updater: Updater | None = None
        self._compression: Compression | None = None
        self._residuals: dict[Key, np.ndarray] = {}
        self.sent_bytes = 0

    @property
    def rank(self) -> int:
        return self._communicator.rank

    @property
    def num_workers(self) -> int:
        return self._communicator.size

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process gave to be exchanged with other hosts; of a host's processes one does for all."""
        return self._communicator.sent_between_hosts

    @property
    def compresses(self) -> bool:
        """Whether float32 arrays are sent in fewer bytes."""
        return self._compression is not None

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Create keys, once each; every process takes rank 0's value."""
        pairs = [(k, np.asarray(v)) for k, v in _pairs(key, value)]
        for k, _ in pairs:
            if k in self._values:
                raise UsageError(f"key {k!r} is initialised already")
        self._agree("init", pairs)
        for k, v in pairs:
            self._values[k] = self._communicator.broadcast(v)

    def push(self, key: Key | Sequence[Key], value: Any) -> None:
        """Sum the value (or list of values, one per device) over processes into the store."""
        for k, total in self._sums(key, value):
            if self._updater is None:
                self._values[k] = total
            else:
                self._updater(k, total, self._values[k])

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """A copy of the stored value, written into `out` when given; a list for a sequence of keys."""
        if isinstance(key, (list, tuple)):
            outs = [None] * len(key) if out is None else out
            return [self.pull(k, o) for k, o in zip(key, outs, strict=True)]
        stored = self._stored(key)  # type: ignore[arg-type]
        if out is None:
            return stored.copy()
        np.copyto(out, stored)
        return out

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None) -> Any:
        """`push`, then `pull`. Without an updater the keys need no `init`, and nothing is kept."""
        if self._updater is not None:
            self.push(key, value)
            return self.pull(key, out)
        several = isinstance(key, (list, tuple))
        outs = None if out is None else out if several else [out]
        totals = [total for _, total in self._sums(key, value, known=False, outs=outs)]
        return (totals if several else totals[0]) if out is None else out

    def broadcast(self, key: Key | Sequence[Key], value: Any, root: int = 0) -> Any:
        """The value that process `root` holds; a list for a sequence of keys. Nothing is kept."""
        pairs = [(k, np.asarray(v)) for k, v in _pairs(key, value)]
        self._agree(f"broadcast from rank {root} of", pairs)
        found = [self._communicator.broadcast(v, root) for _, v in pairs]
        return found if isinstance(key, (list, tuple)) else found[0]

    def barrier(self) -> None:
        """Wait until every process has come here."""
        self._communicator.agree("barrier")
        self._communicator.barrier()

    def working(self) -> AbstractContextManager[None]:
        """What takes long, and other processes may wait for, goes on meanwhile: this process has not stalled."""
        return self._communicator.working()

    def begin_step(self) -> None:
        """Count a step, by which errors say where a process is."""
        self._communicator.steps += 1

    def set_updater(self, updater: Updater) -> None:
        self._updater = updater

    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Update the stored values by the gradients that are pushed, in all processes alike; see `gk.optim`."""
        self._updater = optimizer.updater()

    def save_optimizer_states(self, path: str | Path) -> None:
        """Write slots and counts of updates to a safetensors file, whole or not at all.

        Raises UsageError without an optimizer.
        """
        write_arrays(Path(path), self._stateful().states())

    def load_optimizer_states(self, path: str | Path) -> None:
        """Take over such a file. Raises InvalidModel for one that is damaged, or another optimizer's."""
        self._stateful().restore(read_arrays(Path(path)))

    def _stateful(self) -> StatefulUpdater:
        updater = self._updater
        if not isinstance(updater, StatefulUpdater):
            raise UsageError("the store has no optimizer with states: call set_optimizer first")
        return updater

    def set_gradient_compression(self, options: str | Mapping[str, Any]) -> None:
        """Send float32 arrays that are pushed from now on in fewer bytes, in all processes alike.

        options: {"type": "2bit", "threshold": 0.5}, {"type": "top_k", "ratio": 0.01}, "float16" or "bfloat16". What a
        push leaves out is added to the next one of its key. Raises UsageError for others, and where nothing is sent.
        """
        if self.type == "local":
            raise UsageError("a local store sends nothing: compression is for 'dist_sync'")
        made = compression.create(options)
        self._communicator.agree(f"set_gradient_compression({options!r})")
        self._compression = made
        self._residuals = {}

    def __reduce__(self) -> Any:
        raise UsageError(
            "a KVStore holds a connection of this process and is not copied or pickled: create() one where it is used"
        )

    def _stored(self, key: Key) -> np.ndarray:
        if key not in self._values:
            raise UsageError(f"key {key!r} is not initialised{did_you_mean(str(key), [str(k) for k in self._values])}")
        return self._values[key]

    def _sums(
        self, key: Key | Sequence[Key], value: Any, known: bool = True, outs: Sequence[np.ndarray] | None = None
    ) -> list[tuple[Key, np.ndarray]]:
        """The sum for each key, over what is given here and over the processes; written into `outs` when given."""
        pairs = [(k, self._local_sum(k, v, known)) for k, v in _pairs(key, value)]
        if outs is not None and len(outs) != len(pairs):
            raise UsageError(f"{len(pairs)} keys need as many arrays to write to, not {len(outs)}")
        self._agree("sum", pairs)
        targets = [None] * len(pairs) if outs is None else outs
        return [(k, self._total(k, v, target)) for (k, v), target in zip(pairs, targets, strict=True)]

    def _total(self, key: Key, array: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """The sum over the processes."""
        if self._compression is None or array.dtype != np.float32:
            self.sent_bytes += array.nbytes
            return self._communicator.allreduce(array, out)
        residual = self._residuals.setdefault(key, np.zeros(array.size, np.float32))
        if residual.size != array.size:
            raise InputError(
                f"key {key!r} had {residual.size} elements when it was pushed before, and has {array.size}"
            )
        packed = self._compression.pack(np.ascontiguousarray(array).reshape(-1), residual)
        self.sent_bytes += packed.nbytes
        total = np.zeros(array.size, np.float32)
        # In the order of the ranks: the sum is the same everywhere.
        for part in self._communicator.allgather(packed):
            self._compression.add(part, total)
        return placed(total.reshape(array.shape), out)

    def _local_sum(self, key: Key, value: Any, known: bool) -> np.ndarray:
        values = [np.asarray(v) for v in value] if isinstance(value, (list, tuple)) else [np.asarray(value)]
        if known:
            stored = self._stored(key)
            for v in values:
                if v.shape != stored.shape or v.dtype != stored.dtype:
                    raise InputError(
                        f"key {key!r} is {stored.dtype}{list(stored.shape)}; pushed {v.dtype}{list(v.shape)}"
                    )
        return values[0] if len(values) == 1 else np.sum(values, axis=0, dtype=values[0].dtype)

    def _agree(self, call: str, pairs: Sequence[tuple[Key, np.ndarray]]) -> None:
        if pairs:
            names = (
                repr(pairs[0][0]) if len(pairs) == 1 else f"{len(pairs)} keys {', '.join(repr(k) for k, _ in pairs)}"
            )
            self._communicator.agree(f"{call} {names}", [v for _, v in pairs])


def _pairs(key: Key | Sequence[Key], value: Any) -> list[tuple[Key, Any]]:
    if not isinstance(key, (list, tuple)):
        return [(key, value)]  # type: ignore[list-item]
    if not isinstance(value, (list, tuple)) or len(value) != len(key):
        raise UsageError(f"{len(key)} keys need as many values")
    return list(zip(key, value, strict=True))


def create(type: str = "local", *, timeout: float | None = None) -> KVStore:
    """A store of one of TYPES, or by MXNet's names. `dist_sync` needs MPI (MissingDependency says what to install).

    timeout: seconds after which a process that gives no sign ends the job; GRAPHKIT_RANK_TIMEOUT, 60, by default.
    """
    type = _ALIASES.get(type, type)
    if type == "local":
        return KVStore(type, LocalCommunicator())
    if type == "dist_sync":
        from graphkit.dist.ending import join

        communicator = join()
        if timeout is not None:
            communicator.set_timeout(timeout)
        return KVStore(type, communicator)
    raise UsageError(f"unknown kvstore {type!r}{did_you_mean(type, TYPES)}")
