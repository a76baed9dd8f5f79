"""The precisions, and a check whether a device supports them."""

from __future__ import annotations

from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.devices.loading import DeviceName, native_module, with_arrays

PRECISIONS = ("f32", "bf16", "f16", "tf32", "fp8")

# Compute capability of the first GPUs with 8-bit matrix products.
_FLOAT8 = (8, 9)


def check_precision(precision: str, optimize: bool, device: DeviceName) -> None:
    """Raise UsageError for an unknown precision, or without `optimize` if the precision needs a rewrite.

    Raises UnsupportedError if the device does not support the precision.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(map(repr, PRECISIONS))}")
    if device.kind == "cpu" and precision in ("f16", "tf32", "fp8"):
        raise UnsupportedError(f"precision {precision!r} needs a GPU (device='cuda'); use 'f32' or 'bf16'")
    if precision in ("f32", "tf32"):
        return
    if not optimize:
        raise UsageError(f"precision {precision!r} rewrites the graph and cannot be used with optimize=False")
    gpu = with_arrays(*device)
    if gpu is not None:
        if precision == "fp8" and gpu.capability < _FLOAT8:
            raise UnsupportedError(
                f"precision 'fp8': {gpu.name!r} has compute capability {_dotted(gpu.capability)}, but 8-bit "
                f"matrix products need {_dotted(_FLOAT8)} or later; use 'bf16'"
            )
        return
    native = native_module()
    if native is None or not native.has_bfloat16():
        subject = "this processor" if native is None or native.has_onednn() else "an engine without oneDNN"
        raise UnsupportedError(f"precision 'bf16': {subject} does not multiply matrices of bfloat16; use 'f32'")


def _dotted(numbers: tuple[int, int]) -> str:
    """Return a compute capability as text, such as "8.9"."""
    return ".".join(map(str, numbers))
