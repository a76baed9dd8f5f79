"""The native extension, built from graphkit/executor/native. graphkit.executor.devices.cpu is its only user.

The classes from Epilogue on are there when `has_onednn()`.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

version: str

class Error(RuntimeError): ...
class Unsupported(Error): ...
class NoMemory(Error): ...
class NotFinite(Error): ...
class Cancelled(Error): ...

def compiler() -> str: ...
def cpu_features() -> list[str]: ...
def has_bfloat16() -> bool: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def default_threads() -> int: ...
def set_default_threads(threads: int) -> None: ...
def has_onednn() -> bool: ...
def onednn_version() -> str: ...
def onednn_isa() -> str: ...

class Kernel:
    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None: ...
    def pack(self, input: int, plain: np.ndarray, packed: np.ndarray) -> None: ...
    @property
    def packed_inputs(self) -> list[int]: ...
    def packed_bytes(self, input: int) -> int: ...
    def packed_layout(self, input: int) -> str: ...
    @property
    def input_count(self) -> int: ...
    @property
    def output_count(self) -> int: ...
    @property
    def inplace(self) -> list[tuple[int, int]]: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def implementation(self) -> str: ...
    @property
    def threads(self) -> int: ...

_Where = tuple[int, int]
_LateOperand = tuple[int, int, int, bool]

class Region:
    def kernel(
        self, name: str, kernel: Kernel, inputs: Sequence[_Where], outputs: Sequence[_Where], scratch: _Where
    ) -> None: ...
    def copy(self, name: str, source: _Where, target: _Where, bytes: int) -> None: ...
    def late(
        self,
        name: str,
        make: Callable[..., tuple[Any, ...]],
        inputs: Sequence[_Where],
        operands: Sequence[_LateOperand],
        outputs: Sequence[_Where],
        results: Sequence[_LateOperand],
    ) -> None: ...
    def store(self, name: str, source: int, target: int, item: int) -> None: ...
    def resize(self, name: str, slot: int, shape: Sequence[int], item: int) -> None: ...
    def sizes(self, name: str, slot: int, first: int, last: int, target: _Where) -> None: ...
    def row(self, name: str, slot: int, item: int, index: _Where, wide: bool, target: _Where) -> None: ...
    def call(self, name: str, index: int) -> None: ...
    def commit(self) -> None: ...
    def fail(self, message: str) -> None: ...
    def branch(self, name: str, condition: _Where) -> tuple[Region, Region]: ...
    def loop(
        self,
        name: str,
        *,
        trips: int,
        trip_count: _Where | None,
        condition: _Where | None,
        iteration: _Where | None,
        condition_before: _Where | None,
        condition_after: _Where | None,
        carried: Sequence[tuple[_Where, int, int, tuple[_Where, _Where] | bool, _Where | None, int]],
        varying: Sequence[tuple[_Where, int, Sequence[int], int, int, int, int]],
        slices: Sequence[tuple[int, _Where, int, bool, int, int]],
        stacks: Sequence[tuple[int, int, Sequence[int] | None, int, bool]],
        empty: tuple[Callable[..., tuple[Any, ...]], Sequence[_Where], Sequence[_LateOperand]] | None,
    ) -> Region: ...

class Variable: ...

class Engine:
    def __init__(self, workers: int) -> None: ...
    def variable(self) -> Variable: ...
    def push(
        self,
        name: str,
        function: Callable[[], object],
        raised: dict[int, BaseException],
        reads: Sequence[Variable],
        writes: Sequence[Variable],
        priority: int,
    ) -> None: ...
    def push_kernel(
        self,
        name: str,
        kernel: Kernel,
        inputs: Sequence[np.ndarray | None],
        outputs: Sequence[np.ndarray | None],
        reads: Sequence[Variable],
        writes: Sequence[Variable],
        priority: int,
    ) -> None: ...
    def wait(self, variable: Variable, exclusive: bool) -> tuple[BaseException | int, str] | None: ...
    def wait_all(self) -> tuple[BaseException | int, str] | None: ...
    def released(self) -> list[int]: ...
    def cancel(self) -> None: ...
    def close(self, patience: float) -> bool: ...
    @property
    def workers(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def trace(self, on: bool) -> None: ...
    def events(self) -> list[tuple[str, int, int, int]]: ...

class Program:
    def __init__(self, threads: int, arena_bytes: int, externals: int) -> None: ...
    @property
    def root(self) -> Region: ...

class Instance:
    def __init__(self, program: Program, arena: np.ndarray) -> None: ...
    def set(self, external: int, array: np.ndarray | None, writable: bool = False) -> None: ...
    def lend(self, slot: int, array: np.ndarray, shape: Sequence[int]) -> None: ...
    def read(self, slot: int, item: int) -> tuple[np.ndarray, list[int]]: ...
    def run(self, arrays: list[np.ndarray | None], call: Callable[[int], None] | None = None) -> None: ...
    @property
    def committed(self) -> bool: ...
    def trace(self, on: bool) -> None: ...
    def events(self) -> list[tuple[str, int, int]]: ...

class Pointwise(Kernel):
    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        *,
        inputs: Sequence[tuple[Sequence[int], str] | None],
        constants: Sequence[tuple[str, bytes]],
        instructions: Sequence[tuple[str, Sequence[int], str]],
        outputs: Sequence[tuple[int, str]],
        threads: int = 0,
        divisions: str = "",
    ) -> None: ...
    @property
    def registers(self) -> int: ...
    @property
    def block(self) -> int: ...

class TableUpdate(Kernel):
    def __init__(
        self,
        tile: Pointwise,
        rest: Pointwise | None,
        *,
        size: int,
        indices: Sequence[int],
        index_dtype: str,
        threads: int,
    ) -> None: ...

class PoolWindow:
    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
    ) -> None: ...

class MaxPool(Kernel):
    def __init__(
        self, x: Sequence[int], y: Sequence[int], window: PoolWindow, column_major: bool = False, threads: int = 0
    ) -> None: ...

class MaxPoolGrad(Kernel):
    def __init__(self, dy: Sequence[int], dx: Sequence[int], threads: int = 0) -> None: ...

class AveragePool(Kernel):
    def __init__(
        self, x: Sequence[int], y: Sequence[int], window: PoolWindow, include_pad: bool = False, threads: int = 0
    ) -> None: ...

class RoiAlign(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        rois: int,
        *,
        height: int,
        width: int,
        samples: int,
        scale: float,
        half_pixel: bool,
        maximum: bool,
        threads: int = 0,
    ) -> None: ...

class NonMaxSuppression(Kernel):
    def __init__(
        self,
        images: int,
        classes: int,
        boxes: int,
        *,
        most: int,
        overlap: float,
        least: float | None,
        centred: bool,
        threads: int = 0,
    ) -> None: ...
    @property
    def capacity(self) -> int: ...

class Elimination(Kernel):
    def __init__(self, goal: str, a: Sequence[int], b: Sequence[int] | None, dtype: str, threads: int = 0) -> None: ...

class Cholesky(Kernel):
    def __init__(self, a: Sequence[int], lower: bool, dtype: str, threads: int = 0) -> None: ...

class TriangularSystem(Kernel):
    def __init__(
        self,
        a: Sequence[int],
        b: Sequence[int],
        *,
        transpose: bool,
        rightside: bool,
        lower: bool,
        alpha: float,
        dtype: str,
        threads: int = 0,
    ) -> None: ...

class Columns(Kernel):
    def __init__(
        self,
        *,
        add: bool,
        batch: int,
        channels: int,
        image: Sequence[int],
        block: Sequence[int],
        positions: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        begin: Sequence[int],
        dtype: str,
        threads: int = 0,
    ) -> None: ...

class LpPool(Kernel):
    def __init__(
        self, x: Sequence[int], y: Sequence[int], window: PoolWindow, p: int = 2, threads: int = 0
    ) -> None: ...

class AveragePoolGrad(Kernel):
    def __init__(
        self, dy: Sequence[int], dx: Sequence[int], window: PoolWindow, include_pad: bool = False, threads: int = 0
    ) -> None: ...

class ChannelsLastPool(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        y: Sequence[int],
        window: PoolWindow,
        *,
        maximum: bool,
        include_pad: bool = False,
        threads: int = 0,
    ) -> None: ...

class ChannelsLastMaxPoolTaps(Kernel):
    def __init__(self, x: Sequence[int], y: Sequence[int], window: PoolWindow, threads: int = 0) -> None: ...

class ChannelsLastMaxPoolGrad(Kernel):
    def __init__(self, dy: Sequence[int], dx: Sequence[int], window: PoolWindow, threads: int = 0) -> None: ...

class ChannelsLastAveragePoolGrad(Kernel):
    def __init__(
        self, dy: Sequence[int], dx: Sequence[int], window: PoolWindow, include_pad: bool = False, threads: int = 0
    ) -> None: ...

class DepthwiseConvolution(Kernel):
    def __init__(self, x: Sequence[int], y: Sequence[int], window: PoolWindow, threads: int = 0) -> None: ...

class DepthwiseBackwardData(Kernel):
    def __init__(self, dy: Sequence[int], dx: Sequence[int], window: PoolWindow, threads: int = 0) -> None: ...

class DepthwiseBackwardWeights(Kernel):
    def __init__(self, x: Sequence[int], dy: Sequence[int], window: PoolWindow, threads: int = 0) -> None: ...

class Reduce(Kernel):
    def __init__(
        self, op: str, x: Sequence[int], axes: Sequence[int], y: Sequence[int], type: str, threads: int = 0
    ) -> None: ...

class Softmax(Kernel):
    def __init__(self, shape: Sequence[int], axis: int, type: str, log: bool = False, threads: int = 0) -> None: ...

class ArgExtreme(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        axis: int,
        y: Sequence[int],
        type: str,
        largest: bool = True,
        last: bool = False,
        threads: int = 0,
    ) -> None: ...

class TopK(Kernel):
    def __init__(
        self, x: Sequence[int], axis: int, k: int, type: str, largest: bool = True, threads: int = 0
    ) -> None: ...

class LayerNorm(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        axis: int,
        scale: Sequence[int],
        bias: Sequence[int] | None,
        type: str,
        epsilon: float,
        about_mean: bool = True,
        stash: str = "float32",
        y: bool = True,
        threads: int = 0,
    ) -> None: ...

class LayerNormGrad(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        axis: int,
        scale: Sequence[int],
        type: str,
        epsilon: float,
        about_mean: bool = True,
        statistics: str = "float32",
        threads: int = 0,
    ) -> None: ...

class GroupNorm(Kernel):
    def __init__(self, x: Sequence[int], groups: int, type: str, epsilon: float, threads: int = 0) -> None: ...

class BatchNorm(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        type: str,
        scale_type: str,
        mean_type: str,
        epsilon: float,
        training: bool = False,
        momentum: float = 0.9,
        threads: int = 0,
    ) -> None: ...

class BatchNormGrad(Kernel):
    def __init__(self, x: Sequence[int], type: str, scale_type: str, epsilon: float, threads: int = 0) -> None: ...

class ChannelsLastBatchNorm(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        epsilon: float,
        momentum: float,
        *,
        low: float,
        high: float,
        residual: bool = False,
        threads: int = 0,
    ) -> None: ...

class ChannelsLastBatchNormGrad(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        *,
        passed: tuple[float, float] | None = None,
        from_y: bool = False,
        addend: bool = False,
        threads: int = 0,
    ) -> None: ...

class LocalResponseNorm(Kernel):
    def __init__(
        self, x: Sequence[int], type: str, size: int, alpha: float, beta: float, bias: float, threads: int = 0
    ) -> None: ...

class ClassLoss(Kernel):
    def __init__(
        self,
        scores: Sequence[int],
        type: str,
        label_type: str,
        weights: bool,
        reduction: str,
        ignore_index: int | None,
        softmax: bool,
        threads: int = 0,
    ) -> None: ...

class SoftmaxCrossEntropyGrad(Kernel):
    def __init__(
        self,
        scores: Sequence[int],
        type: str,
        label_type: str,
        weights: bool,
        reduction: str,
        ignore_index: int | None,
        threads: int = 0,
    ) -> None: ...

class SoftmaxCrossEntropyWithGrad(Kernel):
    def __init__(
        self,
        scores: Sequence[int],
        type: str,
        label_type: str,
        weights: bool,
        reduction: str,
        ignore_index: int | None,
        threads: int = 0,
    ) -> None: ...

class Attention(Kernel):
    def __init__(
        self,
        q: Sequence[int],
        k: Sequence[int],
        v: Sequence[int],
        mask: Sequence[int] | None = None,
        boolean_mask: bool = False,
        scale: float = 1.0,
        hidden_score: float = 0.0,
        causal: bool = False,
        heads_last: bool = False,
        output_heads_last: bool = False,
        threads: int = 0,
    ) -> None: ...

class Recurrent(Kernel):
    def __init__(
        self,
        kind: str,
        x: Sequence[int],
        hidden: int,
        *,
        direction: str = "forward",
        activations: Sequence[tuple[str, float, float]] = (),
        clip: float | None = None,
        linear_before_reset: bool = False,
        input_forget: bool = False,
        batch_first: bool = False,
        pack_w: bool = False,
        pack_r: bool = False,
        saves: bool = False,
        threads: int = 0,
    ) -> None: ...

class RecurrentGrad(Kernel):
    def __init__(
        self,
        kind: str,
        steps: int,
        batch: int,
        hidden: int,
        *,
        direction: str = "forward",
        activations: Sequence[tuple[str, float, float]] = (),
        clip: float | None = None,
        linear_before_reset: bool = False,
        input_forget: bool = False,
        batch_first: bool = False,
        reads_gates: bool = True,
        reads_other: bool = True,
        threads: int = 0,
    ) -> None: ...

_Dims = Sequence[int]
_Maps = Sequence[Sequence[int] | None]
_Operand = tuple[Sequence[int], str]

class StridedView(Kernel):
    def __init__(
        self, name: str, x: _Dims, y: _Dims, sizes: _Dims, strides: _Dims, offset: int, dtype: str, threads: int = 0
    ) -> None: ...

class StridedPlacement(Kernel):
    def __init__(
        self, name: str, x: _Dims, y: _Dims, strides: _Dims, offset: int, dtype: str, threads: int = 0
    ) -> None: ...

class Concat(Kernel):
    def __init__(self, xs: Sequence[_Dims], axis: int, dtype: str, threads: int = 0) -> None: ...

class Split(Kernel):
    def __init__(self, x: _Dims, sizes: _Dims, axis: int, dtype: str, threads: int = 0) -> None: ...

class Pad(Kernel):
    def __init__(
        self, x: _Dims, maps: _Maps, pads: _Dims, value: _Dims | None, dtype: str, threads: int = 0
    ) -> None: ...

class ResizeNearest(Kernel):
    def __init__(self, x: _Dims, maps: _Maps, fill: bytes, dtype: str, threads: int = 0) -> None: ...

class Resample(Kernel):
    def __init__(
        self,
        name: str,
        x: _Dims,
        axes: Sequence[tuple[int, int, int, Sequence[int], Sequence[float], Sequence[int]]],
        fill: float,
        round: bool,
        dtype: str,
        threads: int = 0,
    ) -> None: ...

class Gather(Kernel):
    def __init__(
        self, x: _Dims, indices: _Dims, axis: int, dtype: str, index_dtype: str = "int64", threads: int = 0
    ) -> None: ...

class GatherElements(Kernel):
    def __init__(
        self, x: _Dims, indices: _Dims, axis: int, dtype: str, index_dtype: str = "int64", threads: int = 0
    ) -> None: ...

class GatherND(Kernel):
    def __init__(self, x: _Dims, indices: _Dims, batch_dims: int, dtype: str, threads: int = 0) -> None: ...

class GatherGrad(Kernel):
    def __init__(
        self,
        x: _Dims,
        x_dtype: str,
        indices: _Dims,
        axis: int,
        dtype: str,
        index_dtype: str = "int64",
        threads: int = 0,
    ) -> None: ...

class ScatterElements(Kernel):
    def __init__(
        self,
        x: _Dims,
        indices: _Dims,
        axis: int,
        reduction: str,
        dtype: str,
        index_dtype: str = "int64",
        threads: int = 0,
    ) -> None: ...

class ScatterND(Kernel):
    def __init__(self, x: _Dims, indices: _Dims, reduction: str, dtype: str, threads: int = 0) -> None: ...

class ReverseSequence(Kernel):
    def __init__(self, x: _Dims, batch_first: bool, dtype: str, threads: int = 0) -> None: ...

class Cumulative(Kernel):
    def __init__(
        self, x: _Dims, axis: int, product: bool, exclusive: bool, reverse: bool, dtype: str, threads: int = 0
    ) -> None: ...

class LinearRecurrence(Kernel):
    def __init__(self, a: _Dims, axis: int, reverse: bool, dtype: str, threads: int = 0) -> None: ...

class Fill(Kernel):
    def __init__(self, y: _Dims, value: bytes, dtype: str, threads: int = 0) -> None: ...

class Range(Kernel):
    def __init__(self, shapes: Sequence[_Dims], length: int, dtype: str, threads: int = 0) -> None: ...

class FiniteGuard(Kernel):
    def __init__(self, x: _Dims, dtype: str, token: _Dims, token_dtype: str) -> None: ...

class EyeLike(Kernel):
    def __init__(self, x: _Dims, x_dtype: str, k: int, one: bytes, dtype: str, threads: int = 0) -> None: ...

class OneHot(Kernel):
    def __init__(
        self,
        indices: _Dims,
        depth_shape: _Dims,
        depth: int,
        axis: int,
        dtype: str,
        index_dtype: str = "int64",
        depth_dtype: str = "int64",
        threads: int = 0,
    ) -> None: ...

class Trilu(Kernel):
    def __init__(self, x: _Dims, upper: bool, k: _Dims | None, dtype: str, threads: int = 0) -> None: ...

class PhiloxSource:
    def __init__(self, seed: int, step: int, stream: int, has_operand: bool) -> None: ...

class RandomFill(Kernel):
    def __init__(
        self,
        name: str,
        normal: bool,
        first: float,
        second: float,
        like: _Operand | None,
        y: _Dims,
        dtype: str,
        source: PhiloxSource,
        threads: int = 0,
    ) -> None: ...

class Bernoulli(Kernel):
    def __init__(self, x: _Dims, x_dtype: str, dtype: str, source: PhiloxSource, threads: int = 0) -> None: ...

class Dropout(Kernel):
    def __init__(
        self,
        x: _Dims,
        dtype: str,
        ratio: _Operand | None,
        training: _Operand | None,
        source: PhiloxSource,
        threads: int = 0,
    ) -> None: ...

class RngFoldIn(Kernel):
    def __init__(self, index: _Dims, index_dtype: str) -> None: ...

def onednn_regions_are_watched() -> bool: ...

class Epilogue:
    def __init__(
        self,
        activation: str = "",
        alpha: float = 0,
        beta: float = 0,
        residual: bool = False,
        residual_last: bool = False,
        fused: bool = True,
    ) -> None: ...

class MatMul(Kernel):
    def __init__(
        self,
        a: Sequence[int],
        b: Sequence[int],
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        bias: Sequence[int] | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        epilogue: Epilogue = ...,
        pack_b: bool = False,
        deterministic: bool = False,
        dtype: str = "float32",
        threads: int = 0,
    ) -> None: ...

class Window:
    def __init__(
        self,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        groups: int = 1,
    ) -> None: ...

class Convolution(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        epilogue: Epilogue = ...,
        pack_weights: bool = False,
        channels_last: bool = False,
        deterministic: bool = False,
        dtype: str = "float32",
        threads: int = 0,
    ) -> None: ...

class Deconvolution(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        epilogue: Epilogue = ...,
        pack_weights: bool = False,
        channels_last: bool = False,
        deterministic: bool = False,
        dtype: str = "float32",
        threads: int = 0,
    ) -> None: ...

class TiledMethod(Enum):
    winograd = ...
    direct = ...

class TiledConvolution(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        method: TiledMethod,
        *,
        bias: bool = False,
        epilogue: Epilogue = ...,
        pack_weights: bool = False,
        transposed: bool = False,
        threads: int = 0,
    ) -> None: ...
    @staticmethod
    def method(
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        *,
        constant: bool,
        transposed: bool = False,
    ) -> TiledMethod | None: ...

class ConvolutionBackwardData(Kernel):
    def __init__(
        self,
        dy: Sequence[int],
        w: Sequence[int],
        dx: Sequence[int],
        window: Window,
        *,
        pack_weights: bool = False,
        channels_last: bool = False,
        deterministic: bool = False,
        dtype: str = "float32",
        threads: int = 0,
    ) -> None: ...

class ConvolutionBackwardWeights(Kernel):
    def __init__(
        self,
        x: Sequence[int],
        dy: Sequence[int],
        dw: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        channels_last: bool = False,
        deterministic: bool = False,
        dtype: str = "float32",
        threads: int = 0,
    ) -> None: ...
