"""The networks for text: sequences of any length, state from piece to piece, attention, decoding in the graph."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.models.seq2seq import seq2seq
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.train.losses import with_loss

LANGUAGE = {"vocab": 20, "hidden": 6, "layers": 2}
CLASSIFIER = {"vocab": 20, "width": 5, "hidden": 4, "classes": 3}
PAIRS = {"vocab": 12, "width": 16, "hidden": 48}
START, END = 1, 2


def spread(net):
    """Parameters large enough that everything matters."""
    rng = np.random.default_rng(0)
    for n in net.params:
        net.params[n] = (0.5 * rng.standard_normal(net.params[n].shape)).astype(np.float32)
    return net


# --- lstm_lm ----------------------------------------------------------------------------------------


def test_a_text_in_pieces_gives_what_the_whole_gives():
    whole = spread(gk.models.build("lstm_lm", **LANGUAGE))
    pieces = gk.models.build("lstm_lm", **LANGUAGE, stateful=True)
    for n in whole.params:
        pieces.params[n] = whole.params[n]
    x = np.random.default_rng(1).integers(0, 20, (9, 3))
    h = c = np.zeros((2, 3, 6), np.float32)
    found = []
    for piece in (x[:4], x[4:5], x[5:]):
        results = pieces.run({"x": piece, "h": h, "c": c})
        h, c = results["last_h"], results["last_c"]
        found.append(results["logits"])
    np.testing.assert_allclose(np.concatenate(found), whole.run({"x": x})["logits"], rtol=1e-5, atol=1e-6)


def test_a_tied_table_needs_its_width():
    net = gk.models.build("lstm_lm", **LANGUAGE, tied=True)
    assert "fc_weight" not in net.params
    with pytest.raises(UsageError, match="needs embedding equal to hidden, not 4 and 6"):
        gk.models.build("lstm_lm", **LANGUAGE, tied=True, embedding=4)


# --- text_classifier --------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_padding_does_not_matter(pooling):
    net = spread(gk.models.build("text_classifier", **CLASSIFIER, pooling=pooling))
    rng = np.random.default_rng(1)
    x, lengths = rng.integers(0, 20, (4, 7)), np.array([7, 3, 1, 0])
    logits = net.run({"x": x, "lengths": lengths})["logits"]
    padded = np.concatenate([x, rng.integers(0, 20, (4, 2))], axis=1)
    for row, length in enumerate(lengths):
        padded[row, length:] = rng.integers(0, 20, 9 - length)
    np.testing.assert_allclose(net.run({"x": padded, "lengths": lengths})["logits"], logits, rtol=1e-5, atol=1e-6)
    alone = net.run({"x": x[1:2, :3], "lengths": lengths[1:2]})["logits"]
    np.testing.assert_allclose(alone, logits[1:2], rtol=1e-5, atol=1e-6)
    assert gk.verify(net, {"x": x, "lengths": lengths}).passed


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_classifier_learns_which_word_comes_first(pooling, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    rng = np.random.default_rng(0)
    x, lengths = rng.integers(3, 20, (256, 12)), rng.integers(4, 13, 256)
    first, second = np.arange(256) % 2, rng.integers(2, 4, 256)
    x[np.arange(256), second] = 2 - first
    x[np.arange(256), second - 2] = 1 + first
    net = gk.models.build("text_classifier", vocab=20, width=8, hidden=16, pooling=pooling, dropout=0.0)
    data = gk.data.Dataset({"x": x, "lengths": lengths}, first)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(2e-2), threads=1)
    trainer.fit(data, epochs=10, batch_size=32)
    assert trainer.evaluate(data)["accuracy"] > 0.95


# --- seq2seq ----------------------------------------------------------------------------------------


def reversal(count, rng, longest=6):
    """Sentences and the same backwards: (feeds, targets)."""
    lengths = rng.integers(2, longest + 1, count)
    source = rng.integers(3, PAIRS["vocab"], (count, longest))
    target = np.full((count, longest + 1), END)
    for row, length in enumerate(lengths):
        source[row, length:] = 0
        target[row, :length] = source[row, :length][::-1]
    previous = np.concatenate([np.full((count, 1), START), target[:, :-1]], axis=1)
    return {"source": source, "lengths": lengths, "previous": previous}, target


@pytest.mark.full
@pytest.mark.parametrize("attention", ["luong", pytest.param("bahdanau", marks=pytest.mark.full)])
def test_it_learns_to_reverse_and_writes_by_itself(attention, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    net = gk.models.build("seq2seq", **PAIRS, attention=attention)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(gk.optim.Cosine(1e-2, steps=200)), clip_norm=1.0, threads=1)
    rng = np.random.default_rng(0)
    for _ in range(200):
        trainer.step(*reversal(64, rng))
    feeds, target = reversal(100, rng)
    decoder = gk.models.build("seq2seq", **PAIRS, attention=attention, decode=10)
    assert set(decoder.params) == set(net.params)
    for n in net.params:
        decoder.params[n] = net.params[n]
    del feeds["previous"]
    tokens = decoder.compile(threads=1).run(feeds)["tokens"]
    assert tokens.shape == (100, 10)
    assert (tokens[:, 7:] == END).all()
    assert (tokens[:, :7] == target).all(axis=1).mean() > 0.9
    proto = decoder.to_onnx()
    assert "Loop" in {node.op_type for node in proto.graph.node}
    np.testing.assert_array_equal(OnnxRuntimeModel(proto).run(feeds)["tokens"], tokens)


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
def test_greedy_decoding_is_the_most_likely_token_each_time(attention):
    options = {"vocab": 9, "target_vocab": 7, "width": 4, "hidden": 5, "layers": 2, "attention": attention}
    forced = spread(gk.models.build("seq2seq", **options))
    feeds = {"source": np.random.default_rng(2).integers(0, 9, (6, 5)), "lengths": np.array([5, 4, 3, 2, 1, 0])}
    previous = np.full((6, 1), START)
    for _ in range(8):
        logits = forced.run({**feeds, "previous": previous})["logits"]
        previous = np.concatenate([previous, logits[:, -1:].argmax(-1)], axis=1)
    wanted = previous[:, 1:]
    ended = np.cumsum(wanted == END, axis=1) > 0
    wanted = np.where(ended, END, wanted)
    decoder = gk.models.build("seq2seq", **options, decode=8)
    for n in forced.params:
        decoder.params[n] = forced.params[n]
    np.testing.assert_array_equal(decoder.run(feeds)["tokens"], wanted)
    assert gk.verify(decoder, feeds).passed


def test_the_loop_stops_when_all_have_ended():
    decoder = gk.models.build("seq2seq", vocab=9, width=4, hidden=5, decode=1000)
    bias = np.zeros(9, np.float32)
    bias[END] = 100
    decoder.params["fc_bias"] = bias
    feeds = {"source": np.ones((2, 3), np.int64), "lengths": np.array([3, 2])}
    assert (decoder.run(feeds)["tokens"] == END).all()
    (loop,) = [node for node in decoder.graph.nodes if node.op.name == "Loop"]
    counter = next(v for v in loop.outputs if v.rank == 0)
    (steps,) = decoder.select(decoder.graph.name_of(counter)).run(feeds).values()
    assert steps == 1


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "dot"}, "attention must be luong or bahdanau, not 'dot'"),
        ({"decode": -1}, "decode must be 0 or more"),
        ({"target_vocab": 2}, "start and end from 0 to 1; not 0, 1, 2"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UsageError, match=message):
        seq2seq(**options)


@in_one_item()
@pytest.mark.parametrize(("name", "options"), [
    ("lstm_lm", LANGUAGE), ("text_classifier", CLASSIFIER), ("seq2seq", PAIRS), ("seq2seq", PAIRS | {"decode": 5}),
])  # fmt: skip
def test_dropout_acts_in_training_only(name, options):
    net = gk.models.build(name, **{**options, "dropout": 0.5})
    without = gk.models.build(name, **{**options, "dropout": 0.0})
    assert {n: a.shape for n, a in without.params.items()} == {n: a.shape for n, a in net.params.items()}
    for n in net.params:
        without.params[n] = net.params[n]
    feeds = {n: np.random.default_rng(0).integers(1, 6, (3, 6)) for n in net.inputs}
    if "lengths" in feeds:
        feeds["lengths"] = np.array([6, 1, 3])
    (wanted,), (found,) = without.run(feeds).values(), net.run(feeds).values()
    np.testing.assert_array_equal(found, wanted)
    assert gk.verify(net, feeds).passed
    if "decode" not in options:
        target = np.zeros(found.shape[:-1], np.int64)
        losses = [
            float(gk.Trainer(net, optimizer=gk.optim.SGD(0.0), seed=s, threads=1).step(feeds, target)) for s in (0, 1)
        ]
        assert losses[0] != losses[1]


# --- gradients --------------------------------------------------------------------------------------

GRADIENTS = {
    "lstm_lm": ("lstm_lm", LANGUAGE, {"x": (5, 3)}),
    "text_classifier": ("text_classifier", CLASSIFIER, {"x": (3, 6)}),
    "text_classifier, last": ("text_classifier", CLASSIFIER | {"pooling": "last"}, {"x": (3, 6)}),
    "luong": ("seq2seq", PAIRS | {"hidden": 6, "layers": 2}, {"source": (3, 6), "previous": (3, 4)}),
    "bahdanau": (
        "seq2seq", PAIRS | {"hidden": 6, "attention": "bahdanau"}, {"source": (3, 6), "previous": (3, 4)}
    ),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_in_onnx_runtime(case):
    name, options, shapes = GRADIENTS[case]
    net = spread(gk.models.build(name, **options))
    graph = gk.grad(with_loss(net, "softmax_cross_entropy"), of="loss", with_outputs=True)
    rng = np.random.default_rng(0)
    feeds = {n: rng.integers(0, 12, shape) for n, shape in shapes.items()}
    classes = net.output_types["logits"].shape[-1]
    target_shape = (3,) if name == "text_classifier" else shapes.get("previous", shapes.get("x"))
    feeds["target"] = rng.integers(0, classes, target_shape)
    if "lengths" in net.inputs:
        feeds["lengths"] = np.array([6, 1, 3])
    proto = graph.to_onnx()
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    ours, theirs = graph.run(feeds), OnnxRuntimeModel(proto).run(feeds)
    assert len(ours) == 2 + len(net.params)
    for n, array in ours.items():
        scale = np.abs(theirs[n]).max()
        assert scale > 0
        np.testing.assert_allclose(array, theirs[n], rtol=1e-5, atol=1e-5 * scale, err_msg=n)
