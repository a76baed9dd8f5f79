"""Gradient compression. The part of a gradient that is not sent (the residual) is added to the next gradient.

Error feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019. NaN and infinite elements leave no
residual. A NaN stays NaN. `2bit` sends infinity as NaN, and `top_k` orders NaN like infinity.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.arrays import sum_in_order
from graphkit.dist.communicator import Communicator
from graphkit.dist.hosts.groups import Levels
from graphkit.dist.progress.pending import Action, placed
from graphkit.distribution import how_to_install
from graphkit.errors import InputError, MissingDependency, UsageError, did_you_mean
from graphkit.executor.devices.loading import load_native
from graphkit.text import settings, short_repr


class Compression(ABC):
    @abstractmethod
    def packed_bytes(self, size: int) -> int:
        """Return the number of bytes for `size` elements. Raises UsageError for too many elements."""

    @abstractmethod
    def pack(self, gradient: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Return gradient + residual in compressed form, and set `residual` to the lost part."""

    @abstractmethod
    def add(self, packed: np.ndarray, total: np.ndarray) -> None: ...

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["", *settings(self)])


class Halves(Compression):
    """float16 or bfloat16. Values out of range are clipped; the residual contains the difference."""

    def __init__(self, type: str):
        self._native = _native(type)
        self._type = type

    def packed_bytes(self, size: int) -> int:
        return 2 * size

    def pack(self, gradient: np.ndarray, residual: np.ndarray) -> np.ndarray:
        sent = np.empty(gradient.size, np.uint16)
        self._native.HalvesPack(gradient.size, self._type)([gradient, residual], [sent, residual])
        return sent.view(np.uint8)

    def add(self, packed: np.ndarray, total: np.ndarray) -> None:
        self._native.HalvesAdd(total.size, self._type)([packed.view(np.uint16), total], [total])


class TwoBit(Compression):
    """Two bits per element, as in MXNet: -threshold, 0 or threshold. Raises UsageError unless threshold > 0."""

    def __init__(self, threshold: float = 0.5):
        if not (math.isfinite(threshold) and threshold > 0):
            raise UsageError(f"the threshold of 2bit compression must be a number above 0, not {threshold!r}")
        self._native = _native("2bit")
        self._threshold = float(threshold)

    def packed_bytes(self, size: int) -> int:
        return 4 * -(-size // 16)

    def pack(self, gradient: np.ndarray, residual: np.ndarray) -> np.ndarray:
        words = np.empty(-(-gradient.size // 16), np.uint32)
        self._native.TwoBitQuantize(gradient.size, self._threshold)([gradient, residual], [words, residual])
        return words.view(np.uint8)

    def add(self, packed: np.ndarray, total: np.ndarray) -> None:
        self._native.TwoBitAccumulate(total.size, self._threshold)([packed.view(np.uint32), total], [total])


class TopK(Compression):
    """The elements with the largest magnitude: `ratio` of all, at least one. Of equal magnitudes, the first are sent.

    Raises UsageError for a ratio outside (0, 1], and for 2**32 elements or more.
    """

    def __init__(self, ratio: float = 0.01):
        if not 0 < ratio <= 1:
            raise UsageError(f"the ratio of top_k compression must be above 0 and at most 1, not {ratio!r}")
        self._native = _native("top_k")
        self._ratio = float(ratio)

    def packed_bytes(self, size: int) -> int:
        if size >= 1 << 32:
            raise UsageError(f"top_k compression needs arrays below 2**32 elements, not {size}")
        return 8 * self._count(size)

    def _count(self, size: int) -> int:
        return min(size, max(1, math.ceil(self._ratio * size)))

    def pack(self, gradient: np.ndarray, residual: np.ndarray) -> np.ndarray:
        count = self._count(gradient.size)
        packed = np.empty((2, count), np.uint32)
        places, values = packed[0], packed[1].view(np.float32)
        self._native.TopKPack(gradient.size, count)([gradient, residual], [places, values, residual])
        return packed.reshape(-1).view(np.uint8)

    def add(self, packed: np.ndarray, total: np.ndarray) -> None:
        places, values = packed.view(np.uint32).reshape(2, -1)
        total[places] += values.view(np.float32)


def _native(kind: str) -> Any:
    native = load_native()
    if native is None:
        raise MissingDependency(
            f"{kind} compression needs the native extension, which is not built here: {how_to_install()}"
        )
    return native


_TYPES: Mapping[str, tuple[type[Compression], tuple[Any, ...], tuple[str, ...]]] = {
    "float16": (Halves, ("float16",), ()),
    "bfloat16": (Halves, ("bfloat16",), ()),
    "2bit": (TwoBit, (), ("threshold",)),
    "top_k": (TopK, (), ("ratio",)),
}
_ALIASES = {"fp16": "float16", "bf16": "bfloat16", "topk": "top_k"}

TYPES = tuple(_TYPES)


def create(options: str | Mapping[str, Any]) -> Compression:
    if not isinstance(options, (str, Mapping)):
        raise UsageError(
            f'compression must be a string such as "2bit:0.5", or a dict such as {{"type": "2bit"}}, not {options!r}'
        )
    given = _read(options) if isinstance(options, str) else dict(options)
    name = given.pop("type", None)
    kind = _ALIASES.get(str(name), str(name))
    if kind not in _TYPES:
        raise UsageError(f"unknown compression {name!r}{did_you_mean(kind, TYPES)}")
    cls, fixed, names = _TYPES[kind]
    for option, value in given.items():
        if option not in names:
            raise UsageError(f"compression {kind!r} has no option {option!r}{did_you_mean(option, names)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{option} of compression {kind!r} must be a number, not {value!r}")
    return cls(*fixed, **given)


def _read(text: str) -> dict[str, Any]:
    name, colon, number = text.partition(":")
    if not colon:
        return {"type": name}
    _, _, names = _TYPES.get(_ALIASES.get(name, name), (None, (), ("",)))
    try:
        return {"type": name, names[0] if names else "number": float(number)}
    except ValueError:
        raise UsageError(f"compression {text!r}: {number!r} is not a number") from None


class Residuals:
    def __init__(self) -> None:
        self._sizes: dict[Any, int] = {}
        self._arrays: dict[Any, np.ndarray] = {}

    def check(self, key: Any, size: int) -> None:
        known = self._sizes.setdefault(key, size)
        if known != size:
            raise InputError(f"key {key!r} had {known} elements in an earlier push, but has {size} now")

    def of(self, key: Any, size: int) -> np.ndarray:
        """Return the residual of a key, zeros at first, for changes in place."""
        self.check(key, size)
        if key not in self._arrays:
            self._arrays[key] = np.zeros(size, np.float32)
        return self._arrays[key]

    def copies(self) -> dict[Any, np.ndarray]:
        return {key: array.copy() for key, array in self._arrays.items()}

    def restore(self, given: Mapping[Any, np.ndarray]) -> None:
        """Restore the result of `copies`. Raises InputError unless all residuals are float32."""
        found = {key: np.array(array).reshape(-1) for key, array in given.items()}
        for key, array in found.items():
            if array.dtype != np.float32:
                raise InputError(f"key {key!r}: residuals must be float32, not {array.dtype}")
            self.check(key, array.size)
        self._arrays |= found


class CompressedSums:
    """All-reduces of compressed float32 arrays.

    Each rank compresses its array, and all ranks sum the compressed arrays in the order of the ranks. With several
    hosts, and more ranks than hosts, the first rank of each host compresses the sum of its host and keeps the residual.
    """

    def __init__(self, compression: Compression, communicator: Communicator):
        self.compression, self._communicator = compression, communicator
        self.residuals = Residuals()

    def action(
        self,
        key: Any,
        array: np.ndarray,
        out: np.ndarray | None,
        then: Callable[[np.ndarray], Any],
        *,
        ordered: bool,
        later: bool,
    ) -> tuple[Action, int]:
        """Return the action that sums an array once all ranks have posted it, and the number of compressed bytes.

        ordered: sum the arrays of a host in the order of the ranks. later: the array may change before the action runs.
        """
        size = self.compression.packed_bytes(array.size)
        self.residuals.check(key, array.size)
        levels = self._communicator.levels
        if levels is None:
            packed = self._packed(key, array)
            return lambda: then(placed(self._sum_of(packed, array.shape), out)), size
        given = array.copy() if later else array
        total = partial(self._over_hosts, levels, key, given, ordered)
        return lambda: then(placed(total(), out)), size

    def _packed(self, key: Any, array: np.ndarray) -> np.ndarray:
        residual = self.residuals.of(key, array.size)
        return self.compression.pack(np.ascontiguousarray(array).reshape(-1), residual)

    def _sum_of(self, packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the sum in the order of the ranks: all ranks get the same bits."""
        return self._added(self._communicator.allgather(packed), shape)

    def _added(self, parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        total = np.zeros(shape, np.float32)
        for part in parts:
            self.compression.add(part, total.reshape(-1))
        return total

    def _over_hosts(self, levels: Levels, key: Any, array: np.ndarray, ordered: bool) -> np.ndarray:
        inside = levels.inside
        own = sum_in_order(inside.allgather(array)) if ordered else inside.sum_in_first(array)
        total = array
        if levels.leaders is not None:
            assert own is not None, "a leader is the first rank of its host"
            total = self._added(levels.leaders.allgather(self._packed(key, own)), array.shape)
        return inside.broadcast(total)
