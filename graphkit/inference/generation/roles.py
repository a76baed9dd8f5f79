"""The roles of the inputs and outputs of a decoder, by their names and types."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from graphkit.errors import UsageError, did_you_mean
from graphkit.inference.batching import BATCH_NAMES
from graphkit.inference.generation.caches import Cache, pair_caches, tensor_of
from graphkit.inference.texts import MASKS, SEGMENTS
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model

_TOKENS = ("input_ids", "decoder_input_ids")
_POSITIONS = frozenset({"position_ids", "decoder_position_ids", "positions"})
_SLOTS = frozenset({"cache_position"})
_COUNTS = frozenset({"num_logits_to_keep", "logits_to_keep"})
_FLAGS = frozenset({"use_cache_branch"})
_SCORES = "logits"
# Outputs with these words in their names are read as scores only if the caller names them.
_HIDDEN = re.compile("hidden|state|embed|pool", re.IGNORECASE)


@dataclass(frozen=True)
class Roles:
    """The roles of the inputs and outputs of a decoder. Names are None if the model has no such input.

    tokens: Numbers of tokens: [N, T], or [T, N] if `time_major`.
    batch: The batch size, if it is fixed.
    length: The number of tokens per run, if it is fixed.
    mask: 1 at tokens and 0 at padding, for past and new tokens.
    positions: The position of each new token.
    segments: Zeros, in the shape of the tokens.
    slots: The positions of the new tokens in the cache, [T].
    last_only: Number of positions to score, 1.
    flag: Whether there is a past.
    scores: The output that scores the next token.
    """

    tokens: str
    kind: TensorType
    time_major: bool
    scores: str
    caches: tuple[Cache, ...]
    mask: str | None = None
    positions: str | None = None
    segments: str | None = None
    slots: str | None = None
    last_only: str | None = None
    flag: str | None = None

    @property
    def batch(self) -> int | None:
        size = (self.kind.shape or ())[1 if self.time_major else 0]
        return size if isinstance(size, int) else None

    @property
    def length(self) -> int | None:
        size = (self.kind.shape or ())[0 if self.time_major else 1]
        return size if isinstance(size, int) else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that a step needs."""
        return (self.scores, *(cache.output for cache in self.caches))


def find_roles(model: Model, given: Collection[str], carry: Mapping[str, str], output: str | None) -> Roles:
    """Return the roles of the inputs and outputs of a decoder.

    Args:
        model: The model.
        given: Names of inputs for which the caller gives arrays.
        carry: Pairs of a cache, input to output.
        output: Name of the output that scores the next token.

    Raises:
        UsageError: A role is ambiguous, or an input has none. The message lists the inputs and outputs.
    """
    for name in given:
        if name not in model.inputs:
            raise UsageError(f"generate: the model has no input {name!r}{did_you_mean(name, model.inputs)}")
        if name in carry:
            raise UsageError(f"generate: input {name!r} is both given as an array and in a pair of a cache")
    types = {name: kind for name, kind in model.input_types.items() if name not in given}
    named = {
        "mask": _named(model, types, MASKS), "positions": _named(model, types, _POSITIONS),
        "segments": _named(model, types, SEGMENTS), "slots": _named(model, types, _SLOTS),
        "last_only": _named(model, types, _COUNTS), "flag": _named(model, types, _FLAGS),
    }  # fmt: skip
    used = {name for name in named.values() if name is not None}
    tokens, kind = _tokens(model, {name: t for name, t in types.items() if name not in used}, carry)
    time_major, batch = _axes(kind)
    if output is not None and output not in model.outputs:
        raise UsageError(f"generate: the model has no output {output!r}{did_you_mean(output, model.outputs)}")
    caches = pair_caches(model, {*given, *used, tokens}, carry, batch, output)
    paired = {cache.input for cache in caches} | {cache.output for cache in caches}
    left = [name for name in types if name not in used and name != tokens and name not in paired]
    unread = [name for name in model.outputs if name.startswith("present") and name not in paired]
    if left or (caches and unread):
        raise UsageError(
            f"model {model.name!r}: generate does not know what {_listed(model, left, unread)} are for. Give an array "
            "for an input (inputs={name: array}, --input NAME=FILE), or pair it with the output that has its next "
            "value (carry={input: output}, --recurrent-state INPUT=OUTPUT)"
        )
    scores = output or _scores(model, {cache.output for cache in caches} | set(unread))
    return Roles(tokens, kind, time_major, scores, caches, **named)


def _listed(model: Model, inputs: Collection[str], outputs: Collection[str]) -> str:
    """List inputs and outputs with their types."""
    parts = [f"input {name} {model.input_types[name]}" for name in inputs]
    parts += [f"output {name} {model.output_types[name]}" for name in outputs]
    return ", ".join(parts)


def _named(model: Model, types: Mapping[str, Any], names: Collection[str]) -> str | None:
    found = [name for name in types if name in names]
    if len(found) > 1:
        raise UsageError(
            f"model {model.name!r}: the inputs {', '.join(found)} have the same role for generate; give an array for "
            "all but one (inputs={name: array}, --input NAME=FILE)"
        )
    return next(iter(found), None)


def _tokens(model: Model, types: Mapping[str, Any], carry: Mapping[str, str]) -> tuple[str, TensorType]:
    """Return the input of tokens: one of the usual names, or the only one of integers [N, T]."""
    found = {
        name: tensor
        for name, kind in types.items()
        if name not in carry and (tensor := tensor_of(kind)) is not None and tensor.rank == 2
        and tensor.dtype in (DType.INT64, DType.INT32)
    }  # fmt: skip
    named = [name for name in _TOKENS if name in found]
    names = named if len(named) == 1 else list(found)
    if len(names) != 1:
        every = ", ".join(f"{name} {kind}" for name, kind in model.input_types.items())
        which = f"{len(names)} could be: {', '.join(names)}" if names else "there is none"
        raise UsageError(
            f"model {model.name!r}: a decoder needs one input of numbers of tokens, integers [N, T], but {which}. The "
            f"inputs are {every}. Give arrays for the others (inputs={{name: array}}, --input NAME=FILE)"
        )
    return names[0], found[names[0]]


def _axes(kind: TensorType) -> tuple[bool, Any]:
    """Return whether the tokens are [T, N], and the dimension of the batch."""
    first, second = kind.shape or (None, None)
    time_major = str(second).lower() in BATCH_NAMES and str(first).lower() not in BATCH_NAMES
    return time_major, second if time_major else first


def _scores(model: Model, others: Collection[str]) -> str:
    """Return the output that scores the next token: `logits`, or the only one of floats with 2 or 3 axes.

    An output that is a hidden state by its name does not count.
    """
    found = [
        name for name, kind in model.output_types.items()
        if name not in others and isinstance(kind, TensorType) and kind.dtype.is_float and kind.rank in (2, 3, None)
        and not _HIDDEN.search(name)
    ]  # fmt: skip
    if _SCORES in found:
        return _SCORES
    if len(found) != 1:
        every = ", ".join(f"{name} {kind}" for name, kind in model.output_types.items() if name not in others)
        which = f"{len(found)} could be: {', '.join(found)}" if found else "there is none"
        raise UsageError(
            f"model {model.name!r}: a decoder needs one output of floats [N, T, V] that scores the next token, but "
            f"{which}. Apart from caches, the outputs are {every}. Name it (output=, --output-name)"
        )
    return found[0]
