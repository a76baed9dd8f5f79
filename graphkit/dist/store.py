"""Arrays by key with equal values in all processes of a job; pushed values are all-reduced."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.agreement import arrays_facts, compare
from graphkit.dist.arguments import (
    Key,
    Outs,
    array_of,
    checked_key,
    described,
    is_one,
    keys_of,
    matched,
    pairs_of,
    path_of,
    shown,
    whole,
)
from graphkit.dist.communicator import Communicator
from graphkit.dist.rounds.posted import Action, Pending, Sum, placed
from graphkit.dist.sums import compression
from graphkit.dist.sums.buckets import Buckets
from graphkit.dist.sums.compressed import CompressedSums
from graphkit.dist.sums.elements import check_summed
from graphkit.dist.sums.fingerprint import Fingerprint, powers
from graphkit.dist.sums.rows import RowSparse, RowSum, local_rows, wanted_rows
from graphkit.dist.sums.slices import Slices
from graphkit.dist.updaters import (
    HasUpdater,
    StatefulUpdater,
    Updater,
    check_optimizer,
    checked_updater,
    updater_facts,
)
from graphkit.dist.wire.transfers import Messages
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.dist.sums.joined import Cards

# Bytes of a bucket where none are measured, and bounds where they are: as many as take so many latencies.
FIXED_BUCKET, _LEAST_BUCKET, _LARGEST_BUCKET = 4 << 20, 256 << 10, 64 << 20
_LATENCIES, _TRIALS = 20, 5


class KVStore:
    """Arrays by key, shared by the processes of a job. Create one with `gk.kvstore.create`.

    `push` sums the values given for a key in all processes. Without an updater, the sum replaces the stored value.
    After `set_updater(f)`, f(key, sum, stored) is called instead, and changes `stored` in place. A key is an int or a
    string. `init`, `push`, `pull` and `broadcast` also take a sequence of keys with a sequence of values. "Collective"
    means that every process must make the call.
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
        self.fingerprint = Fingerprint()

    @property
    def rank(self) -> int:
        """Number of this process among the workers, from 0."""
        return self._communicator.rank

    @property
    def num_workers(self) -> int:
        """Number of processes that share the store, without servers."""
        return self._communicator.size

    @property
    def local_rank(self) -> int:
        """Number of this process among the processes of the job on its host."""
        return self._communicator.local

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has contributed to all-reduces so far, after compression."""
        return self._sent_bytes + (0 if self._cards is None else self._cards.sent_bytes)

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process exchanged with other hosts. One process of each host does it for all."""
        return self._communicator.sent_between_hosts

    @property
    def compresses(self) -> bool:
        """Whether float32 arrays are sent compressed."""
        return self._compressed is not None

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Create keys, each only once. Every process gets the value of rank 0. Collective."""
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "init")]
        for k, _ in pairs:
            if k in self._values:
                raise UsageError(f"key {k!r} is already initialised")
        self._values.update(zip([k for k, _ in pairs], self._broadcast("init", pairs, 0), strict=True))

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sum the value (or list of values, one per device) over all processes, into the store. Collective.

        With several processes, it returns at once, and you may change the values. A thread performs the all-reduces,
        those of higher priority first; `pull` waits for those of its key. `pull` or `wait` raises the error of a failed
        push.

        Of a RowSparse, only its rows are sent; all processes must then push a RowSparse to the key. Without an updater,
        the other rows become 0.
        """
        priority = whole("push: priority", priority)
        for k, v in self._given(key, value, "push", known=True):
            waiting = self._pushed.setdefault(k, [])
            waiting[:] = [made for made in waiting if not made.done or made.error is not None]
            waiting.append(self._post(k, v, None, partial(self._keep, k), priority, later=True))

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """Return a copy of the stored value, or a list for a list of keys. Waits for earlier pushes to the key.

        Args:
            key: One key, or a list of keys.
            out: The array that the value is written to, or a list of arrays that all get it. For a list of keys: a list
                with one such entry per key. If given, `pull` returns it.

        Raises:
            UsageError: A key is not initialised, or the numbers of keys and arrays differ.
            InputError: An array has another shape than the value, has a dtype that cannot represent it, or is
                read-only.
        """
        keys, outs = self._to_write(key, out)
        self.wait(keys)
        found = [self._stored(k) for k in keys]
        if out is None:
            return outs.result([stored.copy() for stored in found])
        for place, stored in enumerate(found):
            outs.write(place, stored)
        return outs.result(found)

    def _to_write(self, key: Key | Sequence[Key], out: Any) -> tuple[list[Key], Outs]:
        """The keys of a pull, and the arrays that their stored values are written to."""
        keys, outs = keys_of(key), Outs(key, out)
        for place, k in enumerate(keys):
            stored = self._stored(k)
            outs.check(place, stored.dtype, stored.shape)
        return keys, outs

    def row_sparse_pull(self, key: Key | Sequence[Key], row_ids: Any, out: Any = None) -> Any:
        """Return some rows of the stored value, as a RowSparse with each row once, by ascending index.

        Waits as `pull` does.

        Args:
            key: One key, or a list of keys; then a list is returned.
            row_ids: A vector of integers; for a list of keys, one for each.
            out: An array with the shape of the whole value, or a list of arrays, of which only these rows are written.
                For a list of keys, one of these for each key.

        Raises:
            InputError: There is no such row.
        """
        keys, outs = self._to_write(key, out)
        found = self._rows_of(list(zip(keys, self._row_ids(key, keys, row_ids), strict=True)))
        for place, rows in enumerate(found):
            outs.write_rows(place, rows.indices, rows.values)
        return found[0] if is_one(key) else found

    def _row_ids(self, key: Key | Sequence[Key], keys: Sequence[Key], given: Any) -> list[np.ndarray]:
        """The requested rows of each key, each once, ascending. Raises InputError for rows that a key does not have."""
        vectors = [given] if is_one(key) else matched(keys, given, "index vector")
        return [wanted_rows(f"key {k!r}", self._stored(k).shape, v) for k, v in zip(keys, vectors, strict=True)]

    def _rows_of(self, wanted: Sequence[tuple[Key, np.ndarray]]) -> list[RowSparse]:
        """These rows of the stored values."""
        self.wait([key for key, _ in wanted])
        return [RowSparse(indices, self._stored(key)[indices]) for key, indices in wanted]

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """Call `push`, then `pull`. Without an updater, the keys need no `init`, and nothing is stored."""
        if self._updater is not None:
            self._to_write(key, out)
            self.push(key, value, priority)
            return self.pull(key, out)
        priority = whole("pushpull: priority", priority)
        pairs, outs = self._given(key, value, "pushpull", known=False), Outs(key, out)
        arrays = [array for _, array in pairs]
        for place, array in enumerate(arrays):
            outs.check(place, array.dtype, array.shape)
        into = [
            outs.only(at) if not outs.meets(at, arrays[:at] + arrays[at + 1 :]) else None for at in range(len(pairs))
        ]
        if len(pairs) == 1 and not isinstance(arrays[0], RowSparse):
            (k, array), action = pairs[0], self._sum(*pairs[0], into[0], _itself)
            how = self._operation(array, False)
            totals = [self._communicator.perform(f"sum {k!r}", [array], action, priority=priority, operation=how)]
        else:
            posted = [
                self._post(k, v, o, _itself, priority, later=False) for (k, v), o in zip(pairs, into, strict=True)
            ]
            totals = [made.wait() for made in posted]
        for place, total in enumerate(totals):
            outs.write(place, total)
        return outs.result(totals)

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        """Wait for earlier pushes to a key, to several keys, or to all. Raises the first error."""
        keys = list(self._pushed) if key is None else keys_of(key)
        for k in keys:
            self._stored(k)
        for k in keys:
            waiting = self._pushed.pop(k, None)
            for made in waiting or ():
                made.wait()

    def collectives(self, ordered: bool = False, device: str | None = None, staged: str = "") -> Buckets:
        """Return the collectives that a program uses. ordered: sum in the order of the ranks.

        device: device of the program in this process; every process must then make this call. If all processes have
        GPUs with NCCL, the GPUs sum directly, unless `staged` gives a reason against it.
        """
        if self.num_workers == 1 or device is None:
            return Buckets(self, ordered, staged=staged)
        if self._cards is None:
            from graphkit.dist.sums.joined import Cards

            self._cards = Cards(self._communicator, self.fingerprint)
        return Buckets(self, ordered, *self._cards.sums(device, staged))

    @property
    def messages(self) -> Messages:
        """Messages that send arrays from this process to another one, and receive them."""
        return self._communicator.messages

    def meet(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Wait until all processes have called it with arrays of the same types. All earlier pushes are then complete.

        Raises RanksDiffer if the fingerprints that the processes send with the call differ.
        """
        self.wait()
        self._communicator.flush()
        told = np.array(powers(self.fingerprint.number), np.int64)
        sums = self._communicator.perform(call, arrays, Sum(told, None, _itself, alone=True))
        self.fingerprint.check(sums, self.num_workers)

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise RanksDiffer in all processes unless `facts`, settings by name, are equal in all of them. Collective.

        what: name of the call in errors.
        """
        compare(self._communicator, what, facts)

    @property
    def known_bucket_bytes(self) -> int | None:
        """Bytes of a bucket as given or measured; None before the measurement."""
        return self._bucket_bytes

    def bucket_bytes(self, fixed: bool = False) -> int:
        """Return how many bytes of gradients are all-reduced together; equal in every process.

        It is the given number, or one for which the measured latency is a small part of the time of an all-reduce.
        fixed: do not measure.
        """
        if self._bucket_bytes is None and (fixed or self.num_workers == 1):
            return FIXED_BUCKET
        if self._bucket_bytes is None:
            self._bucket_bytes = int(self.broadcast("bucket_bytes", np.array(self._measured_bucket())))
        return self._bucket_bytes

    def _measured_bucket(self) -> int:
        """Bucket size from the times of a small and a larger all-reduce: time = latency + bytes / bandwidth
        (Hockney, 1994).
        """
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
        """Start the all-reduce of an array into `out`, which may be the same array.

        The array must not change until `wait` of the result returns; the sum is then there. Nothing is stored.

        Args:
            key: Name of the operation.
            array: The array.
            out: Where the sum is written.
            ordered: Sum in the order of the ranks, independent of MPI's own order.
            then: Called with the sum.
        """
        action = self._sum(key, array, out, _itself if then is None else then, ordered=ordered, alone=True)
        return self._communicator.post(f"sum of {key}", [array], action, operation=self._operation(array, ordered))

    def start_scattered_sum(
        self, key: str, array: np.ndarray, slices: Slices, ordered: bool, then: Callable[[np.ndarray], Any]
    ) -> Pending:
        """Start the reduce-scatter of a vector; the sum overwrites this process's slice of it."""
        if ordered:
            return self.start_sum(key, array, array, True, then)
        mine = slices.of_rank(self.rank)
        self._sent_bytes += array.nbytes

        def scatter() -> Any:
            array[mine] = self._communicator.reduce_scatter(array, slices.bounds)
            return then(array)

        return self._communicator.post(f"sum of {key}", [array], scatter, operation="by reduce-scatter")

    def start_gather(
        self, key: str, mine: np.ndarray, slices: Slices, then: Callable[[Sequence[np.ndarray]], Any]
    ) -> Pending:
        """Start the all-gather of every process's slice of a vector; `then` is called with the slices, by rank."""
        self._sent_bytes += mine.nbytes
        sizes = [(end - begin) * mine.itemsize for begin, end in itertools.pairwise(slices.bounds)]

        def gathered() -> Any:
            parts = self._communicator.allgather_parts(mine.view(np.uint8), sizes)
            return then([part.view(mine.dtype) for part in parts])

        # The same of all, whose slices differ in length.
        shown = np.broadcast_to(np.zeros((), mine.dtype), (slices.bounds[-1],))
        return self._communicator.post(f"gather {key}", [shown], gathered)

    def gather(self, key: Key, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes, which have one type, by rank along a new first axis. Collective."""
        key = checked_key(key)
        array = array_of(key, array)
        self._sent_bytes += array.nbytes
        action = partial(self._communicator.allgather, array)
        found: np.ndarray = self._communicator.perform(f"gathering of {key}", [array], action)
        return found

    def start_row_sum(self, key: str, rows: RowSparse, ordered: bool = False) -> Pending:
        """Start the sum of rows over all processes. You may change them at once; `wait` of the result returns the sum.

        ordered: sum in the order of the ranks, on whichever hosts they are.
        """
        return self._post_rows(f"sum of {key}", RowSum(rows, ordered), _itself)

    def _post_rows(
        self, call: str, rows: RowSum, then: Callable[[RowSparse], Any], priority: int = 0, later: bool = True
    ) -> Pending:
        self._sent_bytes += rows.sent_bytes

        def action() -> Any:
            return then(rows(self._communicator))

        how = "of rows, in the order of ranks" if rows.ordered else "of rows"
        return self._communicator.post(call, rows.types, action, priority=priority, later=later, operation=how)

    def _in_order(self, array: np.ndarray, out: np.ndarray | None, then: Callable[[np.ndarray], Any]) -> Any:
        first, *others = self._communicator.allgather(array)
        for part in others:
            first += part
        return then(placed(first, out))

    def broadcast(self, key: Key | Sequence[Key], value: Any, root: int = 0) -> Any:
        """Return the value of process `root`, or a list for a sequence of keys. Nothing is stored. Collective."""
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "broadcast")]
        root = whole(f"broadcast of {shown([k for k, _ in pairs])}: root", root, 0, self.num_workers - 1)
        found = self._broadcast(f"broadcast from rank {root} of", pairs, root)
        return found[0] if is_one(key) else found

    def barrier(self) -> None:
        """Wait until every process has called it. Earlier pushes are then complete."""
        self.wait()
        self._communicator.perform("barrier")

    def working(self) -> AbstractContextManager[None]:
        """Context of long work that other processes may wait for; it tells them that this process is not stalled."""
        return self._communicator.working()

    def running(self, code: str) -> AbstractContextManager[None]:
        """Context in which code of the user runs. If other processes wait for it too long, their error names `code`."""
        return self._communicator.running(code)

    def begin_step(self) -> None:
        """Count a step. Errors use the number to say where a process is."""
        self._communicator.steps += 1

    def set_updater(self, updater: Updater) -> None:
        """Let `updater(key, sum, stored)` change the stored values from now on. Collective: every process calls it.

        Earlier pushes complete first. Raises RanksDiffer if the processes pass different functions, compared by module
        and name.
        """
        self._set_updater("set_updater", updater, checked_updater(updater))

    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Update the stored values with an optimizer (see `gk.optim`), from the pushed gradients.

        Collective: every process calls it. Raises RanksDiffer if they pass different optimizers.
        """
        check_optimizer(optimizer)
        self._set_updater("set_optimizer", optimizer, optimizer.updater())

    def _set_updater(self, call: str, given: Any, updater: Updater) -> None:
        self.wait()
        self.compare(call, updater_facts(given))
        self._updater = updater

    def save_optimizer_states(self, path: str | Path) -> None:
        """Write slots and numbers of updates to a safetensors file, completely or not at all.

        Raises UsageError without an optimizer.
        """
        write_arrays(path_of("save_optimizer_states", path), self._stateful().states())

    def load_optimizer_states(self, path: str | Path) -> None:
        """Restore a file of `save_optimizer_states`. Collective: every process calls it.

        Raises InvalidModel if the file is damaged or of another optimizer, and RanksDiffer if processes read different
        files.
        """
        file = path_of("load_optimizer_states", path)
        updater, found = self._stateful(), read_arrays(file)
        self.compare("load_optimizer_states", arrays_facts(found))
        updater.restore(found)

    def _stateful(self) -> StatefulUpdater:
        updater = self._updater
        if not isinstance(updater, StatefulUpdater):
            raise UsageError("the store has no optimizer with states: call set_optimizer first")
        return updater

    def set_gradient_compression(self, options: str | Mapping[str, Any]) -> None:
        """Compress float32 arrays that are pushed from now on, equally in all processes.

        The part of a push that compression does not send (the residual) is added to the next push of its key.

        Args:
            options: {"type": "2bit", "threshold": 0.5}, {"type": "top_k", "ratio": 0.01}, "float16" or "bfloat16".

        Raises:
            UsageError: Other options, or a local store.
        """
        made = compression.create(options)
        if self.type == "local":
            raise UsageError(
                "a store of type 'local' sends nothing, so it has no compression; create a store of type 'dist_sync'"
            )
        self.wait()
        self._communicator.perform(f"set_gradient_compression({options!r})")
        self._compressed = CompressedSums(made, self._communicator)

    @property
    def compressing(self) -> tuple[int, ...]:
        """The ranks that compress float32 arrays and keep residuals: on several hosts, only the first rank of each."""
        levels = self._communicator.levels
        return tuple(range(self.num_workers)) if levels is None else levels.leading

    def residuals(self) -> dict[Key, np.ndarray]:
        """Return this process's residuals of gradient compression, vectors by key, for `restore_residuals`.

        Call `wait` first: earlier pushes must be complete.
        """
        return {} if self._compressed is None else self._compressed.residuals.copies()

    def restore_residuals(self, residuals: Mapping[Key, np.ndarray]) -> None:
        """Set the residuals of these keys, which are added to their next pushes.

        Raises UsageError without compression, and in processes that are not `compressing`; InputError for arrays that
        are not float32, or if a key has another size.
        """
        if not isinstance(residuals, Mapping):
            raise UsageError(f"residuals must be a dict of vectors by key, not {described(residuals)}")
        if self._compressed is None:
            raise UsageError("restore_residuals needs compression: call set_gradient_compression first")
        if residuals and self.rank not in self.compressing:
            raise UsageError(
                f"rank {self.rank} does not compress, so it has no residuals; rank {self.compressing[0]} does"
            )
        self._compressed.residuals.restore(residuals)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a KVStore holds a connection of this process and cannot be copied or pickled: call create() in each "
            "process"
        )

    def _stored(self, key: Key) -> np.ndarray:
        if key not in self._values:
            hint = did_you_mean(str(key), [str(k) for k in self._values])
            raise UsageError(f"key {key!r} is not initialised; call init({key!r}, value) first{hint}")
        return self._values[key]

    def _given(self, key: Key | Sequence[Key], value: Any, call: str, known: bool) -> list[tuple[Key, Any]]:
        """The sum for each key over the values given here. All are checked before any is sent."""
        return [(k, self._local_sum(k, v, known)) for k, v in pairs_of(key, value, call)]

    def _post(
        self,
        key: Key,
        array: np.ndarray | RowSparse,
        out: np.ndarray | None,
        then: Callable[[Any], Any],
        priority: int,
        later: bool,
    ) -> Pending:
        """All-reduce, into `out` if given, and call `then` with the sum."""
        if isinstance(array, RowSparse):
            return self._post_rows(f"sum {key!r}", RowSum(array), then, priority, later)
        action = self._sum(key, array, out, then, later=later)
        how = self._operation(array, False)
        return self._communicator.post(f"sum {key!r}", [array], action, priority=priority, later=later, operation=how)

    def _operation(self, array: np.ndarray, ordered: bool) -> str:
        """What a sum does, which ranks compare; "" for an all-reduce."""
        fewer = "compressed" if self._compressed is not None and array.dtype == np.float32 else ""
        return ", ".join(filter(None, (fewer, "in the order of ranks" if ordered else "")))

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
        in the order of the ranks; alone: see Sum. Raises InputError for elements that are not summed.
        """
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
            with self.working():
                self._updater(key, summed, stored)
        else:
            self._values[key] = summed.dense(len(stored)) if isinstance(summed, RowSparse) else summed

    def _local_sum(self, key: Key, value: Any, known: bool) -> np.ndarray | RowSparse:
        given = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(v, RowSparse) for v in given):
            rows = local_rows(f"key {key!r}", given, self._stored(key) if known else None)
            check_summed(key, rows.dtype)
            return rows
        values = [array_of(key, v) for v in given]
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
        """The root's arrays; `call` is its name in errors."""
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
        yield f"{quantity(len(values), 'key')}, {human(sum(value.nbytes for value in values))}"
        if self._updater is not None:
            yield f"updater {type(self._updater).__name__}"
        if self._compressed is not None:
            yield "compressed"


def _itself(total: Any) -> Any:
    return total
