"""Matrix products by cuBLASLt, through NVIDIA's bindings (nvmath). Descriptors are created once for each kernel.

https://docs.nvidia.com/cuda/cublas/ documents the functions and their attributes.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.launches import Matrix, Product
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary, aligned_address, usable_bytes
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple

# cudaDataType_t of elements.
_TYPES = {
    DType.FLOAT32: 0, DType.FLOAT64: 1, DType.FLOAT16: 2, DType.BFLOAT16: 14, DType.FLOAT8E4M3FN: 28,
    DType.FLOAT8E5M2: 29,
}  # fmt: skip
# cublasComputeType_t.
_FLOAT, _TF32, _DOUBLE = 68, 77, 70

# All arrays of a program are aligned to this many bytes.
_ALIGNMENT = 16

# cublasLtReductionScheme_t, COMPUTE_TYPE: partial sums are added in float32. Other schemes may add them in 16 bits.
_WIDE_SUMS = 2

# cublasStatus_t, NOT_SUPPORTED.
_NOT_SUPPORTED = 15


class _Pointers(NamedTuple):
    """The addresses of the arguments of a product; 0 for none."""

    a: int
    b: int
    c: int
    d: int
    bias: int
    workspace: int
    a_scale: int
    b_scale: int


class PreparedProduct:
    """A product with the algorithm that the library has chosen. Only one thread at a time may use it.

    Raises MissingDependency without the bindings, NotInLibrary if the library cannot compute it, and RuntimeFailure for
    other errors of the library.
    """

    def __init__(self, product: Product, gpu: int):
        """Choose the algorithm. gpu: the number of the current GPU."""
        lt = _bindings()
        wide = product.kind is DType.FLOAT64
        self._product, self._workspace = product, usable_bytes(product.workspace)
        self._handle = _handle(gpu)
        computed = _DOUBLE if wide else _TF32 if product.tf32 else _FLOAT
        self._description = self._owned(lt.matmul_desc_create(computed, int(wide)), lt.matmul_desc_destroy)
        self._layouts = [self._layout(m, k) for m, k in zip((product.a, product.b), product.factors, strict=True)]
        self._layouts += [self._layout(m, product.result) for m in (product.c or product.d, product.d)]
        scalar = np.float64 if wide else np.float32
        self._alpha, self._beta = np.array([product.alpha], scalar), np.array([product.beta], scalar)
        # The addresses that were last written to the descriptor, by attribute.
        self._pointed: dict[Any, int] = {}
        flags = lt.MatmulDescAttribute
        for flag, transposes in zip((flags.TRANSA, flags.TRANSB), product.transposed, strict=True):
            self._describe(flag, int(transposes))
        if product.bias is not None:
            self._describe(flags.EPILOGUE, int(lt.Epilogue.BIAS))
        if product.scaled is not None:
            # Add partial sums to float32 registers at intervals. Otherwise, GPUs of capability 9.0 keep about 14 bits
            # (arXiv:2412.19437, 3.5.2), which is too few for sums of many terms.
            self._describe(flags.FAST_ACCUM, 0)
            if product.bias is not None:
                self._describe(flags.BIAS_DATA_TYPE, _TYPES[product.kind])
        # The library chooses by the alignment of addresses, so set some that have the alignment of all arrays.
        self._point(_Pointers(*[_ALIGNMENT] * len(_Pointers._fields)))
        self._chosen = self._choice()

    def _layout(self, matrix: Matrix, kind: DType) -> int:
        lt, product = _bindings(), self._product
        layout = lt.matrix_layout_create(_TYPES[kind], matrix.rows, matrix.columns, matrix.leading)
        made = self._owned(layout, lt.matrix_layout_destroy)
        if product.batch > 1:
            attributes = lt.MatrixLayoutAttribute
            for name, number in (
                (attributes.BATCH_COUNT, product.batch),
                (attributes.STRIDED_BATCH_OFFSET, matrix.stride),
            ):
                held = np.array([number], lt.get_matrix_layout_attribute_dtype(int(name)))
                lt.matrix_layout_set_attribute(made, int(name), held.ctypes.data, held.nbytes)
        return made

    def _describe(self, attribute: Any, number: int) -> None:
        lt = _bindings()
        held = np.array([number], lt.get_matmul_desc_attribute_dtype(int(attribute)))
        lt.matmul_desc_set_attribute(self._description, int(attribute), held.ctypes.data, held.nbytes)

    def _point(self, at: _Pointers) -> None:
        """Write the addresses that belong to the descriptor, and not to the call, if they have changed."""
        flags, wanted = _bindings().MatmulDescAttribute, {}
        if self._product.bias is not None:
            wanted[flags.BIAS_POINTER] = at.bias
        if self._product.scaled is not None:
            wanted |= {flags.A_SCALE_POINTER: at.a_scale, flags.B_SCALE_POINTER: at.b_scale}
        for attribute, address in wanted.items():
            if self._pointed.get(attribute) != address:
                self._pointed[attribute] = address
                self._describe(attribute, address)

    def _choice(self) -> np.ndarray:
        """Return the first algorithm of the library's heuristics."""
        lt = _bindings()
        preference = lt.matmul_preference_create()
        try:
            attributes = lt.MatmulPreferenceAttribute
            limits = [(attributes.MAX_WORKSPACE_BYTES, self._workspace), (attributes.REDUCTION_SCHEME_MASK, _WIDE_SUMS)]
            limits += [(getattr(attributes, f"MIN_ALIGNMENT_{matrix}_BYTES"), _ALIGNMENT) for matrix in "ABCD"]
            for attribute, number in limits:
                held = np.array([number], lt.get_matmul_preference_attribute_dtype(int(attribute)))
                lt.matmul_preference_set_attribute(preference, int(attribute), held.ctypes.data, held.nbytes)
            found, count = np.zeros(1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self._handle, self._description, *self._layouts, preference, 1, found.ctypes.data, count.ctypes.data
            )
        except lt.cuBLASLtError as error:
            if error.status != _NOT_SUPPORTED:
                raise RuntimeFailure(f"cuBLASLt {version()}: {error}") from error
        finally:
            lt.matmul_preference_destroy(preference)
        if not count[0]:
            d, terms = self._product.d, self._product.a.rows if self._product.transposed[0] else self._product.a.columns
            sizes = f"[{d.columns}, {terms}] by [{terms}, {d.rows}]"
            kinds = " and ".join(dict.fromkeys(kind.value for kind in reversed(self._product.factors)))
            raise NotInLibrary(f"cuBLASLt {version()} cannot multiply {sizes} of {kinds}")
        algorithm: np.ndarray = found["algo"].copy()
        return algorithm

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the product on a stream. Raises RuntimeFailure for errors of the library.

        addresses: Those of `Product.arguments`; 0 for an absent one.
        """
        at = _Pointers(*addresses)
        self._point(at)
        a, b, c, d = self._layouts
        lt, workspace = _bindings(), aligned_address(at.workspace) if self._workspace else 0
        try:
            lt.matmul(
                self._handle, self._description, self._alpha.ctypes.data, at.a, a, at.b, b, self._beta.ctypes.data,
                at.c or at.d, c, at.d, d, self._chosen.ctypes.data, workspace, self._workspace, stream,
            )  # fmt: skip
        except lt.cuBLASLtError as error:
            raise RuntimeFailure(f"cuBLASLt {version()}: {error}") from error

    def _owned(self, made: int, destroy: Callable[[int], object]) -> int:
        """Return a descriptor that is destroyed with this object."""
        weakref.finalize(self, destroy, made).atexit = False
        return made


def version() -> str:
    """Return the version of cuBLASLt.

    Raises MissingDependency without the bindings, and RuntimeFailure without the library or a driver.
    """
    try:
        number = _bindings().get_version()
    except RuntimeError as error:
        raise RuntimeFailure(f"cuBLASLt: {error}") from error
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@cache
def _handle(gpu: int) -> int:
    """Return the handle of the current GPU, `gpu`. Several threads may use it at the same time."""
    handle: int = _bindings().create()
    return handle


@cache
def _bindings() -> Any:
    try:
        return importlib.import_module("nvmath.bindings.cublasLt")
    except ImportError as error:
        raise MissingDependency(
            f"matrix products on a GPU need cuBLASLt ({error}): {how_to_install('cuda12', 'cuda13')}"
        ) from error
