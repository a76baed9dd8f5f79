"""Executor: prepare a graph once, specialise it for each set of input shapes, and run it.

Work that does not depend on shapes is done when the Executor is created. `specialise` binds dimensions, folds shape
arithmetic, chooses kernels, orders the steps and plans memory. The resulting programs are cached
(`graphkit.executor.run.program_cache`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import config
from graphkit.collector import without_gc
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import DeviceName, load_device, native_module
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.prepacking import DerivedArray, prepack
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.pools import Arenas, Pools
from graphkit.executor.run import base_program
from graphkit.executor.run.base_program import Key, failure_of
from graphkit.executor.run.compile import refuse_fallbacks
from graphkit.executor.run.device_builder import device_cache
from graphkit.executor.run.device_passes import backend_calls, check_on_cpu, device_of_groups, device_passes, grouping
from graphkit.executor.run.feeds import check_finite, convert
from graphkit.executor.run.outputs import build_maps, check_disjoint, checked_target, copied_to, overlaps, remove_maps
from graphkit.executor.run.params import ParameterArray, ParamStore, check_stored, is_stored
from graphkit.executor.run.selection import LastRun, RunInput, Selection
from graphkit.ir import limits
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.declare import Step, deferred
from graphkit.passes.core.draws import has_unbound
from graphkit.passes.core.sweep import run_passes
from graphkit.signatures import check_argument, typed
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice, GroupDevices
    from graphkit.executor.lower.collaborators import Channels, Collectives
    from graphkit.executor.report.plan import Plan
    from graphkit.executor.run.declared import DeclarationChecker
    from graphkit.executor.run.divided.program import DividedProgram
    from graphkit.executor.run.executable import DeviceProgram, Executable
    from graphkit.executor.run.program_cache import ProgramCache
    from graphkit.executor.run.selection import NativeRuns
    from graphkit.executor.run.sized_program import SizedBuilder
    from graphkit.executor.run.states import States
    from graphkit.passes.distribution.backends import Decision

# Most graphs have no random nodes, and so do not need its module.
_BIND_RNG = deferred("bind_rng", has_unbound)


# For runs that write no result to memory of the caller.
_NO_BUFFERS: Mapping[int, np.ndarray] = {}


class Executor:
    """A compiled graph, which runs on a device with the arrays of `params`. `Model.compile` returns one.

    Inputs with the role parameter or state are read from `params` by name; you can also feed them. A run writes the new
    values of states to `params`. An array that you have read from `params` does not change: while your code holds it,
    a run writes the new value to new memory. Do not read states in `params` during a run. After a failed run, some
    states may have new values. An input with the role rng takes its value from the property `rng`.

    Runs of a graph without updates may run concurrently in several threads; other runs wait for each other.

    Args:
        graph: The graph.
        params: Arrays of its parameters and states.
        device: "cpu", "cuda", or "cuda:1" for the second GPU. A dict runs groups of nodes on several devices:
            `{"first": "cuda:0", "second": "cuda:1", None: "cpu"}`, where None is for nodes without a group (see
            `graphkit.passes.distribution.places`).
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        seed: Seed of the random generator.
        rng_stride: Number of steps by which each run advances the random generator. If n ranks must draw different
            numbers, set it to n on each rank, and set `rng` so that rank r begins r steps later than rank 0.
        optimize: False skips the optimisation of the graph. Results differ at most by rounding.
        inplace: Let the memory planner write results over operands. It does not change the results.
        share: Let the memory planner share memory between values. It does not change the results.
        deterministic: Make results bit-identical for any number of threads.
        precision: "bf16" rounds operands and results of matrix products, convolutions and their gradients to bfloat16
            (each with a relative error of at most 2^-8). The sums are computed in float32; see
            `graphkit.passes.layout.round_products` for exceptions. On a GPU, it also rounds attention. The other
            precisions need a GPU. "f16" does the same with float16. "fp8" is "bf16" with 8-bit operands of matrix
            products (`graphkit.passes.fuse.float8_products`). "tf32" keeps 11 significant bits of the float32 operands
            of matrix products, convolutions and attention (each with a relative error of at most 2^-11).
        check_finite: Raise InputError for NaN or infinity in fed data.
        declared: Shapes that a file declares for the graph's values. If one is wrong, you get a DeclarationWarning.
        collectives: Performs the graph's all-reduces over processes. Without it, this process is the only participant.
        channels: Sends values from one process to another.
        max_memory: Memory limit of a run, and of each of its nodes: a number of bytes, or a text such as "500MB"
            (default: GRAPHKIT_MAX_MEMORY, else the free memory of the machine).
        max_iterations: Limit of the iterations of a Loop or Scan (default: GRAPHKIT_MAX_ITERATIONS, else none).
        timeout: Limit of the seconds of one run (default: GRAPHKIT_TIMEOUT, else none).
        backends: Other engines, which compute the groups of nodes that they support (see `graphkit.backend.resolve`).

    Raises:
        UnsupportedError: The device or precision is not available, or backends are given and the device is not "cpu".
        InputError: `params` lacks a parameter.
        MissingDependency: The installed package has no native part.
    """

    # Native runs of the programs of a template. At most one kind of runs is kept.
    _sized_runs: NativeRuns | None = None

    @typed("Executor")
    def __init__(
        self,
        graph: Graph,
        params: ParamStore,
        *,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        seed: int | None = None,
        rng_stride: int = 1,
        optimize: bool = True,
        inplace: bool = True,
        share: bool = True,
        deterministic: bool = False,
        precision: str = "f32",
        check_finite: bool = False,
        declared: Declarations | None = None,
        collectives: Collectives | None = None,
        channels: Channels | None = None,
        max_memory: int | str | None = None,
        max_iterations: int | None = None,
        timeout: float | None = None,
        backends: Sequence[Any] = (),
    ):
        self._bounds = limits.Bounds.of(max_memory, max_iterations, timeout)
        threads = config.num_threads(threads)
        self._settings_text = f"device {device}, {quantity(threads, 'thread')}, precision {precision}"
        device = device_of_groups(device, graph)
        check_on_cpu(backends, device)
        self._declarations = _declaration_checker(graph, declared) if declared else None
        names = [DeviceName.of(device)] if isinstance(device, str) else device.devices
        for each in names:
            load_device(str(each))
            _check_precision(precision, optimize, each)
        self.params = params
        common = Settings(
            "cpu", False, threads, deterministic, inplace, share, optimize, declared,
            collectives=collectives, channels=channels, tf32=precision == "tf32",
            backends=(calls := backend_calls(backends, threads, deterministic, Executor)),
        )  # fmt: skip
        settings = [
            common._replace(device=kind, number=number, native=kind == "cpu" and native_module() is not None)
            for kind, number in names
        ]
        self._check_finite, self._backend_calls = check_finite, calls
        self._rng, self._rng_stride = (config.SEED.get() if seed is None else seed, 0), rng_stride
        self._decisions: list[Decision] = []
        prepared = without_gc(run_passes)(graph, self._passes(settings, precision, backends))
        self._graph, self._map_builders = remove_maps(prepared)
        # Callers use the names of the original graph. Passes may rename inputs, and append others.
        self._input_names = (*graph.input_names, *self._graph.input_names[len(graph.inputs) :])
        check_stored(self._input_names, self._graph.inputs, params)
        self._parameter_arrays = {name: ParameterArray(params, name) for name in params}
        self._pools = Pools(lambda: params.stamp, arenas=Arenas(threads))
        self._prepacked, self._derived = self._prepack() if optimize else (self._graph, {})
        self._selections: dict[tuple[tuple[str, ...] | None, bool], Selection] = {}
        self._programs = _program_cache(device, settings, self._pools, precision, self._input_names)
        self._latest_chosen: Executable | None = None
        self._last_run: LastRun | None = None
        # Runs that write states hold the second lock: one at a time.
        self._lock, self._state_lock = threading.RLock(), threading.Lock()

    def _prepack(self) -> tuple[Graph, dict[str, DerivedArray]]:
        """Return the graph without nodes that depend only on parameters, and the arrays that replace their results."""
        written = {state for state, _ in self._graph.updates}
        named = zip(self._input_names, self._graph.inputs, strict=True)
        kept = {v: self._parameter_arrays[n] for n, v in named if is_stored(v) and v not in written}
        return prepack(self._graph, kept)

    def _passes(self, settings: Sequence[Settings], precision: str, backends: Sequence[Any]) -> list[Step]:
        """Return the passes that prepare the graph, before input shapes are known."""
        passes: list[Step] = [("bind_rng", _BIND_RNG), *(CLEANUP if settings[0].optimize else ())]
        if backends:
            passes.append(grouping(backends, self._decisions))
        if len(settings) == 1:
            passes += device_passes(settings[0], precision)
        return passes

    @property
    def backend_decisions(self) -> Sequence[Decision]:
        """For each node of the prepared graph, the group that it is in, or why graphkit computes it.

        Empty without backends. `gk.backend.explain` prints it. Groups are compiled in the first run, so nodes that
        graphkit computes because of `fallback=True` are known only after it.
        """
        return () if self._backend_calls is None else tuple(self._backend_calls.decided(self._decisions))

    def __reduce__(self) -> Any:
        raise UsageError(
            "an Executor holds memory and native code of this process and cannot be copied or pickled: copy or pickle "
            "the Model, and compile() that"
        )

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self._graph.name)
        yield self._settings_text
        yield quantity(len(self._graph.nodes), "node")
        yield quantity(len(self._programs), "program")
        yield f"parameters {human(self.params.nbytes)}"
        from graphkit.ir.origin import signature

        yield signature(self._graph)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return self._graph.output_names

    # --- running ------------------------------------------------------------------------------------

    def run(
        self,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, np.ndarray] | None = None,
        timeout: float | None = None,
        discard: Collection[str] = (),
        unread: Collection[str] = (),
    ) -> dict[str, np.ndarray]:
        """Compute outputs for the fed inputs.

        The returned arrays are new, or those of `out`. Ctrl-C and `timeout` end a run between two of its steps, but
        only until the run writes the first state. Therefore, loops of more than 10,000 steps (counted over all
        iterations) run before that. A shorter loop may also run after it; its number of iterations is checked against
        `max_iterations` before the run.

        Args:
            feeds: Arrays by input name.
            outputs: Names of the outputs to compute (default: all).
            out: Arrays for outputs, by name. They must have the dtype and shape of the output, be writable, and not
                share memory with each other. You may pass an array of `feeds` here.
            timeout: Time limit in seconds (default: that of the Executor).
            discard: Names of outputs that you do not need. On a GPU they are not copied to host memory, and their
                values in the result are None. On the CPU it has no effect.
            unread: Former name of `discard`.

        Returns:
            Arrays by output name.

        Raises:
            InputError: A fed array does not match its input.
            UsageError: An output is unknown.
            TypeMismatch: The fed shapes contradict each other inside the graph.
            LimitReached: The run took longer than `timeout`, or a loop too many iterations.
            RuntimeFailure: A kernel failed.
        """
        if unread:
            discard = [*discard, *unread]
        if timeout is None and self._bounds is None:
            return self._within_limits(feeds, outputs, out, discard)
        memory, iterations, usual = self._bounds or limits.Bounds()
        if timeout is not None:
            check_argument("run", "timeout", "float", timeout)
        with limits.limited(memory, usual if timeout is None else timeout, iterations):
            return self._within_limits(feeds, outputs, out, discard)

    def send_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Start copying the arrays of a later run to the device, while the device computes. Any thread may call this.

        Do not change these arrays until that run, which recognises them by their memory addresses. On the CPU, this
        method does nothing.
        """
        from graphkit.executor.devices.capabilities import Prefetcher

        for name, array in feeds.items():
            if isinstance(array, np.ndarray):
                for device in self._programs.builder.readers(name):
                    if isinstance(device, Prefetcher):
                        device.send_ahead(array)

    def _within_limits(
        self,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None,
        out: Mapping[str, np.ndarray] | None,
        discard: Collection[str],
    ) -> dict[str, np.ndarray]:
        """Run as `run` does, after its limits were set."""
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise UsageError(
                "run takes inputs by name: run({'x': array}); to pass them by position, call executor(array)"
            )
        if out is not None:
            check_argument("run", "out", "Mapping[str, Any]", out)
        if outputs is None and out is None and (last := self._last_run) is not None:
            sized = self._run_sized(last.sized_runs, feeds)
            if isinstance(sized, dict):
                return sized
            found = self._find_program(last, feeds, is_frequent=sized is True)
            if found is not None:
                program, arrays = found
                if last.is_pure and not discard:
                    results = program.run(arrays, _NO_BUFFERS)
                    return self._as_returned(program, dict(zip(last.selection.outputs, results, strict=True)))
                if not last.selection.states:
                    return self._step(last.selection, program, arrays, feeds, {}, discard)
                with self._state_lock:
                    return self._step(last.selection, program, arrays, feeds, {}, discard)
        # Arrays that are derived from parameters are wrong if a parameter is fed.
        selection = self._select(outputs, derived=not any(name in self.params for name in feeds))
        if not selection.graph.updates:
            return self._run(selection, feeds, {} if out is None else out, discard)
        with self._state_lock:
            return self._run(selection, feeds, {} if out is None else out, discard)

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """Run on the data inputs by position; return the outputs as a tuple."""
        names = [n for n, v in zip(self._input_names, self._graph.inputs, strict=True) if v.role == "data"]
        if len(arrays) != len(names):
            raise InputError(f"expected {quantity(len(names), 'input')} ({', '.join(names)}), got {len(arrays)}")
        results = self.run(dict(zip(names, arrays, strict=True)))
        return tuple(results.values())

    def _run_sized(self, runs: NativeRuns | None, feeds: Mapping[str, Any]) -> dict[str, Any] | bool | None:
        """Run natively, see `SizedRuns.run`. Returns None if this is not possible."""
        if runs is None or type(feeds) is not dict or base_program.recorder is not None:
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
                self.advance()
        return results

    def _find_program(
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
        program = self._specialise(last.selection, key)
        if is_frequent and (builder := _builder_of(program)) is not None:
            builder.count_frequent(program)
            program = self._specialise(last.selection, key)
        latest = last.for_program(program, arrays)
        if latest is None:
            return None
        self._remember(latest, key)
        return program, arrays

    def _remember(self, latest: LastRun | None, key: Key) -> None:
        """Store the record of the latest run, for the next one. key: of its program.

        If a template made the program, the native part gets what it needs for the next runs.
        """
        if latest is not None:
            with self._lock:
                self._prepare_sized(latest, key)
        self._last_run = latest

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
        elif builder is not None and not (selection.draws or self._map_builders or self._programs.is_logged):
            made = None if self._declarations is None else _comparison(self._declarations, selection, key)
            self._sized_runs = latest.sized_runs = builder.sized_runs(kind, latest, made, self._programs)
            latest.sized_runs.serve(key, builder.runs_of(latest.program))

    def _run(
        self, selection: Selection, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray], discard: Collection[str]
    ) -> dict[str, Any]:
        """Check and convert the feeds, find or build the program, and run it."""
        arrays = self._collect(selection, feeds)
        key = selection.key(arrays, feeds)
        program = self._specialise(selection, key)
        refuse_fallbacks(program)
        count = len(selection.states)
        finals = program.finals if out else ()
        buffers: dict[int, np.ndarray] = {}
        for name in out:
            if name not in selection.outputs:
                raise UsageError(f"no output {name!r}{did_you_mean(name, selection.outputs)}")
            if name in self._map_builders:
                raise UsageError(f"output {name!r} consists of maps and cannot be written to an array")
            position = count + selection.outputs.index(name)
            target = checked_target(name, finals[position].value, out[name])
            if finals[position].owned and target.flags.carray and not overlaps(target, arrays):
                buffers[position] = target
        check_disjoint(out)
        if not out and not self._check_finite:
            full = self._selections.get((None, True))
            self._remember(LastRun.of(full, selection, program, feeds, arrays), key)
        named_outputs = self._step(selection, program, arrays, feeds, buffers, discard)
        for name, target in out.items():
            in_place = count + selection.outputs.index(name) in buffers
            named_outputs[name] = target if in_place else copied_to(name, named_outputs[name], target)
        return named_outputs

    @cached_property
    def _states(self) -> States:
        """The memory of states, for graphs that have updates."""
        from graphkit.executor.run.states import States

        return States(self.params)

    def _step(
        self,
        selection: Selection,
        program: Executable,
        arrays: list[Any],
        fed: Container[str],
        buffers: dict[int, np.ndarray],
        discard: Collection[str],
    ) -> dict[str, Any]:
        """Run a program once, store the new values of states, and return the outputs by name.

        Args:
            selection: The selection.
            program: Its program.
            arrays: The inputs of the program.
            fed: Names of the inputs that the caller feeds.
            buffers: Memory for outputs, by position among states and outputs.
            discard: Names of outputs that are not needed.
        """
        names = selection.states
        if not names:
            if selection.generators:
                self._feed_rng(selection, arrays)
            results = selection.results(program, arrays, buffers, discard)
            return self._as_returned(program, dict(zip(selection.outputs, results, strict=True)))
        from graphkit.executor.run.interruption import HeldSignals

        with HeldSignals(lambda: (may := program.interruptible) is not None and may()):
            rng = self._rng
            if selection.generators:
                self._feed_rng(selection, arrays)
            taken = self._states.take(names, program, arrays, fed)
            try:
                results = selection.results(program, arrays, taken | buffers, discard)
            except BaseException:
                self._states.restore(names, program, taken)
                self._rng = rng
                raise
            named_outputs = dict(zip(selection.outputs, results[len(names) :], strict=True))
            del results[len(names) :]
            arrays.clear()
            taken.clear()
            self._states.commit(names, program, results)
        return self._as_returned(program, named_outputs)

    def _as_returned(self, program: Executable, named_outputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs as the caller receives them: with checked shapes, and with maps instead of tensors."""
        if self._declarations is not None and not program.is_as_declared:
            self._declarations.check_outputs(named_outputs)
            program.is_as_declared = program.has_fixed_results
        if self._map_builders:
            build_maps(self._map_builders, named_outputs)
        return named_outputs

    def _collect(self, selection: Selection, feeds: Mapping[str, Any]) -> list[Any]:
        """Return one converted and checked array per graph input.

        It is None for inputs that the program reads itself, or that are added later (states, random generators).
        """
        arrays: list[Any] = [None] * len(selection.inputs)
        known = selection.feedable
        if not all(name in feeds for name in selection.required) or not all(name in known for name in feeds):
            selection.raise_wrong_inputs(feeds)
        for name, fed in feeds.items():
            position = known[name]
            array = convert(name, selection.inputs[position].value.type, fed)
            if self._check_finite:
                check_finite(name, array)
            arrays[position] = array
        for position in selection.stored_with_open_shapes:
            name = selection.inputs[position].name
            if name not in feeds:
                arrays[position] = self.params[name]
        return arrays

    def _feed_rng(self, selection: Selection, arrays: list[Any]) -> None:
        """Put the state of the random generator into `arrays` where it is not fed, and advance its step."""
        unfed = [i for i in selection.generators if arrays[i] is None]
        if not unfed:
            return
        with self._lock:
            seed, step = self._rng
            self._rng = (seed, step + self._rng_stride)
        state = np.array([seed % (1 << 64), step], np.uint64)
        for position in unfed:
            arrays[position] = state

    @property
    def rng(self) -> tuple[int, int]:
        """(seed, step) of the random generator. A run of a graph with random operators advances the step."""
        return self._rng

    @rng.setter
    def rng(self, state: Sequence[int]) -> None:
        check_argument("Executor", "rng", "Sequence[int]", state)
        if len(state) != 2:
            raise UsageError(f"Executor: rng must be (seed, step), not {state!r}")
        seed, step = state
        with self._lock:
            self._rng = (int(seed), int(step))

    def advance(self) -> None:
        """Advance the random generator as a run does, without running."""
        if self.is_random:
            with self._lock:
                seed, step = self._rng
                self._rng = (seed, step + self._rng_stride)

    @cached_property
    def is_random(self) -> bool:
        """Whether a run uses and advances the random generator."""
        return any(value.role == "rng" for value in self._graph.inputs)

    # --- specialising -------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """Memory plan of the program compiled or run last. If input shapes are fixed, it exists before the first run.

        Raises UsageError if shapes are still unknown: run once, or call `specialise`.
        """
        latest = self._latest
        if latest is None:
            unknown = [
                f"{spec.name!r} ({spec.value.type})"
                for spec in self._select(None).inputs
                if spec.value.role == "data"
                and spec.needed
                and not spec.static
                and isinstance(spec.value.type, TensorType)
            ]
            if unknown:
                listed = ", ".join(unknown)
                raise UsageError(
                    f"there is no plan until the shapes of {listed} are known: run once, or call specialise()"
                )
            return self.specialise({})
        return latest.plan

    @typed("Executor.specialise")
    def specialise(self, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None = None) -> Plan:
        """Compile for the given input shapes, without running. Other inputs keep their declared shapes."""
        with limits.planning():
            return self._compiled(shapes, outputs).plan

    @typed("Executor.prepare")
    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Compile for the given input shapes, and pack the parameters, so that the first run does neither.

        Other inputs keep their declared shapes. Nothing is computed. On a GPU, and on several devices, parameters are
        copied in the first run.

        Raises:
            InputError: An input is unknown, or its shape is not known.
            OutOfMemory: There is no memory for the parameters or a run.
        """
        bounds = self._bounds or limits.Bounds()
        with limits.limited(bounds.memory, iterations=bounds.iterations):
            self._compiled(shapes, None).prepare()

    def _compiled(self, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str] | None) -> Executable:
        """Return the program for the given input shapes. Other inputs keep their declared shapes."""
        selection = self._select(outputs, derived=not any(name in self.params for name in shapes))
        known = selection.feedable
        for name in shapes:
            if name not in known:
                raise InputError(f"no input {name!r}{did_you_mean(name, known)}")
        arrays: list[Any] = []
        placeholders: dict[str, Any] = {}
        for spec in selection.inputs:
            if spec.stored and spec.name not in shapes:
                arrays.append(None if spec.static else self.params[spec.name])
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
        return self._specialise(selection, selection.key(arrays, placeholders))

    def _select(self, outputs: Sequence[str] | None, derived: bool = True) -> Selection:
        """Return the selection of some outputs (None: all), which is made on first use.

        derived: Whether arrays that are derived from parameters replace the nodes that compute them.
        """
        try:
            names = None if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs)
            key = (names, derived)
            found = self._selections.get(key)
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
        return self._selections.setdefault(key, made)

    def _specialise(self, selection: Selection, key: Key) -> Executable:
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
    def _latest(self) -> Executable | None:
        """The program compiled or run last."""
        with self._lock:
            runs = self._sized_runs
            if runs is not None and (key := runs.take_latest()) is not None:
                self._specialise(runs.selection, key)
            return self._latest_chosen


def _program_cache(
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


def _check_precision(precision: str, optimize: bool, device: DeviceName) -> None:
    """See `check_precision`. Every device supports "f32"."""
    if precision != "f32":
        from graphkit.executor.run.precision import check_precision

        check_precision(precision, optimize, device)


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


def _declaration_checker(graph: Graph, declared: Declarations) -> DeclarationChecker:
    from graphkit.executor.run.declared import DeclarationChecker

    return DeclarationChecker(graph, declared)
