"""Declarations of passes: wrong pipelines are errors, an order is found, and promised properties are checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from combinations import in_one_item

from graphkit import config
from graphkit.errors import CheckFailed, PassOrderError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.declare import INITIAL, Pass, Property, graph_pass, held_after, ordered, pipeline
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.fuse.pointwise import fuse_pointwise
from graphkit.passes.fuse.softmax import fuse_softmax
from graphkit.passes.layout.round_products import round_products
from graphkit.passes.pipeline import BOUND, INFERENCE, inference_passes
from graphkit.passes.simplify.composites import expand_composites
from graphkit.passes.simplify.identities import simplify

A, B, C = Property.RANKS_KNOWN, Property.SIMPLIFIED, Property.CHANNELS_LAST


def declared(
    name: str, requires: Iterable[Property] = (), ensures: Iterable[Property] = (), breaks: Iterable[Property] = ()
) -> Pass[...]:
    def same(graph: Graph) -> Graph:
        return graph

    return Pass(same, name, requires, ensures, breaks)


def names(passes: Iterable[Pass[...]]) -> list[str]:
    return [p.name for p in passes]


# --- the order of a pipeline ----------------------------------------------------------------------


def test_what_a_pass_requires_must_be_ensured_before_it():
    makes, needs = declared("makes", ensures=[A]), declared("needs", requires=[A])
    assert pipeline(makes, needs) == (makes, needs)
    assert pipeline(needs, given=[A]) == (needs,)
    with pytest.raises(PassOrderError, match=r"needs requires RANKS_KNOWN .*: makes, which ensures that, comes later"):
        pipeline(needs, makes)
    with pytest.raises(PassOrderError, match="no pass before it ensures that"):
        pipeline(needs)


def test_what_a_pass_breaks_does_not_hold_behind_it():
    makes, breaks, needs = declared("makes", ensures=[A]), declared("spoils", breaks=[A]), declared("needs", [A])
    assert held_after([makes, breaks]) == INITIAL
    with pytest.raises(PassOrderError, match="spoils before it breaks that"):
        pipeline(makes, breaks, needs)
    pipeline(makes, breaks, makes, needs)
    # A pass that breaks and ensures a property makes it anew.
    pipeline(declared("again", ensures=[A], breaks=[A]), needs)


def test_fused_regions_have_no_pointwise_nodes_for_others():
    with pytest.raises(
        PassOrderError, match=r"round_products requires POINTWISE_APART.*fuse_pointwise before it breaks"
    ):
        pipeline(*INFERENCE, round_products, given=held_after(CLEANUP))


def test_formulas_of_composites_are_fused_behind_their_expansion():
    place = 1 + INFERENCE.index(fuse_softmax)
    passes = [*INFERENCE[:place], expand_composites, *INFERENCE[place:]]
    with pytest.raises(PassOrderError, match=r"LAYER_NORMS_FUSED.*expand_composites before it breaks that"):
        pipeline(*passes, given=held_after(CLEANUP))


# --- orders that are found ------------------------------------------------------------------------


def test_passes_are_put_in_order():
    makes, needs, free = declared("makes", ensures=[A]), declared("needs", [A], [B]), declared("free")
    last = declared("last", [B])
    assert names(ordered(last, needs, free, makes)) == ["free", "makes", "needs", "last"]
    # An order that fits stays as it is.
    for passes in itertools.permutations([makes, needs, free, last]):
        found = ordered(*passes)
        assert pipeline(*found) == found
        assert ordered(*found) == found


def test_who_breaks_comes_before_who_ensures_and_behind_who_requires_what_was_there():
    makes, breaks, needs = declared("makes", ensures=[A]), declared("spoils", breaks=[A]), declared("needs", [A])
    assert names(ordered(needs, makes, breaks)) == ["spoils", "makes", "needs"]
    assert names(ordered(breaks, needs)) == ["needs", "spoils"]


def test_no_order():
    first, second = declared("first", [A], [B]), declared("second", [B], [A])
    with pytest.raises(PassOrderError, match=r"so no order is valid: first, second"):
        ordered(first, declared("free"), second)
    with pytest.raises(PassOrderError, match="first is listed twice"):
        ordered(first, first)


@in_one_item()
@pytest.mark.parametrize("backwards", [False, True])
def test_the_passes_of_inference_find_their_places(backwards: bool):
    known = held_after(CLEANUP)
    passes = [p for p in dict.fromkeys(INFERENCE) if p not in CLEANUP or p is simplify]
    found = ordered(*(passes[::-1] if backwards else passes))
    assert pipeline(*found, given=known) == found


def test_the_pipelines():
    assert names(CLEANUP) == [
        "count_loops", "resolve_sequences", "simplify", "fold", "cse", "merge_control", "prune_control",
    ]  # fmt: skip
    assert names(INFERENCE) == [
        "widen_halves", "known_ranks", "expand_composites", "merge_recurrences", "integers", "dynamic_products",
        "weight_products", "simplify", "fold", "cse", "scan_axes", "eliminate_expand", "fuse_layer_norm", "fuse_gelu",
        "fuse_activation", "fuse_softmax", "eliminate_transpose", "repeat_heads", "fuse_attention",
        "fuse_attention_gradient", "share_heads", "fuse_attention_cache", "eliminate_reshape", "unstride_transposed",
        "drop_outer_taps", "fold_batch_norm", "fuse_matmul", "fuse_conv", "channels_last", "eliminate_reshape",
        *names(CLEANUP), "fuse_batch_norm",
        "fuse_loss_grad", "fuse_table_update", "fuse_string_encoders", "fuse_tokenized_ngrams",
        "fuse_pointwise",
    ]  # fmt: skip
    assert names(BOUND) == [
        "simplify", "repeat_heads", "fuse_attention", "share_heads", "fuse_attention_cache", "scan_axes",
    ]  # fmt: skip
    rounded = names(inference_passes("bf16", lambda node: True))
    assert rounded.index("round_products") == rounded.index("channels_last") + 2
    assert rounded[rounded.index("round_products") + 1] == "move_casts"
    assert [n for n in rounded if n not in ("round_products", "move_casts")] == names(INFERENCE)


# --- passes ---------------------------------------------------------------------------------------


def exponential() -> Graph:
    x = Value(TensorType("float32", (2,)), "x")
    return Graph([x], [F.exp(F.identity(x))])


def test_a_pass_is_the_function_that_it_was_made_of():
    @graph_pass(requires=[A], ensures=[B], breaks=[C])
    def shortened(graph: Graph, *, by: int = 0) -> Graph:
        """Without its last outputs."""
        return graph.replace(outputs=graph.outputs[: len(graph.outputs) - by])

    graph = exponential()
    assert shortened.name == "shortened"
    assert shortened.__doc__ == "Without its last outputs."
    assert (shortened.requires, shortened.ensures, shortened.breaks) == ({A}, {B}, {C})
    assert shortened(graph) is not graph
    assert shortened(graph, by=1).outputs == ()
    other = shortened.with_options(by=1)
    assert other(graph).outputs == ()
    assert (other.name, other.requires, other.ensures, other.breaks) == ("shortened", {A}, {B}, {C})
    assert repr(fuse_pointwise) == "<Pass fuse_pointwise>"


def test_what_is_ensured_is_proved_when_asked_for(monkeypatch: pytest.MonkeyPatch):
    def identity(graph: Graph) -> Node | None:
        return next((n for n in graph.nodes if n.op.name == "Identity"), None)

    @graph_pass(ensures=[B], check=identity)
    def idle(graph: Graph) -> Graph:
        return graph

    monkeypatch.setenv(config.CHECK_PASSES.name, "1")
    with pytest.raises(CheckFailed, match=r"pass idle ensures: SIMPLIFIED .* but it left node Identity\(x"):
        run_passes(exponential(), [idle])
    assert run_passes(exponential(), [simplify, idle]).nodes[0].op.name == "Exp"
    monkeypatch.setenv(config.CHECK_PASSES.name, "0")
    assert run_passes(exponential(), [idle]).nodes[0].op.name == "Identity"


def test_functions_without_a_declaration_run_under_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(config.DEBUG.name, "1")
    run_passes(exponential(), [("nothing", lambda graph: graph), simplify])
    assert capsys.readouterr().err.splitlines() == [
        "graphkit: pass nothing: 2 nodes", "graphkit: pass simplify: 2 -> 1 nodes: Identity -1"
    ]  # fmt: skip
