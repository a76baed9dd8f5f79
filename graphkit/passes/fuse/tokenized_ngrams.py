"""Count n-grams of words without creating a string for each word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import operator
from graphkit.ops._base import constant
from graphkit.ops.internal.tokenized_ngrams import TokenizedNgrams
from graphkit.ops.tensor.shape import Flatten, Reshape
from graphkit.ops.text.strings import StringNormalizer
from graphkit.ops.text.tfidf import TfIdfVectorizer
from graphkit.ops.text.tokenizer import Tokenizer
from graphkit.passes.core.declare import graph_pass
from graphkit.passes.core.match import ints
from graphkit.passes.core.sweep import rewrite, use_counts


@graph_pass(at=["TfIdfVectorizer"])
def fuse_tokenized_ngrams(graph: Graph) -> Graph:
    """Fuse a TfIdfVectorizer and the Tokenizer before it into TokenizedNgrams. Takes linear time.

    A Flatten after the Tokenizer, a StringNormalizer before it, and a Reshape of the texts to a vector are fused, too.
    No other node may read an intermediate value.
    """
    if TfIdfVectorizer.name not in graph.operators:
        return graph
    counts = use_counts(graph)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        chain = _chain(node, counts) if isinstance(node.op, TfIdfVectorizer) else []
        if not chain:
            return None
        source = operands[0]
        for _ in chain[:-1]:
            assert source is not None
            assert source.node is not None
            source = source.node.operands[0]
        assert source is not None
        x = result = Value(source.type)
        for step in chain:
            shape = [constant(ints(-1))] if isinstance(step.op, Reshape) else []
            result = Node(step.op, [result, *shape], step.name, step.meta).output
        names = [v.name for v in node.outputs]
        fused = TokenizedNgrams(body=Graph([x], [result]))
        return Node(fused, [source], node.name, node.meta, output_names=names).outputs

    return rewrite(graph, rule, at=("TfIdfVectorizer",))


def _chain(counter: Node, counts: Mapping[Value, int]) -> list[Node]:
    """Return the nodes from the texts to `counter`; an empty list if they cannot be fused."""

    def before(node: Node) -> Node | None:
        """Return the node of the first operand if it has no other reader; else None."""
        x = node.operands[0]
        return x.node if counts[x] == 1 else None

    chain = [counter]
    words = before(counter)
    if words is not None and isinstance(words.op, Flatten) and operator(words, Flatten).axis in (1, 2):
        chain.insert(0, words)
        words = before(words)
    if words is None or not isinstance(words.op, Tokenizer):
        return []
    x = words.operands[0]
    # If the texts are a column, a Flatten must remove its second axis. If they are a vector, there is none.
    if not _is_one_column(x) or (x.rank == 2) != (len(chain) == 2):
        return []
    chain.insert(0, words)
    while (texts := before(chain[0])) is not None and _keeps_texts(texts):
        chain.insert(0, texts)
    return chain


def _is_one_column(x: Value) -> bool:
    return x.rank == 1 or (x.rank == 2 and x.tensor.shape is not None and x.tensor.shape[1] == 1)


def _keeps_texts(node: Node) -> bool:
    """Return whether the result is a vector of the operand's texts, possibly in another case."""
    if node.output.rank != 1:
        return False
    if isinstance(node.op, Reshape):
        return node.operands[0].dtype is DType.STRING and node.operands[1].tensor.constants == (-1,)
    return isinstance(node.op, StringNormalizer) and not node.op.stopwords
