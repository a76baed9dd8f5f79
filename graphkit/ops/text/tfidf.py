"""Count n-grams in rows of words or numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import limits
from graphkit.ir.types import INDICES, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import Onnx, Sample, op
from graphkit.ops.kept import kept
from graphkit.ops.text.strings import STRINGS, TextOp, no_text, text

# Rows are processed in parts of about this number of words, which bounds the memory for intermediate arrays.
_WORDS_AT_ONCE = 1 << 20
_MODES = ("TF", "IDF", "TFIDF")


class Level(NamedTuple):
    """All prefixes of one length of the n-grams in the pool.

    keys: sorted; each is the number of the prefix without its last word, times the number of words, plus the last
    word's number. grams: number of the n-gram that equals the prefix, -1 if there is none.
    """

    keys: np.ndarray
    grams: np.ndarray


class _Hits(NamedTuple):
    """N-grams that were found: row, position of the first word, and number in the pool."""

    row: np.ndarray
    column: np.ndarray
    gram: np.ndarray


class Pool:
    """The n-grams that an operator counts. Words and prefixes are numbered, so that arrays of them can be looked up.

    places, weights: for each n-gram, its column in the result, and its weight. width: number of columns. first: for
    each word, the number of the prefix of this word, -1 if no n-gram begins with it. The last element, -1, is for the
    unknown word -1.
    """

    def __init__(self, words: Sequence[Any], levels: list[Level], places: np.ndarray, weights: np.ndarray):
        self.words = {word: number for number, word in enumerate(words)}
        self.levels, self.places, self.weights = levels, places, weights
        self.width = int(places.max()) + 1
        self.first = np.full(len(words) + 1, -1, np.int64)
        if levels:
            self.first[levels[0].keys] = np.arange(len(levels[0].keys))
        self.sorted: np.ndarray | None = None
        if words and not isinstance(words[0], str):
            numbers = np.array(words, np.int64)
            self.order = np.argsort(numbers)
            self.sorted = numbers[self.order]

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Return the number of each word, -1 for words that are in no n-gram."""
        if self.sorted is None:
            found = map(self.words.get, x.reshape(-1).tolist(), itertools.repeat(-1))
            return np.fromiter(found, np.int64, x.size).reshape(x.shape)
        places = _positions(self.sorted, x.astype(np.int64))
        return np.where(places < 0, -1, self.order[places])


def _positions(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the position of each element of `wanted` in the sorted `keys`, -1 if it is missing."""
    if len(keys) == 0:
        return np.full(wanted.shape, -1, np.int64)
    places = np.searchsorted(keys, wanted)
    places[places == len(keys)] = 0
    places[keys[places] != wanted] = -1
    return places


def _grams(op: TfIdfVectorizer) -> list[Sequence[Any]]:
    """Return the n-grams of the pool. Raises UsageError if the attributes do not match."""
    pool: Sequence[Any] = op.pool_strings or op.pool_int64s or ()
    found: list[Sequence[Any]] = []
    for size, (start, end) in enumerate(itertools.pairwise((*op.ngram_counts, len(pool))), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % size:
            raise UsageError(
                f"ngram_counts {list(op.ngram_counts)}: {start} to {end} of the pool do not form {size}-grams"
            )
        entries = [pool[i : i + size] for i in range(start, end, size)]
        if len(set(entries)) != len(entries):
            raise UsageError(f"the pool has a {size}-gram twice")
        found += entries
    if len(found) != len(op.ngram_indexes):
        raise UsageError(f"ngram_indexes has {len(op.ngram_indexes)} elements for {len(found)} n-grams in the pool")
    return found


@kept
def pool_of(op: TfIdfVectorizer) -> Pool:
    """Return the pool of the n-grams whose lengths the operator counts."""
    if not op.ngram_indexes or min(op.ngram_indexes) < 0:
        raise UsageError("ngram_indexes is empty, or has a negative element")
    shortest, longest = op.min_gram_length, op.max_gram_length
    wanted = [(number, gram) for number, gram in enumerate(_grams(op)) if shortest <= len(gram) <= longest]
    words = list(dict.fromkeys(itertools.chain.from_iterable(gram for _, gram in wanted)))
    numbers = {word: number for number, word in enumerate(words)}
    flat = np.array([numbers[word] for _, gram in wanted for word in gram], np.int64)
    which = np.array([number for number, _ in wanted], np.int64)
    lengths = np.array([len(gram) for _, gram in wanted], np.int64)
    first = np.cumsum(lengths) - lengths
    prefix = np.zeros(len(wanted), np.int64)
    levels: list[Level] = []
    for size in range(1, int(lengths.max(initial=0)) + 1):
        there = lengths >= size
        which, lengths, first, prefix = which[there], lengths[there], first[there], prefix[there]
        keys, prefix = np.unique(prefix * len(words) + flat[first + size - 1], return_inverse=True)
        grams = np.full(len(keys), -1, np.int64)
        grams[prefix[lengths == size]] = which[lengths == size]
        levels.append(Level(keys, grams))
    places = np.array(op.ngram_indexes, np.int64)
    unweighted = op.mode == "TF" or op.weights is None
    return Pool(words, levels, places, np.array([1.0] * len(places) if unweighted else op.weights, np.float32))


_POOL = {"ngram_counts": (0, 4), "ngram_indexes": (0, 1, 2, 3, 4, 5, 6), "pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7)}
_ROWS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
_WORDS = text(["a", "b", "a", "b"], ["c", "b", "a", ""])
_WORD_POOL = {"ngram_counts": (0, 2), "ngram_indexes": (1, 0, 3), "pool_strings": ("a", "b", "a", "b")}
_WEIGHTS = (0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def _sample(x: Any, mode: str, skips: int, shortest: int, longest: int, pool: Any, **options: Any) -> Sample:
    """Return a sample. options: further arguments of `Sample`, and `weights`."""
    attributes = {**pool, "min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skips}
    return Sample(x, mode=mode, **attributes, **options)


@op
class TfIdfVectorizer(TextOp):
    """Count how often each n-gram of a pool is in x, or in each row of x: float32 [places] or [rows, places].

    x: strings, int32 or int64, [C] or [rows, C]. The pool (`pool_strings` or `pool_int64s`) contains the 1-grams, then
    the 2-grams, and so on; the n-grams begin at ngram_counts[n - 1]. N-gram i of the pool is counted at the place
    ngram_indexes[i] of the result, and has the weight weights[i]. N-grams with gaps are counted, too: the words of an
    n-gram may be d + 1 positions apart in x, for each d from 0 to `max_skip_count`, with the same d between all of its
    words.

    mode: "TF" gives the counts, "TFIDF" the counts times the weights, "IDF" the weight of each n-gram that occurs. If
    several n-grams have the same place, IDF gives the weight of the last one that was found.
    """

    mode: str
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    pool_int64s: tuple[int, ...] | None = None
    pool_strings: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    inputs = ("x",)
    types = {"x": STRINGS | INDICES}
    onnx = Onnx("TfIdfVectorizer", since=9)
    samples = lambda: (
        _sample(_ROWS, "TF", 0, 2, 2, _POOL),
        _sample(_ROWS, "TF", 5, 2, 2, _POOL),
        _sample(_ROWS, "TF", 5, 1, 2, _POOL),
        _sample(_ROWS[0].astype(np.int32), "TF", 5, 1, 2, _POOL),
        _sample(_ROWS, "TFIDF", 1, 1, 2, _POOL, weights=_WEIGHTS),
        _sample(_ROWS, "IDF", 5, 1, 2, _POOL, weights=_WEIGHTS),
        _sample(_ROWS, "IDF", 0, 1, 1, _POOL),
        _sample(_WORDS, "TF", 2, 1, 2, _WORD_POOL),
        _sample(_WORDS[0], "TFIDF", 0, 1, 2, _WORD_POOL),
        _sample(no_text(2, 0), "TF", 0, 1, 2, _WORD_POOL),
        _sample(no_text(0), "TF", 0, 1, 2, _WORD_POOL),
        # onnx's evaluator rejects an empty batch.
        _sample(no_text(0, 3), "TF", 0, 1, 2, _WORD_POOL, onnx=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.mode not in _MODES:
            raise UsageError(f"mode must be one of {', '.join(_MODES)}, not {self.mode!r}")
        if (self.pool_strings is None) == (self.pool_int64s is None):
            raise UsageError("give exactly one of pool_strings and pool_int64s")
        if (x.dtype is DType.STRING) != (self.pool_strings is not None):
            raise TypeMismatch(f"the pool does not hold elements of {x}")
        lengths = (self.min_gram_length, self.max_gram_length)
        if not 1 <= lengths[0] <= lengths[1] <= len(self.ngram_counts) or self.max_skip_count < 0:
            raise UsageError(
                "expected 1 <= min_gram_length <= max_gram_length <= len(ngram_counts), and max_skip_count >= 0, not "
                f"{lengths[0]}, {lengths[1]}, {len(self.ngram_counts)} and {self.max_skip_count}"
            )
        if self.weights is not None and len(self.weights) != len(self.ngram_indexes):
            raise UsageError(f"weights needs one number per n-gram: {len(self.ngram_indexes)}, not {len(self.weights)}")
        width = pool_of(self).width
        if x.rank not in (None, 1, 2):
            raise TypeMismatch(f"TfIdfVectorizer takes [C] or [rows, C], not {x}")
        return TensorType(DType.FLOAT32, None if x.shape is None else (*x.shape[:-1], width))

    def reference(self, xp: Any, x: Any) -> Any:
        pool = pool_of(self)

        def add(words: np.ndarray, distance: int, shortest: int, result: np.ndarray) -> None:
            self._add(pool, self._found(pool, words, distance, shortest), result)

        return self.counted(x, pool.numbers, add)

    def counted(self, x: Any, numbers: Callable[[np.ndarray], np.ndarray], add: Callable[..., None]) -> np.ndarray:
        """Return the result for x.

        Args:
            numbers: Returns the number of each word of an array, as `Pool.numbers` does.
            add: `add(words, distance, shortest, result)` counts in `result` (float32 [rows, places]) the n-grams of
                `words` (numbers, int64 [rows, C]) that have at least `shortest` words, each `distance` behind the one
                before.
        """
        if x.ndim not in (1, 2):
            raise TypeMismatch(f"TfIdfVectorizer takes [C] or [rows, C], not {list(x.shape)}")
        rows = x if x.ndim == 2 else x[None]
        width = pool_of(self).width
        limits.require_memory(4 * len(rows) * width, "its counts")
        result = np.zeros((len(rows), width), np.float32)
        at_once = max(_WORDS_AT_ONCE // max(rows.shape[1], 1), 1)
        for first in range(0, len(rows), at_once):
            self._count(numbers(rows[first : first + at_once]), result[first : first + at_once], add)
        return result if x.ndim == 2 else result[0]

    def _count(self, words: np.ndarray, result: np.ndarray, add: Callable[..., None]) -> None:
        length = words.shape[1]
        distances = self.max_skip_count + 1
        for distance in range(1, min(distances, max(length, 1)) + 1):
            limits.check_time()
            # A 1-gram has no distance between words, so it is only counted for distance 1.
            shortest = max(self.min_gram_length, 2 if distance > 1 else 1)
            if shortest > self.max_gram_length or (shortest - 1) * distance >= length:
                break
            add(words, distance, shortest, result)

    def _add(self, pool: Pool, hits: _Hits, result: np.ndarray) -> None:
        places, weights = pool.places[hits.gram], pool.weights[hits.gram]
        if self.mode == "IDF":
            # Assign in the order of the words, shorter n-grams first: if several have the same column, the last one
            # stays.
            order = np.argsort(hits.column, kind="stable")
            result[hits.row[order], places[order]] = weights[order]
        else:
            np.add.at(result.reshape(-1), hits.row * result.shape[1] + places, weights)

    def _found(self, pool: Pool, words: np.ndarray, distance: int, shortest: int) -> _Hits:
        """Return the n-grams of at least `shortest` words, each word `distance` after the one before."""
        hits = []
        prefixes = pool.first[words]
        row, column = np.nonzero(prefixes >= 0)
        prefix = prefixes[row, column]
        for size, level in enumerate(pool.levels, 1):
            if not len(row):
                break
            if size > 1:
                here = column + (size - 1) * distance
                inside = here < words.shape[1]
                row, column, prefix, here = row[inside], column[inside], prefix[inside], here[inside]
                word = words[row, here]
                prefix = np.where(word < 0, -1, _positions(level.keys, prefix * len(pool.words) + word))
                known = prefix >= 0
                row, column, prefix = row[known], column[known], prefix[known]
            if size >= shortest:
                gram = level.grams[prefix]
                hits.append((row[gram >= 0], column[gram >= 0], gram[gram >= 0]))
        return _Hits(*map(np.concatenate, zip(*hits, strict=True))) if hits else _Hits(*[np.zeros(0, np.int64)] * 3)
