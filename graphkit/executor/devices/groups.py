"""The device of each group of nodes (`gk.attr_scope(ctx_group=...)`) of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.devices.loading import DeviceName
from graphkit.ir.context import GROUP
from graphkit.text import short_repr


class GroupDevices:
    """Several devices, and the device of each group of nodes.

    Args:
        devices: The devices, each once.
        groups: For each group, the position of its device.
        default: The position of the device for nodes without a group.

    Attributes:
        homes: For each parameter and state, the position of the device that holds it, for all graphs of one model.
    """

    def __init__(self, devices: Sequence[DeviceName], groups: Mapping[str, int], default: int | None):
        self.devices = tuple(devices)
        self.groups = dict(groups)
        self.default = default
        self.homes: dict[str, int] = {}

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        for group, position in self.groups.items():
            yield f"{group} on {self.devices[position]}"
        if self.default is not None:
            yield f"other nodes on {self.devices[self.default]}"


# The device of a whole graph, or those of its groups; None is for nodes in no group.
AnyDevice: TypeAlias = str | Mapping[str | None, str] | GroupDevices


def kinds_of(device: AnyDevice) -> list[str]:
    """Return the kinds of devices that a graph runs on. Raises UnsupportedError for an unknown device."""
    if isinstance(device, GroupDevices):
        names: Iterable[DeviceName] = device.devices
    else:
        names = map(DeviceName.of, [device] if isinstance(device, str) else device.values())
    return list(dict.fromkeys(name.kind for name in names))


def grouped(device: AnyDevice, known: Iterable[str]) -> str | GroupDevices:
    """Return the devices of the groups of a graph, or the name of the device if all groups have the same one.

    Args:
        device: The device of each group.
        known: The groups of the graph.

    Raises:
        UsageError: `device` is neither a name nor a dict of names. Or a group is unknown. Or a group has no device, and
            there is no default.
        UnsupportedError: A device is unknown.
    """
    if isinstance(device, (str, GroupDevices)):
        return device
    if not isinstance(device, Mapping) or not all(isinstance(name, str) for name in device.values()):
        raise UsageError(f"device must be a name, or a dict of names by group, not {device!r}")
    groups = list(known)
    for group in device:
        if group is not None and group not in groups:
            if not groups:
                raise UsageError(
                    f"device= (--device): no node of the graph is in a group {group!r}; build nodes under "
                    f"gk.attr_scope({GROUP}=...)"
                )
            listed = ", ".join(map(repr, groups))
            raise UsageError(f"device= (--device): the graph has no group {group!r}; its groups are {listed}")
    if None not in device and (lacking := [group for group in groups if group not in device]):
        listed = ", ".join(map(repr, lacking))
        raise UsageError(
            f"device= (--device): no device is given for {listed}, and no default (key None, or a DEVICE without GROUP)"
        )
    if not device:
        raise UsageError("device= (--device): the dict is empty; give a device for each group")
    names = {group: _parsed(group, name) for group, name in device.items()}
    devices = list(dict.fromkeys(names.values()))
    if len(devices) == 1:
        return next(iter(device.values()))
    placed = {group: devices.index(name) for group, name in names.items()}
    default = placed.pop(None, None)
    return GroupDevices(devices, {group: place for group, place in placed.items() if group is not None}, default)


def _parsed(group: str | None, name: str) -> DeviceName:
    try:
        return DeviceName.of(name)
    except UnsupportedError as error:
        whose = "nodes without a group" if group is None else f"group {group!r}"
        raise UnsupportedError(f"{error} (of {whose})") from None
