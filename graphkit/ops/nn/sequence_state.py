"""Operators that carry a state along a sequence, so that it can be continued: linear attention, causal convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import i64
from graphkit.ops.nn.activation import stable_sigmoid
from graphkit.ops.nn.attention import needs_ranks
from graphkit.ops.nn.heads import merge_heads, split_heads
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like

_RULES = ("linear", "gated", "delta", "gated_delta")
_DECAY = Rand((2, 3, 2), -1.0, 0.0)
_RATE = Rand((2, 3, 2), 0.0, 1.0)
_GATED_DELTA: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2}


@op
class LinearAttention(Op):
    """Linear attention: o[t] = scale * q[t] S[t], where the matrix S [D, E] is a recurrence over keys and values.

    Per head, with row vectors q, k and v: S[t] = P + k[t]^T u, where P is S[t-1] or, for "gated" and "gated_delta",
    exp(decay[t]) S[t-1]; and u is v[t] or, for "delta" and "gated_delta", beta[t] (v[t] - k[t] P). The attribute
    `update_rule` is one of these three names, or "linear". Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464.

    query: [B, T, H * D], key: [B, T, G * D], value: [B, T, G * E]; H is a multiple of G. decay: [B, T, G] or [B, T, G *
    D]; beta: [B, T, G] or [B, T, 1]; past_state: [B, G, D, E], zeros when absent. scale: 0 means 1 / sqrt(D). Outputs:
    [B, T, H * E] and the last state. chunk_size does not change results.
    """

    chunk_size: int = 64
    kv_num_heads: int
    q_num_heads: int
    scale: float = 0.0
    update_rule: str = "gated_delta"
    inputs = ("query", "key", "value", "past_state?", "decay?", "beta?")
    outputs = ("output", "present_state")
    types = {
        "query": FLOATS,
        "key": "query",
        "value": "query",
        "past_state": FLOATS,
        "decay": "query",
        "beta": "query",
    }
    onnx = Onnx("LinearAttention", since=27)
    composite = True
    samples = lambda: (
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 6), (2, 2, 2, 3), _DECAY, _RATE, **_GATED_DELTA),
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 6), None, Rand((2, 3, 4), -1.0, 0.0), Rand((2, 3, 1)), **_GATED_DELTA),
        Sample(
            (2, 3, 8), (2, 3, 4), (2, 3, 4), None, _DECAY,
            q_num_heads=4, kv_num_heads=2, update_rule="gated", scale=0.5,
        ),
        Sample(
            (2, 3, 4), (2, 3, 4), (2, 3, 4), None, None, _RATE,
            q_num_heads=2, kv_num_heads=2, update_rule="delta",
        ),
        Sample((1, 1, 2), (1, 1, 2), (1, 1, 3), q_num_heads=1, kv_num_heads=1, update_rule="linear"),
    )  # fmt: skip

    @property
    def _gated(self) -> bool:
        return self.update_rule in ("gated", "gated_delta")

    @property
    def _corrects(self) -> bool:
        return self.update_rule in ("delta", "gated_delta")

    def infer(self, query: TensorType, key: TensorType, value: TensorType, *others: TensorType | None) -> Any:
        past, decay, beta = (*others, None, None, None)[:3]
        heads, groups = self.q_num_heads, self.kv_num_heads
        if self.update_rule not in _RULES:
            raise UsageError(f"update_rule must be one of {', '.join(_RULES)}, not {self.update_rule!r}")
        if heads < 1 or groups < 1 or heads % groups:
            raise UsageError(f"{heads} heads of queries are not a multiple of {groups} heads of keys")
        if (decay is not None) is not self._gated or (beta is not None) is not self._corrects:
            raise TypeMismatch(
                f"update_rule {self.update_rule!r} needs {'decay' if self._gated else 'no decay'} and "
                f"{'beta' if self._corrects else 'no beta'}"
            )
        for x in (query, key, value, decay, beta):
            if x is not None and x.rank not in (None, 3):
                raise TypeMismatch(f"{x} is not [batch, length, heads * size]")
        state = query.dtype if past is None else past.dtype
        if query.shape is None or key.shape is None or value.shape is None:
            return TensorType(query.dtype), TensorType(state)
        depth, width = dims.floordiv(key.shape[2], groups), dims.floordiv(value.shape[2], groups)
        if not dims.may_equal(query.shape[2], heads * depth) or not dims.may_equal(key.shape[1], value.shape[1]):
            raise TypeMismatch(f"query {query}, key {key} and value {value} do not fit {heads} and {groups} heads")
        batch, length, _ = query.shape
        return (
            TensorType(query.dtype, (batch, length, heads * width)),
            TensorType(state, (batch, groups, depth, width)),
        )

    def reference(self, xp: Any, query: Any, key: Any, value: Any, *others: Any) -> Any:
        past, decay, beta = (*others, None, None, None)[:3]
        groups = self.kv_num_heads
        batch, length, _ = query.shape
        q = query.reshape(batch, length, groups, self.q_num_heads // groups, key.shape[2] // groups)
        k, v = (x.reshape(batch, length, groups, x.shape[2] // groups) for x in (key, value))
        factor = None if decay is None else xp.exp(decay.reshape(batch, length, groups, -1))[..., None]
        state = xp.zeros((batch, groups, k.shape[3], v.shape[3]), query.dtype) if past is None else past
        read = []
        for t in range(length):
            if factor is not None:
                state = state * factor[:, t]
            row, column = v[:, t, :, None], k[:, t, :, :, None]
            if beta is not None:
                row = beta[:, t, :, None, None] * (row - xp.matmul(k[:, t, :, None], state))
            state = state + column * row
            read.append(xp.matmul(q[:, t], state))
        scale = self.scale or max(k.shape[3], 1) ** -0.5
        output = xp.stack(read, axis=1) if read else xp.zeros((*q.shape[:4], v.shape[3]), query.dtype)
        return output.reshape(batch, length, self.q_num_heads * v.shape[3]) * scale, state

    def expand(self, query: Any, key: Any, value: Any, *others: Any) -> Any:
        needs_ranks(self.name, query, key, value)
        past, decay, beta = (*others, None, None, None)[:3]
        groups, wide = self.kv_num_heads, wide_type(query.dtype)
        q, k, v = (split_heads(converted(x, wide), groups) for x in (query, key, value))
        depth, width = F.shape(k)[3:], F.shape(v)[3:]
        if past is None:
            state = F.expand(scalar_like(0.0, k), F.concat(F.shape(k)[:1], i64(groups), depth, width, axis=0))
        else:
            state = converted(past, wide)
        # Operands of one time step: q [B, G, H / G, D], k as column [B, G, D, 1], v as row [B, G, 1, E].
        q = F.reshape(q, F.concat(F.shape(q)[:3], i64(self.q_num_heads // groups), depth, axis=0), allowzero=True)
        steps = [q, F.unsqueeze(k, i64(-1)), F.unsqueeze(v, i64(-2))]
        if decay is not None:
            factor = F.exp(split_heads(converted(decay, wide), groups))
            steps.append(F.unsqueeze(factor, i64(-1)))
        if beta is not None:
            steps.append(F.unsqueeze(converted(beta, wide), i64(-1, -2)))
        body = self._step(state, steps)
        present, read = F.scan(
            state,
            *steps,
            body=body,
            num_scan_inputs=len(steps),
            scan_input_axes=(1,) * len(steps),
            scan_output_axes=(1,),
        )
        size = F.max(F.cast(depth, to=wide), scalar_like(1.0, read))
        read = read * scalar_like(self.scale, read) if self.scale else read / F.sqrt(size)
        joined = F.concat(F.shape(q)[:2], i64(self.q_num_heads), width, axis=0)
        output = merge_heads(F.reshape(read, joined, allowzero=True))
        return converted(output, query.dtype), converted(present, query.dtype if past is None else past.dtype)

    def _step(self, initial: Any, steps: list[Any]) -> Graph:
        """Build the step for one token: (state, q, k, v, decay, beta) -> (new state, output for the queries)."""
        state: Any = Value(TensorType(initial.dtype, initial.shape), "state")
        slices: Any = [Value(TensorType(s.dtype, (s.shape[0], *s.shape[2:])), f"step{i}") for i, s in enumerate(steps)]
        q, column, row, *gates = slices
        before = state
        if self._gated:
            before = F.mul(before, gates.pop(0))
        if self._corrects:
            found = F.mat_mul(F.transpose(column, perm=(0, 1, 3, 2)), before)
            row = F.mul(gates.pop(0), F.sub(row, found))
        after = F.add(before, F.mul(column, row))
        return Graph([state, *slices], [after, F.mat_mul(q, after)], name="token")


@op
class CausalConvWithState(Op):
    """Causal convolution: each channel with its own kernel, over the present and earlier positions.

    x: [B, C, L]; weight: [C, 1, k]; bias: [C]; past_state: [B, C, k - 1], the positions before x, zeros when absent.
    activation: "none", or "silu" ("swish"): y * sigmoid(y). Outputs: y [B, C, L] and the last k - 1 positions.
    """

    activation: str = "none"
    inputs = ("x", "weight", "bias?", "past_state?")
    outputs = ("y", "present_state")
    types = {"x": FLOATS, "weight": "x", "bias": "x", "past_state": "x"}
    onnx = Onnx("CausalConvWithState", since=27)
    composite = True
    samples = lambda: (
        Sample((2, 3, 5), (3, 1, 4), (3,), (2, 3, 3)),
        Sample((2, 3, 5), (3, 1, 2), activation="silu"),
        Sample((1, 2, 2), (2, 1, 4), None, (1, 2, 3), activation="swish"),
        Sample((2, 1, 4), (1, 1, 1), (1,)),
    )

    def infer(
        self, x: TensorType, weight: TensorType, bias: TensorType | None = None, past_state: TensorType | None = None
    ) -> Any:
        if self.activation not in ("none", "silu", "swish"):
            raise UsageError(f"activation must be 'none', 'silu' or 'swish', not {self.activation!r}")
        if any(t is not None and t.rank not in (None, 3) for t in (x, weight, past_state)):
            raise TypeMismatch(f"x, weight and past_state must have three axes, not {x}, {weight} and {past_state}")
        if x.shape is None:
            return TensorType(x.dtype), TensorType(x.dtype)
        length = dims.fresh() if weight.shape is None else weight.shape[2] - 1
        if weight.shape is not None and not dims.may_equal(weight.shape[0], x.shape[1]):
            raise TypeMismatch(f"weight {weight} must have one kernel for each channel of {x}")
        return TensorType(x.dtype, x.shape), TensorType(x.dtype, (*x.shape[:2], length))

    def reference(self, xp: Any, x: Any, weight: Any, bias: Any = None, past_state: Any = None) -> Any:
        batch, channels, length = x.shape
        before = weight.shape[2] - 1
        past = xp.zeros((batch, channels, before), x.dtype) if past_state is None else past_state
        padded = xp.concatenate((past, x), axis=2)
        y = sum(padded[:, :, j : j + length] * weight[:, 0, j, None] for j in range(before + 1))
        if bias is not None:
            y = y + bias[:, None]
        if self.activation != "none":
            y = y * stable_sigmoid(xp, y)
        return y, xp.array(padded[:, :, length:], order="C")

    def expand(self, x: Any, weight: Any, bias: Any = None, past_state: Any = None) -> Any:
        needs_ranks(self.name, x, weight)
        length, size = F.shape(x)[2:], F.shape(weight)[2:]
        if past_state is None:
            padded = F.pad(x, F.concat(F.sub(size, i64(1)), i64(0), axis=0), None, i64(2))
        else:
            padded = F.concat(past_state, x, axis=2)
        channels = weight.tensor.known_shape[0]
        if dims.is_static(channels):
            y = F.conv(padded, weight, bias, group=channels)
        else:
            zero, one = np.int64(0), np.int64(1)
            starts = F.unsqueeze(F.range(zero, F.squeeze(length), one), i64(1))
            windows = F.gather(padded, F.add(starts, F.range(zero, F.squeeze(size), one)), axis=2)
            y = F.reduce_sum(windows * weight, i64(-1), keepdims=False)
            y = y if bias is None else y + F.unsqueeze(bias, i64(1))
        if self.activation != "none":
            y = F.swish(y)
        return y, F.slice(padded, length, i64(np.iinfo(np.int64).max), i64(2))
