"""Pooling of data with the channels last, [N, *spatial, C]."""

from __future__ import annotations

from graphkit.ops._base import DOMAIN, Sample, op
from graphkit.ops.internal.channels_last import ChannelsLast, _shape_last
from graphkit.ops.nn.pool import _POOLS, AveragePool, AveragePooling, MaxPool, Pooling


@op
class ChannelsLastMaxPool(ChannelsLast, Pooling):
    """MaxPool of x: [N, *spatial, C] -> [N, *positions, C], without the positions of the maxima."""

    domain = DOMAIN
    per_example = ("x",)
    inputs = ("x",)
    types = MaxPool.types
    samples = lambda: tuple(Sample(_shape_last(shape), **geometry) for shape, geometry in _POOLS)

    def standard(self) -> MaxPool:
        return MaxPool(**self.related())


@op
class ChannelsLastAveragePool(ChannelsLast, AveragePooling):
    """AveragePool of x: [N, *spatial, C] -> [N, *positions, C]."""

    domain = DOMAIN
    per_example = ("x",)
    inputs = ("x",)
    samples = lambda: tuple(
        Sample(_shape_last(shape), **geometry, count_include_pad=flag)
        for shape, geometry in _POOLS
        for flag in (False, True)
    )

    def standard(self) -> AveragePool:
        return AveragePool(**self.related())
