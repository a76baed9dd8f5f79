"""Attention of decoders: new keys and values are appended to those of earlier runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.attention_cache import fuse_attention_cache
from graphkit.passes.fuse.shared_heads import share_heads

HEADS, DEPTH = 2, 4
SIZES = {"N": 2, "L": 1, "P": 5}
PASSES = fuse_attention, share_heads, fuse_attention_cache


def data(name: str, rows: Any, heads: int = HEADS) -> Value:
    return Value(TensorType("float32", ("N", heads, rows, DEPTH)), name)


def inputs() -> list[Value]:
    return [data("q", "L"), data("k", "L"), data("v", "L"), data("past_k", "P"), data("past_v", "P")]


def attended(q: Any, k: Any, v: Any) -> Any:
    return F.mat_mul(F.softmax(F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), 0.5), axis=-1), v)


def joined(past: Any, new: Any, axis: int = 2) -> Any:
    return F.concat(past, new, axis=axis)


def test_joins_are_taken_in(apply: Any) -> None:
    given = q, k, v, past_k, past_v = inputs()
    keys, values = joined(past_k, k), joined(past_v, v, -2)
    kept: list[Graph] = []
    assert apply(given, [values, attended(q, keys, values), keys], *PASSES, keep=kept, **SIZES) == {
        "CachedAttention": 1
    }
    (node,) = kept[0].nodes
    assert list(node.operands) == list(kept[0].inputs)


def test_several_layers(apply: Any) -> None:
    """The second layer's queries, keys and values depend on the first one's attention."""
    given = [x for layer in range(2) for x in (data(f"past_k{layer}", "P"), data(f"past_v{layer}", "P"))]
    x = data("x", "L")
    hidden, results = x, []
    for layer in range(2):
        keys, values = (joined(given[2 * layer + i], F.mul(hidden, 1.0 + i)) for i in range(2))
        hidden = attended(F.tanh(hidden), keys, values)
        results += [keys, values]
    found = apply([x, *given], [*results, hidden], *PASSES, **SIZES)
    assert found["CachedAttention"] == 2
    assert "Concat" not in found


def _read_besides(keys: Any, values: Any, y: Any) -> list[Any]:
    return [y, keys, values, F.reduce_sum(keys, np.array([1]))]


def _not_returned(keys: Any, values: Any, y: Any) -> list[Any]:
    return [y, keys]


def _read_after_it(keys: Any, values: Any, y: Any) -> list[Any]:
    return [F.add(y, F.slice(values, np.array([0]), np.array([1]), np.array([2]))), keys, values]


@in_one_item()
@pytest.mark.parametrize("results", [_read_besides, _not_returned, _read_after_it])
def test_what_others_read_is_joined_before(apply: Any, results: Callable[..., list[Any]]) -> None:
    given = q, k, v, past_k, past_v = inputs()
    keys, values = joined(past_k, k), joined(past_v, v)
    found = apply(given, results(keys, values, attended(q, keys, values)), *PASSES, **SIZES)
    assert found["FusedAttention"] == 1
    assert found["Concat"] == 2


def test_other_joins(apply: Any) -> None:
    """Of three parts, and of heads."""
    given = q, k, v, past_k, past_v = inputs()
    keys, values = F.concat(past_k, past_k, k, axis=2), F.concat(past_v, past_v, v, axis=2)
    assert apply(given, [attended(q, keys, values), keys, values], *PASSES, **SIZES)["FusedAttention"] == 1
    given = q, k, v, past_k, past_v = [data("q", 5, 4), *(data(name, 5) for name in ("k", "v", "past_k", "past_v"))]
    keys, values = joined(past_k, k, 1), joined(past_v, v, 1)
    assert apply(given, [attended(q, keys, values), keys, values], *PASSES, **SIZES)["FusedAttention"] == 1


def test_one_join_of_both(apply: Any) -> None:
    q, k, _, past_k, _ = inputs()
    both = joined(past_k, k)
    found = apply([q, k, past_k], [attended(q, both, both), both], *PASSES, **SIZES)
    assert found == {"CachedAttention": 1}


def test_attention_twice_on_one_cache(apply: Any) -> None:
    given = q, k, v, past_k, past_v = inputs()
    keys, values = joined(past_k, k), joined(past_v, v)
    results = [attended(q, keys, values), attended(F.neg(q), keys, values), keys, values]
    found = apply(given, results, *PASSES, **SIZES)
    assert found["FusedAttention"] == 2


# --- in programs ------------------------------------------------------------------------------------


def decoder(heads: int, groups: int, *, masked: bool = False, causal: bool = False) -> gk.Model:
    """One layer. masked: by a mask whose size is asked of the joined keys, as exporters do."""
    q, k, v = (gk.input(n, ["N", h, "L", 8]) for n, h in (("q", heads), ("k", groups), ("v", groups)))
    past_k, past_v = (gk.input(n, ["N", groups, "P", 8]) for n in ("past_k", "past_v"))
    if not masked:
        y, keys, values, _ = gk.attention(q, k, v, None, past_k, past_v, is_causal=causal)
    else:
        keys, values = joined(past_k, k), joined(past_v, v)
        scores = F.mat_mul(q, F.transpose(keys, perm=(0, 1, 3, 2))) * 8**-0.5
        rows, size = F.shape(q, start=2, end=3), F.gather(F.shape(keys), np.array([2]))
        whole = F.constant_of_shape(F.expand(size, np.array([2])), value=np.ones(1, np.bool_))
        mask = F.slice(F.trilu(whole, upper=0), F.sub(size, rows), size, np.array([0]))
        y = F.mat_mul(F.softmax(F.where(mask, scores, np.float32(-1e9)), axis=-1), values)
    return gk.Model({"y": y, "keys": keys, "values": values})


def feeds_of(heads: int, groups: int, batch: int, rows: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    sizes = {"q": (heads, rows), "k": (groups, rows), "v": (groups, rows), "past_k": (groups, past)}
    sizes["past_v"] = sizes["past_k"]
    return {name: rng.standard_normal((batch, *size, 8)).astype(np.float32) for name, size in sizes.items()}


@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("heads", "groups", "options"),
    [(3, 3, {}), (4, 2, {"causal": True}), (10, 2, {}), (3, 3, {"masked": True}), (3, 3, {"causal": True})],
)
def test_a_cache_that_grows(heads: int, groups: int, options: dict[str, bool], threads: int) -> None:
    """From nothing, by a prompt, then by one token after another, as ONNX Runtime has it; nothing is joined first."""
    model = decoder(heads, groups, **options)
    session = onnxruntime.InferenceSession(model.to_onnx(opset=23).SerializeToString())
    executor = model.compile(threads=threads)
    past = feeds_of(heads, groups, 2, 1, 0)
    past = {name: past[name] for name in ("past_k", "past_v")}
    for rows in (7, 1, 1, 1, 90, 2, 3, 1, 1, 5, 1):
        new = {n: a for n, a in feeds_of(heads, groups, 2, rows, rows).items() if "past" not in n}
        found = executor.run({**new, **past})
        wanted = dict(zip(("y", "keys", "values"), session.run(["y", "keys", "values"], {**new, **past}), strict=True))
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
        assert (found["keys"] == wanted["keys"]).all()
        past = {"past_k": found["keys"], "past_v": found["values"]}
    steps = [step for step in executor.plan.steps if step.op in ("Concat", "ai.graphkit.CachedAttention")]
    assert [step.op for step in steps] == ["ai.graphkit.CachedAttention"]


def test_results_are_arrays_of_their_own() -> None:
    """The past is neither overwritten nor returned. `out` receives the whole result."""
    executor, feeds = decoder(3, 3).compile(threads=1), feeds_of(3, 3, 1, 1, 6)
    before = {name: array.copy() for name, array in feeds.items()}
    out = {"keys": np.empty((1, 3, 7, 8), np.float32)}
    first = executor.run(feeds, out=out)
    assert first["keys"] is out["keys"]
    second = executor.run(feeds)
    for name, array in before.items():
        assert (feeds[name] == array).all()
    assert not any(np.shares_memory(second[n], a) for n in ("keys", "values") for a in (*feeds.values(), *out.values()))
    np.testing.assert_array_equal(second["keys"], np.concatenate([feeds["past_k"], feeds["k"]], axis=2))


def test_not_a_number_in_the_past_stays_in_its_head() -> None:
    executor, feeds = decoder(3, 3).compile(threads=1), feeds_of(3, 3, 1, 1, 200)
    feeds["past_v"][0, 1, 150, 3] = np.nan
    feeds["past_k"][0, 2, 10, 0] = np.inf
    found = executor.run(feeds)
    np.testing.assert_array_equal(found["values"], np.concatenate([feeds["past_v"], feeds["v"]], axis=2))
    bad = np.isnan(found["y"][0, :, 0])
    assert not bad[0].any()
    assert bad[1].tolist() == [i == 3 for i in range(8)]


def test_threads_with_caches_of_their_own() -> None:
    executor = decoder(4, 2, causal=True).compile(threads=1)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            for past in range(seed, seed + 20):
                feeds = feeds_of(4, 2, 1, 1, past)
                whole = np.concatenate([feeds["past_k"], feeds["k"]], axis=2)
                np.testing.assert_array_equal(executor.run(feeds)["keys"], whole)
        except BaseException as error:  # noqa: BLE001 - the test's thread reports it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (0, 5, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
