"""A convolution with its epilogue, which inference passes make from several standard operators."""

from __future__ import annotations

from typing import Any

from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Sample, op
from graphkit.ops.internal.fused import _EPILOGUES, Epilogue
from graphkit.ops.nn.conv import Conv, Convolution


@op
class FusedConv(Epilogue, Convolution):
    """Convolution with bias, residual and activation.

    x: [N, C, *spatial], w: [M, C / group, *kernel], bias: [M], residual: [N, M, *positions] -> [N, M, *positions].
    Computes activation(conv + bias + residual), or with `residual_last` activation(conv + bias) + residual.
    `activation` is the name of an operator, such as "Relu", or "" for none. `activation_alpha` and `activation_beta`
    are its attributes alpha and beta, or the bounds of Clip. The other attributes are those of Conv.
    """

    domain = DOMAIN
    per_example = ("x", "residual")
    inputs = ("x", "w", "bias?", "residual?")
    types = {"x": FLOATS, "w": "x", "bias": "x", "residual": "x"}
    symbolic_inference = True
    inplace = ((3, 0),)
    samples = lambda: (
        *(Sample((1, 3, 5, 5), (4, 3, 3, 3), (4,), **attrs) for attrs in _EPILOGUES),
        Sample((2, 3, 5, 5), (4, 3, 3, 3), None, (2, 4, 5, 5), pads=(1, 1, 1, 1), activation="Tanh"),
        Sample((2, 3, 5, 5), (4, 3, 1, 1), (4,), (2, 4, 5, 5), activation="Sigmoid", residual_last=True),
        Sample((2, 4, 6, 5), (6, 2, 3, 3), (6,), (2, 6, 3, 3), group=2, strides=(2, 2), auto_pad="SAME_UPPER"),
        Sample((2, 3, 7), (4, 3, 3), activation="Silu", dilations=(2,)),
        Sample((0, 3, 5, 5), (4, 3, 3, 3), (4,), activation="Relu"),
    )

    def convolution(self) -> Conv:
        """Return the convolution without the epilogue."""
        return Conv(**self.related())

    def infer(
        self, x: TensorType, w: TensorType, bias: TensorType | None = None, residual: TensorType | None = None
    ) -> TensorType:
        return self._check_epilogue(self.convolution().infer(x, w, bias), residual)

    def reference(self, xp: Any, x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        return self._finish(xp, self.convolution().reference(xp, x, w, bias), residual)

    def expand(self, x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        return self.finished(F.conv(x, w, bias, **self.related()), residual)
