"""Prompts: texts or numbers of tokens, and how they are put into batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphkit.data.preprocessing.vocabulary import Vocabulary
from graphkit.errors import InputError, UsageError
from graphkit.signatures import shown


def encoded_prompts(given: Any, vocabulary: Vocabulary | None) -> list[np.ndarray]:
    """Return the tokens of each prompt, int64 [tokens].

    Args:
        given: A text, the numbers of its tokens, or a sequence of such prompts.
        vocabulary: Encodes texts; None if there is none.

    Raises:
        InputError: A prompt is empty, or there is no vocabulary for a text.
        UsageError: A prompt is neither a text nor numbers.
    """
    if isinstance(given, str) or _is_numbers(given):
        given = [given]
    elif not isinstance(given, Iterable):
        raise UsageError(f"gk.generate: a prompt is a text or numbers of tokens, not {shown(given)}")
    prompts = [_encoded(prompt, number, vocabulary) for number, prompt in enumerate(given)]
    if not prompts:
        raise InputError("gk.generate: there is no prompt")
    return prompts


def _is_numbers(given: Any) -> bool:
    """Return whether this is one prompt of numbers: an array with one axis, or a sequence that begins with a number."""
    if isinstance(given, np.ndarray):
        return given.ndim == 1
    first = next(iter(given), None) if isinstance(given, Sequence) else None
    return isinstance(given, Sequence) and (first is None or isinstance(first, (int, np.integer)))


def _encoded(prompt: Any, number: int, vocabulary: Vocabulary | None) -> np.ndarray:
    if isinstance(prompt, str):
        if vocabulary is None:
            raise InputError(
                "gk.generate: the model's metadata contain no vocabulary, so a text cannot be encoded: give a "
                "tokenizer.json (tokenizer=, --tokenizer), or numbers of tokens (--ids)"
            )
        found = vocabulary.encode_beginning(prompt)
    else:
        found = np.asarray(prompt)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise UsageError(
                f"gk.generate: prompt {number} is a {found.dtype} array of shape {list(found.shape)}; expected a text, "
                "or integers [tokens]"
            )
        found = found.astype(np.int64)
    if not found.size:
        raise InputError(f"gk.generate: prompt {number} is empty; it must have at least one token")
    if found.min() < 0:
        raise InputError(f"gk.generate: prompt {number} contains the token {found.min()}; numbers begin at 0")
    return found


def check_prompts(prompts: Sequence[np.ndarray], size: int | None, scored: int | None, limit: int | None) -> None:
    """Raise InputError for a token that the vocabulary or the model does not have, or a prompt with too many tokens.

    Args:
        prompts: The tokens of each prompt.
        size: Number of tokens of the vocabulary; None if there is none.
        scored: Number of tokens that the model scores; None if it is unknown.
        limit: Number of positions of the model.
    """
    for number, prompt in enumerate(prompts):
        if size is not None and prompt.max() >= size:
            raise InputError(
                f"gk.generate: prompt {number} contains the token {prompt.max()}, but the vocabulary has {size:,} "
                "tokens"
            )
        if size is not None and scored is not None and prompt.max() >= scored:
            raise InputError(
                f"gk.generate: prompt {number} contains the token {prompt.max()}: the tokenizer has {size:,} tokens, "
                f"the model only {scored:,}; give the tokenizer of this model (tokenizer=, --tokenizer)"
            )
        if limit is not None and len(prompt) > limit:
            raise InputError(
                f"gk.generate: prompt {number} has {len(prompt):,} tokens, but the model has {limit:,} positions; give "
                "a shorter prompt"
            )


def batches(prompts: Sequence[np.ndarray], batch_size: int, padded: bool) -> list[list[int]]:
    """Return the numbers of the prompts that run together.

    Args:
        prompts: The tokens of each prompt.
        batch_size: Maximum number of prompts that run together.
        padded: Whether shorter prompts can be padded. Otherwise, only prompts of the same length run together.
    """
    groups: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        groups.setdefault(0 if padded else len(prompt), []).append(number)
    return [group[at : at + batch_size] for group in groups.values() for at in range(0, len(group), batch_size)]
