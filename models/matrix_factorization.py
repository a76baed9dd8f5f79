"""Matrix factorisation for recommendation (Koren, Bell and Volinsky 2009)."""

from __future__ import annotations

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.ops import F


@network
def matrix_factorization(users: int = 943, items: int = 1682, factors: int = 32) -> Model:
    """rating = mean + bias of user + bias of item + <factors of user, factors of item>: equation 4 of the paper.

    Inputs: user and item are int64 [N], below `users` and `items`. The default sizes are those of MovieLens 100K.

    Outputs: rating is float32 [N].

    Parameters: user_weight [users, factors], item_weight, user_bias_weight [users, 1], item_bias_weight and mean [1].
    Together (users + items) * (factors + 1) + 1.
    """
    positive("matrix_factorization", users=users, items=items, factors=factors)
    user = nn.input("user", ["N"], "int64")
    item = nn.input("item", ["N"], "int64")
    start = {"type": "normal", "std": 0.1}
    p = nn.embedding(user, users, factors, init=start, name="user")
    q = nn.embedding(item, items, factors, init=start, name="item")
    biases = F.add(
        nn.embedding(user, users, 1, init="zeros", name="user_bias"),
        nn.embedding(item, items, 1, init="zeros", name="item_bias"),
    )
    product = F.reduce_sum(F.mul(p, q), np.array([1]), keepdims=False, name="product")
    offset = F.add(F.squeeze(biases, np.array([1])), nn.parameter("mean", (1,), "zeros"))
    return Model({"rating": F.add(product, offset, name="rating")}, name="matrix_factorization")
