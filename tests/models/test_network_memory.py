"""Memory plans of the zoo: the four-way table of the MXNet paper, and arenas near their lower bounds."""

from __future__ import annotations

import itertools

import pytest

import graphkit as gk
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.memory.planner import Request, aligned
from graphkit.passes.core.bind import bind

PAPER = [("alexnet", {}), ("googlenet", {}), ("googlenet", {"batch_norm": False}), ("vgg", {"layers": 16})]
ALL = [
    *PAPER, ("resnet", {"layers": 50}), ("mobilenetv2", {}), ("unet", {}), ("bert", {"layers": 3}), ("lenet", {}),
    ("densenet", {}), ("inception_bn", {}), ("mobilenetv3", {}), ("resnet", {"layers": 50, "preactivation": True}),
    ("ssd", {}), ("vit", {"size": "tiny"}),
]  # fmt: skip
# The default lane plans these: branches that are joined, a loop of tokens, squeezed channels.
QUICK = [("googlenet", {"batch_norm": False}), ("bert", {"layers": 3}), ("lenet", {}), ("mobilenetv3", {})]
TOKENS = 32


def by_lane(cases):
    return [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.full) for case in cases]


def planned(graph, batch, *, inplace=True, share=True, device=""):
    """The memory plan of a graph; without a device there are no kernels, and so no working memory."""
    shapes = {graph.name_of(v): v.tensor.known_shape for v in graph.inputs if v.role == "data"}
    sizes = {"N": batch, "T": TOKENS}
    shapes = {n: tuple(d if isinstance(d, int) else sizes[str(d)] for d in s) for n, s in shapes.items()}
    return lower_graph(
        bind(graph, shapes), {}, Settings(device, True, 1, False, inplace, share, optimize=False), {}
    ).memory


def assert_no_overlap(requests, offsets):
    """Check that live values never overlap, unless a result reuses the memory of an operand that is freed there."""
    for step in range(max(r.last for r in requests) + 1):
        live = [i for i, r in enumerate(requests) if r.size and r.first <= step <= r.last]
        live.sort(key=lambda i: (offsets[i], requests[i].first))
        for low, high in itertools.pairwise(live):
            if offsets[low] + requests[low].size > offsets[high]:
                early, late = sorted((low, high), key=lambda i: requests[i].first)
                assert early in requests[late].inplace
                assert requests[early].last == requests[late].first == step


def recomputed_bound(requests: list[Request], taken_over: dict[int, int]) -> int:
    """Peak of live bytes; a result that took memory over adds nothing in the step where it is written."""
    steps = max(r.last for r in requests) + 2
    change = [0] * steps
    for i, r in enumerate(requests):
        first = r.first + 1 if i in taken_over else r.first
        change[first] += aligned(r.size)
        change[r.last + 1] -= aligned(r.size)
    live, peak = 0, 0
    for c in change:
        live += c
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("name", "options"), by_lane(PAPER))
def test_both_techniques_take_a_quarter_of_naive(name, options, unset_parameters):
    graph = gk.models.build(name, **options).graph
    switches = [(False, False), (True, False), (False, True), (True, True)]
    naive, inplace, share, both = (
        planned(graph, 64, inplace=i, share=s).layout.arena_bytes for i, s in switches
    )  # fmt: skip
    assert both * 4 <= naive
    assert both <= share <= naive
    assert both <= inplace <= naive


@pytest.mark.parametrize("device", ["", "cpu"])
@pytest.mark.parametrize(("name", "options"), by_lane(ALL))
def test_arenas_of_prediction_reach_their_bounds(name, options, device, unset_parameters):
    plan = planned(gk.models.build(name, **options).graph, 8, device=device)
    layout = plan.layout
    assert layout.arena_bytes <= 1.02 * layout.lower_bound
    assert layout.lower_bound <= plan.plain_lower_bound
    assert_no_overlap(plan.requests, layout.offsets)
    taken = {
        i: j
        for i, r in enumerate(plan.requests)
        for j in r.inplace
        if layout.offsets[i] == layout.offsets[j]
    }  # fmt: skip
    assert recomputed_bound(plan.requests, taken) <= layout.lower_bound


@pytest.mark.parametrize(("name", "options"), by_lane(a for a in ALL if a[0] not in ("ssd", "unet")))
def test_arenas_of_training_reach_their_bounds(name, options, unset_parameters):
    net = gk.models.build(name, **options)
    (graph,) = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9)).graphs
    plan = planned(graph, 8)
    assert plan.layout.arena_bytes <= 1.03 * plan.layout.lower_bound
    assert plan.layout.lower_bound <= plan.plain_lower_bound
    assert_no_overlap(plan.requests, plan.layout.offsets)
