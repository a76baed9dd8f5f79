"""Operators of strings, compared with ONNX Runtime on random text, and their errors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from combinations import full, in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, MissingDependency, TypeMismatch, UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops.text import regex, tokenizer
from graphkit.ops.text.tokenizer import Tokenizer

RNG = np.random.default_rng(0)
DOTLESS, DOTTED = "\u0131", "\u0130"
ALPHABET = np.array([*"aAbBcC ,.\t\n\0éÉßΣς日ﬁᾳŉ", DOTLESS, DOTTED, "\U0001d538"], object)


def drawn(*shape: int, longest: int = 12) -> np.ndarray:
    count = int(np.prod(shape))
    words = ["".join(RNG.choice(ALPHABET, RNG.integers(0, longest))).rstrip("\0") for _ in range(count)]
    result = np.empty(count, object)
    result[:] = words
    return result.reshape(shape)


def both(function: Any, *arrays: np.ndarray, opset: int = 21, **attributes: Any) -> list[tuple[Any, Any]]:
    """Results by graphkit and by ONNX Runtime."""
    kinds = ["string" if a.dtype == object else str(a.dtype) for a in arrays]
    inputs = [gk.input(f"x{i}", a.shape, dtype=k) for i, (a, k) in enumerate(zip(arrays, kinds, strict=True))]
    made = function(*inputs, **attributes)
    outputs = made if isinstance(made, tuple) else (made,)
    net = gk.Model({f"y{i}": y for i, y in enumerate(outputs)})
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    ours = net.run(feeds)
    theirs = OnnxRuntimeModel(net.to_onnx(opset=opset), threads=1).run(feeds)
    return [(ours[name], theirs[name]) for name in ours]


def check(pairs: list[tuple[Any, Any]]) -> None:
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        assert ours.tolist() == theirs.tolist()


@in_one_item()
@pytest.mark.parametrize("delimiter", [None, "", " ", ",", "aA", "é"])
@pytest.mark.parametrize("maxsplit", [None, 0, 1, 3, -1])
def test_string_split(delimiter: str | None, maxsplit: int | None) -> None:
    check(both(gk.string_split, drawn(5, 8), delimiter=delimiter, maxsplit=maxsplit))


def test_string_concat() -> None:
    check(both(gk.string_concat, drawn(3, 1, 4), drawn(5, 1)))


@in_one_item()
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [False, True])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_string_normalizer(action: str, sensitive: bool, locale: str) -> None:
    words = drawn(200, longest=4)
    stop = sorted({w.lower(): w for w in words[:40] if w}.values()) if locale == "C.UTF-8" else ["ab", "Ca"]
    options = {"case_change_action": action, "is_case_sensitive": sensitive, "locale": locale}
    check(both(gk.string_normalizer, words, stopwords=[w for w in stop if w.isascii()], **options))
    check(both(gk.string_normalizer, words[None], **options))


@pytest.mark.parametrize("end", [0x3000, full(0x110000)])
def test_every_character_has_the_case_of_c(end: int) -> None:
    """The case of all characters is that of the C library of this machine, except of few newer ones."""
    every = np.array([chr(i) for i in range(1, end) if not 0xD800 <= i < 0xE000], object)
    for action in ("UPPER", "LOWER"):
        ((ours, theirs),) = both(gk.string_normalizer, every, case_change_action=action, locale="C.UTF-8")
        # Two versions of Unicode differ in what is new.
        assert (ours != theirs).sum() < 150


def test_languages_with_a_dotted_i() -> None:
    words = gk.input("words", ["N"], dtype="string")
    net = gk.Model({
        f"{locale}{action}": gk.string_normalizer(words, case_change_action=action, locale=locale)
        for locale in ("tr_TR.UTF-8", "az-AZ", "en_US")
        for action in ("UPPER", "LOWER")
    })  # fmt: skip
    found = {name: y.tolist() for name, y in net.run({"words": ["I" + DOTLESS, DOTTED + "i"]}).items()}
    assert found["tr_TR.UTF-8UPPER"] == found["az-AZUPPER"] == ["II", DOTTED * 2]
    assert found["tr_TR.UTF-8LOWER"] == [DOTLESS * 2, "ii"]
    assert found["en_USUPPER"] == ["II", DOTTED + "I"]
    assert found["en_USLOWER"] == ["i" + DOTLESS, "ii"]


PATTERNS = [
    "",
    "a*",
    "[a-c]+",
    "(?i)[A-C ]*",
    ".*",
    "(?s).*",
    r"\w+",
    r"[^\w]*",
    r"\p{L}*",
    "é|É|ß",
    "(a|b|c)*?",
    "^a.*$",
]


@in_one_item()
@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex_full_match(pattern: str) -> None:
    check(both(gk.regex_full_match, drawn(20, 10, longest=5), pattern=pattern))


@in_one_item()
@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "([a-z]+)*\\d", "(x+x+)+y", "(a{1,30}){1,30}b"])
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    """Python's own matcher would take 2 ** 5000 steps for most of these."""
    x = gk.input("x", [2], dtype="string")
    net = gk.Model({"y": gk.regex_full_match(x, pattern=pattern)})
    assert net.run({"x": ["a" * 5000 + "!", "x" * 5000]})["y"].tolist() == [False, False]


@in_one_item()
@pytest.mark.parametrize(
    "pattern", ["(", "a\\", r"(a)\1", "(?<=a)b", "(?=a)", "x{1001}", "[z-a]", "((a{100}){100}){100}"]
)
def test_patterns_that_are_not_of_re2(pattern: str) -> None:
    x = gk.input("x", [1], dtype="string")
    with pytest.raises(GraphkitError, match="is not a regular expression of RE2"):
        gk.regex_full_match(x, pattern=pattern)


def test_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file loads. The error of the run says what to install."""
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr(regex, "check_pattern", lambda *_, **__: None)
    regex.compiled.cache_clear()
    net = gk.Model({"y": gk.regex_full_match(gk.input("x", [1], dtype="string"), pattern="a", name="here")})
    with pytest.raises(MissingDependency, match=r"'here'.*google-re2.*pip install '\.\[text\]'"):
        net.run({"x": ["a"]})
    regex.compiled.cache_clear()


# --- n-grams --------------------------------------------------------------------------------------


def pool(kind: str, longest: int) -> dict[str, Any]:
    """Some 1-grams to `longest`-grams of a small vocabulary, each once."""
    words: Any = [f"w{i}" for i in range(4)] if kind == "string" else [-3, 0, 7, 2**40 if kind == "int64" else 90]
    grams, counts = [], []
    for size in range(1, longest + 1):
        counts.append(sum(map(len, grams)))
        chosen = RNG.permutation(4**size)[: 2 * size]
        grams += [[words[c // 4**i % 4] for i in range(size)] for c in chosen]
    flat = [word for gram in grams for word in gram]
    names = {"pool_strings" if kind == "string" else "pool_int64s": flat}
    return {**names, "ngram_counts": counts, "ngram_indexes": RNG.permutation(len(grams)).tolist()}


@in_one_item("pairs")
@pytest.mark.parametrize("kind", ["string", "int32", "int64"])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("shortest", "longest", "skips"), [(1, 1, 0), (1, 3, 0), (2, 2, 5), (1, 3, 4), (3, 3, 100)])
def test_tfidf(kind: str, mode: str, shortest: int, longest: int, skips: int) -> None:
    made = pool(kind, 3)
    words = np.array([*(made.get("pool_strings") or made["pool_int64s"]), *(["?"] if kind == "string" else [1])])
    x = RNG.choice(words, (7, 15))
    x = x.astype(object) if kind == "string" else x.astype(kind)
    weights = RNG.random(len(made["ngram_indexes"])).astype(np.float32).tolist()
    options = {"mode": mode, "min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skips, **made}
    for given in (None, weights):
        for rows in (x, x[0], x[:1, :0]):
            for ours, theirs in both(gk.tf_idf_vectorizer, rows, weights=given, **options):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_tfidf_of_many_documents(steps: Any) -> None:
    """100,000 documents take no step of Python each."""
    made = pool("string", 2)
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, **made}
    op = gk.tf_idf_vectorizer(gk.input("x", ["N", 8], dtype="string"), **options).node.op
    few, many = (RNG.choice(made["pool_strings"], (n, 8)).astype(object) for n in (10, 100_000))
    assert steps(lambda: op.reference(np, many)) < steps(lambda: op.reference(np, few)) + 200


@in_one_item()
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "BM25"}, UsageError, "mode must be one of TF, IDF, TFIDF"),
        ({"pool_int64s": [1]}, UsageError, "exactly one of pool_strings and pool_int64s"),
        ({"pool_strings": None, "pool_int64s": [1, 2, 3, 4, 5, 6]}, TypeMismatch, "does not hold elements of"),
        ({"min_gram_length": 0}, UsageError, "not 0, 2, 2 and 0"),
        ({"max_gram_length": 5}, UsageError, "not 1, 5, 2 and 0"),
        ({"max_skip_count": -1}, UsageError, "not 1, 2, 2 and -1"),
        ({"ngram_indexes": [0, 1, 2, -4]}, UsageError, "negative"),
        ({"ngram_indexes": [0, 1]}, UsageError, "ngram_indexes has 2 elements for 4 n-grams"),
        ({"ngram_counts": [0, 9]}, UsageError, "0 to 9 of the pool"),
        ({"ngram_counts": [0, 1]}, UsageError, "1 to 6 of the pool do not form 2-grams"),
        ({"weights": [1.0]}, UsageError, "weights needs one number per n-gram: 4, not 1"),
        ({"pool_strings": ["a", "a", "c", "d", "e", "f"]}, UsageError, "a 1-gram twice"),
    ],
)
def test_tfidf_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2, 3], "pool_strings": ["a", "b", "c", "d", "e", "f"],
    }  # fmt: skip
    x = gk.input("x", [3], dtype="string")
    with pytest.raises(error, match=message):
        gk.tf_idf_vectorizer(x, **options | changes)


def test_tfidf_of_several_ngrams_at_one_place() -> None:
    options = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 2, "ngram_counts": [0, 3]}
    options |= {"ngram_indexes": [1, 1, 5, 1], "pool_int64s": [1, 2, 3, 1, 2], "weights": [10.0, 7.0, 5.0, 3.0]}
    for mode in ("TF", "IDF", "TFIDF"):
        for x in ([1, 1, 2], [2, 1, 1], [1, 2, 1], [3, 3, 3]):
            check(both(gk.tf_idf_vectorizer, np.array(x), mode=mode, **options))


def test_tfidf_of_a_long_pool(steps: Any) -> None:
    """Many lengths without n-grams, and one n-gram of many words: linear in the pool."""
    x = gk.input("x", ["N"], dtype="int64")
    options = {"mode": "TF", "max_skip_count": 0, "ngram_indexes": [0], "min_gram_length": 1}

    def long(n: int) -> Any:
        return gk.tf_idf_vectorizer(x, max_gram_length=n, ngram_counts=[0] * n, pool_int64s=[1] * n, **options)

    def many(n: int) -> Any:
        return gk.tf_idf_vectorizer(x, max_gram_length=n, ngram_counts=[0, *[1] * n], pool_int64s=[1], **options)

    for made in (long, many):
        few, more = (steps(lambda n=n, made=made: made(n)) for n in (300, 600))
        assert more < 2.2 * few
    found = gk.Model({"y": long(50), "z": many(50)}).run({"x": np.array([1, 1, 2])})
    assert (found["y"].tolist(), found["z"].tolist()) == ([0], [2])


def test_tfidf_with_many_skips() -> None:
    """No more of them are tried than fit into a row."""
    x = gk.input("x", ["N"], dtype="int64")
    y = gk.tf_idf_vectorizer(
        x, mode="TF", min_gram_length=2, max_gram_length=2, max_skip_count=2**60, ngram_counts=[0, 0],
        ngram_indexes=[0], pool_int64s=[1, 2],
    )  # fmt: skip
    assert gk.Model({"y": y}).run({"x": np.array([1, 2, 2, 2])})["y"].tolist() == [3]
    assert gk.Model({"y": y}).run({"x": np.zeros(0, np.int64)})["y"].tolist() == [0]


@in_one_item()
@pytest.mark.parametrize(
    ("function", "shape", "attributes", "message"),
    [
        (gk.string_normalizer, [2, 2], {}, r"takes \[C\] or \[1, C\]"),
        (gk.string_normalizer, [1, 2, 2], {}, r"takes \[C\] or \[1, C\]"),
        (gk.string_normalizer, [2], {"case_change_action": "TITLE"}, "case_change_action must be one of"),
        (gk.tokenizer, [2], {"mark": 0, "mincharnum": 0, "pad_value": "", "separators": [" "]}, "mincharnum"),
        (gk.tokenizer, [2], {"mark": 0, "mincharnum": 1, "pad_value": ""}, "give separators or tokenexp"),
        (gk.tokenizer, [2], {"mark": 0, "mincharnum": 2, "pad_value": "", "separators": [""]}, "no word would be left"),
        (
            gk.tokenizer,
            [2],
            {"mark": 0, "mincharnum": 1, "pad_value": "", "tokenexp": "("},
            "regular expression of RE2",
        ),
        (gk.tokenizer, [2, 2, 2], {"mark": 0, "mincharnum": 1, "pad_value": "", "tokenexp": "a"}, "takes"),
    ],
)
def test_refused(function: Any, shape: list[int], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphkitError, match=message):
        function(gk.input("x", shape, dtype="string"), **attributes)


def test_a_normalizer_of_unknown_rank_checks_its_rows() -> None:
    x = gk.input("x", ["N", "C"], dtype="string")
    net = gk.Model({"y": gk.string_normalizer(x, name="here")})
    assert net.run({"x": [["a", "b"]]})["y"].tolist() == [["a", "b"]]
    with pytest.raises(GraphkitError):
        net.run({"x": [["a"], ["b"]]})


@in_one_item()
@pytest.mark.parametrize(
    "attributes",
    [
        {"separators": [""]},
        {"separators": [""], "mark": 1},
        {"separators": [" "]},
        {"separators": ["[ ,]+"], "mincharnum": 2},
        {"separators": [",", "[.]", "a|aA"], "mark": 1},
        {"separators": ["aA", "a"], "mark": 1},
        {"tokenexp": "[a-zA-Z]+"},
        {"tokenexp": "a|aA|é", "mincharnum": 2},
        {"tokenexp": r"\w*", "mark": 1},
        {"tokenexp": "^."},
    ],
)
def test_tokenizer(attributes: dict[str, Any]) -> None:
    options = {"mark": 0, "mincharnum": 1, "pad_value": "#", **attributes}
    words = drawn(6, 5)
    check(both(gk.tokenizer, words, **options))
    check(both(gk.tokenizer, words[0], **options))
    check(both(gk.tokenizer, np.array(["", ""], object), **options))


FAST = ["[a-zA-Z0-9_]+", "[a-cB]+", "[ ,.]+"]
SLOW = ["[é]+", "[^a]+", r"[\w]+", "[a-z]", "[z-a]+", "[[:alpha:]]+", "[a-]+", "[-a]+", "[a]+b"]


def test_other_patterns_are_those_of_re2_alone() -> None:
    assert [pattern for pattern in [*FAST, *SLOW] if regex.run_of_characters(pattern) is not None] == FAST


@in_one_item()
@pytest.mark.parametrize("pattern", FAST)
@pytest.mark.parametrize("least", [1, 3])
def test_runs_of_characters_are_those_that_re2_finds(pattern: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*drawn(200, longest=40), "", "__a1", "abc abcd\nab"]
    op = Tokenizer(mark=False, mincharnum=least, pad_value="#", tokenexp=pattern)
    found = list(map(op._splitter(), texts))
    monkeypatch.setattr(tokenizer, "run_of_characters", lambda pattern: None)
    assert list(map(op._splitter(), texts)) == found
    assert any(found)
