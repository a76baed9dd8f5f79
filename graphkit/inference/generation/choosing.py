"""How the next token is chosen from its scores."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple


class Choice(NamedTuple):
    """How a token is chosen: the most probable one, or at random.

    temperature: Scores are divided by it; 0 chooses the most probable token.
    top_k: Number of the most probable tokens that remain.
    top_p: The most probable tokens remain whose probabilities sum up to this number.
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None

    @classmethod
    def of(cls, temperature: float | None, top_k: int | None, top_p: float | None) -> Choice:
        """Return the choice that arguments describe. Without any, the most probable token is chosen.

        Raises UsageError if they contradict each other, or are out of range.
        """
        if temperature is not None and not (0 <= temperature < float("inf")):
            raise UsageError(f"temperature must be a number from 0, not {temperature}")
        if top_k is not None and top_k < 1:
            raise UsageError(f"top_k must be at least 1, not {top_k}")
        if top_p is not None and not 0 < top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, not {top_p}")
        limited = top_k is not None or top_p is not None
        if temperature == 0 and limited:
            raise UsageError("temperature=0 chooses the most probable token: leave out top_k and top_p")
        return cls((1.0 if limited else 0.0) if temperature is None else temperature, top_k, top_p)

    @property
    def random(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.temperature > 0

    def pick(self, scores: np.ndarray, rng: np.random.Generator | None) -> int:
        """Return the number of a token. scores: [V], with at least one finite number and no NaN. rng: if `random`."""
        if rng is None or not self.random:
            return int(scores.argmax())
        numbers, shares = self.distribution(scores)
        sums = shares.cumsum()
        place = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
        return int(numbers[min(place, len(numbers) - 1)])

    def distribution(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens that can be drawn, int64 [K], and their probabilities, float64 [K].

        Of equal scores, the first token comes first.
        """
        scores = scores.astype(np.float64)
        if self.top_k is None and self.top_p is None:
            return np.arange(len(scores)), softmax(scores, self.temperature)
        numbers = largest(scores, len(scores) if self.top_k is None else min(self.top_k, len(scores)))
        shares = softmax(scores[numbers], self.temperature)
        if self.top_p is not None:
            # The token that reaches the sum remains.
            before = np.concatenate([[0.0], shares.cumsum()[:-1]])
            kept = max(int((before < self.top_p).sum()), 1)
            numbers, shares = numbers[:kept], shares[:kept] / shares[:kept].sum()
        return numbers, shares


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the `count` largest scores, the largest first; of equal ones, the first places."""
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > least)
        places = np.sort(np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]]))
    else:
        places = np.arange(len(scores))
    order: np.ndarray = places[np.argsort(-scores[places], kind="stable")]
    return order


def softmax(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return probabilities of scores along the last axis, float64. Minus infinity has probability 0."""
    scores = scores.astype(np.float64)
    with np.errstate(over="ignore"):  # a quotient may be minus infinity
        powers = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    found: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return found


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Return log probabilities of scores along the last axis, float64."""
    scores = scores.astype(np.float64)
    shifted = scores - scores.max(axis=-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def without(scores: np.ndarray, numbers: Collection[int], size: int | None) -> np.ndarray:
    """Return scores with minus infinity at tokens that are never chosen.

    Args:
        scores: [N, V].
        numbers: Tokens that are never chosen.
        size: Number of tokens of the vocabulary: later ones are never chosen. None for all.
    """
    beyond = size is not None and size < scores.shape[-1]
    own = [number for number in numbers if number < scores.shape[-1]]
    if not own and not beyond:
        return scores
    scores = scores.copy()
    scores[:, own] = -np.inf
    if beyond:
        scores[:, size:] = -np.inf
    return scores
