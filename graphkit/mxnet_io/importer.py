"""Import of MXNet: a symbol.json and its parameters become a Graph, with one converter for each operator."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit import config
from graphkit.errors import BAD_VALUE, GraphkitError, InvalidModel, UnsupportedOperator, UsageError, did_you_mean
from graphkit.ir import context
from graphkit.ir.graph import Graph, Value, give_name, next_serial
from graphkit.ir.names import unique_names
from graphkit.ir.stored import StoredArray
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.mxnet_io import operators, output_heads
from graphkit.mxnet_io.arrays import read_arrays
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.call import CONVERTERS, Call, ShapeNeeded
from graphkit.mxnet_io.input_types import Readers, sizes
from graphkit.mxnet_io.symbol import Symbol, SymbolNode, parse_symbol, read_symbol
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.text import nodes_by_operator, quantity

assert operators.__all__  # imported for the converters that they register

_SUFFIX = "-symbol.json"
# Key of the metadata with the name of the symbol.
_SYMBOL = "mxnet.symbol"
_AUXILIARY = "aux:"
_PREFIXES = ("arg:", _AUXILIARY)
# Endings of the names of parameters and running statistics.
_PARAMETER_NAMES = re.compile(r"_(weight|bias|gamma|beta|mean|var|parameters|alpha)$")
# Positions of running statistics among the inputs of an operator.
_NORMALISATIONS = (
    "BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm",
    "_contrib_quantized_batch_norm", "_npx_batch_norm",
)  # fmt: skip
_STATISTICS = dict.fromkeys(_NORMALISATIONS, (3, 4))
_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})


class Imported(NamedTuple):
    """An imported model: its graph, and arrays by the names of its parameters and states."""

    graph: Graph
    params: dict[str, np.ndarray | StoredArray]


def import_model(
    path: str | os.PathLike[str],
    *,
    params: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    epoch: int | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> Imported:
    """Read a symbol and its parameters.

    Args:
        path: The symbol file, NAME-symbol.json; its parameter file, NAME-0010.params; or NAME alone.
        params: A .params file, or arrays by name. By default NAME-EPOCH.params beside the symbol.
        epoch: The number in the name of the parameter file; by default the largest that there is.
        shapes: Shapes of data inputs by name, for those that the operators do not determine, or to fix sizes. A text
            names a size that differs from run to run.

    Raises:
        UsageError: A file does not exist, a name in `shapes` is not a data input, or a shape must be given.
        InvalidModel: A file is damaged, or a parameter is missing. The message names the file and the node.
        UnsupportedOperator: The symbol contains operators that are not supported. The message lists all of them.
    """
    symbol_file, given = _located(os.fspath(path), params)
    if given is not None and epoch is not None:
        raise UsageError("give either params or epoch, which selects a file of parameters")
    label = repr(symbol_file)
    graph = read_symbol(symbol_file)
    _check_operators(graph, label)
    if isinstance(given, Mapping):
        arrays = {name: value if isinstance(value, StoredArray) else np.asarray(value) for name, value in given.items()}
    else:
        arrays = read_arrays(find_params(symbol_file, epoch) if given is None else given)
    name = os.path.basename(symbol_file).removesuffix(_SUFFIX).removesuffix(".json")
    with context.detached():
        return _Builder(graph, label, name, arrays, dict(shapes or {})).build()


def build_expression(document: Any, operand: Value, label: str) -> Value:
    """Return the output of a symbol with one variable and no parameters, for a value of this variable.

    Args:
        document: The symbol, as read from JSON.
        operand: The value.
        label: Names the symbol in errors.
    """
    symbol = parse_symbol(document, label)
    _check_operators(symbol, label)
    builder = _Builder(symbol, label, "", {}, {})
    return _Body(builder, symbol, label, [operand]).outputs()[0]


def _located(path: str, params: Any) -> tuple[str, Any]:
    """Return the symbol file, and the parameters if they are given, from a path that names one of them or the model."""
    if path.endswith(".params"):
        if params is not None:
            raise UsageError(f"{path!r} is a file of parameters; name the symbol, or give no other params")
        return re.sub(r"(-\d{4,})?\.params$", _SUFFIX, path), path
    return path if path.endswith(".json") else path + _SUFFIX, params


def find_params(path: str | os.PathLike[str], epoch: int | None = None) -> str:
    """Return the parameter file of a symbol: NAME-EPOCH.params, with four or more digits.

    Raises UsageError if there is none of this epoch, or none at all.
    """
    text = os.fspath(path)
    prefix = text.removesuffix(_SUFFIX) if text.endswith(_SUFFIX) else os.path.splitext(text)[0]
    if epoch is not None:
        found = f"{prefix}-{epoch:04d}.params"
        if not os.path.exists(found):
            raise UsageError(f"{text!r}: there is no parameter file {found!r}")
        return found
    numbered = [
        (int(match[1]), name)
        for name in glob.glob(f"{glob.escape(prefix)}-*.params")
        if (match := re.fullmatch(r"-(\d{4,})\.params", name[len(prefix) :]))
    ]
    plain = f"{prefix}.params"
    if numbered:
        return max(numbered)[1]
    if os.path.exists(plain):
        return plain
    raise UsageError(f"{text!r}: there is no parameter file {prefix}-EPOCH.params; name one with params=")


def _check_operators(graph: Symbol, label: str) -> None:
    """Raise UnsupportedOperator, which lists every operator that has no converter, with its nodes."""
    missing: dict[str, list[str]] = {}
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            pending += node.subgraphs
            if not node.is_variable and node.op not in CONVERTERS:
                missing.setdefault(node.op, []).append(repr(node.name))
    if missing:
        lines = nodes_by_operator(missing)
        are = "is" if len(missing) == 1 else "are"
        raise UnsupportedOperator(
            f"{label}: {quantity(len(missing), 'operator')} of MXNet {are} not supported. Nodes:\n" + "\n".join(lines)
        )


class _Region:
    """Builds the nodes of one symbol: the model's, or a subgraph's."""

    def __init__(self, builder: _Builder, graph: Symbol, label: str) -> None:
        self.builder = builder
        self.graph = graph
        self.label = label
        self.results: dict[int, list[Value]] = {}
        # Results of output operators for other nodes: no gradient flows back through them.
        self.stopped: dict[tuple[int, int], Value] = {}

    def outputs(self) -> list[Value]:
        """Build all nodes that the outputs depend on."""
        needed = self.needed()
        for index, node in enumerate(self.graph.nodes):
            if index in needed and not node.is_variable:
                self.results[index] = self.convert(node)
        return [self.result(index, output, f"{self.label}: an output") for index, output in self.graph.heads]

    def needed(self) -> set[int]:
        found: set[int] = set()
        pending = [index for index, _ in self.graph.heads]
        while pending:
            index = pending.pop()
            if index not in found:
                found.add(index)
                pending += [source for source, _ in output_heads.operands(self.graph.nodes[index])]
        return found

    def convert(self, node: SymbolNode) -> list[Value]:
        self.builder.check_size()
        call = Call(node, self)
        before = next_serial()
        try:
            with context.expanding(maker=f"MXNet's {node.op}"):
                made = CONVERTERS[node.op](call)
        except GraphkitError as error:
            if any(error is located for located in self.builder.located):
                raise
            hint = self.builder.shape_hint() if isinstance(error, ShapeNeeded) else ""
            raise self.builder.located_error(type(error), f"{self.label}: node {node}: {error}{hint}") from None
        except BAD_VALUE as error:
            raise InvalidModel(f"{self.label}: node {node}: {type(error).__name__}: {error}") from error
        unread = call.attributes.unread()
        if unread:
            listed = ", ".join(f"{name}={node.attributes[name]}" for name in unread)
            raise InvalidModel(f"{self.label}: node {node} has unknown attributes: {listed}")
        results = made if isinstance(made, list) else [made]
        for number, value in enumerate(results):
            maker = value.node
            if maker is not None and maker.serial > before:
                # Nothing has read the node yet.
                maker.name = maker.name or node.name
                if not value.name:
                    give_name(value, f"{node.name}_output{number if len(results) > 1 else ''}")
        return results

    def operand(self, node: SymbolNode, position: int) -> Value:
        source, output = node.inputs[position]
        found = self.result(source, output, f"{self.label}: node {node}")
        if not output_heads.blocks_gradient(self.graph.nodes[source]):
            return found
        if (source, output) not in self.stopped:
            self.stopped[source, output] = F.stop_gradient(found)
        return self.stopped[source, output]

    def result(self, index: int, output: int, reader: str) -> Value:
        if index not in self.results:
            self.results[index] = [self.variable(index)]
        results = self.results[index]
        if output >= len(results):
            source = self.graph.nodes[index]
            raise InvalidModel(f"{reader} reads output {output} of {source}, which has {len(results)} here")
        return results[output]

    def variable(self, index: int) -> Value:
        return self.builder.variable(index)

    def body(self, node: SymbolNode, position: int, operands: Sequence[Value]) -> list[Value]:
        if position >= len(node.subgraphs):
            raise InvalidModel(f"it has {len(node.subgraphs)} subgraphs")
        inner = node.subgraphs[position]
        region = _Body(self.builder, inner, f"{self.label}: subgraph {position} of {node}", operands)
        return region.outputs()


class _Body(_Region):
    """A subgraph, whose variables are given values."""

    def __init__(self, builder: _Builder, graph: Symbol, label: str, operands: Sequence[Value]) -> None:
        super().__init__(builder, graph, label)
        variables = [i for i, node in enumerate(graph.nodes) if node.is_variable]
        if len(variables) != len(operands):
            raise InvalidModel(f"{label} has {len(variables)} variables; {len(operands)} values are given")
        self.results.update({index: [value] for index, value in zip(variables, operands, strict=True)})


class _Builder:
    """Builds the graph of one model."""

    def __init__(
        self,
        graph: Symbol,
        label: str,
        name: str,
        arrays: Mapping[str, np.ndarray | StoredArray],
        shapes: dict[str, Any],
    ) -> None:
        self.graph = graph
        self.label = label
        self.name = name
        self.arrays: dict[str, np.ndarray | StoredArray] = {}
        self.auxiliary: set[str] = set()
        for key, array in arrays.items():
            bare = next((key.removeprefix(p) for p in _PREFIXES if key.startswith(p)), key)
            if bare in self.arrays:
                raise InvalidModel(f"{label}: two arrays of the parameter file have the name {bare!r}")
            self.arrays[bare] = array
            if key.startswith(_AUXILIARY):
                self.auxiliary.add(bare)
        self.statistics = _statistics(graph)
        self.shapes = shapes
        self.readers = Readers(graph, self.arrays)
        self.inputs: dict[str, Value] = {}
        self.stored: dict[str, Value] = {}
        self.built, self.most_nodes = 0, config.MAX_NODES.get()
        # Errors whose message contains the file, and the node if there is one.
        self.located: list[GraphkitError] = []

    def build(self) -> Imported:
        self.check_variables()
        region = _Region(self, self.graph, self.label)
        outputs = region.outputs()
        outputs = [F.identity(v) if v.is_input else v for v in outputs]
        names = unique_names(_output_names(self.graph))
        order = {node.name: index for index, node in enumerate(self.graph.nodes)}
        self.stored = dict(sorted(self.stored.items(), key=lambda item: order[item[0]]))
        inputs = [*self.inputs.values(), *self.stored.values()]
        graph = Graph(inputs, outputs, name=self.name, output_names=names)
        meta = {_SYMBOL: self.name}
        if heads := self.heads(graph, region.results, names):
            meta[output_heads.HEADS] = output_heads.to_text(heads)
        arrays = {graph.name_of(value): self.arrays[key] for key, value in self.stored.items()}
        return Imported(graph.replace(meta=meta), arrays)

    def heads(
        self, graph: Graph, results: Mapping[int, Sequence[Value]], names: Sequence[str]
    ) -> list[output_heads.Head]:
        """Return the output operators of the model, with the labels that they read in training."""
        known = {v: graph.name_of(v) for v in (*graph.inputs, *graph.values)}

        def name_of(index: int, output: int) -> str | None:
            values = results.get(index, ())
            return known.get(values[output]) if output < len(values) else None

        def shape_of(index: int) -> Sequence[int | str | None] | None:
            node = self.graph.nodes[index]
            return self.shapes.get(node.name) or _annotated(node)

        return output_heads.find_heads(self.graph, names, name_of, self.arrays, shape_of)

    def located_error(self, kind: type[GraphkitError], message: str) -> GraphkitError:
        """Return an error whose message is complete, so that enclosing nodes do not add to it."""
        self.located.append(kind(message))
        return self.located[-1]

    def shape_hint(self) -> str:
        """Return advice that names the inputs whose shapes are unknown."""
        unknown = {name: v for name, v in self.inputs.items() if v.rank is None}
        examples = {name: _example(v) for name, v in (unknown or self.inputs).items()}
        words = " ".join(f"--shape {name}:{','.join(map(str, shape))}" for name, shape in examples.items())
        return f"; pass shapes of the inputs, for example shapes={examples}; commands take {words}"

    def check_size(self) -> None:
        self.built += 1
        if self.built > self.most_nodes:
            raise InvalidModel(
                f"{self.label}: its subgraphs expand to more than {self.most_nodes} nodes (GRAPHKIT_MAX_NODES)"
            )

    def check_variables(self) -> None:
        seen: set[str] = set()
        for node in self.graph.nodes:
            if node.is_variable and node.name in seen:
                raise InvalidModel(f"{self.label}: two variables have the name {node.name!r}")
            if node.is_variable:
                seen.add(node.name)
        data = sorted(seen - self.arrays.keys())
        for name in self.shapes:
            if name not in data:
                raise UsageError(f"{self.label} has no data input {name!r}{did_you_mean(name, data)}")

    def variable(self, index: int) -> Value:
        """Return the value of a variable: a parameter, a running statistic, a constant, or a data input."""
        node = self.graph.nodes[index]
        if node.name in self.arrays:
            return self.parameter(index, node)
        if node.name not in self.shapes and _PARAMETER_NAMES.search(node.name):
            raise self.located_error(InvalidModel, f"{self.label}: the parameter file has no array {node.name!r}")
        given = self.shapes.get(node.name)
        shape = (_annotated(node) or self.readers.shape(index)) if given is None else given
        prefix = f"{node.name}_" if self.inputs and node.name not in self.shapes else ""
        dims = None if shape is None else sizes(node.name, shape, prefix)
        default = self.readers.dtype(index) or DType.FLOAT32
        dtype = Attributes(node.annotations).dtype("dtype", default.value)
        made = Value(TensorType(dtype, dims), node.name)
        self.inputs[node.name] = made
        return made

    def parameter(self, index: int, node: SymbolNode) -> Value:
        array = self.arrays[node.name]
        dtype = dtype_of(array.dtype)
        if dtype.value not in _FLOATS:
            return constant(np.asarray(array))
        role = "state" if node.name in self.auxiliary or index in self.statistics else "parameter"
        attrs: dict[str, Any] = {
            key: _number(node, key) for key in ("lr_mult", "wd_mult") if key in node.annotations and role == "parameter"
        }
        made = Value(TensorType(dtype, array.shape), node.name, role=role, attrs=attrs)
        self.stored[node.name] = made
        return made


def _example(value: Value) -> tuple[int, ...]:
    """Return a shape to type, with numbers in place of unknown sizes."""
    shape = value.tensor.shape
    return (1, 10) if shape is None else tuple(size if isinstance(size, int) else 1 for size in shape)


def _output_names(symbol: Symbol) -> list[str]:
    """Return MXNet's names of the heads: NODE_output, with a number if other outputs of the node are read too."""
    read: dict[int, set[int]] = {}
    for index, output in (*symbol.heads, *(operand for node in symbol.nodes for operand in node.inputs)):
        read.setdefault(index, set()).add(output)
    names = []
    for index, output in symbol.heads:
        node = symbol.nodes[index]
        number = "" if read[index] == {0} else str(output)
        names.append(node.name if node.is_variable else f"{node.name}_output{number}")
    return names


def _statistics(graph: Symbol) -> set[int]:
    """Return the variables that a normalisation reads as running mean or variance."""
    found: set[int] = set()
    for node in graph.nodes:
        found.update(node.inputs[i][0] for i in _STATISTICS.get(node.op, ()) if i < len(node.inputs))
    return found


def _annotated(node: SymbolNode) -> tuple[int | None, ...] | None:
    """Return the shape that the symbol's author declared for a variable; a size 0 is unknown."""
    shape = Attributes(node.annotations).integers("shape")
    return tuple(size or None for size in shape) or None


def _number(node: SymbolNode, key: str) -> float:
    return Attributes(node.annotations).number(key, 1.0)
