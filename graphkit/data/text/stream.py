"""Text for language models: one long sequence of tokens, read in parallel streams for truncated backpropagation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.batches import Batch, Batches
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.preprocessing.vocabulary import Vocabulary, read_text
from graphkit.errors import InputError, UsageError
from graphkit.signatures import typed_constructor


@typed_constructor("gk.data")
class TokenStream(Dataset):
    """Running text: x is int64 [tokens], and the target of each token is the next token.

    `batches(n)` cuts the text into n streams of equal length and reads them in parallel. Each batch is [T, n] with T =
    `length` (the last of an epoch may be shorter). Each batch continues where the previous one ended, so a network can
    carry its state over. The last tokens are left out if they are fewer than n. The order is that of the text; seed and
    shuffle have no effect.
    """

    vocabulary: Vocabulary

    def __init__(self, tokens: np.ndarray, vocabulary: Vocabulary, *, length: int = 35, name: str = "text"):
        if length < 1:
            raise UsageError(f"{name}: length must be positive, not {length}")
        super().__init__(tokens[:-1], tokens[1:], name=name)
        self.vocabulary = vocabulary
        self.length = length

    @property
    def num_classes(self) -> int:
        return len(self.vocabulary)

    def batches(self, batch_size: int, **options: Any) -> Batches:
        return _StreamBatches(self, batch_size, **options)


class _StreamBatches(Batches):
    """See TokenStream. With ranks, each rank reads its own streams of batch_size * ranks."""

    dataset: TokenStream

    def __init__(self, dataset: TokenStream, batch_size: int, *, ranks: int = 1, **options: Any):
        if batch_size > 0 and len(dataset) < batch_size * ranks:
            raise InputError(
                f"{dataset.name}: {len(dataset)} tokens are too few for {batch_size * ranks} streams; use smaller "
                "batches"
            )
        super().__init__(dataset, batch_size, ranks=ranks, **options)

    @property
    def _steps(self) -> int:
        """Number of tokens in each stream."""
        return len(self.dataset) // (self.batch_size * self.ranks)

    def __len__(self) -> int:
        whole, rest = divmod(self._steps, self.dataset.length)
        return whole + (1 if rest and not self.drop_last else 0)

    def order(self, epoch: int) -> np.ndarray:
        """Return the position of each stream at every step, int64 [tokens of a stream, streams]."""
        streams = self.batch_size * self.ranks
        return np.arange(streams * self._steps).reshape(streams, self._steps).T

    def _batch(self, indices: np.ndarray, index: int, epoch: int) -> Batch:
        length, low = self.dataset.length, self.rank * self.batch_size
        whole = indices[index * length : (index + 1) * length]
        part = whole[:, low : low + self.batch_size]
        inputs, targets = self.dataset.take(part)
        return Batch(inputs, targets, part.size, whole.size)


def load(
    path: Path, *, test_fraction: float | None = 0.1, seed: int = 0, vocabulary: Vocabulary | None = None,
    level: str = "char", min_count: int = 1, size: int | None = None, length: int = 35,
) -> Splits | TokenStream:  # fmt: skip
    """Load (train, test): the beginning and the end of a text file, in tokens.

    With test_fraction None, the whole text is one data set. The vocabulary is built only from the training part,
    unless one is given (level, min_count, size: see Vocabulary.build). length: of a batch, see TokenStream. The seed
    does not change where the text is cut. Raises InputError, which names the file.
    """
    text = read_text(path)
    cut = len(text) if test_fraction is None else round(len(text) * (1 - _fraction(test_fraction)))
    if vocabulary is None:
        vocabulary = Vocabulary.build([text[:cut]], level, min_count=min_count, size=size)
    names = (str(path),) if test_fraction is None else (f"{path} (train)", f"{path} (test)")
    parts = []
    for name, part in zip(names, (text[:cut], text[cut:]), strict=False):
        tokens = vocabulary.encode_part(part)
        if len(tokens) < 2:
            raise InputError(f"{name}: {len(tokens)} tokens; a language model needs at least two")
        parts.append(TokenStream(tokens, vocabulary, length=length, name=name))
    return parts[0] if test_fraction is None else Splits(*parts)


def _fraction(given: float) -> float:
    if not 0.0 < given < 1.0:
        raise UsageError(f"test_fraction must be between 0 and 1, not {given!r}")
    return given
