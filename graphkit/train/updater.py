"""The updater of an optimizer that a KVStore calls for pushed gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from graphkit.dist.collectives.row_sparse import RowSparse, total
from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.text import quantity, short_repr
from graphkit.train import states
from graphkit.train.average import AVERAGE, EMA
from graphkit.train.states import Optimizer

if TYPE_CHECKING:
    from graphkit.executor.run.session import Executor

Key = int | str


@dataclass(frozen=True)
class KeyedOptimizer:
    """An optimizer for `KVStore.set_optimizer`, with its own learning rate and weight decay for each key of the store.

    Attributes:
        optimizer: The optimizer.
        rates: Factors on the learning rate by key (default: 1).
        decays: Factors on the weight decay by key (default: 1).
        ema: Moving average of the value of each key, or None.
    """

    optimizer: Optimizer
    rates: Mapping[Key, float] = field(default_factory=dict)
    decays: Mapping[Key, float] = field(default_factory=dict)
    ema: EMA | None = None

    @property
    def kind(self) -> str:
        return self.optimizer.kind

    @property
    def elementwise(self) -> bool:
        return self.optimizer.elementwise

    def updater(self) -> OptimizerUpdater:
        return OptimizerUpdater(self.optimizer, self.decays, rates=self.rates, ema=self.ema)


class OptimizerUpdater:
    """Updates the value of a key by a gradient, with its own slots and count of updates.

    Args:
        decay: Factors on the weight decay by key (default: 1).
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        rates: Factors on the learning rate by key (default: 1).
        ema: If given, each key has a moving average, which starts at the value before the first update.
    """

    runs_in_background = True

    def __init__(
        self,
        optimizer: Optimizer,
        decay: Mapping[Key, float] | None = None,
        threads: int | None = None,
        *,
        rates: Mapping[Key, float] | None = None,
        ema: EMA | None = None,
    ):
        self.optimizer = optimizer
        self._decay = dict(decay or {})
        self._rates = dict(rates or {})
        self._ema = ema
        self._threads = threads
        self._slots: dict[Key, list[np.ndarray]] = {}
        self._averages: dict[Key, np.ndarray] = {}
        self._updates: dict[Key, int] = {}
        # Compiled programs, each with the names of its inputs. `_averaging` finds them by type, `_programs` by type and
        # weight decay.
        self._programs: dict[tuple[str, tuple[str, ...], float], tuple[tuple[str, ...], Executor]] = {}
        self._averaging: dict[tuple[str, tuple[int, ...]], tuple[tuple[str, ...], Executor]] = {}

    def __call__(self, key: Key, gradient: np.ndarray | RowSparse, stored: np.ndarray) -> None:
        """Update `stored` and the slots in place. A RowSparse gradient updates only its rows.

        The moving average is updated in all rows. Raises UsageError for a RowSparse gradient if the optimizer needs
        norms.
        """
        slots = self._slots_of(key, stored)
        step = self._updates.get(key, 0)
        average = None if self._ema is None else self.average(key, stored)
        if isinstance(gradient, RowSparse):
            self._update_rows(key, total([gradient]), stored, slots, step)
        else:
            new, self._slots[key] = self._updated(key, gradient, stored, slots, step)
            np.copyto(stored, new)
        if average is not None:
            self._averages[key] = self._averaged(average, stored, step)
        self._updates[key] = step + 1

    def average(self, key: Key, stored: np.ndarray) -> np.ndarray:
        """Return the moving average of a key, which must not be changed. Raises UsageError without averages.

        stored: the value of the key, which is its first average.
        """
        if self._ema is None:
            raise UsageError(f"key {key!r} has no moving average: the optimizer was set without ema")
        found = self._averages.get(key)
        return np.array(stored, _state_dtype(stored)) if found is None else found

    def _averaged(self, average: np.ndarray, stored: np.ndarray, step: int) -> np.ndarray:
        kind = states.state_type(TensorType(dtype_of(stored.dtype), stored.shape))
        key = (kind.dtype.value, stored.shape)
        if key not in self._averaging:
            assert self._ema is not None, "only called with averages"
            old, weight, count = Value(kind, "average"), Value(kind, "weight"), Value(TensorType("int64", ()), "step")
            self._averaging[key] = self._compiled({"average": self._ema.update(old, weight, count)}, "average")
        names, program = self._averaging[key]
        feeds = {"average": average, "weight": np.asarray(stored, _state_dtype(stored)), "step": np.int64(step + 1)}
        return program.run({name: feeds[name] for name in names})["average"]

    def _update_rows(
        self, key: Key, gradient: RowSparse, stored: np.ndarray, slots: Sequence[np.ndarray], step: int
    ) -> None:
        if not self.optimizer.elementwise:
            raise UsageError(
                f"key {key!r}: {self.optimizer.kind} takes norms of whole parameters, so it cannot update single "
                "rows (RowSparse); choose another optimizer"
            )
        rows = gradient.indices
        new, kept = self._updated(key, gradient.values, stored[rows], [slot[rows] for slot in slots], step, rows=True)
        for state, array in zip((stored, *slots), (new, *kept), strict=True):
            state[rows] = array

    def _updated(
        self,
        key: Key,
        gradient: np.ndarray,
        stored: np.ndarray,
        slots: Sequence[np.ndarray],
        step: int,
        rows: bool = False,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        feeds = {
            "weight": stored,
            "gradient": gradient,
            "rate": np.float32(self.optimizer.rate(step)) * np.float32(self._rates.get(key, 1.0)),
            "step": np.int64(step + 1),
            **{f"slot{number}": slot for number, slot in enumerate(slots)},
        }
        kind = TensorType(dtype_of(stored.dtype), ("rows", *stored.shape[1:]) if rows else stored.shape)
        names, program = self._program(kind, self._decay.get(key, 1.0))
        found = program.run({name: feeds[name] for name in names})
        return found["weight"], [found[f"slot{number}"] for number in range(len(slots))]

    def _slots_of(self, key: Key, stored: np.ndarray) -> list[np.ndarray]:
        if key not in self._slots:
            starts = [states.start(self.optimizer, n) for n in states.names(self.optimizer, dtype_of(stored.dtype))]
            self._slots[key] = [states.filled(stored.shape, start, _state_dtype(stored)) for start in starts]
        return self._slots[key]

    def _program(self, type_: TensorType, decay: float) -> tuple[tuple[str, ...], Executor]:
        key = (type_.dtype.value, tuple(map(str, type_.known_shape)), decay)
        found = self._programs.get(key)
        if found is None:
            weight, gradient = Value(type_, "weight"), Value(type_, "gradient")
            kinds = states.kinds(self.optimizer, type_)
            slots = [Value(kind, f"slot{number}") for number, kind in enumerate(kinds.values())]
            rate, step = Value(TensorType("float32", ()), "rate"), Value(TensorType("int64", ()), "step")
            made = states.update(self.optimizer, weight, gradient, slots, rate, step, decay)
            outputs = {"weight": made.weight, **{f"slot{number}": slot for number, slot in enumerate(made.states)}}
            found = self._programs[key] = self._compiled(outputs, "update")
        return found

    def _compiled(self, outputs: Mapping[str, Value], name: str) -> tuple[tuple[str, ...], Executor]:
        model = Model(outputs, name=name)
        return tuple(model.inputs), model.compile(threads=self._threads)

    def _state_names(self, has_master: bool) -> tuple[str, ...]:
        master = (states.MASTER,) if has_master else ()
        return (*master, *self.optimizer.slots, *(() if self._ema is None else (AVERAGE,)))

    # --- states ---------------------------------------------------------------------------------------

    def states(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for key, count in self._updates.items():
            name = _name(key)
            found[f"{name}/updates"] = np.array(count, np.int64)
            kept = self._slots[key] if self._ema is None else [*self._slots[key], self._averages[key]]
            named = self._state_names(len(self._slots[key]) > len(self.optimizer.slots))
            found |= {f"{name}/{slot}": array for slot, array in zip(named, kept, strict=True)}
        return found

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `states`. If another optimizer wrote it, raises InvalidModel and changes nothing."""
        slots: dict[Key, list[np.ndarray]] = {}
        averages: dict[Key, np.ndarray] = {}
        updates: dict[Key, int] = {}
        names = {name: name.rpartition("/") for name in sorted(found)}
        for name, (_, slash, last) in names.items():
            if not slash or last not in ("updates", *self._state_names(has_master=True)):
                wanted = ", ".join(self._state_names(has_master=False)) or "none"
                raise InvalidModel(
                    f"state {name!r} is not a slot of {type(self.optimizer).__name__}, whose slots are: {wanted}"
                )
        for start in dict.fromkeys(start for start, _, _ in names.values()):
            key = _key(start)
            kept = self._state_names(f"{start}/{states.MASTER}" in found)
            parts = [found.get(f"{start}/{slot}") for slot in ("updates", *kept)]
            if any(part is None for part in parts):
                raise InvalidModel(f"the states of key {key!r} are incomplete")
            count, *arrays = (np.array(part) for part in parts)
            if self._ema is not None:
                averages[key] = arrays.pop()
            updates[key], slots[key] = int(count), arrays
        self._slots, self._averages, self._updates = slots, averages, updates

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {type(self.optimizer).__name__}"
        yield quantity(len(self._slots), "key")


def _state_dtype(stored: np.ndarray) -> np.dtype:
    return states.state_type(TensorType(dtype_of(stored.dtype), ())).dtype.numpy


def _name(key: Key) -> str:
    """Return a key as text that distinguishes 1 from "1"."""
    return f"{'i' if isinstance(key, int) else 's'}:{key}"


def _key(name: str) -> Key:
    kind, _, text = name.partition(":")
    return int(text) if kind == "i" else text
