"""native.MatMul against numpy in float64."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")


def operands(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def packed(kernel, plain):
    """The weights, input 1, as the kernel reads them."""
    if not kernel.packed_inputs:
        return plain
    memory = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, plain, memory)
    return memory


def check(kernel, inputs, expected, tolerance=1e-5):
    y = np.full(expected.shape, np.nan, np.float32)
    kernel(inputs, [y])
    scale = max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * scale)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [x.astype(np.float64) for x in arrays]


SHAPES = [
    ((2, 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((64, 500), (500, 10)),
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3,)),
    ((3,), (4, 3, 2)),
    ((4, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),  # no batch on the right: one product
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((2, 1, 5, 3, 4), (2, 6, 1, 4, 2)),
    ((1, 1, 2, 3), (1, 3, 2)),
    ((7, 2, 1, 3), (1, 2, 3, 1)),
    ((2, 3, 1, 4, 2, 3), (1, 1, 5, 1, 3, 2)),
]


@in_one_item()
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_numpy_rules(a_shape, b_shape, threads):
    a, b = operands(np.random.default_rng(1), a_shape, b_shape)
    check(native.MatMul(a_shape, b_shape, threads=threads), [a, b], np.matmul(*wide(a, b)))


@in_one_item()
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes(seed):
    rng = np.random.default_rng(seed)
    m, k, n = (int(v) for v in rng.integers(1, 70, 3))
    batch = [int(v) for v in rng.integers(1, 4, rng.integers(0, 4))]
    transpose_a, transpose_b = (bool(v) for v in rng.integers(0, 2, 2))

    def lead() -> tuple[int, ...]:
        kept = [1 if rng.random() < 0.3 else size for size in batch]
        return tuple(kept[int(rng.integers(0, len(batch) + 1)) :])

    a_matrix, b_matrix = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
    a, b = operands(rng, (*lead(), *a_matrix), (*lead(), *b_matrix))
    left, right = wide(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)
    options = dict(transpose_a=transpose_a, transpose_b=transpose_b, threads=int(rng.integers(1, 5)))
    expected = left @ right
    check(native.MatMul(a.shape, b.shape, **options), [a, b], expected)
    kernel = native.MatMul(a.shape, b.shape, pack_b=True, **options)
    check(kernel, [a, packed(kernel, b)], expected)


@in_one_item()
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 0), (0, 4)), ((0, 2, 3), (3, 4)), ((5, 2, 0), (0, 4)), ((0,), (0,))],
    ids=str,
)
@pytest.mark.parametrize("pack", [False, True])
def test_empty(a_shape, b_shape, pack):
    a, b = np.zeros(a_shape, np.float32), np.zeros(b_shape, np.float32)
    kernel = native.MatMul(a_shape, b_shape, pack_b=pack)
    check(kernel, [a, packed(kernel, b)], np.matmul(a, b))


def test_sum_of_nothing_still_gets_its_bias():
    bias = np.arange(4, dtype=np.float32)
    step = native.MatMul((2, 0), (0, 4), bias=(4,), epilogue=native.Epilogue("linear", 2, 1))
    check(step, [np.zeros((2, 0), np.float32), np.zeros((0, 4), np.float32), bias], np.tile(bias * 2 + 1, (2, 1)))


@in_one_item()
@pytest.mark.parametrize("bias_shape", [(4,), (1, 4), (3, 4), (3, 1), (1, 1), (1,), ()], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, -2), (1.5, 0.25)])
def test_gemm(bias_shape, alpha, beta):
    a, b, c = operands(np.random.default_rng(2), (5, 3), (4, 5), bias_shape)
    c = np.asarray(c, np.float32)
    step = native.MatMul(
        a.shape, b.shape, transpose_a=True, transpose_b=True, bias=bias_shape, alpha=alpha, beta=beta, threads=2
    )
    left, right, bias = wide(a, b, c)
    check(step, [a, b, c], alpha * left.T @ right.T + beta * bias)


def test_bias_row_on_batches():
    a, b, c = operands(np.random.default_rng(3), (6, 2, 3), (6, 3, 4), (4,))
    for bias in ((4,), (1, 4), (1, 1, 4)):
        step = native.MatMul(a.shape, b.shape, bias=bias)
        check(step, [a, b, c.reshape(bias)], np.matmul(*wide(a, b)) + c)


def test_bias_over_batches_is_left_to_others():
    with pytest.raises(native.Unsupported, match=r"bias \[6, 1, 1\] is neither one row nor a matrix"):
        native.MatMul((6, 2, 3), (6, 3, 4), bias=(6, 1, 1))


ACTIVATIONS = {
    "relu": (0.1, 0, lambda v: np.where(v > 0, v, 0.1 * v)),
    "tanh": (0, 0, np.tanh),
    "sigmoid": (0, 0, lambda v: 1 / (1 + np.exp(-v))),
    "gelu_tanh": (0, 0, lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))),
    "swish": (1.5, 0, lambda v: v / (1 + np.exp(-1.5 * v))),
    "elu": (0.5, 0, lambda v: np.where(v > 0, v, 0.5 * np.expm1(v))),
    "clip": (-0.5, 0.75, lambda v: np.clip(v, -0.5, 0.75)),
    "softplus": (1, 0, lambda v: np.logaddexp(0, v)),
    "abs": (0, 0, np.abs),
    "exp": (0, 0, np.exp),
    "square": (0, 0, np.square),
    "linear": (2, -1, lambda v: 2 * v - 1),
}


@in_one_item()
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind):
    alpha, beta, function = ACTIVATIONS[kind]
    a, b, c = operands(np.random.default_rng(4), (9, 4), (4, 17), (17,))
    step = native.MatMul(a.shape, b.shape, bias=(17,), epilogue=native.Epilogue(kind, alpha, beta))
    check(step, [a, b, c], function(np.matmul(*wide(a, b)) + c), tolerance=1e-4)


@in_one_item()
@pytest.mark.parametrize("last", [False, True])
def test_residual(last):
    a, b, bias, residual = operands(np.random.default_rng(5), (6, 3, 4), (4, 5), (5,), (6, 3, 5))
    epilogue = native.Epilogue("tanh", residual=True, residual_last=last)
    kernel = native.MatMul(a.shape, b.shape, bias=(5,), epilogue=epilogue)
    product = np.matmul(*wide(a, b)) + bias
    expected = np.tanh(product) + residual if last else np.tanh(product + residual)
    check(kernel, [a, b, bias, residual], expected)
    y = residual.copy()
    kernel([a, b, bias, y], [y])
    np.testing.assert_allclose(y, expected, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["", "tanh"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "bias_shape", "alpha"),
    [
        ((6, 3, 4), (4, 5), (5,), 0.5),
        ((7, 4), (4, 5), (7, 5), 1),
        ((7, 4), (4, 5), (7, 1), -2),
        ((2, 0), (0, 4), (4,), 2),
        ((0, 3), (3, 4), (4,), 2),
    ],
)
def test_residual_beside_a_bias_that_the_library_does_not_add(a_shape, b_shape, bias_shape, alpha, kind, threads):
    y_shape = (*a_shape[:-1], b_shape[-1])
    a, b, bias, residual = operands(np.random.default_rng(6), a_shape, b_shape, bias_shape, y_shape)
    epilogue = native.Epilogue(kind, residual=True) if kind else native.Epilogue(residual=True)
    kernel = native.MatMul(a_shape, b_shape, bias=bias_shape, alpha=alpha, epilogue=epilogue, threads=threads)
    expected = alpha * np.matmul(*wide(a, b)) + bias + residual
    check(kernel, [a, b, bias, residual], np.tanh(expected) if kind else expected)
    if residual.size:
        residual.flat[0], residual.flat[-1] = np.nan, np.inf
        y = np.empty(y_shape, np.float32)
        kernel([a, b, bias, residual], [y])
        assert np.isnan(y).sum() == 1
        assert np.isnan(y.flat[0])
        assert y.flat[-1] == (1 if kind else np.inf)


def test_residual_after_the_activation_beside_a_bias_that_is_a_matrix_is_left_to_others():
    with pytest.raises(native.Unsupported, match="a residual, and a bias that the library does not add"):
        native.MatMul((2, 3), (3, 4), bias=(2, 4), epilogue=native.Epilogue("tanh", residual=True, residual_last=True))


def test_layouts_that_agree_share_a_packed_copy():
    kernels = [native.MatMul((m, 64), (64, 48), pack_b=True) for m in (128, 256)]
    other = native.MatMul((128, 48), (48, 64), pack_b=True)
    assert kernels[0].packed_layout(1) == kernels[1].packed_layout(1)
    if not other.packed_inputs:
        pytest.skip("oneDNN takes these weights as they are")
    b = np.ones((64, 48), np.float32)
    assert kernels[0].packed_layout(1) != other.packed_layout(1)
    with pytest.raises(ValueError, match="packed operand has another size"):
        other([np.ones((128, 48), np.float32), aligned_bytes(8)], [np.empty((128, 64), np.float32)])
    with pytest.raises(ValueError, match="'b' has another size"):
        other.pack(1, b[:1], aligned_bytes(other.packed_bytes(1)))


def test_unknown_activation():
    with pytest.raises(native.Error, match="no activation 'cosine'"):
        native.MatMul((2, 3), (3, 4), epilogue=native.Epilogue("cosine"))
