"""Send and receive values between processes in the middle of a program.

Send and Receive take a token and return one, so that all of them in a program form a chain, which fixes their order
(see `graphkit.passes.distribution.distribute`). They only run in an executor that has channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import ANY, DType, TensorType
from graphkit.ops._base import DOMAIN, Op, declared
from graphkit.ops.axes import INT64

TOKEN = TensorType(DType.INT64, ())

# A size that is known only from the message.
UNKNOWN = "?"


def _sizes(
    texts: Sequence[str], symbols: Sequence[str], axes: Sequence[int], likes: Sequence[TensorType]
) -> tuple[Dim, ...]:
    """Parse dimensions. Symbol i is the size of likes[i] along axes[i]; UNKNOWN gives a new unknown dimension."""
    bound: dict[str, Dim] = {}
    for name, axis, like in zip(symbols, axes, likes, strict=True):
        if like.shape is None:
            raise TypeMismatch(f"dimension {name} cannot be read from {like}, whose rank is unknown")
        bound[name] = like.shape[axis]
    return tuple(dims.fresh() if t == UNKNOWN else dims.substitute(dims.parse(t), bound) for t in texts)


@declared
class Send(Op):
    """Send x to rank `to`, where a Receive with the same `number` returns it.

    key: the name of x in error messages. The result is a token: an operator that reads it runs after x was sent.
    """

    key: str
    number: int
    to: int
    domain = DOMAIN
    inputs = ("x", "token")
    outputs = ("sent",)
    types = {"x": ANY, "token": INT64}
    collective = True
    # The receiver expects the type that x has in the graph.
    reference_in_float32 = False

    def infer(self, x: TensorType, token: TensorType) -> TensorType:
        return TOKEN

    def reference(self, xp: Any, x: Any, token: Any) -> Any:
        raise UnsupportedError(f"only an executor with channels can send {self.key} to rank {self.to}")


@declared
class Receive(Op):
    """Receive the value that rank `source` sends with the same `number`.

    shape: each dimension of the value as text. The symbol symbols[i] is the size of likes[i] along axes[i]; "?" is a
    size that is known only from the message.
    """

    key: str
    number: int
    source: int
    dtype: DType
    shape: tuple[str, ...]
    symbols: tuple[str, ...] = ()
    axes: tuple[int, ...] = ()
    domain = DOMAIN
    inputs = ("token", "likes*")
    outputs = ("y", "received")
    types = {"token": INT64, "likes": ANY}
    shape_only = ("likes",)
    collective = True

    def infer(self, token: TensorType, *likes: TensorType) -> tuple[TensorType, TensorType]:
        return TensorType(self.dtype, _sizes(self.shape, self.symbols, self.axes, likes)), TOKEN

    def reference(self, xp: Any, token: Any, *likes: Any) -> Any:
        raise UnsupportedError(f"only an executor with channels can receive {self.key} from rank {self.source}")


@declared
class Elements(Op):
    """Compute a tensor of integers from sizes, so that a value of another process need not be sent.

    elements: each element as text, with symbols as in Receive.
    """

    dtype: DType
    shape: tuple[int, ...]
    elements: tuple[str, ...]
    symbols: tuple[str, ...] = ()
    axes: tuple[int, ...] = ()
    domain = DOMAIN
    inputs = ("likes*",)
    types = {"likes": ANY}
    shape_only = ("likes",)

    def infer(self, *likes: TensorType) -> TensorType:
        return TensorType(self.dtype, self.shape, _sizes(self.elements, self.symbols, self.axes, likes))

    def reference(self, xp: Any, *likes: Any) -> Any:
        bound = {s: like.shape[axis] for s, axis, like in zip(self.symbols, self.axes, likes, strict=True)}
        found = [dims.evaluate(dims.parse(text), bound) for text in self.elements]
        return xp.asarray(np.array(found, self.dtype.numpy).reshape(self.shape))
