"""Errors of pipelines, which name what is not supported."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from pipelines import AB, ABC, group, mlp, piped, vectors

import graphkit as gk
from graphkit.errors import InputError, UsageError
from graphkit.ops import F
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.train.programs.partition import partition


def graph_of(*order):
    h = gk.input("x", ["N", 6])
    for index, name in enumerate(order):
        with group(name):
            h = gk.tanh(gk.nn.linear(h, 6, name=f"fc{index}"))
    return gk.Model(h).graph


@in_one_item()
@pytest.mark.parametrize(
    ("groups", "ranks", "message"),
    [
        ({"a": 0, "d": 1}, 2, "no group 'd'"),
        ({"a": 0, "b": 1}, 2, "no rank is given for 'c'"),
        ({"a": 0, "b": 1, "c": 2}, 2, "'c' is placed on rank 2; the ranks of the job are 0 to 1"),
        ({"a": 0, "b": 1, "c": -1}, 2, "rank -1"),
        ({"a": 0, "b": 1, "c": 1}, 3, "no group is placed on rank 2"),
        ({"a": 0, "b": 1, "c": 0}, 2, r"rank 0 \(c: .*rank 1 \(b: "),
    ],
)
def test_groups_that_do_not_fit(groups, ranks, message):
    with pytest.raises(UsageError, match=message):
        partition(graph_of("a", "b", "c"), groups, ranks)


def test_a_cycle_between_groups_names_the_nodes():
    with pytest.raises(UsageError, match=r"depend on each other.*fc2.*reads a value that depends on rank 1.*fc1"):
        partition(graph_of("a", "b", "a"), {"a": 0, "b": 1}, 2)


def test_equal_nodes_of_different_groups_stay_apart():
    """Each stage computes its own copy of the mask, so no stage depends on the other."""
    x = gk.input("x", ["N", 6])
    h = x
    for name in "ab":
        with group(name):
            h = F.mul(gk.tanh(gk.nn.linear(h, 6, name=name)), F.cast(F.greater(x, np.float32(0)), to="float32"))
    graph = gk.Model(h, seed=1).graph
    merged = run_passes(graph, CLEANUP)
    assert [n.op.name for n in merged.nodes].count("Greater") == 2
    part = partition(merged, AB, 2)
    assert [v.node.op.name for v in part.crossings] == ["Mul"]


def test_a_graph_without_groups():
    with pytest.raises(UsageError, match="no node of the model is in a group"):
        partition(gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2)).graph, {"a": 0}, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 2}, "accumulate"), ({"recompute": "sqrt"}, "recompute"), ({"lazy": ["a_weight"]}, "lazy"),
        ({"kvstore": None}, "several processes"), ({"groups": None}, "micro_batches"),
        ({"micro_batches": 0}, "micro_batches"), ({"shard_optimizer": True}, "shard_optimizer"),
        ({"sync_batch_norm": True}, "sync_batch_norm"), ({"precision": "f16"}, "precision='f16'"),
    ],
)  # fmt: skip
def test_options_that_a_pipeline_has_not(on_ranks, options, message):
    def work(store):
        given = {"kvstore": store, "groups": ABC, "micro_batches": 2} | options
        with pytest.raises(UsageError, match=message):
            gk.Trainer(mlp(), "mse", **given)

    on_ranks(work, 3)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_lazy_tables_with_groups_are_refused_on_all_ranks(on_ranks, micro_batches):
    """The attribute of the parameter makes the table lazy, not the argument of the Trainer."""
    with group("a"):
        with gk.attr_scope(lazy="1"):
            h = gk.nn.embedding(gk.input("ids", ["N"], "int64"), 10, 4, name="table")
        h = gk.nn.linear(h, 4, name="fc1")
    with group("b"):
        h = gk.nn.linear(h, 4, name="fc2")
    if micro_batches == 1:  # a cycle, so the ranks do not form a pipeline
        with group("a"):
            h = gk.nn.linear(h, 4, name="fc3")
    graph = gk.Model(h, seed=1).graph

    def work(store):
        net = gk.Model.from_graph(graph, {}, seed=1)
        message = r"row-sparse updates .* of table_weight cannot be combined with groups="
        with pytest.raises(UsageError, match=message):
            gk.Trainer(net, "mse", kvstore=store, groups=AB, micro_batches=micro_batches)

    on_ranks(work)


def test_batches_that_do_not_fit(on_ranks):
    """All ranks reject them before any work is done. Later steps work."""

    def work(store):
        trainer, _ = piped(store, "mlp", steps=0)
        with pytest.raises(InputError, match="axis 1 is 5, not 6"):
            trainer.step(vectors(8)[0][:, :5], vectors(8)[1])
        with pytest.raises(InputError, match=r"^no input 'z'; known: "):
            trainer.step({"z": vectors(8)[0]}, vectors(8)[1])
        with pytest.raises(InputError, match="not given: 'x'"):
            trainer.step({}, vectors(8)[1])
        trainer.step(*vectors(8))
        with pytest.raises(InputError, match="at least one sample"):
            trainer.step(*vectors(0))
        with pytest.raises(InputError, match="different numbers of samples"):
            trainer.step(vectors(4)[0], vectors(5)[1])

    on_ranks(work, 3)
