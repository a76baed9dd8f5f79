"""A model that maps another one over a new axis of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.errors import UsageError, did_you_mean
from graphkit.frontend.control import map as map_slices
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph, Value
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.subgraph import inline
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.passes.core.draws import is_undetermined
from graphkit.signatures import typed


@typed("gk.vmap")
def vmap(
    model: Model,
    in_axes: int | Mapping[str, int | None] = 0,
    out_axes: int | Mapping[str, int] = 0,
    *,
    size: int | str | None = None,
) -> Model:
    """Return a model that computes `model` for each slice of its inputs along a new axis, and stacks the results.

    For example, `gk.vmap(gk.grad(net))` computes a gradient for each sample. The model is a Scan over the axis, so its
    time is that of one run per slice; exported files contain this Scan.

    Args:
        model: A model without updates whose inputs and outputs are tensors of known rank. The returned model shares its
            parameter arrays.
        in_axes: Position of the new axis in each input, by name or for all. None: all slices use the whole input.
            Inputs that a mapping does not name have axis 0.
        out_axes: Position of the new axis in each output, by name or for all.
        size: Length of the axis: a number, or the name of a new symbolic dimension. Default: "batch", or "batch_1", ...
            if the model has this dimension.

    Raises:
        UsageError: A name is unknown, an axis is out of range, no input has the axis, the model already has the
            dimension, or the model is not of this kind.
    """
    owner = titled(model.graph, "model")
    if model.graph.updates:
        raise UsageError(f"gk.vmap: {owner} updates states, which have one value for all slices")
    axes = _by_name(in_axes, model.input_types, f"in_axes: {owner} has no input")
    ends = _by_name(out_axes, model.output_types, f"out_axes: {owner} has no output")
    axes = {name: None if axis is None else _axis(name, model.input_types[name], axis) for name, axis in axes.items()}
    ends = {name: _axis(name, model.output_types[name], 0 if axis is None else axis) for name, axis in ends.items()}
    mapped = {name: axis for name, axis in axes.items() if axis is not None}
    if not mapped:
        raise UsageError("gk.vmap: no input has the new axis: give an axis to at least one input (in_axes)")
    length = _length(model, size)
    inputs = {}
    for value in model.graph.inputs:
        name = model.graph.name_of(value)
        if name in mapped:
            shape = list(value.tensor.known_shape)
            shape.insert(mapped[name], length)
            inputs[name] = Value(TensorType(value.dtype, shape), name, attrs=value.attrs)
        else:
            inputs[name] = value

    def one(slices: dict[str, Value]) -> dict[str, Value]:
        operands = [slices.get(name, value) for name, value in inputs.items()]
        results = inline(model.graph, operands, is_undetermined)
        return dict(zip(model.outputs, results, strict=True))

    stacked = map_slices(
        one, {name: inputs[name] for name in mapped}, axis=mapped, out_axis={n: ends[n] for n in model.outputs},
        name="vmap",
    )  # fmt: skip
    graph = Graph(inputs.values(), stacked.values(), name=f"{model.name}_vmap", output_names=list(stacked))
    return Model.from_graph(graph, model.params.entries())


def _length(model: Model, size: int | str | None) -> int | DimExpr:
    """Return the length of the new axis."""
    if isinstance(size, int):
        return size
    kinds = [*model.input_types.values(), *model.output_types.values()]
    shapes = [kind.shape or () for kind in kinds if isinstance(kind, TensorType)]
    used = {name for shape in shapes for dim in shape if isinstance(dim, DimExpr) for name in dim.symbols}
    if size in used:
        raise UsageError(f"gk.vmap: the model already has a dimension {size!r}: give another name with size=")
    return symbol(Names(used).take("batch") if size is None else size)


def _by_name(given: int | Mapping[str, int | None], names: Mapping[str, object], message: str) -> dict[str, int | None]:
    """Return an axis for each name; 0 for names that a mapping lacks."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise UsageError(f"gk.vmap: {message} {name!r}{did_you_mean(name, names)}")
    return {name: given.get(name, 0) for name in names}


def _axis(name: str, kind: object, axis: int) -> int:
    """Return the position of the new axis among the axes of a value, from 0. A negative one counts from the end."""
    if not isinstance(kind, TensorType) or kind.shape is None:
        raise UsageError(f"gk.vmap: {name!r} is {kind}; it must be a tensor of known rank")
    rank = len(kind.shape) + 1
    if not -rank <= axis < rank:
        raise UsageError(f"gk.vmap: {name!r} has {rank} axes with the new one, so {axis} is out of range")
    return axis % rank
