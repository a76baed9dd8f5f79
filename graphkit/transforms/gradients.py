"""The gradient of a model, as a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkit.errors import UsageError
from graphkit.executor.run.feeds import convert
from graphkit.ir.graph import Graph, Value
from graphkit.ir.origin import titled
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
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
    seeds: bool | Mapping[str, Any] = False,
) -> Model:
    """Return a model whose outputs are the gradients of the sum of `of` with respect to each of `wrt`.

    With seeds, it is the sum of seed * value, over all elements of all values of `of`.

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
        seeds: Arrays by name, one for each of `of`, of its type. Or True: then the seed of `y` is an input `y_seed` of
            the returned model (see also `gk.vjp`).

    Returns:
        A model with one output for each of `wrt`, of its type and shape.

    Raises:
        MissingGradient: An operator has no gradient.
        UsageError: A name is unknown or given twice; a gradient would have the name of an output of `model` that
            `with_outputs` keeps; or seeds are missing or have the wrong type.
    """
    from graphkit.autodiff.reverse_mode import gradient

    found = differentiable_graph(model, of, wrt, straight_through=straight_through)
    kept = dict(zip(model.outputs, found.graph.outputs, strict=True)) if with_outputs else {}
    seed_inputs, given = _seeds(found, seeds)
    gradients = gradient(
        list(found.of.values()), list(found.wrt.values()), given, allow_unused=allow_unused or wrt is None
    )
    outputs = named_results(kept, dict(zip(found.wrt, gradients, strict=True)), suffix)
    return found.derived([*found.graph.inputs, *seed_inputs], outputs, "grad")


class DifferentiableGraph(NamedTuple):
    """The graph of a model, prepared for differentiation, and the values to differentiate, by name.

    Attributes:
        model: The model. Its graph may differ from `graph`, but has the same parameters.
        graph: The graph.
        of: The values that are differentiated.
        wrt: The values with respect to which they are differentiated.
    """

    model: Model
    graph: Graph
    of: dict[str, Value]
    wrt: dict[str, Value]

    def derived(self, inputs: Sequence[Value], outputs: Mapping[str, Value], kind: str) -> Model:
        """Return a model of derivatives. It shares the parameters. kind: suffix of its name."""
        from graphkit.passes.control.merge import merge_control
        from graphkit.passes.control.prune import prune_control

        name = f"{self.model.name}_{kind}"
        graph = Graph(inputs, outputs.values(), name=name, output_names=outputs, meta=self.model.meta)
        return Model.from_graph(prune_control(merge_control(graph)), self.model.params.entries())


def differentiable_graph(
    model: Model,
    of: str | Sequence[str] | None,
    wrt: str | Sequence[str] | None,
    *,
    straight_through: bool = False,
) -> DifferentiableGraph:
    """Prepare the graph of a model for differentiation. Arguments and errors are those of `grad`."""
    from graphkit.autodiff.reverse_mode import reached
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
    if not names:
        raise UsageError("wrt names no value to differentiate with respect to")
    for given in (targets, names):
        if twice := [name for name in given if given.count(name) > 1]:
            raise UsageError(f"{twice[0]!r} is given twice")
    wanted = [source.find(n, inputs_first=True) for n in names]
    _check_differentiable(targets, values, "choose float tensors with of= (--of)")
    _check_differentiable(names, wanted, "choose float tensors with wrt= (--wrt)")
    return DifferentiableGraph(
        model, source, dict(zip(targets, values, strict=True)), dict(zip(names, wanted, strict=True))
    )


def _check_differentiable(names: Sequence[str], values: Sequence[Value], advice: str) -> None:
    from graphkit.autodiff.subgraphs import differentiable

    for name, value in zip(names, values, strict=True):
        if not differentiable(value):
            raise UsageError(f"{name!r} ({value.type}) is not a float tensor and has no gradient; {advice}")


def new_inputs(graph: Graph, values: Mapping[str, Value], suffix: str) -> dict[str, Value]:
    """Return new data inputs named NAME + suffix, of the types of values, by NAME.

    Raises UsageError if the graph has an input of such a name.
    """
    for name in values:
        if name + suffix in graph.input_names:
            raise UsageError(f"{titled(graph, 'model')} already has an input {name + suffix!r}: rename it")
    return {name: Value(value.type, name + suffix) for name, value in values.items()}


def named_results(kept: Mapping[str, Value], results: Mapping[str, Value], suffix: str) -> dict[str, Value]:
    """Return the outputs to keep, then each result under NAME + suffix.

    Raises UsageError if an output to keep has such a name.
    """
    found = dict(kept)
    for name, value in results.items():
        if (made := name + suffix) in found:
            raise UsageError(
                f"the result for {name!r} would have the name {made!r} of another output: give another suffix= "
                "(--suffix)"
            )
        found[made] = value
    return found


def _seeds(found: DifferentiableGraph, seeds: bool | Mapping[str, Any]) -> tuple[list[Value], list[Value] | None]:
    """Return the new inputs for seeds, and the seeds of all values of `found.of`; None for ones."""
    if seeds is False:
        return [], None
    if seeds is True:
        inputs = list(new_inputs(found.graph, found.of, "_seed").values())
        return inputs, inputs
    if odd := sorted(set(seeds) ^ set(found.of)):
        raise UsageError(f"gk.grad: seeds must have one array for each of {', '.join(found.of)}; see {odd[0]!r}")
    return [], [F.constant(value=convert(f"seed of {n}", v.type, seeds[n])) for n, v in found.of.items()]


def _resolved(graph: Graph, names: Sequence[str]) -> Graph:
    """Replace reads of sequence elements by the elements, unless that removes a value in `names`."""
    from graphkit.passes.control.count_loops import count_loops
    from graphkit.passes.simplify.sequences import resolve_sequences

    resolved = resolve_sequences(count_loops(graph))
    kept = {*resolved.output_names, *map(resolved.name_of, resolved.values)}
    return resolved if kept.issuperset(names) else graph
