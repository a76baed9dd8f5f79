"""The outputs that a run computes (`Selection`), and a fast path for runs with the same kind of feeds (`LastRun`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.lower.prepacking import DerivedArray, prepack
from graphkit.executor.run.base_program import Group, Key
from graphkit.executor.run.params import ParameterArray, ParamStore, is_stored
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import check_argument

if TYPE_CHECKING:
    from graphkit.executor.run.executable import Executable

    class NativeRuns(Protocol):
        """See `SizedRuns`."""

        kind: tuple[Group, tuple[str, ...]]
        selection: Selection
        run: Callable[[dict[str, Any], float], dict[str, np.ndarray] | bool | None]
        advances_rng: bool

        def __len__(self) -> int: ...
        def serve(self, key: Key, runs: int) -> None: ...
        def leave(self, keys: Iterable[Key]) -> None: ...
        def take_latest(self) -> Key | None: ...


# Bits of numpy's flags.num: C-contiguous and aligned. A program can read such an array without a copy.
_READABLE = 0x0001 | 0x0100


class RunInput(NamedTuple):
    """A graph input, as runs use it.

    Attributes:
        name: Its name.
        value: The input of the graph.
        needed: Whether the selected outputs or the updates depend on it.
        stored: Whether it is a parameter or a state: it has an array if it is not fed.
        derived: Whether its array is computed from parameters. It cannot be fed.
        static: Whether its declared shape is static, so that programs do not depend on the fed shape.
    """

    name: str
    value: Value
    needed: bool
    stored: bool
    derived: bool
    static: bool


class Selection:
    """The graph of the selected outputs and of all updates.

    Args:
        graph: The graph.
        fixed: The arrays of stored inputs, by name.
        inputs: The inputs of the graph.
        outputs: Names of the outputs.
        states: Names of the states, in the order of the updates.
        device_inputs: Positions of inputs that other programs leave in the memory of the device.
    """

    def __init__(
        self,
        graph: Graph,
        fixed: Mapping[str, VersionedArray],
        inputs: tuple[RunInput, ...],
        outputs: tuple[str, ...],
        states: tuple[str, ...],
        device_inputs: tuple[int, ...] = (),
    ):
        self.graph, self.fixed, self.inputs = graph, fixed, inputs
        self.outputs, self.states, self.device_inputs = outputs, states, device_inputs

    @cached_property
    def feedable(self) -> dict[str, int]:
        """The positions of the inputs that a caller may feed, by name."""
        return {spec.name: i for i, spec in enumerate(self.inputs) if not spec.derived}

    @cached_property
    def required(self) -> list[str]:
        """The names of the inputs that every caller must feed."""
        return [s.name for s in self.inputs if s.needed and not s.stored and not s.derived and s.value.role != "rng"]

    @cached_property
    def stored_with_open_shapes(self) -> list[int]:
        """Positions of the stored inputs without a static type. Their shapes are those of their arrays.

        A run reads these arrays to choose a program. Programs read all other stored arrays themselves.
        """
        return [i for i, s in enumerate(self.inputs) if s.stored and not s.derived and s.needed and not s.static]

    @cached_property
    def open(self) -> list[int]:
        """Positions of the inputs without a static type. A program depends on their shapes."""
        return [i for i, spec in enumerate(self.inputs) if not spec.static]

    @cached_property
    def _open_names(self) -> list[str | None]:
        """For each of the inputs `open`, its name in the graph; None if it is not a tensor."""
        values = [self.inputs[position].value for position in self.open]
        return [self.graph.name_of(v) if isinstance(v.type, TensorType) else None for v in values]

    @cached_property
    def generators(self) -> tuple[int, ...]:
        """Positions of the inputs that are states of a random generator."""
        return tuple(i for i, spec in enumerate(self.inputs) if spec.value.role == "rng")

    @cached_property
    def draws(self) -> bool:
        """Whether a node reads the state of a random generator."""
        states = {self.inputs[position].value for position in self.generators}
        return any(value in states for node in self.graph.nodes for value in node.operands)

    @cached_property
    def is_repeatable(self) -> bool:
        """Whether `LastRun` may compare only the dtypes and shapes of feeds to find the program of a run."""
        kinds = [s.value.type for s in self.inputs]
        return all(isinstance(t, TensorType) and t.dtype is not DType.STRING for t in kinds) and all(
            s.static or not s.stored for s in self.inputs
        )

    @cached_property
    def _unwritten(self) -> dict[int, VersionedArray]:
        """The arrays of stored inputs that runs do not write, by position."""
        # Every run changes the written states, so packed copies of them are not worthwhile.
        written = set(self.states)
        return {i: self.fixed[s.name] for i, s in enumerate(self.inputs) if s.stored and s.name not in written}

    def key(self, arrays: Sequence[Any], feeds: Iterable[str]) -> Key:
        """Return the key of the program for these inputs.

        Args:
            arrays: The arrays of the inputs.
            feeds: Names of the inputs that are fed.
        """
        at = self.feedable
        fed = tuple(sorted([at[name] for name in feeds if self.inputs[at[name]].stored]))
        return Key(id(self), fed, tuple([getattr(arrays[position], "shape", None) for position in self.open]))

    def shapes(self, key: Key) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a key, by name of the graph's input."""
        pairs = zip(self._open_names, key.shapes, strict=True)
        return {name: shape for name, shape in pairs if shape is not None and name is not None}

    def with_shapes(self, key: Key, shapes: Mapping[int, tuple[int, ...]]) -> Key:
        """Return the key with other shapes for some inputs, by position."""
        pairs = zip(self.open, key.shapes, strict=True)
        return key._replace(shapes=tuple([shapes.get(position, shape) for position, shape in pairs]))

    def fixed_inputs(self, key: Key) -> Mapping[int, VersionedArray]:
        """Return the arrays of stored inputs that are neither fed nor written by runs, by position."""
        if not key.fed:
            return self._unwritten
        return {position: array for position, array in self._unwritten.items() if position not in key.fed}

    def raise_wrong_inputs(self, feeds: Mapping[str, Any]) -> NoReturn:
        """Raise InputError that names unknown or missing inputs."""
        missing = [s for s in self.inputs if s.needed and s.value.role == "data" and s.name not in feeds]
        for name in feeds:
            if name not in self.feedable:
                known = [s.name for s in missing] or self.feedable
                raise InputError(f"no input {name!r}{did_you_mean(name, known)}")
        listed = ", ".join(f"{s.name!r} ({s.value.type})" for s in missing)
        raise InputError(f"input{'s' if len(missing) > 1 else ''} not given: {listed}")

    def results(
        self, program: Executable, arrays: list[Any], buffers: Mapping[int, np.ndarray], discard: Collection[str]
    ) -> list[Any]:
        """Run a program. Its results are None for discarded outputs that are in the memory of a device."""
        if not discard:
            return program.run(arrays, buffers)
        first = len(self.states)
        discarded = [first + i for i, name in enumerate(self.outputs) if name in discard]
        return program.run(arrays, buffers, discarded)


class Selections:
    """The selections of an executor, which are made on first use.

    Args:
        graph: The graph, with all outputs.
        names: Names of its inputs, for callers.
        params: Arrays of its parameters and states.
        optimize: Whether arrays that are derived from parameters may replace the nodes that compute them.

    Attributes:
        full: The selection of all outputs for runs that feed no parameter. None if it is not made yet.
    """

    def __init__(self, graph: Graph, names: Sequence[str], params: ParamStore, optimize: bool):
        self._graph, self._input_names = graph, names
        self._parameter_arrays = {name: ParameterArray(params, name) for name in params}
        self._prepacked, self._derived = self._prepack() if optimize else (graph, {})
        self.full: Selection | None = None
        self._made: dict[tuple[tuple[str, ...] | None, bool], Selection] = {}

    def _prepack(self) -> tuple[Graph, dict[str, DerivedArray]]:
        """Return the graph without nodes that depend only on parameters, and the arrays that replace their results."""
        written = {state for state, _ in self._graph.updates}
        named = zip(self._input_names, self._graph.inputs, strict=True)
        kept = {v: self._parameter_arrays[n] for n, v in named if is_stored(v) and v not in written}
        return prepack(self._graph, kept)

    def get(self, outputs: Sequence[str] | None, derived: bool = True) -> Selection:
        """Return the selection of some outputs (None: all), which is made on first use.

        derived: Whether arrays that are derived from parameters replace the nodes that compute them.
        """
        try:
            names = None if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
            key = (names, derived)
            found = self._made.get(key)
        except TypeError:
            check_argument("run", "outputs", "str | Sequence[str] | None", outputs)
            raise
        if found is not None:
            return found
        graph = self._prepacked if derived else self._graph
        if names is not None:
            by_name = dict(zip(graph.output_names, graph.outputs, strict=True))
            for name in names:
                if name not in by_name:
                    raise UsageError(f"no output {name!r}{did_you_mean(name, by_name)}")
            graph = graph.replace(outputs=[by_name[name] for name in names], output_names=names)
        read = {v for node in graph.nodes for v in node.inputs} | {*graph.outputs, *(new for _, new in graph.updates)}
        fixed: Mapping[str, VersionedArray] = {**self._parameter_arrays, **(self._derived if derived else {})}
        inputs = []
        for name, value in zip((*self._input_names, *self._derived), graph.inputs, strict=False):
            stored = is_stored(value)
            static = isinstance(value.type, TensorType) and value.type.is_static
            inputs.append(RunInput(name, value, value in read or names is None, stored, name in self._derived, static))
        name_of = {spec.value: spec.name for spec in inputs}
        states = tuple(name_of[state] for state, _ in graph.updates)
        made = Selection(graph, fixed, tuple(inputs), graph.output_names, states)
        made = self._made.setdefault(key, made)
        if key == (None, True):
            self.full = made
        return made


class LastRun:
    """The program of the latest run, and the dtypes and shapes of its feeds.

    If the next feeds are of the same kind, a few comparisons replace all other checks.

    Attributes:
        program: The program.
        selection: The selection.
        is_pure: Whether the graph has neither states nor random generators.
        specs: The feeds: (name, position, dtype, shape, whether the declared shape is static).
        sized_runs: Native runs with feeds of this kind, for all sizes of inputs. None: every run needs Python.
    """

    __slots__ = ("program", "selection", "is_pure", "specs", "sized_runs", "_no_inputs")

    def __init__(
        self, selection: Selection, program: Executable, specs: Sequence[tuple[str, int, np.dtype, Any, bool]]
    ):
        self.selection = selection
        self.program = program
        self.is_pure = not selection.states and not selection.generators
        self.specs = tuple(specs)
        self.sized_runs: NativeRuns | None = None
        self._no_inputs = [None] * len(selection.inputs)

    @staticmethod
    def of(
        full: Selection | None,
        selection: Selection,
        program: Executable,
        feeds: Mapping[str, Any],
        arrays: Sequence[Any],
    ) -> LastRun | None:
        """Return the record of a run, or None if later runs must make all checks.

        The run must compute all outputs and interpret no nodes, `selection` must be repeatable, and the feeds must be
        arrays for inputs other than states.

        Args:
            full: The selection of all outputs.
            selection: The selection of the run.
            program: Its program.
            feeds: The fed values, by name.
            arrays: The arrays of the inputs, by position.
        """
        if selection is not full or program.fallbacks or not selection.is_repeatable:
            return None
        specs: list[tuple[str, int, np.dtype, Any, bool]] = []
        for position in sorted([selection.feedable[name] for name in feeds]):
            spec = selection.inputs[position]
            if not isinstance(arrays[position], np.ndarray) or spec.name in selection.states:
                return None
            specs.append((spec.name, position, arrays[position].dtype, arrays[position].shape, spec.static))
        return LastRun(selection, program, specs)

    def inputs(self, feeds: Mapping[str, Any]) -> tuple[list[Any], bool] | None:
        """Return the inputs of the program, and whether their shapes are those of the latest run.

        Inputs that are not fed are None. If the shapes differ, another program is needed. Returns None if the feeds
        are of another kind, so that all checks are necessary.
        """
        if len(feeds) != len(self.specs):
            return None
        inputs: list[Any] = self._no_inputs.copy()
        same = True
        for name, position, dtype, shape, static in self.specs:
            array = feeds.get(name)
            if type(array) is not np.ndarray:
                if shape != () or type(array) is not dtype.type:
                    return None
                array = np.asarray(array)
            elif array.dtype != dtype:
                return None
            if array.shape != shape:
                if static or array.ndim != len(shape):
                    return None
                same = False
            if array.flags.num & _READABLE != _READABLE:
                return None
            inputs[position] = array
        return inputs, same

    def for_program(self, program: Executable, inputs: Sequence[Any]) -> LastRun | None:
        """Return the record for a program with other input shapes, or None if some of its steps are interpreted."""
        if program.fallbacks:
            return None
        specs = [(name, at, dtype, inputs[at].shape, static) for name, at, dtype, _, static in self.specs]
        return LastRun(self.selection, program, specs)
