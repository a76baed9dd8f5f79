"""Encoder and decoder with attention (Bahdanau, Cho and Bengio 2014; Luong, Pham and Manning 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import control
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._beam_search import Beams
from graphkit.models._images import positive
from graphkit.models._recurrent import alive, gru_input, gru_step, units, within
from graphkit.models._registry import network
from graphkit.models._transformer import drop
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F

_Layer = Callable[[Value], Value]
_ATTENTIONS = ("luong", "bahdanau")
# Used instead of minus infinity: a sentence of length 0 then has equal weights instead of NaN.
_MASKED = np.finfo(np.float32).min


class _Memory(NamedTuple):
    """Memory for attention. states: [N, S, hidden]; keys: operands of the scores; there: bool [N, S], not padding."""

    states: Value
    keys: Value
    there: Value


class _State(NamedTuple):
    """State of the decoder: the state of each layer, [N, hidden], and Luong's attentional vector, [N, hidden]."""

    layers: list[Value]
    attentional: Value | None


@network
def seq2seq(
    vocab: int = 10000, target_vocab: int | None = None, width: int = 128, hidden: int = 256, layers: int = 1,
    attention: str = "luong", dropout: float = 0.0, decode: int = 0, start: int = 1, end: int = 2, beam: int = 1,
    length_penalty: float = 0.0,
) -> Model:  # fmt: skip
    """A GRU encoder, and a GRU decoder with attention to the states of the encoder.

    Inputs: source is int64 [N, S], below `vocab`. lengths is int64 [N]; the rest of a row is padding. For training
    (teacher forcing), there is also previous: int64 [N, T], below `target_vocab` (default: `vocab`). It contains
    `start`, followed by the target.

    Outputs: For training, logits is float32 [N, T, target_vocab], for the target. With `decode`, tokens is int64 [N,
    decode], padded with `end`. With `beam`, tokens is int64 [N, beam, decode], the most likely first, and
    log_probability is float32 [N, beam].

    Options: With `decode` of 1 or more, the network generates tokens in a loop (greedy search), until every sentence
    has `end` or there are `decode` tokens. With `beam` of 2 or more, it is a beam search with that many hypotheses.
    `length_penalty` is alpha of Wu et al. 2016, 0 for none: hypotheses are compared by log p / ((5 + length) /
    6)^alpha. `attention` is "luong" or "bahdanau". "luong" computes general scores from the new decoder state, with
    input feeding. "bahdanau" computes additive scores from the previous decoder state. `dropout` is the dropout ratio
    after the embeddings and before the last layer, in training.

    Parameters: source_weight, encoder0_*, ..., target_weight, decoder0_input_*, decoder0_hidden_*, ..., attend_*, fc_*,
    as many as torch.nn.Embedding, GRU and Linear of these sizes have. They do not depend on `decode` and `beam`.
    """
    positive("seq2seq", vocab=vocab, width=width, hidden=hidden, layers=layers, beam=beam)
    if attention not in _ATTENTIONS:
        raise UsageError(f"seq2seq: attention must be {' or '.join(_ATTENTIONS)}, not {attention!r}")
    words = vocab if target_vocab is None else target_vocab
    _require_decodable(words, decode, start, end, beam, length_penalty)
    source = nn.input("source", ["N", "S"], "int64")
    lengths = nn.input("lengths", ["N"], "int64")
    memory, first = _encode(source, lengths, vocab, width, hidden, layers, attention, dropout)
    table = nn.parameter("target_weight", (words, width), {"type": "normal", "std": 1.0})

    def embed(tokens: Value) -> Value:
        return drop(nn.embedding(tokens, words, width, weight=table, name="target"), dropout)

    def classify(features: Value) -> Value:
        return nn.linear(drop(features, dropout), words, name="fc")

    if beam > 1:
        search = Beams(beam, decode, start, end, words, length_penalty)
        return Model(_searched(search, memory, first, embed, classify, attention, lengths), name="seq2seq")
    if decode:

        def following(token: Value, state: _State) -> tuple[Value, _State]:
            features, state = _step(state, embed(token), memory, attention)
            return F.arg_max(classify(features), axis=-1, keepdims=False), state

        return Model({"tokens": _greedy(following, lengths, first, decode, start, end)}, name="seq2seq")

    def forced(carry: list[Value], x: Value) -> tuple[list[Value], Value]:
        features, state = _step(_unpacked(carry, layers), x, memory, attention)
        return _packed(state), features

    previous = nn.input("previous", ["N", "T"], "int64")
    _, features = control.scan(forced, _packed(first), embed(F.transpose(previous, perm=(1, 0))), name="decoder")
    logits = F.transpose(classify(features), perm=(1, 0, 2), name="logits")
    return Model({"logits": logits}, name="seq2seq")


def _require_decodable(words: int, decode: int, start: int, end: int, beam: int, length_penalty: float) -> None:
    if decode < 0 or not 0 <= start < words or not 0 <= end < words:
        raise UsageError(
            f"seq2seq: decode must be 0 or more, start and end from 0 to {words - 1}; not {decode}, {start}, {end}"
        )
    if beam > 1 and not decode:
        raise UsageError(f"seq2seq: beam={beam} also needs decode=N, the largest number of tokens to generate")
    if length_penalty < 0 or (length_penalty and beam == 1):
        raise UsageError(
            f"seq2seq: length_penalty must be 0 or more, and needs beam=2 or more; not {length_penalty} with "
            f"beam={beam}"
        )


def _encode(
    source: Value, lengths: Value, vocab: int, width: int, hidden: int, layers: int, attention: str, dropout: float
) -> tuple[_Memory, _State]:
    y = drop(nn.embedding(F.transpose(source, perm=(1, 0)), vocab, width, name="source"), dropout)
    sizes = within(lengths, source)
    last = []
    for layer in range(layers):
        y, h = nn.gru(y, hidden, lengths=sizes, name=f"encoder{layer}")
        last.append(F.squeeze(h, np.array([0])))
    states = F.transpose(y, perm=(1, 0, 2), name="memory")
    luong = attention == "luong"
    keys = states if luong else nn.linear(states, hidden, bias=False, name="attend_keys")
    attentional = F.expand(np.float32(0), F.shape(last[-1])) if luong else None
    return _Memory(states, keys, alive(sizes, source)), _State(last, attentional)


def _step(state: _State, x: Value, memory: _Memory, attention: str) -> tuple[Value, _State]:
    """Apply one step of the decoder to the embedded token x [N, width]. Returns the features [N, hidden] and state."""
    if attention == "bahdanau":
        context = _attend(_additive(state.layers[-1], memory), memory)
        new = _cells(state.layers, F.concat(x, context, axis=1))
        return new[-1], _State(new, None)
    new = _cells(state.layers, F.concat(x, state.attentional, axis=1))
    hidden = units(new[-1])
    query = nn.linear(new[-1], hidden, bias=False, name="attend_query")
    scores = F.mat_mul(memory.keys, F.unsqueeze(query, np.array([2])))
    joined = F.concat(_attend(scores, memory), new[-1], axis=1)
    attentional = F.tanh(nn.linear(joined, hidden, bias=False, name="attend_join"))
    return attentional, _State(new, attentional)


def _cells(states: Sequence[Value], x: Value) -> list[Value]:
    new = []
    for layer, h in enumerate(states):
        x = gru_step(gru_input(x, units(h), name=f"decoder{layer}"), h, name=f"decoder{layer}")
        new.append(x)
    return new


def _additive(h: Value, memory: _Memory) -> Value:
    """Return the scores v tanh(W h + U memory), [N, S, 1]."""
    query = nn.linear(h, units(h), bias=False, name="attend_query")
    return nn.linear(F.tanh(F.add(memory.keys, F.unsqueeze(query, np.array([1])))), 1, bias=False, name="attend_score")


def _attend(scores: Value, memory: _Memory) -> Value:
    """Return the mean of the states, [N, hidden], weighted by the softmax of the scores [N, S, 1] without padding."""
    there = F.unsqueeze(memory.there, np.array([2]))
    weights = F.softmax(F.where(there, scores, _MASKED), axis=1)
    return F.reduce_sum(F.mul(weights, memory.states), np.array([1]), keepdims=False)


def _greedy(following: Any, lengths: Value, first: _State, decode: int, start: int, end: int) -> Value:
    """Return tokens int64 [N, decode], from token, state = following(token, state), until every sentence has `end`."""
    rows = F.shape(lengths)
    places = np.arange(decode)

    def going(carry: dict[str, Any]) -> Value:
        waiting = F.reduce_max(F.cast(F.not_(carry["done"]), to="int64"), keepdims=False)
        return F.and_(F.less(carry["step"], np.int64(decode)), F.greater(waiting, np.int64(0)))

    def write(carry: dict[str, Any]) -> dict[str, Any]:
        token, state = following(carry["token"], _unpacked(carry["state"], len(first.layers)))
        token = F.where(carry["done"], np.int64(end), token)
        here = F.equal(carry["step"], places)
        return {
            "step": F.add(carry["step"], np.int64(1)),
            "token": token,
            "done": F.or_(carry["done"], F.equal(token, np.int64(end))),
            "tokens": F.where(here, F.unsqueeze(token, np.array([1])), carry["tokens"]),
            "state": _packed(state),
        }

    carry = {
        "step": np.int64(0),
        "token": F.expand(np.int64(start), rows),
        "done": F.expand(np.bool_(False), rows),
        "tokens": F.expand(np.int64(end), F.concat(rows, np.array([decode]), axis=0)),
        "state": _packed(first),
    }
    tokens: Value = control.while_loop(going, write, carry, name="greedy")["tokens"]
    return tokens


def _searched(
    search: Beams, memory: _Memory, first: _State, embed: _Layer, classify: _Layer, attention: str, lengths: Value
) -> dict[str, Value]:
    """Return the hypotheses of a beam search and their log probabilities. Each attends to its sentence's memory."""
    rows = F.shape(lengths)
    origins = search.origins(rows)
    wide = _Memory(*(F.gather(part, origins, axis=0) for part in memory))

    def scored(token: Value, states: list[Value]) -> tuple[Value, list[Value]]:
        features, state = _step(_unpacked(states, len(first.layers)), embed(token), wide, attention)
        return classify(features), _packed(state)

    tokens, log_probability = search(scored, _packed(first), rows)
    return {"tokens": tokens, "log_probability": log_probability}


def _packed(state: _State) -> list[Value]:
    return [*state.layers, *(() if state.attentional is None else (state.attentional,))]


def _unpacked(values: Sequence[Value], layers: int) -> _State:
    return _State(list(values[:layers]), values[layers] if len(values) > layers else None)
