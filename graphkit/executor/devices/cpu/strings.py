"""Operators on tensors of strings. Their functions hold the GIL, because the elements are Python strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import native
from graphkit.executor.devices.registry import KernelRule, StringFunctionFactory, register
from graphkit.ir.graph import Node
from graphkit.ir.limits import require_memory
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, Op, operator
from graphkit.ops.internal.encoded_columns import Column, EncodedColumns
from graphkit.ops.internal.tokenized_ngrams import TokenizedNgrams
from graphkit.ops.kept import kept
from graphkit.ops.ml.features import OneHotEncoder, places_of
from graphkit.ops.ml.labels import numbers_of_strings, string_table_of
from graphkit.ops.ml.matrix import ML
from graphkit.ops.tensor.gather import Gather
from graphkit.ops.text.regex import run_of_characters
from graphkit.ops.text.tfidf import TfIdfVectorizer, pool_of
from graphkit.ops.text.tokenizer import MARKS, Tokenizer
from graphkit.ops.xp import numpy_xp


def _of_strings(name: str, domain: str = "") -> Callable[[StringFunctionFactory], StringFunctionFactory]:
    """Register a factory for the nodes of an operator whose first operand is a tensor of strings."""

    def install(factory: StringFunctionFactory) -> StringFunctionFactory:
        def make(node: Node) -> Callable[..., Any] | None:
            return factory(node) if node.operands[0].dtype is DType.STRING else None

        register("cpu", domain, name, KernelRule(string_function=make), __name__)
        return factory

    return install


class _Numbers:
    """Maps strings to numbers. All other strings map to -1."""

    def __init__(self, numbers: Mapping[str, int]):
        self._table = native.StringTable(dict(numbers), -1)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Return the numbers of the strings in x, as int64 in the shape of x."""
        numbers = np.empty(x.shape, np.int64)
        self._table.find(np.ascontiguousarray(x), numbers)
        return numbers


def _moving(node: Node) -> Callable[..., Any]:
    """Return the function of an operator that only moves strings. Its result is not larger than its operands."""
    reference = operator(node, Op).reference
    return lambda *operands: np.array(reference(numpy_xp, *operands))  # a copy: references may return views


for _name in ("Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"):
    _of_strings(_name)(_moving)


def _mapping(table_of: Callable[[Any], tuple[dict[str, int], np.ndarray]]) -> StringFunctionFactory:
    """Return the factory for operators that look up each string in a table.

    table_of: Returns the index of each known string, and the values by index. The last value is the default.
    """

    @kept
    def tables(op: Op) -> tuple[_Numbers, np.ndarray]:
        places, values = table_of(op)
        return _Numbers(places), values

    def make(node: Node) -> Callable[..., Any]:
        numbers, values = tables(operator(node, Op))
        return lambda x: np.asarray(values[numbers.of(x)], values.dtype)  # without axes, numpy returns the element

    return make


_of_strings("LabelEncoder", ML)(_mapping(string_table_of))
_of_strings("CategoryMapper", ML)(_mapping(numbers_of_strings))


def _part(column: Column) -> tuple[Any, int, int, int, np.ndarray | None]:
    """Return a column in the form that native.ColumnEncoder takes."""
    encoder, operand, index = column
    if isinstance(encoder, OneHotEncoder):
        width = len(encoder.cats_strings)
        return native.StringTable(places_of(encoder), width), operand, index, 4 * width, None
    places, values = string_table_of(encoder)
    return native.StringTable(places, len(values) - 1), operand, index, values.itemsize, values


@kept
def _column_encoder(op: EncodedColumns) -> Any:
    return native.ColumnEncoder([_part(column) for column in op.columns()], list(op.widths()))


@_of_strings("EncodedColumns", DOMAIN)
def _encoded_columns(node: Node) -> Callable[..., Any]:
    encoder = _column_encoder(operator(node, EncodedColumns))
    shape, dtype = (node.output.shape or ())[1:], node.output.dtype.numpy
    row = dtype.itemsize * math.prod(shape)

    def encoded(*xs: np.ndarray) -> np.ndarray:
        rows = len(xs[0])
        require_memory(row * rows, "its columns")
        y = np.empty((rows, *shape), dtype)
        encoder.write(list(map(np.ascontiguousarray, xs)), y)
        return y

    return encoded


@kept
def _one_hot(op: OneHotEncoder) -> Any:
    return native.ColumnEncoder([_part(Column(op, 0, 0))], [1])


@_of_strings("OneHotEncoder", ML)
def _one_hot_encoder(node: Node) -> Callable[..., Any]:
    op = operator(node, OneHotEncoder)
    encoder, width = _one_hot(op), len(op.cats_strings)

    def encoded(x: np.ndarray) -> np.ndarray:
        require_memory(4 * x.size * width, "its columns")
        y = np.empty((*x.shape, width), np.float32)
        encoder.write([np.ascontiguousarray(x)], y)
        return y

    return encoded if op.zeros else partial(op.reference, numpy_xp)


@_of_strings("Gather")
def _gather(node: Node) -> Callable[..., Any]:
    axis = operator(node, Gather).axis

    def gathered(x: np.ndarray, indices: np.ndarray) -> Any:
        require_memory(8 * indices.size * (x.size // max(x.shape[axis], 1)), "its strings")
        return np.asarray(x.take(indices, axis), object)

    return gathered


def _characters_of_words(op: Tokenizer) -> str | None:
    """Return the ASCII characters of words, if each word is a run of them; else None.

    Other tokenizers split texts at separators, or take the matches of an RE2 expression as words.
    """
    run = None if op.separators else run_of_characters(op.tokenexp or "")
    return None if run is None else "".join(filter(run.fullmatch, map(chr, range(128))))


@_of_strings("Tokenizer", "com.microsoft")
def _tokenizer(node: Node) -> Callable[..., Any] | None:
    op = operator(node, Tokenizer)
    characters = _characters_of_words(op)
    if characters is None:
        return None

    def words(x: np.ndarray) -> np.ndarray:
        runs = native.CharacterRuns(np.ascontiguousarray(x), characters, op.mincharnum)
        marks = MARKS if op.mark and runs.longest else None
        width = runs.longest + (len(MARKS) if marks else 0)
        require_memory(8 * width * x.size, f"{x.size} lists, padded to {width} strings")
        result = np.empty((*x.shape, width), object)
        runs.write(result, op.pad_value, marks)
        return result

    return words


@kept
def _words(op: TfIdfVectorizer) -> Callable[[np.ndarray], np.ndarray]:
    return _Numbers(pool_of(op).words).of


@kept
def _ascii_words(op: TfIdfVectorizer) -> Any:
    return native.WordTable({word: number for word, number in pool_of(op).words.items() if word.isascii()})


@kept
def _adding(op: TfIdfVectorizer) -> Callable[..., None]:
    """Return the argument `add` of `TfIdfVectorizer.counted`: a native function that counts n-grams of word numbers."""
    pool = pool_of(op)
    levels = [(np.ascontiguousarray(level.keys), np.ascontiguousarray(level.grams)) for level in pool.levels]
    ngrams = native.NgramTable(len(pool.words), pool.first, levels, pool.places, pool.weights)
    assigns = op.mode == "IDF"

    def add(words: np.ndarray, distance: int, shortest: int, result: np.ndarray) -> None:
        ngrams.add(words, distance, shortest, assigns, result)

    return add


@_of_strings("TfIdfVectorizer")
def _tfidf_vectorizer(node: Node) -> Callable[..., Any]:
    op = operator(node, TfIdfVectorizer)
    numbers, add = _words(op), _adding(op)
    return lambda x: op.counted(x, numbers, add)


@_of_strings("TokenizedNgrams", DOMAIN)
def _tokenized_ngrams(node: Node) -> Callable[..., Any] | None:
    """Return a function that splits texts and counts n-grams without creating strings for the words.

    None if `_tokenizer` does not support the words. Python's string methods change the case of texts.
    """
    region = operator(node, TokenizedNgrams)
    tokenizer, op, normalizer = region.tokenizer, region.counter, region.normalizer
    characters = _characters_of_words(tokenizer)
    if characters is None:
        return None
    table, add = _ascii_words(op), _adding(op)
    pad, first, last = (pool_of(op).words.get(word, -1) for word in (tokenizer.pad_value, *MARKS))

    def counted(x: np.ndarray) -> np.ndarray:
        texts = np.ascontiguousarray(x).reshape(-1)
        if normalizer is not None:
            texts = normalizer.reference(numpy_xp, texts)
        runs = native.CharacterRuns(texts, characters, tokenizer.mincharnum)
        marks = (first, last) if tokenizer.mark and runs.longest else None
        width = runs.longest + (0 if marks is None else len(marks))
        require_memory(8 * width * texts.size, f"{texts.size} lists, padded to {width} words")
        numbers = np.empty((texts.size, width), np.int64)
        runs.number(table, numbers, pad, marks)
        return op.counted(numbers, lambda rows: rows, add)

    return counted
