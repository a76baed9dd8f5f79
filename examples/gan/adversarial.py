"""Adversarial training of two networks (Goodfellow et al. 2014), as a training step of our own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import graphkit as gk


def adversarial_step(
    generator: gk.Model,
    discriminator: gk.Model,
    optimizers: tuple[gk.optim.Optimizer, gk.optim.Optimizer],
    *,
    smoothing: float = 0.0,
    feed_noise: bool = False,
) -> gk.TrainingStep:
    """Return a step in which the discriminator learns first, and then the generator from the updated discriminator.

    The step returns the binary cross entropies of both networks before their updates: "generator" is -log D(G(z)), and
    "discriminator" the sum of its losses for real and for generated samples.

    Args:
        generator: A network from noise [N, k] to samples.
        discriminator: A network from samples to the logit for "this sample is real".
        optimizers: Those of generator and discriminator.
        smoothing: The discriminator's target for real samples is 1 - smoothing (Salimans et al. 2016).
        feed_noise: Whether the noise is an input of the step. By default, the step draws it from a standard normal
            distribution.
    """
    step = gk.StepBuilder()
    g, d = step.network(generator, "generator"), step.network(discriminator, "discriminator")
    (sample,) = discriminator.input_types.values()
    (latent,) = generator.input_types.values()
    real = gk.input("real", sample.shape, sample.dtype)
    if feed_noise:
        noise = gk.input("noise", latent.shape, latent.dtype)
    else:
        shape = gk.concat(gk.shape(real, start=0, end=1), np.array(latent.shape[1:], np.int64), axis=0)
        noise = gk.random_normal_like(gk.expand(np.zeros((), latent.dtype.numpy), shape))

    fake = g(noise)
    loss = cross_entropy(d(real), 1 - smoothing) + cross_entropy(d(gk.stop_gradient(fake)), 0.0)
    step.minimize(loss, d, optimizers[1])
    generator_loss = cross_entropy(d(fake), 1.0)
    step.minimize(generator_loss, g, optimizers[0])
    return step.build({"generator": generator_loss, "discriminator": loss}, name="adversarial_step")


def cross_entropy(logits: gk.Value, target: float) -> gk.Value:
    """Return the mean binary cross entropy of logits, with the same target for all."""
    return gk.losses.sigmoid_binary_cross_entropy(logits, gk.constant(value=np.array(target, logits.dtype.numpy)))


def fit(
    trainer: gk.CustomTrainer, images: np.ndarray, epochs: int, batch_size: int = 64, folder: Path | None = None
) -> list[dict[str, float]]:
    """Train for `epochs` more epochs; return the mean losses of each epoch.

    A last, smaller batch is left out, because its batch statistics would differ. With a folder, a checkpoint is
    written after each epoch; `trainer.resume(folder)` continues from it, bit for bit.
    """
    data = gk.data.Dataset(images)
    history = []
    for _ in range(epochs):
        epoch = trainer.notes.get("epochs", 0)
        batches = data.batches(batch_size, seed=trainer.seed, epoch=epoch, drop_last=True)
        losses = [trainer.step({"real": samples}) for samples, _ in batches]
        history.append({name: float(np.mean([step[name] for step in losses])) for name in losses[0]})
        trainer.notes["epochs"] = epoch + 1
        if folder is not None:
            trainer.save(folder)
    return history
