"""The error for work that a library of NVIDIA does not support, and the alignment of its working memory."""

from __future__ import annotations

from graphkit.errors import RuntimeFailure

# Alignment of a library's working memory in bytes. The working memory of programs is only aligned to 64 bytes. The
# source for cublasLtMatmul is https://docs.nvidia.com/cuda/cublas/; cuDNN gets the same alignment.
_ALIGNMENT = 256


class NotInLibrary(RuntimeFailure):
    """The library does not compute work of this kind, or of these sizes, on this GPU."""


def usable_bytes(nbytes: int) -> int:
    """Return how many of `nbytes` bytes of working memory a library may use, whatever their address is."""
    return max(0, nbytes - _ALIGNMENT)


def aligned_address(address: int) -> int:
    """Return where a library's working memory begins in memory at `address`; 0 if there is none."""
    return -(-address // _ALIGNMENT) * _ALIGNMENT
