"""Beam search as a Loop: find the most likely sequences of a network that generates token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.frontend import control
from graphkit.ir.graph import Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F

# (token [B], states [B, ...]) to (logits of the next token [B, vocab], states).
Following = Callable[[Value, list[Value]], tuple[Value, list[Value]]]


@dataclass(frozen=True)
class Beams:
    """Settings of a beam search.

    Hypotheses are compared by log p / ((5 + length) / 6)^alpha, whether they have ended or not. The length includes
    `end`. A hypothesis that has ended is kept until `beam` better ones are found.

    beam: number of hypotheses that are kept. decode: largest number of tokens. length_penalty: alpha of Wu et al. 2016.
    """

    beam: int
    decode: int
    start: int
    end: int
    vocab: int
    length_penalty: float = 0.0

    def __call__(self, following: Following, first: list[Value], rows: Value) -> tuple[Value, Value]:
        """Search; return tokens, int64 [N, beam, decode], and the log p of each hypothesis, float32 [N, beam].

        The best hypothesis comes first. Shorter ones are padded with `end`. The search ends when all hypotheses have
        ended, or after `decode` tokens. If there are fewer sequences than `beam`, the last ones have a log p of minus
        infinity.

        Args:
            following: Function from tokens and states to the logits of the next token and the new states.
            first: The states before the first token, [N, ...] each.
            rows: int64 [1], N.
        """
        origins = self.origins(rows)
        states = [F.gather(state, origins, axis=0) for state in first]
        # [N, beam]: the row of a sentence's first hypothesis among all hypotheses.
        firsts = F.mul(F.reshape(origins, np.array([-1, self.beam])), np.int64(self.beam))
        end = control.while_loop(
            self._going, lambda b: self._write(following, b, firsts), self._begin(states, rows), name="beam_search"
        )
        return end.tokens, end.log_probability

    def origins(self, rows: Value) -> Value:
        """Return the sentence of each hypothesis, int64 [N * beam]: 0, ..., 0, 1, ..."""
        places = F.range(np.int64(0), F.mul(F.squeeze(rows, np.array([0])), np.int64(self.beam)), np.int64(1))
        numbers: Value = F.div(places, np.int64(self.beam))
        return numbers

    def _begin(self, states: list[Value], rows: Value) -> _Hypotheses:
        """Return the first hypotheses of each sentence: an empty one, and others with log p of minus infinity."""
        table = F.concat(rows, np.array([self.beam]), axis=0)
        alone = np.where(np.arange(self.beam) == 0, 0, -np.inf).astype(np.float32)
        return _Hypotheses(
            step=np.int64(0),
            log_probability=F.expand(alone, table),
            length=F.expand(np.int64(0), table),
            done=F.expand(np.bool_(False), table),
            last=F.expand(np.int64(self.start), F.mul(rows, np.int64(self.beam))),
            tokens=F.expand(np.int64(self.end), F.concat(table, np.array([self.decode]), axis=0)),
            states=states,
        )

    def _going(self, beams: _Hypotheses) -> Value:
        waiting = F.reduce_max(F.cast(F.not_(beams.done), to="int64"), keepdims=False)
        going: Value = F.and_(F.less(beams.step, np.int64(self.decode)), F.greater(waiting, np.int64(0)))
        return going

    def _write(self, following: Following, beams: _Hypotheses, firsts: Value) -> _Hypotheses:
        logits, states = following(beams.last, beams.states)
        log_p, length = self._continued(F.log_softmax(logits, axis=-1), beams)
        scores = F.div(log_p, self._penalty(length)) if self.length_penalty else log_p
        _, chosen = F.top_k(scores, np.array([self.beam]), axis=1)
        word = F.mod(chosen, np.int64(self.vocab))
        before = F.div(chosen, np.int64(self.vocab))  # [N, beam]: the hypothesis that the token extends

        def kept(part: Value) -> Value:
            return F.gather_elements(part, before, axis=1)

        place = F.reshape(F.add(firsts, before), np.array([-1]))
        done = kept(beams.done)
        written = F.gather(F.reshape(beams.tokens, np.array([-1, self.decode])), place, axis=0)
        written = F.reshape(written, np.array([-1, self.beam, self.decode]))
        here = F.equal(beams.step, np.arange(self.decode))
        return _Hypotheses(
            step=F.add(beams.step, np.int64(1)),
            log_probability=F.gather_elements(log_p, chosen, axis=1),
            length=F.add(kept(beams.length), F.cast(F.not_(done), to="int64")),
            done=F.or_(done, F.equal(word, np.int64(self.end))),
            last=F.reshape(word, np.array([-1])),
            tokens=F.where(here, F.unsqueeze(word, np.array([2])), written),
            states=[F.gather(state, place, axis=0) for state in states],
        )

    def _continued(self, log_p: Value, beams: _Hypotheses) -> tuple[Value, Value]:
        """Return log p and length of each hypothesis extended by each token, [N, beam * vocab].

        A hypothesis that has ended is extended by `end` only. This changes neither its log p nor its length.

        log_p: log p of each next token, [N * beam, vocab].
        """
        table = np.array([-1, self.beam, self.vocab])
        ended = np.where(np.arange(self.vocab) == self.end, 0, -np.inf).astype(np.float32)
        done = F.unsqueeze(beams.done, np.array([2]))
        after = F.where(done, ended, F.reshape(log_p, table))
        total = F.add(F.unsqueeze(beams.log_probability, np.array([2])), after)
        length = F.add(beams.length, F.cast(F.not_(beams.done), to="int64"))
        length = F.expand(F.unsqueeze(length, np.array([2])), np.array([1, 1, self.vocab]))
        flat = np.array([-1, self.beam * self.vocab])
        return F.reshape(total, flat), F.reshape(length, flat)

    def _penalty(self, length: Value) -> Value:
        ratio = F.div(F.add(F.cast(length, to="float32"), np.float32(5)), np.float32(6))
        penalty: Value = F.pow(ratio, np.float32(self.length_penalty))
        return penalty


class _Hypotheses(NamedTuple):
    """State of the loop. log_probability, length, done: [N, beam]; last: [N * beam]; tokens: [N, beam, decode]."""

    step: Any
    log_probability: Value
    length: Value
    done: Value
    last: Value
    tokens: Value
    states: list[Value]
