"""Arrays by key with equal values in all processes of a job; pushed values are all-reduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.dist.agreement import arrays_facts
from graphkit.dist.arguments import (
    Key,
    Outs,
    array_of,
    checked_integer,
    checked_key,
    is_one,
    keys_of,
    matched,
    pairs_of,
    path_of,
    shown,
)
from graphkit.dist.arrays import sum_in_order
from graphkit.dist.collectives import compression
from graphkit.dist.collectives.operations import check_summed
from graphkit.dist.collectives.row_sparse import RowSparse, local_rows, wanted_rows
from graphkit.dist.progress.pending import Pending
from graphkit.dist.transport import Transport
from graphkit.dist.updaters import (
    HasUpdater,
    StatefulUpdater,
    Updater,
    check_optimizer,
    checked_updater,
    updater_facts,
)
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.text import human, quantity, short_repr


class KVStore:
    """Arrays by key, shared by the processes of a job. Create one with `gk.kvstore.create`.

    `push` sums the values given for a key in all processes. Without an updater, the sum replaces the stored value.
    After `set_updater(f)`, f(key, sum, stored) is called instead, and changes `stored` in place. A key is an int or a
    string. `init`, `push`, `pull` and `broadcast` also take a sequence of keys with a sequence of values. "Collective"
    means that every process must make the call.

    Attributes:
        type: Type of the store, such as "dist_sync".
        transport: Connection between the processes, with the operations that MXNet's KVStore does not have.
    """

    is_remote = False

    def __init__(self, type: str, transport: Transport):
        self.type = type
        self.transport = transport
        self._values: dict[Key, np.ndarray] = {}
        self._updater: Updater | None = None
        # Pushes that may be pending, or whose error was not raised yet, by key.
        self._pushed: dict[Key, list[Pending]] = {}

    @property
    def rank(self) -> int:
        """Rank of this process among the workers, from 0."""
        return self.transport.rank

    @property
    def num_workers(self) -> int:
        """Number of processes that share the store, without servers."""
        return self.transport.size

    @property
    def local_rank(self) -> int:
        """Number of this process among the processes of the job on its host."""
        return self.transport.local_rank

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has contributed to collectives so far, after compression."""
        return self.transport.sent_bytes

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process exchanged with other hosts. Only one process of each host does so."""
        return self.transport.sent_between_hosts

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Create keys with initial values. All processes store the values of rank 0. Collective.

        Raises UsageError if a key already exists.
        """
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "init")]
        for k, _ in pairs:
            if k in self._values:
                raise UsageError(f"key {k!r} is already initialised")
        self._values.update(zip([k for k, _ in pairs], self._broadcast("init", pairs, 0), strict=True))

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sum the value (or list of values, one per device) over all processes, and update the store. Collective.

        With several processes, `push` returns at once, and you may overwrite the arrays that you passed. A thread
        performs the all-reduces, higher priority first; with `overlap="funnelled"`, `pull` or `wait` performs them.
        `pull` waits for the pushes to its key. If a push fails, `pull` or `wait` raises its error.
        A local store returns at once if all values are arrays of gk.nd. Otherwise, it returns after the update.

        If the value is a RowSparse, only its rows are sent, and all processes must push a RowSparse to that key.
        Without an updater, all other rows of the stored value become 0.
        """
        priority = checked_integer("push: priority", priority)
        for k, v in self._local_sums(key, value, "push", known=True):
            self._post_sum(k, v, priority)

    def _post_sum(self, key: Key, value: np.ndarray | RowSparse, priority: int) -> None:
        waiting = self._pushed.setdefault(key, [])
        waiting[:] = [p for p in waiting if not p.done or (p.error is not None and not p.reported)]
        pending = self.transport.post_sum(key, value, then=partial(self._apply_sum, key), priority=priority, later=True)
        waiting.append(pending)

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """Return a copy of the stored value, or a list for a list of keys. Waits for earlier pushes to the key.

        If a local store writes the value to arrays of gk.nd, `pull` returns at once.

        Args:
            key: One key, or a list of keys.
            out: The array that the value is written to, or a list of arrays that all get it. For a list of keys: a list
                with one such entry per key. If given, `pull` returns it.

        Raises:
            UsageError: A key is not initialised, or the numbers of keys and arrays differ.
            InputError: An array has another shape than the value, has a dtype that cannot represent it, or is
                read-only.
        """
        return self._write_pulled(*self._to_write(key, out))

    def _write_pulled(self, keys: Sequence[Key], outs: Outs) -> Any:
        self.wait(keys)
        found = [self._stored(k) for k in keys]
        if outs.given is None:
            return outs.result([stored.copy() for stored in found])
        for place, stored in enumerate(found):
            outs.write(place, stored)
        return outs.result(found)

    def _to_write(self, key: Key | Sequence[Key], out: Any) -> tuple[list[Key], Outs]:
        keys, outs = keys_of(key), Outs(key, out)
        for place, k in enumerate(keys):
            stored = self._stored(k)
            outs.check(place, stored.dtype, stored.shape)
        return keys, outs

    def row_sparse_pull(self, key: Key | Sequence[Key], row_ids: Any, out: Any = None) -> Any:
        """Return some rows of the stored value, as a RowSparse with each row once, by ascending index.

        Like `pull`, it waits for earlier pushes to the key.

        Args:
            key: One key, or a list of keys; then a list is returned.
            row_ids: A vector of integers; for a list of keys, a list with one vector per key.
            out: An array with the shape of the whole value, or a list of such arrays. Only the rows `row_ids` are
                written. For a list of keys: a list with one such entry per key.

        Raises:
            InputError: An index in `row_ids` is out of range.
        """
        keys, outs = self._to_write(key, out)
        found = self._rows_of(list(zip(keys, self._row_ids(key, keys, row_ids), strict=True)))
        for place, rows in enumerate(found):
            outs.write_rows(place, rows.indices, rows.values)
        return found[0] if is_one(key) else found

    def _row_ids(self, key: Key | Sequence[Key], keys: Sequence[Key], given: Any) -> list[np.ndarray]:
        """Return the requested rows of each key, sorted and unique. Raises InputError for rows that do not exist."""
        vectors = [given] if is_one(key) else matched(keys, given, "index vector")
        return [wanted_rows(f"key {k!r}", self._stored(k).shape, v) for k, v in zip(keys, vectors, strict=True)]

    def _rows_of(self, wanted: Sequence[tuple[Key, np.ndarray]]) -> list[RowSparse]:
        self.wait([key for key, _ in wanted])
        return [RowSparse(indices, self._stored(key)[indices]) for key, indices in wanted]

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """Call `push`, then `pull`, and return its result.

        Without an updater, return the sum of the values of all processes. The keys then need no `init`, and stored
        values do not change.
        """
        if self._updater is not None:
            self._to_write(key, out)
            self.push(key, value, priority)
            return self.pull(key, out)
        priority = checked_integer("pushpull: priority", priority)
        pairs, outs = self._local_sums(key, value, "pushpull", known=False), Outs(key, out)
        arrays = [array for _, array in pairs]
        for place, array in enumerate(arrays):
            outs.check(place, array.dtype, array.shape)
        others = [arrays[:at] + arrays[at + 1 :] for at in range(len(arrays))]
        into = [None if outs.may_overlap(at, other) else outs.only(at) for at, other in enumerate(others)]
        if len(pairs) == 1 and not isinstance(arrays[0], RowSparse):
            totals = [self.transport.sum(*pairs[0], into[0], priority)]
        else:
            started = [
                self.transport.post_sum(k, v, o, priority=priority) for (k, v), o in zip(pairs, into, strict=True)
            ]
            totals = [pending.wait() for pending in started]
        for place, total in enumerate(totals):
            outs.write(place, total)
        return outs.result(totals)

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        """Wait for earlier pushes to a key, to several keys, or to all.

        If a push failed, its error is raised. If several failed, each call raises the next error.
        """
        keys = list(self._pushed) if key is None else keys_of(key)
        for k in keys:
            self._stored(k)
        for k in keys:
            for pending in tuple(self._pushed.get(k, ())):
                if not pending.reported:  # each error is raised once, here or in `Transport.meet`
                    pending.wait()

    def gather(self, key: Key, array: np.ndarray) -> np.ndarray:
        """Stack the arrays of all processes, of equal shape and dtype, along a new first axis by rank. Collective."""
        key = checked_key(key)
        return self.transport.gather(key, array_of(key, array))

    def broadcast(self, key: Key | Sequence[Key], value: Any, root: int = 0) -> Any:
        """Return the value of process `root`, or a list for a sequence of keys. Nothing is stored. Collective."""
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "broadcast")]
        root = checked_integer(f"broadcast of {shown([k for k, _ in pairs])}: root", root, 0, self.num_workers - 1)
        found = self._broadcast(f"broadcast from rank {root} of", pairs, root)
        return found[0] if is_one(key) else found

    def barrier(self) -> None:
        """Wait until every process has called it. Earlier pushes are then complete."""
        self.wait()
        self.transport.barrier()

    def working(self) -> AbstractContextManager[None]:
        """Context manager for long work: tells processes that wait for this one that it is not stalled."""
        return self.transport.working()

    def begin_step(self) -> None:
        """Count a training step. Error messages give this number, to say how far each process is."""
        self.transport.begin_step()

    def set_updater(self, updater: Updater) -> None:
        """Let `updater(key, sum, stored)` change the stored values from now on. Collective: every process calls it.

        In a local store, `sum` and `stored` are arrays of gk.nd if the pushed values are, and otherwise numpy's arrays.
        Earlier pushes use the earlier updater. Raises RanksDiffer if the processes pass different functions, compared
        by module and name.
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
        self.transport.compare(call, updater_facts(given))
        self._updater = updater

    def save_optimizer_states(self, path: str | Path) -> None:
        """Write the optimizer states and the update counts of all keys to a safetensors file.

        If writing fails, an earlier file of this name stays unchanged. Raises UsageError without an optimizer.
        """
        write_arrays(path_of("save_optimizer_states", path), self._stateful().states())

    def load_optimizer_states(self, path: str | Path) -> None:
        """Restore a file of `save_optimizer_states`. Collective: every process calls it.

        Raises InvalidModel if the file is damaged or of another optimizer, and RanksDiffer if processes read different
        files.
        """
        file = path_of("load_optimizer_states", path)
        updater, found = self._stateful(), read_arrays(file)
        self.transport.compare("load_optimizer_states", arrays_facts(found))
        updater.restore(found)

    def _stateful(self) -> StatefulUpdater:
        updater = self._updater
        if not isinstance(updater, StatefulUpdater):
            raise UsageError("the store has no optimizer with states: call set_optimizer first")
        return updater

    def set_gradient_compression(self, options: str | Mapping[str, Any]) -> None:
        """Compress float32 arrays that are pushed from now on. Collective: every process passes the same options.

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
        self.transport.barrier(f"set_gradient_compression({options!r})")
        self.transport.compress(made)

    @property
    def compressing(self) -> tuple[int, ...]:
        """The ranks that compress float32 arrays and keep residuals.

        These are all ranks, or only the first rank of each host if the ranks of a host are summed first.
        """
        return self.transport.compressing

    def residuals(self) -> dict[Key, np.ndarray]:
        """Return this process's residuals of gradient compression, vectors by key, for `restore_residuals`.

        Call `wait` first: earlier pushes must be complete.
        """
        return self.transport.residuals()

    def restore_residuals(self, residuals: Mapping[Key, np.ndarray]) -> None:
        """Set the residuals of these keys. They are added to the next pushes of these keys.

        Raises UsageError without compression, and on ranks that are not in `compressing`. Raises InputError for arrays
        that are not float32, or that have another size than the key.
        """
        self.transport.restore_residuals(residuals)

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

    def _local_sums(self, key: Key | Sequence[Key], value: Any, call: str, known: bool) -> list[tuple[Key, Any]]:
        """Return each key with the sum of its values on this process. All values are checked before any is sent.

        known: whether the keys must be initialised.
        """
        return [(k, self._local_sum(k, v, known)) for k, v in pairs_of(key, value, call)]

    def _apply_sum(self, key: Key, summed: np.ndarray | RowSparse) -> None:
        stored = self._values[key]
        if self._updater is not None:
            with self.transport.working():
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
        check_pushed(key, values, self._stored(key) if known else values[0])
        return values[0] if len(values) == 1 else sum_in_order(values)

    def _broadcast(self, call: str, pairs: Sequence[tuple[Key, np.ndarray]], root: int) -> list[np.ndarray]:
        if not pairs:
            return []
        names = repr(pairs[0][0]) if len(pairs) == 1 else f"{len(pairs)} keys {', '.join(repr(k) for k, _ in pairs)}"
        return self.transport.broadcast(f"{call} {names}", [v for _, v in pairs], root)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.type)
        yield f"rank {self.rank} of {self.num_workers}"
        values = list(self._values.values())
        yield f"{quantity(len(values), 'key')}, {human(sum(value.nbytes for value in values))}"
        if self._updater is not None:
            yield f"updater {type(self._updater).__name__}"
        if self.transport.compresses:
            yield "compressed"


def check_pushed(key: Key, values: Sequence[Any], expected: Any) -> None:
    for v in values:
        if v.shape != expected.shape or v.dtype != expected.dtype:
            raise InputError(f"key {key!r} is {expected.dtype}{list(expected.shape)}; pushed {v.dtype}{list(v.shape)}")
    check_summed(key, expected.dtype)
