"""A parameter server: it stores parts of keys, applies pushes, and answers pulls with values that are fresh enough.

The clock of a worker counts its finished steps. A request waits while its worker is more than `bound` steps ahead of
the slowest worker (stale synchronous parallel: Ho et al., NIPS 2013; bounded delay: Li et al., OSDI 2014). Elastic
averaging: Zhang, Choromanska, LeCun, NIPS 2015.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from graphkit.dist.arguments import Key
from graphkit.dist.collectives import compression
from graphkit.dist.collectives.row_sparse import RowSparse, rows_of
from graphkit.dist.wire.packing import pack, pack_named, unpack, unpack_named
from graphkit.errors import GraphkitError, InputError, RuntimeFailure, UsageError
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity, short_repr

# Forms of a pushed part: the whole array; compressed; nothing, for zeros; some rows, with indices that count from the
# first row of the part.
PLAIN, PACKED, ZERO, ROWS = 0, 1, 2, 3


@dataclass
class StoredPart:
    """Rows [begin, end) of a key. version: how often they have changed."""

    key: Key
    begin: int
    end: int
    value: np.ndarray
    version: int = 0


class _Request(NamedTuple):
    worker: int
    fields: Mapping[str, Any]
    arrays: list[np.ndarray]


Answers: TypeAlias = Iterator[tuple[int, np.ndarray]]


class Server:
    """The state of one server, independent of how messages are sent.

    `stalest` is the largest number of steps by which the slowest worker was behind a pulling worker.
    """

    def __init__(self, workers: int):
        self.ended = False
        self.stalest = 0
        self._workers = workers
        # Number of finished steps of each worker; infinity for one that has left.
        self._clocks = [0.0] * workers
        self._parts: dict[Key, StoredPart] = {}
        self._keys: list[dict[int, Key]] = [{} for _ in range(workers)]
        self._updater: Callable[[Key, Any, np.ndarray], Any] | None = None
        self._updater_given: np.ndarray | None = None
        self._compression: compression.Compression | None = None
        self._compression_given: str | dict[str, Any] | None = None
        # The first error of each worker's pushes, until the worker waits for an answer.
        self._errors: list[GraphkitError | None] = [None] * workers
        self._waiting: list[_Request] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling: an updater may contain compiled programs, so only its states are pickled."""
        state = dict(vars(self), _compression=None)
        if _has_states(self._updater):
            state["_updater"], state["_states"] = None, pack_named(self._stateful().states())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        states = state.pop("_states", None)
        vars(self).update(state)
        if self._compression_given is not None:
            self._compression = compression.create(self._compression_given)
        if states is not None:
            assert self._updater_given is not None, "states come from an updater"
            self._updater = _updater(self._updater_given)
            self._take_states(states)

    def handle(self, worker: int, message: np.ndarray) -> Answers:
        """Yield the answers to a message: to its sender, and to workers that waited for it."""
        return self.handle_unpacked(worker, *unpack(message))

    def handle_unpacked(
        self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray], answered_elsewhere: bool = False
    ) -> Answers:
        """Handle an unpacked message, as `handle` does.

        answered_elsewhere: Another server answers the request, which changes nothing. Only clock and keys are read.
        """
        self._keys[worker].update(dict(fields.get("names", ())))
        if "clock" in fields:
            self._clocks[worker] = math.inf if fields["clock"] is None else fields["clock"]
        if answered_elsewhere:
            pass
        elif self._must_wait(fields):
            self._waiting.append(_Request(worker, fields, [array.copy() for array in arrays]))
        elif (answer := self._answer(_Request(worker, fields, arrays))) is not None:
            yield worker, answer
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if self._must_wait(request.fields):
                self._waiting.append(request)
            elif (answer := self._answer(request)) is not None:
                yield request.worker, answer

    def has_failed(self, worker: int) -> bool:
        """Whether a push of the worker failed, and the worker has not received the error."""
        return self._errors[worker] is not None

    def forget(self, worker: int) -> None:
        self._waiting = [request for request in self._waiting if request.worker != worker]

    def _answer(self, request: _Request) -> np.ndarray | None:
        """Run a request and return the answer; None if its worker does not wait for one.

        If a worker does not wait for an answer, an error becomes the answer to its next request.
        """
        worker, call, asks = request.worker, request.fields["call"], request.fields["asks"]
        try:
            if asks and (earlier := self._errors[worker]) is not None:
                self._errors[worker] = None
                raise earlier
            answer = _CALLS[call](self, request)
            if answer is None:
                answer = pack({})
        except Exception as error:  # noqa: BLE001 - the worker gets it
            named = error if isinstance(error, GraphkitError) else _as_failure(call, error)
            answer = _error_answer(named)
            if not asks:
                self._errors[worker] = self._errors[worker] or named
        return answer if asks else None

    def _must_wait(self, fields: Mapping[str, Any]) -> bool:
        bound = fields.get("bound")
        return bound is not None and min(self._clocks) < fields["clock"] - bound

    def _stored(self, worker: int, number: int) -> StoredPart:
        key = self._keys[worker][number]
        if key not in self._parts:
            raise UsageError(f"key {key!r} is not initialised; call init({key!r}, value) first")
        return self._parts[key]

    # --- calls ------------------------------------------------------------------------------------

    def _init(self, request: _Request) -> None:
        for (number, begin, end), value in zip(request.fields["parts"], request.arrays, strict=True):
            key = self._keys[request.worker][number]
            if key in self._parts:
                raise UsageError(f"key {key!r} is already initialised")
            self._parts[key] = StoredPart(key, begin, end, value.copy())

    def _put(self, request: _Request) -> None:
        for number, value in zip(request.fields["parts"], request.arrays, strict=True):
            part = self._stored(request.worker, number)
            part.value = value.copy()
            part.version += 1

    def _push(self, request: _Request) -> None:
        given = iter(request.arrays)
        for number, form in request.fields["parts"]:
            part = self._stored(request.worker, number)
            gradient = self._gradient(part, form, given)
            part.version += 1
            if self._updater is None:
                part.value = gradient.dense(len(part.value)) if isinstance(gradient, RowSparse) else gradient.copy()
            else:
                self._updater(part.key, gradient, part.value)

    def _gradient(self, part: StoredPart, form: int, given: Iterator[np.ndarray]) -> np.ndarray | RowSparse:
        if form == ZERO:
            return np.zeros_like(part.value)
        sent = next(given)
        if form == ROWS:
            rows = RowSparse(sent, next(given))
            rows.check(f"key {part.key!r}", part.value)
            return rows
        if form == PLAIN:
            if sent.shape != part.value.shape or sent.dtype != part.value.dtype:
                raise InputError(
                    f"key {part.key!r} is {part.value.dtype}{list(part.value.shape)}; "
                    f"pushed {sent.dtype}{list(sent.shape)}"
                )
            return sent
        assert self._compression is not None, "all processes have set it"
        total = np.zeros(part.value.shape, np.float32)
        self._compression.add(sent, total.reshape(-1))
        return total

    def _pull(self, request: _Request) -> np.ndarray:
        """Return the parts that have changed since the version that the worker has."""
        versions, values = [], []
        for number, known in request.fields["parts"]:
            part = self._stored(request.worker, number)
            versions.append(part.version)
            if part.version != known:
                values.append(part.value)
        return pack({"versions": versions, "behind": self._behind(request.fields)}, values)

    def _pull_rows(self, request: _Request) -> np.ndarray:
        parts = [self._stored(request.worker, number) for number in request.fields["parts"]]
        wanted = zip(parts, request.arrays, strict=True)
        values = [rows_of(f"key {part.key!r}", part.value, indices).values for part, indices in wanted]
        return pack({"behind": self._behind(request.fields)}, values)

    def _averages(self, request: _Request) -> np.ndarray:
        parts = [self._stored(request.worker, number) for number in request.fields["parts"]]
        updater: Any = self._updater
        if not hasattr(updater, "average"):
            raise UsageError("the store keeps no moving averages: no optimizer with ema was set")
        return pack({}, [updater.average(part.key, part.value) for part in parts])

    def _behind(self, fields: Mapping[str, Any]) -> int:
        behind = 0
        if "clock" in fields and math.isfinite(slowest := min(self._clocks)):
            behind = max(0, int(fields["clock"] - slowest))
        self.stalest = max(self.stalest, behind)
        return behind

    def _elastic(self, request: _Request) -> np.ndarray:
        """Move the centre towards the worker's values by alpha times the difference. Return the moves, for the worker
        to subtract.
        """
        moves = []
        for number, value in zip(request.fields["parts"], request.arrays, strict=True):
            part = self._stored(request.worker, number)
            move = np.asarray(request.fields["alpha"], part.value.dtype) * (value - part.value)
            part.value += move
            part.version += 1
            moves.append(move)
        return pack({}, moves)

    def _set_updater(self, request: _Request) -> None:
        self._updater = _updater(request.arrays[0])
        self._updater_given = request.arrays[0].copy()

    def _set_compression(self, request: _Request) -> None:
        self._compression = compression.create(request.fields["options"])
        self._compression_given = request.fields["options"]

    def _call(self, request: _Request) -> np.ndarray:
        function, arguments = _unpickled(request.arrays[0], "the function")
        found = function({part.key: part.value for part in self._parts.values()}, *arguments)
        for part in self._parts.values():
            part.version += 1
        return pack({}, [np.frombuffer(pickle.dumps(found), np.uint8)])

    def _states(self, request: _Request) -> np.ndarray:
        return pack_named(self._stateful().states())

    def _restore(self, request: _Request) -> None:
        self._take_states(request.arrays[0])

    def _take_states(self, packed: np.ndarray) -> None:
        self._stateful().restore({name: array.copy() for name, array in unpack_named(packed).items()})

    def _stateful(self) -> Any:
        if not _has_states(self._updater):
            raise UsageError("the store has no optimizer with states: call set_optimizer first")
        return self._updater

    def _report(self, request: _Request) -> np.ndarray:
        return pack({"stalest": self.stalest})

    def _end(self, request: _Request) -> None:
        self.ended = True

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._workers} workers"
        yield quantity(len(self._parts), "key")
        if self.ended:
            yield "ended"


_CALLS: Mapping[str, Callable[[Server, _Request], np.ndarray | None]] = {
    "init": Server._init,
    "put": Server._put,
    "push": Server._push,
    "pull": Server._pull,
    "pull_rows": Server._pull_rows,
    "averages": Server._averages,
    "clock": Server._report,
    "elastic": Server._elastic,
    "updater": Server._set_updater,
    "compression": Server._set_compression,
    "function": Server._call,
    "states": Server._states,
    "restore": Server._restore,
    "wait": Server._report,
    "leave": Server._report,
    "end": Server._end,
}


def _updater(pickled: np.ndarray) -> Any:
    given = _unpickled(pickled, "the updater")
    return given.updater() if hasattr(given, "updater") else given


def _has_states(updater: Any) -> bool:
    return hasattr(updater, "states") and hasattr(updater, "restore")


def _unpickled(data: np.ndarray, what: str) -> Any:
    try:
        return pickle.loads(data.tobytes())
    except (AttributeError, ImportError) as error:
        raise UsageError(
            f"{what} does not exist on the servers ({error}): define it in a module, or above the line that creates "
            "the store, because servers run no line below it"
        ) from None


def _as_failure(call: str, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(f"{call} failed on a server: {type(error).__name__}: {error}")


def _error_answer(error: GraphkitError) -> np.ndarray:
    return pack({"error": [type(error).__name__, str(error)]})
