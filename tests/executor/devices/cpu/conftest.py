"""Fixtures of the tests of native kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops.xp import numpy_xp

sys.path.insert(0, str(Path(__file__).parent))

from instruction_sets import BEST_ISA, ISAS, using_isa


@contextmanager
def _kernels_for(isa: str) -> Iterator[str]:
    try:
        with using_isa(isa):
            yield isa
    except native.Unsupported as error:
        pytest.skip(str(error))


@pytest.fixture(params=[pytest.param(name, marks=() if name == BEST_ISA else pytest.mark.full) for name in ISAS])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels made while the test runs are those for this instruction set: in the default lane the best one."""
    with _kernels_for(request.param) as name:
        yield name


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in (ISAS[0], BEST_ISA) else pytest.mark.full) for name in ISAS]
)
def every_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, in the default lane with the lowest one, too: for kernels that have code of their own for some."""
    with _kernels_for(request.param) as name:
        yield name


@pytest.fixture
def near_float64() -> Callable[..., None]:
    """compare(function, arrays, tolerance, unused=(), **attributes): a kernel against its reference."""

    def compare(function, arrays, tolerance, unused=(), **attributes):
        """All outputs of the native kernel against the reference on float64; 1 and 3 threads give the same bits."""
        values = [None if a is None else Value(TensorType(dtype_of(a.dtype), a.shape)) for a in arrays]
        result = getattr(F, function)(*values, **attributes)
        node = (result[0] if isinstance(result, tuple) else result).node
        wide = [a.astype(np.float64) if a is not None and a.dtype.kind not in "iub" else a for a in arrays]
        with np.errstate(all="ignore"):
            wanted = node.op.reference(numpy_xp, *wide)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        results = []
        for threads in (1, 3):
            kernel = make_kernel("cpu", node, KernelContext(threads))
            assert kernel is not None
            outputs = [np.full(v.tensor.static_shape, 77).astype(v.dtype.numpy) for v in node.outputs]
            kernel(arrays, [None if i in unused else y for i, y in enumerate(outputs)])
            results.append(outputs)
        for number, (got, again, reference) in enumerate(zip(*results, wanted, strict=True)):
            if number not in unused:
                assert got.tobytes() == again.tobytes()
                scale = max(1.0, float(np.nanmax(np.abs(reference), initial=0)))
                np.testing.assert_allclose(
                    got.astype(np.float64),
                    reference,
                    rtol=tolerance,
                    atol=tolerance * scale,
                    err_msg=f"output {number}",
                )

    return compare
