"""Caches of a decoder: inputs for the past, and the outputs that become their next values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.inference.batching import BATCH_NAMES
from graphkit.ir.types import TensorType, Type
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple

# The name of an input, and the names that the output with its next value may have.
_RULES = (
    (re.compile(r"past_key_values(?P<rest>\W.*|)"), (r"present\g<rest>", r"present_key_values\g<rest>")),
    (re.compile(r"past(?P<rest>.*)"), (r"present\g<rest>",)),
    (re.compile(r"prev(ious)?_(?P<rest>.+)"), (r"\g<rest>", r"next_\g<rest>", r"new_\g<rest>")),
    (re.compile(r"(?P<rest>.+)_in"), (r"\g<rest>_out",)),
    (
        re.compile(r"(?P<rest>.+)"),
        (
            r"last_\g<rest>", r"next_\g<rest>", r"new_\g<rest>", r"\g<rest>_out", r"\g<rest>_next", r"\g<rest>_new",
        ),
    ),
)  # fmt: skip


class Cache(NamedTuple):
    """An input that holds what the decoder keeps of earlier tokens, and the output with its next value.

    batch: The axis of the batch; None if the batch size is fixed.
    grows: The axis that has one element per token; None for a state of a fixed size.
    """

    input: str
    output: str
    kind: TensorType
    batch: int | None
    grows: int | None

    def first(self, rows: int) -> np.ndarray:
        """Return the cache before the first token: zeros, with no token on the axis that grows."""
        sizes = [
            rows if axis == self.batch else 0 if axis == self.grows else size
            for axis, size in enumerate(self.kind.known_shape)
        ]
        return np.zeros(cast("list[int]", sizes), self.kind.dtype.numpy)


def pair_caches(
    model: Model, others: Collection[str], carry: Mapping[str, str], batch: Any, kept: str | None
) -> tuple[Cache, ...]:
    """Return the caches of a model, by the names of its inputs and outputs.

    Args:
        model: The model.
        others: Names of inputs that are not caches.
        carry: Pairs that the caller gives, input to output. They replace those found by name.
        batch: The dimension of the batch in the input of tokens.
        kept: Name of the output that scores tokens if the caller gave it: it is never part of a pair.

    Raises:
        UsageError: An input has several possible outputs, or an output several possible inputs; or types differ.
    """
    types, outputs = model.input_types, model.output_types
    for name, output in carry.items():
        if name not in model.inputs:
            hint = did_you_mean(name, model.inputs)
            raise UsageError(f"generate: the model has no input {name!r} (carry=, --recurrent-state){hint}")
        if output not in outputs:
            hint = did_you_mean(output, outputs)
            raise UsageError(f"generate: the model has no output {output!r} (carry=, --recurrent-state){hint}")
    allowed = {output for output in outputs if output != kept}
    found = {
        name: [carry[name]] if name in carry else _candidates(name, allowed)
        for name in model.inputs
        if name not in others
    }
    several = {name: names for name, names in found.items() if len(names) > 1}
    pairs = {name: names[0] for name, names in found.items() if len(names) == 1}
    counts = Counter(pairs.values())
    several |= {name: [output] for name, output in pairs.items() if counts[output] > 1}
    if several:
        listed = "; ".join(f"input {name!r} and {' or '.join(map(repr, names))}" for name, names in several.items())
        raise UsageError(
            f"model {model.name!r}: it is ambiguous which outputs are the next values of these inputs: {listed}. "
            "Give the pairs (carry={input: output}, --recurrent-state INPUT=OUTPUT)"
        )
    return tuple(_cache(model.name, n, types[n], o, outputs[o], batch) for n, o in pairs.items())


def _candidates(name: str, outputs: Collection[str]) -> list[str]:
    """Return the outputs that the first fitting rule names, for an input."""
    for pattern, templates in _RULES:
        matched = pattern.fullmatch(name)
        if matched is not None:
            found = [o for o in dict.fromkeys(map(matched.expand, templates)) if o in outputs]
            if found:
                return found
    return []


def _cache(model: str, name: str, kind: Type, output: str, after: Type, batch: Any) -> Cache:
    what = f"model {model!r}: input {name!r} is {kind}, and output {output!r} is {after}"
    if not isinstance(kind, TensorType) or not isinstance(after, TensorType) or kind.shape is None:
        raise UsageError(f"{what}; the past of a decoder must be a tensor of known rank")
    if kind.dtype is not after.dtype or (after.rank is not None and after.rank != kind.rank):
        raise UsageError(f"{what}; they must have the same type, since the output is fed to the input")
    open_axes = [axis for axis, size in enumerate(kind.shape) if not isinstance(size, int)]
    rows = [a for a in open_axes if kind.shape[a] == batch]
    rows = rows or [a for a in open_axes if str(kind.shape[a]).lower() in BATCH_NAMES]
    growing = [a for a in open_axes if a not in rows]
    if len(rows) > 1 or len(growing) > 1 or (not rows and not isinstance(batch, int)):
        raise UsageError(
            f"{what}; it is ambiguous which axis is the batch and which has one element per token. Name the batch "
            f"{batch!r}, as in the input of tokens, and give all other axes but one a fixed size"
        )
    return Cache(name, output, kind, rows[0] if rows else None, growing[0] if growing else None)


def tensor_of(kind: Type) -> TensorType | None:
    """Return the type if it is a tensor of known rank."""
    return kind if isinstance(kind, TensorType) and kind.shape is not None else None
