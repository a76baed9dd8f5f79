"""Attention as a graph of cuDNN.

Documentation: https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html. Scores are scaled.
With a causal mask, those after the diagonal that ends at the last query and the last key become minus infinity. Then
follow softmax and the product with v.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from graphkit.executor.devices.cuda.launches import Attention
from graphkit.executor.devices.cuda.libraries import cudnn

# The numbers of tensors, in the order of `Attention.arguments`.
_Q, _K, _V, _Y = range(1, 5)


def planned(attention: Attention, **target: Any) -> Any:
    """Return the planned graph of an attention. target: see `cudnn.planned`."""
    return cudnn.planned(partial(_graph, attention), attention.workspace, **target)


def _graph(attention: Attention, dnn: Any, target: dict[str, Any]) -> Any:
    graph, kind = cudnn.graph(dnn, attention.kind, target), cudnn.data_type(dnn, attention.kind)
    q, k, v = (
        graph.tensor(name=name, dim=list(of.sizes), stride=list(of.strides), data_type=kind, uid=number)
        for name, of, number in (("q", attention.q, _Q), ("k", attention.k, _K), ("v", attention.v, _V))
    )
    diagonal = {
        "diagonal_alignment": dnn.diagonal_alignment.BOTTOM_RIGHT, "diagonal_band_right_bound": 0,
    }  # fmt: skip
    result, _ = graph.sdpa(
        q=q, k=k, v=v, attn_scale=attention.scale, generate_stats=False, **(diagonal if attention.causal else {})
    )
    y = attention.y
    result.set_output(True).set_data_type(kind).set_uid(_Y).set_dim(list(y.sizes)).set_stride(list(y.strides))
    return graph
