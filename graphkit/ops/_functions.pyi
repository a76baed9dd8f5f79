"""Every operator as a function. Made from the registry by `python -m graphkit.checks.stub`."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from graphkit.ir.graph import Graph, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, Type
from graphkit.ops._registry import Operand

def abs(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """|x|; the gradient at 0 is 0."""

def absolute_maxima(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Divide x into 256 slices, and return the largest finite |x| of each slice: float32 [256]."""

def acos(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse cosine in [0, pi]; NaN outside [-1, 1]."""

def acosh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse hyperbolic cosine, >= 0; NaN below 1."""

def adadelta_update(
    weight: Operand,
    grad: Operand,
    square: Operand,
    change: Operand,
    lr: Operand,
    *,
    weight_decay: float = 0.0,
    rho: float = 0.9,
    epsilon: float = 1e-06,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Adadelta: weight' = weight - lr * d, where d = sqrt(u + epsilon) / sqrt(s' + epsilon) * g."""

def adagrad(
    rate: Operand,
    count: Operand,
    *tensors: Operand | Sequence[Operand | None] | None,
    decay_factor: float = 0.0,
    epsilon: float = 1e-06,
    norm_coefficient: float = 0.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Adagrad: x' = x - r g / (sqrt(h') + epsilon), where h' = h + g^2."""

def adagrad_update(
    weight: Operand,
    grad: Operand,
    square: Operand,
    lr: Operand,
    step: Operand,
    *,
    weight_decay: float = 0.0,
    lr_decay: float = 0.0,
    epsilon: float = 1e-10,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Adagrad: weight' = weight - rate * g / (sqrt(s') + epsilon), where s' = s + g^2."""

def adam(
    rate: Operand,
    count: Operand,
    *tensors: Operand | Sequence[Operand | None] | None,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-06,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Adam: x' = (1 - norm_coefficient_post) (x - r v' / (sqrt(h') + epsilon))."""

def adam_update(
    weight: Operand,
    grad: Operand,
    mean: Operand,
    variance: Operand,
    lr: Operand,
    step: Operand,
    *,
    weight_decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-08,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Adam: weight' = weight - lr * (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + epsilon)."""

def adam_w_update(
    weight: Operand,
    grad: Operand,
    mean: Operand,
    variance: Operand,
    lr: Operand,
    step: Operand,
    *,
    weight_decay: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-08,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """AdamW: multiply weight by 1 - lr * weight_decay, then apply AdamUpdate without weight decay."""

def add(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a + b with broadcasting."""

def add_n(
    *xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Elementwise sum of tensors of one shape, or of sequences or optionals of such tensors."""

def affine_grid(
    theta: Operand, size: Operand, *, align_corners: bool = False, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """The grid for GridSample that applies an affine transformation to images of `size`."""

def all_gather_start(
    *pieces: Operand | Sequence[Operand | None] | None,
    key: str,
    sizes: Sequence[int],
    of: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Start an all-gather of arrays whose slices lie on different ranks; AllReduceWait waits for the results."""

def all_reduce(
    *xs: Operand | Sequence[Operand | None] | None, key: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Any:
    """Sum each x over all ranks. All ranks use the same `key`."""

def all_reduce_moments(
    count: Operand,
    mean: Operand,
    deviations: Operand,
    *,
    key: str,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Combine the number, mean and sum of squared deviations of each rank's samples into those of all samples."""

def all_reduce_start(
    *xs: Operand | Sequence[Operand | None] | None, key: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Any:
    """Start an all-reduce of each x; the results contain the sums over all ranks after AllReduceWait."""

def all_reduce_wait(
    *started: Operand | Sequence[Operand | None] | None,
    keys: str | Sequence[str],
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Wait for the all-reduces, or all-gathers, with the given keys."""

def and_(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Logical and of two bool tensors, with broadcasting."""

def arg_max(
    x: Operand,
    *,
    axis: int = 0,
    keepdims: bool = True,
    select_last_index: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Index of the maximum along `axis`, int64. If elements tie, the first, or with `select_last_index` the last."""

def arg_min(
    x: Operand,
    *,
    axis: int = 0,
    keepdims: bool = True,
    select_last_index: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Index of the minimum along `axis`, int64. If elements tie, the first, or with `select_last_index` the last."""

def array_feature_extractor(x: Operand, y: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Select the elements of x at the indices y along the last axis. A vector x is read as a matrix with one row."""

def asin(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse sine in [-pi/2, pi/2]; NaN outside [-1, 1]."""

def asinh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse hyperbolic sine."""

def atan(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse tangent in (-pi/2, pi/2)."""

def atanh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""

def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    attn_mask: Operand | None = None,
    past_key: Operand | None = None,
    past_value: Operand | None = None,
    nonpad_kv_seqlen: Operand | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """Scaled dot-product attention: softmax(scale * Q K^T + bias) V for each head."""

def average_pool(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Mean of each window; padding counts only with `count_include_pad`."""

def average_pool_grad(
    dy: Operand,
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of AveragePool: each element of dy, divided by the count of its window, is added to the whole window."""

def batch_norm_grad(
    dy: Operand,
    x: Operand,
    scale: Operand,
    *,
    epsilon: float = 1e-05,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Gradient of BatchNormalization's y in training mode with respect to x, scale and b."""

def batch_normalization(
    x: Operand,
    scale: Operand,
    b: Operand,
    input_mean: Operand,
    input_var: Operand,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    training_mode: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """(x - mean) / sqrt(var + epsilon) * scale + b, for each channel of x."""

def bernoulli(
    x: Operand,
    rng: Operand | None = None,
    *,
    stream: int = 0,
    dtype: DType | DTypeLike | None = None,
    seed: float | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """1 with probability x, else 0, for each element. x: float probabilities; the result has x's dtype or `dtype`."""

def binarizer(x: Operand, *, threshold: float = 0.0, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """1 where an element is larger than the threshold, else 0, in the type of x."""

def bit_cast(x: Operand, *, to: DType | DTypeLike, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Read the bytes of x as another element type of the same size."""

def bit_shift(
    a: Operand, b: Operand, *, direction: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """a shifted by b bits; `direction` is "LEFT" or "RIGHT" (arithmetic for signed types)."""

def bitwise_and(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a & b, bit by bit, for integers of one type, with broadcasting."""

def bitwise_not(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """~x: invert every bit of integers."""

def bitwise_or(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a | b, bit by bit, for integers of one type, with broadcasting."""

def bitwise_xor(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a ^ b, bit by bit, for integers of one type, with broadcasting."""

def blackman_window(
    size: Operand,
    *,
    output_datatype: DType | DTypeLike = DType.FLOAT32,
    periodic: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Blackman window: 0.42 - 0.5 cos(2 pi n / period) + 0.08 cos(4 pi n / period) for n below `size`."""

def cached_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    past_k: Operand,
    past_v: Operand,
    mask: Operand | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    mask_value: float = ...,
    layout: str = "NHLD",
    output_layout: str = "NHLD",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """FusedAttention over cached keys and values followed by new ones; also returns the extended cache."""

def cast(
    x: Operand,
    *,
    saturate: bool = True,
    round_mode: str = "up",
    to: DType | DTypeLike,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Convert x's elements to the dtype `to`."""

def cast_like(
    x: Operand,
    like: Operand,
    *,
    saturate: bool = True,
    round_mode: str = "up",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Convert x's elements to the dtype of `like`, as Cast does. Only the dtype of `like` is read."""

def cast_map(
    x: Operand,
    *,
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return the values of a map as one row, cast to another type."""

def category_mapper(
    x: Operand,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: str | Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Replace strings by integers, or integers by strings."""

def causal_conv_with_state(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    past_state: Operand | None = None,
    *,
    activation: str = "none",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Causal convolution: each channel with its own kernel, over the present and earlier positions."""

def ceil(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Smallest integer not below x."""

def celu(x: Operand, *, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); alpha must not be 0. Barron 2017, arXiv:1704.07483."""

def center_crop_pad(
    x: Operand,
    shape: Operand,
    *,
    axes: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Crop or pad x to the given sizes along `axes`, by default all."""

def channels_last_average_pool(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """AveragePool of x: [N, *spatial, C] -> [N, *positions, C]."""

def channels_last_average_pool_grad(
    dy: Operand,
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """AveragePoolGrad of dy: [N, *positions, C] -> [N, *spatial, C], the shape of x."""

def channels_last_batch_norm(
    x: Operand,
    scale: Operand,
    b: Operand,
    input_mean: Operand,
    input_var: Operand,
    residual: Operand | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    made: DType | DTypeLike | None = None,
    epsilon: float = 1e-05,
    momentum: float = 0.9,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value, Value]:
    """BatchNormalization of x: [N, *spatial, C] in training mode, with an optional residual and activation."""

def channels_last_batch_norm_grad(
    dy: Operand,
    x: Operand,
    scale: Operand,
    b: Operand,
    mean: Operand,
    inv_std_dev: Operand,
    y: Operand | None = None,
    addend: Operand | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    made: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """Gradient of ChannelsLastBatchNorm with respect to x, scale, b and the residual."""

def channels_last_conv(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    residual_last: bool = False,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    filters_last: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """FusedConv with x: [N, *spatial, C], residual and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

def channels_last_conv_grad_input(
    dy: Operand,
    w: Operand,
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    filters_last: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """ConvGradInput of dy: [N, *positions, M] and w: [M, C / group, *kernel] -> [N, *spatial, C], the shape of x."""

def channels_last_conv_grad_weight(
    x: Operand,
    dy: Operand,
    w: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    filters_last: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """ConvGradWeight of x: [N, *spatial, C] and dy: [N, *positions, M] -> [M, C / group, *kernel], the type of w."""

def channels_last_conv_integer(
    x: Operand,
    w: Operand,
    x_zero_point: Operand | None = None,
    w_zero_point: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """ConvInteger with x: [N, *spatial, C] and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

def channels_last_conv_transpose(
    x: Operand,
    w: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    filters_last: bool = False,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """ConvTranspose with x: [N, *spatial, C], w: [C, M / group, *kernel] -> [N, *positions, M]."""

def channels_last_max_pool(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """MaxPool of x: [N, *spatial, C] -> [N, *positions, C], without the positions of the maxima."""

def channels_last_max_pool_grad(
    dy: Operand,
    indices: Operand,
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of ChannelsLastMaxPoolIndices: add each element of dy to the element of x that was the maximum."""

def channels_last_max_pool_indices(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """MaxPool of x: [N, *spatial, C] -> [N, *positions, C]; also returns each maximum's index within its window."""

def channels_last_q_linear_conv(
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """QLinearConv with x: [N, *spatial, C] and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

def channels_last_q_linear_global_average_pool(
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """QLinearGlobalAveragePool of x: [N, *spatial, C] -> [N, 1, ..., C]."""

def clip(
    x: Operand,
    min: Operand | None = None,
    max: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Limit x to the range from `min` to `max` (0-d tensors; absent: no limit). If min > max, the result is max."""

def cofactor(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The matrix of cofactors: det(a) * a^-T if a has an inverse. a: [..., n, n]."""

def col2_im(
    x: Operand,
    image_shape: Operand,
    block_shape: Operand,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Add the columns of x to an image: each column is one block of elements. Blocks may overlap. (PyTorch's fold.)"""

def compress(
    x: Operand, condition: Operand, *, axis: int | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Slices of x along `axis` where the boolean vector `condition` is true; without `axis`, single elements."""

def concat(
    *xs: Operand | Sequence[Operand | None] | None, axis: int, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Concatenate the operands along `axis`; all other dimensions must be equal."""

def concat_from_sequence(
    sequence: Operand, *, axis: int, new_axis: bool = False, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Concatenate the elements of a sequence along `axis`; with `new_axis`, stack them along a new axis."""

def constant(*, value: Tensor | ArrayLike, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """A tensor that is known when the graph is built."""

def constant_of_shape(
    shape: Operand, *, value: Tensor | ArrayLike | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """A tensor of the given shape (an int64 vector), filled with the one element of `value`; default: float32 0."""

def control_dependency(x: Operand, token: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return x, but let operators that read the result run only after `token` is computed."""

def conv(
    x: Operand,
    w: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Convolution (cross-correlation) over any number of spatial axes."""

def conv_grad_input(
    dy: Operand,
    w: Operand,
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of Conv with respect to x."""

def conv_grad_weight(
    x: Operand,
    dy: Operand,
    w: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of Conv with respect to w."""

def conv_integer(
    x: Operand,
    w: Operand,
    x_zero_point: Operand | None = None,
    w_zero_point: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """The convolution of x - x_zero_point with w - w_zero_point in int32; sums wrap around."""

def conv_transpose(
    x: Operand,
    w: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Transposed convolution. x: [N, C, *positions], w: [C, M / group, *kernel], b: [M] -> [N, M, *spatial]."""

def cos(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Cosine of x in radians."""

def cosh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Hyperbolic cosine."""

def coupled_probabilities(
    decisions: Operand, a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """The probability of each class, from the decisions of a support vector machine for all pairs of classes."""

def cum_prod(
    x: Operand,
    axis: Operand,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Cumulative product along `axis`, an int scalar or a tensor of one element."""

def cum_sum(
    x: Operand,
    axis: Operand,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Cumulative sum along `axis`, an int scalar or a tensor of one element."""

def deform_conv(
    x: Operand,
    w: Operand,
    offset: Operand,
    bias: Operand | None = None,
    mask: Operand | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Deformable convolution: each kernel element reads x at its position plus a learned offset, interpolated."""

def depth_to_space(
    x: Operand, *, blocksize: int, mode: str = "DCR", name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Rearrange blocks of channels to blocks of pixels: [N, C*b*b, H, W] to [N, C, H*b, W*b]."""

def dequantize_linear(
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(x - x_zero_point) * x_scale, in the scale's type unless `output_dtype` names another one."""

def det(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The determinant of each matrix of x: [..., n, n]; the result has the shape of the batch."""

def dft(
    x: Operand,
    dft_length: Operand | None = None,
    axis: Operand | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Discrete Fourier transform along `axis`; `inverse` divides by n."""

def dict_vectorizer(
    x: Operand,
    *,
    int64_vocabulary: Sequence[int] = (),
    string_vocabulary: str | Sequence[str] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return the values of a map as one row, in the order of the keys in a vocabulary."""

def div(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a / b with broadcasting. Integer division rounds towards zero; an integer divisor 0 raises RuntimeFailure."""

def dropout(
    data: Operand,
    ratio: Operand | None = None,
    training_mode: Operand | None = None,
    rng: Operand | None = None,
    *,
    stream: int = 0,
    seed: int | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """In training, set elements to zero with probability `ratio` and divide the others by 1 - ratio; else return x."""

def dynamic_quantize_linear(
    x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None
) -> tuple[Value, Value, Value]:
    """Quantise x to uint8 with the scale and zero point that fit the range of x and 0."""

def dynamic_quantize_mat_mul(
    a: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand | None = None,
    bias: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Quantise a by its own range, as DynamicQuantizeLinear does, multiply it with a quantised b, and add the bias."""

def einsum(
    *xs: Operand | Sequence[Operand | None] | None, equation: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Sum of products in Einstein notation, such as "ij,jk->ik": one letter for each axis of each operand."""

def elu(x: Operand, *, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x where x > 0, alpha * (exp(x) - 1) elsewhere. Clevert et al. 2015, arXiv:1511.07289."""

def encoded_columns(
    *xs: Operand | Sequence[Operand | None] | None, body: Graph, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Encode columns of matrices of strings, each with its own operator, and join the results side by side."""

def equal(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a == b with broadcasting, as bool. Operands may also be booleans or strings. NaN is equal to nothing."""

def erf(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

def exp(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """e ** x."""

def expand(x: Operand, shape: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Broadcast x to `shape`, an int64 vector, by numpy's rules; an axis where `shape` has 1 keeps its size."""

def eye_like(
    x: Operand,
    *,
    dtype: DType | DTypeLike | None = None,
    k: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """A matrix of x's shape with ones on diagonal `k`, else zeros."""

def fake_quantize(
    x: Operand,
    y_scale: Operand,
    y_zero_point: Operand | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    saturate: bool = True,
    output_dtype: DType | DTypeLike | None = None,
    precision: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Quantise x and dequantise it again: DequantizeLinear(QuantizeLinear(x)) with one scale and one zero point."""

def feature_vectorizer(
    *xs: Operand | Sequence[Operand | None] | None,
    inputdimensions: Sequence[int] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Join the features of all operands side by side; float32."""

def finite_guard(x: Operand, token: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return x if the scalar `token` is finite; else stop the run with NotFinite, which shows the token's value."""

def flatten(x: Operand, *, axis: int = 1, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Reshape x to a matrix: the dimensions before `axis` form its rows, the others its columns."""

def float8_mat_mul(
    a: Operand,
    a_scale: Operand,
    b: Operand,
    b_scale: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    *,
    alpha: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * a_scale * b_scale * a @ b^T + bias + residual, in bfloat16; sums are float32."""

def floor(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Largest integer not above x."""

def folded_batch_norm(
    weights: Operand,
    scale: Operand,
    shift: Operand,
    mean: Operand,
    var: Operand,
    bias: Operand | None = None,
    *,
    axis: int,
    epsilon: float = 1e-05,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Fold a batch normalisation into the weights and the bias of the matrix product or convolution before it."""

def ftrl_update(
    weight: Operand,
    grad: Operand,
    linear: Operand,
    square: Operand,
    lr: Operand,
    *,
    weight_decay: float = 0.0,
    beta: float = 1.0,
    l1: float = 0.0,
    l2: float = 0.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """FTRL-Proximal: weight' = 0 where |z'| <= l1, else (sign(z') l1 - z') / ((beta + sqrt(n')) / lr + l2)."""

def fused(
    *xs: Operand | Sequence[Operand | None] | None, body: Graph, name: str = "", meta: Mapping[str, str] | None = None
) -> Any:
    """A region of pointwise operators that run in one pass over memory."""

def fused_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    mask_value: float = ...,
    layout: str = "NHLD",
    output_layout: str = "NHLD",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Scaled dot-product attention: softmax(scale * q @ k^T + mask) @ v for each head."""

def fused_attention_grad(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    y: Operand,
    largest: Operand,
    total: Operand,
    dy: Operand,
    *,
    scale: float = 1.0,
    causal: bool = False,
    mask_value: float = ...,
    layout: str = "NHLD",
    output_layout: str = "NHLD",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """The gradients of FusedAttention with respect to q, k and v."""

def fused_attention_with_statistics(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    mask_value: float = ...,
    layout: str = "NHLD",
    output_layout: str = "NHLD",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """FusedAttention that also returns each query's largest score and its sum of exp(score - largest)."""

def fused_conv(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    residual_last: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Convolution with bias, residual and activation."""

def fused_mat_mul(
    a: Operand,
    b: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    residual_last: bool = False,
    transA: bool = False,
    transB: bool = False,
    alpha: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * op(a) @ op(b) with bias, residual and activation."""

def gather(
    x: Operand, indices: Operand, *, axis: int = 0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Slices of x along `axis` at the given indices (negative ones count from the back)."""

def gather_elements(
    x: Operand, indices: Operand, *, axis: int = 0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Take one element of x along `axis` for each index: y[i, j, ...] = x[i, indices[i, j, ...], ...] for axis 1."""

def gather_grad(
    dy: Operand, x: Operand, indices: Operand, *, axis: int = 0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Gradient of Gather: zeros of x's shape, to which slices of dy are added at their indices."""

def gather_nd(
    x: Operand, indices: Operand, *, batch_dims: int = 0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Slices of x at index tuples."""

def gelqf(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> tuple[Value, Value]:
    """LQ factorisation a = l q: q [..., m, n] with orthonormal rows, l [..., m, m] lower triangular."""

def gelu(x: Operand, *, approximate: str = "none", name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x * Phi(x), where Phi is the cumulative normal distribution; approximate="tanh" uses the tanh formula."""

def gemm(
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * op(a) @ op(b) + beta * c; op transposes a if transA is set, and b if transB is set."""

def gemm2(
    a: Operand,
    b: Operand,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * op(a) @ op(b) for batches; op transposes a if transpose_a is set, and b if transpose_b is set."""

def global_average_pool(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Mean over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1]."""

def global_lp_pool(x: Operand, *, p: int = 2, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """(sum |x| ** p) ** (1 / p) over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1]."""

def global_max_pool(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Maximum over all spatial axes: x: [N, C, *spatial] -> [N, C, 1, ..., 1]."""

def greater(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a > b with broadcasting, as bool."""

def greater_or_equal(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a >= b with broadcasting, as bool."""

def grid_sample(
    x: Operand,
    grid: Operand,
    *,
    align_corners: bool = False,
    mode: str = "linear",
    padding_mode: str = "zeros",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Sample x: [N, C, *spatial] at the coordinates of grid: [N, *out, rank]; the result is [N, C, *out]."""

def group_norm_grad(
    dy: Operand,
    x: Operand,
    scale: Operand,
    *,
    num_groups: int | None = None,
    epsilon: float = 1e-05,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Gradient of GroupNormalization with respect to x, scale and bias."""

def group_normalization(
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    epsilon: float = 1e-05,
    num_groups: int,
    stash_type: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the channels of a group and all spatial axes."""

def gru(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Gated recurrent unit (Cho et al. 2014): h' = (1 - z) n + z h for each step of a sequence."""

def gru_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value, Value]:
    """Gradient of GRU with respect to its operands. Operands and attributes: those of GRU."""

def gru_recurrence(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """GRU that also returns the gates and states that its gradient needs. Operands and attributes: those of GRU."""

def gru_recurrence_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    gates: Operand,
    h_before: Operand,
    r: Operand,
    sequence_lens: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Backward pass through time of a GRU: gradients with respect to its gates and initial state."""

def hamming_window(
    size: Operand,
    *,
    output_datatype: DType | DTypeLike = DType.FLOAT32,
    periodic: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Hamming window: 25/46 - 21/46 cos(2 pi n / period) for n below `size`, a 0-d integer."""

def hann_window(
    size: Operand,
    *,
    output_datatype: DType | DTypeLike = DType.FLOAT32,
    periodic: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Hann window: 0.5 - 0.5 cos(2 pi n / period) for n below `size`, a 0-d integer."""

def hard_sigmoid(
    x: Operand,
    *,
    alpha: float = 0.20000000298023224,
    beta: float = 0.5,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * x + beta, clipped to [0, 1]; the gradient at and beyond these bounds is 0."""

def hard_swish(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x * min(max(x / 6 + 1/2, 0), 1). Howard et al. 2019, arXiv:1905.02244."""

def hard_swish_grad(dy: Operand, x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Gradient of HardSwish: 0 where x < -3, dy where x > 3, dy * (x / 3 + 1/2) elsewhere."""

def hardmax(x: Operand, *, axis: int = -1, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """1 at the first maximum along `axis`, 0 elsewhere. It is a step function, so no gradient flows."""

def identity(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return x unchanged: a tensor, a sequence or an optional."""

def if_(
    cond: Operand,
    *captures: Operand | Sequence[Operand | None] | None,
    then_branch: Graph,
    else_branch: Graph,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Run then_branch if cond is true, else else_branch."""

def im2_col(
    x: Operand,
    block_shape: Operand,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return the block of an image at each position as a column: the adjoint of Col2Im. (PyTorch's unfold.)"""

def image_decoder(
    encoded_stream: Operand, *, pixel_format: str = "RGB", name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Decode an image from the bytes of its file, uint8 [bytes], to pixels, uint8 [height, width, channels]."""

def imputer(
    x: Operand,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Replace elements that are equal to `replaced_value_*`, which may be NaN, by `imputed_value_*`."""

def instance_normalization(
    x: Operand,
    scale: Operand,
    b: Operand,
    *,
    epsilon: float = 1e-05,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(x - mean) / sqrt(var + epsilon) * scale + b over the spatial axes of x: [N, C, *spatial]; scale, b: [C]."""

def inverse(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The inverse of each matrix of a: [..., n, n]. A singular matrix raises RuntimeFailure at run time."""

def is_inf(
    x: Operand,
    *,
    detect_negative: bool = True,
    detect_positive: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Whether each element of the floats x is infinite, as bool of x's shape."""

def is_nan(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Whether each element of the floats x is NaN, as bool of x's shape."""

def label_encoder(
    x: Operand,
    *,
    keys_strings: str | Sequence[str] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_tensor: Tensor | ArrayLike | None = None,
    values_strings: str | Sequence[str] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_floats: Sequence[float] | None = None,
    values_tensor: Tensor | ArrayLike | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
    default_tensor: Tensor | ArrayLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Replace each element by the value that belongs to its key, or by the default if it is not a key; same ..."""

def lamb_update(
    weight: Operand,
    grad: Operand,
    mean: Operand,
    variance: Operand,
    lr: Operand,
    step: Operand,
    *,
    weight_decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-06,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """LAMB: weight' = weight - lr * |weight| / |r| * r, where r = m / (sqrt(v) + epsilon) + weight_decay * weight."""

def lars_update(
    weight: Operand,
    grad: Operand,
    velocity: Operand,
    lr: Operand,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    trust: float = 0.001,
    epsilon: float = 0.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """LARS: v' = momentum * v + rate * (grad + weight_decay * weight); weight' = weight - v'."""

def last_equal(indices: Operand, *, bound: int, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return for each index the last position with the same index."""

def layer_norm_grad(
    dy: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand | None = None,
    inv_std_dev: Operand | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    made: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Gradient of LayerNormalization's y with respect to x, scale, and a bias of scale's shape."""

def layer_normalization(
    x: Operand,
    scale: Operand,
    b: Operand | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """(x - mean) * r * scale + b, where r = 1 / sqrt(var + epsilon), over the axes from `axis` on."""

def leaky_relu(
    x: Operand, *, alpha: float = 0.009999999776482582, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """x where x >= 0, alpha * x elsewhere; the gradient at 0 is alpha."""

def leave_one_out_product(
    x: Operand,
    axes: Operand | None = None,
    *,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """For each element of x, the product of all other elements along `axes`: the derivative of ReduceProd."""

def less(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a < b with broadcasting, as bool."""

def less_or_equal(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a <= b with broadcasting, as bool."""

def linear_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    past_state: Operand | None = None,
    decay: Operand | None = None,
    beta: Operand | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Linear attention: o[t] = scale * q[t] S[t], where the matrix S [D, E] is a recurrence over keys and values."""

def linear_classifier(
    x: Operand,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: str | Sequence[str] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """The class with the largest score, and the transformed scores x @ coefficients^T + intercepts; float32."""

def linear_recurrence(
    a: Operand, b: Operand, *, axis: int, reverse: bool = False, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """h[t] = a[t] * h[t - 1] + b[t] along `axis`, from h = 0; with `reverse`, h[t] = a[t] * h[t + 1] + b[t]."""

def linear_regressor(
    x: Operand,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    targets: int = 1,
    post_transform: str = "NONE",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """x @ coefficients^T + intercepts, one column for each target; float32."""

def linear_sample(
    x: Operand,
    row: Operand,
    column: Operand,
    *,
    border: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Interpolate images linearly at points."""

def log(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Natural logarithm; NaN below 0, -inf at 0."""

def log_softmax(x: Operand, *, axis: int = -1, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """log(softmax(x)) along one axis. x: float tensor of rank >= 1; y has x's type."""

def loop(
    m: Operand | None = None,
    cond: Operand | None = None,
    *values: Operand | Sequence[Operand | None] | None,
    body: Graph,
    captures: int = 0,
    recompute: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Repeat a subgraph while a condition is true, at most m times."""

def lp_normalization(
    x: Operand, *, axis: int = -1, p: int = 2, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """x / norm along one axis, where norm is the norm of order p = 1 or 2; 0 where the norm is 0."""

def lp_pool(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    p: int = 2,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(sum |x| ** p) ** (1 / p) of each window; padding adds nothing."""

def lrn(
    x: Operand,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Local response normalisation: x / (bias + alpha / size * s) ** beta."""

def lstm(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    p: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    input_forget: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """Long short-term memory (Hochreiter and Schmidhuber 1997): c' = f c + i g, h' = o act3(c') for each step."""

def lstm_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    dy_c: Operand | None,
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    p: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    input_forget: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value, Value, Value, Value]:
    """Gradient of LSTM with respect to its operands. Operands and attributes: those of LSTM."""

def lstm_recurrence(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    p: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    input_forget: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value, Value, Value]:
    """LSTM that also returns the gates and states that its gradient needs. Operands and attributes: those of LSTM."""

def lstm_recurrence_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    dy_c: Operand | None,
    gates: Operand,
    c_before: Operand,
    r: Operand,
    sequence_lens: Operand | None = None,
    p: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    input_forget: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """Backward pass through time of an LSTM: gradients with respect to its gates and initial states."""

def mat_mul(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Matrix product with numpy's rules: [..., m, k] @ [..., k, n] -> [..., m, n]; leading axes broadcast."""

def mat_mul_integer(
    a: Operand,
    b: Operand,
    a_zero_point: Operand | None = None,
    b_zero_point: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(a - a_zero_point) @ (b - b_zero_point) in int32 by numpy's rules; sums wrap around."""

def mat_mul_integer_to_float(
    a: Operand,
    b: Operand,
    a_scale: Operand,
    b_scale: Operand,
    a_zero_point: Operand | None = None,
    b_zero_point: Operand | None = None,
    bias: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """The product of two quantised matrices as float32: MatMulInteger times a_scale * b_scale, plus a bias."""

def max(*xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Elementwise maximum with broadcasting; NaN if an operand is NaN."""

def max_pool(
    x: Operand,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: bool = False,
    storage_order: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Maximum of each window, and its position in x as an index into the flattened tensor."""

def max_pool_grad(
    dy: Operand,
    indices: Operand,
    x: Operand,
    *,
    disjoint: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of MaxPool: add each element of dy to the element of the result at its index (see MaxPool)."""

def max_roi_pool(
    x: Operand,
    rois: Operand,
    *,
    pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Maximum over the bins of each region; corners and bins are rounded to whole elements. Girshick 2015."""

def max_unpool(
    x: Operand,
    indices: Operand,
    output_shape: Operand | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Put the elements of x back to the positions from which MaxPool took them; all other elements are 0."""

def mean(
    *xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Mean of the operands with broadcasting."""

def mean_variance_normalization(
    x: Operand, *, axes: Sequence[int] = (0, 2, 3), name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """(x - mean) / (sqrt(var) + 1e-9) over `axes`."""

def mel_weight_matrix(
    num_mel_bins: Operand,
    dft_length: Operand,
    sample_rate: Operand,
    lower_edge_hertz: Operand,
    upper_edge_hertz: Operand,
    *,
    output_datatype: DType | DTypeLike = DType.FLOAT32,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Triangular mel filters, equally spaced on the mel scale: [dft_length // 2 + 1, num_mel_bins]."""

def min(*xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Elementwise minimum with broadcasting; NaN if an operand is NaN."""

def mish(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x * tanh(softplus(x)). Misra 2019, arXiv:1908.08681."""

def mixed_precision_layer_norm(
    x: Operand,
    scale: Operand,
    b: Operand | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    made: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value]:
    """LayerNormalization that computes in the type of `scale`, also if x has a narrower type."""

def mod(a: Operand, b: Operand, *, fmod: bool = False, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Remainder with broadcasting: a - floor(a/b)*b, with b's sign as in Python; with `fmod`, with a's sign as in C."""

def momentum(
    rate: Operand,
    count: Operand,
    *tensors: Operand | Sequence[Operand | None] | None,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Gradient descent with momentum: v' = alpha v + b g, where b = 1 at count 0, else beta."""

def mul(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a * b with broadcasting."""

def multinomial(
    x: Operand,
    rng: Operand | None = None,
    *,
    stream: int = 0,
    dtype: DType | DTypeLike = DType.INT32,
    sample_size: int = 1,
    seed: float | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Draw `sample_size` classes for each row with probabilities softmax(x). x: float [batch, classes]."""

def neg(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """-x."""

def negative_log_likelihood_loss(
    x: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """-weight[t] * x[t] for each target t; `reduction`: "mean" (their weighted mean), "sum" or "none" (one each)."""

def non_max_suppression(
    boxes: Operand,
    scores: Operand,
    max_output_boxes_per_class: Operand | None = None,
    iou_threshold: Operand | None = None,
    score_threshold: Operand | None = None,
    *,
    center_point_box: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Select the boxes with the highest scores, and drop boxes that overlap a selected one."""

def non_zero(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The indices of all elements that are not 0, or not empty strings, in row-major order: int64 [rank, count]."""

def normalizer(x: Operand, *, norm: str = "MAX", name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Divide each example by its largest element (MAX), sum of magnitudes (L1) or root of the sum of squares (L2)."""

def not_(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Logical negation of a bool tensor."""

def one_hot(
    indices: Operand,
    depth: Operand,
    values: Operand,
    *,
    axis: int = -1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """`values[1]` where the position along the new axis equals the index, `values[0]` elsewhere."""

def one_hot_encoder(
    x: Operand,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: str | Sequence[str] = (),
    zeros: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """One-hot encoding along a new last axis: 1 at the element's position among the categories, else 0; float32."""

def optional(
    x: Operand | None = None, *, type: Type | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Wrap x in an optional value; without x, return an empty optional value of the given `type`."""

def optional_get_element(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The value that an optional holds; a tensor or a sequence is returned as it is."""

def optional_has_element(x: Operand | None = None, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Whether an optional holds a value: a bool scalar, true for a tensor or sequence, false for an absent operand."""

def or_(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Logical or of two bool tensors, with broadcasting."""

def p_relu(x: Operand, slope: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x where x >= 0, slope * x elsewhere. slope broadcasts to x's shape. He et al. 2015, arXiv:1502.01852."""

def pad(
    x: Operand,
    pads: Operand,
    constant_value: Operand | None = None,
    axes: Operand | None = None,
    *,
    mode: str = "constant",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Add elements (a negative pad: remove them) at both ends of each of `axes`, by default of all axes."""

def pad_grad(
    dy: Operand,
    x: Operand,
    pads: Operand,
    axes: Operand | None = None,
    *,
    mode: str,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of Pad: zeros of x's shape, to which each element of dy is added where Pad copied it from."""

def potrf(a: Operand, *, lower: bool = True, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Cholesky factor: the lower triangular l of a = l l^T, or with lower=False the upper triangular u of a = u^T u."""

def potri(l: Operand, *, lower: bool = True, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The inverse of a = l l^T, computed from the Cholesky factor l; with lower=False from u, where a = u^T u."""

def pow(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a ** b with broadcasting; the result has a's dtype, b may have another one."""

def q_gemm(
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    c: Operand | None = None,
    y_scale: Operand | None = None,
    y_zero_point: Operand | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * op(a) @ op(b) + c of quantised matrices; op transposes a if transA is set, and b if transB is set."""

def q_linear_add(
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Add two quantised tensors; the result is quantised."""

def q_linear_conv(
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    group: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Quantised convolution: (int32 sums of ConvInteger + b) * x_scale * w_scale / y_scale, rounded, + y_zero_point."""

def q_linear_global_average_pool(
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Average a quantised image over all spatial axes; the result is quantised."""

def q_linear_mat_mul(
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Quantised matrix product: int32 sums of MatMulInteger * a_scale * b_scale / y_scale, rounded, + y_zero_point."""

def q_linear_mul(
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Multiply two quantised tensors; the result is quantised."""

def quantize_linear(
    x: Operand,
    y_scale: Operand,
    y_zero_point: Operand | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    saturate: bool = True,
    output_dtype: DType | DTypeLike | None = None,
    precision: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """round(x / y_scale) + y_zero_point, clipped to the bounds of the result's type; ties go to even."""

def random_normal(
    rng: Operand | None = None,
    *,
    stream: int = 0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
    dtype: DType | DTypeLike = DType.FLOAT32,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Normal random numbers of a given shape, with the given mean and standard deviation `scale`."""

def random_normal_like(
    x: Operand,
    rng: Operand | None = None,
    *,
    stream: int = 0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    dtype: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Normal random numbers of the shape of x, with the given mean and standard deviation `scale`."""

def random_uniform(
    rng: Operand | None = None,
    *,
    stream: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
    dtype: DType | DTypeLike = DType.FLOAT32,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Uniform random numbers on [low, high) of a given shape."""

def random_uniform_like(
    x: Operand,
    rng: Operand | None = None,
    *,
    stream: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    dtype: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Uniform random numbers on [low, high) of the shape of x."""

def range(
    start: Operand,
    limit: Operand,
    delta: Operand,
    *,
    stash_type: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """start, start + delta, ... below `limit` (above it for a negative delta)."""

def reciprocal(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """1 / x."""

def reduce_l1(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Sum of absolute values over `axes` (default: all)."""

def reduce_l2(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Square root of the sum of squares over `axes` (default: all); where it is 0, the gradient is 0."""

def reduce_log_sum(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Logarithm of the sum over `axes` (default: all); -inf over no elements."""

def reduce_log_sum_exp(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Log of the sum of exponentials over `axes` (default: all), without overflow; -inf over no elements."""

def reduce_max(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Maximum over `axes` (default: all); NaN if an element is NaN."""

def reduce_mean(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Mean over `axes` (default: all); NaN over no elements. The mean of integers is rounded towards zero."""

def reduce_min(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Minimum over `axes` (default: all); NaN if an element is NaN."""

def reduce_prod(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Product over `axes` (default: all); 1 over no elements."""

def reduce_scatter_start(
    *xs: Operand | Sequence[Operand | None] | None, key: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Any:
    """Start a reduce-scatter of each x: after ReduceScatterWait, each rank has its slice of the sums over all ranks."""

def reduce_scatter_wait(
    *sums: Operand | Sequence[Operand | None] | None, key: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Wait for the reduce-scatter with this key."""

def reduce_sum(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Sum over `axes` (default: all); 0 over no elements."""

def reduce_sum_square(
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Sum of squares over `axes` (default: all)."""

def reduce_to_shape_of(x: Operand, like: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Sum `x` to the shape of `like`, over the axes along which `like` would broadcast to x's shape."""

def regex_full_match(
    x: Operand, *, pattern: str | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Whether the whole of each string matches `pattern`, a regular expression of RE2."""

def relu(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """max(x, 0); the gradient at 0 is 0."""

def reshape(
    x: Operand, shape: Operand, *, allowzero: bool = False, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Give x another shape; elements keep their row-major order."""

def resize(
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
    *,
    antialias: bool = False,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Resample x along `axes` (default: all) to `sizes`, or to floor(size * scales)."""

def resize_grad(
    dy: Operand,
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
    *,
    antialias: bool = False,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of Resize: add each element of dy to the elements of x that it was interpolated from."""

def reverse_sequence(
    x: Operand,
    sequence_lens: Operand,
    *,
    batch_axis: int = 1,
    time_axis: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Reverse the first `sequence_lens[b]` steps of batch entry b; the other steps stay."""

def rms_norm_grad(
    dy: Operand,
    x: Operand,
    scale: Operand,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Gradient of RMSNormalization with respect to x and scale."""

def rms_normalization(
    x: Operand,
    scale: Operand,
    *,
    axis: int = -1,
    epsilon: float = 1e-05,
    stash_type: int = 1,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """x / sqrt(mean(x * x) + epsilon) * scale, where the mean is taken over the axes from `axis` on."""

def rms_prop_update(
    weight: Operand,
    grad: Operand,
    square: Operand,
    lr: Operand,
    average: Operand | None = None,
    buffer: Operand | None = None,
    *,
    weight_decay: float = 0.0,
    alpha: float = 0.99,
    epsilon: float = 1e-08,
    momentum: float = 0.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """RMSProp: d = g / (sqrt(s') + epsilon); weight' = weight - lr * d."""

def rng_fold_in(rng: Operand, index: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Derive the state of another random generator, so that each iteration of a loop draws different numbers."""

def rnn(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Elman recurrent layer: h' = act(W x + Wb + R h + Rb) for each step of a sequence."""

def rnn_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value, Value]:
    """Gradient of RNN with respect to its operands. Operands and attributes: those of RNN."""

def rnn_recurrence(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """RNN that also returns the gates and states that its gradient needs. Operands and attributes: those of RNN."""

def rnn_recurrence_grad(
    dy: Operand | None,
    dy_h: Operand | None,
    gates: Operand,
    r: Operand,
    sequence_lens: Operand | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: str | Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Backward pass through time of an RNN: gradients with respect to its gates and initial state."""

def roi_align(
    x: Operand,
    rois: Operand,
    batch_indices: Operand,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Pool regions of images into bins of equal size: each bin is the mean (or maximum) of interpolated samples."""

def rotary_embedding(
    x: Operand,
    cos_cache: Operand,
    sin_cache: Operand,
    position_ids: Operand | None = None,
    *,
    interleaved: bool = False,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Rotate pairs of elements of each head by angles that depend on the position. Su et al. 2021, arXiv:2104.09864."""

def round(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Nearest integer; halves are rounded to the even one."""

def row_sparse_all_reduce_start(
    indices: Operand, rows: Operand, *, key: str, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Start an all-reduce of a row-sparse array; RowSparseAllReduceWait returns the sum."""

def row_sparse_all_reduce_wait(
    indices: Operand,
    rows: Operand,
    *started: Operand | Sequence[Operand | None] | None,
    key: str,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Wait for the all-reduce that RowSparseAllReduceStart has started with the same operands and key."""

def scaled_float8(
    x: Operand, maxima: Operand, *, to: DType | DTypeLike, name: str = "", meta: Mapping[str, str] | None = None
) -> tuple[Value, Value, Value]:
    """Convert x to 8-bit floats after scaling it so that the largest of `maxima` becomes the largest finite number."""

def scaler(
    x: Operand,
    *,
    offset: Sequence[float] = (),
    scale: Sequence[float] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """(x - offset) * scale; offset and scale hold one number, or one for each feature. The result is float32."""

def scan(
    *values: Operand | Sequence[Operand | None] | None,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    captures: int = 0,
    recompute: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Apply a subgraph to successive slices of the scan inputs, and pass a state from one iteration to the next."""

def scatter_elements(
    x: Operand,
    indices: Operand,
    updates: Operand,
    *,
    reduction: str = "none",
    axis: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return x with updates[i, j, ...] written to the index indices[i, j, ...] along `axis`."""

def scatter_nd(
    x: Operand,
    indices: Operand,
    updates: Operand,
    *,
    reduction: str = "none",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return x with the slices at some index tuples replaced: y[indices[i]] = updates[i] for each i."""

def selu(
    x: Operand,
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """gamma * x where x > 0, gamma * alpha * (exp(x) - 1) elsewhere. Klambauer et al. 2017, arXiv:1706.02515."""

def sequence_at(
    sequence: Operand, position: Operand, *, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """One element of a sequence. position: integer scalar; a negative one counts from the back."""

def sequence_at_grad(
    dy: Operand, sequence: Operand, position: Operand, *, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Gradient of SequenceAt: zeros of the shapes of `sequence`, with dy at `position`."""

def sequence_construct(
    *xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """A sequence of the operands. They have one element type; their shapes may differ."""

def sequence_element_sizes(
    sequence: Operand, *, axis: int = 0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """The sizes of a sequence's tensors along `axis`, as an int64 vector."""

def sequence_empty(
    *, dtype: DType | DTypeLike = DType.FLOAT32, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """An empty sequence of tensors of one element type."""

def sequence_erase(
    sequence: Operand, position: Operand | None = None, *, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Remove the element at `position` from a sequence; without `position`, remove the last one."""

def sequence_insert(
    sequence: Operand,
    x: Operand,
    position: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Insert an element into a sequence before `position`; without `position`, append it."""

def sequence_length(sequence: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The number of elements of a sequence, an int64 scalar."""

def sgd_update(
    weight: Operand,
    grad: Operand,
    lr: Operand,
    velocity: Operand | None = None,
    step: Operand | None = None,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Stochastic gradient descent with momentum, Nesterov's variant, dampening and weight decay."""

def shape(
    x: Operand, *, start: int = 0, end: int | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """The dimensions [start, end) of x as an int64 vector; negative bounds count from the back, all are clamped."""

def shrink(
    x: Operand, *, bias: float = 0.0, lambd: float = 0.5, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """x + bias below -lambd, x - bias above lambd, 0 between."""

def sigmoid(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """1 / (1 + exp(-x))."""

def sign(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """-1, 0 or 1 by the sign of x; its gradient is zero everywhere."""

def sin(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Sine of x in radians."""

def sinh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Hyperbolic sine."""

def size(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The number of elements of x, a 0-d int64 tensor."""

def slice(
    x: Operand,
    starts: Operand,
    ends: Operand,
    axes: Operand | None = None,
    steps: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """x[start:end:step] along each of `axes` (by default the first ones); bounds are clamped, steps may be negative."""

def slice_grad(
    dy: Operand,
    x: Operand,
    starts: Operand,
    ends: Operand,
    axes: Operand | None = None,
    steps: Operand | None = None,
    *,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of Slice: zeros of x's shape, with dy where Slice took its elements. Only x's shape is read."""

def slogdet(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> tuple[Value, Value]:
    """The sign of the determinant, and the logarithm of its absolute value, without overflow. a: [..., n, n]."""

def softmax(x: Operand, *, axis: int = -1, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """exp(x) / sum(exp(x)) along one axis. x: float tensor of rank >= 1; y has x's type."""

def softmax_cross_entropy_grad(
    dloss: Operand,
    log_prob: Operand,
    labels: Operand,
    weights: Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Gradient of SoftmaxCrossEntropyLoss for scores: weights[label] * (softmax - one_hot(label)) * dloss."""

def softmax_cross_entropy_loss(
    scores: Operand,
    labels: Operand,
    weights: Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Negative log likelihood of log_softmax(scores) along axis 1; the second output is these log-probabilities."""

def softmax_cross_entropy_with_grad(
    scores: Operand,
    labels: Operand,
    dloss: Operand,
    weights: Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    made: DType | DTypeLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """SoftmaxCrossEntropyLoss of rows of scores, reduced to one number, and its gradient, in one pass."""

def softmax_grad(
    dy: Operand, y: Operand, *, axis: int = -1, log: bool = False, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Gradient of Softmax along one axis: y * (dy - sum(dy * y)), where y is the result of Softmax."""

def softplus(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """log(1 + exp(x))."""

def softsign(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x / (1 + |x|)."""

def solve(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The solution x of a @ x = b. a: [..., n, n]; b: [..., n, k]; batches broadcast."""

def space_to_depth(
    x: Operand, *, blocksize: int, mode: str = "DCR", name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Rearrange blocks of pixels to channels, the inverse of DepthToSpace: [N, C, H*b, W*b] to [N, C*b*b, H, W]."""

def split(
    x: Operand,
    split: Operand | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Split x along `axis` into parts: of the sizes in `split`, or into `num_outputs` parts of one size."""

def split_to_sequence(
    x: Operand,
    split: Operand | None = None,
    *,
    axis: int = 0,
    keepdims: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Split x along `axis` into a sequence of parts."""

def sqrt(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Square root; NaN below 0."""

def squared_distances(x: Operand, y: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The squared Euclidean distance of each row of x from each row of y, as a sum of squared differences."""

def squeeze(x: Operand, axes: Operand | None = None, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Remove the given axes, whose dimensions must be 1; without `axes`, remove all dimensions of 1."""

def stft(
    signal: Operand,
    frame_step: Operand,
    window: Operand | None = None,
    frame_length: Operand | None = None,
    *,
    onesided: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Short-time Fourier transform: transforms of windowed frames, [batch, frames, frequencies, 2]."""

def stop_gradient(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return x unchanged, and stop the gradient: none flows to x."""

def straight_through(x: Operand, y: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Return the value of y, but pass the gradient to x: x gets the result's gradient unchanged, y gets none."""

def string_concat(x: Operand, y: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x followed by y, elementwise with numpy broadcasting."""

def string_normalizer(
    x: Operand,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: bool = False,
    locale: str | None = None,
    stopwords: str | Sequence[str] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Remove stop words from x, and change the other strings to lower or upper case."""

def string_split(
    x: Operand,
    *,
    delimiter: str | None = None,
    maxsplit: int | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Split each string at a delimiter; return the parts, padded with empty strings to one length, and their number."""

def sub(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """a - b with broadcasting."""

def sum(*xs: Operand | Sequence[Operand | None] | None, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Sum of the operands with broadcasting."""

def sumlogdiag(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """The sum of the logarithms of the diagonal; for a Cholesky factor a, half the log-determinant of a a^T."""

def svm_classifier(
    x: Operand,
    *,
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    coefficients: Sequence[float] = (),
    rho: Sequence[float] = (),
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: str | Sequence[str] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """Support vector classification: the class that wins most pairwise decisions, and the scores; float32."""

def svm_regressor(
    x: Operand,
    *,
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    coefficients: Sequence[float] = (),
    rho: Sequence[float] = (),
    post_transform: str = "NONE",
    n_supports: int = 0,
    one_class: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Support vector regression: sum of kernel(x, support vector) * coefficient, plus rho; float32."""

def swap_in(x: Operand, token: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Copy x, a result of SwapOut, back to GPU memory after `token` is computed. On the CPU, the result is x."""

def swap_out(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Copy x from GPU memory to host memory, in parallel to the following steps."""

def swi_glu(
    a: Operand, b: Operand, *, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """swish(a) * b, where swish(a) = a * sigmoid(alpha * a); a and b have one shape. Shazeer 2020, arXiv:2002.05202."""

def swish(x: Operand, *, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x * sigmoid(alpha * x). Ramachandran et al. 2017, arXiv:1710.05941."""

def syevd(a: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> tuple[Value, Value]:
    """Eigenvectors u (rows) and eigenvalues w (ascending) of a symmetric matrix: a = u^T diag(w) u."""

def syrk(
    a: Operand, *, transpose: bool = False, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """alpha * a @ a^T, or alpha * a^T @ a with `transpose`. a: [..., m, n]; the result is symmetric."""

def table_lookup(x: Operand, table: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Replace each integer of x by an element of a table. A table can represent any function of one 8-bit number."""

def table_update(
    rows: Operand,
    indices: Operand,
    *xs: Operand | Sequence[Operand | None] | None,
    body: Graph,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Any:
    """Update a table and its optimizer states from a row-sparse gradient. `body` contains pointwise operators."""

def tan(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Tangent of x in radians."""

def tanh(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Hyperbolic tangent."""

def tensor_scatter(
    cache: Operand,
    update: Operand,
    write_indices: Operand | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Write a shorter update into a cache along `axis`; each batch entry has its own start position."""

def tf_idf_vectorizer(
    x: Operand,
    *,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    pool_int64s: Sequence[int] | None = None,
    pool_strings: str | Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Count how often each n-gram of a pool is in x, or in each row of x: float32 [places] or [rows, places]."""

def thresholded_relu(x: Operand, *, alpha: float = 1.0, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """x where x > alpha, 0 elsewhere."""

def tile(x: Operand, repeats: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Repeat x `repeats[i]` times along axis i; repeats: int64 vector with one element per axis of x."""

def tokenized_ngrams(x: Operand, *, body: Graph, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Split texts into words, and count the n-grams of each text: float32 [N, places]."""

def tokenizer(
    x: Operand,
    *,
    mark: bool,
    mincharnum: int,
    pad_value: str,
    separators: str | Sequence[str] | None = None,
    tokenexp: str | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Split each string of x, [C] or [rows, C], into words along one more axis, padded with `pad_value`."""

def top_k(
    x: Operand,
    k: Operand,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """The k largest (or smallest) elements along `axis`, and their int64 indices."""

def transpose(
    x: Operand, *, perm: Sequence[int] | None = None, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """Permute the axes of x to the order `perm`; reverse their order when `perm` is absent."""

def tree_ensemble(
    x: Operand,
    *,
    tree_roots: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Tensor | ArrayLike,
    nodes_splits: Tensor | ArrayLike,
    nodes_truenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_falseleafs: Sequence[int],
    leaf_targetids: Sequence[int],
    leaf_weights: Tensor | ArrayLike,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_hitrates: Tensor | ArrayLike | None = None,
    membership_values: Tensor | ArrayLike | None = None,
    n_targets: int | None = None,
    aggregate_function: int = 1,
    post_transform: int = 0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return, for each example and target, the sum of the weights of the leaves that the example reaches."""

def tree_ensemble_classifier(
    x: Operand,
    *,
    nodes_treeids: Sequence[int] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_modes: str | Sequence[str] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Tensor | ArrayLike | None = None,
    nodes_truenodeids: Sequence[int] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Tensor | ArrayLike | None = None,
    base_values: Sequence[float] = (),
    base_values_as_tensor: Tensor | ArrayLike | None = None,
    post_transform: str = "NONE",
    class_treeids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_ids: Sequence[int] = (),
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: Tensor | ArrayLike | None = None,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: str | Sequence[str] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> tuple[Value, Value]:
    """The class whose sum of weights is the largest, and the transformed sums of all classes; float32."""

def tree_ensemble_regressor(
    x: Operand,
    *,
    nodes_treeids: Sequence[int] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_modes: str | Sequence[str] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Tensor | ArrayLike | None = None,
    nodes_truenodeids: Sequence[int] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Tensor | ArrayLike | None = None,
    base_values: Sequence[float] = (),
    base_values_as_tensor: Tensor | ArrayLike | None = None,
    post_transform: str = "NONE",
    n_targets: int | None = None,
    aggregate_function: str = "SUM",
    target_treeids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_ids: Sequence[int] = (),
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: Tensor | ArrayLike | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return, for each example and target, the sum of the weights of the leaves that the example reaches."""

def trilu(
    x: Operand, k: Operand | None = None, *, upper: bool = True, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """The upper (or with upper=False the lower) triangle of the last two axes, zeros elsewhere."""

def trmm(
    a: Operand,
    b: Operand,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """alpha * op(a) @ b, or alpha * b @ op(a) with `rightside`; op transposes if `transpose` is set."""

def trsm(
    a: Operand,
    b: Operand,
    *,
    transpose: bool = False,
    rightside: bool = False,
    lower: bool = True,
    alpha: float = 1.0,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """The solution x of op(a) @ x = alpha * b, or of x @ op(a) = alpha * b with `rightside`."""

def unique(
    x: Operand, *, axis: int | None = None, sorted: bool = True, name: str = "", meta: Mapping[str, str] | None = None
) -> tuple[Value, Value, Value, Value]:
    """The distinct elements of x, or its distinct slices along `axis`, sorted or in order of first occurrence."""

def unsqueeze(x: Operand, axes: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Insert a dimension of 1 at each of `axes`, which are positions in the result."""

def weight_only_mat_mul(
    a: Operand,
    w: Operand,
    scale: Operand,
    zero_point: Operand | None = None,
    *,
    block_size: int,
    bits: int = 8,
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Multiply a by quantised weights: a @ transpose((w - zero_point) * scale)."""

def where(
    condition: Operand, a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None
) -> Value:
    """a where the condition is true, b elsewhere, with broadcasting. condition: bool; a, b: tensors of one dtype."""

def xor(a: Operand, b: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Logical exclusive or of two bool tensors, with broadcasting."""

def zeros_like(x: Operand, *, name: str = "", meta: Mapping[str, str] | None = None) -> Value:
    """Zeros of the shape and type of x: a tensor, or a sequence or optional of tensors."""

def zip_map(
    x: Operand,
    *,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: str | Sequence[str] = (),
    name: str = "",
    meta: Mapping[str, str] | None = None,
) -> Value:
    """Return a sequence with one map for each row of x: from the labels to the elements of the row."""
