"""Fused operators, which inference passes make from several standard operators, so that one kernel runs them.

Each is defined by its `expand`: the standard operators that it replaces. Graphs from users do not contain them: they
are made after differentiation, and expanded again on export.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value, native_sweeps
from graphkit.ir.types import FLOATS, TensorType, Type, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Op, Sample, apply, examples_align, op, registry
from graphkit.ops._op import number_of
from graphkit.ops.internal.region import Region
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import divides_integers, scalar_like

# Activation -> its operator, and the attributes of that operator as functions of `activation_alpha` and
# `activation_beta`. Clip has its limits as operands, and is treated apart.
ACTIVATIONS: dict[str, tuple[str, Callable[[float, float], dict[str, Any]]]] = {
    "Relu": ("Relu", lambda alpha, beta: {}),
    "LeakyRelu": ("LeakyRelu", lambda alpha, beta: {"alpha": alpha}),
    "Elu": ("Elu", lambda alpha, beta: {"alpha": alpha}),
    "Sigmoid": ("Sigmoid", lambda alpha, beta: {}),
    "Tanh": ("Tanh", lambda alpha, beta: {}),
    "HardSwish": ("HardSwish", lambda alpha, beta: {}),
    "HardSigmoid": ("HardSigmoid", lambda alpha, beta: {"alpha": alpha, "beta": beta}),
    "Clip": ("Clip", lambda alpha, beta: {}),
    "Gelu": ("Gelu", lambda alpha, beta: {}),
    "GeluTanh": ("Gelu", lambda alpha, beta: {"approximate": "tanh"}),
    "Silu": ("Swish", lambda alpha, beta: {"alpha": 1.0}),
}


class Epilogue(Op):
    """Operations fused behind a product: y = activation(product + bias + residual).

    With `residual_last` y = activation(product + bias) + residual. `activation` is "" or a key of ACTIVATIONS;
    `activation_alpha` and `activation_beta` are that operator's attributes alpha and beta, and for Clip the bounds
    (infinite if there is none). `residual` has y's shape.
    """

    activation: str = ""
    activation_alpha: float = 0.0
    activation_beta: float = 0.0
    residual_last: bool = False

    def epilogue(self) -> dict[str, Any]:
        """The attributes of this class."""
        return {k: getattr(self, k) for k in ("activation", "activation_alpha", "activation_beta", "residual_last")}

    def _activation(self) -> Op:
        """Return the operator of the activation."""
        name, attributes = ACTIVATIONS[self.activation]
        return registry.get("", name)(**attributes(self.activation_alpha, self.activation_beta))

    def _check_epilogue(self, y: TensorType, residual: TensorType | None) -> TensorType:
        """Check the epilogue, and return y's type, with the residual's shape if y's is unknown."""
        if self.activation and self.activation not in ACTIVATIONS:
            raise UsageError(f"activation must be '' or one of {', '.join(ACTIVATIONS)}, not {self.activation!r}")
        if residual is None:
            return y
        if not fits(residual.shape, y.shape):
            raise TypeMismatch(f"the residual {residual} does not fit the result {y}")
        return y if y.shape is not None else TensorType(y.dtype, residual.shape)

    def _finish(self, xp: Any, y: Any, residual: Any) -> Any:
        """Apply the epilogue to arrays; y: the product plus the bias."""
        if residual is not None and not self.residual_last:
            y = y + residual
        if self.activation == "Clip":
            y = xp.clip(y, self.activation_alpha, self.activation_beta)
        elif self.activation:
            y = self._activation().reference(xp, y)
        return y + residual if residual is not None and self.residual_last else y

    def finished(self, y: Any, residual: Any) -> Any:
        """Apply the epilogue in the graph; y: the product plus the bias."""
        if residual is not None and not self.residual_last:
            y = F.add(y, residual)
        if self.activation == "Clip":
            bounds = (self.activation_alpha, self.activation_beta)
            y = F.clip(y, *(scalar_like(b, y) if math.isfinite(b) else None for b in bounds))
        elif self.activation:
            y = apply(self._activation(), y)
        return F.add(y, residual) if residual is not None and self.residual_last else y


_EPILOGUES: tuple[dict[str, Any], ...] = (
    {"activation": "Relu"},
    {"activation": "LeakyRelu", "activation_alpha": 0.25},
    {"activation": "Elu", "activation_alpha": 0.5},
    {"activation": "Sigmoid"},
    {"activation": "Tanh"},
    {"activation": "HardSwish"},
    {"activation": "HardSigmoid", "activation_alpha": 0.25, "activation_beta": 0.5},
    {"activation": "Clip", "activation_alpha": -0.5, "activation_beta": 1.5},
    {"activation": "Clip", "activation_alpha": -math.inf, "activation_beta": 0.75},
    {"activation": "Gelu"},
    {"activation": "GeluTanh"},
    {"activation": "Silu"},
)


@op
class FusedMatMul(Epilogue):
    """alpha * op(a) @ op(b) with bias, residual and activation.

    Computes activation(product + bias + residual), or with `residual_last` activation(product + bias) + residual.
    `activation` is the name of an operator, such as "Relu", or "" for none. `activation_alpha` and `activation_beta`
    are its attributes alpha and beta, or the bounds of Clip. op exchanges the last two axes of a if transA is set, of b
    if transB is set. op(a): [..., m, k], op(b): [..., k, n], leading axes broadcast; bias: [n]; residual and result:
    [..., m, n].
    """

    transA: bool = False  # noqa: N815 (ONNX's names)
    transB: bool = False  # noqa: N815
    alpha: float = 1.0
    domain = DOMAIN
    inputs = ("a", "b", "bias?", "residual?")
    types = {"a": FLOATS, "b": "a", "bias": "a", "residual": "a"}
    symbolic_inference = True
    inplace = ((3, 0),)
    samples = lambda: (
        *(Sample((2, 3), (3, 4), (4,), **attrs) for attrs in _EPILOGUES),
        Sample((3, 2), (4, 3), None, (2, 4), transA=True, transB=True, alpha=0.5),
        Sample((5, 2, 3), (3, 4), (4,), (5, 2, 4), activation="Tanh", residual_last=True),
        Sample((5, 2, 3), (5, 4, 3), (4,), (5, 2, 4), transB=True, activation="Sigmoid"),
        Sample((2, 1, 3, 2), (4, 3, 5), transA=True, alpha=-2.0),
        Sample((0, 3), (3, 4), (4,), activation="Relu"),
    )

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        a, b = (len(t.known_shape) for t in inputs[:2])
        return self._has_examples(("a", "residual"), inputs, batched) and b == 2 and (a > 2 or not self.transA)

    def infer(
        self, a: TensorType, b: TensorType, bias: TensorType | None = None, residual: TensorType | None = None
    ) -> TensorType:
        for operand in (a, b):
            if operand.rank is not None and operand.rank < 2:
                raise TypeMismatch(f"a fused matrix product takes matrices, not {operand}")
        if a.shape is None or b.shape is None:
            return self._check_epilogue(TensorType(a.dtype), residual)
        left = (*a.shape[:-2], a.shape[-1], a.shape[-2]) if self.transA else a.shape
        right = (*b.shape[:-2], b.shape[-1], b.shape[-2]) if self.transB else b.shape
        if not dims.may_equal(left[-1], right[-2]):
            raise TypeMismatch(f"the inner dimensions of {a} and {b} differ")
        batch = broadcast_shapes([left[:-2], right[:-2]])
        assert batch is not None
        if bias is not None and not fits(bias.shape, (right[-1],)):
            raise TypeMismatch(f"bias {bias} does not fit {right[-1]} columns")
        return self._check_epilogue(TensorType(a.dtype, (*batch, left[-2], right[-1])), residual)

    def reference(self, xp: Any, a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        y = xp.matmul(xp.swapaxes(a, -1, -2) if self.transA else a, xp.swapaxes(b, -1, -2) if self.transB else b)
        if self.alpha != 1.0:
            y = y * xp.asarray(self.alpha, dtype=y.dtype)
        return self._finish(xp, y if bias is None else y + bias, residual)

    def expand(self, a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        y = F.mat_mul(_exchanged(a) if self.transA else a, _exchanged(b) if self.transB else b)
        if self.alpha != 1.0:
            y = F.mul(y, scalar_like(self.alpha, y))
        return self.finished(y if bias is None else F.add(y, bias), residual)


def _exchanged(x: Any) -> Any:
    """x with its last two axes exchanged."""
    return F.transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _fused_samples() -> tuple[Sample, ...]:
    def body(types: list[TensorType], build: Callable[..., list[Any]]) -> Graph:
        inputs = [Value(t) for t in types]
        return Graph(inputs, build(*inputs))

    matrix, row, flags = (TensorType(t, s) for t, s in (("float32", (2, 3)), ("float32", (3,)), ("bool", (2, 1))))
    x = np.array([[0.5, -1.0, 2.0], [0.25, -0.75, 1.5]], np.float32)
    y = np.array([2.0, -1.0, 0.5], np.float32)
    wave = body([matrix, row], lambda a, b: [F.tanh(F.add(F.mul(a, b), scalar_like(1.0, a)))])
    pair = body([matrix, row], lambda a, b: (lambda s: [F.sigmoid(s), F.neg(F.exp(s))])(F.add(a, b)))
    chosen = body([flags, matrix, row], lambda c, a, b: [F.where(c, a, F.mul(a, b)), F.greater(a, b)])
    return (
        Sample(x, y, body=wave),
        Sample(x, y, body=pair),
        Sample(np.array([[True], [False]]), x, y, body=chosen),
        Sample(x[:0], y, body=wave),
    )


@op
class Fused(Region):
    """A region of pointwise operators that run in one pass over memory.

    The operands broadcast against each other. `body` has one input for each operand. All of its outputs have the shape
    to which the operands broadcast. It contains pointwise operators and 0-d constants. The kernel decides which results
    may reuse the memory of an operand.
    """

    inputs = ("xs*",)
    outputs = ("ys*",)
    symbolic_inference = True
    samples = staticmethod(_fused_samples)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return examples_align(inputs, batched)

    def infer(self, *xs: Type) -> tuple[Type, ...]:
        for node in self.body.nodes:
            constant = node.op.name == "Constant" and all(v.tensor.static_shape == () for v in node.outputs)
            if not constant and not getattr(node.op, "pointwise", False):
                raise TypeMismatch(f"{node.describe()} in a fused region is not pointwise")
        return super().infer(*xs)

    def _content(self) -> Hashable | None:
        return self.body.cached(_structure)


def _structure(body: Graph) -> Hashable | None:
    """Return everything about a body but its names. None if an error in a run names a node of it."""
    if any(not isinstance(node.op, Op) or divides_integers(node) for node in body.nodes):
        return None
    native = native_sweeps()
    if native is not None:
        return Fused, native.structure(body.inputs, body.nodes, body.outputs, number_of)
    places = {v: i for i, v in enumerate(body.inputs)}
    steps: list[Hashable] = [tuple([_type_number(v) for v in body.inputs])]
    for node in body.nodes:
        assert isinstance(node.op, Op)
        steps.append(
            (
                number_of(node.op),
                tuple([None if v is None else places[v] for v in node.inputs]),
                tuple([_type_number(v) for v in node.outputs]),
            )
        )
        places.update((v, len(places)) for v in node.outputs)
    return (Fused, *steps, tuple([places[v] for v in body.outputs]))


def _type_number(value: Value) -> int:
    return value.tensor.number
