"""The precisions, and a check whether a device supports them."""

from __future__ import annotations

from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.devices.loading import DeviceName, find_device, native_module

PRECISIONS = ("f32", "bf16", "f16", "tf32", "fp8")


def check_known(precision: str) -> None:
    """Raise UsageError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(map(repr, PRECISIONS))}")


def check_precision(precision: str, optimize: bool, device: DeviceName) -> None:
    """Raise UsageError for an unknown precision, or without `optimize` if the precision needs a rewrite.

    Raises UnsupportedError if the device does not support the precision.
    """
    check_known(precision)
    if device.kind == "cpu" and precision in ("f16", "tf32", "fp8"):
        raise UnsupportedError(f"precision {precision!r} needs a GPU (device='cuda'); use 'f32' or 'bf16'")
    if precision == "f32":
        return
    if not optimize and precision != "tf32":
        raise UsageError(f"precision {precision!r} rewrites the graph and cannot be used with optimize=False")
    from graphkit.executor.devices.capabilities import ReducedPrecision

    found = find_device(device)
    if isinstance(found, ReducedPrecision):
        found.check_precision(precision)
        return
    if found is not None:
        raise UnsupportedError(f"device {found.name!r} does not support precision {precision!r}; use 'f32'")
    native = native_module()
    if native is None or not native.has_bfloat16():
        subject = "this processor" if native is None or native.has_onednn() else "an engine without oneDNN"
        raise UnsupportedError(f"precision 'bf16': {subject} does not multiply matrices of bfloat16; use 'f32'")
