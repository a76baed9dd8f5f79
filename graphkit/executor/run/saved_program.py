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
from graphkit.executor.lower.branch import Branch
from graphkit.executor.lower.emit import Emitter
from graphkit.executor.lower.lowering import ABSENT, Location, LoweredGraph
from graphkit.executor.lower.native_kernel import PreparedKernel
from graphkit.executor.run.batched_program import BatchedProgram
from graphkit.executor.run.program import Program
from graphkit.executor.run.session import Executor
from graphkit.ir.atomic import PendingFile, writing_of
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.text import listed

_MAGIC = b"\x89GKP\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQQQQQ")
_BYTE_ORDER = 0x01020304
_ALIGNMENT = 64
# Weights of at least this many bytes begin with a page of the file.
_PAGE, _LARGE = 4096, 1 << 16
# Element types that programs in C have.
_TYPES = frozenset(
    DType(name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
)  # fmt: skip
# An error names at most this many nodes.
_MOST_NAMED = 5


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
        return _written(_Contents(program, executor.input_names, executor.outputs), executor.outputs, path)
    from graphkit.executor.run.c_runtime import compare_with_python

    # Before the run, which may use another program.
    contents = _Contents(program, executor.input_names, executor.outputs)
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
            raise UnsupportedError(f"a graph that updates states ({names}) cannot be saved as a program yet")
        with recorded_recipes():
            self.specialise(shapes)
        assert isinstance(self._latest, (Program, BatchedProgram)), "no program is made from a template"
        return self._latest


# Kinds of steps, as SavedStep::Kind in executor/native/c_interface/step_check.h.
_KERNEL, _COPY, _BRANCH, _FAIL = range(4)


class _Step(NamedTuple):
    """A step of the file.

    Args:
        kind: One of the numbers above.
        name: Name of the step; the message of a failure.
        inputs: Where the operands are: those of a kernel, the source of a copy, or the condition of a branch.
        outputs: Where the results are.
        kernel: The kernel.
        scratch: Where the working memory is.
        nbytes: Bytes of a copy.
        blocks: Of a branch: the steps that run if the condition is true, and the others.
    """

    kind: int
    name: str
    inputs: Sequence[Location] = ()
    outputs: Sequence[Location] = ()
    kernel: NativeKernel | None = None
    scratch: Location = ABSENT
    nbytes: int = 0
    blocks: Sequence[_StepList] = ()

    def all_steps(self) -> Iterator[_Step]:
        """Yield this step, and those of its blocks."""
        yield self
        for block in self.blocks:
            for step in block.steps:
                yield from step.all_steps()


class _StepList:
    """Replaces the native builder: lists the steps that the emitter writes."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []

    def kernel(
        self,
        name: str,
        kernel: NativeKernel,
        inputs: Sequence[Location],
        outputs: Sequence[Location],
        scratch: Location,
    ) -> None:
        given, results = inputs[: kernel.input_count], outputs[: kernel.output_count]
        working = scratch if kernel.scratch_bytes else ABSENT
        self.steps.append(_Step(_KERNEL, name, given, results, kernel, working))

    def copy(self, name: str, source: Location, target: Location, nbytes: int) -> None:
        self.steps.append(_Step(_COPY, name, [source], [target], nbytes=nbytes))

    def branch(self, name: str, condition: Location) -> tuple[_StepList, _StepList]:
        blocks = (_StepList(), _StepList())
        self.steps.append(_Step(_BRANCH, name, [condition], blocks=blocks))
        return blocks

    def fail(self, message: str) -> None:
        self.steps.append(_Step(_FAIL, message))

    def store(self, name: str, *_: Any) -> None:
        raise UnsupportedError(f"{name}: a size depends on values, which programs for C do not support yet")

    resize = store

    def commit(self) -> None:
        """Do nothing: no step overwrites a state."""


def _refused(lowered: LoweredGraph, prefix: str = "") -> Iterator[str]:
    """Yield the steps that cannot be saved, and why."""
    for node, lowering in lowered.steps:
        name = prefix + lowered.graph.node_name(node)
        if isinstance(lowering, Branch):
            for part, graph in lowering.subgraphs.items():
                yield from _refused(graph, f"{name}/{part}/")
            continue
        if not isinstance(lowering, PreparedKernel):
            why = lowering.reason or ("it runs in Python" if lowering.in_python else _why_several_steps(node))
        elif lowering.kernel.recipe is None:
            why = f"kernels of the class {type(lowering.kernel).__name__} cannot be saved yet"
        else:
            continue
        yield f"{name} ({node.op.name}: {why})"


def _why_several_steps(node: Node) -> str:
    """Return why a node that runs natively is not one kernel."""
    if node.op.subgraphs():
        return "loops cannot be saved yet"
    return "shapes that depend on values cannot be saved yet"


def _refuse_other_steps(lowered: LoweredGraph) -> None:
    """Raise UnsupportedError for steps that are not kernels, or whose kernels have no recipe."""
    if refused := list(_refused(lowered)):
        names = listed(refused, len(refused), _MOST_NAMED)
        raise UnsupportedError(f"these nodes cannot be saved in a program for C: {names}")


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
            drawing = [node for node in first.graph.nodes if value in node.inputs]
            if drawing:
                nodes = (f"{first.graph.node_name(node)} ({node.op.name})" for node in drawing)
                raise UnsupportedError(
                    "nodes that draw random numbers cannot be saved in a program for C yet: "
                    f"{listed(nodes, len(drawing), _MOST_NAMED)}"
                )
            continue
        kind = _checked("input", name, value)
        shape = (batch, *kind.static_shape[1:]) if position in examples else kind.static_shape
        found.append(_Port(name, TensorType(kind.dtype, shape), position))
    return found


def _checked(what: str, name: str, value: Value) -> TensorType:
    """Return the type of an input or output. Raises UnsupportedError unless it is a tensor of numbers of known size."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in _TYPES or not kind.is_static:
        raise UnsupportedError(f"{what} {name!r} is {kind}: programs for C have tensors of numbers of known sizes only")
    return kind


class _Contents:
    """Collects what a file contains: inputs, outputs, constants, kernels, and the parts of the program."""

    def __init__(self, program: Program | BatchedProgram, input_names: Sequence[str], output_names: Sequence[str]):
        self.sections = _sections(program)
        self.inputs = _ports(program, input_names)
        for section in self.sections:
            _refuse_other_steps(section.program.lowered)
        results = program.finals
        self.outputs = [
            _Port(name, _checked("output", name, result.value), i)
            for i, (name, result) in enumerate(zip(output_names, results, strict=True))
        ]
        self.arrays: dict[int, np.ndarray] = {}
        self.kernels: dict[int, NativeKernel] = {}
        self.step_count = 0
        self.parts = [self._part(section) for section in self.sections]

    def _part(self, section: _Section) -> bytes:
        lowered = section.program.lowered
        count, results = len(lowered.graph.inputs), len(lowered.placement.results)
        emitter, steps = Emitter(count + results), _StepList()
        places = [(count + i, 0) for i in range(results)]
        emitter.graph(cast(Any, steps), lowered, 0, [(i, 0) for i in range(count)], places, copies=True)
        all_steps = [step for outer in steps.steps for step in outer.all_steps()]
        self.step_count += len(all_steps)
        # In the file, inputs come first, then outputs, then constants.
        first = len(self.inputs)
        number = {port.position: i for i, port in enumerate(self.inputs)}
        number |= {count + port.position: first + i for i, port in enumerate(self.outputs)}
        first += len(self.outputs)
        constants = section.program.pools.packed.get(emitter.sources)
        self.arrays |= {id(array): array for array in constants if id(array) not in self.arrays}
        place = {identity: i for i, identity in enumerate(self.arrays)}
        number |= {
            source.external: first + place[id(array)] for source, array in zip(emitter.sources, constants, strict=True)
        }
        for step in all_steps:
            if step.kernel is not None:
                self.kernels.setdefault(id(step.kernel), step.kernel)
        index = {kernel: i for i, kernel in enumerate(self.kernels)}
        slices = [
            _slice(port, value.tensor.nbytes, section)
            for ports, values in (
                (self.inputs, lowered.graph.inputs),
                (self.outputs, [r.value for r in lowered.placement.results]),
            )
            for port in ports
            for value in [values[port.position]]
        ]
        return b"".join(
            (
                _number(section.program.arena_bytes),
                _number(section.runs),
                _list(slices),
                _list(_step(step, index, number) for step in steps.steps),
            )
        )


def _slice(port: _Port, nbytes: int, section: _Section) -> bytes:
    """Encode where the runs of a section find an input or output: a part of it, or all of it."""
    if nbytes == port.kind.nbytes:
        return _number(0) + _number(0) + _number(nbytes)
    return _number(nbytes // section.size * section.first) + _number(nbytes) + _number(nbytes)


def _written(
    contents: _Contents, output_names: Sequence[str], path: Path, check: Callable[[Path], None] = lambda _: None
) -> SavedProgramFacts:
    arrays = list(contents.arrays.values())
    places, data = _laid_out(arrays)
    native = native_module()
    metadata = b"".join(
        (
            _text(version()),
            _list(_text(fact) for fact in native.program_target()),
            _number(contents.sections[0].program.threads),
            _list(_text(p.name) + _text(p.kind.dtype.value) + _sizes(p.kind) for p in contents.inputs),
            _list(_text(p.name) + _text(p.kind.dtype.value) + _sizes(p.kind) for p in contents.outputs),
            _list(_number(at) + _number(array.nbytes) for at, array in zip(places, arrays, strict=True)),
            _list(_bytes(kernel.recipe or b"") for kernel in contents.kernels.values()),
            _list(contents.parts),
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


# Each of the following functions encodes one thing as runtime/recipe.h reads it.


def _number(value: int) -> bytes:
    return struct.pack("<Q", value & ((1 << 64) - 1))


def _bytes(value: bytes) -> bytes:
    return _number(len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _list(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return b"".join((_number(len(parts)), *parts))


def _location(location: Location, number: Mapping[int, int]) -> bytes:
    external, offset = location
    return _number(number[external] if external >= 0 else external) + _number(offset if location != ABSENT else 0)


def _sizes(kind: TensorType) -> bytes:
    return _list(_number(size) for size in kind.static_shape)


def _step(step: _Step, index: Mapping[int, int], number: Mapping[int, int]) -> bytes:
    kernel = step.kernel
    packed = () if kernel is None else kernel.packed_inputs
    layouts = [kernel.packed_layout(i) if kernel is not None and i in packed else "" for i in range(len(step.inputs))]
    return b"".join(
        (
            _number(step.kind),
            _text(step.name),
            _number(0 if kernel is None else index[id(kernel)]),
            _list(_location(location, number) for location in step.inputs),
            _list(map(_text, layouts)),
            _list(_location(location, number) for location in step.outputs),
            _location(step.scratch, number),
            _number(step.nbytes),
            _list(_list(_step(inner, index, number) for inner in block.steps) for block in step.blocks),
        )
    )
