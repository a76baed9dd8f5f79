"""What a server does: it holds parts of keys, changes them by what workers push, and answers when that is fresh enough.

A worker's clock counts the steps that it has finished. A worker that is `bound` steps ahead of the slowest one gets its
answer when that one has come closer (stale synchronous parallel: Ho et al., NIPS 2013; bounded delay: Li et al., OSDI
2014). Elastic averaging: Zhang, Choromanska, LeCun, NIPS 2015.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphkit.dist.sums import compression
from graphkit.dist.sums.rows import RowSparse, rows_of
from graphkit.dist.wire.packing import pack, pack_named, unpack, unpack_named
from graphkit.errors import GraphkitError, InputError, RuntimeFailure, UsageError
from graphkit.text import quantity, short_repr

Key: TypeAlias = int | str

# How a part of a push travels: as it is, compressed, not at all as all of it is 0, or some rows, which are counted from
# the first of the part.
PLAIN, PACKED, ZERO, ROWS = 0, 1, 2, 3


@dataclass
class Held:
    """Rows [begin, end) of a key, and how often they have changed."""

    key: Key
    begin: int
    end: int
    value: np.ndarray
    version: int = 0


class _Deferred(NamedTuple):
    """A question whose answer waits for slower workers."""

    worker: int
    fields: Mapping[str, Any]
    arrays: list[np.ndarray]


# To whom, and what.
Answers: TypeAlias = Iterator[tuple[int, np.ndarray]]


class Server:
    """One server of so many workers, without the way that messages take: `handle` gives the answers to one.

    `stalest` is the largest number of steps by which an answer was behind the one who asked.
    """

    def __init__(self, workers: int):
        self.ended = False
        self.stalest = 0
        self._workers = workers
        # Steps that each has finished; infinite for one that takes no more.
        self._clocks = [0.0] * workers
        self._held: dict[Key, Held] = {}
        # By worker and number, the keys that it has named.
        self._named: list[dict[int, Key]] = [{} for _ in range(workers)]
        self._updater: Callable[[Key, Any, np.ndarray], Any] | None = None
        self._updater_given: np.ndarray | None = None  # as it came
        self._compression: compression.Compression | None = None
        self._compression_given: str | dict[str, Any] | None = None
        # What went wrong in pushes of a worker, until it asks something.
        self._errors: list[GraphkitError | None] = [None] * workers
        self._waiting: list[_Deferred] = []

    def __getstate__(self) -> dict[str, Any]:
        """All of it; of an updater with states, these, as it may hold programs of this process."""
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
            assert self._updater_given is not None, "a call has set it"
            self._updater = _updater(self._updater_given)
            self._take_states(states)

    def handle(self, worker: int, message: np.ndarray) -> Answers:
        """What is answered to a message: to its sender, and to those who waited for it."""
        return self.take(worker, *unpack(message))

    def take(
        self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray], answered_elsewhere: bool = False
    ) -> Answers:
        """The same of an unpacked message; not to its sender where another process sees to that."""
        self._named[worker].update(dict(fields.get("names", ())))
        if "clock" in fields:
            self._clocks[worker] = math.inf if fields["clock"] is None else fields["clock"]
        if answered_elsewhere:
            pass
        elif self._is_early(fields):
            self._waiting.append(_Deferred(worker, fields, [array.copy() for array in arrays]))
        elif (answer := self._answer(worker, fields, arrays)) is not None:
            yield worker, answer
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            if self._is_early(question.fields):
                self._waiting.append(question)
            elif (answer := self._answer(*question)) is not None:
                yield question.worker, answer

    def has_failed(self, worker: int) -> bool:
        """Whether the worker is to hear what its pushes did wrong."""
        return self._errors[worker] is not None

    def forget(self, worker: int) -> None:
        """No question of this worker's waits any longer."""
        self._waiting = [question for question in self._waiting if question.worker != worker]

    def _answer(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray | None:
        """Do what is asked; None where nobody waits for an answer, who is told with the next one what went wrong."""
        call, asks = fields["call"], fields["asks"]
        try:
            if asks and (earlier := self._errors[worker]) is not None:
                self._errors[worker] = None
                raise earlier
            answer = _CALLS[call](self, worker, fields, arrays)
        except Exception as error:  # noqa: BLE001 - the worker is told
            named = error if isinstance(error, GraphkitError) else _as_failure(call, error)
            answer = _refusal(named)
            if not asks:
                self._errors[worker] = self._errors[worker] or named
        return answer if asks else None

    def _is_early(self, fields: Mapping[str, Any]) -> bool:
        bound = fields.get("bound")
        return bound is not None and min(self._clocks) < fields["clock"] - bound

    def _part(self, worker: int, number: int) -> Held:
        key = self._named[worker][number]
        if key not in self._held:
            raise UsageError(f"key {key!r} is not initialised; call init({key!r}, value) first")
        return self._held[key]

    # --- calls ------------------------------------------------------------------------------------

    def _begun(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        for (number, begin, end), value in zip(fields["parts"], arrays, strict=True):
            key = self._named[worker][number]
            if key in self._held:
                raise UsageError(f"key {key!r} is already initialised")
            self._held[key] = Held(key, begin, end, value.copy())
        return pack({})

    def _put(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        for number, value in zip(fields["parts"], arrays, strict=True):
            held = self._part(worker, number)
            held.value = value.copy()
            held.version += 1
        return pack({})

    def _pushed(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        given = iter(arrays)
        for number, how in fields["parts"]:
            held = self._part(worker, number)
            gradient = self._gradient(held, how, given)
            held.version += 1
            if self._updater is None:
                held.value = gradient.dense(len(held.value)) if isinstance(gradient, RowSparse) else gradient.copy()
            else:
                self._updater(held.key, gradient, held.value)
        return pack({})

    def _gradient(self, held: Held, how: int, given: Iterator[np.ndarray]) -> np.ndarray | RowSparse:
        if how == ZERO:
            return np.zeros_like(held.value)
        sent = next(given)
        if how == ROWS:
            rows = RowSparse(sent, next(given))
            rows.check(f"key {held.key!r}", held.value)
            return rows
        if how == PLAIN:
            if sent.shape != held.value.shape or sent.dtype != held.value.dtype:
                raise InputError(
                    f"key {held.key!r} is {held.value.dtype}{list(held.value.shape)}; "
                    f"pushed {sent.dtype}{list(sent.shape)}"
                )
            return sent
        assert self._compression is not None, "all processes have chosen it"
        total = np.zeros(held.value.shape, np.float32)
        self._compression.add(sent, total.reshape(-1))
        return total

    def _pulled(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        """Values of parts that have changed since the version that the worker has."""
        versions, values = [], []
        for number, known in fields["parts"]:
            held = self._part(worker, number)
            versions.append(held.version)
            if held.version != known:
                values.append(held.value)
        return pack({"versions": versions, "behind": self._behind(fields)}, values)

    def _rows_pulled(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        """Some rows of parts, by indices that ascend."""
        parts = [self._part(worker, number) for number in fields["parts"]]
        values = [rows_of(f"key {p.key!r}", p.value, wanted).values for p, wanted in zip(parts, arrays, strict=True)]
        return pack({"behind": self._behind(fields)}, values)

    def _averages(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        """The moving averages of parts."""
        parts = [self._part(worker, number) for number in fields["parts"]]
        updater: Any = self._updater
        if not hasattr(updater, "average"):
            raise UsageError("the store keeps no moving averages: no optimizer with ema was set")
        return pack({}, [updater.average(part.key, part.value) for part in parts])

    def _behind(self, fields: Mapping[str, Any]) -> int:
        """By how many steps the slowest worker is behind the one who asks."""
        behind = 0
        if "clock" in fields and math.isfinite(slowest := min(self._clocks)):
            behind = max(0, int(fields["clock"] - slowest))
        self.stalest = max(self.stalest, behind)
        return behind

    def _drawn(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        """Move the centre and the worker's values towards each other: both by alpha times what is between them."""
        moves = []
        for number, value in zip(fields["parts"], arrays, strict=True):
            held = self._part(worker, number)
            move = np.asarray(fields["alpha"], held.value.dtype) * (value - held.value)
            held.value += move
            held.version += 1
            moves.append(move)
        return pack({}, moves)

    def _updates_by(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        self._updater = _updater(arrays[0])
        self._updater_given = arrays[0].copy()
        return pack({})

    def _compresses(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        self._compression = compression.create(fields["options"])
        self._compression_given = fields["options"]
        return pack({})

    def _called(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        """What a function of the user's makes of the parts, by key."""
        function, arguments = _unpickled(arrays[0], "the function")
        found = function({held.key: held.value for held in self._held.values()}, *arguments)
        for held in self._held.values():
            held.version += 1
        return pack({}, [np.frombuffer(pickle.dumps(found), np.uint8)])

    def _states(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        return pack_named(self._stateful().states())

    def _restored(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        self._take_states(arrays[0])
        return pack({})

    def _take_states(self, packed: np.ndarray) -> None:
        self._stateful().restore({name: array.copy() for name, array in unpack_named(packed).items()})

    def _stateful(self) -> Any:
        if not _has_states(self._updater):
            raise UsageError("the store has no optimizer with states: call set_optimizer first")
        return self._updater

    def _nothing(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        return pack({"stalest": self.stalest})

    def _end(self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
        self.ended = True
        return pack({})

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._workers} workers"
        yield quantity(len(self._held), "key")
        if self.ended:
            yield "ended"


_CALLS: Mapping[str, Callable[[Server, int, Mapping[str, Any], list[np.ndarray]], np.ndarray]] = {
    "init": Server._begun,
    "put": Server._put,
    "push": Server._pushed,
    "pull": Server._pulled,
    "pull_rows": Server._rows_pulled,
    "averages": Server._averages,
    "clock": Server._nothing,
    "elastic": Server._drawn,
    "updater": Server._updates_by,
    "compression": Server._compresses,
    "function": Server._called,
    "states": Server._states,
    "restore": Server._restored,
    "wait": Server._nothing,
    "leave": Server._nothing,
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
            "the "
            "store, where servers stop"
        ) from None


def _as_failure(call: str, error: Exception) -> RuntimeFailure:
    return RuntimeFailure(f"{call} failed on a server: {type(error).__name__}: {error}")


def _refusal(error: GraphkitError) -> np.ndarray:
    return pack({"error": [type(error).__name__, str(error)]})
