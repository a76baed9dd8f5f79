"""Beam search in the graph, compared with one in numpy that runs the trained network for each prefix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel

START, END = 1, 2
SMALL = {"vocab": 9, "target_vocab": 7, "width": 4, "hidden": 5}
FEEDS = {"source": np.random.default_rng(2).integers(0, 9, (6, 5)), "lengths": np.array([5, 4, 3, 2, 1, 0])}


# Options of the network that writes by itself.
SEARCH = ("decode", "beam", "length_penalty")


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")


def pair(scale=1.0, toward_end=0.0, **options):
    """The network for training with weights that matter, and one that searches with them."""
    forced = gk.models.build("seq2seq", **{n: v for n, v in options.items() if n not in SEARCH})
    rng = np.random.default_rng(0)
    for n in forced.params:
        forced.params[n] = (scale * rng.standard_normal(forced.params[n].shape)).astype(np.float32)
    bias = forced.params["fc_bias"].copy()
    bias[END] += toward_end
    forced.params["fc_bias"] = bias
    return forced, with_weights(options, forced)


def with_weights(options, trained):
    net = gk.models.build("seq2seq", **options)
    assert set(net.params) == set(trained.params)
    for n in trained.params:
        net.params[n] = trained.params[n]
    return net


def log_softmax(logits):
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def following(forced, row, prefixes):
    """log p of every token behind each prefix, for one sentence: [prefixes, vocab]."""
    count = len(prefixes)
    feeds = {n: np.repeat(FEEDS[n][row : row + 1], count, axis=0) for n in FEEDS}
    previous = np.array([[START, *prefix] for prefix in prefixes])
    return log_softmax(forced.run({**feeds, "previous": previous})["logits"][:, -1])


def plain_search(forced, row, beam, decode, alpha):
    """Lists of (tokens, log p), the best first: hypotheses that have ended compete with those that have not."""
    beams = [((), 0.0)]
    for _ in range(decode):
        open_ = [tokens for tokens, _ in beams if END not in tokens]
        if not open_:
            break
        log_p = dict(zip(open_, following(forced, row, open_), strict=True))
        candidates = []
        for tokens, score in beams:
            if tokens in log_p:
                candidates += [((*tokens, w), score + log_p[tokens][w]) for w in range(log_p[tokens].size)]
            else:
                candidates.append((tokens, score))
        beams = sorted(candidates, key=lambda c: c[1] / ((5 + len(c[0])) / 6) ** alpha, reverse=True)[:beam]
    return beams


def padded(tokens, decode):
    return np.array([*tokens, *[END] * (decode - len(tokens))])


@in_one_item()
@pytest.mark.parametrize(
    ("attention", "layers", "beam", "decode", "alpha", "toward_end"),
    [
        ("luong", 1, 3, 8, 0.0, 0.0),
        ("bahdanau", 2, 3, 8, 0.0, 0.0),
        ("luong", 2, 4, 6, 0.8, 4.0),
        ("bahdanau", 1, 2, 5, 2.0, 0.0),
        ("luong", 1, 10, 4, 0.5, 0.0),
    ],
)
def test_the_beams_are_those_of_a_plain_search_and_of_onnx_runtime(attention, layers, beam, decode, alpha, toward_end):
    options = {**SMALL, "layers": layers, "attention": attention}
    forced, net = pair(toward_end=toward_end, **options, decode=decode, beam=beam, length_penalty=alpha)
    found = net.run(FEEDS)
    assert found["tokens"].shape == (6, beam, decode)
    ends = set()
    for row in range(6):
        wanted = plain_search(forced, row, beam, decode, alpha)
        assert len(wanted) == beam
        np.testing.assert_array_equal(found["tokens"][row], [padded(tokens, decode) for tokens, _ in wanted])
        np.testing.assert_allclose(found["log_probability"][row], [p for _, p in wanted], rtol=1e-4, atol=1e-4)
        ends |= {len(tokens) for tokens, _ in wanted}
    assert len(ends) > 1
    proto = net.to_onnx()
    assert {node.domain for node in proto.graph.node} == {""}
    assert [node.op_type for node in proto.graph.node].count("Loop") == 1
    theirs = OnnxRuntimeModel(proto, threads=1).run(FEEDS)
    np.testing.assert_array_equal(theirs["tokens"], found["tokens"])
    np.testing.assert_allclose(theirs["log_probability"], found["log_probability"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [17, 26])
def test_verification_at_other_opsets(opset, tmp_path):
    _, net = pair(**SMALL, decode=5, beam=3, length_penalty=0.6)
    net.save(tmp_path / "net.onnx", opset=opset)
    again = gk.load(tmp_path / "net.onnx")
    np.testing.assert_array_equal(again.run(FEEDS)["tokens"], net.run(FEEDS)["tokens"])
    assert gk.verify(again, FEEDS).passed


def test_a_wide_beam_finds_the_most_likely_of_all_sequences():
    """Among all of at most three tokens; greedy decoding misses it for a sentence at least."""
    options = {"vocab": 9, "target_vocab": 4, "width": 4, "hidden": 5, "start": START, "end": END}
    forced, net = pair(scale=0.7, **options, decode=3, beam=40)
    greedy = with_weights({**options, "decode": 3}, forced)
    found, first = net.run(FEEDS), greedy.run(FEEDS)["tokens"]
    words = [w for w in range(4) if w != END]
    ended = [(*p, END) for n in range(3) for p in itertools.product(words, repeat=n)]
    everything = [*ended, *itertools.product(words, repeat=3)]
    for row in range(6):
        scores = {}
        for tokens in everything:
            steps = [following(forced, row, [tokens[:t]])[0, tokens[t]] for t in range(len(tokens))]
            scores[tokens] = sum(steps)
        ranked = sorted(everything, key=scores.get, reverse=True)
        assert len(ranked) == 40
        np.testing.assert_array_equal(found["tokens"][row, 0], padded(ranked[0], 3))
        wanted = [scores[tokens] for tokens in ranked]
        np.testing.assert_allclose(found["log_probability"][row], wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.exp(found["log_probability"][row]).sum(), 1, rtol=1e-4)
    assert (first != found["tokens"][:, 0]).any()


def test_hypotheses_that_there_are_not_have_no_probability():
    _, net = pair(**{**SMALL, "target_vocab": 3}, decode=1, beam=5)
    found = net.run(FEEDS)["log_probability"]
    assert np.isfinite(found[:, :3]).all()
    assert np.isneginf(found[:, 3:]).all()


def test_sentences_do_not_depend_on_each_other():
    _, net = pair(**SMALL, decode=6, beam=3)
    together = net.run(FEEDS)
    for row in range(6):
        alone = net.run({n: a[row : row + 1] for n, a in FEEDS.items()})
        np.testing.assert_array_equal(alone["tokens"][0], together["tokens"][row])
        np.testing.assert_allclose(alone["log_probability"][0], together["log_probability"][row], rtol=1e-4)


def test_the_search_stops_when_all_hypotheses_have_ended():
    """Of two tokens, `end` and another, the best two sequences end after one and two steps."""
    _, net = pair(**{**SMALL, "target_vocab": 3}, decode=1000, beam=2)
    net.params["fc_weight"] = np.zeros_like(net.params["fc_weight"])
    net.params["fc_bias"] = np.array([0, -50, 5], np.float32)
    (loop,) = [node for node in net.graph.nodes if node.op.name == "Loop"]
    counter = next(v for v in loop.outputs if v.rank == 0)
    (steps,) = net.select(net.graph.name_of(counter)).run(FEEDS).values()
    assert steps == 2
    np.testing.assert_array_equal(net.run(FEEDS)["tokens"][:, :, :3], [[[END] * 3, [0, END, END]]] * 6)


@pytest.mark.full
def test_a_trained_network_writes_no_less_likely_sequences_than_greedily():
    """Sentences of 2 to 5 words backwards: nine in ten are right, and the best beam is as likely as the greedy one."""
    rng = np.random.default_rng(0)

    def reversal(count):
        lengths = rng.integers(2, 6, count)
        source, target = rng.integers(3, 12, (count, 5)), np.full((count, 6), END)
        for row, length in enumerate(lengths):
            source[row, length:] = 0
            target[row, :length] = source[row, :length][::-1]
        previous = np.concatenate([np.full((count, 1), START), target[:, :-1]], axis=1)
        return {"source": source, "lengths": lengths, "previous": previous}, target

    options = {"vocab": 12, "width": 16, "hidden": 48}
    net = gk.models.build("seq2seq", **options)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(gk.optim.Cosine(1e-2, steps=150)), clip_norm=1.0, threads=1)
    for _ in range(150):
        trainer.step(*reversal(64))
    feeds, target = reversal(100)
    del feeds["previous"]
    beams = with_weights({**options, "decode": 6, "beam": 4}, net).run(feeds)
    greedy = with_weights({**options, "decode": 6}, net).run(feeds)["tokens"]
    previous = np.concatenate([np.full((100, 1), START), greedy[:, :-1]], axis=1)
    log_p = log_softmax(net.run({**feeds, "previous": previous})["logits"])
    log_p = np.take_along_axis(log_p, greedy[..., None], axis=2)[..., 0]
    written = np.cumsum(greedy == END, axis=1) - (greedy == END) == 0
    assert (beams["log_probability"][:, 0] >= (log_p * written).sum(1) - 1e-4).all()
    assert (beams["tokens"][:, 0] == target).all(axis=1).mean() > 0.9


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 3}, "beam=3 also needs decode=N"),
        ({"beam": 0}, "beam must be a positive integer"),
        ({"decode": 5, "length_penalty": 0.6}, "length_penalty must be 0 or more, and needs beam=2 or more"),
        ({"decode": 5, "beam": 2, "length_penalty": -1.0}, "length_penalty must be 0 or more"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UsageError, match=message):
        gk.models.build("seq2seq", **options)
