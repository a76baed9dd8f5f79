"""Text for language models: one long row of tokens, read in parallel streams for truncated backpropagation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.batches import Batch, Batches
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.text.vocabulary import Vocabulary, read_text
from graphkit.errors import InputError, UsageError
from graphkit.signatures import typed_constructor


@typed_constructor("gk.data")
class TokenStream(Dataset):
    """x: int64 [tokens], and as targets the token that follows each of them.

    `batches(n)` cuts the text into n streams of equal length and walks along them: each batch is [T, n], T = `length`
    (the last of an epoch may be shorter), and continues where the one before ended, so that a network may carry its
    state over. Less than n tokens at the end of the text are left out. The order is that of the text: seed and
    shuffle change nothing.
    """

    vocabulary: Vocabulary

    def __init__(self, tokens: np.ndarray, vocabulary: Vocabulary, *, length: int = 35, name: str = "text"):
        if length < 1:
            raise UsageError(f"{name}: length is positive, not {length}")
        super().__init__(tokens[:-1], tokens[1:], name=name)
        self.vocabulary = vocabulary
        self.length = length

    @property
    def num_classes(self) -> int:
        return len(self.vocabulary)

    def batches(self, batch_size: int, **options: Any) -> Batches:
        return _StreamBatches(self, batch_size, **options)


class _StreamBatches(Batches):
    """See TokenStream. With ranks, a rank reads its own streams of batch_size * ranks."""

    dataset: TokenStream

    def __init__(self, dataset: TokenStream, batch_size: int, *, ranks: int = 1, **options: Any):
        if batch_size > 0 and len(dataset) < batch_size * ranks:
            raise InputError(
                f"{dataset.name}: {len(dataset)} tokens do not make {batch_size * ranks} streams; take smaller batches"
            )
        super().__init__(dataset, batch_size, ranks=ranks, **options)

    @property
    def _steps(self) -> int:
        """Tokens in each stream."""
        return len(self.dataset) // (self.batch_size * self.ranks)

    def __len__(self) -> int:
        whole, rest = divmod(self._steps, self.dataset.length)
        return whole + (1 if rest and not self.drop_last else 0)

    def order(self, epoch: int) -> np.ndarray:
        """int64 [tokens of a stream, streams]: where each stream is at every step."""
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
    """(train, test): the beginning and the end of a text file, in tokens; all of it for a test_fraction of None.

    The vocabulary (see Vocabulary.build for level, min_count, size) is made of the training part alone, unless one is
    given. length: of a batch, see TokenStream. No seed changes where the text is cut. Raises InputError, naming the
    file.
    """
    text = read_text(path)
    cut = len(text) if test_fraction is None else round(len(text) * (1 - _fraction(test_fraction)))
    if vocabulary is None:
        vocabulary = Vocabulary.build([text[:cut]], level, min_count=min_count, size=size)
    names = (str(path),) if test_fraction is None else (f"{path} (train)", f"{path} (test)")
    parts = []
    for name, part in zip(names, (text[:cut], text[cut:]), strict=False):
        tokens = vocabulary.encode(part)
        if len(tokens) < 2:
            raise InputError(f"{name}: {len(tokens)} tokens; a language model needs at least two")
        parts.append(TokenStream(tokens, vocabulary, length=length, name=name))
    return parts[0] if test_fraction is None else Splits(*parts)


def _fraction(given: float) -> float:
    if not 0.0 < given < 1.0:
        raise UsageError(f"test_fraction lies between 0 and 1, not {given!r}")
    return given
