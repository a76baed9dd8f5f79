"""One arena and one stream of a program on a device: the runs of one thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.executor.devices.capabilities import Recorder
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.pools import Pools
from graphkit.executor.memory.resident import DeviceValue, Resident
from graphkit.executor.run.arrays.run_loop import RecordingLoop, RunLoop
from graphkit.executor.run.arrays.steps import Steps
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType


class ArrayInstance:
    """Runs a program, one run at a time.

    Args:
        lowered: The program.
        device: The device.
        pools: The memory that programs share.
        borrowed: Inputs that are read in the memory of another instance of the device.
    """

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, borrowed: Collection[Value] = ()):
        self._lowered, self._device = lowered, device
        self._placement = lowered.placement
        self._steps = Steps(lowered, device, pools, borrowed)
        self._storages = self._steps.storages
        self._streams, self._stream = self._steps.streams, self._steps.stream
        self._loop = RecordingLoop(self._steps, device) if isinstance(device, Recorder) else RunLoop(self._steps)
        # Results that other programs read, by position: the storage and the array in it.
        self._views: dict[int, tuple[Any, Any]] = {}
        self._ready: Any = None  # an event recorded after the steps

    @property
    def is_writing(self) -> bool:
        """Whether a run has reached the steps that overwrite states. An interrupt then leaves them undefined."""
        return self._loop.is_writing

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """See ArrayProgram.run."""
        self._loop.is_writing = False
        sums = self._steps.sums
        with self._streams.on(self._stream), nullcontext() if sums is None else sums.taking_part():
            try:
                self._storages.begin(inputs)
                self._loop.run()
                self._steps.wait_for_sums()
                positions = range(len(self._lowered.graph.updates), len(self._placement.results))
                self._storages.send_outputs(position for position in positions if position not in discard)
                self._loop.check_last_faults()
                # Before the new states: outputs may be their old values.
                outputs = [
                    None if position in discard else self._storages.output(position, buffers.get(position))
                    for position in positions
                ]
                return [*self._storages.new_states(), *outputs]
            except GraphkitError:
                # The error of a later step may be a consequence of the first fault.
                if sums is None or not sums.is_broken:
                    self._steps.check_faults()
                raise
            finally:
                self._steps.end()

    # --- a run of several programs, which read each other's values ----------------------------------------------

    def begin(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of a run, as `run` does. They may be DeviceValues. Call `end` in any case."""
        with self._streams.on(self._stream):
            self._storages.begin(inputs)

    def launch(self) -> None:
        """Queue the steps, without waiting for kernels."""
        with self._streams.on(self._stream):
            self._loop.run_segments()
            self._ready = self._streams.event()

    def device_result(self, position: int) -> DeviceValue:
        """Return a result in the device's memory, for programs on this kind of device. It is valid until the next run.

        A sequence is a list of arrays.
        """
        value = self._placement.results[position].value
        root = self._placement.root[value]
        source = self._storages[root]
        held = self._views.get(position)
        if held is None or held[0] is not source:
            array = self._storages.read(value)
            # Copy a borrowed array: its program may overwrite it, and the next run may borrow another one.
            if isinstance(value.type, TensorType) and (root in self._storages.borrowed or not array.flags.c_contiguous):
                source = None
                with self._streams.on(self._stream):
                    array = self._storages.copied(array)
                    self._ready = self._streams.event()
            held = self._views[position] = source, array
        return DeviceValue(self._device, held[1], self._ready)

    def device_input(self, position: int) -> DeviceValue:
        """Return an input that was copied to this device, for other programs."""
        return DeviceValue(self._device, self._storages[self._lowered.graph.inputs[position]], self._ready)

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        """Return a result on the host. Waits for it."""
        with self._streams.on(self._stream):
            return self._storages.output(position, out)

    def check(self) -> None:
        """Wait for all steps; raises RuntimeFailure as `run` does."""
        with self._streams.on(self._stream):
            self._loop.check_last_faults()
            self._streams.synchronize(self._stream)

    def raise_fault(self) -> None:
        """Raise RuntimeFailure if a queued step has failed. Waits for all queued steps."""
        with self._streams.on(self._stream):
            self._steps.check_faults()

    def new_states(self) -> list[Resident | None]:
        """Return the new values of states, in the memory of the old ones."""
        with self._streams.on(self._stream):
            return self._storages.new_states()

    def end(self) -> None:
        """End the run, also after an error."""
        with self._streams.on(self._stream):
            self._steps.end()
