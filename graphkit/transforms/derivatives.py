"""Products with Jacobian matrices, Jacobians and Hessians of a model, as models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import UnsupportedError, UsageError
from graphkit.frontend.control import map as map_slices
from graphkit.ir.graph import Graph, Value
from graphkit.ir.model_inputs import ordered_inputs
from graphkit.ir.subgraph import inline
from graphkit.model import Model
from graphkit.ops import F
from graphkit.passes.control.merge import merge_control
from graphkit.passes.control.prune import prune_control
from graphkit.passes.core.dependence import dependent_on_elements
from graphkit.signatures import typed
from graphkit.transforms.gradients import DifferentiableGraph, differentiable_graph, grad, named_results, new_inputs


@typed("gk.vjp")
def vjp(
    model: Model,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    with_outputs: bool = False,
    suffix: str = "_grad",
) -> Model:
    """Return a model of vector-Jacobian products: for vectors v, the products v^T J, where J is the Jacobian.

    It is `gk.grad` with `seeds=True`: the vector for `y` is an input `y_seed`, of the type of `y`.

    Args:
        model: Any model. The returned model shares its parameter arrays.
        of: Names of outputs or intermediate values (default: all outputs).
        wrt: Names of inputs, parameters or intermediate values (default: the trainable parameters).
        with_outputs: Also return the outputs of `model`.
        suffix: The product for `x` is named `x` + `suffix`.

    Raises:
        The errors of `gk.grad`.
    """
    return grad(model, of, wrt, with_outputs=with_outputs, suffix=suffix, seeds=True)


@typed("gk.jvp")
def jvp(
    model: Model,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    with_outputs: bool = False,
    suffix: str = "_tangent",
) -> Model:
    """Return a model of Jacobian-vector products: the derivative of each of `of` along given directions of `wrt`.

    The direction of `x` is an input `x_tangent`, of the type of `x`. The result for `y` is an output `y_tangent`, of
    the type of `y`. Forward derivatives are made from reverse ones: v^T J is linear in v, so that the gradient of its
    dot product with a direction t, with respect to v, is J t (Townsend 2017, "A new trick for calculating Jacobian
    vector products").

    Args:
        model: Any model. The returned model shares its parameter arrays.
        of: Names of outputs or intermediate values (default: all outputs).
        wrt: Names of inputs, parameters or intermediate values (default: the trainable parameters).
        with_outputs: Also return the outputs of `model`.
        suffix: Suffix of the names of directions and results.

    Raises:
        MissingGradient: An operator, or an operator of its gradient, has no gradient.
        UsageError: As for `gk.grad`.
    """
    found = differentiable_graph(model, of, wrt)
    kept = dict(zip(model.outputs, found.graph.outputs, strict=True)) if with_outputs else {}
    tangents = new_inputs(found.graph, found.wrt, suffix)
    results = dict(zip(found.of, _forward(found, list(tangents.values())), strict=True))
    return found.derived([*found.graph.inputs, *tangents.values()], named_results(kept, results, suffix), "jvp")


@typed("gk.jacobian")
def jacobian(
    model: Model,
    of: str | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    mode: str = "reverse",
    with_outputs: bool = False,
    suffix: str = "_jacobian",
) -> Model:
    """Return a model of Jacobians: the derivative of each element of `of` with respect to each element of `wrt`.

    The result for `x` is an output `x_jacobian`, whose shape is that of `of`, then that of `x`. It is a loop over the
    elements of `of` (mode "reverse"), or over those of `x` (mode "forward"); choose the smaller number.

    Args:
        model: Any model. The returned model shares its parameter arrays.
        of: Name of an output or intermediate value (default: the only output).
        wrt: Names of inputs, parameters or intermediate values (default: the trainable parameters).
        mode: "reverse" or "forward".
        with_outputs: Also return the outputs of `model`.
        suffix: The Jacobian with respect to `x` is named `x` + `suffix`.

    Raises:
        MissingGradient: An operator has no gradient.
        UsageError: As for `gk.grad`; or the mode is unknown, or `of` is missing and the model has several outputs.
    """
    if mode not in ("reverse", "forward"):
        raise UsageError(f"gk.jacobian: mode must be 'reverse' or 'forward', not {mode!r}")
    found = differentiable_graph(model, _only(model, of, "gk.jacobian"), wrt)
    kept = dict(zip(model.outputs, found.graph.outputs, strict=True)) if with_outputs else {}
    (y,) = found.of.values()
    if mode == "reverse":
        rows = _rows(y, list(found.wrt.values()))
        results = {n: _shaped(r, y, x) for (n, x), r in zip(found.wrt.items(), rows, strict=True)}
    else:
        results = {name: _columns(found, name) for name in found.wrt}
    return found.derived(found.graph.inputs, named_results(kept, results, suffix), "jacobian")


@typed("gk.hessian")
def hessian(
    model: Model,
    of: str | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    with_outputs: bool = False,
    suffix: str = "_hessian",
) -> Model:
    """Return a model of the Hessian of a scalar: all second derivatives.

    The block for `a` and `b` of `wrt` is an output `a_b_hessian`, whose shape is that of `a`, then that of `b`. It is a
    loop over the elements of `a`, whose iterations are products of the Hessian with a vector.

    Args:
        model: Any model. The returned model shares its parameter arrays.
        of: Name of an output or intermediate value with one element (default: the only output).
        wrt: Names of inputs, parameters or intermediate values (default: the trainable parameters).
        with_outputs: Also return the outputs of `model`.
        suffix: Suffix of the names of the blocks.

    Raises:
        MissingGradient: An operator, or an operator of its gradient, has no gradient.
        UsageError: As for `gk.grad`; or `of` has several elements.
    """
    found = differentiable_graph(model, _only(model, of, "gk.hessian"), wrt)
    kept = dict(zip(model.outputs, found.graph.outputs, strict=True)) if with_outputs else {}
    ((name, y),) = found.of.items()
    if y.shape is None or any(size != 1 for size in y.shape):
        raise UsageError(f"gk.hessian: {name!r} is {y.type}; it must have one element, such as a loss")
    wanted = list(found.wrt.values())
    gradients = gradient([y], wanted, allow_unused=True)
    results: dict[str, Value] = {}
    for (a, x), first in zip(found.wrt.items(), gradients, strict=True):
        rows = _rows(first, wanted)
        blocks = {f"{a}_{b}": _shaped(r, x, v) for (b, v), r in zip(found.wrt.items(), rows, strict=True)}
        if same := [name for name in blocks if name in results]:
            raise UsageError(f"gk.hessian: two blocks would have the name {same[0] + suffix!r}; rename a value of wrt")
        results |= blocks
    return found.derived(found.graph.inputs, named_results(kept, results, suffix), "hessian")


# --- helpers ----------------------------------------------------------------------------------------


def _only(model: Model, of: str | None, what: str) -> str:
    """Return `of`, or the name of the only output."""
    if of is None and len(model.outputs) != 1:
        raise UsageError(f"{what}: the model has {len(model.outputs)} outputs, {', '.join(model.outputs)}: give of=")
    return model.outputs[0] if of is None else of


def _forward(found: DifferentiableGraph, tangents: Sequence[Value]) -> list[Value]:
    """Return the derivative of each value of `found.of` along tangents, which are in the order of `found.wrt`."""
    targets = list(found.of.values())
    seeds = [Value(y.type, "seed") for y in targets]
    products = gradient(targets, list(found.wrt.values()), seeds, allow_unused=True)
    results = gradient(products, seeds, tangents, allow_unused=True)
    inputs = [v for v in ordered_inputs(results) if v not in set(seeds)]
    # Loops of the second gradient read saved values of the first one that have no use here.
    graph = prune_control(merge_control(Graph([*seeds, *inputs], results)))
    if not dependent_on_elements(graph.outputs, graph.inputs[: len(seeds)]).isdisjoint(graph.outputs):
        raise UnsupportedError("gk.jvp: the gradient of an operator is not linear in the gradient of its result")
    # Only the shapes of the seeds are still used, and the targets have the same shapes.
    return inline(graph, [*targets, *inputs])


def _rows(y: Value, wanted: Sequence[Value]) -> list[Value]:
    """Return for each wanted value x [elements of y, *shape of x]: the gradients of all elements of y."""
    seed = Value(y.type, "seed")
    gradients = gradient([y], list(wanted), [seed], allow_unused=True)
    return _for_each_element(y, seed, gradients)


def _columns(found: DifferentiableGraph, name: str) -> Value:
    """Return the Jacobian with respect to one value x, from a loop over its elements."""
    ((_, y),) = found.of.items()
    x = found.wrt[name]
    tangent = Value(x.type, "tangent")
    (result,) = _forward(found._replace(wrt={name: x}), [tangent])
    (columns,) = _for_each_element(x, tangent, [result])
    # [elements of x, *shape of y] -> [*shape of y, elements of x]
    rank = y.rank
    if rank is None:
        raise UsageError(f"gk.jacobian: the rank of {y} is unknown")
    return _shaped(F.transpose(columns, perm=(*range(1, rank + 1), 0)), y, x)


def _for_each_element(like: Value, placeholder: Value, values: Sequence[Value]) -> list[Value]:
    """Return values stacked over elements of `like`: in slice i, `placeholder` is 1 in element i, 0 elsewhere."""
    inputs = [v for v in ordered_inputs(values) if v is not placeholder]
    graph = Graph([placeholder, *inputs], values)
    shape = F.shape(like)

    def one(row: Value) -> tuple[Value, ...]:
        # Only nodes that depend on the placeholder are rebuilt, and so are part of the body.
        return tuple(inline(graph, [F.reshape(row, shape), *inputs]))

    size = F.reshape(F.size(like), np.array([1]))
    unit = F.eye_like(F.expand(np.zeros((), like.dtype.numpy), F.concat(size, size, axis=0)))
    return list(map_slices(one, unit, name="elements"))


def _shaped(rows: Value, y: Value, x: Value) -> Value:
    """Return a tensor of all derivatives of y with respect to x as [*shape of y, *shape of x]."""
    result: Value = F.reshape(rows, F.concat(F.shape(y), F.shape(x), axis=0), allowzero=True)
    return result
