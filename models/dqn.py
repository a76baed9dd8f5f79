"""A Q network for small observations (Mnih et al. 2015), also in the dueling form of Wang et al. 2016."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.ops import F


@network
def dqn(
    observations: int = 25, actions: int = 4, hidden: int | tuple[int, ...] = (64, 64), dueling: bool = False
) -> Model:
    """The expected discounted return of every action, from fully connected layers with ReLU between them.

    Inputs: x is float32 [N, observations].

    Outputs: q is [N, actions].

    Options: `hidden` gives the width of each hidden layer. With `dueling`, q is v + a - mean(a). v is the value of the
    state, and a is the advantage of each action. The defaults fit the 5x5 maze of examples/reinforcement.

    Training: Q-learning, as in examples/reinforcement.

    Parameters: fc1_weight, fc1_bias, ... With `dueling`, value_* and advantage_* replace the last layer. 6,084 with the
    default options; 17,410 for (4, 2, (128, 128)), the network of PyTorch's tutorial for CartPole.
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if any(not isinstance(width, int) or width < 1 for width in widths):
        raise UsageError(f"dqn: hidden must be positive integers, not {hidden!r}")
    positive("dqn", observations=observations, actions=actions)
    h = nn.input("x", ["N", observations])
    for i, width in enumerate(widths, 1):
        h = F.relu(nn.linear(h, width, init="he_normal", bias_init="zeros", name=f"fc{i}"), name=f"relu{i}")
    if dueling:
        value = nn.linear(h, 1, name="value")
        advantage = nn.linear(h, actions, name="advantage")
        q = F.add(value, F.sub(advantage, F.reduce_mean(advantage, np.array([1]))), name="q")
    else:
        q = nn.linear(h, actions, name=f"fc{len(widths) + 1}")
    return Model({"q": q}, name="dqn")
