"""Networks for tables and for users and items: their results, and training on small generated data."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk

TABLE = {"numbers": 2, "sizes": (6, 7, 3)}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")


def spread(net, seed=0):
    """Parameters that all matter, those that start as zeros too."""
    rng = np.random.default_rng(seed)
    for n in net.params:
        net.params[n] = (0.5 * rng.standard_normal(net.params[n].shape)).astype(np.float32)
    return net


def rows(count, rng):
    """x and categories of TABLE."""
    categories = np.stack([rng.integers(0, size, count) for size in TABLE["sizes"]], axis=1)
    return {"x": rng.standard_normal((count, 2)).astype(np.float32), "categories": categories}


def fit(net, feeds, target, epochs, rate=1e-2, **options):
    data = gk.data.Dataset(feeds, target)
    trainer = gk.Trainer(net, "sigmoid_binary_cross_entropy", gk.optim.Adam(rate), threads=1, seed=0, **options)
    trainer.fit(data, epochs=epochs, batch_size=64)


def accuracy(net, feeds, target):
    return ((net.run(feeds)["logits"] > 0) == (target > 0.5)).mean()


def relu_layers(p, name, h):
    i = 1
    while f"{name}{i}_weight" in p:
        h = np.maximum(h @ p[f"{name}{i}_weight"].T + p[f"{name}{i}_bias"], 0)
        i += 1
    return h


# --- wide_and_deep ----------------------------------------------------------------------------------


def test_wide_and_deep_is_its_equation():
    net = spread(gk.models.build("wide_and_deep", **TABLE, crosses=(0, 2, 1, 0), width=4, hidden=(5,), classes=2))
    p, feeds = net.params, rows(9, np.random.default_rng(1))
    x, c = feeds["x"], feeds["categories"]
    features = [x, *(np.eye(size, dtype=np.float32)[c[:, i]] for i, size in enumerate(TABLE["sizes"]))]
    crossed = [np.einsum("na,nb->nab", features[1 + i], features[1 + j]).reshape(9, -1) for i, j in ((0, 2), (1, 0))]
    wide = np.concatenate([p["wide_x_weight"].T, *(p[f"wide{n}_weight"] for n in ("0", "1", "2", "0x2", "1x0"))])
    h = np.concatenate([*(p[f"embed{i}_weight"][c[:, i]] for i in range(3)), x], axis=1)
    h = np.maximum(h @ p["fc1_weight"].T + p["fc1_bias"], 0)
    wanted = np.concatenate(features + crossed, axis=1) @ wide + h @ p["fc2_weight"].T + p["fc2_bias"]
    np.testing.assert_allclose(net.run(feeds)["logits"], wanted, rtol=1e-4, atol=1e-5)
    assert gk.verify(net, feeds).passed


def test_default_crosses_are_those_of_the_default_columns():
    crosses = [{n for n in gk.models.build("wide_and_deep", **options).params if "x" in n and n != "wide_x_weight"}
               for options in ({}, {"sizes": [9, 17, 8, 15, 7, 6, 3, 42]}, TABLE, {"sizes": [2]})]  # fmt: skip
    assert crosses == [{"wide1x3_weight", "wide7x3_weight"}] * 2 + [set()] * 2


def test_crosses_remember_pairs_that_columns_alone_do_not_tell():
    """The class is a coin of each pair of values: a linear model needs the cross."""
    rng = np.random.default_rng(0)
    feeds = rows(1024, rng)
    coin = rng.permutation(42).reshape(6, 7) % 2
    target = coin[feeds["categories"][:, 0], feeds["categories"][:, 1]].astype(np.float32)[:, None]
    found = {}
    for crosses in ((), (0, 1)):
        net = gk.models.build("wide_and_deep", **TABLE, crosses=crosses, hidden=())
        fit(net, feeds, target, epochs=10, rate=5e-2)
        found[crosses] = accuracy(net, feeds, target)
    assert found[0, 1] == 1.0
    assert found[()] < 0.8


def test_the_deep_part_generalises_to_other_rows():
    """log odds = the product of a number of each of two categories, plus those of x: accuracy of 0.93 on new rows."""
    rng = np.random.default_rng(0)
    a, b = 3 * rng.standard_normal(6), 3 * rng.standard_normal(7)

    def made(count):
        feeds = rows(count, rng)
        c = feeds["categories"]
        return feeds, (a[c[:, 0]] * b[c[:, 1]] + feeds["x"].sum(1) > 0).astype(np.float32)[:, None]

    net = gk.models.build("wide_and_deep", **TABLE, crosses=(), width=8, hidden=(32, 16))
    fit(net, *made(2048), epochs=10)
    assert accuracy(net, *made(500)) > 0.93


def test_a_table_without_numbers_has_no_x():
    net = spread(gk.models.build("wide_and_deep", numbers=0, sizes=(3, 4), crosses=(0, 1), width=2, hidden=(4,)))
    assert net.inputs == ("categories",)
    assert not any(n.startswith("wide_x") for n in net.params)
    assert gk.verify(net, {"categories": np.array([[2, 3], [0, 1]])}).passed


@pytest.mark.parametrize("name", ["wide_and_deep", "dlrm"])
def test_a_code_that_training_did_not_have_is_an_error(name):
    """Not a row of the neighbouring column's table."""
    net = gk.models.build(name, **TABLE, **({"crosses": (0, 1)} if name == "wide_and_deep" else {}))
    feeds = rows(4, np.random.default_rng(0))
    feeds["categories"][2, 1] = 7
    with pytest.raises(gk.errors.RuntimeFailure, match=r"1: Gather.*index 7 .*outside axis 0, which has 7 elements$"):
        net.run(feeds)


# --- ncf --------------------------------------------------------------------------------------------


def test_ncf_is_its_equation():
    net = spread(gk.models.build("ncf", users=5, items=7, factors=3, hidden=(8, 6, 4)))
    p, user, item = net.params, np.array([0, 4, 2]), np.array([6, 1, 1])
    gmf = p["gmf_user_weight"][user] * p["gmf_item_weight"][item]
    mlp = relu_layers(p, "fc", np.concatenate([p["mlp_user_weight"][user], p["mlp_item_weight"][item]], axis=1))
    wanted = np.concatenate([gmf, mlp], axis=1) @ p["predict_weight"].T + p["predict_bias"]
    np.testing.assert_allclose(net.run({"user": user, "item": item})["logits"], wanted, rtol=1e-4, atol=1e-5)
    assert gk.verify(net, {"user": user, "item": item}).passed


def implicit_feedback(users, items, groups, rng, negatives=4):
    """Users have most items of their own group. (feeds, target with drawn negatives, one item held out per user)."""
    likes = (np.arange(users)[:, None] % groups == np.arange(items) % groups) & (rng.random((users, items)) < 0.8)
    held_out = np.array([rng.choice(np.flatnonzero(row)) for row in likes])
    seen = likes.copy()
    seen[np.arange(users), held_out] = False
    user, item = np.nonzero(seen)
    others = [rng.choice(np.flatnonzero(~likes[u]), negatives) for u in user]
    feeds = {"user": np.repeat(user, 1 + negatives), "item": np.column_stack([item, others]).ravel()}
    target = np.tile(np.eye(1, 1 + negatives, dtype=np.float32)[0], len(user))[:, None]
    return feeds, target, likes, held_out


@pytest.mark.parametrize("lazy", [(), ("gmf_*_weight", "mlp_*_weight")], ids=["dense", "lazy"])
def test_ncf_ranks_what_a_user_has_next(lazy):
    """The paper's measure: the held-out item is among the best 10 of it and the items without feedback, for 9 of 10."""
    rng = np.random.default_rng(0)
    feeds, target, likes, held_out = implicit_feedback(30, 60, 3, rng)
    net = gk.models.build("ncf", users=30, items=60, factors=4, hidden=(16, 16, 8))
    fit(net, feeds, target, epochs=8, lazy=lazy)
    hits = 0
    for user, wanted in enumerate(held_out):
        items = np.append(np.flatnonzero(~likes[user]), wanted)
        scores = net.run({"user": np.full(len(items), user), "item": items})["logits"][:, 0]
        hits += (scores > scores[-1]).sum() < 10
    assert hits >= 27


# --- dlrm -------------------------------------------------------------------------------------------

CLICKS = TABLE | {"width": 4, "bottom": (8,), "top": (16,)}


@pytest.mark.parametrize("interaction", ["dot", "cat"])
def test_dlrm_is_its_definition(interaction):
    net = spread(gk.models.build("dlrm", **CLICKS, interaction=interaction))
    p, feeds = net.params, rows(5, np.random.default_rng(1))
    c = feeds["categories"]
    z = [relu_layers(p, "bottom", feeds["x"]), *(p[f"table{i}_weight"][c[:, i]] for i in range(3))]
    if interaction == "dot":
        features = np.column_stack([z[0], *((z[i] * z[j]).sum(1) for i in range(4) for j in range(i))])
    else:
        features = np.column_stack(z)
    wanted = relu_layers(p, "top", features) @ p["click_weight"].T + p["click_bias"]
    np.testing.assert_allclose(net.run(feeds)["logits"], wanted, rtol=1e-4, atol=1e-4)
    assert gk.verify(net, feeds).passed


@pytest.mark.parametrize("lazy", [(), ("table*_weight",)], ids=["dense", "lazy"])
def test_dlrm_learns_which_categories_go_together(lazy):
    """The log odds of a click are a product of vectors of two categories: the area under the curve is above 0.95."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((6, 3)), rng.standard_normal((7, 3))

    def made(count):
        feeds = rows(count, rng)
        c = feeds["categories"]
        return feeds, ((a[c[:, 0]] * b[c[:, 1]]).sum(1) + 0.2 * feeds["x"][:, 0] > 0).astype(np.float32)[:, None]

    net = gk.models.build("dlrm", **CLICKS)
    fit(net, *made(2048), epochs=12, lazy=lazy)
    feeds, target = made(500)
    scores, clicked = net.run(feeds)["logits"][:, 0], target[:, 0] > 0.5
    assert (scores[clicked][:, None] > scores[~clicked]).mean() > 0.95


# --- tables of rows that few batches read -----------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "lazy"),
    [
        ("ncf", {"users": 40, "items": 50, "factors": 3, "hidden": (8, 6)}, ("gmf_*_weight", "mlp_*_weight")),
        ("dlrm", CLICKS | {"sizes": (40, 50, 30)}, ("table*_weight",)),
        (
            "wide_and_deep", {"numbers": 2, "sizes": (40, 50, 30), "crosses": (0, 1), "hidden": (8,)},
            ("wide[0-9]*_weight", "embed*_weight"),
        ),
    ],
    ids=["ncf", "dlrm", "wide_and_deep"],
)  # fmt: skip
def test_sparse_updates_are_the_dense_ones_of_plain_descent(name, options, lazy):
    rng = np.random.default_rng(0)
    feeds = rows(8, rng)
    if name == "ncf":
        feeds = {"user": rng.integers(0, 40, 8), "item": rng.integers(0, 50, 8)}
    target = rng.integers(0, 2, (8, 1)).astype(np.float32)
    nets = [spread(gk.models.build(name, **options)) for _ in range(2)]
    before = {n: nets[0].params[n].copy() for n in nets[0].params}
    for net, chosen in zip(nets, ((), lazy), strict=True):
        trainer = gk.Trainer(net, "sigmoid_binary_cross_entropy", gk.optim.SGD(0.1), threads=1, lazy=chosen)
        for _ in range(3):
            trainer.step(feeds, target)
    for n, array in before.items():
        np.testing.assert_allclose(nets[1].params[n], nets[0].params[n], rtol=1e-5, atol=1e-6, err_msg=n)
        assert not np.array_equal(nets[1].params[n], array), n
        if array.shape[0] >= 30:  # the tables: eight rows at most have been read
            assert (nets[1].params[n] != array).any(axis=1).sum() <= 8
