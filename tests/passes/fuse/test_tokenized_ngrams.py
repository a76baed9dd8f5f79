"""One operator counts the n-grams of words of texts: fused nodes, and unchanged results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F
from graphkit.ops._base import constant
from graphkit.passes.fuse.tokenized_ngrams import fuse_tokenized_ngrams

TEXTS = np.array(["a bb a", "", "BB;\u0107a a1", "\U0001f600 bb a bb", "\x02 a # #", "\u0130A a"], object)
POOL = ["a", "bb", "#", "\u0107a", "\x02", "a", "bb", "#", "a", "\x02", "a"]
NGRAMS = {"ngram_counts": [0, 5], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6, 7], "pool_strings": POOL}


def split(x: Value, pattern: str = "[a-zA-Z0-9]+", **options: Any) -> Value:
    return F.tokenizer(x, **{"mark": False, "mincharnum": 1, "pad_value": "#", **options}, tokenexp=pattern)


def counted(words: Value, **options: Any) -> Value:
    chosen = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, **NGRAMS, **options}
    return F.tf_idf_vectorizer(words, **chosen)


def vector() -> Value:
    return gk.input("x", ["N"], "string")


def column() -> Value:
    return gk.input("x", ["N", 1], "string")


def lower(x: Value, **options: Any) -> Value:
    return F.string_normalizer(x, case_change_action="LOWER", locale="en_US.UTF-8", **options)


def names(net: gk.Model) -> list[str]:
    return [node.op.name for node in fuse_tokenized_ngrams(net.graph).nodes if node.op.name != "Constant"]


def networks() -> dict[str, gk.Model]:
    """Networks that are reduced to a single TokenizedNgrams."""
    x, rows = vector(), column()
    cased = lower(F.reshape(rows, constant(np.array([-1]))))
    return {
        "of a vector": gk.Model({"y": counted(split(x))}),
        "of a column": gk.Model({"y": counted(F.flatten(split(rows)))}),
        "between marks": gk.Model({"y": counted(split(x, mark=True))}),
        "of long words": gk.Model({"y": counted(split(x, mincharnum=2, mark=True, pad_value="a"))}),
        "in lower case": gk.Model({"y": counted(split(cased))}),
        "in the case of a language": gk.Model(
            {"y": counted(split(F.string_normalizer(x, case_change_action="LOWER", locale="tr_TR.UTF-8")))}
        ),
        "weighted": gk.Model({"y": counted(split(x), mode="TFIDF", weights=[0.5, 2, 3, 4, 5, 6, 7, 8.25])}),
        "of their weights": gk.Model({"y": counted(split(x), mode="IDF", weights=[0.5, 2, 3, 4, 5, 6, 7, 8.25])}),
    }


@in_one_item("values")
@pytest.mark.parametrize("rows", [6, 1, 2, 0])
@pytest.mark.parametrize("name", networks())
def test_texts_are_counted_by_one_operator(name: str, rows: int) -> None:
    net = networks()[name]
    assert names(net) == ["TokenizedNgrams"]
    texts = TEXTS[:rows]
    feeds = {"x": texts if net.graph.inputs[0].rank == 1 else texts[:, None]}
    plain = net.compile(optimize=False).run(feeds)["y"]
    executor = net.compile()
    np.testing.assert_array_equal(executor.run(feeds)["y"], plain)
    if rows:
        assert [step.op for step in executor.plan.steps if step.kernel == "native"] == ["ai.graphkit.TokenizedNgrams"]
    if rows and "case" not in name:  # languages need not be installed
        np.testing.assert_array_equal(OnnxRuntimeModel(net.to_onnx()).run(feeds)["y"], plain)


def test_other_expressions_are_interpreted() -> None:
    pytest.importorskip("re2")
    net = gk.Model({"y": counted(split(vector(), r"[a-z]+\d|bb"))})
    assert names(net) == ["TokenizedNgrams"]
    feeds = {"x": TEXTS}
    np.testing.assert_array_equal(net.compile().run(feeds)["y"], net.compile(optimize=False).run(feeds)["y"])


def test_what_is_read_elsewhere_stays_before() -> None:
    x = vector()
    cased = lower(x)
    net = gk.Model({"cased": cased, "y": counted(split(cased))})
    assert names(net) == ["StringNormalizer", "TokenizedNgrams"]
    feeds = {"x": TEXTS}
    ours, plain = net.compile().run(feeds), net.compile(optimize=False).run(feeds)
    assert ours["cased"].tolist() == plain["cased"].tolist()
    np.testing.assert_array_equal(ours["y"], plain["y"])


def others() -> dict[str, gk.Model]:
    x, pair = vector(), gk.input("x", ["N", 2], "string")
    words = split(x)
    return {
        "words read elsewhere": gk.Model({"words": words, "y": counted(words)}),
        "of pairs of texts": gk.Model({"y": counted(F.flatten(split(pair)))}),
        "of words from outside": gk.Model({"y": counted(pair)}),
    }


@in_one_item()
@pytest.mark.parametrize("name", others())
def test_others_stay(name: str) -> None:
    assert "TokenizedNgrams" not in names(others()[name])


def test_stop_words_are_removed_before() -> None:
    net = gk.Model({"y": counted(split(lower(vector(), stopwords=["bb"])))})
    assert names(net) == ["StringNormalizer", "TokenizedNgrams"]
    feeds = {"x": np.array(["a bb", "BB", "bb a"], object)}
    ours = net.compile().run(feeds)["y"]
    np.testing.assert_array_equal(ours, net.compile(optimize=False).run(feeds)["y"])
    assert len(ours) == 2
