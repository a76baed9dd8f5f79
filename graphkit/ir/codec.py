"""Conversion of graphs to JSON-able data, and back.

Nodes are in topological order, and refer to values by their unique names. The types of node outputs are stored for
human readers. When a file is loaded, they are inferred again; a stored type that contradicts the inferred one is an
error. Attributes are plain JSON, except for {"float": ...}, which stores an infinity or the bits of a NaN,
{"tensor": ...}, {"value_type": ...}, and {"object": ...}, which encloses a mapping that looks like one of these.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.collector import without_gc
from graphkit.errors import InvalidModel, TypeMismatch, UnsupportedOperator, UsageError
from graphkit.ir import context, dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.stored import StoredArray
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import (
    BOOLS,
    INTEGERS,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    dtype_of,
)
from graphkit.ir.weights import CODES, METADATA, Stored, restored, stored

Resolve = Callable[[str, str], Any]

# Constants up to this many bytes are stored in the JSON itself.
INLINE_BYTES = 1024
_MAX_NESTING = 64
_MAX_DIM_TEXT = 10_000
_ROLES = ("data", "parameter", "state", "rng")
_TAGS = ("float", "tensor", "value_type", "object")


@without_gc
def to_dict(graph: Graph) -> dict[str, Any]:
    """The graph as JSON-able data, with all its constants inline; `from_dict` is the inverse."""
    return Encoder(None, {}).graph(graph)


@without_gc
def from_dict(record: Mapping[str, Any], resolve: Resolve) -> Graph:
    """Build the graph that `to_dict` described. `resolve(domain, name)` returns the class of an operator.

    Raises UnsupportedOperator, which lists all operators that `resolve` does not know, and InvalidModel for damaged
    data.
    """
    decoder = Decoder(resolve, {})
    decoder.check_operators(record)
    return decoder.graph(record)


# --- encoding -----------------------------------------------------------------------------------------


class WeightsOut:
    """The tensors to write to the weights file, by unique name. An array that occurs twice is stored once."""

    def __init__(self) -> None:
        self.stored: dict[str, Stored] = {}
        self._names = Names([METADATA])
        self._known: dict[int, tuple[np.ndarray | StoredArray, str]] = {}

    def add(self, array: np.ndarray | StoredArray, dtype: DType, hint: str) -> str:
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        name = self._names.take(hint)
        self.stored[name] = stored(array, dtype)
        self._known[id(array)] = (array, name)
        return name


class Encoder:
    """Converts graphs to JSON-able data. Without `weights`, all tensors are stored inline.

    Anonymous symbols are renumbered.
    """

    def __init__(self, weights: WeightsOut | None, params: Mapping[str, np.ndarray | StoredArray]):
        self.weights = weights
        self.params = params
        self._anonymous: dict[str, Dim] = {}

    def graph(self, graph: Graph, path: str = "") -> dict[str, Any]:
        return {
            "name": graph.name,
            "meta": dict(graph.meta),
            "inputs": [self._input(graph, value, top=not path) for value in graph.inputs],
            "nodes": [self._node(graph, node, path) for node in graph.nodes],
            "outputs": [
                {"name": name, "value": graph.name_of(value)}
                for name, value in zip(graph.output_names, graph.outputs, strict=True)
            ],
            "updates": [{"state": graph.name_of(s), "value": graph.name_of(new)} for s, new in graph.updates],
        }

    def _input(self, graph: Graph, value: Value, top: bool) -> dict[str, Any]:
        name = graph.name_of(value)
        record = {"name": name, **self._type(value.type, known=True)}
        if value.role != "data":
            record["role"] = value.role
        if value.attrs:
            record["attrs"] = {k: self._attribute(v, f"{name}.{k}") for k, v in value.attrs.items()}
        if top and name in self.params:
            given = self.params[name]
            array = given if isinstance(given, StoredArray) else np.asarray(given)
            _check_parameter(name, value.type, array)
            record["tensor"] = self._tensor(array, dtype_of(array.dtype), name, inline=self.weights is None)
        return record

    def _node(self, graph: Graph, node: Node, path: str) -> dict[str, Any]:
        name = graph.node_name(node)
        record: dict[str, Any] = {"name": name, "op": node.op.name}
        if node.op.domain:
            record["domain"] = node.op.domain
        record["inputs"] = [None if v is None else graph.name_of(v) for v in node.inputs]
        record["outputs"] = [{"name": graph.name_of(v), **self._type(v.type)} for v in node.outputs]
        attributes, graphs = {}, {}
        for key, item in node.op.attributes().items():
            if isinstance(item, Graph):
                graphs[key] = self.graph(item, f"{path}{name}.{key}/")
            else:
                attributes[key] = self._attribute(item, f"{path}{name}.{key}")
        if attributes:
            record["attrs"] = attributes
        if node.meta:
            record["meta"] = dict(node.meta)
        if graphs:
            record["graphs"] = graphs
        return record

    def _type(self, type_: Type, known: bool = False) -> dict[str, Any]:
        if isinstance(type_, SequenceType):
            return {"sequence": self._type(type_.element, known)}
        if isinstance(type_, OptionalType):
            return {"optional": self._type(type_.element, known)}
        if isinstance(type_, MapType):
            return {"map": {"key": type_.key.value, "element": self._type(type_.element, known)}}
        shape = None if type_.shape is None else [self._dim(d) for d in type_.shape]
        record: dict[str, Any] = {"dtype": type_.dtype.value, "shape": shape}
        if known and type_.value is not None:
            record["value"] = [self._dim(d) for d in type_.value]
        return record

    def _dim(self, dim: Dim) -> int | str:
        if not isinstance(dim, DimExpr):
            return int(dim)
        anonymous = {s: self._number(s) for s in sorted(dim.symbols) if _is_anonymous(s)}
        return str(dims.substitute(dim, anonymous) if anonymous else dim)

    def _number(self, name: str) -> Dim:
        if name not in self._anonymous:
            self._anonymous[name] = dims.symbol(f"?{len(self._anonymous) + 1}")
        return self._anonymous[name]

    def _attribute(self, item: Any, hint: str) -> Any:
        if item is None or isinstance(item, (bool, int, str)):
            return item
        if isinstance(item, float):
            return item if math.isfinite(item) else {"float": _float_text(item)}
        if isinstance(item, DType):
            return item.value
        if isinstance(item, Type):
            return {"value_type": self._type(item)}
        if isinstance(item, (Tensor, np.ndarray, np.generic)):
            array = item.array if isinstance(item, Tensor) else np.asarray(item)
            dtype = dtype_of(array.dtype)
            inline = self.weights is None or array.nbytes <= INLINE_BYTES
            return {"tensor": self._tensor(array, dtype, hint, inline)}
        if isinstance(item, (tuple, list)):
            return [self._attribute(v, hint) for v in item]
        if isinstance(item, Mapping):
            record = {str(k): self._attribute(v, f"{hint}.{k}") for k, v in item.items()}
            return {"object": record} if len(record) == 1 and next(iter(record)) in _TAGS else record
        raise UsageError(f"{hint}: a {type(item).__name__} cannot be written as JSON")

    def _tensor(self, array: np.ndarray | StoredArray, dtype: DType, hint: str, inline: bool) -> dict[str, Any]:
        record: dict[str, Any] = {"dtype": dtype.value, "shape": list(array.shape)}
        if dtype is DType.STRING:
            for text in np.asarray(array).reshape(-1).tolist():
                if not isinstance(text, str):
                    raise UsageError(f"{hint}: a string tensor holds a {type(text).__name__}")
        if not inline:
            assert self.weights is not None
            record["stored"] = self.weights.add(array, dtype, hint)
        elif dtype is DType.STRING or (dtype in INTEGERS | BOOLS and array.nbytes <= INLINE_BYTES):
            record["values"] = np.asarray(array).reshape(-1).tolist()
        else:
            record["bytes"] = base64.b64encode(stored(array, dtype).read()).decode()
        return record


def _check_parameter(name: str, type_: Type, array: np.ndarray | StoredArray) -> None:
    """Raise InvalidModel unless an array fits an input of this type."""
    fits = isinstance(type_, TensorType) and dtype_of(array.dtype) is type_.dtype
    if fits and isinstance(type_, TensorType) and type_.shape is not None:
        fits = len(type_.shape) == len(array.shape)
        fits = fits and all(dims.may_equal(d, n) for d, n in zip(type_.shape, array.shape, strict=True))
    if not fits:
        raise InvalidModel(f"parameter {name!r} is {type_}; its array is {dtype_of(array.dtype)}{list(array.shape)}")


def _is_anonymous(name: str) -> bool:
    return name[:1] == "?" and name[1:].isdigit()


def _float_text(value: float) -> str:
    return struct.pack(">d", value).hex() if math.isnan(value) else ("inf" if value > 0 else "-inf")


# --- decoding -----------------------------------------------------------------------------------------


class Decoder:
    """Converts JSON data to graphs.

    Args:
        resolve: Returns the class of an operator, given domain and name.
        arrays: The tensors of the weights file, as bytes.

    Attributes:
        params: The arrays of graph inputs, by name.
    """

    def __init__(self, resolve: Resolve, arrays: Mapping[str, np.ndarray | StoredArray]):
        self._resolve = resolve
        self._tensors = arrays
        self._classes: dict[tuple[str, str], Any] = {}
        self._anonymous: dict[str, Dim] = {}
        self.params: dict[str, np.ndarray | StoredArray] = {}

    def check_operators(self, record: Any) -> None:
        """Resolve all operators, also in subgraphs. Raises UnsupportedOperator, which lists all unknown ones."""
        unknown: dict[tuple[str, str], str] = {}
        stack = [record]
        while stack:
            for node in field(stack.pop(), "nodes", list, "graph"):
                name = field(node, "name", str, "a node")
                key = (field(node, "domain", str, f"node {name!r}", ""), field(node, "op", str, f"node {name!r}"))
                if key not in self._classes and key not in unknown:
                    try:
                        found = self._resolve(*key)
                    except UnsupportedOperator:
                        found = None
                    if found is None:
                        unknown[key] = name
                    else:
                        self._classes[key] = found
                stack.extend(field(node, "graphs", dict, f"node {name!r}", {}).values())
        if unknown:
            listed = ", ".join(f"{d or 'ai.onnx'}.{op} (node {name!r})" for (d, op), name in unknown.items())
            raise UnsupportedOperator(
                f"unknown operators: {listed}; import the module that defines an operator of your own before loading"
            )

    def graph(self, record: Mapping[str, Any], where: str = "graph", depth: int = 0) -> Graph:
        if depth > _MAX_NESTING:
            raise InvalidModel(f"{where}: subgraphs are nested more than {_MAX_NESTING} deep")
        table: dict[str, Value] = {}
        inputs = []
        for item in field(record, "inputs", list, where):
            value = self._input(item, where, depth == 0)
            _define(table, value.name, value, where)
            inputs.append(value)
        with context.detached():
            for item in field(record, "nodes", list, where):
                self._node(item, table, where, depth)
        outputs, names = [], []
        for item in field(record, "outputs", list, where):
            names.append(field(item, "name", str, f"{where}: an output"))
            outputs.append(_look_up(table, field(item, "value", str, f"{where}: output {names[-1]!r}"), where))
        updates = []
        for item in field(record, "updates", list, where):
            pair = [field(item, key, str, f"{where}: an update") for key in ("state", "value")]
            updates.append((_look_up(table, pair[0], where), _look_up(table, pair[1], where)))
        name = field(record, "name", str, where)
        meta = strings(record.get("meta", {}), f"{where}: meta")
        return Graph(inputs, outputs, updates, name, output_names=names, meta=meta)

    def _input(self, item: Any, where: str, top: bool) -> Value:
        name = field(item, "name", str, f"{where}: an input")
        where = f"{where}: input {name!r}"
        type_ = self._type(item, where)
        if top and isinstance(type_, TensorType):
            # The caller passes the elements, so known elements of the input's type do not apply.
            type_ = type_.with_value(None)
        role = field(item, "role", str, where, "data")
        if role not in _ROLES:
            raise InvalidModel(f"{where}: role {role!r} is not one of {', '.join(_ROLES)}")
        attrs = {k: self._attribute(v, where) for k, v in field(item, "attrs", dict, where, {}).items()}
        if top and "tensor" in item:
            array = self._tensor(item["tensor"], where, stays=True)
            _check_parameter(name, type_, array)
            self.params[name] = array
        return Value(type_, name, role=role, attrs=attrs)

    def _node(self, item: Mapping[str, Any], table: dict[str, Value], where: str, depth: int) -> None:
        name = item["name"]
        where = f"{where}: node {name!r}"
        operands = [None if v is None else _look_up(table, v, where) for v in field(item, "inputs", list, where)]
        attrs = {k: self._attribute(v, f"{where}, {k}") for k, v in field(item, "attrs", dict, where, {}).items()}
        for key, subgraph in field(item, "graphs", dict, where, {}).items():
            attrs[key] = self.graph(subgraph, f"{where}, {key}", depth + 1)
        outputs = field(item, "outputs", list, where)
        names = [field(output, "name", str, f"{where}: an output") for output in outputs]
        try:
            operator = self._classes[item.get("domain", ""), item["op"]](**attrs)
        except UsageError as error:
            raise InvalidModel(f"{where}: {error}") from None
        meta = strings(item.get("meta", {}), where)
        node = Node(operator, operands, name, meta, output_names=names)
        if len(node.outputs) != len(outputs):
            raise InvalidModel(
                f"{where}: the number of outputs is {len(outputs)} in the file, but {operator.name} has "
                f"{len(node.outputs)}"
            )
        for output, value in zip(outputs, node.outputs, strict=True):
            self._compare(output, value, where)
            _define(table, value.name, value, where)

    def _compare(self, record: Any, value: Value, where: str) -> None:
        """Raise InvalidModel if the stored type contradicts the inferred one.

        For each anonymous symbol of the stored type, remember the inferred dimension.
        """
        claimed, actual = self._type(record, where, learn=value.type), value.type
        while type(claimed) is type(actual) and not isinstance(actual, TensorType):
            if isinstance(claimed, MapType) and isinstance(actual, MapType) and claimed.key is not actual.key:
                break
            claimed, actual = claimed.element, actual.element  # type: ignore[union-attr]
        agree = type(claimed) is type(actual) and not isinstance(actual, MapType)
        if agree and isinstance(claimed, TensorType) and isinstance(actual, TensorType):
            agree = claimed.dtype is actual.dtype
            if claimed.shape is not None and actual.shape is not None:
                agree = agree and len(claimed.shape) == len(actual.shape)
                agree = agree and all(map(dims.may_equal, claimed.shape, actual.shape))
        if not agree:
            raise InvalidModel(
                f"{where}: the stored type of {value.name!r} is {claimed}, but its operator infers {actual}"
            )

    def _type(self, record: Any, where: str, learn: Type | None = None) -> Type:
        for key, constructor in (("sequence", SequenceType), ("optional", OptionalType)):
            if isinstance(record, dict) and key in record:
                element = learn.element if isinstance(learn, constructor) else None
                return constructor(self._type(record[key], where, element))
        if isinstance(record, dict) and "map" in record:
            entries = field(record, "map", dict, where)
            element = learn.element if isinstance(learn, MapType) else None
            try:
                return MapType(
                    _dtype({"dtype": entries.get("key")}, where), self._type(entries.get("element"), where, element)
                )
            except TypeMismatch as error:
                raise InvalidModel(f"{where}: {error}") from None
        dtype = _dtype(record, where)
        shape = record.get("shape")
        known = learn.shape if isinstance(learn, TensorType) else None
        if shape is not None:
            shape = field(record, "shape", list, where)
            if known is not None and len(known) == len(shape):
                shape = [self._dim(d, where, k) for d, k in zip(shape, known, strict=True)]
            else:
                shape = [self._dim(d, where) for d in shape]
            if any(not isinstance(d, DimExpr) and d < 0 for d in shape):
                raise InvalidModel(f"{where}: a dimension of {shape} is negative")
        value = record.get("value")
        if value is not None:
            value = [self._dim(d, where) for d in field(record, "value", list, where)]
        return TensorType(dtype, shape, value)

    def _dim(self, item: Any, where: str, known: Dim | None = None) -> Dim:
        if type(item) is int:
            return item
        if not isinstance(item, str) or not item or len(item) > _MAX_DIM_TEXT:
            raise InvalidModel(f"{where}: {item!r} is not a dimension")
        if _is_anonymous(item):
            if item not in self._anonymous:
                self._anonymous[item] = dims.fresh() if known is None else known
            return self._anonymous[item]
        dim = dims.parse(item)
        if not isinstance(dim, DimExpr):
            return dim
        anonymous = {s: self._dim(s, where) for s in sorted(dim.symbols) if _is_anonymous(s)}
        return dims.substitute(dim, anonymous) if anonymous else dim

    def _attribute(self, item: Any, where: str) -> Any:
        if isinstance(item, list):
            return [self._attribute(v, where) for v in item]
        if not isinstance(item, dict):
            return item
        if list(item) == ["float"]:
            return _float_from_text(field(item, "float", str, where), where)
        if list(item) == ["tensor"]:
            return Tensor(np.asarray(self._tensor(item["tensor"], where)))
        if list(item) == ["value_type"]:
            return self._type(item["value_type"], where)
        if list(item) == ["object"]:
            item = field(item, "object", dict, where)
        return {k: self._attribute(v, where) for k, v in item.items()}

    def _tensor(self, record: Any, where: str, *, stays: bool = False) -> np.ndarray | StoredArray:
        """Return the array of a record. stays: leave it in its file, as a StoredArray, if possible."""
        name, dtype, shape = _tensor_header(record, where)
        try:
            if name:
                if name not in self._tensors:
                    raise InvalidModel(f"{where}: tensor {name!r} is not in the weights file")
                data = self._tensors[name]
                if stays and isinstance(data, StoredArray) and dtype in CODES and dtype is not DType.BOOL:
                    return data.viewed(dtype.numpy, shape)
                return restored(np.asarray(data), dtype, shape)
            if "values" in record:
                return _array_of_values(field(record, "values", list, where), dtype, shape)
            return restored(base64.b64decode(field(record, "bytes", str, where), validate=True), dtype, shape)
        except (ValueError, OverflowError) as error:
            raise InvalidModel(f"{where}: tensor{f' {name!r}' if name else ''}: {error}") from None


def stored_tensors(body: Any) -> dict[str, tuple[str, Any]]:
    """Return type code and shape (None: any) of each tensor of the weights file in the document, by name."""
    expected: dict[str, tuple[str, Any]] = {}
    for record in _tensor_references(body):
        name, dtype, shape = _tensor_header(record, "a stored tensor")
        if dtype in CODES:
            expected[name] = (CODES[dtype], shape)
        else:
            expected[name] = ("U8", None if dtype is DType.STRING else (math.prod(shape) * dtype.itemsize,))
    return expected


def _tensor_references(body: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of all tensors in the weights file, anywhere in the document.

    Not recursive, so depth has no limit.
    """
    stack = [body]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if "tensor" in item and isinstance(item["tensor"], dict) and "stored" in item["tensor"]:
                yield item["tensor"]
            stack.extend(v for v in item.values() if isinstance(v, (dict, list)))
        elif isinstance(item, list):
            stack.extend(v for v in item if isinstance(v, (dict, list)))


def _array_of_values(values: Sequence[Any], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    expected = str if dtype is DType.STRING else bool if dtype is DType.BOOL else int
    if (dtype is not DType.STRING and dtype not in INTEGERS | BOOLS) or not all(type(v) is expected for v in values):
        raise ValueError(f"the values are not {dtype}")
    if len(values) != math.prod(shape):
        raise ValueError(f"{len(values)} values for shape {list(shape)}")
    array = np.empty(len(values), dtype.numpy)
    array[:] = np.array(values, dtype.numpy) if values else []
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _tensor_header(record: Any, where: str) -> tuple[str, DType, tuple[int, ...]]:
    """Return the name in the weights file ("" if inline), the element type and the shape of a tensor record."""
    name = field(record, "stored", str, where, "")
    shape = tuple(field(record, "shape", list, where))
    if not all(type(n) is int and n >= 0 for n in shape):
        raise InvalidModel(f"{where}: {list(shape)} is not the shape of a tensor")
    return name, _dtype(record, where), shape


def _dtype(record: Any, where: str) -> DType:
    text = field(record, "dtype", str, where)
    try:
        return DType(text)
    except ValueError:
        raise InvalidModel(f"{where}: unknown element type {text!r}") from None


def _float_from_text(text: str, where: str) -> float:
    if text in ("inf", "-inf"):
        return float(text)
    value: float
    try:
        (value,) = struct.unpack(">d", bytes.fromhex(text))
    except (ValueError, struct.error):
        raise InvalidModel(f"{where}: {text!r} is not a float") from None
    return value


_MISSING: Any = object()


def field(record: Any, key: str, kind: type, where: str, default: Any = _MISSING) -> Any:
    """Return `record[key]`, which must be a `kind`, or `default` if the key is missing. Raises InvalidModel."""
    if not isinstance(record, dict):
        raise InvalidModel(f"{where}: an object is expected, not {type(record).__name__}")
    item = record.get(key, default)
    if item is _MISSING:
        raise InvalidModel(f"{where}: {key!r} is missing")
    if not isinstance(item, kind):
        raise InvalidModel(f"{where}: {key!r} is a {type(item).__name__}, a {kind.__name__} is expected")
    return item


def strings(record: Any, where: str) -> dict[str, str]:
    if not isinstance(record, dict) or not all(isinstance(v, str) for v in record.values()):
        raise InvalidModel(f"{where}: an object of strings is expected")
    return record


def _define(table: dict[str, Value], name: str, value: Value, where: str) -> None:
    if name in table:
        raise InvalidModel(f"{where}: the name {name!r} is already used")
    table[name] = value


def _look_up(table: Mapping[str, Value], name: Any, where: str) -> Value:
    if not isinstance(name, str) or name not in table:
        raise InvalidModel(f"{where}: no earlier value is called {name!r}")
    return table[name]
