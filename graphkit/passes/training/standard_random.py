"""Write random nodes as standard operators, so that exported files draw graphkit's random numbers.

ONNX has no random operator whose seed is an input. So each node becomes the generator Philox4x32-10 in integer
operators (see `graphkit.ops.math.philox`). The numbers are those of graphkit: a function of the state, the stream of
the node and the index of the element. All arithmetic is int64 without overflow, because ONNX Runtime implements int64
for every operator that is used here. BitwiseXor needs opset 18.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, Op, operator
from graphkit.ops.math import philox
from graphkit.ops.math.random import Bernoulli, Dropout, Multinomial, Normal, RandomOp, RngFoldIn, Uniform
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.sweep import map_subgraphs, rewrite

_HALF, _WORD = 1 << 16, 1 << 32
_SCALAR = np.zeros(0, np.int64)  # the shape of a scalar


def standard_random(graph: Graph) -> Graph:
    """Return the graph with standard operators instead of random nodes, subgraphs included.

    Random nodes must be connected to a state (see `bind_rng`). Other nodes are kept.

    Raises:
        UnsupportedError: A node has its own seed. It then draws numbers of numpy's generator.
    """
    generators: dict[Value, _Generator] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.subgraphs() and any(_draws(inner) for inner in node.op.subgraphs().values()):
            return map_subgraphs(node, operands, standard_random).outputs
        if isinstance(node.op, RngFoldIn):
            folded, index = (v for v in operands if v is not None)
            return [_generator(folded, generators).folded(index)]
        if not isinstance(node.op, RandomOp):
            return None
        given = dict(zip((f.name for f in node.op.formals), operands, strict=False))
        state = given.pop("rng", None)
        if state is None:
            return None
        if node.op.own_seed is not None:
            raise UnsupportedError(
                f"{node.describe()}: it has a seed of its own, and such numbers cannot be computed by standard "
                "operators: remove the attribute `seed` of the node"
            )
        return _drawn(node, node.op, given, _generator(state, generators))

    return rewrite(graph, rule)


def _draws(graph: Graph) -> bool:
    return any(isinstance(node.op, RngFoldIn) or is_random(node.op) for node in graph.nodes)


def _generator(state: Value, known: dict[Value, _Generator]) -> _Generator:
    if state not in known:
        known[state] = _Generator(state)
    return known[state]


def _integer(number: Any) -> Value:
    value: Value = F.constant(value=np.asarray(number, np.int64))
    return value


def _modulo(number: Value, divisor: int) -> Value:
    value: Value = F.mod(number, _integer(divisor))  # from 0 to divisor - 1, also for a negative number
    return value


def _quotient(number: Value, divisor: int) -> Value:
    """Return number / divisor for a number of at least 0."""
    value: Value = F.div(number, _integer(divisor))
    return value


class _Generator:
    """Random words of one state (seed, step) as graph values.

    Args:
        state: uint64 [2].
    """

    def __init__(self, state: Value):
        signed = F.cast(state, to="int64")
        low = _modulo(signed, _WORD)
        high = _modulo(F.div(F.sub(signed, low), _integer(_WORD)), _WORD)
        halves = F.concat(F.unsqueeze(low, [1]), F.unsqueeze(high, [1]), axis=1)  # [(seed, step), (low, high)]
        seed, step = F.split(halves, num_outputs=2, axis=0)
        key = F.reshape(seed, [2, 1])
        weyl = np.array(philox.WEYL, np.int64).reshape(2, 1)
        turns = [np.mod(weyl * turn, _WORD) for turn in range(philox.ROUNDS)]
        # The key of each round.
        self._keys = [key, *(_modulo(F.add(key, _integer(w)), _WORD) for w in turns[1:])]
        self._step = [F.reshape(half, [1, 1]) for half in F.split(F.reshape(step, [2]), num_outputs=2, axis=0)]

    def blocks(self, stream: int, first: Value) -> Value:
        """Return four words for each block number. first: int64 [B]. Result: int64 [B, 4]."""
        low, high = self._step
        row = F.unsqueeze(first, [0])
        # x contains the words 0 and 2 of the counter, y the words 1 and 3.
        x = F.concat(row, F.add(F.mul(row, _integer(0)), low), axis=0)
        y = F.concat(_integer([[stream]]), high, axis=0)
        factors = _integer(np.array(philox.MULTIPLIERS).reshape(2, 1))
        swap = _integer([1, 0])
        for key in self._keys:
            upper, lower = _product(x, factors)
            x = F.bitwise_xor(F.bitwise_xor(F.gather(upper, swap, axis=0), y), key)
            y = F.gather(lower, swap, axis=0)
        both = F.concat(F.unsqueeze(x, [1]), F.unsqueeze(y, [1]), axis=1)  # [2, (x, y), B]
        found: Value = F.reshape(F.transpose(both, perm=(2, 0, 1)), [-1, 4])
        return found

    def words(self, stream: int, count: Value) -> Value:
        """Return int64 [count] words from 0 to 2**32 - 1. count: int64 []."""
        number = _quotient(F.add(count, _integer(3)), 4)
        flat = F.reshape(self.blocks(stream, F.range(_integer(0), number, _integer(1))), [-1])
        found: Value = F.slice(flat, _integer([0]), F.reshape(count, [1]), _integer([0]))
        return found

    def folded(self, index: Value) -> Value:
        """Return the state of `RngFoldIn`: uint64 [2]."""
        number = _modulo(F.reshape(F.cast(index, to="int64"), [1]), _WORD)
        low, high = F.split(F.reshape(self.blocks(philox.FOLD_STREAM, number), [2, 2]), num_outputs=2, axis=1)
        # The upper word as a signed number, so that the sum fits into int64.
        signed = F.where(F.greater_or_equal(high, _integer(_WORD // 2)), F.sub(high, _integer(_WORD)), high)
        found: Value = F.cast(F.reshape(F.add(F.mul(signed, _integer(_WORD)), low), [2]), to="uint64")
        return found

    def uniform(self, stream: int, shape: Value, bits: int) -> Value:
        """Return numbers in [0, 1): float32 with 24 bits, or float64 with 53. shape: int64 [rank]."""
        count = F.reduce_prod(shape, keepdims=False)
        if bits == 24:
            drawn = F.cast(_quotient(self.words(stream, count), 1 << 8), to="float32")
            found: Value = F.reshape(F.mul(drawn, F.constant(value=np.float32(2.0**-24))), shape, allowzero=True)
            return found
        words = F.reshape(self.words(stream, F.mul(count, _integer(2))), [-1, 2])
        high, low = F.split(words, num_outputs=2, axis=1)
        found = F.reshape(_fraction53(high, low), shape, allowzero=True)
        return found

    def normal(self, stream: int, shape: Value, bits: int) -> Value:
        """Return standard normals, float64. See `philox.normal`."""
        count = F.reduce_prod(shape, keepdims=False)
        pairs = _quotient(F.add(count, _integer(1)), 2)
        if bits == 24:
            drawn = F.cast(F.reshape(self.words(stream, F.mul(pairs, _integer(2))), [-1, 2]), to="float64")
            radial, turn = F.split(F.mul(drawn, np.asarray(2.0**-32)), num_outputs=2, axis=1)
            unit = 2.0**-32
        else:
            words = F.reshape(self.words(stream, F.mul(pairs, _integer(4))), [-1, 4])
            columns = F.split(words, num_outputs=4, axis=1)
            radial, turn = (_fraction53(columns[i], columns[i + 1]) for i in (0, 2))
            unit = 2.0**-53
        radius = F.sqrt(F.mul(F.log(F.add(radial, np.asarray(unit))), np.asarray(-2.0)))
        angle = F.mul(turn, np.asarray(2.0 * math.pi))
        both = F.concat(F.mul(radius, F.cos(angle)), F.mul(radius, F.sin(angle)), axis=1)
        flat = F.slice(F.reshape(both, [-1]), _integer([0]), F.reshape(count, [1]), _integer([0]))
        found: Value = F.reshape(flat, shape, allowzero=True)
        return found


def _product(words: Value, factors: Value) -> tuple[Value, Value]:
    """Return the upper and the lower word of 64-bit products. No intermediate result reaches 2**63."""
    low = F.mul(_modulo(words, _HALF), factors)
    high = F.mul(_quotient(words, _HALF), factors)
    upper = _quotient(F.add(high, _quotient(low, _HALF)), _HALF)
    lower = _modulo(F.add(F.mul(_modulo(high, _HALF), _integer(_HALF)), low), _WORD)
    return upper, lower


def _fraction53(high: Value, low: Value) -> Value:
    whole = F.add(F.mul(_quotient(high, 1 << 5), _integer(1 << 26)), _quotient(low, 1 << 6))
    found: Value = F.mul(F.cast(whole, to="float64"), np.asarray(2.0**-53))
    return found


def _bits(dtype: DType) -> int:
    return 53 if dtype is DType.FLOAT64 else 24


def _drawn(node: Node, op: RandomOp, given: dict[str, Value | None], rng: _Generator) -> Sequence[Value]:
    """Return the outputs of a random node. given: its operands by name, without the state."""
    if isinstance(op, Dropout):
        return _dropout(op, given, rng)
    x = given.get("data", given.get("x"))
    kind = node.outputs[0].tensor
    if isinstance(op, Bernoulli):
        assert x is not None, "it is required"
        u = rng.uniform(op.stream, F.shape(x), _bits(x.dtype))
        return [F.cast(F.less(u, F.cast(x, to=u.dtype)), to=kind.dtype)]
    if isinstance(op, Multinomial):
        assert x is not None, "it is required"
        return [_multinomial(op, x, rng)]
    shape = _integer(list(kind.static_shape)) if x is None else F.shape(x)
    if isinstance(op, Uniform):
        u = F.cast(rng.uniform(op.stream, shape, _bits(kind.dtype)), to="float64")
        return [F.cast(F.add(F.mul(u, np.asarray(op.high - op.low)), np.asarray(op.low)), to=kind.dtype)]
    if isinstance(op, Normal):
        z = rng.normal(op.stream, shape, _bits(kind.dtype))
        return [F.cast(F.add(F.mul(z, np.asarray(op.scale)), np.asarray(op.mean)), to=kind.dtype)]
    raise UnsupportedError(
        f"{node.describe()}: {operator(node, Op).name} cannot be computed by standard operators from a random state"
    )


def _dropout(op: Dropout, given: dict[str, Value | None], rng: _Generator) -> Sequence[Value]:
    data, ratio, mode = given["data"], given.get("ratio"), given.get("training_mode")
    assert data is not None, "it is required"
    if mode is None:
        return [F.identity(data), _all_true(data)]
    rate = F.constant(value=np.float32(0.5)) if ratio is None else F.reshape(F.cast(ratio, to="float32"), _SCALAR)
    kept = F.greater_or_equal(rng.uniform(op.stream, F.shape(data), 24), rate)
    one = F.constant(value=np.float32(1))
    nothing = F.equal(rate, one)
    scale = F.where(nothing, F.constant(value=np.float32(0)), F.div(one, F.where(nothing, one, F.sub(one, rate))))
    wide = F.cast(data, to="float32") if data.dtype is not DType.FLOAT64 else data
    scaled = F.cast(F.mul(wide, F.cast(scale, to=wide.dtype)), to=data.dtype)
    dropped = F.where(kept, scaled, F.constant(value=np.zeros((), data.dtype.numpy)))
    if mode.tensor.constants == (1,):
        return [dropped, kept]
    training = F.reshape(mode, _SCALAR)
    return [F.where(training, dropped, data), F.or_(kept, F.not_(training))]


def _all_true(data: Value) -> Value:
    found: Value = F.expand(F.constant(value=np.asarray(True)), F.shape(data))
    return found


def _multinomial(op: Multinomial, x: Value, rng: _Generator) -> Value:
    rows = F.slice(F.shape(x), _integer([0]), _integer([1]), _integer([0]))
    u = F.cast(rng.uniform(op.stream, F.concat(rows, _integer([op.sample_size]), axis=0), _bits(x.dtype)), to="float64")
    wide = F.cast(x, to="float64")
    weights = F.exp(F.sub(wide, F.reduce_max(wide, [1], keepdims=True)))
    total = F.cum_sum(weights, _integer(1))
    last = F.slice(total, _integer([-1]), _integer([np.iinfo(np.int64).max]), _integer([1]))
    passed = F.less_or_equal(F.unsqueeze(total, [1]), F.unsqueeze(F.mul(u, last), [2]))
    found: Value = F.cast(F.reduce_sum(F.cast(passed, to="int64"), [2], keepdims=False), to=op.dtype)
    return found
