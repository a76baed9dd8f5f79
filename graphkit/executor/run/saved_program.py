"""Write programs to .gkp files, which libgraphkit.so runs without Python.

A file contains the steps of a program, how its kernels were made, and its weights as the kernels read them. It is for
processors of one kind. executor/native/c_interface/saved_program.cpp reads it; docs/architecture.md describes the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from graphkit.distribution import version
from graphkit.errors import MissingDependency, UnsupportedError
from graphkit.executor.devices.kernel import NativeKernel
from graphkit.executor.devices.loading import load_device, native_module
from graphkit.executor.devices.recipes import recorded_recipes
from graphkit.executor.lower.emit import Emitter
from graphkit.executor.run.batched_program import BatchedProgram
from graphkit.executor.run.program import Program
from graphkit.executor.run.saved_encoding import number, optional, raw, sequence, text
from graphkit.executor.run.saved_steps import Numbers, StepList, encoded_steps, refuse_other_steps
from graphkit.executor.run.session import Executor
from graphkit.ir.atomic import PendingFile, writing_of
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple

_MAGIC = b"\x89GKP\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQQQQQ")
_BYTE_ORDER = 0x01020304
_ALIGNMENT = 64
# Weights of at least this many bytes begin with a page of the file.
_PAGE, _LARGE = 4096, 1 << 16
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
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: int
    nbytes: int


def save_program(
    executor_options: Mapping[str, Any],
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    check: Mapping[str, Any] | None = None,
) -> SavedProgramFacts:
    """Compile a graph for the CPU, and write the program.

    Args:
        executor_options: Arguments of `Executor`: graph, params, threads, ...
        path: The file.
        shapes: Shapes of inputs, by name. Other inputs have static types.
        check: Arrays for all inputs: run the program in Python and in the C library, and compare the outputs.

    Raises:
        CheckFailed: With `check`: the C library computes other bits. The file is then not written.
        InputError: The shape of an input is not known.
        MissingDependency: The installed package has no native part.
        UnsupportedError: A part of the graph needs Python, or cannot be saved. The message names nodes and operators.
        RuntimeFailure: The file cannot be written.
    """
    if not load_device("cpu"):
        raise MissingDependency("saving a program needs graphkit's native part, which this installation lacks")
    executor = _SavingExecutor(**executor_options)
    program = executor.program(shapes)
    if check is None:
        return _written(_Contents(program, executor), executor.outputs, path)
    from graphkit.executor.run.c_runtime import compare_with_python

    # Before the run, which may use another program.
    contents = _Contents(program, executor)
    expected = executor.run(check)

    def compare(written: Path) -> None:
        compare_with_python(written, path, check, expected)

    return _written(contents, executor.outputs, path, compare)


class _SavingExecutor(Executor):
    """An executor whose kernels keep their recipes."""

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._select(None).inputs)

    def program(self, shapes: Mapping[str, Sequence[int]]) -> Program | BatchedProgram:
        """Return the program for these input shapes. Raises UnsupportedError for what cannot be saved."""
        graph = self._select(None).graph
        if graph.updates:
            names = ", ".join(repr(graph.name_of(state)) for state, _ in graph.updates[:_MOST_NAMED])
            raise UnsupportedError(
                f"a graph that updates states ({names}) cannot be saved as a program; to train in C, write the step "
                "with Trainer.to_onnx, and save that file"
            )
        with recorded_recipes():
            self.specialise(shapes)
        assert isinstance(self._latest, (Program, BatchedProgram)), "no program is made from a template"
        return self._latest


class _Port(NamedTuple):
    """An input or output of the file: its name, its type, and its position among the inputs or results."""

    name: str
    kind: TensorType
    position: int


class _Section(NamedTuple):
    """A program that runs once, or for several parts of a batch.

    Args:
        program: The program.
        runs: Number of parts.
        size: Examples of a part; 0 if the program computes everything.
        first: Number of the first example.
    """

    program: Program
    runs: int
    size: int
    first: int


def _sections(program: Program | BatchedProgram) -> list[_Section]:
    if isinstance(program, Program):
        return [_Section(program, 1, 0, 0)]
    found, first = [], 0
    for part in program.parts:
        assert isinstance(part.program, Program), "the programs of parts are compiled"
        found.append(_Section(part.program, part.number, part.size, first))
        first += part.number * part.size
    return found


def _ports(program: Program | BatchedProgram, names: Sequence[str]) -> list[_Port]:
    """Return the inputs that callers feed, with the types that they have in the program."""
    first = _sections(program)[0].program.lowered
    batch = sum(part.number * part.size for part in program.parts) if isinstance(program, BatchedProgram) else 0
    examples = program.examples if isinstance(program, BatchedProgram) else frozenset()
    found = []
    for position, (name, value) in enumerate(zip(names, first.graph.inputs, strict=True)):
        if value in first.fixed:
            continue
        if value.role == "rng":
            continue
        kind = _checked("input", name, value)
        shape = (batch, *kind.static_shape[1:]) if position in examples else kind.static_shape
        found.append(_Port(name, TensorType(kind.dtype, shape), position))
    return found


def _generators(program: Program | BatchedProgram) -> list[int]:
    """Return the positions of the inputs that are the random state, if a node reads them."""
    graph = _sections(program)[0].program.lowered.graph
    read = {value for node in graph.nodes for value in node.inputs}
    return [i for i, value in enumerate(graph.inputs) if value.role == "rng" and value in read]


def _checked(what: str, name: str, value: Value) -> TensorType:
    """Return the type of an input or output. Raises UnsupportedError unless it is a tensor of numbers of known size."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in _TYPES or not kind.is_static:
        raise UnsupportedError(f"{what} {name!r} is {kind}: programs for C have tensors of numbers of known sizes only")
    return kind


class _Listed(NamedTuple):
    """The steps of a section, and the arrays that they read, by the number of the external memory."""

    section: _Section
    steps: StepList
    sources: Mapping[int, np.ndarray]


class _Contents:
    """Collects what a file contains: inputs, outputs, constants, kernels, and the parts of the program."""

    def __init__(self, program: Program | BatchedProgram, executor: _SavingExecutor):
        self.seed = executor.rng[0]
        self.sections = _sections(program)
        self.inputs = _ports(program, executor.input_names)
        self.generators = _generators(program)
        for section in self.sections:
            refuse_other_steps(section.program.lowered)
        results = program.finals
        self.outputs = [
            _Port(name, _checked("output", name, result.value), i)
            for i, (name, result) in enumerate(zip(executor.outputs, results, strict=True))
        ]
        self.arrays: dict[int, np.ndarray] = {}
        self.kernels: dict[int, NativeKernel] = {}
        self.step_count = 0
        # Numbers in the file depend on the arrays of all sections.
        listed_sections = [self._listed(section) for section in self.sections]
        self.parts = [self._part(each) for each in listed_sections]

    def _listed(self, section: _Section) -> _Listed:
        lowered = section.program.lowered
        count, results = len(lowered.graph.inputs), len(lowered.placement.results)
        emitter, steps = Emitter(count + results), StepList()
        places = [(count + i, 0) for i in range(results)]
        emitter.graph(cast(Any, steps), lowered, 0, [(i, 0) for i in range(count)], places, copies=True)
        constants = section.program.pools.packed.get(emitter.sources)
        self.arrays |= {id(array): array for array in constants if id(array) not in self.arrays}
        for step in steps.all_steps:
            self.step_count += 1
            if step.kernel is not None:
                self.kernels.setdefault(id(step.kernel), step.kernel)
        sources = {source.external: array for source, array in zip(emitter.sources, constants, strict=True)}
        return _Listed(section, steps, sources)

    def _part(self, given: _Listed) -> bytes:
        section, lowered = given.section, given.section.program.lowered
        index = {kernel: i for i, kernel in enumerate(self.kernels)}
        given_values, results = lowered.graph.inputs, [r.value for r in lowered.placement.results]
        slices = [_slice(port, given_values[port.position].tensor.nbytes, section) for port in self.inputs]
        if self.generators:
            slices.append(_whole(given_values[self.generators[0]].tensor.nbytes))
        slices += [_slice(port, results[port.position].tensor.nbytes, section) for port in self.outputs]
        steps = encoded_steps(given.steps, Numbers(index, self._external_numbers(given)))
        return b"".join((number(section.program.arena_bytes), number(section.runs), sequence(slices), steps))

    def _external_numbers(self, given: _Listed) -> Mapping[int, int]:
        """Return the numbers of external memory in the file.

        Inputs come first, then the random state, outputs, constants, and the memory of the bodies of loops.
        """
        count, first = len(given.section.program.lowered.graph.inputs), len(self.inputs)
        found = {port.position: i for i, port in enumerate(self.inputs)}
        found |= dict.fromkeys(self.generators, first)
        first += bool(self.generators)
        found |= {count + port.position: first + i for i, port in enumerate(self.outputs)}
        first += len(self.outputs)
        place = {identity: i for i, identity in enumerate(self.arrays)}
        found |= {external: first + place[id(array)] for external, array in given.sources.items()}
        first += len(self.arrays)
        loops = (step.loop for step in given.steps.all_steps if step.loop is not None)
        return found | {external: first + i for i, external in enumerate(e for loop in loops for e in loop.externals)}


def _slice(port: _Port, nbytes: int, section: _Section) -> bytes:
    """Encode where the runs of a section find an input or output: a part of it, or all of it."""
    if nbytes == port.kind.nbytes:
        return _whole(nbytes)
    return number(nbytes // section.size * section.first) + number(nbytes) + number(nbytes)


def _whole(nbytes: int) -> bytes:
    return number(0) + number(0) + number(nbytes)


def _written(
    contents: _Contents, output_names: Sequence[str], path: Path, check: Callable[[Path], None] = lambda _: None
) -> SavedProgramFacts:
    arrays = list(contents.arrays.values())
    places, data = _laid_out(arrays)
    native = native_module()
    metadata = b"".join(
        (
            text(version()),
            sequence(text(fact) for fact in native.program_target()),
            number(contents.sections[0].program.threads),
            sequence(text(p.name) + text(p.kind.dtype.value) + _sizes(p.kind) for p in contents.inputs),
            sequence(text(p.name) + text(p.kind.dtype.value) + _sizes(p.kind) for p in contents.outputs),
            optional(number(contents.seed) if contents.generators else None),
            sequence(number(at) + number(array.nbytes) for at, array in zip(places, arrays, strict=True)),
            sequence(raw(kernel.recipe or b"") for kernel in contents.kernels.values()),
            sequence(contents.parts),
        )
    )
    nbytes = _write(path, metadata, data, check)
    return SavedProgramFacts(tuple(p.name for p in contents.inputs), tuple(output_names), contents.step_count, nbytes)


def _laid_out(arrays: Sequence[np.ndarray]) -> tuple[list[int], list[Any]]:
    """Return the place of each array in the data, and the data as pieces of memory."""
    places, pieces, end = [], [], 0
    for array in arrays:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT if array.nbytes < _LARGE else -(-end // _PAGE) * _PAGE
        pieces += [bytes(start - end), np.ascontiguousarray(array).reshape(-1).view(np.uint8)]
        places.append(start)
        end = start + array.nbytes
    return places, pieces


def _write(path: Path, metadata: bytes, data: Sequence[Any], check: Callable[[Path], None]) -> int:
    """Write the file, which has its name only if `check` accepts it. Return its size."""
    native = native_module()
    start = _HEADER.size + 8
    data_at = -(-(start + len(metadata)) // _PAGE) * _PAGE
    data_bytes = sum(memoryview(piece).nbytes for piece in data)
    size = data_at + data_bytes
    header = _HEADER.pack(_MAGIC, native.program_format, _BYTE_ORDER, size, len(metadata), data_at, data_bytes, 0)
    rest = [metadata, bytes(data_at - start - len(metadata)), *data]
    checksum = native.program_checksum(np.frombuffer(header, np.uint8), 0)
    for piece in _pieces(rest, native.checksum_piece):
        checksum = native.program_checksum(np.frombuffer(piece, np.uint8), checksum)
    with writing_of(path), PendingFile(path.parent, path.name) as file:
        for chunk in (header, struct.pack("<Q", checksum), *rest):
            file.write(chunk)
        file.finish()
        check(file.path)
        file.commit(path)
    return size


def _pieces(chunks: Iterable[Any], size: int) -> Iterator[bytes]:
    """Yield the bytes of the chunks in pieces of `size` bytes; the last one may be shorter."""
    pending = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, view.nbytes, size):
            pending += view[start : start + size]
            while len(pending) >= size:
                yield bytes(pending[:size])
                del pending[:size]
    if pending:
        yield bytes(pending)


def _sizes(kind: TensorType) -> bytes:
    return sequence(map(number, kind.static_shape))
