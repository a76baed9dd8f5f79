"""Wide and Deep learning for tables (Cheng et al. 2016): a linear and a deep model, trained together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._tables import dense, hidden_widths, table_inputs
from graphkit.ops import F

# Sizes of the columns of the Census Income data, and TensorFlow's crosses for it.
_SIZES, _CROSSES = (9, 17, 8, 15, 7, 6, 3, 42), (1, 3, 7, 3)


@network
def wide_and_deep(
    numbers: int = 6, sizes: tuple[int, ...] = _SIZES, crosses: tuple[int, ...] | None = None,
    width: int = 32, hidden: tuple[int, ...] = (1024, 512, 256), classes: int = 1, dropout: float = 0.0,
) -> Model:  # fmt: skip
    """logits = W_wide [x, one-hot(categories), crosses] + W_deep a + b: equation 3 of the paper.

    Inputs: x is float32 [N, numbers]; it does not exist if `numbers` is 0. categories is int64 [N, columns], column i
    below sizes[i], as a table gives them (`train.encoding.sizes`).

    Outputs: logits is float32 [N, classes]. With one class, it is the logarithm of the odds.

    Options: `crosses` lists pairs of columns, one pair after the other. Each pair of their values is a feature of the
    wide part (equation 1) with its own weight. The deep part has ReLU layers of the widths `hidden`; a is the output of
    the last one. They read x, and an embedding of `width` numbers for each categorical column. `dropout` is the dropout
    ratio after each of them, in training. The defaults are the paper's widths and the columns of the Census Income
    data. For these columns, the default crosses are TensorFlow's: education with occupation, and country with
    occupation. Other columns have no default crosses.

    Parameters: wide_x_weight [classes, numbers], wide<i>_weight [sizes[i], classes], wide<i>x<j>_weight [sizes[i] *
    sizes[j], classes], embed<i>_weight [sizes[i], width], fc<n>_weight, fc<n>_bias.
    """
    positive("wide_and_deep", width=width, classes=classes)
    widths = hidden_widths("wide_and_deep", "hidden", hidden)
    x, columns = table_inputs("wide_and_deep", numbers, sizes)
    if crosses is None:
        crosses = _CROSSES if tuple(sizes) == _SIZES else ()
    pairs = _pairs(crosses, len(sizes))
    wide = [nn.embedding(c, sizes[i], classes, init="zeros", name=f"wide{i}") for i, c in enumerate(columns)]
    for i, j in pairs:
        both = F.add(F.mul(columns[i], np.int64(sizes[j])), columns[j], name=f"cross{i}x{j}")
        wide.append(nn.embedding(both, sizes[i] * sizes[j], classes, init="zeros", name=f"wide{i}x{j}"))
    small = {"type": "normal", "std": width**-0.5}
    features = [nn.embedding(c, sizes[i], width, init=small, name=f"embed{i}") for i, c in enumerate(columns)]
    if x is not None:
        wide.append(nn.linear(x, classes, bias=False, init="zeros", name="wide_x"))
        features.append(x)
    a = dense(F.concat(*features, axis=1, name="features"), widths, dropout)
    deep = nn.linear(a, classes, bias_init="zeros", name=f"fc{len(widths) + 1}")
    return Model({"logits": F.sum(deep, *wide, name="logits")}, name="wide_and_deep")


def _pairs(crosses: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """Return (i, j) of each cross. Raises UsageError if one is not a pair of two columns, or occurs twice."""
    pairs = list(zip(crosses[::2], crosses[1::2], strict=False))
    wrong = len(crosses) % 2 or any(not 0 <= c < columns for c in crosses) or any(i == j for i, j in pairs)
    if wrong or len({frozenset(pair) for pair in pairs}) < len(pairs):
        raise UsageError(
            f"wide_and_deep: crosses must be different pairs of columns from 0 to {columns - 1}, not {crosses!r}"
        )
    return pairs
