"""Arrays by key, held alike by all processes of a job, which add up what they push."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from graphkit.dist.communicator import Communicator
from graphkit.dist.rounds.posted import Action, Pending, Sum, placed
from graphkit.dist.sums import compression
from graphkit.dist.sums.buckets import Buckets
from graphkit.dist.sums.compressed import CompressedSums
from graphkit.dist.sums.elements import check_summed
from graphkit.dist.sums.rows import RowSparse, RowSum, local_rows, rows_of
from graphkit.dist.sums.slices import Slices
from graphkit.dist.wire.transfers import Messages
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.arrays import array_of
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.signatures import check_argument, shown, typed
from graphkit.text import human, short_repr

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from graphkit.dist.sums.joined import Cards

Key: TypeAlias = int | str
# Of a key, the sum (a RowSparse where such were pushed) and the stored value.
Updater: TypeAlias = Callable[[Key, Any, np.ndarray], Any]

# Bytes of a bucket where none are measured, and bounds where they are: as many as take so many latencies.
FIXED_BUCKET, _LEAST_BUCKET, _LARGEST_BUCKET = 4 << 20, 256 << 10, 64 << 20
_LATENCIES, _TRIALS = 20, 5


@runtime_checkable
class StatefulUpdater(Protocol):
    """An updater with states of its own, as arrays by name."""

    def __call__(self, key: Key, gradient: Any, stored: np.ndarray) -> Any: ...
    def states(self) -> dict[str, np.ndarray]: ...
    def restore(self, states: Mapping[str, np.ndarray]) -> None: ...


class HasUpdater(Protocol):
    """What `set_optimizer` takes, as an Optimizer is."""

    def updater(self) -> Updater: ...


class KVStore:
    """`push` adds up the values given for a key, here and in all processes, and stores or applies the sum.

    Without an updater the sum replaces the stored value; `set_updater(f)` calls f(key, sum, stored) instead, which
    changes `stored` in place. Keys are ints or strings; a sequence of keys takes a sequence of values. `sent_bytes`
    counts what this process has given to be summed, compressed as between hosts.
    """

    # Whether values live on servers, and each process pushes and pulls by itself.
    is_remote = False

    def __init__(self, type: str, communicator: Communicator, bucket_bytes: int | None = None):
        self.type = type
        self._communicator = communicator
        self._values: dict[Key, np.ndarray] = {}
        self._updater: Updater | None = None
        self._compressed: CompressedSums | None = None
        # What was pushed and not awaited.
        self._pushed: dict[Key, list[Pending]] = {}
        self._bucket_bytes = bucket_bytes
        self._sent_bytes = 0
        self._cards: Cards | None = None

    @property
    def rank(self) -> int:
        return self._communicator.rank

    @property
    def num_workers(self) -> int:
        return self._communicator.size

    @property
    def local_rank(self) -> int:
        """The number of this process among those of the job on its host."""
        return self._communicator.local

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes + (0 if self._cards is None else self._cards.sent_bytes)

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process gave to be exchanged with other hosts; of a host's processes one does for all."""
        return self._communicator.sent_between_hosts

    @property
    def compresses(self) -> bool:
        """Whether float32 arrays are sent in fewer bytes."""
        return self._compressed is not None

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Create keys, once each; every process takes rank 0's value."""
        pairs = [(k, array_of(f"the value of key {k!r}", v)) for k, v in pairs_of(key, value)]
        for k, _ in pairs:
            if k in self._values:
                raise UsageError(f"key {k!r} is initialised already")
        self._values.update(zip([k for k, _ in pairs], self._broadcast("init", pairs, 0), strict=True))

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sum the value (or list of values, one per device) over processes into the store.

        With several processes it returns at once, and the values may be changed then: a thread sees to the sums, those
        of higher priority first, and `pull` waits for those of its key. What fails is raised there, or by `wait`.

        Of a RowSparse, which all processes push to the key then, its rows alone travel; without an updater the other
        rows become 0.
        """
        for k, v in self._given(key, value, known=True):
            waiting = self._pushed.setdefault(k, [])
            waiting[:] = [made for made in waiting if not made.done or made.error is not None]
            waiting.append(self._post(k, v, None, partial(self._keep, k), priority, later=True))

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """A copy of the stored value, written into `out` when given; a list for a sequence of keys.

        It waits for what was pushed to the key before.
        """
        if not is_one(key):
            outs = [None] * len(key) if out is None else out
            return [self.pull(k, o) for k, o in zip(key, outs, strict=True)]
        stored = self._stored(key)
        self.wait(key)
        stored = self._stored(key)
        if out is None:
            return stored.copy()
        np.copyto(out, stored)
        return out

    def row_sparse_pull(self, key: Key | Sequence[Key], row_ids: Any, out: Any = None) -> Any:
        """Some rows of the stored value, a RowSparse with each of them once, by ascending index; waits as `pull` does.

        row_ids: a vector of integers; for a sequence of keys, one for each, and a list is returned. out: an array of
        the key's type, of which these rows are written and no others. Raises InputError where there is no such row.
        """
        if not is_one(key):
            outs = [None] * len(key) if out is None else out
            return [self.row_sparse_pull(k, i, o) for k, i, o in zip(key, row_ids, outs, strict=True)]
        self._stored(key)
        self.wait(key)
        found = rows_of(f"key {key!r}", self._stored(key), row_ids)
        if out is not None:
            out[found.indices] = found.values
        return found

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """`push`, then `pull`. Without an updater the keys need no `init`, and nothing is kept."""
        if self._updater is not None:
            self.push(key, value, priority)
            return self.pull(key, out)
        if is_one(key):
            given = self._local_sum(key, value, known=False)
            if isinstance(given, RowSparse):
                total = self._post(key, given, out, _itself, priority, later=False).wait()
            else:
                action = self._sum(key, given, out, _itself)
                total = self._communicator.perform(f"sum {key!r}", [given], action, priority=priority)
            return total if out is None else out
        pairs = self._given(key, value, known=False)
        outs = [None] * len(pairs) if out is None else out
        if len(outs) != len(pairs):
            raise UsageError(f"{len(pairs)} keys need as many arrays to write to, not {len(outs)}")
        posted = [self._post(k, v, o, _itself, priority, later=False) for (k, v), o in zip(pairs, outs, strict=True)]
        totals = [made.wait() for made in posted]
        return totals if out is None else out

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        """Wait for what was pushed to a key, several, or all; raises the first error."""
        keys = list(self._pushed) if key is None else [key] if is_one(key) else key
        for k in keys:
            waiting = self._pushed.pop(k, None)
            for made in waiting or ():
                made.wait()

    def collectives(self, ordered: bool = False, device: str | None = None, staged: str = "") -> Buckets:
        """What carries the sums inside of a program; ordered: in the order of the ranks.

        device: of the program in this process. Where it and those of all others are cards that can, they sum among
        themselves, unless `staged` says why they do not. With a device, every process has to call it.
        """
        if self.num_workers == 1 or device is None:
            return Buckets(self, ordered, staged=staged)
        if self._cards is None:
            from graphkit.dist.sums.joined import Cards

            self._cards = Cards(self._communicator)
        return Buckets(self, ordered, *self._cards.sums(device, staged))

    @property
    def messages(self) -> Messages:
        """Arrays from this process to another one, and back."""
        return self._communicator.messages

    def meet(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Come to where all processes come, with arrays of the same types; all that was pushed is there then."""
        self.wait()
        self._communicator.flush()
        self._communicator.perform(call, arrays)

    def bucket_bytes(self, fixed: bool = False) -> int:
        """How many bytes of gradients are best summed at once; the same in every process.

        As given; or so many that what a sum takes however small it is, as measured, is a small part of it. fixed:
        measure nothing.
        """
        if self._bucket_bytes is None and (fixed or self.num_workers == 1):
            return FIXED_BUCKET
        if self._bucket_bytes is None:
            self._bucket_bytes = int(self.broadcast("bucket_bytes", np.array(self._measured_bucket())))
        return self._bucket_bytes

    def _measured_bucket(self) -> int:
        """From the times of a small sum and a larger one: time = latency + bytes / bandwidth (Hockney, 1994)."""
        small, large = np.zeros(16, np.float32), np.zeros(1 << 18, np.float32)
        times = {}
        for array in (small, large):
            spent = []
            for _ in range(_TRIALS):
                start = time.perf_counter()
                self._communicator.perform("bucket_bytes", [array], Sum(array, array, _itself))
                spent.append(time.perf_counter() - start)
            times[array.nbytes] = float(np.median(spent))
        latency, longer = times[small.nbytes], times[large.nbytes]
        per_byte = max(longer - latency, 0.1 * longer) / large.nbytes
        return int(np.clip(_LATENCIES * latency / per_byte, _LEAST_BUCKET, _LARGEST_BUCKET))

    def start_sum(
        self,
        key: str,
        array: np.ndarray,
        out: np.ndarray,
        ordered: bool = False,
        then: Callable[[np.ndarray], Any] | None = None,
    ) -> Pending:
        """Begin the sum of an array over the processes into `out`, which may be the same; the array must not change.

        ordered: it is added up in the order of the ranks, whatever their number does to MPI's own order. then: called
        with the sum. Nothing is kept; `wait` of the result returns when it is there.
        """
        action = self._sum(key, array, out, _itself if then is None else then, ordered=ordered, alone=True)
        return self._communicator.post(f"sum of {key}", [array], action)

    def start_scattered_sum(
        self, key: str, array: np.ndarray, slices: Slices, ordered: bool, then: Callable[[np.ndarray], Any]
    ) -> Pending:
        """Begin the sum of a vector over the processes; in this process's slice of it, the sum is written over it."""
        if ordered:
            return self.start_sum(key, array, array, True, then)
        mine = slices.of_rank(self.rank)
        self._sent_bytes += array.nbytes

        def scatter() -> Any:
            array[mine] = self._communicator.reduce_scatter(array, slices.bounds)
            return then(array)

        return self._communicator.post(f"sum of {key}", [array], scatter)

    def start_gather(
        self, key: str, mine: np.ndarray, slices: Slices, then: Callable[[Sequence[np.ndarray]], Any]
    ) -> Pending:
        """Begin to bring every process's slice of a vector to all; `then` is called with the slices, by rank."""
        self._sent_bytes += mine.nbytes
        sizes = [(end - begin) * mine.itemsize for begin, end in itertools.pairwise(slices.bounds)]

        def gathered() -> Any:
            parts = self._communicator.allgather_parts(mine.view(np.uint8), sizes)
            return then([part.view(mine.dtype) for part in parts])

        # The same of all, whose slices differ in length.
        shown = np.broadcast_to(np.zeros((), mine.dtype), (slices.bounds[-1],))
        return self._communicator.post(f"gather {key}", [shown], gathered)

    def gather(self, key: str, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, of one type, by rank along a new first axis."""
        self._sent_bytes += array.nbytes
        action = partial(self._communicator.allgather, array)
        found: np.ndarray = self._communicator.perform(f"gathering of {key}", [array], action)
        return found

    def start_row_sum(self, key: str, rows: RowSparse, ordered: bool = False) -> Pending:
        """Begin the sum of rows over the processes, which may be changed at once; `wait` of the result returns it.

        ordered: in the order of the ranks, wherever they are.
        """
        return self._post_rows(f"sum of {key}", RowSum(rows, ordered), _itself)

    def _post_rows(
        self, call: str, rows: RowSum, then: Callable[[RowSparse], Any], priority: int = 0, later: bool = True
    ) -> Pending:
        self._sent_bytes += rows.sent_bytes

        def action() -> Any:
            return then(rows(self._communicator))

        return self._communicator.post(call, rows.types, action, priority=priority, later=later)

    def _in_order(self, array: np.ndarray, out: np.ndarray | None, then: Callable[[np.ndarray], Any]) -> Any:
        first, *others = self._communicator.allgather(array)
        for part in others:
            first += part
        return then(placed(first, out))

    def broadcast(self, key: Key | Sequence[Key], value: Any, root: int = 0) -> Any:
        """The value that process `root` holds; a list for a sequence of keys. Nothing is kept."""
        found = self._broadcast(
            f"broadcast from rank {root} of",
            [(k, array_of(f"the value of key {k!r}", v)) for k, v in pairs_of(key, value)],
            root,
        )
        return found[0] if is_one(key) else found

    def barrier(self) -> None:
        """Wait until every process has come here; what was pushed before is done then."""
        self.wait()
        self._communicator.perform("barrier")

    def working(self) -> AbstractContextManager[None]:
        """What takes long, and other processes may wait for, goes on meanwhile: this process has not stalled."""
        return self._communicator.working()

    def begin_step(self) -> None:
        """Count a step, by which errors say where a process is."""
        self._communicator.steps += 1

    def set_updater(self, updater: Updater) -> None:
        self._updater = updater

    @typed("KVStore.set_optimizer")
    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Update the stored values by the gradients that are pushed, in all processes alike; see `gk.optim`."""
        if not hasattr(optimizer, "updater"):
            raise UsageError(f"KVStore.set_optimizer: optimizer is one of gk.optim, not {shown(optimizer)}")
        self._updater = optimizer.updater()

    @typed("KVStore.save_optimizer_states")
    def save_optimizer_states(self, path: str | Path) -> None:
        """Write slots and counts of updates to a safetensors file, whole or not at all.

        Raises UsageError without an optimizer.
        """
        write_arrays(Path(path), self._stateful().states())

    @typed("KVStore.load_optimizer_states")
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
        self.wait()
        self._communicator.perform(f"set_gradient_compression({options!r})")
        self._compressed = CompressedSums(made, self._communicator)

    @property
    def compressing(self) -> tuple[int, ...]:
        """The ranks that send float32 arrays in fewer bytes, and keep what is left out: of a host with several, its
        first alone, where there are several hosts."""
        levels = self._communicator.levels
        return tuple(range(self.num_workers)) if levels is None else levels.leading

    def residuals(self) -> dict[Key, np.ndarray]:
        """Vectors with what compression has left out of what this process has sent, by key; `restore_residuals` of this
        process takes them back. All that was pushed has to be there: `wait`."""
        return {} if self._compressed is None else self._compressed.residuals.copies()

    def restore_residuals(self, residuals: Mapping[Key, np.ndarray]) -> None:
        """Add these to what is pushed next, in place of what waits for these keys.

        Raises UsageError without compression, and in processes that are not `compressing`; InputError for other than
        float32, and where a key has another size.
        """
        if self._compressed is None:
            raise UsageError("what compression has left out waits for set_gradient_compression")
        if residuals and self.rank not in self.compressing:
            raise UsageError(f"rank {self.rank} sends nothing in fewer bytes, rank {self.compressing[0]} does")
        self._compressed.residuals.restore(residuals)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a KVStore holds a connection of this process and is not copied or pickled: create() one where it is used"
        )

    def _stored(self, key: Key) -> np.ndarray:
        if key not in self._values:
            raise UsageError(f"key {key!r} is not initialised{did_you_mean(str(key), [str(k) for k in self._values])}")
        return self._values[key]

    def _given(self, key: Key | Sequence[Key], value: Any, known: bool) -> list[tuple[Key, np.ndarray | RowSparse]]:
        """The sum for each key over what is given here; all are looked at before any is sent."""
        return [(k, self._local_sum(k, v, known)) for k, v in pairs_of(key, value)]

    def _post(
        self,
        key: Key,
        array: np.ndarray | RowSparse,
        out: np.ndarray | None,
        then: Callable[[Any], Any],
        priority: int,
        later: bool,
    ) -> Pending:
        """Sum over the processes, into `out` when given, and call `then` with it."""
        if isinstance(array, RowSparse):
            return self._post_rows(f"sum {key!r}", RowSum(array), then, priority, later)
        action = self._sum(key, array, out, then, later=later)
        return self._communicator.post(f"sum {key!r}", [array], action, priority=priority, later=later)

    def _sum(
        self,
        key: Key,
        array: np.ndarray,
        out: np.ndarray | None,
        then: Callable[[Any], Any],
        *,
        later: bool = False,
        ordered: bool = False,
        alone: bool = False,
    ) -> Action:
        """What is to be done once all processes are there. later: the array may change at once; ordered: it is added up
        in the order of the ranks; alone: see Sum. Raises InputError for elements that are not summed."""
        check_summed(key, array.dtype)
        if self._compressed is not None and array.dtype == np.float32:
            action, size = self._compressed.action(key, array, out, then, ordered=ordered, later=later)
            self._sent_bytes += size
            return action
        self._sent_bytes += array.nbytes
        if ordered:
            return partial(self._in_order, array, out, then)
        return Sum(array.copy() if later and self.num_workers > 1 else array, out, then, alone)

    def _keep(self, key: Key, summed: np.ndarray | RowSparse) -> None:
        stored = self._values[key]
        if self._updater is not None:
            self._updater(key, summed, stored)
        else:
            self._values[key] = summed.dense(len(stored)) if isinstance(summed, RowSparse) else summed

    def _local_sum(self, key: Key, value: Any, known: bool) -> np.ndarray | RowSparse:
        given = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(v, RowSparse) for v in given):
            rows = local_rows(f"key {key!r}", given, self._stored(key) if known else None)
            check_summed(key, rows.dtype)
            return rows
        values = [np.asarray(v) for v in given]
        if not values:
            raise UsageError(f"key {key!r}: an empty list of values has no sum")
        expected = self._stored(key) if known else values[0]
        for v in values:
            if v.shape != expected.shape or v.dtype != expected.dtype:
                raise InputError(
                    f"key {key!r} is {expected.dtype}{list(expected.shape)}; pushed {v.dtype}{list(v.shape)}"
                )
        check_summed(key, expected.dtype)
        return values[0] if len(values) == 1 else np.sum(values, axis=0, dtype=values[0].dtype)

    def _broadcast(self, call: str, pairs: Sequence[tuple[Key, np.ndarray]], root: int) -> list[np.ndarray]:
        """The root's arrays; `call` is for errors."""
        if not pairs:
            return []
        names = repr(pairs[0][0]) if len(pairs) == 1 else f"{len(pairs)} keys {', '.join(repr(k) for k, _ in pairs)}"
        arrays = [v for _, v in pairs]

        def send() -> list[np.ndarray]:
            return [self._communicator.broadcast(v, root) for v in arrays]

        found: list[np.ndarray] = self._communicator.perform(f"{call} {names}", arrays, send)
        return found

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.type)
        yield f"rank {self.rank} of {self.num_workers}"
        values = list(self._values.values())
        yield f"{len(values)} keys, {human(sum(value.nbytes for value in values))}"
        if self._updater is not None:
            yield f"updater {type(self._updater).__name__}"
        if self._compressed is not None:
            yield "compressed"


def _itself(total: Any) -> Any:
    return total


def is_one(key: Key | Sequence[Key]) -> TypeIs[Key]:
    """Whether one key is given, and not several."""
    check_argument("KVStore", "key", "str | int | Sequence[str | int]", key)
    return not isinstance(key, (list, tuple))


def pairs_of(key: Key | Sequence[Key], value: Any) -> list[tuple[Key, Any]]:
    if is_one(key):
        return [(key, value)]
    if not isinstance(value, (list, tuple)) or len(value) != len(key):
        raise UsageError(f"{len(key)} keys need as many values")
    return list(zip(key, value, strict=True))
