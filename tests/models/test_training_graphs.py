"""Every network of the zoo with its loss and all its gradients as one ONNX file of standard operators.

ONNX Runtime computes the loss, the outputs, each gradient and the new running statistics that graphkit computes.
"""

from __future__ import annotations

import pytest
from training import (
    SMALL,
    condition,
    feeds_of,
    joint_error,
    label,
    relative_errors,
    run,
    shuffle,
    training_graph,
)

import graphkit as gk
from graphkit.onnx_io.compare import OnnxRuntimeModel

EXACT = ("all gradients", "loss", "logits")
NEWEST = 26  # that ONNX Runtime 1.31 takes

# At the sizes of the papers, two images or sequences.
WHOLE = [
    ("alexnet", {"dropout": 0.0}),
    ("bert", {"dropout": 0.0}),
    ("dqn", {}),
    ("googlenet", {"dropout": 0.0}),
    ("googlenet", {"dropout": 0.0, "batch_norm": False}),
    ("lenet", {}),
    ("matrix_factorization", {}),
    ("mlp", {}),
    ("mobilenetv2", {"dropout": 0.0}),
    ("resnet", {"layers": 50}),
    ("transformer_lm", {"dropout": 0.0}),
    ("unet", {"classes": 1}),
    ("vae", {}),
    ("vgg", {"dropout": 0.0}),
]


def test_every_network_is_here():
    assert sorted({name for name, _ in SMALL}) == sorted({name for name, _ in WHOLE}) == gk.models.names()


def disagreements(name, options, opsets, batch=None):
    """What differs by more than rounding, of the batch that agrees best.

    Rounding decides for a rectifier at its kink and for the maximum of a pool between equals, and one such element
    moves every gradient before it. That is rare, and no batch agrees when a formula is wrong.
    """
    net = gk.models.build(name, **options)
    shuffle(net)
    condition(net)
    graph = training_graph(name, net)
    references = []
    for opset in opsets:
        proto = gk.Model.from_graph(graph, dict(net.params)).to_onnx(opset=opset, with_updates=True)
        assert {node.domain for node in proto.graph.node} == {""}
        assert proto.opset_import[0].version == opset
        references.append(OnnxRuntimeModel(proto, threads=2))
        assert {f"{n}_grad" for n in net.trainable} <= set(references[-1].outputs)
    # Statistics over few elements are ill-conditioned. Through dozens of normalisations one tensor may still be off by
    # more than the gradient as a whole.
    normalised = any(n.endswith("running_mean") for n in net.params)
    batch, tolerance = batch or (32 if normalised else 4), 1e-4 if normalised else 1e-5
    found = []
    for seed in range(5):
        feeds = feeds_of(name, net, batch, seed)
        ours = run(graph, net.params, feeds)
        found.append({})
        for theirs in (reference.run(feeds) for reference in references):
            errors = relative_errors(ours, theirs) | {"all gradients": joint_error(ours, theirs)}
            found[-1] |= {n: e for n, e in errors.items() if not e <= (1e-5 if n in EXACT else tolerance)}
        if not found[-1]:
            break
    return min(found, key=len)


@pytest.mark.parametrize(("name", "options"), SMALL, ids=label)
def test_loss_gradients_and_statistics_agree(name, options):
    assert disagreements(name, options, (17, NEWEST)) == {}


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), WHOLE, ids=label)
def test_at_the_sizes_of_the_papers(name, options):
    assert disagreements(name, options, (21,), batch=2) == {}
