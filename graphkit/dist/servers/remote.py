"""A store whose values live on servers: each worker pushes and pulls when it comes to it, and waits for no other.

`dist_async`: as it comes. `dist_bounded`: a worker is at most `bound` steps ahead of what it reads of the slowest one.
`elastic`: workers train by themselves, and are drawn towards a centre on the servers.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from graphkit import errors
from graphkit.dist.arguments import Key, array_of, callable_of, keys_of, pairs_of, path_of, whole
from graphkit.dist.communicator import Communicator
from graphkit.dist.servers import rows
from graphkit.dist.servers.post import Post
from graphkit.dist.servers.server import PACKED, PLAIN, ROWS, ZERO
from graphkit.dist.servers.sharding import Part, Sharding
from graphkit.dist.store import KVStore
from graphkit.dist.sums import compression
from graphkit.dist.sums.buckets import Buckets
from graphkit.dist.sums.compressed import CompressedSums
from graphkit.dist.sums.rows import RowSparse
from graphkit.dist.updaters import HasUpdater, Updater, check_optimizer, checked_updater, updater_facts
from graphkit.dist.wire.packing import pack, pack_named, unpack
from graphkit.errors import GraphkitError, InputError, RuntimeFailure, UsageError
from graphkit.ir.types import dtype_of
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.text import human, quantity

# Bytes that a worker pushes without an answer from the servers.
WINDOW = 64 << 20

# Of `elastic`, what the authors found best.
ELASTIC_PERIOD, ELASTIC_STRENGTH = 10, 0.9


class _Spec(NamedTuple):
    """A key: its number, type, and where its parts are."""

    number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def cut(self, array: np.ndarray, part: Part) -> np.ndarray:
        return array if len(self.parts) == 1 else array[part.begin : part.end]


class RemoteStore(KVStore):
    """The workers' side. Keys, values and calls are those of KVStore, with these differences.

    `push` is applied when it reaches the server, alone and not summed with those of other workers; `pull` gives what
    is there once the own pushes before it are. bound: see the module, None for none. A step begins with `begin_step`;
    where only each `steps_per_push`-th of them pulls and pushes, the bound counts so many steps as one.
    `staleness` is the largest number of steps by which the slowest worker was behind in what this one has pulled.
    period and strength, of `elastic`: updates between two exchanges with the centre, and how far workers and centre
    move together in one, over all workers; tau and beta of Zhang, Choromanska and LeCun, NIPS 2015 (section 5.1).
    `sent_bytes` counts all that went to the servers, `waited_seconds` the time for which answers were awaited.
    """

    is_remote = True

    def __init__(
        self,
        type: str,
        communicator: Communicator,
        post: Post,
        bound: int | None = None,
        period: int = ELASTIC_PERIOD,
        strength: float = ELASTIC_STRENGTH,
    ):
        super().__init__(type, communicator)
        self._servers = post
        self._bound = bound
        self.steps_per_push = 1
        self.period, self.strength = period, strength
        self._sharding = Sharding(post.servers)
        self._specs: dict[Key, _Spec] = {}
        # Keys whose numbers a server knows.
        self._introduced: list[set[int]] = [set() for _ in range(post.servers)]
        # By key and server, the part that was pulled last, and its version.
        self._pulled: dict[tuple[Key, int], tuple[int, np.ndarray]] = {}
        self._turn = threading.RLock()
        # Bytes that were pushed since a server has answered.
        self._under_way = 0
        self.staleness = 0
        self.waited_seconds = 0.0

    # --- messages ---------------------------------------------------------------------------------

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes + self._servers.sent_bytes

    def _tell(self, server: int, keys: Sequence[Key], fields: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        numbers = {self._specs[k].number: k for k in keys}
        new = [[n, k] for n, k in numbers.items() if n not in self._introduced[server]]
        self._introduced[server].update(numbers)
        self._servers.send(server, pack({**fields, **({"names": new} if new else {})}, arrays))

    def _ask(
        self, call: str, keys: Sequence[Key], each: Mapping[int, tuple[Mapping[str, Any], Sequence[np.ndarray]]]
    ) -> dict[int, tuple[Any, list[np.ndarray]]]:
        """The answers to one message to each of these servers; raises what one of them refuses, or could not do."""
        with self._turn:
            for server, (fields, arrays) in each.items():
                self._tell(server, keys, {"call": call, "asks": True, **fields}, arrays)
            shown = f"{call} {keys[0]!r}" if len(keys) == 1 else f"{call} {len(keys)} keys" if keys else call
            start = time.monotonic()
            found = {
                s: unpack(a) for s, a in zip(each, self._servers.answers(list(each), f"{shown} (servers)"), strict=True)
            }
            self.waited_seconds += time.monotonic() - start
            self._under_way = 0
        for fields, _ in found.values():
            if isinstance(fields, dict) and "error" in fields:
                _raise(*fields["error"])
        return found

    def _ask_all(self, call: str, fields: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> list[Any]:
        """The same of all servers."""
        found = self._ask(call, [], dict.fromkeys(range(self._servers.servers), (fields, arrays)))
        return list(found.values())

    def _by_server(self, keys: Sequence[Key]) -> Iterator[tuple[int, list[tuple[Key, Part]]]]:
        """The parts of these keys, server by server."""
        found: dict[int, list[tuple[Key, Part]]] = {}
        for key in keys:
            for part in self._spec(key).parts:
                found.setdefault(part.server, []).append((key, part))
        yield from found.items()

    def _spec(self, key: Key) -> _Spec:
        if key not in self._specs:
            known = [str(k) for k in self._specs]
            raise UsageError(
                f"key {key!r} is not initialised; call init({key!r}, value) first{errors.did_you_mean(str(key), known)}"
            )
        return self._specs[key]

    # --- values -----------------------------------------------------------------------------------

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        pairs = [(k, array_of(k, v)) for k, v in pairs_of(key, value, "init")]
        for k, v in pairs:
            if k in self._specs:
                raise UsageError(f"key {k!r} is already initialised")
            _check_held(k, v.dtype)
        for k, v in pairs:
            parts = self._sharding.parts(k, v.size, len(v) if v.ndim else 1)
            self._specs[k] = _Spec(len(self._specs), v.dtype, v.shape, tuple(parts))
        self._place("init", dict(pairs))

    def put(self, values: Mapping[Any, np.ndarray]) -> None:
        """Replace stored values by rank 0's; every worker calls it."""
        self._place("put", values)

    def _place(self, call: str, values: Mapping[Any, np.ndarray]) -> None:
        if self.rank == 0:
            each = {}
            for server, parts in self._by_server(list(values)):
                arrays = [self._spec(key).cut(values[key], part) for key, part in parts]
                numbers = [self._spec(key).number for key, _ in parts]
                places = [[n, p.begin, p.end] for n, (_, p) in zip(numbers, parts, strict=True)]
                each[server] = {"parts": places if call == "init" else numbers}, arrays
            self._ask(call, list(values), each)
        self._communicator.perform(f"{call} {', '.join(map(repr, values))}", list(values.values()))

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Send the value (of a list, the sum) to where the key lives, and return. What fails is raised by what asks
        the servers next. Parts that are all 0 travel as a word, and of a RowSparse its rows, each once.
        """
        whole("push: priority", priority)
        given = dict(self._given(key, value, "push", known=True))
        self._under_way += sum(array.nbytes for array in given.values())
        for server, parts in self._by_server(list(given)):
            hows, arrays = [], []
            for k, part in parts:
                how, sent = self._sent(k, part, given[k])
                hows.append([self._spec(k).number, how])
                arrays += sent
            with self._turn:
                self._tell(server, [k for k, _ in parts], {"call": "push", "asks": False, "parts": hows}, arrays)
        if self._under_way > WINDOW:  # servers that are slower must not drown
            self._ask_all("wait", {})

    def _sent(self, key: Key, part: Part, given: np.ndarray | RowSparse) -> tuple[int, list[np.ndarray]]:
        """How what is pushed travels to a part, and what does."""
        if isinstance(given, RowSparse):
            return ROWS, rows.cut(given, part)
        spec = self._spec(key)
        array = spec.cut(given, part)
        if self._compressed is not None and array.dtype == np.float32:
            left = self._compressed.residuals.of(key, spec.size)
            if len(spec.parts) > 1:  # bounds of parts are those of rows
                left = left.reshape(spec.shape)[part.begin : part.end].reshape(-1)
            return PACKED, [self._compressed.compression.pack(np.ascontiguousarray(array).reshape(-1), left)]
        return (PLAIN, [array]) if array.any() else (ZERO, [])

    def pull(self, key: Key | Sequence[Key], out: Any = None) -> Any:
        """As of KVStore. What has not changed since the last pull is not sent again."""
        keys, outs = self._to_write(key, out)
        unique, each = list(dict.fromkeys(keys)), {}
        with self._turn:
            for server, parts in self._by_server(unique):
                known = [[self._spec(k).number, self._pulled.get((k, server), (-1,))[0]] for k, _ in parts]
                each[server] = {"parts": known}, ()
            answers = self._ask_in_time("pull", unique, each)
            for server, parts in self._by_server(unique):
                self._take(server, parts, *answers[server])
            found = [self._joined(k) for k in keys]
        if out is not None:
            for place, array in enumerate(found):
                outs.write(place, array)
        return outs.result(found)

    def _rows_of(self, wanted: Sequence[tuple[Key, np.ndarray]]) -> list[RowSparse]:
        """These rows, and no others, travel, each time."""
        each: dict[int, tuple[dict[str, Any], list[np.ndarray]]] = {}
        for key, indices in wanted:
            spec = self._spec(key)
            for part in spec.parts:
                fields, arrays = each.setdefault(part.server, ({"parts": []}, []))
                fields["parts"].append(spec.number)
                arrays.append(indices[rows.within(indices, part)] - part.begin)
        answers = self._ask_in_time("pull_rows", [key for key, _ in wanted], each)
        self.staleness = max([self.staleness, *(self._behind(fields) for fields, _ in answers.values())])
        values = {server: iter(arrays) for server, (_, arrays) in answers.items()}
        return [
            rows.joined(indices, parts, [next(values[part.server]) for part in parts])
            for key, indices in wanted
            for parts in [self._spec(key).parts]
        ]

    def _ask_in_time(
        self, call: str, keys: Sequence[Key], each: Mapping[int, tuple[Mapping[str, Any], Sequence[np.ndarray]]]
    ) -> dict[int, tuple[Any, list[np.ndarray]]]:
        """`_ask`, which waits for workers that are behind by more than the bound."""
        clock: dict[str, Any] = {"clock": self._finished}
        with self._turn:
            if self._bound is not None:
                for server in set(range(self._servers.servers)) - set(each):  # where others may wait for this one
                    self._tell(server, [], {"call": "clock", "asks": False, **clock}, ())
                clock["bound"] = self._bound * self.steps_per_push
            return self._ask(call, keys, {s: ({**fields, **clock}, arrays) for s, (fields, arrays) in each.items()})

    def _behind(self, fields: Any) -> int:
        """By how many steps an answer says that the slowest worker was behind."""
        return -(-int(fields["behind"]) // self.steps_per_push)

    @property
    def _finished(self) -> int:
        """Steps that are over, the one that has begun not among them."""
        return max(0, self._communicator.steps - 1)

    def _take(self, server: int, parts: Sequence[tuple[Key, Part]], fields: Any, arrays: Sequence[np.ndarray]) -> None:
        self.staleness = max(self.staleness, self._behind(fields))
        changed = iter(arrays)
        for (k, _), version in zip(parts, fields["versions"], strict=True):
            if self._pulled.get((k, server), (-1,))[0] != version:
                self._pulled[k, server] = version, next(changed)

    def _joined(self, key: Key) -> np.ndarray:
        spec = self._spec(key)
        parts = [self._pulled[key, part.server][1] for part in spec.parts]
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """`push`, then `pull`; of keys without `init`, the sum over all workers, of which nothing is kept."""
        if not any(k in self._specs for k in keys_of(key)):
            return super().pushpull(key, value, out, priority)
        self._to_write(key, out)
        self.push(key, value, priority)
        return self.pull(key, out)

    def exchange(self, values: Mapping[Any, np.ndarray], alpha: float) -> dict[Any, np.ndarray]:
        """Draw these values and the stored ones together, each by alpha of what is between them; the new values.

        Elastic averaging (Zhang, Choromanska, LeCun, NIPS 2015, equations 2 and 3).
        """
        each = {}
        for server, parts in self._by_server(list(values)):
            arrays = [self._spec(k).cut(values[k], part) for k, part in parts]
            each[server] = {"parts": [self._spec(k).number for k, _ in parts], "alpha": alpha}, arrays
        answers = self._ask("elastic", list(values), each)
        new = {k: np.array(v) for k, v in values.items()}
        for server, parts in self._by_server(list(values)):
            for (k, part), move in zip(parts, answers[server][1], strict=True):
                spec = self._spec(k)
                spec.cut(new[k], part)[...] -= move
        return new

    def wait(self, key: Key | Sequence[Key] | None = None) -> None:
        """Wait until all that was pushed has been applied; raises what failed. The step under way counts as over."""
        for k in () if key is None else keys_of(key):
            self._spec(k)
        self._ask_all("wait", {"clock": self._communicator.steps})

    def barrier(self) -> None:
        """As of KVStore. Workers that are on their way here do not wait for those who have come, whatever the bound."""
        if self._bound is not None:
            self._ask_all("wait", {"clock": None})
            self._communicator.perform("barrier")
        super().barrier()

    def leave(self) -> None:
        """This worker pushes and pulls no more; nobody waits for it from now on."""
        self._ask_all("leave", {"clock": None})

    def dismiss(self) -> None:
        """The servers end. One worker says so, once all have left."""
        self._ask_all("end", {})

    # --- what happens on the servers --------------------------------------------------------------

    def set_updater(self, updater: Updater) -> None:
        """`updater(key, gradient, stored)` changes stored values on the servers, which find it by its module and name.

        The parts of a large key, some rows each, are updated one by one.
        """
        self._set(checked_updater(updater), "set_updater")

    def set_optimizer(self, optimizer: HasUpdater) -> None:
        """Update the stored values on the servers by each gradient that is pushed; see `gk.optim`."""
        check_optimizer(optimizer)
        divided = [key for key, spec in self._specs.items() if len(spec.parts) > 1]
        if divided and not getattr(optimizer, "elementwise", True):
            raise UsageError(
                f"{getattr(optimizer, 'kind', type(optimizer).__name__)} takes norms of whole parameters, and key "
                f"{divided[0]!r} is divided among {self._servers.servers} servers: use one server, or another optimizer"
            )
        self._set(optimizer, "set_optimizer")

    def _set(self, updater: Any, call: str) -> None:
        self.compare(call, updater_facts(updater))
        if self.rank == 0:
            self._ask_all("updater", {}, [_pickled(updater)])
        self._communicator.perform(f"{call} of the servers")

    def call_servers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(values, *arguments)` returns on each server, `values` being its parts by key, to read or to
        change. It is found by its module and name; one worker's call is enough.
        """
        checked = callable_of("call_servers takes a function f(values, ...)", function)
        answers = self._ask_all("function", {}, [_pickled((checked, arguments))])
        return [pickle.loads(arrays[0].tobytes()) for _, arrays in answers]

    def set_gradient_compression(self, options: str | Mapping[str, Any]) -> None:
        """As of KVStore: of what is pushed."""
        made = compression.create(options)
        if self.rank == 0:
            self._ask_all("compression", {"options": options if isinstance(options, str) else dict(options)})
        self._communicator.perform(f"set_gradient_compression({options!r})")
        self._compressed = CompressedSums(made, self._communicator)

    @property
    def compressing(self) -> tuple[int, ...]:
        return tuple(range(self.num_workers))

    # --- states of the optimizer ------------------------------------------------------------------

    def averages(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """The moving averages of keys, of an optimizer that keeps them. Raises UsageError where there are none."""
        keys = keys_of(keys, "averages")
        by_server = dict(self._by_server(keys))
        each = {s: ({"parts": [self._spec(k).number for k, _ in parts]}, ()) for s, parts in by_server.items()}
        answers = self._ask("averages", keys, each)
        found: dict[Key, list[np.ndarray]] = {k: [] for k in keys}
        for server, parts in sorted(by_server.items()):  # as parts are in order of servers
            for (k, _), array in zip(parts, answers[server][1], strict=True):
                found[k].append(array)
        return [np.concatenate(arrays) if len(arrays) > 1 else arrays[0].copy() for arrays in found.values()]

    def optimizer_states(self) -> dict[str, np.ndarray]:
        """Of all servers, whole, as `save_optimizer_states` writes them."""
        parts: dict[str, list[np.ndarray]] = {}
        for names, arrays in self._ask_all("states", {}):
            for name, array in zip(names, arrays, strict=True):
                parts.setdefault(name, []).append(array)
        shapes = {_state_name(key): spec for key, spec in self._specs.items()}
        found = {}
        for name, arrays in parts.items():
            spec = shapes[name.rpartition("/")[0]]
            whole = len(spec.parts) == 1 or not arrays[0].shape
            found[name] = arrays[0] if whole else np.concatenate(arrays)
        return found

    def restore_optimizer_states(self, states: Mapping[str, np.ndarray]) -> None:
        """Take over such states, rank 0's; every worker calls it. Raises InvalidModel for another optimizer's."""
        if self.rank == 0:
            each: dict[int, dict[str, np.ndarray]] = {server: {} for server in range(self._servers.servers)}
            for key, spec in self._specs.items():
                start = f"{_state_name(key)}/"
                mine = {name: array for name, array in states.items() if name.rpartition("/")[0] + "/" == start}
                for part in spec.parts:
                    each[part.server] |= {n: a if not a.shape else spec.cut(a, part) for n, a in mine.items()}
            self._ask("restore", [], {s: ({}, [pack_named(arrays)]) for s, arrays in each.items()})
        self._communicator.perform("restore_optimizer_states")

    def save_optimizer_states(self, path: str | Path) -> None:
        write_arrays(path_of("save_optimizer_states", path), self.optimizer_states())

    def load_optimizer_states(self, path: str | Path) -> None:
        self.restore_optimizer_states(read_arrays(path_of("load_optimizer_states", path)))

    # --- what there is not ------------------------------------------------------------------------

    def collectives(self, ordered: bool = False, device: str | None = None, staged: str = "") -> Buckets:
        raise UsageError(f"a {self.type!r} store does not sum gradients inside a program; push them")

    def _stored(self, key: Key) -> np.ndarray:
        spec = self._spec(key)
        return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)

    def _facts(self) -> Iterator[str]:
        yield repr(self.type)
        yield f"rank {self.rank} of {self.num_workers}"
        yield quantity(self._servers.servers, "server")
        specs = list(self._specs.values())
        yield f"{quantity(len(specs), 'key')}, {human(sum(spec.size * spec.dtype.itemsize for spec in specs))}"
        yield f"staleness {self.staleness}" + ("" if self._bound is None else f" of {self._bound}")


def _check_held(key: Key, dtype: np.dtype[Any]) -> None:
    """Raise InputError for a dtype that servers do not hold."""
    with contextlib.suppress(GraphkitError):
        if dtype.kind != "S":
            dtype_of(dtype)
            return
    raise InputError(f"key {key!r}: servers store numbers, booleans and strings, not {dtype}")


def _state_name(key: Key) -> str:
    """What states of a key begin with, as an optimizer's updater names them."""
    return f"{'i' if isinstance(key, int) else 's'}:{key}"


def _pickled(given: Any) -> np.ndarray:
    try:
        return np.frombuffer(pickle.dumps(given), np.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"functions for servers must be importable by module and name, and values must be picklable: {error}"
        ) from None


def _raise(kind: str, text: str) -> NoReturn:
    cls = getattr(errors, kind, RuntimeFailure)
    raise cls(text)
