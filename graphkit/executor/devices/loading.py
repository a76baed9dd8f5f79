"""The kinds of devices, their names, and how they and the native extension are loaded.

`register_device` adds a kind of device with its own memory.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphkit.errors import MissingDependency, UnsupportedError, UsageError, did_you_mean
from graphkit.executor.devices import registry
from graphkit.executor.devices.extension import import_extension
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:  # for annotations only: importing it here would load the extension
    from graphkit import _native as _native
    from graphkit.executor.devices.device import Device


class DeviceKind:
    """A kind of device with its own memory.

    Args:
        open: Returns the device of a number, always the same object, and registers its kernels. Raises UnsupportedError
            if the machine does not have it.
        count: Returns the number of such devices on this machine.
    """

    def __init__(self, open: Callable[[int], Device], count: Callable[[], int] = lambda: 1):
        self.open, self.count = open, count


def _cuda() -> Any:
    return importlib.import_module("graphkit.executor.devices.cuda")


# The kinds by name. The CPU is not among them: its programs are native, and use the memory of the host.
_kinds = {"cuda": DeviceKind(lambda number: _cuda().device(number), lambda: _cuda().cards())}


def register_device(name: str, kind: DeviceKind) -> None:
    """Add a kind of device. Its name is then accepted wherever a device is chosen, as in `device="cuda"`.

    The module of the device registers its kernels in the table of `devices.registry`. An operator without a kernel is
    interpreted.

    Raises:
        UsageError: The name is taken.
    """
    if name == "cpu" or name in _kinds:
        raise UsageError(f"there is a device {name!r} already")
    _kinds[name] = kind


def unregister_device(name: str) -> None:
    """Remove a kind of device that was added, and its kernels.

    To add it again, register its kernels again: modules that are imported already do not register theirs a second time.
    """
    del _kinds[name]
    registry.unregister(name)


class DeviceName(NamedTuple):
    """A parsed name of a device: "cpu", "cuda", "cuda:1"."""

    kind: str
    number: int

    @staticmethod
    def of(device: str) -> DeviceName:
        """Parse a name. Raises UnsupportedError for an unknown device."""
        kind, colon, number = device.partition(":")
        known = ("cpu", *_kinds)
        if kind not in known:
            raise UnsupportedError(f"no device {device!r}{did_you_mean(kind, known)}")
        if colon and kind == "cpu":
            raise UnsupportedError(f"no device {device!r}: the CPU has no number; use 'cpu'")
        if colon and not (number.isascii() and number.isdigit() and len(number) < 5):
            raise UnsupportedError(
                f"no device {device!r}: expected a number from 0 to 9999 after the colon, as in '{kind}:0'"
            )
        return DeviceName(kind, int(number or 0))

    def check_number(self, count: int) -> None:
        """Raise UnsupportedError if the number is too large for a machine with `count` devices of this kind."""
        if self.number >= count:
            first, last = self._replace(number=0), self._replace(number=count - 1)
            several = f"{count} devices of this kind, '{first}' to '{last}'"
            found = several if count > 1 else f"only '{first}'" if count else "no device of this kind"
            raise UnsupportedError(f"no device '{self}': this machine has {found}")

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.kind != "cpu" else self.kind


def of_process(device: str, number: int) -> str:
    """Return the device of process `number` of this machine. "cuda" means a different GPU for each process.

    If there are more processes than GPUs, several share one. Raises as `load_device` does.
    """
    kind = _kinds.get(device)
    return device if kind is None else str(DeviceName(device, number % kind.count()))


def find_device(name: DeviceName) -> Device | None:
    """Return the device of a name; None for the CPU, which has no memory of its own."""
    return None if name.kind == "cpu" else _kinds[name.kind].open(name.number)


def load_device(device: str) -> bool:
    """Load a device's kernels.

    Returns:
        Whether there are kernels. A source tree that was never installed has none for the CPU: there, every node is
        interpreted.

    Raises:
        MissingDependency: An installed graphkit lacks its native extension, or CuPy is missing.
        UnsupportedError: The device is unknown, or this machine does not have it.
    """
    name = DeviceName.of(device)
    if name.kind != "cpu":
        if name.number:
            name.check_number(_kinds[name.kind].count())
        find_device(name)
        return True
    if load_native() is None:
        return False
    importlib.import_module("graphkit.executor.devices.cpu")
    return True


def load_native() -> Any:
    """Return the native extension. The first call loads it. It registers no kernels: `load_device` does.

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
        from graphkit.distribution import how_to_install, is_installed

        if is_installed():
            raise MissingDependency(
                f"graphkit is installed without its native extension, or Python finds another copy first ({__file__});"
                f" start Python in another folder, or install it again: {how_to_install()} ({error})"
            ) from error
        return None


def native_module() -> Any:
    """Return the native extension if `load_native` or `load_device` has loaded it, else None."""
    return sys.modules.get("graphkit._native")
