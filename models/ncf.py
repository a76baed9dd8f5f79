"""Neural collaborative filtering: NeuMF, which combines matrix factorisation and a perceptron (He et al. 2017)."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._tables import dense, hidden_widths
from graphkit.ops import F


@network
def ncf(
    users: int = 6040, items: int = 3706, factors: int = 8, hidden: int | tuple[int, ...] = (64, 32, 16, 8)
) -> Model:
    """logits = w [gmf, mlp] + b, gmf = p_user * q_item, mlp a perceptron on [p'_user, q'_item]: equation 12.

    Inputs: user and item are int64 [N], below `users` and `items`. The default sizes are those of MovieLens 1M.

    Outputs: logits is float32 [N, 1], the logit of the probability that the user likes the item.

    Options: `factors` is the width of the factorisation. The first element of `hidden` is the width of the perceptron's
    input: two concatenated embeddings of half that width. The others are the widths of its ReLU layers, as in the
    authors' program.

    Training: Use `sigmoid_binary_cross_entropy`. The target is 1 for items that a user had, and 0 for items drawn from
    the others.

    Parameters: gmf_user_weight [users, factors], gmf_item_weight, mlp_user_weight [users, hidden[0] / 2],
    mlp_item_weight, fc1_*, ..., predict_weight [1, factors + hidden[-1]], predict_bias.
    """
    positive("ncf", users=users, items=items, factors=factors)
    widths = hidden_widths("ncf", "hidden", hidden)
    if not widths or widths[0] % 2:
        raise UsageError(
            "ncf: the first number of hidden must be even (the user and item vectors have half of it each), not "
            f"{hidden!r}"
        )
    user = nn.input("user", ["N"], "int64")
    item = nn.input("item", ["N"], "int64")
    start = {"type": "normal", "std": 0.01}
    gmf = F.mul(
        nn.embedding(user, users, factors, init=start, name="gmf_user"),
        nn.embedding(item, items, factors, init=start, name="gmf_item"),
        name="gmf",
    )
    pair = F.concat(
        nn.embedding(user, users, widths[0] // 2, init=start, name="mlp_user"),
        nn.embedding(item, items, widths[0] // 2, init=start, name="mlp_item"),
        axis=1,
    )
    joined = F.concat(gmf, dense(pair, widths[1:]), axis=1, name="joined")
    return Model({"logits": nn.linear(joined, 1, bias_init="zeros", name="predict")}, name="ncf")
