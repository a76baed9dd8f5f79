"""The error for work that a library of NVIDIA does not support, and the alignment of its working memory."""

from __future__ import annotations

from graphkit.errors import RuntimeFailure

# Working memory of libraries begins at a multiple of this, and that of programs at a multiple of 64.
# https://docs.nvidia.com/cuda/cublas/ says so of cublasLtMatmul; cuDNN gets the same.
_ALIGNMENT = 256


class NotInLibrary(RuntimeFailure):
    """The library does not compute work of this kind, or of these sizes, on this GPU."""


def usable_bytes(nbytes: int) -> int:
    """Return how many of `nbytes` of working memory a library may use, wherever they begin."""
    return max(0, nbytes - _ALIGNMENT)


def aligned_address(address: int) -> int:
    """Return where a library's working memory begins in memory at `address`; 0 if there is none."""
    return -(-address // _ALIGNMENT) * _ALIGNMENT
