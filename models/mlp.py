"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.ops import F


@network
def mlp(
    inputs: int | tuple[int, ...] = 64,
    hidden: int | tuple[int, ...] = (128, 64),
    classes: int = 10,
    dropout: float = 0.0,
) -> Model:
    """Fully connected layers with ReLU between them.

    Inputs: x is float32 [N, inputs]. If `inputs` is a tuple such as (1, 8, 8), x is [N, *inputs], and is flattened.

    Outputs: logits is [N, classes].

    Options: `hidden` gives the width of each hidden layer. `dropout` is the dropout ratio after each hidden layer, in
    training.

    Parameters: fc1_weight, fc1_bias, ...
    """
    shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not shape or any(not isinstance(size, int) or size < 1 for size in (*shape, *widths)):
        raise UsageError(f"mlp: inputs and hidden must be positive integers, not {inputs!r} and {hidden!r}")
    positive("mlp", classes=classes)
    x = nn.input("x", ["N", *shape])
    h = x if len(shape) == 1 else F.reshape(x, _flat(shape), name="flat")
    for i, width in enumerate(widths, 1):
        h = F.relu(nn.linear(h, width, init="he_normal", bias_init="zeros", name=f"fc{i}"), name=f"relu{i}")
        if dropout:
            h = nn.dropout(h, dropout, name=f"drop{i}")
    logits = nn.linear(h, classes, init="xavier_uniform", bias_init="zeros", name=f"fc{len(widths) + 1}")
    return Model({"logits": logits}, name="mlp")


def _flat(shape: Sequence[int]) -> list[int]:
    return [-1, math.prod(shape)]
