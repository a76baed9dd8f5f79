"""Softmax and outputs, sequences of different lengths, attention, matrix products."""

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check, imported

X = floats(2, 3, 4)
MATRIX = floats(3, 5)


def softmax(x, axis=-1):
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def masked(x, lengths, axis):
    """Softmax along `axis` over the first elements only."""
    y = np.zeros(x.shape)
    for place in np.ndindex(lengths.shape):
        line = tuple(np.insert(np.array(place, object), axis, slice(0, lengths[place])))
        y[line] = softmax(x[line])
    return y


LABELS = np.float32([1, 0, 4])
LENGTHS = np.int32([[1, 4, 2], [3, 2, 4]])
HEADS = [
    case(
        "SoftmaxOutput",
        MATRIX,
        LABELS,
        labels=[1],
        gives=softmax(MATRIX),
        grad_scale=2.0,
        use_ignore=True,
        ignore_label=-1,
        normalization="valid",
    ),
    case("Softmax", MATRIX, LABELS, labels=[1], gives=softmax(MATRIX)),
    case(
        "SoftmaxOutput", X, np.zeros((2, 3), np.float32), labels=[1], gives=softmax(X.reshape(2, 12)).reshape(2, 3, 4)
    ),
    case("SoftmaxOutput", X, np.zeros((2, 4), np.float32), labels=[1], gives=softmax(X, 1), multi_output=True),
    case("SoftmaxOutput", X, np.zeros((2, 3), np.float32), labels=[1], gives=softmax(X), preserve_shape=True),
    case("SoftmaxActivation", MATRIX, gives=softmax(MATRIX)),
    case("SoftmaxActivation", X, gives=softmax(X)),
    case("SoftmaxActivation", X, gives=softmax(X, 1), mode="channel"),
    case("softmax", X, gives=softmax(X)),
    case("softmax", X, gives=softmax(X / 2.5, 1), axis=1, temperature=2.5),
    case("softmax", X, LENGTHS, gives=masked(X, LENGTHS, 2), use_length=True, axis=-1),
    case(
        "softmax",
        X,
        LENGTHS[:, :1].repeat(4, 1).clip(0, 3),
        gives=masked(X, LENGTHS[:, :1].repeat(4, 1).clip(0, 3), 1),
        use_length=True,
        axis=1,
    ),
    case(
        "softmax",
        X.astype(np.float16),
        gives=softmax(X.astype(np.float16)).astype(np.float32),
        dtype="float32",
        tolerance=1e-3,
    ),
    case("log_softmax", X, gives=np.log(softmax(X))),
    case("log_softmax", X, gives=np.log(softmax(X / 0.5, 0)), axis=0, temperature=0.5),
    case("softmin", X, gives=softmax(-X)),
    case("softmin", X, gives=softmax(-X / 2, 1), axis=1, temperature=2.0),
    case("softmax_cross_entropy", MATRIX, LABELS, gives=-np.log(softmax(MATRIX))[range(3), [1, 0, 4]].sum().reshape(1)),
    case("LinearRegressionOutput", MATRIX, MATRIX, labels=[1], gives=MATRIX, grad_scale=0.5),
    case("MAERegressionOutput", MATRIX, MATRIX, labels=[1], gives=MATRIX),
    case("LogisticRegressionOutput", MATRIX, MATRIX, labels=[1], gives=1 / (1 + np.exp(-MATRIX))),
    case(
        "SVMOutput",
        MATRIX,
        LABELS,
        labels=[1],
        gives=MATRIX,
        margin=1.0,
        regularization_coefficient=1.0,
        use_linear=True,
    ),
    case("MakeLoss", MATRIX, gives=MATRIX, grad_scale=2.0, valid_thresh=0.1, normalization="batch"),
    case(
        "IdentityAttachKLSparseReg",
        np.abs(MATRIX),
        np.full(5, 0.5, np.float32),
        labels=[1],
        gives=np.abs(MATRIX),
        sparseness_target=0.1,
        penalty=0.001,
        momentum=0.9,
    ),
]

TIMES = floats(4, 3, 2)  # [time, batch, ...]
ENDS = np.float32([2, 4, 1])
BEFORE = np.arange(4)[:, None] < ENDS
FLIPPED = TIMES.copy()
for _i, _n in enumerate(ENDS.astype(int)):
    FLIPPED[:_n, _i] = TIMES[:_n, _i][::-1]
SEQUENCES = [
    case("SequenceMask", TIMES, gives=TIMES),
    case("SequenceMask", TIMES, ENDS, gives=np.where(BEFORE[..., None], TIMES, 0), use_sequence_length=True),
    case(
        "SequenceMask",
        TIMES,
        ENDS,
        gives=np.where(BEFORE[..., None], TIMES, -1.5),
        use_sequence_length=True,
        value=-1.5,
    ),
    case(
        "SequenceMask",
        TIMES.swapaxes(0, 1),
        ENDS,
        gives=np.where(BEFORE.T[..., None], TIMES.swapaxes(0, 1), 0),
        axis=1,
        use_sequence_length=True,
    ),
    case("SequenceLast", TIMES, gives=TIMES[-1]),
    case("SequenceLast", TIMES.swapaxes(0, 1), gives=TIMES[-1], axis=1),
    case("SequenceLast", TIMES, ENDS, gives=TIMES[[1, 3, 0], range(3)], use_sequence_length=True),
    case(
        "SequenceLast", TIMES.swapaxes(0, 1), ENDS, gives=TIMES[[1, 3, 0], range(3)], use_sequence_length=True, axis=1
    ),
    case("SequenceReverse", TIMES, gives=TIMES[::-1]),
    case("SequenceReverse", TIMES, ENDS, gives=FLIPPED, use_sequence_length=True),
]


# [time, batch, heads * parts * features]: 3 steps, 2 sequences, 2 heads, 5 features.
PACKED, QUERIES, PAIRS, SCORES = (
    floats(3, 2, 30),
    floats(4, 2, 10, seed=1),
    floats(3, 2, 20, seed=2),
    floats(4, 3, 3, seed=3),
)


def heads(x, parts):
    """Return [part, batch * heads, time, features] of two heads."""
    split = x.reshape(*x.shape[:2], 2, parts, -1)
    return split.transpose(3, 1, 2, 0, 4).reshape(parts, 4, len(x), -1)


def together(x):
    """Return [time, batch, heads * features] of [batch * heads, time, features]."""
    return x.reshape(2, 2, x.shape[1], -1).transpose(2, 0, 1, 3).reshape(x.shape[1], 2, -1)


Q, K, V = heads(PACKED, 3)
ATTENTION = [
    case("_contrib_interleaved_matmul_selfatt_qk", PACKED, gives=Q / np.sqrt(5) @ K.swapaxes(1, 2), heads=2),
    case(
        "_contrib_interleaved_matmul_selfatt_valatt", PACKED, SCORES[:, :3], gives=together(SCORES[:, :3] @ V), heads=2
    ),
    case(
        "_contrib_interleaved_matmul_encdec_qk",
        QUERIES,
        PAIRS,
        heads=2,
        gives=heads(QUERIES, 1)[0] / np.sqrt(5) @ heads(PAIRS, 2)[0].swapaxes(1, 2),
    ),
    case(
        "_contrib_interleaved_matmul_encdec_valatt", PAIRS, SCORES, gives=together(SCORES @ heads(PAIRS, 2)[1]), heads=2
    ),
]

A, B = floats(3, 4), floats(4, 5, seed=1)
BATCH_A, BATCH_B = floats(2, 3, 4), floats(2, 4, 5, seed=1)
POSITIVE = BATCH_A[:, :, :3] @ BATCH_A[:, :, :3].swapaxes(1, 2) + np.eye(3, dtype=np.float32)
FACTOR = np.linalg.cholesky(POSITIVE.astype(np.float64))
LOWER = FACTOR.astype(np.float32)
PRODUCTS = [
    case("dot", A, B, gives=A @ B),
    case("dot", A.T, B, gives=A @ B, transpose_a=True),
    case("dot", A, B.T, gives=A @ B, transpose_b=True),
    case("dot", A[0], A[1], gives=(A[0] @ A[1]).reshape(1)),
    case("dot", BATCH_A, B, gives=BATCH_A @ B),
    case("dot", A, floats(4, 2, 3), gives=np.tensordot(A, floats(4, 2, 3), 1)),
    case("dot", BATCH_A, floats(4, 2, 3), gives=np.tensordot(BATCH_A, floats(4, 2, 3), 1)),
    case("dot", floats(4, 3, 2), B, gives=np.tensordot(floats(4, 3, 2), B, (0, 0)), transpose_a=True),
    case("dot", A, floats(2, 3, 4), gives=np.tensordot(A, floats(2, 3, 4), (1, 2)), transpose_b=True),
    case("batch_dot", BATCH_A, BATCH_B, gives=BATCH_A @ BATCH_B),
    case("batch_dot", BATCH_A.swapaxes(1, 2), BATCH_B.swapaxes(1, 2), gives=BATCH_A @ BATCH_B, transpose_a=True,
         transpose_b=True),
    case("_linalg_gemm2", BATCH_A, BATCH_B, gives=2 * BATCH_A @ BATCH_B, alpha=2.0),
    case("linalg_gemm", BATCH_A, BATCH_B, floats(2, 3, 5), gives=2 * BATCH_A @ BATCH_B - floats(2, 3, 5), alpha=2.0,
         beta=-1.0),
    case("_linalg_gemm", A.T, B, floats(3, 5), gives=A @ B + floats(3, 5), transpose_a=True),
    case("linalg_gemm", A, B, floats(3, 5), gives=A @ B + floats(3, 5), axis=-2),
    case("khatri_rao", A, floats(2, 4, seed=2), gives=np.stack([np.kron(a, b) for a, b in zip(A.T, floats(2, 4,
         seed=2).T, strict=True)], 1),
         num_args=2),
    case("linalg_potrf", POSITIVE, gives=FACTOR),
    case("_linalg_potri", LOWER, gives=np.linalg.inv(POSITIVE.astype(np.float64)), tolerance=1e-3),
    case("linalg_trmm", LOWER, BATCH_A, gives=2 * FACTOR @ BATCH_A, alpha=2.0),
    case("linalg_trmm", LOWER, BATCH_A.swapaxes(1, 2), gives=BATCH_A.swapaxes(1, 2) @ FACTOR.swapaxes(1, 2),
         transpose=True, rightside=True),
    case("linalg_trmm", POSITIVE, BATCH_A, gives=np.triu(POSITIVE) @ BATCH_A, lower=False),
    case("linalg_trsm", LOWER, BATCH_A, gives=0.5 * np.linalg.solve(FACTOR, BATCH_A), alpha=0.5, tolerance=1e-3),
    case("linalg_trsm", LOWER, BATCH_A.swapaxes(1, 2), rightside=True, tolerance=1e-3,
         gives=np.linalg.solve(FACTOR.swapaxes(1, 2), BATCH_A).swapaxes(1, 2)),
    case("linalg_sumlogdiag", LOWER, gives=np.log(np.diagonal(FACTOR, 0, 1, 2)).sum(-1)),
    case("linalg_sumlogdiag", LOWER[0], gives=np.log(np.diagonal(FACTOR[0])).sum().reshape(1)),
    case("linalg_syrk", BATCH_A, gives=2 * BATCH_A @ BATCH_A.swapaxes(1, 2), alpha=2.0),
    case("linalg_syrk", BATCH_A, gives=BATCH_A.swapaxes(1, 2) @ BATCH_A, transpose=True),
    case("linalg_extractdiag", POSITIVE, gives=np.diagonal(POSITIVE, 1, 1, 2), offset=1),
    case("linalg_makediag", A, gives=np.stack([np.diag(row, -1) for row in A]), offset=-1),
    case("linalg_extracttrian", POSITIVE, gives=POSITIVE[:, [0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2]]),
    case("linalg_extracttrian", POSITIVE, gives=POSITIVE[:, [0, 0, 1], [1, 2, 2]], offset=1),
    case("linalg_maketrian", floats(2, 3), gives=np.stack([[[a, 0], [b, c]] for a, b, c in floats(2, 3)])),
    case("linalg_inverse", POSITIVE, gives=np.linalg.inv(POSITIVE.astype(np.float64)), tolerance=1e-3),
    case("linalg_det", POSITIVE, gives=np.linalg.det(POSITIVE.astype(np.float64)), tolerance=1e-4),
    case("linalg_slogdet", POSITIVE, gives=[np.float32([1, 1]), np.linalg.slogdet(POSITIVE.astype(np.float64))[1]],
         tolerance=1e-4),
    case("_npi_solve", POSITIVE[0], BATCH_A[0, :, 0], gives=np.linalg.solve(POSITIVE[0].astype(np.float64),
         BATCH_A[0, :, 0]),
         tolerance=1e-3),
    case("_npi_solve", POSITIVE, BATCH_A, gives=np.linalg.solve(POSITIVE.astype(np.float64), BATCH_A), tolerance=1e-3),
    case("_npi_eigvalsh", POSITIVE, gives=np.linalg.eigvalsh(POSITIVE.astype(np.float64)), tolerance=1e-4),
    case("_npi_cholesky", POSITIVE, gives=FACTOR),
]  # fmt: skip


# MXNet 1.9 has these on a GPU only. The inverse is not divided by the number of elements.
SIGNAL = floats(2, 6)
SPECTRUM = np.stack([np.fft.fft(SIGNAL).real, np.fft.fft(SIGNAL).imag], -1).reshape(2, 12)
FOURIER = [
    case("_contrib_fft", SIGNAL, gives=SPECTRUM, compute_size=128),
    case("_contrib_ifft", SPECTRUM.astype(np.float32), gives=6 * SIGNAL),
]


def test_factorisations(tmp_path):
    """Rows of q and u may have either sign, so products are compared."""
    model, feeds = imported(
        [
            case("linalg_gelqf", A, gives=[A, A]),
            case("linalg_syevd", POSITIVE, gives=[POSITIVE, POSITIVE]),
            case("_npi_eigh", POSITIVE, gives=[POSITIVE, POSITIVE]),
        ],
        tmp_path,
    )
    q, low, u, w, *eigen = model.run(feeds).values()
    values, vectors = eigen
    np.testing.assert_allclose(vectors * values[:, None] @ vectors.swapaxes(1, 2), POSITIVE, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(low @ q, A, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q @ q.T, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(np.tril(low), low)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(POSITIVE.astype(np.float64)), rtol=1e-4)
    np.testing.assert_allclose(u.swapaxes(1, 2) * w[:, None] @ u, POSITIVE, rtol=1e-4, atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("cases", [HEADS, SEQUENCES + ATTENTION, PRODUCTS + FOURIER])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
