"""Integer convolutions and means of data with the channels last, [N, *spatial, C]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ops._base import DOMAIN, Sample, op
from graphkit.ops.internal.channels_last import ChannelsLast, to_last
from graphkit.ops.internal.quantised import QLinearGlobalAveragePool
from graphkit.ops.quant.conv import ConvInteger, IntegerConvolution, QLinearConv


def _moved(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return the samples with the channels of the first operand last."""
    made = []
    for sample in samples:
        x = sample.inputs[0]
        shape = tuple(x.shape[i] for i in to_last(len(x.shape)))
        made.append(Sample(x._replace(shape=shape), *sample.inputs[1:], **sample.attrs))
    return tuple(made)


@op
class ChannelsLastConvInteger(ChannelsLast, IntegerConvolution):
    """ConvInteger with x: [N, *spatial, C] and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

    domain = DOMAIN
    per_example = ("x",)
    inputs = ConvInteger.inputs
    types = ConvInteger.types
    samples = lambda: _moved(ConvInteger.samples())

    def standard(self) -> ConvInteger:
        return ConvInteger(**self.related())


@op
class ChannelsLastQLinearConv(ChannelsLast, IntegerConvolution):
    """QLinearConv with x: [N, *spatial, C] and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

    domain = DOMAIN
    per_example = ("x",)
    inputs = QLinearConv.inputs
    types = QLinearConv.types
    samples = lambda: _moved(QLinearConv.samples())

    def standard(self) -> QLinearConv:
        return QLinearConv(**self.related())


@op
class ChannelsLastQLinearGlobalAveragePool(ChannelsLast):
    """QLinearGlobalAveragePool of x: [N, *spatial, C] -> [N, 1, ..., C]."""

    domain = DOMAIN
    symbolic_inference = True
    per_example = ("x",)
    inputs = QLinearGlobalAveragePool.inputs
    types = QLinearGlobalAveragePool.types
    samples = lambda: _moved(QLinearGlobalAveragePool.samples())

    def standard(self) -> Any:
        return QLinearGlobalAveragePool()
