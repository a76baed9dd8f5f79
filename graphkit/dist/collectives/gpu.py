"""Collectives between the GPUs of all ranks, without copies through host memory.

The ranks use NCCL only if it works for every rank. Before each run, the CPUs compare which collectives the ranks will
launch, and raise an error if they differ. During the run, the CPUs check for lost ranks.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphkit import config
from graphkit.dist.agreement import Fingerprint, are_alike, powers
from graphkit.dist.collectives.layout import Slices
from graphkit.dist.communicator import Communicator
from graphkit.dist.progress.pending import Sum, unchanged
from graphkit.errors import GraphkitError, MissingDependency, RuntimeFailure, error_text
from graphkit.executor.devices.cuda.libraries import nccl
from graphkit.executor.devices.cuda.libraries.nccl import Exchange
from graphkit.executor.devices.device import address_of
from graphkit.executor.devices.loading import DeviceName
from graphkit.executor.lower.collaborators import RunAgreement
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple

# While this rank waits for its GPU, it yields the core for _EAGER seconds, then sleeps, _PAUSE seconds at a time. It
# checks for lost ranks every _CHECK seconds.
_EAGER, _PAUSE, _CHECK = 0.02, 5e-5, 0.05
_ENDING = 10.0
# The name of all-reduces without NCCL in the result of `sum_route`.
_STAGED = "staged (copied through host memory)"


class GpuCommunicator(Protocol):
    def launch(self, exchanges: Sequence[Exchange], dtype: DType, stream: int) -> None: ...
    def check(self) -> None: ...
    def abort(self) -> None: ...


class Gpu(Protocol):
    @property
    def current_stream(self) -> int: ...


class GpuCollectives:
    """Collectives between the GPUs of all ranks; implements DeviceSums.

    Attributes:
        waited_seconds: Seconds that this rank waited for others before runs.
    """

    def __init__(
        self, communicator: Communicator, gpu: Gpu, gpus: GpuCommunicator, fingerprint: Fingerprint | None = None
    ):
        self._communicator, self._gpu, self._gpus = communicator, gpu, gpus
        self._fingerprint = fingerprint or Fingerprint()
        self._recordings = 0
        self.broken = False
        self.waited_seconds = 0.0
        self.sent_bytes = 0

    def supports(self, dtype: DType) -> bool:
        return nccl.supports(dtype)

    def agree(self, order: str, nbytes: int, can_record: bool, recording: int, structure: int) -> RunAgreement:
        start = time.monotonic()
        fingerprint = self._fingerprint
        numbers = [
            int(can_record), *powers(recording), *powers(structure), *powers(fingerprint.number),
            int(fingerprint.leaving),
        ]  # fmt: skip
        total = self._summed(f"all-reduces on GPUs, {order}", numbers)
        self.waited_seconds += time.monotonic() - start
        self.sent_bytes += nbytes
        size = self._communicator.size
        fingerprint.check(total[5:7], size)
        fingerprint.leaving_ranks = int(total[7])
        all_can = int(total[0]) == size and are_alike(total[3:5], size)
        common = recording if all_can and are_alike(total[1:3], size) else 0
        if all_can and not common:
            self._recordings += 1
        return RunAgreement(all_can, common, self._recordings)

    def _summed(self, call: str, numbers: Sequence[int]) -> np.ndarray:
        array = np.array(numbers, np.int64)
        found: np.ndarray = self._communicator.perform(call, [array], Sum(array, None, unchanged, alone=True))
        return found

    # --- launches -------------------------------------------------------------------------------------------------

    def all_reduce(self, arrays: Sequence[Any], dtype: DType) -> None:
        self._launch([Exchange("sum", address_of(a), a.size) for a in arrays if a.size], dtype)

    def reduce_scatter(self, arrays: Sequence[Any], dtype: DType) -> None:
        self._launch(self._parts("reduce", arrays, dtype), dtype)

    def all_gather(self, wholes: Sequence[Any], dtype: DType) -> None:
        self._launch(self._parts("broadcast", wholes, dtype), dtype)

    def _parts(self, kind: Any, arrays: Sequence[Any], dtype: DType) -> list[Exchange]:
        size, itemsize = self._communicator.size, dtype.numpy.itemsize
        slices = Slices.of([a.size for a in arrays], itemsize, size)
        found = []
        for rank in range(size):
            for index, begin, end in slices.parts(rank):
                found.append(Exchange(kind, address_of(arrays[index]) + begin * itemsize, end - begin, rank))
        return found

    def _launch(self, exchanges: Sequence[Exchange], dtype: DType) -> None:
        if exchanges:
            self._gpus.launch(exchanges, dtype, self._gpu.current_stream)

    # --- waiting --------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        if self.broken or done():
            return
        # The GPU may still compute: other ranks must not count this rank as stalled.
        with self._communicator.waiting(True), self._communicator.working():
            begun = looked = time.monotonic()
            while not done():
                now = time.monotonic()
                if now - begun < _EAGER:
                    os.sched_yield()
                else:
                    time.sleep(_PAUSE)
                if now - looked > _CHECK:
                    looked = now
                    if (reason := self._reason()) is not None:
                        self._end(reason, done)
                        raise RuntimeFailure(reason)

    def _reason(self) -> str | None:
        if (reason := self._communicator.lost()) is not None:
            return reason
        try:
            self._gpus.check()
        except RuntimeFailure as error:
            return self._described(error)
        return None

    def _end(self, reason: str, done: Callable[[], bool]) -> None:
        """Abort the collectives, so that GPUs stop waiting.

        The abort may wait until CUDA graphs are freed, so a thread calls it.
        """
        self.broken = True
        self._communicator.fail(reason)
        threading.Thread(target=self._gpus.abort, name="graphkit-abort", daemon=True).start()
        end = time.monotonic() + _ENDING
        while not done() and time.monotonic() < end:
            time.sleep(_PAUSE)

    def fail(self, error: BaseException) -> None:
        if not self.broken:
            self._communicator.fail(self._described(error))

    def _described(self, error: BaseException) -> str:
        what = f"failed ({type(error).__name__}: {error})" if isinstance(error, Exception) else "was interrupted"
        rank, steps = self._communicator.rank, self._communicator.steps
        return f"rank {rank} {what} in step {steps}, in all-reduces on GPUs"


_REPORT, _REASON = 1024, 300
_UNIQUE = 128
# Least time limit for the creation of a communicator, in seconds.
_JOINING = 30.0


class _Report(NamedTuple):
    """The report of a rank about its GPU.

    Attributes:
        reason: Why the rank cannot use NCCL, or "".
        chosen_by_user: Whether a setting of the user is the reason.
        communicator: Number of the communicator of this GPU; 0 for none.
    """

    gpu: str
    reason: str
    chosen_by_user: bool = False
    communicator: int = 0


class GpuGroups:
    """Creates communicators of the GPUs of all ranks, and keeps one for each GPU of this rank."""

    def __init__(self, communicator: Communicator, fingerprint: Fingerprint | None = None):
        self._communicator = communicator
        self._fingerprint = fingerprint
        self._collectives: dict[int, tuple[int, GpuCollectives]] = {}
        self._count = 0

    def sums(self, device: str, staged: str = "") -> tuple[GpuCollectives | None, str]:
        """Return (collectives between GPUs, ""), or (None, reason why arrays are copied through host memory).

        Collective. If one rank cannot take part, no rank does: rank 0 then warns, unless a setting rules out NCCL on
        every rank with a GPU. If no rank reports a GPU, each rank gets its own `staged` as the reason.

        Args:
            staged: Why this rank must not use NCCL, if the user chose this; otherwise "".

        Raises:
            RuntimeFailure: A rank is lost. Also raises the errors of `load_device`.
        """
        mine, gpu = (_Report("", staged, chosen_by_user=True), None) if staged else self._own_report(device)
        reports = self._exchange_reports(mine)
        if not any(report.gpu for report in reports):
            return None, staged
        why = _reason_against(reports)
        if not why:
            assert gpu is not None, "no rank has a reason against it"
            number = DeviceName.of(device).number
            if {report.communicator for report in reports} == {mine.communicator} and mine.communicator:
                return self._collectives[number][1], ""
            sums, why = self._connected(gpu)
            if sums is not None:
                self._count += 1
                self._collectives[number] = self._count, sums
                return sums, ""
        if self._communicator.rank == 0 and any(report.gpu and not report.chosen_by_user for report in reports):
            text = f"gradients on GPUs are all-reduced through host memory: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None, why

    @property
    def sent_bytes(self) -> int:
        return sum(sums.sent_bytes for _, sums in self._collectives.values())

    def _own_report(self, device: str) -> tuple[_Report, Any]:
        kind, number = DeviceName.of(device)
        if kind != "cuda":
            return _Report("", "computes on the CPU"), None
        gpu = importlib.import_module("graphkit.executor.devices.cuda").device(number)
        known, sums = self._collectives.get(number, (0, None))
        place = f"{_machine()} {gpu.place}"
        if not config.NCCL.get():
            return _Report(place, "has GRAPHKIT_NCCL=0", chosen_by_user=True), gpu
        try:
            nccl.version()
        except MissingDependency as error:
            return _Report(place, f"has no NCCL ({error})"), gpu
        return _Report(place, "", communicator=0 if sums is None or sums.broken else known), gpu

    def _exchange_reports(self, mine: _Report) -> list[_Report]:
        why = mine.reason[:_REASON].encode("ascii", "replace").decode()
        text = json.dumps(mine._replace(reason=why)).encode().ljust(_REPORT)
        array = np.frombuffer(text, np.uint8)
        action = partial(self._communicator.allgather, array)
        rows = self._communicator.perform("GPUs of all ranks", [array], action)
        return [_Report(*json.loads(row.tobytes())) for row in rows]

    def _connected(self, gpu: Any) -> tuple[GpuCollectives | None, str]:
        """Return (collectives with a new communicator, ""), or (None, the reason). All ranks succeed, or none does."""
        connected, why = None, ""
        first, mine = self._communicator.rank == 0, np.zeros(_UNIQUE, np.uint8)
        if first:
            try:
                mine = np.frombuffer(nccl.unique_id(), np.uint8)
            except GraphkitError as error:
                why = f"cannot create an NCCL ID ({error})"
        broadcast = partial(self._communicator.broadcast, mine, 0)
        unique = self._communicator.perform("group of GPUs", [mine], broadcast)
        if unique.any():
            connected, why = self._connect_in_thread(gpu, unique.tobytes())
        why = _reason_against(self._exchange_reports(_Report("", why)))
        if connected is None:
            return None, why
        if why:
            connected.abort()
            return None, why
        return GpuCollectives(self._communicator, gpu, connected, self._fingerprint), ""

    def _connect_in_thread(self, gpu: Any, unique: bytes) -> tuple[Any, str]:
        """Return (a new communicator, ""), or (None, the reason).

        The creation may block forever, so a thread does it.
        """
        made: list[Any] = []
        failed: list[str] = []

        def make() -> None:
            try:
                made.append(gpu.communicator(unique, self._communicator.rank, self._communicator.size))
            except Exception as error:  # noqa: BLE001 - all ranks get it as the reason
                failed.append(f"cannot join ({error_text(error)})")

        thread = threading.Thread(target=make, name="graphkit-gpus", daemon=True)
        thread.start()
        longest = max(_JOINING, config.RANK_TIMEOUT.get())
        end = time.monotonic() + longest
        with self._communicator.waiting(True), self._communicator.working():
            while thread.is_alive() and time.monotonic() < end:
                thread.join(_CHECK)
                if (reason := self._communicator.lost()) is not None:
                    self._communicator.fail(reason)
                    raise RuntimeFailure(reason)
        if made:
            return made[0], ""
        return None, failed[0] if failed else f"waited {longest:.0f} s for the GPUs of the other ranks"


def sum_route(processes: int) -> str:
    """Return how ranks on this machine would all-reduce gradients on its GPUs.

    Returns:
        "nccl" and its version; or "staged (copied through host memory)" and the reason.
    """
    gpus = importlib.import_module("graphkit.executor.devices.cuda").cards()
    if not config.NCCL.get():
        return f"{_STAGED}: GRAPHKIT_NCCL=0"
    if gpus < processes:
        return f"{_STAGED}: this machine has {'one GPU' if gpus == 1 else f'{gpus} GPUs'}"
    try:
        return f"nccl {nccl.version()}"
    except MissingDependency as error:
        return f"{_STAGED}: {error}"


def _reason_against(reports: Sequence[_Report]) -> str:
    for rank, report in enumerate(reports):
        if report.reason:
            return f"rank {rank} {report.reason}"
    ranks = defaultdict(list)
    for rank, report in enumerate(reports):
        if report.gpu:
            ranks[report.gpu].append(rank)
    for gpu, several in ranks.items():
        if len(several) > 1:
            return f"ranks {', '.join(map(str, several))} share one GPU, {gpu.rpartition(' ')[2]}"
    return ""


def _machine() -> str:
    """Return a text that is equal for all processes of a machine, also in containers."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()
