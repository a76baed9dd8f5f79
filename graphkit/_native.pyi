"""The native extension, built from graphkit/executor/native. graphkit.executor.cpu is its only user.

The classes from PostOp on are there when `has_onednn()`.
"""

from collections.abc import Sequence

import numpy as np

version: str

class Error(RuntimeError): ...
class Unsupported(Error): ...

def compiler() -> str: ...
def cpu_features() -> list[str]: ...
def default_threads() -> int: ...
def set_default_threads(threads: int) -> None: ...
def has_onednn() -> bool: ...
def onednn_version() -> str: ...
def onednn_isa() -> str: ...

class Packed:
    @property
    def nbytes(self) -> int: ...

class Step:
    def __call__(
        self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None], packed: Packed | None = None
    ) -> None: ...
    def pack(self, array: np.ndarray) -> Packed: ...
    @property
    def packable(self) -> int: ...
    @property
    def implementation(self) -> str: ...
    @property
    def threads(self) -> int: ...

class PoolWindow:
    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
    ) -> None: ...

class MaxPool(Step):
    def __init__(
        self, x: Sequence[int], y: Sequence[int], window: PoolWindow, column_major: bool = False, threads: int = 0
    ) -> None: ...

class MaxPoolGrad(Step):
    def __init__(self, dy: Sequence[int], dx: Sequence[int], threads: int = 0) -> None: ...

class AveragePool(Step):
    def __init__(
        self, x: Sequence[int], y: Sequence[int], window: PoolWindow, include_pad: bool = False, threads: int = 0
    ) -> None: ...

class AveragePoolGrad(Step):
    def __init__(
        self, dy: Sequence[int], dx: Sequence[int], window: PoolWindow, include_pad: bool = False, threads: int = 0
    ) -> None: ...

class PostOp:
    def __init__(self, kind: str, alpha: float = 0, beta: float = 0) -> None: ...

class MatMul(Step):
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
        post_ops: Sequence[PostOp] = (),
        pack_b: bool = False,
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

class Convolution(Step):
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        post_ops: Sequence[PostOp] = (),
        pack_weights: bool = False,
        threads: int = 0,
    ) -> None: ...

class Deconvolution(Step):
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        post_ops: Sequence[PostOp] = (),
        pack_weights: bool = False,
        threads: int = 0,
    ) -> None: ...

class ConvolutionBackwardData(Step):
    def __init__(
        self,
        dy: Sequence[int],
        w: Sequence[int],
        dx: Sequence[int],
        window: Window,
        *,
        pack_weights: bool = False,
        threads: int = 0,
    ) -> None: ...

class ConvolutionBackwardWeights(Step):
    def __init__(
        self,
        x: Sequence[int],
        dy: Sequence[int],
        dw: Sequence[int],
        window: Window,
        *,
        bias: bool = False,
        threads: int = 0,
    ) -> None: ...
