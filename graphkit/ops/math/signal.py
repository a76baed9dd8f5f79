"""Signal processing: window functions, the mel filter bank, DFT and STFT.

A complex number is a last axis of two elements, real and imaginary; a real signal has a last axis of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.bounds import at_least_zero
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, INDICES, NUMERIC, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, i64, normal_axis
from graphkit.ops.pointwise import scalar_like


def _scalar(operand: TensorType | None, what: str) -> Dim | None:
    """Return the known value of an operand with one element; None if unknown. Raises TypeMismatch for a vector."""
    if operand is None:
        return None
    if operand.shape is not None and any(d != 1 for d in operand.shape if dims.is_static(d)):
        raise TypeMismatch(f"{what} must be a scalar, not {operand}")
    return None if operand.value is None else operand.value[0]


# --- windows --------------------------------------------------------------------------------------


class _Window(Op):
    """Base of windows: cosine sums over `size` points (0-d integer) with period `size`, or `size` - 1 if not periodic.

    A window of one point that is not periodic is 1.
    """

    output_datatype: DType = DType.FLOAT32
    periodic: bool = True
    inputs = ("size",)
    types = {"size": INDICES}
    samples = lambda: (
        Sample(np.int64(10)),
        Sample(np.int32(7), periodic=False),
        Sample(np.int64(6), output_datatype="float64"),
        Sample(np.int64(1)),
        # onnx=False: its evaluator computes in the element type, in integers too, and divides by the length 0.
        Sample(np.int64(5), output_datatype="float16", periodic=False, onnx=False),
        Sample(np.int64(5), output_datatype="int32", onnx=False),
        Sample(np.int64(1), periodic=False, onnx=False),
        Sample(np.int64(0), onnx=False),
    )

    def infer(self, size: TensorType) -> TensorType:
        length = _scalar(size, "size")
        if length is not None and dims.is_static(length) and length < 0:
            raise TypeMismatch(f"the size of a window must be at least 0, not {length}")
        if self.output_datatype not in NUMERIC:
            raise TypeMismatch(f"output_datatype must be a number type, not {self.output_datatype}")
        return TensorType(self.output_datatype, (dims.fresh() if length is None else length,))

    def cosines(self, xp: Any, size: Any, *weights: float) -> Any:
        """Return the sum over k of weights[k] * cos(2 pi k n / period), in float64."""
        count = int(size.reshape(()))
        if count < 0:
            raise RuntimeFailure(f"the size of a window must be at least 0, not {count}")
        if count == 1 and not self.periodic:
            return xp.ones(1)
        turn = xp.arange(count, dtype=xp.float64) * (2 * np.pi / max(count if self.periodic else count - 1, 1))
        total = xp.zeros(count)
        for k, weight in enumerate(weights):
            total = total + weight * xp.cos(k * turn)
        return total


@op
class HannWindow(_Window):
    """Hann window: 0.5 - 0.5 cos(2 pi n / period) for n below `size`, a 0-d integer.

    The period is `size`, or size - 1 with periodic=False.
    """

    onnx = Onnx("HannWindow", since=17)

    def reference(self, xp: Any, size: Any) -> Any:
        return self.cosines(xp, size, 0.5, -0.5)


@op
class HammingWindow(_Window):
    """Hamming window: 25/46 - 21/46 cos(2 pi n / period) for n below `size`, a 0-d integer.

    The period is `size`, or size - 1 with periodic=False.
    """

    onnx = Onnx("HammingWindow", since=17)

    def reference(self, xp: Any, size: Any) -> Any:
        return self.cosines(xp, size, 25 / 46, -21 / 46)


@op
class BlackmanWindow(_Window):
    """Blackman window: 0.42 - 0.5 cos(2 pi n / period) + 0.08 cos(4 pi n / period) for n below `size`.

    size: a 0-d integer. The period is `size`, or size - 1 with periodic=False.
    """

    onnx = Onnx("BlackmanWindow", since=17)

    def reference(self, xp: Any, size: Any) -> Any:
        return self.cosines(xp, size, 0.42, -0.5, 0.08)


@op
class MelWeightMatrix(Op):
    """Triangular mel filters, equally spaced on the mel scale: [dft_length // 2 + 1, num_mel_bins].

    All operands are 0-d. sample_rate and the edges are in hertz. mel(f) = 2595 log10(1 + f / 700). The filters lie
    between the two edges. Their corners are rounded down to bins of the spectrum, so the edges get no gradient.
    """

    output_datatype: DType = DType.FLOAT32
    inputs = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    types = {
        "num_mel_bins": INDICES,
        "dft_length": "num_mel_bins",
        "sample_rate": "num_mel_bins",
        "lower_edge_hertz": FLOATS,
        "upper_edge_hertz": "lower_edge_hertz",
    }
    onnx = Onnx("MelWeightMatrix", since=17)
    samples = lambda: (
        Sample(np.int64(8), np.int64(64), np.int64(8192), np.float32(0), np.float32(4096)),
        Sample(np.int32(5), np.int32(33), np.int32(8000), np.float32(64), np.float32(3800)),
        # More filters than bins, so some filters have width 0.
        Sample(np.int64(12), np.int64(16), np.int64(8192), np.float32(20), np.float32(4000), output_datatype="float64"),
    )

    def infer(self, *operands: TensorType) -> TensorType:
        filters, length, *_ = (_scalar(x, f.name) for x, f in zip(operands, self.formals, strict=True))
        if self.output_datatype not in NUMERIC:
            raise TypeMismatch(f"output_datatype must be a number type, not {self.output_datatype}")
        rows = dims.fresh() if length is None else dims.floordiv(length, 2) + 1
        return TensorType(self.output_datatype, (rows, dims.fresh() if filters is None else filters))

    def reference(self, xp: Any, filters: Any, length: Any, rate: Any, lower: Any, upper: Any) -> Any:
        count, points, hertz = (int(x.reshape(())) for x in (filters, length, rate))
        low, high = (2595 * np.log10(1 + float(x.reshape(())) / 700) for x in (lower, upper))
        mels = low + xp.arange(count + 2) * ((high - low) / (count + 2))
        edges = xp.floor((points + 1) * 700 * xp.expm1(mels * (np.log(10) / 2595)) / hertz)
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        bins = xp.arange(points // 2 + 1)[:, None]
        rising = xp.where(left == centre, 1.0, (bins - left) / xp.where(left == centre, 1.0, centre - left))
        falling = (right - bins) / xp.where(right == centre, 1.0, right - centre)
        result = xp.where((bins >= left) & (bins <= centre), rising, 0.0)
        return xp.where((bins > centre) & (bins < right), falling, result)

    def grad(self, node: Node, dy: Any) -> Any:
        return (None,) * 5


# --- Fourier transforms ---------------------------------------------------------------------------


@op
class DFT(Op):
    """Discrete Fourier transform along `axis`; `inverse` divides by n.

    axis: 0-d, default -2: the last axis of the signal. x: [..., n, ..., 1 or 2]. dft_length: 0-d, default n: the signal
    is cut to this length, or padded with zeros. The result is complex. The last axis contains real numbers (size 1) or
    real and imaginary parts (size 2). onesided: the result has only the first dft_length // 2 + 1 elements. With
    `onesided` and `inverse` x holds these elements, and the result is real, with a default length of 2 * (n - 1).
    """

    inverse: bool = False
    onesided: bool = False
    inputs = ("x", "dft_length?", "axis?")
    types = {"x": FLOATS, "dft_length": INDICES, "axis": INT64}
    onnx = Onnx("DFT", since=20)
    samples = lambda: (
        Sample((2, 5, 1)),
        Sample((2, 4, 3, 2), None, np.int64(1)),
        Sample((2, 4, 1), onesided=True),
        Sample((5, 2, 1), None, np.int64(0), onesided=True),
        Sample((2, 5, 2), np.int64(8), np.int64(-2)),
        Sample((2, 5, 1), np.int32(3), onesided=True),
        Sample((2, 5, 2), inverse=True),
        Sample((2, 5, 2), np.int64(7), np.int64(1), inverse=True),
        Sample((2, 5, 1), inverse=True),
        Sample((2, 4, 2), inverse=True, onesided=True),
        Sample((2, 4, 2), np.int64(5), np.int64(1), inverse=True, onesided=True),
        Sample((3, 2, 2), np.int64(10), np.int64(0), inverse=True, onesided=True),
    )

    def infer(self, x: TensorType, dft_length: TensorType | None = None, axis: TensorType | None = None) -> TensorType:
        length, where = _scalar(dft_length, "dft_length"), -2 if axis is None else _scalar(axis, "axis")
        last = 1 if self.inverse and self.onesided else 2
        if x.shape is None:
            return TensorType(x.dtype)
        if len(x.shape) < 2 or (dims.is_static(x.shape[-1]) and x.shape[-1] not in (1, 2)):
            raise TypeMismatch(
                "the last axis of a signal must have size 1 (real) or 2 (complex), after at least one other axis; "
                f"it is {x}"
            )
        if where is None or not dims.is_static(where):
            return TensorType(x.dtype, (*(dims.fresh() for _ in x.shape[1:]), last))
        place = normal_axis(where, len(x.shape))
        if place == len(x.shape) - 1:
            raise TypeMismatch("the last axis holds real and imaginary parts; it cannot be transformed")
        if dft_length is None:
            length = self._default(x.shape[place])
        shape = list(x.shape)
        size: Dim = dims.fresh() if length is None else length
        shape[place] = dims.floordiv(size, 2) + 1 if self.onesided and not self.inverse and length is not None else size
        shape[-1] = last
        return TensorType(x.dtype, shape)

    def _default(self, n: Any) -> Any:
        return 2 * (n - 1) if self.inverse and self.onesided else n

    def reference(self, xp: Any, x: Any, dft_length: Any = None, axis: Any = None) -> Any:
        place = normal_axis(-2 if axis is None else int(axis.reshape(())), x.ndim)
        n = self._default(x.shape[place]) if dft_length is None else int(dft_length.reshape(()))
        if n < 1:
            raise RuntimeFailure(f"the length of a transform must be at least 1, not {n}")
        signal = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
        if self.inverse and self.onesided:
            return xp.expand_dims(xp.fft.irfft(signal, n=n, axis=place), -1)
        spectrum = (xp.fft.ifft if self.inverse else xp.fft.fft)(signal, n=n, axis=place)
        if self.onesided:
            spectrum = spectrum[(*(slice(None),) * place, slice(0, n // 2 + 1))]
        return xp.stack((spectrum.real, spectrum.imag), axis=-1)

    def grad(self, node: Node, dy: Any) -> Any:
        # The transform is linear over the reals: this is its transpose. dft_length pads with zeros.
        x, dft_length, axis = self.named_inputs(node.inputs).values()
        along = i64(-2) if axis is None else F.reshape(axis, i64(1))
        sizes = F.gather(F.shape(x), along, axis=0)
        n = self._default(sizes) if dft_length is None else F.reshape(F.cast(dft_length, to=DType.INT64), i64(1))
        scale = F.cast(n, to=x.dtype)
        if not self.inverse:
            back = F.dft(dy, F.squeeze(n), axis, inverse=True) * scale
        elif not self.onesided:
            back = F.dft(dy, None, axis) / scale
        else:
            back = F.dft(dy, None, axis, onesided=True) / scale * self._multiplicity(node, n, x)
        if dft_length is not None:
            back = F.slice(back, i64(0), sizes, along)
            missing = F.sub(sizes, F.gather(F.shape(back), along, axis=0))
            back = F.pad(back, F.concat(i64(0), missing, axis=0), None, along)
        parts = F.gather(F.shape(x), i64(-1), axis=0)
        return (F.slice(back, i64(0), parts, i64(-1)), None, None)[: len(node.inputs)]

    @staticmethod
    def _multiplicity(node: Node, n: Any, x: Any) -> Any:
        """Return how often (1 or 2) each element of a one-sided spectrum of n points occurs in the whole spectrum."""
        axis = (*node.inputs, None, None)[2]
        where = (-2,) if axis is None else axis.tensor.constants
        if where is None or x.rank is None:
            raise UnsupportedError(f"{node.describe()}: its gradient needs a known axis of an operand of known rank")
        half = F.div(n, i64(2)) + 1
        k = F.range(np.int64(0), F.squeeze(half), np.int64(1))
        once = F.or_(F.equal(k, i64(0)), F.equal(F.mul(k, i64(2)), n))
        counts = F.where(once, scalar_like(1.0, x), scalar_like(2.0, x))
        trailing = x.rank - 1 - normal_axis(where[0], x.rank)
        return F.reshape(counts, i64(-1, *(1,) * trailing))


@op
class STFT(Op):
    """Short-time Fourier transform: transforms of windowed frames, [batch, frames, frequencies, 2].

    signal: [batch, length, 1] if it is real, or [batch, length, 2] with real and imaginary parts. The last axis of the
    result has real and imaginary parts, too. frame_step: 0-d, the number of samples from one frame to the next; window:
    [frame_length], ones by default; frame_length: 0-d, by default the window's or the signal's length. frames = (length
    - frame_length) // frame_step + 1. frequencies = frame_length // 2 + 1 with `onesided`, else frame_length.
    """

    onesided: bool = True
    inputs = ("signal", "frame_step", "window?", "frame_length?")
    types = {"signal": FLOATS, "frame_step": INDICES, "window": "signal", "frame_length": "frame_step"}
    onnx = Onnx("STFT", since=17)
    composite = True
    samples = lambda: (
        Sample((2, 11, 1), np.int64(3), (4,)),
        Sample((2, 11, 1), np.int64(2), None, np.int64(5)),
        Sample((1, 9, 2), np.int64(4), (4,), np.int64(4), onesided=False),
        Sample((1, 8, 1), np.int32(8), None, np.int32(8), onesided=False),
        # onnx=False: onnx's evaluator drops the frame if it is the whole signal.
        Sample((2, 6, 1), np.int64(1), onnx=False),
    )

    def infer(
        self,
        signal: TensorType,
        frame_step: TensorType,
        window: TensorType | None = None,
        frame_length: TensorType | None = None,
    ) -> TensorType:
        step, length = _scalar(frame_step, "frame_step"), _scalar(frame_length, "frame_length")
        if signal.rank not in (None, 3) or (window is not None and window.rank not in (None, 1)):
            raise TypeMismatch(
                f"STFT takes a signal [batch, length, 1 or 2] and a window that is a vector, not {signal} and {window}"
            )
        batch, total = (dims.fresh(), dims.fresh()) if signal.shape is None else signal.shape[:2]
        if window is not None and window.shape is not None:
            if length is not None and not dims.may_equal(length, window.shape[0]):
                raise TypeMismatch(f"the window must have frame_length = {length} elements; it is {window}")
            length = window.shape[0] if length is None else length
        elif window is None and frame_length is None:
            length = total
        if step is not None and dims.is_static(step) and step < 1:
            raise TypeMismatch(f"frame_step must be at least 1, not {step}")
        if length is None:
            return TensorType(signal.dtype, (batch, dims.fresh(), dims.fresh(), 2))
        frequencies = dims.floordiv(length, 2) + 1 if self.onesided else length
        frames: Dim = dims.fresh()
        if step is not None and dims.is_static(step):
            frames = at_least_zero(dims.floordiv(total - length, step) + 1)
        return TensorType(signal.dtype, (batch, frames, frequencies, 2))

    def reference(self, xp: Any, signal: Any, frame_step: Any, window: Any = None, frame_length: Any = None) -> Any:
        step, total = int(frame_step.reshape(())), signal.shape[1]
        if frame_length is not None:
            length = int(frame_length.reshape(()))
        else:
            length = total if window is None else window.shape[0]
        if step < 1 or length < 1 or (window is not None and window.shape != (length,)):
            raise RuntimeFailure(
                f"frame_step ({step}) and frame_length ({length}) must be at least 1, and a window must have "
                f"frame_length elements; the window is {None if window is None else window.shape}"
            )
        starts = xp.arange(max((total - length) // step + 1, 0)) * step
        frames = signal[:, starts[:, None] + xp.arange(length)]
        if window is not None:
            frames = frames * window[:, None]
        return DFT(onesided=self.onesided).reference(xp, frames)

    def expand(self, signal: Any, frame_step: Any, window: Any = None, frame_length: Any = None) -> Any:
        zero, one = np.int64(0), np.int64(1)
        step = F.reshape(F.cast(frame_step, to=DType.INT64), i64())
        total = F.squeeze(F.shape(signal)[1:2])
        if frame_length is not None:
            length = F.reshape(F.cast(frame_length, to=DType.INT64), i64())
        else:
            length = total if window is None else F.squeeze(F.shape(window))
        # Div rounds towards zero: a signal shorter than a frame has a count of at most 0.
        count = F.div(F.add(F.sub(total, length), step), step)
        starts = F.mul(F.range(zero, count, one), step)
        frames = F.gather(signal, F.add(F.unsqueeze(starts, i64(1)), F.range(zero, length, one)), axis=1)
        if window is not None:
            frames = frames * F.unsqueeze(window, i64(1))
        return F.dft(frames, onesided=self.onesided)
