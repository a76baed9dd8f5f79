"""Layer normalisation of float16 or bfloat16 data with float32 factors; see the pass `fuse_norm_casts`."""

from __future__ import annotations

from typing import Any

from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Rand, Sample, apply, op
from graphkit.ops.nn.norm import LayerNormalization, NormOfLastAxes
from graphkit.ops.operands import check_stored


@op
class MixedPrecisionLayerNorm(NormOfLastAxes):
    """LayerNormalization that computes in the type of `scale`, also if x has a narrower type.

    If `scale` is float32, x may be float16 or bfloat16. `made` is the type of y (default: that of `scale`). Operands
    and outputs are those of LayerNormalization.
    """

    former_names = ("LayerNormOfHalves",)
    made: DType | None = None
    domain = DOMAIN
    inputs = ("x", "scale", "b?")
    outputs = ("y", "mean", "inv_std_dev")
    types = {"x": FLOATS, "scale": FLOATS, "b": "scale"}
    samples = lambda: tuple(
        Sample(
            Rand((2, 3, 4), dtype=kind),
            Rand((4,), dtype="float32"),
            *bias,
            axis=axis,
            made=made,
            grad=False,
            onnx=False,
        )
        for kind, bias, axis, made in (
            ("bfloat16", (Rand((4,), dtype="float32"),), -1, DType.BFLOAT16),
            ("float16", (), 1, None),
            ("float32", (Rand((3, 4), dtype="float32"),), 1, DType.FLOAT16),
        )
    )

    @property
    def widened(self) -> LayerNormalization:
        return LayerNormalization(axis=self.axis, epsilon=self.epsilon, stash_type=self.stash_type)

    def infer(self, x: TensorType, scale: TensorType, b: TensorType | None = None) -> Any:
        made = self.made or scale.dtype
        check_stored(scale.dtype, x.dtype, made)
        _, *statistics = self.widened.infer(x, scale, b)
        return TensorType(made, x.shape), *statistics

    def reference(self, xp: Any, x: Any, scale: Any, b: Any = None) -> Any:
        y, *statistics = self.widened.reference(xp, x.astype(scale.dtype), scale, b)
        return y if self.made is None else y.astype(self.made.numpy), *statistics

    def expand(self, x: Any, scale: Any, b: Any = None) -> Any:
        y, *statistics = apply(self.widened, F.cast(x, to=scale.dtype), scale, *(() if b is None else (b,)))
        return F.cast(y, to=self.made or scale.dtype), *statistics
