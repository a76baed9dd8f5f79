"""Random programs with random placements: every rank has the results of one process, and none waits forever."""

from __future__ import annotations

import random

import numpy as np
import pytest
from combinations import full
from graphs_on_ranks import NORMAL, alone, group, normal, run_part

import graphkit as gk
from graphkit.autodiff.reverse_mode import gradient
from graphkit.ops import F

GROUPS = "abc"


class Program:
    """A program on arrays [N, 3]. Its nodes are in random groups, or in none."""

    def __init__(self, seed):
        self._random, self._parameters, self._left = random.Random(seed), 0, 14
        x = gk.input("x", ["N", 3])
        pool = [x]
        for _ in range(self._random.randint(3, 6)):
            pool.append(self._step(pool, 0))
        y = pool[-1] + self._random.choice(pool)
        loss = gk.reduce_mean(y * y, keepdims=False)
        inputs = gk.Model({"loss": loss}).graph.inputs
        found = gradient([loss], inputs, allow_unused=True)
        self.net = gk.Model({"y": y, "loss": loss, **{f"d{i}": g for i, g in enumerate(found)}}, seed=seed)

    def _scope(self):
        name = self._random.choice([*GROUPS, *GROUPS, None])
        return gk.attr_scope() if name is None else group(name)

    def _pick(self, pool):
        return self._random.choice(pool[-4:])

    def _step(self, pool, depth):
        self._left -= 1
        plain = [self._unary, self._binary, self._linear, self._rows, self._numbers]
        control = [self._cond, self._while, self._for, self._scan]
        made = self._random.choice([*plain, *(2 * control if depth < 2 and self._left > 0 else ())])
        if made in plain:
            with self._scope():
                return made(pool)
        # Mostly, control flow is in no group, and what is inside is in several.
        with self._scope() if self._random.random() < 0.2 else gk.attr_scope():
            return made(pool, depth)

    def _unary(self, pool):
        functions = [gk.tanh, gk.sigmoid, lambda v: v * 0.5, lambda v: gk.relu(v) - 0.1 * v]
        return self._random.choice(functions)(self._pick(pool))

    def _binary(self, pool):
        a, b = self._pick(pool), self._pick(pool)
        return gk.tanh(a + b) if self._random.random() < 0.5 else gk.tanh(a * b) - b

    def _linear(self, pool):
        self._parameters += 1
        return gk.tanh(F.mat_mul(self._pick(pool), gk.parameter(f"w{self._parameters}", [3, 3], NORMAL)))

    def _rows(self, pool):
        """Select rows. Their number depends on data."""
        x = self._pick(pool)
        places = F.squeeze(F.non_zero(F.greater(x[:, 0], np.float32(0))), np.array([0]))
        chosen = F.gather(x, places, axis=0)
        with self._scope():
            chosen = gk.tanh(chosen)
        return self._pick(pool) + 0.1 * gk.reduce_sum(chosen, axes=np.array([0]), keepdims=True)

    def _numbers(self, pool):
        """A whole number, which crosses."""
        x = self._pick(pool)
        count = gk.reduce_sum(F.cast(F.greater(x, np.float32(0)), to="int64"), keepdims=False)
        with self._scope():
            count = F.cast(count, to="float32")
            count = count / (count + 1.0)
        return x * count

    def _block(self, pool, depth):
        pool = list(pool)
        for _ in range(self._random.randint(1, 3)):
            pool.append(self._step(pool, depth + 1))
        return pool[-1]

    def _cond(self, pool, depth):
        with self._scope():
            chosen = F.greater(gk.reduce_sum(self._pick(pool), keepdims=False), np.float32(self._random.uniform(-1, 1)))

        def other():
            return self._block(pool, depth) if self._random.random() < 0.8 else self._pick(pool)

        return gk.cond(chosen, lambda: self._block(pool, depth), other)

    def _while(self, pool, depth):
        limit = np.float32(self._random.uniform(0.5, 4))

        def going(state):
            with self._scope():
                return F.less(gk.reduce_sum(state[1] * state[1], keepdims=False), limit)

        def body(state):
            y = self._block([*pool, state[1]], depth)
            with self._scope():
                return state[0] + 1, y + state[1] * 1.1

        start = (np.int64(0), self._pick(pool))
        return gk.tanh(gk.while_loop(going, body, start, self._random.randint(1, 4))[1])

    def _for(self, pool, depth):
        """As often as is known, none included; its states take turns."""
        count = np.int64(self._random.randint(0, 3))

        def body(state):
            number, a, b = state
            return number + 1, b, self._block([*pool, a, b], depth)

        start = (np.int64(0), self._pick(pool), self._pick(pool))
        _, a, b = gk.while_loop(lambda state: F.less(state[0], count), body, start)
        return a + b

    def _scan(self, pool, depth):
        with self._scope():
            parts = [F.unsqueeze(self._pick(pool), np.array([0])) for _ in range(self._random.randint(1, 3))]
            xs = F.concat(*parts, axis=0)

        def cell(carry, row):
            y = self._block([*pool, carry, row], depth)
            with self._scope():
                return gk.tanh(y + carry), y

        carry, ys = gk.scan(cell, self._pick(pool), xs, reverse=self._random.random() < 0.3)
        return carry + 0.1 * gk.reduce_sum(ys, axes=np.array([0]), keepdims=False)


def check(on_ranks, seed):
    """How many values were sent."""
    net, chance = Program(seed).net, random.Random(f"placement {seed}")
    ranks = chance.choice([2, 3])
    groups, window = {name: chance.randrange(ranks) for name in GROUPS}, chance.choice([2, 3, 32])
    batches = [{"x": normal(n, 3, seed=seed + n)} for n in (2, 5, 0, 1)]
    expected = alone(net, batches)
    sent = 0
    for found, channels in on_ranks(lambda store: run_part(store, net, groups, batches, window=window), ranks):
        sent += sum(channels.sent.values())
        for results, whole in zip(found, expected, strict=True):
            assert results.keys() == whole.keys()
            for name, array in whole.items():
                np.testing.assert_allclose(results[name], array, rtol=2e-5, atol=2e-6, err_msg=f"{name} of {seed}")
    return sent


@pytest.mark.parametrize(("first", "end"), [(0, 3), full(3, 6), *(full(n, n + 20) for n in range(6, 66, 20))])
def test_random_programs(on_ranks, first, end):
    assert sum(check(on_ranks, seed) for seed in range(first, end)) > 10 * (end - first)
