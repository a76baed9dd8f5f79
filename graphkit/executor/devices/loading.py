"""Loading a device's kernels, and the native extension that those of the CPU come from."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from graphkit.distribution import how_to_install, is_installed
from graphkit.errors import MissingDependency, UnsupportedError, did_you_mean
from graphkit.executor.devices.extension import import_extension

if TYPE_CHECKING:  # for annotations: importing it is the CPU's business
    from graphkit import _native as _native
    from graphkit.executor.devices.device import Device

DEVICES = ("cpu", "cuda")


class DeviceName(NamedTuple):
    """What the name of a device says: "cpu", "cuda", "cuda:1"."""

    kind: str
    number: int

    @staticmethod
    def of(device: str) -> DeviceName:
        """Raises UnsupportedError for a device that graphkit does not know."""
        kind, colon, number = device.partition(":")
        if kind not in DEVICES:
            raise UnsupportedError(f"no device {device!r}{did_you_mean(kind, DEVICES)}")
        if colon and (kind == "cpu" or not (number.isascii() and number.isdigit() and len(number) < 5)):
            raise UnsupportedError(f"no device {device!r}: use 'cpu', or 'cuda:0', 'cuda:1', ... for GPUs")
        return DeviceName(kind, int(number or 0))

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.kind != "cpu" else self.kind


def of_process(device: str, number: int) -> str:
    """The device of one of a machine's processes, by its number: "cuda" is a card for each, as far as there are cards.

    Raises as `load_device` does.
    """
    if device != "cuda":
        return device
    return f"cuda:{number % importlib.import_module('graphkit.executor.devices.cuda').cards()}"


def with_arrays(device: str, number: int) -> Device | None:
    """The device of a kind and number that has arrays of its own, once it was loaded; None for the host."""
    if device == "cpu":
        return None
    found: Device = importlib.import_module(f"graphkit.executor.devices.{device}").device(number)
    return found


def load_device(device: str) -> bool:
    """Load a device's kernels; return whether its native part is there.

    A source tree that was never installed has no native part: every node is interpreted. Raises MissingDependency when
    an installed graphkit lacks it, or CuPy is missing; UnsupportedError for a device that graphkit does not know, or
    that this machine does not have.
    """
    kind, number = DeviceName.of(device)
    if kind == "cuda":
        importlib.import_module("graphkit.executor.devices.cuda").load(number)
        return True
    if load_native() is None:
        return False
    importlib.import_module("graphkit.executor.devices.cpu")
    return True


def load_native() -> Any:
    """The native extension, loaded at the first call, without the kernels that `load_device` registers.

    Returns:
        The module, or None in a source tree that was never installed.

    Raises:
        MissingDependency: An installed graphkit lacks it.
    """
    try:
        return import_extension()
    except ImportError as error:
        if "_native" not in str(error):
            raise
        if is_installed():
            raise MissingDependency(
                f"graphkit is installed without its native extension, or Python finds another copy first ({__file__});"
                f" start Python in another folder, or install it again: {how_to_install()} ({error})"
            ) from error
        return None


def native_module() -> Any:
    """The native extension, once `load_native` or `load_device` has loaded it; None where there is none."""
    return sys.modules.get("graphkit._native")
