"""Fused operators, which inference passes make from several standard operators, so that one kernel runs them.

Each is defined by its `expand`: the standard operators that it replaces. Graphs from users do not contain them: they
are made after differentiation, and expanded again on export.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import BOOLS, FLOATS, DType, TensorType, Type, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Op, Sample, apply, examples_align, op
from graphkit.ops._checks import fits
from graphkit.ops.internal.region import Region
from graphkit.ops.nn.activation import Clip, Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Relu, Sigmoid, Swish, Tanh
from graphkit.ops.pointwise import scalar_like

# The operator that an activation stands for, from `activation_alpha` and `activation_beta`. Clip has its limits as
# operands, and is treated apart.
ACTIVATIONS: dict[str, Callable[[float, float], Op]] = {
    "Relu": lambda alpha, beta: Relu(),
    "LeakyRelu": lambda alpha, beta: LeakyRelu(alpha=alpha),
    "Elu": lambda alpha, beta: Elu(alpha=alpha),
    "Sigmoid": lambda alpha, beta: Sigmoid(),
    "Tanh": lambda alpha, beta: Tanh(),
    "HardSwish": lambda alpha, beta: HardSwish(),
    "HardSigmoid": lambda alpha, beta: HardSigmoid(alpha=alpha, beta=beta),
    "Clip": lambda alpha, beta: Clip(),
    "Gelu": lambda alpha, beta: Gelu(),
    "GeluTanh": lambda alpha, beta: Gelu(approximate="tanh"),
    "Silu": lambda alpha, beta: Swish(alpha=1.0),
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
            y = ACTIVATIONS[self.activation](self.activation_alpha, self.activation_beta).reference(xp, y)
        return y + residual if residual is not None and self.residual_last else y

    def finished(self, y: Any, residual: Any) -> Any:
        """Apply the epilogue in the graph; y: the product plus the bias."""
        if residual is not None and not self.residual_last:
            y = F.add(y, residual)
        if self.activation == "Clip":
            bounds = (self.activation_alpha, self.activation_beta)
            y = F.clip(y, *(scalar_like(b, y) if math.isfinite(b) else None for b in bounds))
        elif self.activation:
            y = apply(ACTIVATIONS[self.activation](self.activation_alpha, self.activation_beta), y)
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
    samples = (
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


_LAYOUTS = ("NHLD", "NLHD")


# Samples without shared heads: each head of queries has its own keys.
ATTENTION_SAMPLES = (
    Sample((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), scale=0.5),
    Sample((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), (2, 1, 1, 6), scale=0.5),
    Sample((2, 4, 3, 5), (2, 6, 3, 5), (2, 6, 3, 2), (4, 6), layout="NLHD", output_layout="NLHD"),
    Sample((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), causal=True, output_layout="NLHD"),
    Sample((1, 2, 2, 3), (1, 2, 5, 3), (1, 2, 5, 3), causal=True, scale=0.25),
    Sample((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), np.tril(np.ones((3, 3), bool)), mask_value=-1e4),
    Sample((1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), np.array([True, False, True])),
)


class AttentionOp(Op):
    """Base of scaled dot-product attention operators: common attributes (see FusedAttention) and inference of sizes."""

    scale: float = 1.0
    causal: bool = False
    mask_value: float = -math.inf
    layout: str = "NHLD"
    output_layout: str = "NHLD"
    domain = DOMAIN
    symbolic_inference = True
    # Whether several heads of queries may share a head of keys.
    shares_heads = False

    def result(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None) -> TensorType:
        """Return the type of the result. Raises TypeMismatch for wrong operands, UsageError for unknown layouts."""
        if self.layout not in _LAYOUTS or self.output_layout not in _LAYOUTS:
            raise UsageError(
                f"layouts must be {' and '.join(_LAYOUTS)}, not {self.layout!r} and {self.output_layout!r}"
            )
        if mask is not None and mask.dtype not in (q.dtype, DType.BOOL, DType.FLOAT32):
            raise TypeMismatch(f"the mask {mask} must have the element type of {q}")
        batch, heads, rows, _ = q_shape = self.heads_first(q)
        keys, values = self.heads_first(k), self.heads_first(v)
        same = ((batch, keys[0]), (q_shape[3], keys[3]), *zip(keys[:3], values[:3], strict=True))
        if not (all(dims.may_equal(a, b) for a, b in same) and self._may_share(heads, keys[1])):
            raise TypeMismatch(f"the shapes of {q}, {k} and {v} do not fit together in layout {self.layout}")
        if mask is not None and mask.shape is not None:
            scores = (batch, heads, rows, keys[2])
            joint = broadcast_shapes([scores, mask.shape])
            if joint is None or not fits(joint, scores):
                raise TypeMismatch(f"the mask {mask} does not broadcast to [{', '.join(map(str, scores))}]")
        columns = values[3]
        shape = (batch, heads, rows, columns) if self.output_layout == "NHLD" else (batch, rows, heads, columns)
        return TensorType(q.dtype, shape)

    def _may_share(self, heads: Dim, groups: Dim) -> bool:
        """Return whether `heads` heads of queries can share `groups` heads of keys in equal parts."""
        if self.shares_heads and dims.is_static(heads) and dims.is_static(groups) and heads != groups:
            return bool(groups > 0 and heads % groups == 0)
        return dims.may_equal(heads, groups)

    def heads_first(self, kind: TensorType) -> tuple[Dim, ...]:
        """Return the sizes of an operand as [N, H, rows, columns]. Raises TypeMismatch unless it has four axes."""
        if kind.shape is None:
            return tuple(dims.fresh() for _ in range(4))
        if len(kind.shape) != 4:
            raise TypeMismatch(f"attention takes operands of four axes, not {kind}")
        n, a, b, d = kind.shape
        return (n, a, b, d) if self.layout == "NHLD" else (n, b, a, d)


@op
class FusedAttention(AttentionOp):
    """Scaled dot-product attention: softmax(scale * q @ k^T + mask) @ v for each head.

    Vaswani et al. 2017, arXiv:1706.03762.

    q: [N, H, L, D], k: [N, G, S, D], v: [N, G, S, Dv] -> [N, H, L, Dv]; each head of k and v serves H / G neighbouring
    heads of q. With layout="NLHD" the operands are [N, L, H, D] and so on, with output_layout="NLHD" the result is [N,
    L, H, Dv]. The mask broadcasts to [N, H, L, S]. A float mask, of q's type or float32, is added to the scores, which
    then have the mask's type. Where a boolean mask is false, the score is replaced by `mask_value`. `causal` hides the
    keys after i + S - L from query i, as if their scores were minus infinity.
    """

    inputs = ("q", "k", "v", "mask?")
    types = {"q": FLOATS, "k": "q", "v": "q", "mask": FLOATS | BOOLS}
    samples = (
        *ATTENTION_SAMPLES,
        Sample((2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 3, 4), (4, 1, 3), causal=True, scale=0.5),
        Sample((2, 1, 6, 4), (2, 5, 2, 4), (2, 5, 2, 3), (1, 6, 1, 5), layout="NLHD", output_layout="NLHD"),
    )
    shares_heads = True

    def infer(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
        return self.result(q, k, v, mask)

    def reference(self, xp: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        if self.layout == "NLHD":
            q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
        if k.shape[1] != q.shape[1]:
            k, v = (xp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * xp.asarray(self.scale, dtype=q.dtype)
        if mask is not None and mask.dtype == bool:
            scores = xp.where(mask, scores, xp.asarray(self.mask_value, dtype=q.dtype))
        elif mask is not None:
            scores = scores.astype(mask.dtype, copy=False) + mask
        if self.causal:
            rows, keys = scores.shape[2:]
            hidden = xp.arange(keys)[None, :] > xp.arange(rows)[:, None] + (keys - rows)
            scores = xp.where(hidden, xp.asarray(-xp.inf, dtype=scores.dtype), scores)
        if scores.size == 0:
            weights = scores
        else:
            raised = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
            weights = raised / xp.sum(raised, axis=-1, keepdims=True)
        y = xp.matmul(weights.astype(v.dtype, copy=False), v)
        return xp.array(xp.swapaxes(y, 1, 2)) if self.output_layout == "NLHD" else y

    def expand(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        from graphkit.ops.nn.heads import shared_product

        heads, groups = (self.heads_first(x.tensor)[1] for x in (q, k))
        shared = q.tensor.shape is not None and k.tensor.shape is not None and heads != groups
        product = shared_product if shared else F.mat_mul
        if self.layout == "NLHD":
            q, v = (F.transpose(x, perm=(0, 2, 1, 3)) for x in (q, v))
        k = F.transpose(k, perm=(0, 1, 3, 2) if self.layout == "NHLD" else (0, 2, 3, 1))
        scores = product(q, k)
        if self.scale != 1.0:
            scores = F.mul(scores, scalar_like(self.scale, scores))
        if mask is not None and mask.dtype is DType.BOOL:
            scores = F.where(mask, scores, scalar_like(self.mask_value, scores))
        elif mask is not None:
            scores = F.add(of_type(scores, mask.dtype), mask)
        if self.causal:
            scores = F.where(visible_keys(scores), scores, scalar_like(-math.inf, scores))
        y = product(of_type(F.softmax(scores, axis=-1), v.dtype), v)
        return F.transpose(y, perm=(0, 2, 1, 3)) if self.output_layout == "NLHD" else y


def of_type(x: Any, kind: DType) -> Any:
    """Convert x to an element type; return x itself if it already has it."""
    return x if x.dtype is kind else F.cast(x, to=kind)


def visible_keys(scores: Any) -> Any:
    """Return a mask of the keys that each causal query sees: bool [L, S], true where key <= query + S - L."""
    rows, keys = (F.squeeze(F.shape(scores, start=i, end=i + 1), np.array([0])) for i in (2, 3))
    zero, one = (F.constant(value=np.array(i, np.int64)) for i in (0, 1))
    last = F.unsqueeze(F.add(F.range(zero, rows, one), F.sub(keys, rows)), np.array([1]))
    return F.less_or_equal(F.range(zero, keys, one), last)


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
