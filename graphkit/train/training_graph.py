"""The graph that a trainer differentiates: a model in training mode, with its loss and targets."""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph
from graphkit.ir.origin import titled
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.passes.control.count_loops import count_loops
from graphkit.passes.fuse.recognise import recognise
from graphkit.passes.simplify.sequences import resolve_sequences
from graphkit.passes.training.fake_quantise import fake_quantise
from graphkit.passes.training.randomness import bind_rng
from graphkit.passes.training.straight_through import pass_through_rounding
from graphkit.passes.training.to_training import to_training
from graphkit.train import losses
from graphkit.train.adapter_marks import frozen_parameters
from graphkit.train.adapters.settings import check_differentiable
from graphkit.train.programs.statistics import sync_statistics, synchronises
from graphkit.train.programs.step import RESERVED_NAMES
from graphkit.train.selection import ParameterSelection
from graphkit.train.targets import Targets, expected_targets


class Criterion(NamedTuple):
    loss: losses.AnyLoss
    targets: Mapping[str, TensorType] | None
    output: str | None
    weights: Mapping[str, float] | None


class TrainingGraph(NamedTuple):
    """The outputs of the graph are the loss, the outputs of the model, and BATCH_WEIGHT.

    If the weight of a batch is its number of samples, there is no output BATCH_WEIGHT.
    """

    graph: Graph
    targets: Targets


def training_graph(
    net: Model,
    criterion: Criterion,
    selection: ParameterSelection,
    *,
    mixed: bool,
    straight_through: bool,
    batch_statistics: bool,
    statistics_over: KVStore | None,
    sample_weights: bool = False,
) -> TrainingGraph:
    """Build the training graph of a model.

    Args:
        statistics_over: The store whose processes share the batch statistics; None: this process alone.
    """
    _check_names(net)
    check_differentiable(net.graph)
    parameters = {n: v for n, v in zip(net.graph.input_names, net.graph.inputs, strict=True) if v.role == "parameter"}
    selected = selection.selected(parameters)
    frozen = {*(v for n, v in parameters.items() if n not in selected), *frozen_parameters(net.graph)}
    trained = to_training(
        net.graph, frozen, batch_statistics=batch_statistics, synchronised=synchronises(statistics_over)
    )
    graph = recognise(resolve_sequences(count_loops(trained)))
    bound = losses.bind_loss(graph, *criterion)
    bound.warn_of_weights()
    targets = expected_targets(graph, bound, net.output_types, sample_weights)
    # Before differentiation: the backward pass of a subgraph then uses the same random numbers.
    graph = bind_rng(losses.attach(graph, *criterion, mixed=mixed, weighted=True, sample_weights=sample_weights))
    graph = fake_quantise(graph)
    if straight_through:
        graph = pass_through_rounding(graph)
    return TrainingGraph(sync_statistics(graph, statistics_over), targets)


def _check_names(net: Model) -> None:
    """Raise UsageError if an input or output has a name that the programs of a training step use."""
    for what, names in (("input", net.graph.input_names), ("output", net.outputs)):
        if taken := RESERVED_NAMES.intersection(names):
            raise UsageError(
                f"{titled(net.graph, 'model')} has an {what} {min(taken)!r}, a name that training uses itself: "
                "rename it to train the model"
            )
