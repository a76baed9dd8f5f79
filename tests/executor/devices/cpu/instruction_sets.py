"""The instruction sets that native kernels are compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphkit.executor.devices.cpu import native

ISAS = ("baseline", "avx2", "avx512")


@contextmanager
def using_isa(name: str) -> Iterator[None]:
    """Kernels made within are those for this instruction set.

    Raises:
        native.Unsupported: The processor does not have it.
    """
    native.use_isa(name)
    try:
        yield
    finally:
        native.use_isa("")


def _offered(name: str) -> bool:
    try:
        with using_isa(name):
            return True
    except native.Unsupported:
        return False


# The processor's best. Each test runs with it in the default lane, and with the others in the full lane; one sample of
# each operator is run with all of them by default, see test_every_kernel.py.
BEST_ISA = [name for name in ISAS if _offered(name)][-1]
