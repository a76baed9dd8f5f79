"""The deep learning recommendation model of Naumov et al. (2019): category vectors that interact in pairs."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._tables import dense, hidden_widths, table_inputs
from graphkit.ops import F

_INTERACTIONS = ("dot", "cat")
# Sizes of the 26 categorical columns of Criteo's display advertising challenge, hashed to at most 1000 rows each.
_CRITEO = (
    1000, 583, 1000, 1000, 305, 24, 1000, 633, 3, 1000, 1000, 1000, 1000,
    27, 1000, 1000, 10, 1000, 1000, 4, 1000, 18, 15, 1000, 105, 1000,
)  # fmt: skip


@network
def dlrm(
    numbers: int = 13, sizes: tuple[int, ...] = _CRITEO, width: int = 16, bottom: tuple[int, ...] = (512, 256, 64),
    top: tuple[int, ...] = (512, 256), interaction: str = "dot",
) -> Model:  # fmt: skip
    """An MLP for numbers, an embedding table per categorical column, dot products of all pairs of vectors, and an MLP.

    Inputs: x is float32 [N, numbers]. categories is int64 [N, columns], column i below sizes[i].

    Outputs: logits is float32 [N, 1], the logit of the probability of a click.

    Options: `bottom` and `top` are the widths of the ReLU layers of the two MLPs. The bottom MLP ends with a ReLU layer
    of `width` units, the top MLP with a linear layer of one unit. `interaction` is "dot" or "cat", and computes the
    input of the top MLP. "cat" concatenates the bottom MLP's output and the embeddings. "dot" concatenates the bottom
    MLP's output and the elements of Z Z^T below the diagonal; the rows of Z are the same vectors. The defaults are the
    authors' widths for Criteo's Kaggle data. The tables are cut to 1000 rows; theirs have up to 10,131,227.

    Parameters: bottom<n>_weight, bottom<n>_bias, table<i>_weight [sizes[i], width], top<n>_*, click_*.
    """
    positive("dlrm", numbers=numbers, width=width)
    below, above = hidden_widths("dlrm", "bottom", bottom), hidden_widths("dlrm", "top", top)
    if interaction not in _INTERACTIONS:
        raise UsageError(f"dlrm: interaction must be {' or '.join(_INTERACTIONS)}, not {interaction!r}")
    x, columns = table_inputs("dlrm", numbers, sizes)
    assert x is not None
    vectors = [dense(x, (*below, width), name="bottom")]
    for i, (column, rows) in enumerate(zip(columns, sizes, strict=True)):
        start = {"type": "uniform", "low": -(rows**-0.5), "high": rows**-0.5}
        vectors.append(nn.embedding(column, rows, width, init=start, name=f"table{i}"))
    features = F.concat(*vectors, axis=1)
    if interaction == "dot":
        features = F.concat(vectors[0], _products(features, len(vectors), width), axis=1)
    return Model({"logits": nn.linear(dense(features, above, name="top"), 1, name="click")}, name="dlrm")


def _products(vectors: Value, count: int, width: int) -> Value:
    """Return z_i . z_j for i > j, row by row, [N, count (count - 1) / 2], of vectors [N, count * width]."""
    z = F.reshape(vectors, np.array([-1, count, width]), name="vectors")
    products = F.mat_mul(z, F.transpose(z, perm=(0, 2, 1)), name="products")
    rows, columns = np.tril_indices(count, -1)
    flat = F.reshape(products, np.array([-1, count * count]))
    pairs: Value = F.gather(flat, rows * count + columns, axis=1, name="pairs")
    return pairs
