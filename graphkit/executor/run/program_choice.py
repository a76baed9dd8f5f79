"""Choose the program that computes a call: the one of the latest run, one from the cache, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import InputError, did_you_mean
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run import base_program
from graphkit.executor.run.base_program import Key, failure_of
from graphkit.executor.run.device_builder import device_cache
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.selection import LastRun, Selection, Selections
from graphkit.ir import limits
from graphkit.ir.types import TensorType

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import GroupDevices
    from graphkit.executor.run.declared import DeclarationChecker
    from graphkit.executor.run.divided.program import DividedProgram
    from graphkit.executor.run.executable import DeviceProgram, Executable
    from graphkit.executor.run.program_cache import ProgramCache
    from graphkit.executor.run.selection import NativeRuns
    from graphkit.executor.run.sized_program import SizedBuilder


class ProgramChoice:
    """Chooses the programs of an executor, for outputs and input shapes. Threads may share it.

    It owns the record of the latest run and the native runs of a template's programs, and alone changes the cache of
    programs. It must not refer to the executor, which keeps it, or else both live until Python collects cycles.

    Args:
        selections: The selections of outputs.
        params: Arrays of parameters and states.
        programs: The cache of programs.
        declarations: Compares the shapes of new programs with the declared ones. None: nothing is compared.
        lock: A reentrant lock, which protects the cache, the native runs and the latest program.
        runs_natively: Whether a run of a template's program may be one native call.

    Attributes:
        last_run: The record of the latest run. None if the next run must make all checks.
    """

    def __init__(
        self,
        selections: Selections,
        params: ParamStore,
        programs: ProgramCache[DeviceProgram] | ProgramCache[DividedProgram],
        declarations: DeclarationChecker | None,
        lock: AbstractContextManager[Any],
        runs_natively: bool,
    ):
        self._selections, self._params, self._programs = selections, params, programs
        self._declarations, self._lock, self._runs_natively = declarations, lock, runs_natively
        self.last_run: LastRun | None = None
        self._latest_chosen: Executable | None = None
        # Native runs of the programs of a template. At most one kind of runs is kept.
        self._sized_runs: NativeRuns | None = None

    def compiled(self, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None) -> Executable:
        """Return the program for the given input shapes. Other inputs keep their declared shapes."""
        return self.specialise(*self.key(shapes, outputs))

    def key(self, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None) -> tuple[Selection, Key]:
        """Return the selection and the key of the program for the given input shapes. See `compiled`."""
        selection = self._selections.get(outputs, derived=not any(name in self._params for name in shapes))
        known = selection.feedable
        for name in shapes:
            if name not in known:
                raise InputError(f"no input {name!r}{did_you_mean(name, known)}")
        arrays: list[Any] = []
        placeholders: dict[str, Any] = {}
        for spec in selection.inputs:
            if spec.stored and spec.name not in shapes:
                arrays.append(None if spec.static else self._params[spec.name])
                continue
            kind = spec.value.type
            shape: Sequence[Any] | None = shapes.get(spec.name, kind.shape if isinstance(kind, TensorType) else ())
            if spec.value.role == "rng" or not isinstance(kind, TensorType):
                arrays.append(None)
                continue
            if shape is None or not all(isinstance(d, int) for d in shape):
                if spec.needed:
                    raise InputError(f"the shape of input {spec.name!r} ({kind}) is not given")
                arrays.append(None)
                continue
            if any(d < 0 for d in shape):
                raise InputError(f"input {spec.name!r} is {kind}; the shape {list(shape)} has a negative size")
            # A placeholder with this shape, which takes no memory.
            with out_of_memory(selection.graph, f"input {spec.name!r} of shape {list(shape)}"):
                array = np.broadcast_to(np.empty((), kind.dtype.numpy), tuple(shape))
            placeholders[spec.name] = array
            arrays.append(array)
        return selection, selection.key(arrays, placeholders)

    def find_program(
        self, last: LastRun, feeds: Mapping[str, Any], is_frequent: bool
    ) -> tuple[Executable, list[Any]] | None:
        """Return the program for these feeds and its inputs, with the few checks of `LastRun`.

        Returns None if all checks are necessary. is_frequent: Whether to compile a program made from a template.
        """
        found = last.inputs(feeds)
        if found is None:
            return None
        arrays, has_same_shapes = found
        if has_same_shapes and not is_frequent:
            if last.program.needs_recompiling:
                return None
            if last.sized_runs is not None:
                last.sized_runs.take_latest()
            self._latest_chosen = last.program
            return last.program, arrays
        key = last.selection.key(arrays, feeds)
        program = self.specialise(last.selection, key)
        if is_frequent and (builder := _builder_of(program)) is not None:
            builder.count_frequent(program)
            program = self.specialise(last.selection, key)
        latest = last.for_program(program, arrays)
        if latest is None:
            return None
        self.remember(latest, key)
        return program, arrays

    def remember(self, latest: LastRun | None, key: Key) -> None:
        """Store the record of the latest run, for the next one. key: of its program.

        If a template made the program, the native part gets what it needs for the next runs.
        """
        if latest is not None:
            with self._lock:
                self._prepare_sized(latest, key)
        self.last_run = latest

    def _prepare_sized(self, latest: LastRun, key: Key) -> None:
        """Set `latest.sized_runs`, unless runs need Python."""
        selection, builder = latest.selection, _builder_of(latest.program)
        kind = (key.group, tuple(name for name, *_ in latest.specs))
        if self._sized_runs is not None and self._sized_runs.kind == kind:
            latest.sized_runs = self._sized_runs
            if builder is None:
                latest.sized_runs.leave([key])
            else:
                latest.sized_runs.serve(key, builder.runs_of(latest.program))
        elif builder is not None and self._runs_natively and not (selection.draws or self._programs.is_logged):
            made = None if self._declarations is None else _comparison(self._declarations, selection, key)
            self._sized_runs = latest.sized_runs = builder.sized_runs(kind, latest, made, self._programs)
            latest.sized_runs.serve(key, builder.runs_of(latest.program))

    def specialise(self, selection: Selection, key: Key) -> Executable:
        """Return the program from the cache, or build it."""
        with self._lock:
            program: Executable | None = self._programs.find(key)
            if program is None:
                program = self._programs.build(key, selection)
                if self._declarations is not None:
                    self._declarations.check_inputs(selection.shapes(key))
            if self._sized_runs is not None:
                self._sized_runs.take_latest()
            self._latest_chosen = program
            return program

    @property
    def latest(self) -> Executable | None:
        """The program compiled or run last."""
        with self._lock:
            runs = self._sized_runs
            if runs is not None and (key := runs.take_latest()) is not None:
                self.specialise(runs.selection, key)
            return self._latest_chosen


def program_cache(
    device: str | GroupDevices,
    settings: Sequence[Settings],
    pools: Pools,
    precision: str,
    inputs: Collection[str],
) -> ProgramCache[DeviceProgram] | ProgramCache[DividedProgram]:
    """Return the cache of programs for one device, or for those of groups of nodes. See `divided_cache`."""
    if isinstance(device, str):
        return device_cache(settings[0], pools, inputs)
    from graphkit.executor.run.divided.builder import divided_cache

    return divided_cache(device, settings, pools, precision, inputs)


def run_natively(
    runs: NativeRuns, feeds: Mapping[str, Any], advance: Callable[[], None]
) -> dict[str, Any] | bool | None:
    """Run natively, see `SizedRuns.run`. Returns None if this is not possible.

    advance: Advances the random generator.
    """
    if type(feeds) is not dict or base_program.recorder is not None:
        return None
    deadline = limits.only_deadline()
    if deadline is None:
        return None
    has_run = True  # also if it fails
    try:
        results = runs.run(feeds, deadline)
        has_run = isinstance(results, dict)
    except native_module().Error as error:
        raise failure_of(error) from error
    finally:
        if runs.advances_rng and has_run:
            advance()
    return results


def _builder_of(program: Executable) -> SizedBuilder | None:
    """Return the builder that made a program from a template; None for other programs."""
    return getattr(program, "builder", None)


def _comparison(
    declarations: DeclarationChecker, selection: Selection, key: Key
) -> Callable[[Sequence[Any], Mapping[str, Any]], None]:
    """Return a function that compares the shapes of a key, and the outputs of their first run, with the declared ones.

    key: The key of another program of the same group.
    """

    def compare(shapes: Sequence[Any], named_outputs: Mapping[str, Any]) -> None:
        declarations.check_inputs(selection.shapes(key._replace(shapes=tuple(shapes))))
        declarations.check_outputs(named_outputs)

    return compare
