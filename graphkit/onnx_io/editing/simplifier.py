"""Simplify an ONNX model: rounds of rules, until none applies any longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import ModelProto

from graphkit.errors import InputError, did_you_mean
from graphkit.onnx_io.editing import constants, equals, identities, products
from graphkit.onnx_io.editing.document import Document
from graphkit.onnx_io.editing.observed import observe
from graphkit.onnx_io.editing.rules import Round

# Each round removes nodes, or ends the rounds.
_MAX_ROUNDS = 50

_RULES: Sequence[Callable[[Round], None]] = (
    constants.branches,
    constants.known_values,
    constants.computed_shapes,
    identities.identities,
    identities.chains,
    identities.zero_states,
    equals.equal_nodes,
    products.pads,
    products.affine_products,
    products.biased_products,
    equals.equal_initializers,
)


def simplified(
    model: ModelProto, evaluate: constants.Evaluate, *, shapes: Mapping[str, Sequence[int]], limit: int, label: str
) -> ModelProto:
    """Return a simplified copy of a model of the same opset.

    Args:
        model: A valid model whose initialisers are in the message.
        evaluate: Computes the outputs of a model without inputs.
        shapes: Sizes of inputs by name.
        limit: Bytes that computed constants may add to the file.
        label: Name of the file, for errors.
    """
    document = Document(model)
    fix_shapes(document, shapes)
    budget = limit
    for _ in range(_MAX_ROUNDS):
        start = Round(document, {}, budget)
        constants.constant_nodes(start)
        document.sweep()
        round = Round(document, observe(document, label), budget)
        identities.broadcasts(round)
        document.sweep()
        constants.fold(round, evaluate)
        for rule in _RULES:
            rule(round)
            document.sweep()
        budget = round.budget
        if not round.changes:
            break
    return document.written()


def fix_shapes(document: Document, shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the shapes of inputs, and forget the shapes that the file declares for other values."""
    infos = {info.name: info for info in document.top.inputs}
    for name, shape in shapes.items():
        if name not in infos:
            raise InputError(f"the model has no input {name!r}{did_you_mean(name, infos)}")
        kind = infos[name].type
        if kind.WhichOneof("value") != "tensor_type":
            raise InputError(f"input {name!r} is not a tensor, so it has no shape")
        declared = kind.tensor_type.shape.dim if kind.tensor_type.HasField("shape") else None
        fixed = [d.dim_value if d.HasField("dim_value") else None for d in declared or ()]
        if declared is not None and (
            len(fixed) != len(shape) or any(a not in (None, b) for a, b in zip(fixed, shape, strict=True))
        ):
            raise InputError(f"input {name!r}: the shape {list(shape)} does not fit the declared shape {fixed}")
    if not shapes:
        return
    _set_sizes(document, shapes)
    for scope in document.scopes:
        del scope.rest.value_info[:]


def _set_sizes(document: Document, shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the sizes. A symbolic size of a fixed input has the same size in other inputs and in outputs."""
    symbols: dict[str, int] = {}
    for info in document.top.inputs:
        if info.name in shapes:
            sizes = shapes[info.name]
            for dim, size in zip(info.type.tensor_type.shape.dim, sizes, strict=False):
                if dim.dim_param and symbols.setdefault(dim.dim_param, size) != size:
                    raise InputError(
                        f"input {info.name!r}: the dimension {dim.dim_param!r} gets the sizes "
                        f"{symbols[dim.dim_param]} and {size}; give one size"
                    )
            info.type.tensor_type.shape.ClearField("dim")
            for size in sizes:
                info.type.tensor_type.shape.dim.add(dim_value=size)
    for info in (*document.top.inputs, *document.top.output_infos):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
