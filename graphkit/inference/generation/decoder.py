"""Runs a decoder on the next tokens of several sequences, and keeps its caches between runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.errors import GraphkitError, NotFinite, UsageError
from graphkit.inference.generation.roles import Roles
from graphkit.ir.types import TensorType
from graphkit.text import quantity

# In names of caches that hold keys and values of an encoder.
_OF_ENCODER = ".encoder."

# Computes the outputs of the decoder from arrays by input name.
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Decoder:
    """A decoder: what runs it, and what its inputs are.

    Args:
        run: Runs the model.
        roles: What its inputs and outputs are.
        types: Types of the inputs, by name.
        inputs: Arrays of the inputs that stay the same, such as the states of an encoder.
        padding: Number of the token for padding.
        name: Name of the model, for errors.
    """

    def __init__(
        self, run: Run, roles: Roles, types: Mapping[str, Any], inputs: Mapping[str, Any], padding: int, name: str
    ):
        self.run, self.roles, self.inputs, self.padding, self.name = run, roles, dict(inputs), padding, name
        self._dtypes = {n: kind.dtype.numpy for n, kind in types.items() if isinstance(kind, TensorType)}
        self.cached = bool(roles.caches)
        if self.cached and roles.length not in (None, 1):
            raise UsageError(
                f"model {name!r}: input {roles.tokens!r} is {roles.kind}: a decoder with a cache must take any number "
                "of tokens, or one"
            )
        self._by_row = {n: a for n, a in self.inputs.items() if _counts_rows(types[n]) and roles.batch is None}

    def begin(self, prompts: Sequence[np.ndarray], rows: Sequence[int]) -> Sequences:
        """Return sequences that begin with these prompts, int64 [tokens] each. The prompts are fed by `feed`.

        rows: For each prompt, its row in the inputs that the caller gave.
        """
        if self.roles.batch is None:
            return TogetherSequences(self, prompts, rows)
        return SeparateSequences([TogetherSequences(self, [p], [r]) for p, r in zip(prompts, rows, strict=True)])

    def given(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the inputs that the caller gave, for prompts with these numbers. One row is used for all prompts."""
        chosen = {n: a[rows if len(a) > 1 else np.zeros_like(rows)] for n, a in self._by_row.items()}
        return self.inputs | chosen

    def array(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return values in the type of an input, repeated to a fixed batch size."""
        found = values.astype(self._dtypes[name])
        return found if self.roles.batch is None else np.repeat(found, self.roles.batch, axis=0)


class Sequences(Protocol):
    """Sequences that a decoder continues together.

    length: Number of tokens so far, of every sequence, with padding.
    """

    length: int

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens, int64 [N, T], and return the scores of the tokens after them, floats [N, V]."""

    def select(self, rows: Sequence[int]) -> Sequences:
        """Return the sequences with these numbers, in this order. A number may occur several times."""


class TogetherSequences:
    """Sequences in one batch. Shorter prompts are padded on the left."""

    def __init__(self, decoder: Decoder, prompts: Sequence[np.ndarray], rows: Sequence[int]):
        self._decoder, self._rows = decoder, np.array(rows, np.int64)
        self.length = 0
        longest = max(map(len, prompts))
        self._padding = np.array([longest - len(prompt) for prompt in prompts], np.int64)
        self._tokens = np.zeros((len(prompts), 0), np.int64)  # all tokens so far, for a decoder without a cache
        self._caches = {cache.input: cache.first(len(prompts)) for cache in decoder.roles.caches}
        self._given = decoder.given(self._rows)

    def select(self, rows: Sequence[int]) -> TogetherSequences:
        chosen = TogetherSequences.__new__(TogetherSequences)
        chosen._decoder, chosen.length = self._decoder, self.length
        if list(rows) == list(range(len(self._rows))):
            chosen._rows, chosen._padding, chosen._tokens = self._rows, self._padding, self._tokens
            chosen._caches, chosen._given = self._caches, self._given
            return chosen
        index = np.array(rows, np.int64)
        chosen._rows, chosen._padding, chosen._tokens = self._rows[index], self._padding[index], self._tokens[index]
        axes = {cache.input: cache.batch for cache in self._decoder.roles.caches}
        chosen._caches = {
            name: array if (axis := axes[name]) is None else np.take(array, index, axis)
            for name, array in self._caches.items()
        }
        chosen._given = self._decoder.given(chosen._rows)
        return chosen

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        decoder = self._decoder
        if not decoder.cached:
            self._tokens = np.concatenate([self._tokens, tokens], axis=1)
            self.length = self._tokens.shape[1]
            return self._step(self._tokens, 0)
        if decoder.roles.length == 1:
            for place in range(tokens.shape[1]):
                scores = self._step(tokens[:, place : place + 1], self.length)
                self.length += 1
            return scores
        scores = self._step(tokens, self.length)
        self.length += tokens.shape[1]
        return scores

    def _step(self, tokens: np.ndarray, past: int) -> np.ndarray:
        """Run the decoder. Return the scores after the last token. past: number of tokens in the caches."""
        decoder, roles = self._decoder, self._decoder.roles
        count = tokens.shape[1]
        fixed = None if decoder.cached else roles.length
        if fixed is not None:
            after = np.full((len(tokens), fixed - count), decoder.padding, np.int64)
            tokens = np.concatenate([tokens, after], axis=1)
        feeds = self._feeds(tokens, past, count)
        try:
            results = decoder.run(feeds)
        except GraphkitError as error:
            raise type(error)(f"at a length of {quantity(past + count, 'token')}: {error}") from error
        self._keep(results, past, count)
        rows = len(tokens) if roles.batch is None else 1
        return _last(decoder, np.asarray(results[roles.scores]), rows, count - 1 if fixed is not None else -1)

    def _feeds(self, tokens: np.ndarray, past: int, count: int) -> dict[str, Any]:
        decoder, roles = self._decoder, self._decoder.roles
        shape = tokens.shape
        made = decoder.array(roles.tokens, tokens)
        feeds: dict[str, Any] = {roles.tokens: made.T.copy() if roles.time_major else made, **self._caches}
        if roles.mask is not None:
            every = np.arange(past + shape[1])
            seen = (every >= self._padding[:, None]) & (every < past + count)
            feeds[roles.mask] = decoder.array(roles.mask, seen)
        if roles.positions is not None:
            places = np.arange(past, past + shape[1])
            feeds[roles.positions] = decoder.array(roles.positions, np.maximum(places - self._padding[:, None], 0))
        if roles.segments is not None:
            feeds[roles.segments] = decoder.array(roles.segments, np.zeros(shape, np.int64))
        if roles.slots is not None:
            feeds[roles.slots] = np.arange(past, past + shape[1], dtype=np.int64)
        if roles.last_only is not None:
            feeds[roles.last_only] = np.array(1, np.int64)
        if roles.flag is not None:
            feeds[roles.flag] = np.array([past > 0])
        return feeds | self._given if self._given else feeds

    def _keep(self, results: Mapping[str, Any], past: int, count: int) -> None:
        """Store the caches. They are the arrays of the run, which are fed to the next run without a copy."""
        roles, caches = self._decoder.roles, {}
        for cache in roles.caches:
            array = results[cache.output]
            if roles.flag is not None and _OF_ENCODER in cache.input:
                # Merged exports compute these in the first run only.
                caches[cache.input] = array if past == 0 else self._caches[cache.input]
                continue
            if cache.grows is not None and array.shape[cache.grows] != past + count:
                raise UsageError(
                    f"model {self._decoder.name!r}: after {past + count} tokens, output {cache.output!r} has the shape "
                    f"{list(array.shape)}; as the next value of input {cache.input!r}, its axis {cache.grows} must "
                    "have one element per token"
                )
            caches[cache.input] = array
        self._caches = caches


class SeparateSequences:
    """Sequences that run one by one, because the decoder has a fixed batch size."""

    def __init__(self, parts: Sequence[TogetherSequences]):
        self._parts = parts
        self.length = parts[0].length

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        scores = [part.feed(row[None]) for part, row in zip(self._parts, tokens, strict=True)]
        self.length = self._parts[0].length
        return np.concatenate(scores)

    def select(self, rows: Sequence[int]) -> SeparateSequences:
        return SeparateSequences([self._parts[row].select([0]) for row in rows])


def _counts_rows(kind: Any) -> bool:
    """Return whether the first axis of an input is the batch."""
    return isinstance(kind, TensorType) and bool(kind.shape) and not isinstance(kind.known_shape[0], int)


def _last(decoder: Decoder, scores: np.ndarray, rows: int, place: int) -> np.ndarray:
    """Return the scores of the next token, float32 or float64 [rows, V], from an output of the decoder."""
    if scores.ndim == 3:
        scores = scores[place] if decoder.roles.time_major else scores[:, place]
    if scores.ndim != 2 or len(scores) != (rows if decoder.roles.batch is None else decoder.roles.batch):
        raise UsageError(
            f"model {decoder.name!r}: for {rows} sequences, output {decoder.roles.scores!r} has the shape "
            f"{list(scores.shape)}; expected [N, T, V] or [N, V]"
        )
    # A copy releases the array of the run, so that the next run uses its memory again.
    return scores[:rows].astype(np.float64 if scores.dtype == np.float64 else np.float32)


def check_scores(scores: np.ndarray, step: int, prompts: Sequence[int], padded: bool) -> None:
    """Raise NotFinite if scores contain NaN or infinity, or no finite number. Minus infinity is a valid score.

    Args:
        scores: [N, V].
        step: Number of the token that they are for, from 1.
        prompts: Number of the prompt of each row.
        padded: Whether shorter prompts are padded.
    """
    highest = scores.max(axis=1)  # NaN if one is NaN
    if all(map(math.isfinite, highest.tolist())):
        return
    row = int(np.flatnonzero(~np.isfinite(highest))[0])
    what = "NaN" if np.isnan(highest[row]) else "infinity" if highest[row] > 0 else "only minus infinity"
    hint = ". Prompts were padded to one length: try batch_size=1 (--batch-size 1)" if padded else ""
    raise NotFinite(f"the scores of token {step} after prompt {prompts[row]} contain {what}{hint}")
