"""Functions of the native extension on tensors of strings, against the references of their operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, OutOfMemory, RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.registry import rule_of
from graphkit.executor.run.feeds import convert
from graphkit.ir import limits
from graphkit.ir.graph import Node
from graphkit.ops.evaluate import run_node

RNG = np.random.default_rng(0)
# Strings of one, two and four bytes a character, one that begins another, and the empty one.
WORDS = ["red", "re", "", "red ", "R\0d", "é", "éé", "日本", "\U0001d538", "a" * 70]


def strings(*shape: int, words: list[str] = WORDS) -> np.ndarray:
    """Return random strings. All are different objects."""
    drawn = RNG.choice(len(words), int(np.prod(shape)))
    result = np.empty(len(drawn), object)
    result[:] = [words[i][:1] + words[i][1:] for i in drawn]
    return result.reshape(shape)


def node_of(function: Any, *operands: np.ndarray, **attributes: Any) -> Node:
    kinds = ["string" if a.dtype == object else str(a.dtype) for a in operands]
    inputs = [gk.input(f"x{i}", a.shape, dtype=kind) for i, (a, kind) in enumerate(zip(operands, kinds, strict=True))]
    return function(*inputs, **attributes).node


def check(function: Any, *operands: np.ndarray, **attributes: Any) -> None:
    """Check that the device's function for the node has the results of the reference."""
    node = node_of(function, *operands, **attributes)
    make = rule_of("cpu", node.op, strings=True).string_function
    assert make is not None
    compute = make(node)
    assert compute is not None
    found = compute(*operands)
    assert not any(np.shares_memory(found, operand) for operand in operands)
    (wanted,) = run_node(node, operands)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tolist() == wanted.tolist()


def run(node: Node, *operands: np.ndarray) -> Any:
    """Compile and run a graph that consists of this node."""
    net = gk.Model({"y": node.output})
    return net.run({f"x{i}": operand for i, operand in enumerate(operands)})["y"]


SHAPES = [(), (0,), (1,), (7,), (40, 5), (3, 0, 2)]
KEYS = {
    "few": ["red", "é", "\U0001d538"],
    "equal": ["", "red", "", "日本", "red"],
    "many": [*map(str, range(3000)), *WORDS],
}


@in_one_item()
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_encoders(keys: list[str], shape: tuple[int, ...]) -> None:
    x = strings(*shape)
    count = len(keys)
    check(gk.label_encoder, x, keys_strings=keys, values_floats=np.arange(count, dtype=np.float32).tolist())
    check(gk.label_encoder, x, keys_strings=keys, values_strings=keys[::-1], default_string="other")
    check(gk.label_encoder, x, keys_strings=keys, values_int64s=list(range(count)), default_int64=-7)
    check(gk.category_mapper, x, cats_strings=keys, cats_int64s=list(range(count)), default_int64=-7)
    check(gk.one_hot_encoder, x, cats_strings=keys)


def test_a_string_without_a_category_is_named() -> None:
    node = node_of(gk.one_hot_encoder, strings(3), cats_strings=["a"], zeros=0)
    with pytest.raises(RuntimeFailure, match="'red' is not one of the categories, and zeros=0"):
        run(node, np.array(["a", "red", "a"], object))


@in_one_item()
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[0], [[2, -1], [0, 0]], []])
def test_gather(axis: int, indices: Any) -> None:
    check(gk.gather, strings(3, 4), np.array(indices, np.int64), axis=axis)


def test_operators_that_move_strings() -> None:
    x = strings(3, 1, 4)
    check(gk.flatten, x, axis=2)
    check(gk.transpose, x, perm=[2, 0, 1])
    check(gk.squeeze, x, np.array([1]))
    check(gk.unsqueeze, x, np.array([0, 2]))
    check(gk.reshape, x, np.array([0, -1]))
    check(gk.concat, x, strings(3, 2, 4), axis=1)
    check(gk.identity, x)


def test_gather_behind_the_end_is_named() -> None:
    node = node_of(gk.gather, strings(3), np.array([0]), axis=0)
    with pytest.raises(RuntimeFailure, match="Gather"):
        run(node, strings(3), np.array([3]))


def test_arrays_that_are_not_contiguous() -> None:
    check(gk.label_encoder, strings(6, 4).T[::2], keys_strings=["red", ""], values_int64s=[1, 2])
    check(gk.tokenizer, strings(6, 4)[:, 1::2], mark=1, mincharnum=1, pad_value="#", tokenexp="[a-z]+")


@in_one_item()
@pytest.mark.parametrize("pattern", ["[a-zA-Z0-9_]+", "[a-z .]+", "[x]+"])
@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("least", [1, 2, 5])
def test_words(pattern: str, mark: int, least: int) -> None:
    for shape in ((0,), (4,), (30, 3), (2, 0)):
        texts = strings(*shape)
        texts = texts + strings(*shape) + strings(*shape) if texts.size else texts
        check(gk.tokenizer, texts, mark=mark, mincharnum=least, pad_value="é", tokenexp=pattern)


def test_words_that_do_not_fit_into_memory_are_refused() -> None:
    texts = np.array(["a " * 1000] * 1000, object)
    x = gk.input("x", ["N"], dtype="string")
    net = gk.Model({"y": gk.tokenizer(x, mark=0, mincharnum=1, pad_value="#", tokenexp="[a]+")})
    with limits.limited(memory=1 << 20), pytest.raises(OutOfMemory, match="1000 lists, padded to 1000 strings"):
        net.run({"x": texts})


@in_one_item()
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("skips", [0, 2, 1000])
def test_ngrams(mode: str, lengths: tuple[int, int], skips: int) -> None:
    ones = ["red", "é", "", "日本"]
    twos = [word for first in ones for second in ["red", "re"] for word in (first, second)]
    threes = ["red", "red", "red", "é", "re", "日本"]
    count = len(ones) + len(twos) // 2 + len(threes) // 3
    options = {
        "mode": mode, "min_gram_length": lengths[0], "max_gram_length": lengths[1], "max_skip_count": skips,
        "pool_strings": [*ones, *twos, *threes], "ngram_counts": [0, len(ones), len(ones) + len(twos)],
        # Several n-grams count at one place.
        "ngram_indexes": [i % 9 for i in range(count)], "weights": RNG.random(count).astype(np.float32).tolist(),
    }  # fmt: skip
    for shape in ((0,), (12,), (0, 4), (5, 0), (6, 20)):
        check(gk.tf_idf_vectorizer, strings(*shape, words=WORDS[:8]), **options)


def test_a_string_function_is_no_interpreted_step() -> None:
    x = gk.input("x", ["N", 3], dtype="string")
    column = gk.gather(x, gk.constant(np.array([1])), axis=1)
    net = gk.Model({"y": gk.label_encoder(column, keys_strings=["a"], values_int64s=[1], default_int64=0)})
    executor = net.compile()
    assert executor.run({"x": np.array([["b", "a", "b"], ["a", "b", "a"]], object)})["y"].tolist() == [[1], [0]]
    assert "interpreted" not in {step.kernel for step in executor.plan.steps}


@in_one_item()
@pytest.mark.parametrize(("element", "said"), [(None, "NoneType"), (1.5, "float"), (b"a", None)])
def test_elements_that_are_no_strings(element: Any, said: str | None) -> None:
    x = gk.input("x", ["N"], dtype="string")
    net = gk.Model({"y": gk.label_encoder(x, keys_strings=["a"], values_int64s=[1], default_int64=0)})
    given = np.array(["a", element], object)
    if said is None:  # bytes are taken as UTF-8 text
        assert net.run({"x": given})["y"].tolist() == [1, 1]
    else:
        with pytest.raises(InputError, match=rf"element \[1\] is of type {said}"):
            net.run({"x": given})
    with pytest.raises(TypeError, match="element of type"):
        native.StringTable({"a": 0}, -1).find(given, np.empty(2, np.int64))


def test_strings_of_a_subclass() -> None:
    class Name(str):
        __slots__ = ()

    x = np.array([Name("red"), np.str_("é"), "re"], object)
    check(gk.label_encoder, x, keys_strings=["red", "é"], values_int64s=[1, 2])


def test_what_the_table_refuses() -> None:
    table = native.StringTable({"a": 4, "b": -(2**60)}, 7)
    numbers = np.empty(3, np.int64)
    table.find(np.array(["b", "a", "c"], object), numbers)
    assert numbers.tolist() == [-(2**60), 4, 7]
    for x, out in [(np.array(["a"]), numbers), (np.array(["a"], object), numbers), (["a"], numbers)]:
        with pytest.raises((TypeError, ValueError)):
            table.find(x, out)
    with pytest.raises(TypeError, match="element of type int"):
        native.StringTable({"a": 1, 1: 2}, -1)


@in_one_item()
@pytest.mark.parametrize("text", ["a", "é", "日本", "\U0001d538", ""])
def test_text_of_any_script_is_taken_without_a_copy(text: str) -> None:
    x = np.array(["a", text], object)
    assert native.are_texts(x)
    assert convert("x", gk.TensorType("string", ("N",)), x) is x


@in_one_item()
@pytest.mark.parametrize("element", ["\ud800", "\U0001d538\udfff", np.str_("a"), b"a", None])
def test_other_elements_are_converted_or_refused(element: Any) -> None:
    assert not native.are_texts(np.array(["a", element], object))
