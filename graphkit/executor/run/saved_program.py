"""Write programs to .gkp files, which libgraphkit.so runs without Python.

A file contains the steps of a program, how its kernels were made, and its weights as the kernels read them. It is for
processors of one kind. executor/native/c_interface/saved_program.cpp reads it; docs/architecture.md describes the
format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from graphkit.distribution import version
from graphkit.errors import MissingDependency, UnsupportedError, UsageError
from graphkit.executor.devices.loading import load_device, native_module
from graphkit.executor.devices.recipes import recorded_recipes
from graphkit.executor.lower.emit import Emitter
from graphkit.executor.lower.lowering import NotNative
from graphkit.executor.lower.template import Template
from graphkit.executor.run.base_program import BaseProgram, Section
from graphkit.executor.run.device_builder import DeviceBuilder
from graphkit.executor.run.program import Program
from graphkit.executor.run.saved_batch import describe_sizes, find_shapes, run_in_parts
from graphkit.executor.run.saved_encoding import number, optional, raw, sequence, text
from graphkit.executor.run.saved_file import SavedArrays, laid_out, write_file
from graphkit.executor.run.saved_steps import Numbers, StepList, encoded_buffers, encoded_steps, refuse_other_steps
from graphkit.executor.run.saved_template import SizedProgramFile
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.passes.core.bind import match_shapes

_RANDOM_STATE_BYTES = 16
# An error names at most this many states.
_MOST_NAMED = 5
# Element types that programs in C have.
_TYPES = frozenset(
    DType(name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
)  # fmt: skip


class SavedProgramFacts(NamedTuple):
    """A summary of a saved program.

    Args:
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        steps: Number of steps.
        nbytes: Bytes of the file.
        sizes: Shapes of the inputs that the file runs, see `describe_sizes`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: int
    nbytes: int
    sizes: tuple[str, ...]


def save_program(
    executor_options: Mapping[str, Any],
    path: Path,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    checks: Sequence[Mapping[str, Any]] = (),
    batch: Sequence[int] | None = None,
    any_size: bool = False,
) -> SavedProgramFacts:
    """Compile a graph for the CPU, and write a file with a program for each entry of `shapes`.

    If the rows of a batch are independent, the file says so, and the C library runs batches of any size.

    Args:
        executor_options: Arguments of `Executor`: graph, params, threads, ...
        path: The file.
        shapes: Shapes of inputs, by name, for each program. Other inputs have static types.
        checks: Arrays for all inputs of each entry of `shapes`: run its programs in Python and in the C library, and
            compare the outputs. For other numbers of rows, rows are repeated.
        batch: Numbers of rows, see `find_shapes`.
        any_size: Also save a program for any sizes of symbolic axes, and the weights as they are.

    Raises:
        CheckFailed: With `checks`: the C library computes other bits. The file is then not written.
        InputError: The shape of an input is not known.
        MissingDependency: The installed package has no native part.
        UnsupportedError: A part of the graph needs Python, or cannot be saved; or rows may depend on each other. The
            message names nodes and operators.
        UsageError: There are no shapes, or two programs would have the same shapes.
        RuntimeFailure: The file cannot be written.
    """
    if not load_device("cpu"):
        raise MissingDependency("saving a program needs graphkit's native part, which this installation lacks")
    if not shapes:
        raise UsageError(f"{path}: no shapes are given, so no program would be saved")
    chosen = find_shapes(executor_options["graph"], shapes, batch)
    contents = _Contents(several=len(chosen.shapes) > 1, batched=chosen.batched)
    contents.sizes = describe_sizes(executor_options["graph"], chosen, any_size)
    executors = []
    for each in chosen.shapes:
        # A second program of one executor could come from its template, and have other kernels.
        executors.append(_SavingExecutor(**executor_options))
        contents.add(executors[-1].program(each), executors[-1])
    if any_size:
        contents.add_template(executors[0], chosen.shapes[0])
    if not checks:
        return _written(contents, path)
    copies = len(chosen.shapes) // len(shapes)
    tested = [
        _Tested(executor, _resized(checks[i // copies], each, chosen.batched))
        for i, (executor, each) in enumerate(zip(executors, chosen.shapes, strict=True))
    ]
    return _written(contents, path, lambda written: _compare(written, path, tested, contents))


class _Tested(NamedTuple):
    """A program that is compared with the C library."""

    executor: _SavingExecutor
    feeds: Mapping[str, Any]


def _resized(
    feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], batched: frozenset[str]
) -> Mapping[str, Any]:
    """Return feeds whose batched inputs have as many rows as `shapes` say. Rows are repeated."""
    return {name: np.resize(x, (shapes[name][0], *x.shape[1:])) if name in batched else x for name, x in feeds.items()}


def _compare(written: Path, path: Path, tested: Sequence[_Tested], contents: _Contents) -> None:
    """Compare programs with the C library, a batch that it divides, and the program for any sizes.

    Raises CheckFailed for other bits.
    """
    from graphkit.executor.run.c_runtime import compare_with_python

    expected = [each.executor.run(each.feeds) for each in tested]
    for each, outputs in zip(tested, expected, strict=True):
        compare_with_python(written, path, each.feeds, outputs)
    if contents.batched:
        sizes = [len(each.feeds[min(contents.batched)]) for each in tested]
        first = tested[0].feeds
        rows = {name: (sum(sizes) + 1, *np.shape(first[name])[1:]) for name in contents.batched}
        feeds = _resized(first, rows, contents.batched)
        runs = _runs(written, feeds)
        used = sorted((n, i) for i, n in enumerate(sizes) if runs[i])[::-1]
        parts = [(n, runs[i], tested[i].executor.run) for n, i in used]
        compare_with_python(written, path, feeds, run_in_parts(parts, feeds, contents.batched))
    if contents.template is not None:
        feeds = contents.template.larger(tested[0].feeds)
        if not any(_runs(written, feeds)):
            tested[0].executor.rng = (contents.seed, 0)
            compare_with_python(written, path, feeds, tested[0].executor.run(feeds))


def _runs(written: Path, feeds: Mapping[str, Any]) -> list[int]:
    """Return how often each program of a file runs for these feeds."""
    from graphkit.executor.run.c_runtime import CSession

    with CSession(written) as session:
        return session.find_runs({name: np.shape(feeds[name]) for name in session.inputs})


class _SavingExecutor(Executor):
    """An executor whose kernels keep their recipes."""

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._selections.get(None).inputs)

    def program(self, shapes: Mapping[str, Sequence[int]]) -> BaseProgram:
        """Return the program for these input shapes. Raises UnsupportedError for what cannot be saved."""
        graph = self._selections.get(None).graph
        if graph.updates:
            names = ", ".join(repr(graph.name_of(state)) for state, _ in graph.updates[:_MOST_NAMED])
            raise UnsupportedError(
                f"a graph that updates states ({names}) cannot be saved as a program; to train in C, write the step "
                "with Trainer.to_onnx, and save that file"
            )
        with recorded_recipes():
            self.specialise(shapes)
        program = self._choice.latest
        assert isinstance(program, BaseProgram), "programs are saved for the CPU"
        return program

    def template(self, shapes: Mapping[str, Sequence[int]]) -> Template:
        """Return the template, after `program(shapes)`. Raises NotNative, which says why, if there is none."""
        builder = self._programs.builder
        assert isinstance(builder, DeviceBuilder), "programs are saved for one device"
        _, key = self._choice.key(shapes, None)
        with recorded_recipes():
            return builder.template(key, self._selections.get(None))


class _Port(NamedTuple):
    """An input or output of the file: its name, its type, and its position among the inputs or results."""

    name: str
    kind: TensorType
    position: int


def _ports(program: BaseProgram, names: Sequence[str]) -> list[_Port]:
    """Return the inputs that callers feed, with the types that they have in the program."""
    sections = program.sections()
    first = sections[0].program.lowered
    batch = sum(section.runs * section.size for section in sections)
    found = []
    for position, (name, value) in enumerate(zip(names, first.graph.inputs, strict=True)):
        if value in first.fixed:
            continue
        if value.role == "rng":
            continue
        kind = _checked("input", name, value)
        shape = (batch, *kind.static_shape[1:]) if position in program.examples else kind.static_shape
        found.append(_Port(name, TensorType(kind.dtype, shape), position))
    return found


def _generators(program: BaseProgram) -> list[int]:
    """Return the positions of the inputs that are the random state, if a node reads them."""
    graph = program.sections()[0].program.lowered.graph
    read = {value for node in graph.nodes for value in node.inputs}
    return [i for i, value in enumerate(graph.inputs) if value.role == "rng" and value in read]


def _checked(what: str, name: str, value: Value) -> TensorType:
    """Return the type of an input or output. Raises UnsupportedError unless it is a tensor of numbers of known size."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in _TYPES or not kind.is_static:
        raise UnsupportedError(f"{what} {name!r} is {kind}: programs for C have tensors of numbers of known sizes only")
    return kind


def _require_alike(what: str, ports: Sequence[_Port], others: Sequence[_Port]) -> None:
    """Raise UnsupportedError unless these ports of two programs have the same types and ranks."""
    for port, other in zip(ports, others, strict=True):
        if (port.kind.dtype, port.kind.rank) != (other.kind.dtype, other.kind.rank):
            raise UnsupportedError(
                f"{what} {port.name!r} is {other.kind} in one program, but {port.kind} in another: all programs of a "
                "file must have the same types and ranks; write two files"
            )


class _Listed(NamedTuple):
    """The steps of a section, and the number of the array in each external memory that is a constant."""

    section: Section
    steps: StepList
    sources: Mapping[int, int]


class _Listing(NamedTuple):
    """One program: its inputs and outputs, the inputs that are the random state, and its sections."""

    inputs: Sequence[_Port]
    outputs: Sequence[_Port]
    generators: Sequence[int]
    sections: Sequence[_Listed]


class _Contents:
    """Collects what a file contains: programs, and the kernels and arrays that they share.

    several: Whether there are several programs.
    batched: Names of the inputs that have the rows of a batch. Empty if rows may depend on each other.
    """

    def __init__(self, *, several: bool, batched: frozenset[str] = frozenset()):
        self.arrays = SavedArrays(by_content=several)
        self.batched = batched
        self.sizes: tuple[str, ...] = ()
        self.programs: list[_Listing] = []
        self.recipes: dict[bytes, int] = {}
        self.step_count = 0
        self.template: SizedProgramFile | None = None
        self.seed = 0
        self.threads = 1

    def add(self, program: BaseProgram, executor: _SavingExecutor) -> None:
        """Add a program."""
        sections = program.sections()
        assert all(isinstance(section.program, Program) for section in sections), "no program is made from a template"
        self.seed, self.threads = executor.rng[0], sections[0].program.threads
        inputs = _ports(program, executor.input_names)
        for section in sections:
            refuse_other_steps(section.program.lowered)
        if any(inputs == other.inputs for other in self.programs):
            given = ", ".join(f"{port.name} {list(port.kind.static_shape)}" for port in inputs) or "no inputs"
            raise UsageError(f"two programs for the same shapes are to be saved: {given}")
        outputs = [
            _Port(name, _checked("output", name, result.value), i)
            for i, (name, result) in enumerate(zip(executor.outputs, program.finals, strict=True))
        ]
        for other in self.programs[:1]:
            _require_alike("input", inputs, other.inputs)
            _require_alike("output", outputs, other.outputs)
        listed_sections = [self._listed(section) for section in sections]
        self.programs.append(_Listing(inputs, outputs, _generators(program), listed_sections))

    def add_template(self, executor: _SavingExecutor, shapes: Mapping[str, Sequence[int]]) -> None:
        """Add the program for any sizes, after that for `shapes`. Raises UnsupportedError if it needs Python."""
        try:
            template = executor.template(shapes)
            by_name = dict(zip(executor.input_names, template.graph.inputs, strict=True))
            ports = self.programs[0].inputs
            inputs = {port.name: by_name[port.name] for port in ports}
            kinds = [(port.name, inputs[port.name].tensor, port.kind) for port in ports]
            sizes = {name: size for name, size in match_shapes(kinds).items() if isinstance(size, int)}
            self.template = SizedProgramFile(template, inputs, self.draws, sizes, self.arrays)
        except NotNative as error:
            raise UnsupportedError(
                f"the graph cannot run inputs of any size in C: {error}. Give shapes for programs of certain sizes"
            ) from error

    @property
    def draws(self) -> bool:
        """Whether a program draws random numbers."""
        return any(program.generators for program in self.programs)

    def encoded(self) -> bytes:
        """Encode all programs. Numbers in the file depend on the arrays of all of them."""
        return sequence(
            _encoded_ports(each.inputs)
            + _encoded_ports(each.outputs)
            + sequence(self._part(each, listed) for listed in each.sections)
            for each in self.programs
        )

    def batch_axes(self) -> bytes | None:
        """Encode the axis of each input and output that has the rows of a batch; -1: none."""
        if not self.batched:
            return None
        first = self.programs[0]
        axes = sequence(number(0 if port.name in self.batched else -1) for port in first.inputs)
        return axes + sequence(number(0) for _ in first.outputs)

    def _listed(self, section: Section) -> _Listed:
        lowered = section.program.lowered
        count, results = len(lowered.graph.inputs), len(lowered.placement.results)
        emitter, steps = Emitter(count + results), StepList({})
        places = [(count + i, 0) for i in range(results)]
        emitter.graph(cast(Any, steps), lowered, 0, [(i, 0) for i in range(count)], places, copies=True)
        constants = section.program.pools.packed.get(emitter.sources)
        for step in steps.all_steps:
            self.step_count += 1
            if step.kernel is not None:
                self.recipes.setdefault(step.kernel.recipe or b"", len(self.recipes))
        pairs = zip(emitter.sources, constants, strict=True)
        return _Listed(section, steps, {source.external: self.arrays.place(array) for source, array in pairs})

    def _part(self, program: _Listing, given: _Listed) -> bytes:
        section, lowered = given.section, given.section.program.lowered
        given_values, results = lowered.graph.inputs, [r.value for r in lowered.placement.results]
        slices = [_slice(port, given_values[port.position].tensor.nbytes, section) for port in program.inputs]
        if self.draws:
            slices.append(_whole(_RANDOM_STATE_BYTES))
        slices += [_slice(port, results[port.position].tensor.nbytes, section) for port in program.outputs]
        steps = encoded_steps(given.steps, Numbers(self.recipes, self._external_numbers(program, given)))
        buffers = encoded_buffers(given.steps)
        return b"".join((number(section.program.arena_bytes), number(section.runs), sequence(slices), buffers, steps))

    def _external_numbers(self, program: _Listing, given: _Listed) -> Mapping[int, int]:
        """Return the numbers of external memory in the file.

        Inputs come first, then the random state, outputs, constants, buffers, and the memory of the bodies of loops.
        """
        count, first = len(given.section.program.lowered.graph.inputs), len(program.inputs)
        found = {port.position: i for i, port in enumerate(program.inputs)}
        found |= dict.fromkeys(program.generators, first)
        first += self.draws
        found |= {count + port.position: first + i for i, port in enumerate(program.outputs)}
        first += len(program.outputs)
        found |= {external: first + place for external, place in given.sources.items()}
        first += len(self.arrays.arrays)
        found |= {external: first + i for i, external in enumerate(given.steps.buffers)}
        first += len(given.steps.buffers)
        loops = (step.loop for step in given.steps.all_steps if step.loop is not None)
        return found | {external: first + i for i, external in enumerate(e for loop in loops for e in loop.externals)}


def _encoded_ports(ports: Sequence[_Port]) -> bytes:
    return sequence(text(p.name) + text(p.kind.dtype.value) + _sizes(p.kind) for p in ports)


def _slice(port: _Port, nbytes: int, section: Section) -> bytes:
    """Encode where the runs of a section find an input or output: a part of it, or all of it."""
    if nbytes == port.kind.nbytes:
        return _whole(nbytes)
    return number(nbytes // section.size * section.first) + number(nbytes) + number(nbytes)


def _whole(nbytes: int) -> bytes:
    return number(0) + number(0) + number(nbytes)


def _written(contents: _Contents, path: Path, check: Callable[[Path], None] = lambda _: None) -> SavedProgramFacts:
    arrays = contents.arrays.arrays
    places, data = laid_out(arrays)
    metadata = b"".join(
        (
            text(version()),
            sequence(text(fact) for fact in native_module().program_target()),
            number(contents.threads),
            optional(number(contents.seed) if contents.draws else None),
            sequence(number(at) + number(array.nbytes) for at, array in zip(places, arrays, strict=True)),
            sequence(map(raw, contents.recipes)),
            contents.encoded(),
            optional(contents.batch_axes()),
            optional(contents.template.encoded() if contents.template is not None else None),
        )
    )
    nbytes = write_file(path, metadata, data, check)
    first = contents.programs[0]
    inputs, outputs = (tuple(port.name for port in ports) for ports in (first.inputs, first.outputs))
    return SavedProgramFacts(inputs, outputs, contents.step_count, nbytes, contents.sizes)


def _sizes(kind: TensorType) -> bytes:
    return sequence(map(number, kind.static_shape))
