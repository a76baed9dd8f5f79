"""The choice of tokens, beam search and the text of tokens, each compared with a definition written out in numpy."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item
from decoders import cached_decoder, session, spread

import graphkit as gk
from graphkit.data import Vocabulary
from graphkit.inference.generation.choosing import Choice, log_softmax
from graphkit.inference.generation.text_stream import TextStream

DRAWS = 3_000


def shares_of(scores, temperature, top_k, top_p):
    """Return the probability of each token, from the definition."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_k]
    powers = np.array([np.exp((scores[i] - scores[order[0]]) / temperature) for i in order])
    shares = powers / powers.sum()
    if top_p is not None:
        total, kept = 0.0, 0
        while kept < len(order) and total < top_p:
            total += shares[kept]
            kept += 1
        order, shares = order[:kept], shares[:kept] / shares[:kept].sum()
    found = np.zeros(len(scores))
    found[order] = shares
    return found


@in_one_item()
@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (4, None), (None, 0.6), (6, 0.8), (1, None), (100, None), (None, 1.0)]
)
def test_draws_have_the_probabilities_of_the_definition(temperature, top_k, top_p):
    rng = np.random.default_rng(1)
    scores = rng.standard_normal(12).astype(np.float32) * 2
    scores[3] = scores[7]  # two equal scores
    scores[5] = -np.inf
    expected = shares_of(scores.astype(np.float64), temperature, top_k, top_p)
    choice = Choice.of(temperature, top_k, top_p)
    counts = np.bincount([choice.pick(scores, rng) for _ in range(DRAWS)], minlength=12)
    assert (counts[expected == 0] == 0).all()
    here = expected > 0
    squares = ((counts - DRAWS * expected)[here] ** 2 / (DRAWS * expected[here])).sum()
    freedom = max(int(here.sum()) - 1, 1)
    # The chi-squared statistic has mean `freedom` and variance 2 * freedom.
    assert squares < freedom + 5 * np.sqrt(2 * freedom)


def test_equal_scores_at_the_limit_of_top_k():
    scores = np.array([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    numbers, shares = Choice.of(1.0, 3, None).distribution(scores)
    assert numbers.tolist() == [1, 2, 3]
    np.testing.assert_allclose(shares.sum(), 1)


def test_top_p_that_is_reached_by_the_first_token():
    numbers, shares = Choice.of(1.0, None, 1e-9).distribution(np.array([0.0, 5.0, 1.0]))
    assert (numbers.tolist(), shares.tolist()) == ([1], [1.0])


def test_very_low_temperature_is_greedy():
    scores = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    rng = np.random.default_rng(0)
    assert {Choice.of(1e-6, None, None).pick(scores, rng) for _ in range(50)} == {int(scores.argmax())}
    assert Choice.of(1e-320, None, None).pick(scores, rng) == int(scores.argmax())


def test_default_is_greedy_and_limits_draw():
    assert not Choice.of(None, None, None).random
    assert Choice.of(None, 3, None) == Choice(1.0, 3)
    assert not Choice.of(0.0, None, None).random


# --- beam search ------------------------------------------------------------------------------------------


def log_probability(runtime, prompt, ids, end):
    """Return the sum of log probabilities of tokens after a prompt, by ONNX Runtime; -inf behind an end token."""
    if end in ids[:-1]:
        return -np.inf
    (logits,) = runtime.run(["logits"], {"x": np.array([[*prompt, *ids]])})
    log_p = log_softmax(logits[0, len(prompt) - 1 : -1])
    return float(log_p[np.arange(len(ids)), list(ids)].sum())


@pytest.fixture(scope="module")
def tiny():
    return spread(gk.models.build("transformer_lm", vocab=4, width=8, heads=2, layers=1, length=12), seed=2)


@pytest.mark.parametrize("penalty", [0.0, 0.8, -0.5])
@pytest.mark.parametrize("end", [None, 2])
def test_beam_search_finds_the_best_of_all_sequences(tiny, penalty, end):
    """With as many beams as there are sequences, beam search is exhaustive."""
    runtime, prompt, steps = session(tiny), [1, 3], 4
    every = {}
    for length in range(1, steps + 1):
        for ids in itertools.product(range(4), repeat=length):
            if length == steps or ids[-1] == end:
                found = log_probability(runtime, prompt, ids, end)
                if np.isfinite(found):
                    every[ids] = found
    assert len(every) > 100
    scores = {ids: p / ((5 + len(ids)) / 6) ** penalty for ids, p in every.items()}
    best = sorted(every, key=lambda ids: -scores[ids])
    options = {"max_tokens": steps, "beams": len(every), "length_penalty": penalty, "end": [] if end is None else end}
    found = gk.generate(tiny, prompt, **options)
    assert found.ids == best[0]
    np.testing.assert_allclose(found[0].log_probability, every[best[0]], rtol=1e-4)
    assert [h.ids for h in found[0].hypotheses[:5]] == best[:5]
    assert sum(np.exp(h.log_probability) for h in found[0].hypotheses) == pytest.approx(1, abs=1e-4)
    assert {h.stopped for h in found[0].hypotheses} == ({"max_tokens"} if end is None else {"end", "max_tokens"})


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_with_a_cache_equal_a_search_written_out(beams):
    model, prompt, steps = cached_decoder(scale=2.0), [3, 1], 6
    runtime = session(model)
    kept = [((), 0.0)]
    empty = {i.name: np.zeros((1, 2, 0, 8), np.float32) for i in runtime.get_inputs() if i.name.startswith("past")}
    for _ in range(steps):
        longer = []
        for ids, total in kept:
            whole = np.array([[*prompt, *ids]])
            feeds = {
                "input_ids": whole, "attention_mask": np.ones_like(whole),
                "position_ids": np.arange(whole.shape[1])[None], **empty,
            }  # fmt: skip
            (logits,) = runtime.run(["logits"], feeds)
            longer += [((*ids, t), total + p) for t, p in enumerate(log_softmax(logits[0, -1]).tolist())]
        kept = sorted(longer, key=lambda item: -item[1])[:beams]
    found = gk.generate(model, prompt, max_tokens=steps, beams=beams)
    assert [h.ids for h in found[0].hypotheses] == [ids for ids, _ in kept]
    np.testing.assert_allclose([h.log_probability for h in found[0].hypotheses], [p for _, p in kept], rtol=1e-4)


def test_stop_text_ends_hypotheses(tiny):
    vocabulary = Vocabulary(["<pad>", "<unk>", "a", "b"], "char")
    found = gk.generate(tiny, "ab", max_tokens=6, beams=4, stop="ba", tokenizer=vocabulary)
    assert all("ba" not in vocabulary.decode(h.ids)[:-2] for h in found[0].hypotheses)
    assert any(h.stopped == "stop" for h in found[0].hypotheses)
    assert "ba" not in found.text


class Counting(Vocabulary):
    """A vocabulary that counts the tokens that it decodes."""

    decoded = 0

    def decode(self, numbers):
        numbers = list(numbers)
        self.decoded += len(numbers)
        return super().decode(numbers)


def test_stop_texts_of_beams_decode_each_token_a_fixed_number_of_times():
    net = spread(gk.models.build("transformer_lm", vocab=4, width=8, heads=2, layers=1, length=80), seed=2)
    counts = []
    for steps in (16, 32, 64):
        vocabulary = Counting(["<pad>", "<unk>", "a", "b"], "char")
        found = gk.generate(net, "ab", max_tokens=steps, beams=3, stop="never", tokenizer=vocabulary)
        assert all(len(h.ids) == steps for h in found[0].hypotheses)
        assert found.text == vocabulary.decode(found[0].ids)
        counts.append(vocabulary.decoded)
    # With decoding from the first token, the count would grow by the square of the number of steps.
    assert counts[2] - counts[1] < 2.3 * (counts[1] - counts[0])


@pytest.mark.parametrize("stop", ["ba", "aab", "bbb"])
def test_stops_of_hypotheses_are_where_their_text_contains_the_stop_text(tiny, stop):
    vocabulary = Vocabulary(["<pad>", "<unk>", "a", "b"], "char")
    found = gk.generate(tiny, "ab", max_tokens=12, beams=4, stop=stop, tokenizer=vocabulary)
    for hypothesis in found[0].hypotheses:
        text = vocabulary.decode(hypothesis.ids)
        assert (stop in text) == (hypothesis.stopped == "stop")
        assert stop not in text[:-1]
    assert found.text == vocabulary.decode(found[0].ids).partition(stop)[0]


# --- text -------------------------------------------------------------------------------------------------


def pieces_of(stream, tokens):
    found = [stream.add(token) for token in tokens]
    return [*found, stream.finish()]


def test_words_are_separated_from_the_prompt():
    vocabulary = Vocabulary(["<pad>", "<unk>", "a", "good", "film"])
    assert pieces_of(TextStream(vocabulary, [2]), [3, 4]) == [" good", " film", ""]


@in_one_item()
@pytest.mark.parametrize(
    ("stops", "pieces"),
    [
        (["xyz"], ["a", "", "", "xya", ""]),
        (["xya"], ["a", "", "", "", ""]),
        (["yx", "ya"], ["a", "x", "", "", ""]),
        (["aa"], ["", "ax", "y", "", "a"]),
        (["xyab"], ["a", "", "", "", "xya"]),
        (["a"], ["", "", "", "", ""]),
    ],
)
def test_beginnings_of_stop_texts_are_held_back(stops, pieces):
    vocabulary = Vocabulary(["<pad>", "<unk>", "a", "x", "y"], "char")
    stream = TextStream(vocabulary, [2], stops)
    found = ["" if stream.stopped else stream.add(token) for token in (2, 3, 4, 2)]
    assert [*found, stream.finish()] == pieces
    whole = "axya"
    cuts = [whole.index(stop) for stop in stops if stop in whole]
    assert stream.text == whole[: min(cuts, default=len(whole))]
    assert stream.stopped == bool(cuts)


def test_copies_of_a_stream_are_independent():
    vocabulary = Vocabulary(["<pad>", "<unk>", "a", "x", "y"], "char")
    stream = TextStream(vocabulary, [2], ["xy"])
    stream.add(3)
    other = stream.copy()
    assert stream.add(4) == ""
    assert stream.stopped
    assert other.add(2) == "xa"
    assert not other.stopped
    assert (stream.text, other.text) == ("", "xa")
