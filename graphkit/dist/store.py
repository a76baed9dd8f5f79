"""Arrays by key, held alike by all processes of a job, which add up what they push."""

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
from graphkit.text import human, short_repr

if TYPE_CHECKING:
    from graphkit.dist.sums.joined import Cards

# Bytes of a bucket where none are measured, and bounds where they are: as many as take so many latencies.
FIXED_BUCKET, _LEAST_BUCKET, _LARGEST_BUCKET = 4 << 20, 256 << 10, 64 << 20
_LATENCIES, _TRIALS = 20, 5


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
        self.fingerprint = Fingerprint()

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
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "init")]
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
        priority = whole("push: priority", priority)
        for k, v in self._given(key, value, "push", known=True):
            waiting = self._pushed.setdefault(k, [])
            waiting[:] = [made for made in waiting if not made.done or made.error is not None]
            waiting.append(self._post(k, v, None, partial(self._keep, k), priority, later=True))

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """Return a copy of the stored value; a list for a list of keys. Waits for what was pushed to the key before.

        Args:
            key: One key, or a list of keys.
            out: The array that the value is written to, or a list of arrays that all get it; for a list of keys, a
                list with one of these for each key. It is returned then.

        Raises:
            UsageError: A key is not initialised, or there are not as many arrays as keys.
            InputError: An array has another shape than the value, a dtype that does not take it, or is read-only.
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
        """Some rows of the stored value, a RowSparse with each of them once, by ascending index; waits as `pull` does.

        row_ids: a vector of integers; for a list of keys, one for each, and a list is returned. out: an array of the
        shape of the whole value, or a list of arrays, of which these rows are written and no others; for a list of
        keys, one of these for each key. Raises InputError where there is no such row.
        """
        keys, outs = self._to_write(key, out)
        found = self._rows_of(list(zip(keys, self._row_ids(key, keys, row_ids), strict=True)))
        for place, rows in enumerate(found):
            outs.write_rows(place, rows.indices, rows.values)
        return found[0] if is_one(key) else found

    def _row_ids(self, key: Key | Sequence[Key], keys: Sequence[Key], given: Any) -> list[np.ndarray]:
        """The rows of each key that are asked for, each once, ascending. Raises InputError for those that it lacks."""
        vectors = [given] if is_one(key) else matched(keys, given, "vectors of row indices")
        return [wanted_rows(f"key {k!r}", self._stored(k).shape, v) for k, v in zip(keys, vectors, strict=True)]

    def _rows_of(self, wanted: Sequence[tuple[Key, np.ndarray]]) -> list[RowSparse]:
        """These rows of the stored values."""
        self.wait([key for key, _ in wanted])
        return [RowSparse(indices, self._stored(key)[indices]) for key, indices in wanted]

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """`push`, then `pull`. Without an updater the keys need no `init`, and nothing is kept."""
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
        """Wait for what was pushed to a key, several, or all; raises the first error."""
        keys = list(self._pushed) if key is None else keys_of(key)
        for k in keys:
            self._stored(k)
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

            self._cards = Cards(self._communicator, self.fingerprint)
        return Buckets(self, ordered, *self._cards.sums(device, staged))

    @property
    def messages(self) -> Messages:
        """Arrays from this process to another one, and back."""
        return self._communicator.messages

    def meet(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Come to where all processes come, with arrays of the same types; all that was pushed is there then.

        Raises RanksDiffer where their fingerprints differ, which travel with the call.
        """
        self.wait()
        self._communicator.flush()
        told = np.array(powers(self.fingerprint.number), np.int64)
        sums = self._communicator.perform(call, arrays, Sum(told, None, _itself, alone=True))
        self.fingerprint.check(sums, self.num_workers)

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise RanksDiffer in all processes unless `facts`, settings by name, are the same in all of them.

        Every process has to call it. what: names the call in errors.
        """
        compare(self._communicator, what, facts)

    @property
    def known_bucket_bytes(self) -> int | None:
        """Bytes of a bucket as given, or as measured; None before they are measured."""
        return self._bucket_bytes

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
        return self._communicator.post(f"sum of {key}", [array], action, operation=self._operation(array, ordered))

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

        return self._communicator.post(f"sum of {key}", [array], scatter, operation="by reduce-scatter")

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

    def gather(self, key: Key, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, of one type, by rank along a new first axis."""
        key = checked_key(key)
        array = array_of(key, array)
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

        how = "of rows, in the order of ranks" if rows.ordered else "of rows"
        return self._communicator.post(call, rows.types, action, priority=priority, later=later, operation=how)

    def _in_order(self, array: np.ndarray, out: np.ndarray | None, then: Callable[[np.ndarray], Any]) -> Any:
        first, *others = self._communicator.allgather(array)
        for part in others:
            first += part
        return then(placed(first, out))

    def broadcast(self, key: Key | Sequence[Key], value: Any, root: int = 0) -> Any:
        """The value that process `root` holds; a list for a sequence of keys. Nothing is kept."""
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "broadcast")]
        root = whole(f"broadcast of {shown([k for k, _ in pairs])}: root", root, 0, self.num_workers - 1)
        found = self._broadcast(f"broadcast from rank {root} of", pairs, root)
        return found[0] if is_one(key) else found

    def barrier(self) -> None:
        """Wait until every process has come here; what was pushed before is done then."""
        self.wait()
        self._communicator.perform("barrier")

    def working(self) -> AbstractContextManager[None]:
        """What takes long, and other processes may wait for, goes on meanwhile: this process has not stalled."""
        return self._communicator.working()

    def running(self, code: str) -> AbstractContextManager[None]:
        """Code of the user's runs meanwhile, named by `code`; if it does not return while others wait, they name it."""
        return self._communicator.running(code)

    def begin_step(self) -> None:
        """Count a step, by which errors say where a process is."""
        self._communicator.steps += 1

    def set_updater(self, updater: Updater) -> None:
        """Let `updater(key, sum, stored)` change the stored values from now on. Every process calls it.

        What was pushed before is there then. Raises RanksDiffer where processes give different functions, by their
        module and name.
        """
        self._set_updater("set_updater", updater, checked_updater(updater))

    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Update the stored values by the gradients that are pushed, in all processes alike; see `gk.optim`.

        Every process calls it. Raises RanksDiffer where they give different optimizers.
        """
        check_optimizer(optimizer)
        self._set_updater("set_optimizer", optimizer, optimizer.updater())

    def _set_updater(self, call: str, given: Any, updater: Updater) -> None:
        self.wait()
        self.compare(call, updater_facts(given))
        self._updater = updater

    def save_optimizer_states(self, path: str | Path) -> None:
        """Write slots and counts of updates to a safetensors file, whole or not at all.

        Raises UsageError without an optimizer.
        """
        write_arrays(path_of("save_optimizer_states", path), self._stateful().states())

    def load_optimizer_states(self, path: str | Path) -> None:
        """Take over such a file. Every process calls it.

        Raises InvalidModel for a file that is damaged, or another optimizer's, and RanksDiffer where processes read
        different ones.
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
        if not isinstance(residuals, Mapping):
            raise UsageError(f"residuals must be a dict of vectors by key, not {described(residuals)}")
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

    def _given(self, key: Key | Sequence[Key], value: Any, call: str, known: bool) -> list[tuple[Key, Any]]:
        """The sum for each key over what is given here; all are looked at before any is sent."""
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
        """Sum over the processes, into `out` when given, and call `then` with it."""
        if isinstance(array, RowSparse):
            return self._post_rows(f"sum {key!r}", RowSum(array), then, priority, later)
        action = self._sum(key, array, out, then, later=later)
        how = self._operation(array, False)
        return self._communicator.post(f"sum {key!r}", [array], action, priority=priority, later=later, operation=how)

    def _operation(self, array: np.ndarray, ordered: bool) -> str:
        """What a sum does, for ranks to agree upon; "" for an all-reduce."""
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
