"""Small graphs that a pass changes because of one of its operators: each has no other operator that its pass lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, constant
from graphkit.ops.nn.heads import shared_product
from graphkit.ops.sequence.gradient import SequenceElementSizes
from graphkit.train.losses import attach
from graphkit.train.programs.step import UpdateRule, fused_step
from graphkit.train.selection import ParameterSelection, select_parameters

MASK = np.tri(4, dtype=bool)


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def weights(*shape: int, dtype: Any = np.float32) -> Value:
    return constant(np.random.default_rng(0).integers(1, 9, shape).astype(dtype))


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def trained(inputs: list[Value], y: Any) -> Graph:
    """A result, and the gradients of its squares."""
    return Graph(inputs, [y, *gradient([F.reduce_sum(F.mul(y, y), keepdims=False)], inputs)])


# --- control flow -----------------------------------------------------------------------------------------


def branches() -> Graph:
    """Two Ifs on one condition; one result of each is not read."""
    p, x = data(name="p", dtype="bool"), data(3)

    def branch(number: float) -> Graph:
        v = data(3)
        return Graph([v], [F.mul(F.exp(v), np.float32(number)), F.sin(v)])

    return Graph([p, x], [F.if_(p, x, then_branch=branch(k), else_branch=branch(-k))[0] for k in (2, 3)])


def chosen_branch() -> Graph:
    """An If with a constant condition."""
    x, v = data(3), data(3)
    branch = Graph([v], [F.exp(v)])
    return Graph([x], [F.if_(constant(np.bool_(True)), x, then_branch=branch, else_branch=branch)])


def loops() -> Graph:
    """Two Loops with equal states; the second state of each only serves itself."""
    m, x = data(name="m", dtype="int64"), data(3)

    def loop(number: float) -> Value:
        count, going, state, other = data(dtype="int64"), data(dtype="bool"), data(3), data(3)
        results = [going, F.tanh(state), F.cos(other), F.mul(state, np.float32(number))]
        body = Graph([count, going, state, other], results)
        return Node(F.loop.op(body=body), [m, None, x, x]).outputs[2]

    return Graph([m, x], [loop(2), loop(3)])


def counting_loop() -> Graph:
    """A Loop whose condition compares a counter with a constant."""
    x = data(3)
    count, going, counter, state = data(dtype="int64"), data(dtype="bool"), data(dtype="int64"), data(3)
    after = F.add(counter, np.int64(1))
    body = Graph([count, going, counter, state], [F.less(after, np.int64(5)), after, F.tanh(state)])
    return Graph([x], [Node(F.loop.op(body=body), [None, None, gk.constant(np.int64(0)), x]).outputs[1]])


def scans() -> Graph:
    """Two Scans with equal states; the last state of each is not read."""
    x, y = data(3), data(4, 3, name="y")
    results = [gk.scan(lambda s, e, k=k: (F.tanh(F.add(s, e)), F.mul(s, np.float32(k))), x, y)[1] for k in (2, 3)]
    return Graph([x, y], results)


def recurrence(layer: Any, gates: int) -> Graph:
    operands = [data(3, 2, 4), data(1, gates * 5, 4, name="w"), data(1, gates * 5, 5, name="r")]
    return trained(operands, layer(*operands)[0])


# --- attention --------------------------------------------------------------------------------------------


def attended(q: Any, k: Any, v: Any) -> Any:
    return F.mat_mul(F.softmax(F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), 0.5), axis=-1), v)


def heads(*names: str, rows: int = 4, many: int = 2) -> list[Value]:
    return [data(2, many, rows, 3, name=name) for name in names]


def attention() -> Graph:
    operands = heads("q", "k", "v")
    return trained(operands, attended(*operands))


def cached_attention() -> Graph:
    given = q, k, v, past_k, past_v = heads("q", "k", "v", "past_k", "past_v")
    keys, values = F.concat(past_k, k, axis=2), F.concat(past_v, v, axis=2)
    return Graph(given, [keys, values, attended(q, keys, values)])


def shared_heads(repeat: Callable[[Value], Any]) -> Graph:
    given = q, k, v = [*heads("q", many=6), *heads("k", "v")]
    return Graph(given, [attended(q, *(F.reshape(repeat(F.unsqueeze(x, ints(2))), ints(2, 6, 4, 3)) for x in (k, v)))])


def shared_products() -> Graph:
    given = q, k, v = [*heads("q", many=6), *heads("k", "v")]
    scores = shared_product(q, F.transpose(k, perm=(0, 1, 3, 2)))
    return Graph(given, [shared_product(F.softmax(scores), v)])


def masked_attention() -> Graph:
    given = heads("q", "k", "v")
    return Graph(given, [F.fused_attention(*given, MASK)])


def masked_attention_with_statistics() -> Graph:
    given = heads("q", "k", "v")
    return Graph(given, F.fused_attention_with_statistics(*given, MASK))


def masked_attention_gradient() -> Graph:
    given = q, k, v, y, dy, largest, total = [
        *heads("q", "k", "v", "y", "dy"), data(2, 2, 4, name="largest"), data(2, 2, 4, name="total")
    ]  # fmt: skip
    return Graph(given, F.fused_attention_grad(q, k, v, MASK, y, largest, total, dy))


# --- formulas ---------------------------------------------------------------------------------------------


def softmax(x: Value) -> Any:
    raised = F.exp(F.sub(x, F.reduce_max(x, ints(-1))))
    return F.div(raised, F.reduce_sum(raised, ints(-1)))


def softmax_gradient() -> Graph:
    y, dy = data(4, 6, name="y"), data(4, 6, name="dy")
    weighted = F.mul(dy, y)
    return Graph([y, dy], [F.sub(weighted, F.mul(y, F.reduce_sum(weighted, ints(-1))))])


def gelu(x: Value) -> Any:
    return F.mul(F.mul(x, F.add(F.erf(F.div(x, np.float32(np.sqrt(2.0)))), 1.0)), 0.5)


def gelu_of_tanh(x: Value) -> Any:
    cubic = F.add(x, F.mul(F.pow(x, np.float32(3.0)), 0.044715))
    return F.mul(F.mul(x, 0.5), F.add(F.tanh(F.mul(cubic, np.float32(np.sqrt(2.0 / np.pi)))), 1.0))


def layer_norm(x: Value) -> Any:
    centred = F.sub(x, F.reduce_mean(x, ints(-1)))
    return F.div(centred, F.sqrt(F.add(F.reduce_mean(F.mul(centred, centred), ints(-1)), 1e-5)))


def loss() -> Graph:
    scores, labels = data(6, 5, name="scores"), data(6, name="labels", dtype="int64")
    result, *_ = F.softmax_cross_entropy_loss(scores, labels)
    return Graph([scores, labels], [result, *gradient([result], [scores])])


def batch_norm() -> Graph:
    """Training of a convolution, a normalisation and an activation."""
    x, w = data(2, 3, 6, 6), data(4, 3, 3, 3, name="w")
    vectors = [constant(np.ones(4, np.float32)) for _ in range(4)]
    return trained([x, w], F.relu(F.batch_normalization(F.conv(x, w), *vectors, training_mode=True)[0]))


def rounded_layer_norm() -> Graph:
    x = data(4, 6, dtype="float16")
    wide = F.layer_normalization(F.cast(x, to="float32"), weights(6), axis=-1)[0]
    return Graph([x], [F.cast(wide, to="float16")])


def transposed_matrices() -> Graph:
    """Matrices that are flattened along the first axes, transposed and unflattened."""
    x = data(2, 3, 4, 5)
    flat = F.reshape(x, ints(6, 4, 5))
    return Graph([x], [F.reshape(F.transpose(flat, perm=(0, 2, 1)), ints(2, 3, 5, 4))])


# --- tables, texts and columns ----------------------------------------------------------------------------


def table_update() -> Graph:
    pooled = F.reduce_mean(gk.nn.embedding(gk.input("ids", ["N", 3], "int64"), 70, 4, name="table"), ints(1))
    graph = attach(gk.Model(pooled, seed=0).graph, "mse", None, None)
    return fused_step(graph, select_parameters(graph, ParameterSelection()), UpdateRule(gk.optim.SGD(0.1)))


def ngrams() -> Graph:
    x = data("N", dtype="string")
    words = F.tokenizer(x, mark=False, mincharnum=1, pad_value="#", tokenexp="[a-z]+")
    options = {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_strings": ["a", "b"], "max_skip_count": 0}
    return Graph([x], [F.tf_idf_vectorizer(words, mode="TF", min_gram_length=1, max_gram_length=1, **options)])


def encoders(encode: Callable[[Value], Any], axis: int) -> Graph:
    x = data("N", 3, dtype="string")
    columns = [encode(F.gather(x, constant(ints(index)), axis=1)) for index in range(2)]
    return Graph([x], [F.concat(*columns, axis=axis)])


# --- quantisation -----------------------------------------------------------------------------------------


def dynamic_product() -> Graph:
    x = data("N", 8)
    q, scale, zero = F.dynamic_quantize_linear(x)
    total = F.cast(F.mat_mul_integer(q, weights(8, 4, dtype=np.int8), zero), to="float32")
    return Graph([x], [F.mul(total, F.mul(scale, np.float32(0.01)))])


def biased_integer_product() -> Graph:
    a = data(3, 4, dtype="uint8")
    product = F.mat_mul_integer_to_float(a, weights(4, 2, dtype=np.int8), np.float32(0.25), np.float32(0.5))
    return Graph([a], [F.add(product, weights(2))])


def outer_taps() -> Graph:
    """A convolution whose outer taps read padding only."""
    x = data(1, 1, 2, 2)
    return Graph([x], [F.conv(x, weights(1, 1, 3, 3), pads=(4, 4, 4, 4), dilations=(4, 4))])


def quantised_conv() -> Graph:
    x = data("N", 3, 8, 8)
    at = np.float32(0.02), np.uint8(120)

    def rounded(v: Any) -> Any:
        return F.dequantize_linear(F.quantize_linear(v, *at), *at)

    w = F.dequantize_linear(weights(4, 3, 3, 3, dtype=np.int8), np.float32(0.01))
    return Graph([x], [rounded(F.conv(rounded(x), w))])


def packed_product() -> Graph:
    x = data("N", 32)
    return Graph([x], [F.mat_mul(x, F.dequantize_linear(weights(32, 5, dtype=np.int8), weights(5), axis=1))])


# --- sequences --------------------------------------------------------------------------------------------


def element_sizes() -> Graph:
    x = data(2, 3)
    return Graph([x], [Node(SequenceElementSizes(axis=0), [F.sequence_construct(x, x)]).output])


_OF_ONE: dict[str, Callable[[Value], Any]] = {
    "softmax": softmax,
    "log of softmax": lambda x: F.log(F.softmax(x)),
    "gelu": gelu,
    "gelu of tanh": gelu_of_tanh,
    "layer norm": layer_norm,
    "scaled layer norm": lambda x: F.mul(
        F.layer_normalization(x, constant(np.ones(4, np.float32)), axis=-1)[0], weights(4)
    ),
    "scaled rms norm": lambda x: F.mul(F.rms_normalization(x, constant(np.ones(4, np.float32)), axis=-1), weights(4)),
    "swish": lambda x: F.mul(x, F.sigmoid(x)),
    "hard swish": lambda x: F.mul(x, F.hard_sigmoid(x, alpha=1 / 6, beta=0.5)),
    "hard swish of clip": lambda x: F.mul(
        x, F.div(F.clip(F.add(x, np.float32(3.0)), np.float32(0.0), np.float32(6.0)), np.float32(6.0))
    ),
    "hard sigmoid": lambda x: F.div(
        F.clip(F.add(x, np.float32(3.0)), np.float32(0.0), np.float32(6.0)), np.float32(6.0)
    ),
    "product of clip": lambda x: F.mul(
        F.clip(F.add(x, np.float32(3.0)), np.float32(0.0), np.float32(6.0)), np.float32(1 / 6)
    ),
    "clipped relu": lambda x: F.clip(F.relu(x), np.float32(0.0), np.float32(6.0)),
    "mish": lambda x: F.mul(x, F.tanh(F.softplus(x))),
    "upper bound": lambda x: F.min(x, np.float32(2.0)),
    "lower bound": lambda x: F.max(x, np.float32(-2.0)),
    "clip at 0": lambda x: F.clip(x, np.float32(0.0)),
    "product of multiple": lambda x: F.mat_mul(F.mul(x, np.float32(0.5)), weights(4, 5)),
    "product of quotient": lambda x: F.mat_mul(F.div(x, np.float32(2.0)), weights(4, 5)),
    "scaled product": lambda x: F.mul(F.mat_mul(x, weights(4, 5)), weights(5)),
    "fused product with bias": lambda x: F.add(F.fused_mat_mul(x, weights(4, 5)), weights(5)),
    "flattened twice": lambda x: F.flatten(F.flatten(x, axis=2), axis=0),
    "reshaped twice": lambda x: F.exp(F.reshape(F.reshape(x, ints(-1, 12)), ints(-1, 6))),
    "transposed twice": lambda x: F.transpose(F.transpose(x, perm=(1, 0, 2)), perm=(1, 2, 0)),
    "transposed to the same order": lambda x: F.exp(F.transpose(x, perm=(0, 1, 2))),
    "reversed column": lambda x: F.transpose(F.reduce_sum(x, ints(0, 2))),
    "zero added": lambda x: F.add(F.exp(x), np.float32(-0.0)),
    "zero subtracted": lambda x: F.sub(F.exp(x), np.float32(0.0)),
    "multiplied by one": lambda x: F.mul(F.exp(x), np.float32(1.0)),
    "divided by one": lambda x: F.div(F.exp(x), np.float32(1.0)),
    "equal constants": lambda x: F.pow(F.pow(x, constant(np.float32(3.0))), constant(np.float32(3.0))),
    "more axes twice": lambda x: F.unsqueeze(F.unsqueeze(x, ints(0)), ints(2)),
    "fewer axes twice": lambda x: F.squeeze(F.squeeze(F.reduce_sum(x, ints(1, 2)), ints(2)), ints(1)),
    "expanded addend": lambda x: F.add(F.expand(F.reduce_sum(x, ints(1)), ints(1, 3, 1)), x),
    "element": lambda x: F.sequence_at(F.sequence_construct(x, F.exp(x)), np.int64(1)),
    "joined sequence": lambda x: F.concat_from_sequence(F.sequence_construct(x, F.exp(x)), axis=1),
    "length of rows": lambda x: F.sequence_length(F.split_to_sequence(x, axis=0)),
    "value of optional": lambda x: F.exp(F.optional_get_element(F.optional(x))),
    "presence in optional": lambda x: F.optional_has_element(F.optional(x)),
}

_GRAPHS: dict[str, Callable[[], Graph]] = {
    "branches": branches,
    "chosen branch": chosen_branch,
    "loops": loops,
    "counting loop": counting_loop,
    "scans": scans,
    "lstm": lambda: recurrence(F.lstm, 4),
    "gru": lambda: recurrence(F.gru, 3),
    "rnn": lambda: recurrence(F.rnn, 1),
    "attention": attention,
    "cached attention": cached_attention,
    "expanded heads": lambda: shared_heads(lambda x: F.expand(x, ints(1, 1, 3, 1, 1))),
    "tiled heads": lambda: shared_heads(lambda x: F.tile(x, ints(1, 1, 3, 1, 1))),
    "shared products": shared_products,
    "masked attention": masked_attention,
    "masked attention with statistics": masked_attention_with_statistics,
    "masked attention gradient": masked_attention_gradient,
    "softmax gradient": softmax_gradient,
    "loss": loss,
    "batch norm": batch_norm,
    "rounded layer norm": rounded_layer_norm,
    "transposed matrices": transposed_matrices,
    "table update": table_update,
    "ngrams": ngrams,
    "labels": lambda: encoders(lambda x: F.label_encoder(x, keys_strings=["a", "b"], values_int64s=[1, 2]), 1),
    "one hot": lambda: encoders(lambda x: F.one_hot_encoder(x, cats_strings=["a", "b"]), 2),
    "dynamic product": dynamic_product,
    "biased integer product": biased_integer_product,
    "quantised conv": quantised_conv,
    "packed product": packed_product,
    "element sizes": element_sizes,
    "outer taps": outer_taps,
}


def deciding_graphs() -> Iterator[Graph]:
    for build in _GRAPHS.values():
        yield build()
    for of_one in _OF_ONE.values():
        x = data("N", 3, 4)
        yield Graph([x], [of_one(x)])
    x = data(2, 3, 6, 6)
    yield Graph([x], [F.relu(F.fused_conv(x, weights(4, 3, 3, 3)))])
