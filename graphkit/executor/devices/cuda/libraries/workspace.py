"""Working memory as libraries want it: it begins at a multiple of 256 bytes, where that of programs does at one of 64.

https://docs.nvidia.com/cuda/cublas/ says so of cublasLtMatmul; cuDNN is given the same.
"""

from __future__ import annotations

_ALIGNMENT = 256


def room(nbytes: int) -> int:
    """What a library may take of so many bytes, wherever they begin."""
    return max(0, nbytes - _ALIGNMENT)


def beginning(address: int) -> int:
    """Where a library's working memory begins in that at an address; 0 where there is none."""
    return -(-address // _ALIGNMENT) * _ALIGNMENT
