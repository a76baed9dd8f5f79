"""An optimizer outside of a training program: what a KVStore calls where its values live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphkit.dist.rows import RowSparse, total
from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.executor.run.session import Executor
    from graphkit.train.optim import Optimizer

Key = int | str


class OptimizerUpdater:
    """Updates the value of a key by its gradient, with slots and a count of updates for each key.

    The programs are those of the optimizer's own operators, one for each type of a value. decay: by key, the factor on
    the optimizer's weight_decay (default 1).
    """

    def __init__(self, optimizer: Optimizer, decay: Mapping[Key, float] | None = None, threads: int | None = None):
        self.optimizer = optimizer
        self._decay = dict(decay or {})
        self._threads = threads
        self._slots: dict[Key, list[np.ndarray]] = {}
        self._updates: dict[Key, int] = {}
        # By type and decay: the inputs that the update needs, and what computes it.
        self._programs: dict[tuple[str, tuple[str, ...], float], tuple[tuple[str, ...], Executor]] = {}

    def __call__(self, key: Key, gradient: np.ndarray | RowSparse, stored: np.ndarray) -> None:
        """Change `stored` in place; of a RowSparse gradient only its rows, and those of the slots (the lazy update, see
        `graphkit.train.sparse`). Raises UsageError then for an optimizer that takes norms of whole parameters."""
        slots = self._slots_of(key, stored)
        step = self._updates.get(key, 0)
        if isinstance(gradient, RowSparse):
            self._update_rows(key, total([gradient]), stored, slots, step)
        else:
            new, self._slots[key] = self._updated(key, gradient, stored, slots, step)
            np.copyto(stored, new)
        self._updates[key] = step + 1

    def _update_rows(
        self, key: Key, gradient: RowSparse, stored: np.ndarray, slots: Sequence[np.ndarray], step: int
    ) -> None:
        if not self.optimizer.elementwise:
            raise UsageError(
                f"key {key!r}: {self.optimizer.kind} takes norms of whole parameters: rows need another optimizer"
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
        """What a value and its slots are after an update. rows: these are some rows of them."""
        feeds = {
            "weight": stored,
            "gradient": gradient,
            "rate": np.float32(self.optimizer.rate(step)),
            "step": np.int64(step + 1),
            **{f"slot{number}": slot for number, slot in enumerate(slots)},
        }
        kind = TensorType(dtype_of(stored.dtype), ("rows", *stored.shape[1:]) if rows else stored.shape)
        names, program = self._program(kind, self._decay.get(key, 1.0))
        found = program.run({name: feeds[name] for name in names})
        return found["weight"], [found[f"slot{number}"] for number in range(len(slots))]

    def _slots_of(self, key: Key, stored: np.ndarray) -> list[np.ndarray]:
        if key not in self._slots:
            starts = map(self.optimizer.start, self.optimizer.slots)
            self._slots[key] = [np.full(stored.shape, start, stored.dtype) for start in starts]
        return self._slots[key]

    def _program(self, type_: TensorType, decay: float) -> tuple[tuple[str, ...], Executor]:
        key = (type_.dtype.value, tuple(map(str, type_.known_shape)), decay)
        found = self._programs.get(key)
        if found is None:
            weight, gradient = Value(type_, "weight"), Value(type_, "gradient")
            slots = [Value(type_, f"slot{number}") for number in range(len(self.optimizer.slots))]
            rate, step = Value(TensorType("float32", ()), "rate"), Value(TensorType("int64", ()), "step")
            new, *kept = self.optimizer.update(weight, gradient, slots, rate, step, decay)
            outputs = {"weight": new, **{f"slot{number}": slot for number, slot in enumerate(kept)}}
            model = Model(outputs, name="update")
            found = tuple(model.inputs), model.compile(threads=self._threads)
            self._programs[key] = found
        return found

    # --- what is kept ---------------------------------------------------------------------------------

    def states(self) -> dict[str, np.ndarray]:
        """Slots and counts of all keys, by name; `restore` takes them back."""
        found: dict[str, np.ndarray] = {}
        for key, slots in self._slots.items():
            name = _name(key)
            found[f"{name}/updates"] = np.array(self._updates[key], np.int64)
            found |= {f"{name}/{slot}": array for slot, array in zip(self.optimizer.slots, slots, strict=True)}
        return found

    def restore(self, states: Mapping[str, np.ndarray]) -> None:
        """Take over such states. Raises InvalidModel where they are another optimizer's; nothing is changed then."""
        slots: dict[Key, list[np.ndarray]] = {}
        updates: dict[Key, int] = {}
        names = {name: name.rpartition("/") for name in sorted(states)}
        for name, (_, slash, last) in names.items():
            if not slash or last not in ("updates", *self.optimizer.slots):
                wanted = ", ".join(self.optimizer.slots) or "none"
                raise InvalidModel(
                    f"state {name!r} is none of {type(self.optimizer).__name__}, whose slots are: {wanted}"
                )
        for start in dict.fromkeys(start for start, _, _ in names.values()):
            key = _key(start)
            parts = [states.get(f"{start}/{slot}") for slot in ("updates", *self.optimizer.slots)]
            if any(part is None for part in parts):
                raise InvalidModel(f"the states of key {key!r} are not whole")
            count, *arrays = (np.array(part) for part in parts)
            updates[key], slots[key] = int(count), arrays
        self._slots, self._updates = slots, updates


def _name(key: Key) -> str:
    """A key as text that tells 1 from "1"."""
    return f"{'i' if isinstance(key, int) else 's'}:{key}"


def _key(name: str) -> Key:
    kind, _, text = name.partition(":")
    return int(text) if kind == "i" else text
