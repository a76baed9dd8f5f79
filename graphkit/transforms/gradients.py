"""The gradient of a model, as a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.origin import titled
from graphkit.model import Model
from graphkit.signatures import typed


@typed("gk.grad")
def grad(
    model: Model,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    with_outputs: bool = False,
    allow_unused: bool = False,
    straight_through: bool = False,
    suffix: str = "_grad",
) -> Model:
    """Return a model whose outputs are the gradients of the sum of `of` with respect to each of `wrt`.

    Quantisation followed by its dequantisation always has the straight-through gradient (see FakeQuantize).

    Args:
        model: Any model. The returned model shares its parameter arrays.
        of: Names of outputs or intermediate values (default: all outputs).
        wrt: Names of inputs, parameters, intermediate values or outputs (default: the trainable parameters that `of`
            depends on). If an output and another value share a name, `of` takes the output, and `wrt` the other value.
        with_outputs: Keep the outputs of `model`, before the gradients.
        allow_unused: Return zeros for a value of `wrt` that `of` does not depend on.
        straight_through: Differentiate rounding (Round, Floor, Ceil, Sign, casts to integers and back) as the identity.
            By default its gradient is zero.
        suffix: The gradient with respect to `x` is named `x` + `suffix`.

    Returns:
        A model with one output for each of `wrt`, of its type and shape.

    Raises:
        MissingGradient: An operator has no gradient.
        UsageError: A name is unknown or given twice, or a gradient would have the name of an output of `model` that
            `with_outputs` keeps.
    """
    from graphkit.autodiff.reverse_mode import gradient, reached
    from graphkit.passes.control.merge import merge_control
    from graphkit.passes.control.prune import prune_control
    from graphkit.passes.training.fake_quantise import fake_quantise
    from graphkit.passes.training.randomness import bind_nested
    from graphkit.passes.training.straight_through import pass_through_rounding

    graph = fake_quantise(model.graph)
    if straight_through:
        graph = pass_through_rounding(graph)
    if graph is not model.graph:
        model = Model.from_graph(graph, model.params.entries())
    targets = list(model.outputs) if of is None else [of] if isinstance(of, str) else list(of)
    source = bind_nested(_resolved(model.graph, [*targets, *([wrt] if isinstance(wrt, str) else wrt or ())]))
    values = [source.find(n) for n in targets]
    kept = dict(zip(model.outputs, source.outputs, strict=True)) if with_outputs else {}
    if wrt is None:
        found = reached(values)
        known = {source.name_of(v) for v in source.inputs if v in found}
        names = [n for n in model.trainable if n in known]
        if not names:
            raise UsageError(
                f"{titled(model.graph, 'model')}: {', '.join(targets)} depends on no parameter; give wrt= "
                "(--wrt), names of inputs or internal values, or turn weights in Constant nodes into parameters with "
                "constants_to_parameters (--constants)"
            )
    else:
        names = [wrt] if isinstance(wrt, str) else list(wrt)
    wanted = [source.find(n, inputs_first=True) for n in names]
    _check_differentiable(targets, values, "choose float tensors with of= (--of)")
    _check_differentiable(names, wanted, "choose float tensors with wrt= (--wrt)")
    outputs = _with_gradients(kept, names, gradient(values, wanted, allow_unused=allow_unused or wrt is None), suffix)
    graph = Graph(source.inputs, outputs.values(), name=f"{model.name}_grad", output_names=outputs, meta=model.meta)
    return Model.from_graph(prune_control(merge_control(graph)), model.params.entries())


def _check_differentiable(names: Sequence[str], values: Sequence[Value], advice: str) -> None:
    from graphkit.autodiff.subgraphs import differentiable

    for name, value in zip(names, values, strict=True):
        if not differentiable(value):
            raise UsageError(f"{name!r} ({value.type}) is not a float tensor and has no gradient; {advice}")


def _with_gradients(
    outputs: Mapping[str, Value], names: Sequence[str], gradients: Sequence[Value], suffix: str
) -> dict[str, Value]:
    """Return the outputs by name, then the gradient for each of `names`. Raises UsageError if a name occurs twice."""
    found = dict(outputs)
    for name, value in zip(names, gradients, strict=True):
        if (made := name + suffix) in found:
            raise UsageError(
                f"the gradient of {name!r} would have the name {made!r} of another output: give another suffix= "
                "(--suffix), or each name once"
            )
        found[made] = value
    return found


def _resolved(graph: Graph, names: Sequence[str]) -> Graph:
    """Replace reads of sequence elements by the elements, unless that removes a value in `names`."""
    from graphkit.passes.control.count_loops import count_loops
    from graphkit.passes.simplify.sequences import resolve_sequences

    resolved = resolve_sequences(count_loops(graph))
    kept = {*resolved.output_names, *map(resolved.name_of, resolved.values)}
    return resolved if kept.issuperset(names) else graph
