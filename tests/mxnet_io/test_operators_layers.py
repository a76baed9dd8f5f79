"""Convolutions, normalisations, FullyConnected and Embedding, against loops over windows in numpy."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats, positive
from tests.mxnet_io.operator_checks import check


def convolved(x, w, b=None, stride=None, pad=None, dilate=None, group=1):
    """A convolution by its definition. x: [n, c, *sizes]; w: [filters, c / group, *kernel]."""
    axes = x.ndim - 2
    stride, pad, dilate = stride or (1,) * axes, pad or (0,) * axes, dilate or (1,) * axes
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in pad)])
    sizes = [
        (n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(x.shape[2:], dilate, w.shape[2:], stride, strict=True)
    ]
    y = np.zeros((len(x), len(w), *sizes))
    inner, outer = w.shape[1], len(w) // group
    for f, place in itertools.product(range(len(w)), itertools.product(*map(range, sizes))):
        first = f // outer * inner
        cut = tuple(
            slice(i * s, i * s + d * (k - 1) + 1, d)
            for i, s, d, k in zip(place, stride, dilate, w.shape[2:], strict=True)
        )
        y[(slice(None), f, *place)] = (
            (x[(slice(None), slice(first, first + inner), *cut)] * w[f]).reshape(len(x), -1).sum(1)
        )
    return y if b is None else y + b.reshape(-1, *[1] * axes)


def deconvolved(x, w, b=None, stride=None, pad=None, dilate=None, adj=None, group=1):
    """A transposed convolution by its definition. w: [c, filters / group, *kernel]."""
    axes = x.ndim - 2
    ones, zeros = (1,) * axes, (0,) * axes
    stride, pad, dilate, adj = stride or ones, pad or zeros, dilate or ones, adj or zeros
    full = [s * (n - 1) + d * (k - 1) + 1 for n, d, k, s in zip(x.shape[2:], dilate, w.shape[2:], stride, strict=True)]
    y = np.zeros((len(x), w.shape[1] * group, *(n + a for n, a in zip(full, adj, strict=True))))
    inner, outer = x.shape[1] // group, w.shape[1]
    for c, place in itertools.product(range(x.shape[1]), itertools.product(*map(range, x.shape[2:]))):
        first = c // inner * outer
        cut = tuple(
            slice(i * s, i * s + d * (k - 1) + 1, d)
            for i, s, d, k in zip(place, stride, dilate, w.shape[2:], strict=True)
        )
        elements = x[(slice(None), c, *place)].reshape(-1, *[1] * (axes + 1))
        y[(slice(None), slice(first, first + outer), *cut)] += elements * w[c].astype(np.float64)
    y = y[(..., *(slice(p, n + a - p) for p, n, a in zip(pad, full, adj, strict=True)))]
    return y if b is None else y + b.reshape(-1, *[1] * axes)


X1, X2, X3 = floats(2, 4, 9), floats(2, 4, 6, 7), floats(1, 2, 4, 5, 4)
W1, W2, W3 = floats(3, 4, 3, seed=1), floats(6, 4, 3, 2, seed=1), floats(3, 2, 2, 3, 2, seed=1)
BIAS = floats(6, seed=2)
GROUPED = floats(6, 2, 3, 3, seed=1)
CONVOLUTIONS = [
    case("Convolution", X1, W1, BIAS[:3], gives=convolved(X1, W1, BIAS[:3]), kernel=(3,), num_filter=3, weights=[1, 2]),
    case("Convolution", X2, W2, BIAS, gives=convolved(X2, W2, BIAS), kernel=(3, 2), num_filter=6, weights=[1, 2]),
    case(
        "Convolution",
        X2,
        W2,
        gives=convolved(X2, W2, None, (2, 1), (1, 2), (1, 2)),
        kernel=(3, 2),
        num_filter=6,
        no_bias=True,
        stride=(2, 1),
        pad=(1, 2),
        dilate=(1, 2),
        weights=[1],
    ),
    case(
        "Convolution",
        X2,
        GROUPED,
        BIAS,
        gives=convolved(X2, GROUPED, BIAS, pad=(1, 1), group=2),
        kernel=(3, 3),
        num_filter=6,
        num_group=2,
        pad=(1, 1),
        workspace=1024,
        cudnn_tune="off",
        weights=[1, 2],
    ),
    case(
        "Convolution",
        X3,
        W3,
        gives=convolved(X3, W3, None, (1, 2, 1)),
        kernel=(2, 3, 2),
        num_filter=3,
        no_bias=True,
        stride=(1, 2, 1),
    ),
    case(
        "Convolution_v1",
        X2,
        W2,
        BIAS,
        gives=convolved(X2, W2, BIAS, (2, 2)),
        kernel=(3, 2),
        num_filter=6,
        stride=(2, 2),
    ),
    case(
        "Deconvolution",
        X2,
        floats(4, 3, 3, 2),
        gives=deconvolved(X2, floats(4, 3, 3, 2)),
        kernel=(3, 2),
        num_filter=3,
        weights=[1],
    ),
    case(
        "Deconvolution",
        X2,
        floats(4, 3, 3, 2),
        BIAS[:3],
        kernel=(3, 2),
        num_filter=3,
        no_bias=False,
        stride=(2, 3),
        gives=deconvolved(X2, floats(4, 3, 3, 2), BIAS[:3], (2, 3), (1, 0), None, (1, 2)),
        pad=(1, 0),
        adj=(1, 2),
    ),
    case(
        "Deconvolution",
        X2,
        floats(4, 2, 3, 3),
        kernel=(3, 3),
        num_filter=4,
        num_group=2,
        dilate=(2, 1),
        gives=deconvolved(X2, floats(4, 2, 3, 3), None, None, None, (2, 1), group=2),
    ),
    # 6 -> 2 * 5 + 4 = 14; 11 asked for: a surplus of 3 is pad 2 with adj 1. 7 -> 16; 14 asked for: pad 1.
    case(
        "Deconvolution",
        X2,
        floats(4, 2, 4, 4),
        kernel=(4, 4),
        num_filter=2,
        stride=(2, 2),
        target_shape=(11, 14),
        gives=deconvolved(X2, floats(4, 2, 4, 4), None, (2, 2), (2, 1), None, (1, 0)),
    ),
    case(
        "Deconvolution",
        X1,
        floats(4, 2, 3),
        gives=deconvolved(X1, floats(4, 2, 3), None, (2,)),
        kernel=(3,),
        num_filter=2,
        stride=(2,),
    ),
    case(
        "Deconvolution",
        X3,
        floats(2, 2, 2, 2, 2),
        gives=deconvolved(X3, floats(2, 2, 2, 2, 2), None, (1, 2, 1)),
        kernel=(2, 2, 2),
        num_filter=2,
        stride=(1, 2, 1),
    ),
]
# MXNet 1.9 computes these layouts only on a GPU.
LAST = X2.transpose(0, 2, 3, 1)
CHANNELS_LAST = [
    case(
        "Convolution",
        LAST,
        W2.transpose(0, 2, 3, 1),
        BIAS,
        gives=convolved(X2, W2, BIAS, (2, 1)).transpose(0, 2, 3, 1),
        kernel=(3, 2),
        num_filter=6,
        stride=(2, 1),
        layout="NHWC",
    ),
    case(
        "Convolution",
        X1.swapaxes(1, 2),
        W1.swapaxes(1, 2),
        gives=convolved(X1, W1).swapaxes(1, 2),
        kernel=(3,),
        num_filter=3,
        no_bias=True,
        layout="NWC",
    ),
]

MATRIX, WEIGHT = floats(3, 8), floats(5, 24, seed=1)
TABLE = floats(7, 3)
DENSE = [
    case(
        "FullyConnected",
        floats(3, 4, 6),
        WEIGHT,
        BIAS[:5],
        gives=floats(3, 24) @ WEIGHT.T + BIAS[:5],
        num_hidden=5,
        weights=[1, 2],
    ),
    case(
        "FullyConnected", MATRIX, WEIGHT[:, :8], gives=MATRIX @ WEIGHT[:, :8].T, num_hidden=5, no_bias=True, weights=[1]
    ),
    case(
        "FullyConnected",
        floats(3, 4, 8),
        WEIGHT[:, :8],
        BIAS[:5],
        gives=floats(3, 4, 8) @ WEIGHT[:, :8].T + BIAS[:5],
        num_hidden=5,
        flatten=False,
        weights=[1, 2],
    ),
    case(
        "FullyConnected",
        floats(3, 4, 8),
        WEIGHT[:, :8],
        gives=floats(3, 4, 8) @ WEIGHT[:, :8].T,
        num_hidden=5,
        flatten=False,
        no_bias=True,
    ),
    case(
        "FullyConnected",
        MATRIX.astype(np.float64),
        WEIGHT[:, :8].astype(np.float64),
        num_hidden=5,
        no_bias=True,
        gives=MATRIX.astype(np.float64) @ WEIGHT[:, :8].T.astype(np.float64),
    ),
    case(
        "Embedding",
        np.float32([[1, 0], [6, 2]]),
        TABLE,
        gives=TABLE[[[1, 0], [6, 2]]],
        input_dim=7,
        output_dim=3,
        weights=[1],
    ),
    # Indices outside of the table are clipped.
    case("Embedding", np.float32([-1, 9]), TABLE, gives=TABLE[[0, 6]], input_dim=7, output_dim=3, weights=[1]),
    case("_contrib_SparseEmbedding", np.float32([2, 5]), TABLE, gives=TABLE[[2, 5]], input_dim=7, output_dim=3),
]


GAMMA, BETA, MEAN, VARIANCE = positive(4, seed=3), floats(4, seed=4), floats(4, seed=5), positive(4, seed=6)
STATISTICS = [GAMMA, BETA, MEAN, VARIANCE]


def normalised(x, axis=1, gamma=GAMMA, eps=1e-3):
    g, b, m, v = (
        part.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]) for part in (gamma, BETA, MEAN, VARIANCE)
    )
    return (x - m) / np.sqrt(v.astype(np.float64) + eps) * g + b


def standardised(x, axes, eps, scale=1.0, shift=0.0):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps) * scale + shift


def responses(x, size, alpha, beta, knorm):
    padded = np.pad(x.astype(np.float64) ** 2, [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)])
    total = sum(padded[:, i : i + x.shape[1]] for i in range(size))
    return x * (knorm + alpha / size * total) ** -beta


LAST_AXIS, FOUR = floats(2, 3, 4), [1, 2, 3, 4]
NORMALISATION = [
    case("BatchNorm", X2, *STATISTICS, gives=normalised(X2, gamma=np.ones(4)), weights=FOUR),
    case("BatchNorm", X2, *STATISTICS, gives=normalised(X2, eps=1e-5), fix_gamma=False, eps=1e-5, momentum=0.9,
         weights=FOUR),
    case("BatchNorm", X2, *STATISTICS, gives=normalised(X2), fix_gamma=False, use_global_stats=True, weights=FOUR),
    case("BatchNorm", LAST_AXIS, *STATISTICS, gives=normalised(LAST_AXIS, 2), fix_gamma=False, axis=-1, weights=FOUR),
    case("BatchNorm", LAST_AXIS, *STATISTICS, gives=normalised(LAST_AXIS, 2, np.ones(4)), axis=2,
         use_global_stats=True, weights=FOUR),
    case("BatchNorm", floats(3, 4), *STATISTICS, gives=normalised(floats(3, 4)), fix_gamma=False, cudnn_off=True,
         weights=FOUR),
    case("BatchNorm_v1", X2, *STATISTICS, gives=normalised(X2), fix_gamma=False, weights=FOUR),
    case("_contrib_SyncBatchNorm", X2, *STATISTICS, gives=normalised(X2), fix_gamma=False, key="k", ndev=2,
         weights=FOUR),
    case("_contrib_BatchNormWithReLU", X2, *STATISTICS, gives=np.maximum(normalised(X2), 0), fix_gamma=False,
         weights=FOUR),
    case("LayerNorm", LAST_AXIS, GAMMA, BETA, gives=standardised(LAST_AXIS, 2, 1e-5, GAMMA, BETA), weights=[1, 2]),
    case("LayerNorm", LAST_AXIS, GAMMA[:3], BETA[:3], axis=1, eps=1e-3,
         gives=standardised(LAST_AXIS, 1, 1e-3, GAMMA[:3, None], BETA[:3, None])),
    case("InstanceNorm", X2, GAMMA, BETA, gives=standardised(X2, (2, 3), 1e-3, GAMMA[:, None, None], BETA[:, None,
         None])),
    case("InstanceNorm", X1, GAMMA, BETA, gives=standardised(X1, 2, 1e-5, GAMMA[:, None], BETA[:, None]), eps=1e-5),
    case("GroupNorm", X2, GAMMA[:2], BETA[:2], num_groups=2, eps=1e-3,
         gives=standardised(X2.reshape(2, 2, 2, 6, 7), (2, 3, 4), 1e-3, GAMMA[:2].reshape(2, 1, 1, 1),
              BETA[:2].reshape(2, 1, 1, 1))
         .reshape(X2.shape)),
    case("GroupNorm", X2, GAMMA, BETA, num_groups=2,
         gives=standardised(X2.reshape(2, 2, 2, 6, 7), (2, 3, 4), 1e-5).reshape(X2.shape) * GAMMA[:, None,
              None] + BETA[:, None, None]),
    case("L2Normalization", X2, gives=X2 / np.sqrt((X2**2).sum((1, 2, 3), keepdims=True) + 1e-10)),
    case("L2Normalization", X2, gives=X2 / np.sqrt((X2**2).sum(1, keepdims=True) + 1e-3), mode="channel", eps=1e-3),
    case("L2Normalization", X2, gives=X2 / np.sqrt((X2**2).sum((2, 3), keepdims=True) + 1e-10), mode="spatial"),
    case("LRN", X2, gives=responses(X2, 3, 1e-4, 0.75, 2.0), nsize=3),
    case("LRN", X2, gives=responses(X2, 5, 0.5, 0.5, 1.5), nsize=5, alpha=0.5, beta=0.5, knorm=1.5),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [CONVOLUTIONS + CHANNELS_LAST, DENSE, NORMALISATION])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
