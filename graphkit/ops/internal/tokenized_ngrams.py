"""Texts split into words whose n-grams are counted: what many pipelines of scikit-learn begin with."""

from __future__ import annotations

from typing import Any, ClassVar

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Sample, op
from graphkit.ops.internal.region import Region
from graphkit.ops.text.strings import StringNormalizer, text
from graphkit.ops.text.tfidf import TfIdfVectorizer
from graphkit.ops.text.tokenizer import Tokenizer


def _counts(words: Any, *pool: str, mode: str = "TF", longest: int = 1, **options: Any) -> Value:
    singles = [word for word in pool if " " not in word]
    pairs = [part for word in pool if " " in word for part in word.split()]
    return F.tf_idf_vectorizer(
        words, mode=mode, max_gram_length=longest, min_gram_length=1, max_skip_count=0, pool_strings=singles + pairs,
        ngram_counts=[0, len(singles)][:longest], ngram_indexes=list(range(len(pool))), **options,
    )  # fmt: skip


def _samples() -> tuple[Sample, ...]:
    x, column = Value(TensorType("string", ("N",))), Value(TensorType("string", ("N", 1)))
    words = F.tokenizer(x, mark=False, mincharnum=1, pad_value="#", tokenexp="[a-z]+")
    marked = F.flatten(F.tokenizer(column, mark=True, mincharnum=2, pad_value="ab", tokenexp="[a-z0-9]+"), axis=1)
    single = Graph([x], [_counts(words, "a", "bb", "zz")])
    double = Graph([column], [_counts(marked, "ab", "\x02", "ab ab", "c1 ab", longest=2)])
    weighted = Graph([x], [_counts(words, "bb", "#", mode="TFIDF", weights=[0.5, 2.0])])
    lower = F.string_normalizer(F.reshape(column, [-1]), case_change_action="LOWER", locale="C.UTF-8")
    cased = F.tokenizer(lower, mark=False, mincharnum=1, pad_value="", tokenexp="[a-z]+")
    whole = Graph([column], [_counts(cased, "a", "bb", "a bb", longest=2)])
    return (
        Sample(text(["A Bb"], ["\u0130bb"]), body=whole),
        Sample(text("a bb;a", "", "\u0107bb zz\u0107", "\U0001f600 a"), body=single),
        Sample(
            text(
                [
                    "ab c1 ab",
                ],
                ["c"],
                ["ab"],
            ),
            body=double,
        ),
        Sample(text("a bb bb", "a"), body=weighted),
        Sample(text("1", ""), body=single),
    )


@op
class TokenizedNgrams(Region):
    """Split texts into words, and count the n-grams of each text: float32 [N, places].

    x: strings; each is a text. `body`: a Reshape to a vector, a StringNormalizer without stop words, a Tokenizer, a
    Flatten and a TfIdfVectorizer; all but the Tokenizer and the TfIdfVectorizer may be missing.
    """

    inputs = ("x",)
    types: ClassVar[Any] = {"x": frozenset({DType.STRING})}
    samples = staticmethod(_samples)

    @property
    def tokenizer(self) -> Tokenizer:
        """The operator that splits texts into words."""
        return next(node.op for node in self.body.nodes if isinstance(node.op, Tokenizer))

    @property
    def counter(self) -> TfIdfVectorizer:
        """The operator that counts n-grams."""
        return next(node.op for node in self.body.nodes if isinstance(node.op, TfIdfVectorizer))

    @property
    def normalizer(self) -> StringNormalizer | None:
        """The operator that changes the case of texts before, if there is one."""
        return next((node.op for node in self.body.nodes if isinstance(node.op, StringNormalizer)), None)
