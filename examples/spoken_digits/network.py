"""A classifier of sound waves: a logarithmic mel spectrogram, then convolutions. The ONNX file reads the wave."""

from __future__ import annotations

import numpy as np

import graphkit as gk

RATE = 8000  # samples per second
FRAME, STEP = 256, 128  # samples per frame, and between the starts of two frames: 32 and 16 ms
BANDS = 40  # number of bands of the mel scale, from 20 Hz to half the rate


def make(inputs: int = 8192, classes: int = 10, width: int = 24, dropout: float = 0.3) -> gk.Model:
    """Three stages of two 3x3 convolutions over the spectrogram, its mean, and a linear layer.

    x: int16 [N, inputs], a wave of 8 kHz; logits: float32 [N, classes]. `width` is the number of channels of the first
    stage. It doubles with each further stage.
    """
    x = gk.input("x", ["N", inputs], dtype="int16")
    h = gk.unsqueeze(log_mel(gk.cast(x, to="float32")), np.array([1]))  # [N, 1, frames, bands]
    for stage in range(3):
        for place in range(2):
            name = f"stage{stage + 1}/{place}"
            h = gk.nn.conv2d(h, width << stage, 3, pad=1, bias=False, init="he_normal", name=f"{name}/conv")
            h = gk.relu(gk.nn.batch_norm(h, name=f"{name}/bn"))
        h = gk.nn.max_pool2d(h, 2) if stage < 2 else h
    h = gk.nn.dropout(gk.flatten(gk.nn.global_avg_pool(h)), dropout)
    return gk.Model({"logits": gk.nn.linear(h, classes, name="fc")}, name="spoken_digits")


def log_mel(wave: gk.Value) -> gk.Value:
    """Return the logarithms of the power in the bands of the mel scale, [N, frames, bands], of waves [N, samples].

    They do not depend on the volume: a wave is scaled to a maximum of 1, and the mean is subtracted.
    """
    loudest = gk.reduce_max(gk.abs(wave), np.array([1]))
    signal = gk.unsqueeze(wave / gk.max(loudest, np.float32(1)), np.array([2]))
    window = gk.hann_window(np.int64(FRAME))
    spectrum = gk.stft(signal, np.int64(STEP), window, np.int64(FRAME))  # [N, frames, FRAME / 2 + 1, 2]
    power = gk.reduce_sum(spectrum * spectrum, np.array([3]), keepdims=False)
    bands = gk.mel_weight_matrix(np.int64(BANDS), np.int64(FRAME), np.int64(RATE), np.float32(20), np.float32(RATE / 2))
    logs = gk.log(power @ bands + np.float32(1e-3))
    return logs - gk.reduce_mean(logs, np.array([1, 2]))
