"""A variational autoencoder (Kingma and Welling 2013), and its loss."""

from __future__ import annotations

import math

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import image_shape, positive
from graphkit.models._registry import network
from graphkit.ops import F


@network
def vae(image: tuple[int, ...] = (1, 28, 28), hidden: int = 400, latent: int = 20) -> Model:
    """One hidden layer of ReLU units in encoder and decoder, a normal latent variable, Bernoulli pixels.

    Inputs: x is float32 [N, *image] in [0, 1]. noise is float32 [N, latent]. In training, the caller draws it from the
    standard normal distribution. Zeros decode the mean, so the exported network is deterministic.

    Outputs: logits is [N, *image], for the pixels. mean and log_variance are [N, latent].

    Training: Use `negative_elbo`.

    Parameters: encode_*, mean_*, log_variance_*, decode1_*, decode2_*. 652,824 with the default options.
    """
    channels, height, width = image_shape("vae", image)
    positive("vae", hidden=hidden, latent=latent)
    pixels = math.prod((channels, height, width))
    x = nn.input("x", ["N", channels, height, width])
    noise = nn.input("noise", ["N", latent])
    h = F.relu(nn.linear(F.flatten(x, axis=1, name="flat"), hidden, name="encode"), name="relu1")
    mean = nn.linear(h, latent, name="mean")
    log_variance = nn.linear(h, latent, name="log_variance")
    deviation = F.exp(F.mul(log_variance, 0.5))
    z = F.add(mean, F.mul(noise, deviation), name="z")
    h = F.relu(nn.linear(z, hidden, name="decode1"), name="relu2")
    logits = F.reshape(nn.linear(h, pixels, name="decode2"), np.array([-1, channels, height, width]), name="logits")
    return Model({"logits": logits, "mean": mean, "log_variance": log_variance}, name="vae")


def negative_elbo(logits: Value, mean: Value, log_variance: Value, target: Value) -> Value:
    """Loss of a VAE: mean over the batch of -log p(target | z) + KL(q(z | x) || N(0, I)), equation 10.

    logits, target: [N, ...]; target: the pixels, in [0, 1]. mean, log_variance: [N, latent].
    """
    likelihood = F.sub(F.mul(logits, target), F.softplus(logits))
    per_image = F.reduce_sum(F.flatten(likelihood, axis=1), np.array([1]), keepdims=False)
    terms = F.sub(F.sub(F.add(log_variance, 1.0), F.mul(mean, mean)), F.exp(log_variance))
    divergence = F.mul(F.reduce_sum(terms, np.array([1]), keepdims=False), -0.5)
    return F.reduce_mean(F.sub(divergence, per_image), keepdims=False)
