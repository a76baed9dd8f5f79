"""A store whose values are on servers. Each worker pushes and pulls on its own.

With `dist_async`, a pull returns the present values of the servers. With `dist_bounded`, a pull waits until the slowest
worker is at most `bound` steps behind. With `elastic`, each worker trains its own parameters by elastic averaging with
a centre variable on the servers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.dist.arguments import Key, array_of, callable_of, checked_integer, keys_of, pairs_of, path_of
from graphkit.dist.collectives import compression
from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.servers.client import Message, ServerClient
from graphkit.dist.servers.connection import ServerConnection
from graphkit.dist.servers.server import PACKED, PLAIN, ROWS, ZERO
from graphkit.dist.servers.sharding import Part, cut_rows, join_rows, rows_within
from graphkit.dist.store import KVStore
from graphkit.dist.transport import Transport
from graphkit.dist.updaters import HasUpdater, Updater, check_optimizer, checked_updater, updater_facts
from graphkit.dist.wire.packing import pack_named
from graphkit.errors import GraphkitError, InputError, UsageError
from graphkit.ir.types import dtype_of
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.text import human, quantity

# Bytes that a worker pushes before it waits for an answer.
WINDOW = 64 << 20

ELASTIC_PERIOD, ELASTIC_STRENGTH = 10, 0.9


class RemoteStore(KVStore):
    """A server applies each push alone, without summing over workers. The values that `pull` returns include this
    worker's earlier pushes.

    Args:
        bound: For `dist_bounded`: steps that this worker may be ahead of the slowest one, counted by `begin_step`.
        period: For `elastic`: updates between two exchanges with the centre variable; tau of Zhang, Choromanska and
            LeCun, NIPS 2015 (section 5.1).
        strength: For `elastic`: moving rate; beta of the same paper.

    Attributes:
        steps_per_push: Number of steps between two pushes, more than 1 for accumulated gradients. `bound` and
            `staleness` count them as one.
        staleness: Largest number of steps by which the slowest worker was behind at a pull.
    """

    is_remote = True

    def __init__(
        self,
        type: str,
        transport: Transport,
        connection: ServerConnection,
        bound: int | None = None,
        period: int = ELASTIC_PERIOD,
        strength: float = ELASTIC_STRENGTH,
    ):
        super().__init__(type, transport)
        self.period, self.strength = period, strength
        self.steps_per_push = 1
        self.staleness = 0
        self._client = ServerClient(connection)
        self._bound = bound
        self._pulled: dict[tuple[Key, int], tuple[int, np.ndarray]] = {}

    @property
    def sent_bytes(self) -> int:
        return self.transport.sent_bytes + self._client.sent_bytes

    @property
    def waited_seconds(self) -> float:
        return self._client.waited_seconds

    # --- values -----------------------------------------------------------------------------------

    def is_initialised(self, key: Key) -> bool:
        return key in self._client.specs

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "init")]
        for k, v in pairs:
            if self.is_initialised(k):
                raise UsageError(f"key {k!r} is already initialised")
            _check_storable(k, v.dtype)
        for k, v in pairs:
            self._client.declare(k, v.dtype, v.shape)
        self._place("init", dict(pairs))

    def put(self, values: Mapping[Any, np.ndarray]) -> None:
        """Collective: replace stored values by those of rank 0."""
        self._place("put", values)

    def _place(self, call: str, values: Mapping[Any, np.ndarray]) -> None:
        if self.rank == 0:
            messages: dict[int, Message] = {}
            for server, parts in self._client.parts_by_server(list(values)).items():
                arrays = [self._client.spec(key).cut(values[key], part) for key, part in parts]
                numbers = self._client.numbers(parts)
                places = [[n, p.begin, p.end] for n, (_, p) in zip(numbers, parts, strict=True)]
                messages[server] = {"parts": places if call == "init" else numbers}, arrays
            self._client.ask(call, list(values), messages)
        self.transport.barrier(f"{call} {', '.join(map(repr, values))}", list(values.values()))

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Send the value (or the sum of a list of values) to the servers.

        Returns without waiting for the servers, unless more than WINDOW bytes are unanswered. The next call that waits
        raises the error of a failed push. Parts of zeros are not sent, unless they are compressed. Each row of a
        RowSparse is sent once.
        """
        checked_integer("push: priority", priority)
        given = dict(self._local_sums(key, value, "push", known=True))
        self._client.unanswered_bytes += sum(array.nbytes for array in given.values())
        for server, parts in self._client.parts_by_server(list(given)).items():
            forms, arrays = [], []
            for k, part in parts:
                form, sent = self._encoded(k, part, given[k])
                forms.append([self._client.spec(k).number, form])
                arrays += sent
            fields = {"call": "push", "asks": False, "parts": forms}
            with self._client.lock:
                self._client.send(server, [k for k, _ in parts], fields, arrays)
        if self._client.unanswered_bytes > WINDOW:  # the queues of slow servers must not grow without bound
            self._client.ask_all("wait")

    def _encoded(self, key: Key, part: Part, given: np.ndarray | RowSparse) -> tuple[int, list[np.ndarray]]:
        if isinstance(given, RowSparse):
            return ROWS, cut_rows(given, part)
        spec = self._client.spec(key)
        array = spec.cut(given, part)
        compressed = self.transport.compressed
        if compressed is not None and array.dtype == np.float32:
            residual = compressed.residuals.of(key, spec.size)
            if len(spec.parts) > 1:
                residual = residual.reshape(spec.shape)[part.begin : part.end].reshape(-1)
            return PACKED, [compressed.compression.pack(np.ascontiguousarray(array).reshape(-1), residual)]
        return (PLAIN, [array]) if array.any() else (ZERO, [])

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """Return stored values, as KVStore does. Unchanged values are not sent again."""
        keys, outs = self._to_write(key, out)
        unique = list(dict.fromkeys(keys))
        by_server = self._client.parts_by_server(unique)
        messages: dict[int, Message] = {}
        with self._client.lock:
            for server, parts in by_server.items():
                known = [[self._client.spec(k).number, self._pulled.get((k, server), (-1,))[0]] for k, _ in parts]
                messages[server] = {"parts": known}, ()
            answers = self._ask_within_bound("pull", unique, messages)
            for server, parts in by_server.items():
                self._take(server, parts, *answers[server])
            found = [self._joined(k) for k in keys]
        if out is not None:
            for place, array in enumerate(found):
                outs.write(place, array)
        return outs.result(found)

    def _take(self, server: int, parts: Sequence[tuple[Key, Part]], fields: Any, arrays: Sequence[np.ndarray]) -> None:
        self.staleness = max(self.staleness, self._behind(fields))
        changed = iter(arrays)
        for (k, _), version in zip(parts, fields["versions"], strict=True):
            if self._pulled.get((k, server), (-1,))[0] != version:
                self._pulled[k, server] = version, next(changed)

    def _joined(self, key: Key) -> np.ndarray:
        parts = [self._pulled[key, part.server][1] for part in self._client.spec(key).parts]
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def _rows_of(self, wanted: Sequence[tuple[Key, np.ndarray]]) -> list[RowSparse]:
        """Return these rows. Servers send only these rows. Each call sends them again, even if they are unchanged."""
        messages: dict[int, tuple[dict[str, Any], list[np.ndarray]]] = {}
        for key, indices in wanted:
            spec = self._client.spec(key)
            for part in spec.parts:
                fields, arrays = messages.setdefault(part.server, ({"parts": []}, []))
                fields["parts"].append(spec.number)
                arrays.append(indices[rows_within(indices, part)] - part.begin)
        answers = self._ask_within_bound("pull_rows", [key for key, _ in wanted], messages)
        self.staleness = max([self.staleness, *(self._behind(fields) for fields, _ in answers.values())])
        values = {server: iter(arrays) for server, (_, arrays) in answers.items()}
        return [
            join_rows(indices, parts, [next(values[part.server]) for part in parts])
            for key, indices in wanted
            for parts in [self._client.spec(key).parts]
        ]

    def _ask_within_bound(
        self, call: str, keys: Sequence[Key], messages: Mapping[int, Message]
    ) -> dict[int, tuple[Any, list[np.ndarray]]]:
        """Ask servers, which answer once the slowest worker is within the bound."""
        clock: dict[str, Any] = {"clock": max(0, self.transport.steps - 1)}  # the current step is not finished
        with self._client.lock:
            if self._bound is not None:
                # Servers without a request need the clock, too: they would otherwise delay faster workers.
                for server in set(range(self._client.servers)) - set(messages):
                    self._client.send(server, [], {"call": "clock", "asks": False, **clock}, ())
                clock["bound"] = self._bound * self.steps_per_push
            timed = {server: ({**fields, **clock}, arrays) for server, (fields, arrays) in messages.items()}
            return self._client.ask(call, keys, timed)

    def _behind(self, fields: Any) -> int:
        return -(-int(fields["behind"]) // self.steps_per_push)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """Call `push`, then `pull`. For keys without `init`, return the sum over all workers and store nothing."""
        if not any(k in self._client.specs for k in keys_of(key)):
            return super().pushpull(key, value, out, priority)
        self._to_write(key, out)
        self.push(key, value, priority)
        return self.pull(key, out)

    def exchange(self, values: Mapping[Any, np.ndarray], alpha: float) -> dict[Any, np.ndarray]:
        """Move given and stored values towards each other by alpha times their difference. Return the new values.

        Elastic averaging (Zhang, Choromanska, LeCun, NIPS 2015, equations 2 and 3).
        """
        messages: dict[int, Message] = {}
        by_server = self._client.parts_by_server(list(values))
        for server, parts in by_server.items():
            arrays = [self._client.spec(k).cut(values[k], part) for k, part in parts]
            messages[server] = {"parts": self._client.numbers(parts), "alpha": alpha}, arrays
        answers = self._client.ask("elastic", list(values), messages)
        new = {k: np.array(v) for k, v in values.items()}
        for server, parts in by_server.items():
            for (k, part), move in zip(parts, answers[server][1], strict=True):
                self._client.spec(k).cut(new[k], part)[...] -= move
        return new

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        """Wait until the servers have applied all pushes of this worker; raise the first error of a push.

        The servers then count this worker's current step as finished.
        """
        for k in () if key is None else keys_of(key):
            self._client.spec(k)
        self._client.ask_all("wait", {"clock": self.transport.steps})

    def barrier(self) -> None:
        """Wait until every worker has called it. Workers that wait here do not delay others."""
        if self._bound is not None:
            self._client.ask_all("wait", {"clock": None})
            self.transport.barrier()
        super().barrier()

    def leave(self) -> None:
        self._client.ask_all("leave", {"clock": None})

    # --- functions that run on servers ------------------------------------------------------------

    def set_updater(self, updater: Updater) -> None:
        """Collective: let `updater(key, gradient, stored)` change stored values on the servers.

        Servers import the function by its module and name. Large keys are updated part by part: ranges of rows.
        """
        self._set("set_updater", checked_updater(updater))

    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Collective: update the stored values on the servers by each pushed gradient; see `gk.optim`."""
        check_optimizer(optimizer)
        divided = [key for key, spec in self._client.specs.items() if len(spec.parts) > 1]
        if divided and not getattr(optimizer, "elementwise", True):
            raise UsageError(
                f"{getattr(optimizer, 'kind', type(optimizer).__name__)} takes norms of whole parameters, and key "
                f"{divided[0]!r} is divided among {self._client.servers} servers: use one server, or another optimizer"
            )
        self._set("set_optimizer", optimizer)

    def _set(self, call: str, updater: Any) -> None:
        self.transport.compare(call, updater_facts(updater))
        if self.rank == 0:
            self._client.ask_all("updater", arrays=[_pickled(updater)])
        self.transport.barrier(f"{call} of the servers")

    def call_servers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return `function(values, *arguments)` of each server; one worker's call is enough.

        `values` are the server's parts by key, which the function may change. Servers import the function by module and
        name.
        """
        checked = callable_of("call_servers takes a function f(values, ...)", function)
        answers = self._client.ask_all("function", arrays=[_pickled((checked, arguments))])
        return [pickle.loads(arrays[0].tobytes()) for _, arrays in answers]

    def set_gradient_compression(self, options: str | Mapping[str, Any]) -> None:
        """Compress float32 arrays that are pushed from now on, as KVStore does. Pulled values are not compressed."""
        made = compression.create(options)
        if self.rank == 0:
            plain = options if isinstance(options, str) else dict(options)
            self._client.ask_all("compression", {"options": plain})
        self.transport.barrier(f"set_gradient_compression({options!r})")
        self.transport.compress(made)

    # --- states of the optimizer ------------------------------------------------------------------

    def averages(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """Return the moving averages of keys. Raises UsageError if the optimizer keeps none."""
        keys = keys_of(keys, "averages")
        by_server = self._client.parts_by_server(keys)
        messages: dict[int, Message] = {s: ({"parts": self._client.numbers(p)}, ()) for s, p in by_server.items()}
        answers = self._client.ask("averages", keys, messages)
        found: dict[Key, list[np.ndarray]] = {k: [] for k in keys}
        for server, parts in sorted(by_server.items()):
            for (k, _), array in zip(parts, answers[server][1], strict=True):
                found[k].append(array)
        return [np.concatenate(arrays) if len(arrays) > 1 else arrays[0].copy() for arrays in found.values()]

    def optimizer_states(self) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {}
        for names, arrays in self._client.ask_all("states"):
            for name, array in zip(names, arrays, strict=True):
                parts.setdefault(name, []).append(array)
        specs = {_state_name(key): spec for key, spec in self._client.specs.items()}
        found = {}
        for name, arrays in parts.items():
            undivided = len(specs[name.rpartition("/")[0]].parts) == 1 or not arrays[0].shape
            found[name] = arrays[0] if undivided else np.concatenate(arrays)
        return found

    def restore_optimizer_states(self, states: Mapping[str, np.ndarray]) -> None:
        """Collective: restore the states of rank 0. Raises InvalidModel for another optimizer's states."""
        if self.rank == 0:
            by_server: dict[int, dict[str, np.ndarray]] = {server: {} for server in range(self._client.servers)}
            for key, spec in self._client.specs.items():
                start = _state_name(key)
                mine = {name: array for name, array in states.items() if name.rpartition("/")[0] == start}
                for part in spec.parts:
                    by_server[part.server] |= {n: a if not a.shape else spec.cut(a, part) for n, a in mine.items()}
            self._client.ask("restore", [], {s: ({}, [pack_named(arrays)]) for s, arrays in by_server.items()})
        self.transport.barrier("restore_optimizer_states")

    def save_optimizer_states(self, path: str | Path) -> None:
        write_arrays(path_of("save_optimizer_states", path), self.optimizer_states())

    def load_optimizer_states(self, path: str | Path) -> None:
        self.restore_optimizer_states(read_arrays(path_of("load_optimizer_states", path)))

    def _stored(self, key: Key) -> np.ndarray:
        """Return zeros of the key's type, which take no memory, for the checks of KVStore."""
        spec = self._client.spec(key)
        return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)

    def _facts(self) -> Iterator[str]:
        yield repr(self.type)
        yield f"rank {self.rank} of {self.num_workers}"
        yield quantity(self._client.servers, "server")
        specs = list(self._client.specs.values())
        yield f"{quantity(len(specs), 'key')}, {human(sum(spec.size * spec.dtype.itemsize for spec in specs))}"
        yield f"staleness {self.staleness}" + ("" if self._bound is None else f" of {self._bound}")


def _check_storable(key: Key, dtype: np.dtype[Any]) -> None:
    with contextlib.suppress(GraphkitError):
        if dtype.kind != "S":
            dtype_of(dtype)
            return
    raise InputError(f"key {key!r}: servers store numbers, booleans and strings, not {dtype}")


def _state_name(key: Key) -> str:
    return f"{'i' if isinstance(key, int) else 's'}:{key}"


def _pickled(value: Any) -> np.ndarray:
    try:
        return np.frombuffer(pickle.dumps(value), np.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"functions for servers must be importable by module and name, and values must be picklable: {error}"
        ) from None
