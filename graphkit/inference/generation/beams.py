"""Beam search: keep the most probable sequences at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.inference.generation.choosing import largest, log_softmax
from graphkit.inference.generation.decoder import Sequences
from graphkit.named_tuples import NamedTuple


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that beam search found.

    Attributes:
        ids: Its tokens.
        log_probability: The sum of the log probabilities of its tokens.
        stopped: "end", "stop", "max_tokens" or "positions", see `Generation`; "" while it can be continued.
    """

    ids: tuple[int, ...]
    log_probability: float
    stopped: str = ""

    def score(self, penalty: float) -> float:
        """Return log p / ((5 + length) / 6)^penalty (Wu et al. 2016)."""
        return self.log_probability / float(((5 + len(self.ids)) / 6) ** penalty)


class Search(NamedTuple):
    """How to search.

    beams: Number of hypotheses that are kept.
    max_tokens: Maximum number of tokens.
    penalty: The exponent of `Hypothesis.score`. Hypotheses are compared by it, whether they have ended or not.
    ended: Returns why a sequence of tokens ends, or "".
    """

    beams: int
    max_tokens: int
    penalty: float
    ended: Callable[[tuple[int, ...]], str]


def beam_search(
    search: Search, first: np.ndarray, sequences: Sequences, scores: Callable[[np.ndarray, int], np.ndarray]
) -> list[Hypothesis]:
    """Return the best sequences, the best first.

    A hypothesis that has ended keeps its place until `beams` better ones are found. The search ends when all have.

    Args:
        search: How to search.
        first: Scores of the first token, [1, V].
        sequences: The prompt, which the first token continues: one sequence.
        scores: Checks the scores of a step, [N, V] and its number from 1, and excludes tokens.
    """
    kept = [Hypothesis((), 0.0)]
    following, step = first, 1
    while True:
        log_p = log_softmax(scores(following, step))
        kept, origins = _continued(search, kept, log_p)
        going = [place for place, hypothesis in enumerate(kept) if not hypothesis.stopped]
        if not going or step == search.max_tokens:
            break
        sequences = sequences.select([origins[place] for place in going])
        following = sequences.feed(np.array([[kept[place].ids[-1]] for place in going], np.int64))
        step += 1
    return [h if h.stopped else Hypothesis(h.ids, h.log_probability, "max_tokens") for h in kept]


def _continued(search: Search, kept: Sequence[Hypothesis], log_p: np.ndarray) -> tuple[list[Hypothesis], list[int]]:
    """Return the best hypotheses with one more token, and for each the row of `log_p` that it continues (or -1).

    log_p: [N, V], for the hypotheses that have not ended, in their order.
    """
    found: list[tuple[float, Hypothesis, int]] = []
    row = 0
    for hypothesis in kept:
        if hypothesis.stopped:
            found.append((hypothesis.score(search.penalty), hypothesis, -1))
            continue
        # All tokens of a hypothesis have the same length, so the best ones are those with the highest probability.
        for token in largest(log_p[row], min(search.beams, log_p.shape[1])).tolist():
            if np.isneginf(log_p[row, token]):
                break
            longer = Hypothesis((*hypothesis.ids, token), hypothesis.log_probability + float(log_p[row, token]))
            found.append((longer.score(search.penalty), longer, row))
        row += 1
    found.sort(key=lambda item: -item[0])  # stable: of equal ones, the earlier hypothesis and the smaller token
    best = found[: search.beams]
    marked = [h if h.stopped else Hypothesis(h.ids, h.log_probability, search.ended(h.ids)) for _, h, _ in best]
    return marked, [row for _, _, row in best]
