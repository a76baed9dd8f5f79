"""Train a convolutional network in PyTorch and in graphkit on the same batches, and compare the losses.

python examples/pytorch/both_sides.py
python examples/pytorch/both_sides.py --optimizer sgd --epochs 3
"""

from __future__ import annotations

import click
import numpy as np
import torch
from torch import nn

import graphkit as gk

OPTIMIZERS = {
    "adam": (gk.optim.Adam(1e-3), lambda parameters: torch.optim.Adam(parameters, 1e-3)),
    "sgd": (gk.optim.SGD(0.05, momentum=0.9), lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9)),
}


def network() -> nn.Module:
    """Two convolutions with batch normalisation, for images of 8x8 pixels and 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


@click.command()
@click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="adam", show_default=True)
@click.option("--epochs", default=1, show_default=True)
@click.option("--batch-size", default=64, show_default=True)
def main(optimizer: str, epochs: int, batch_size: int) -> None:
    """Train on the digits that come with graphkit."""
    torch.manual_seed(0)
    train, test = gk.data.load("digits")
    module = network()
    net = gk.from_torch(module, torch.zeros(2, 1, 8, 8), train=True)
    ours, theirs = OPTIMIZERS[optimizer]
    trainer, stepper = gk.Trainer(net, optimizer=ours), theirs(module.parameters())
    module.train()
    worst = 0.0
    for epoch in range(epochs):
        for batch in train.batches(batch_size, seed=0, epoch=epoch):
            loss = float(trainer.step(batch.inputs, batch.targets))
            images, classes = torch.from_numpy(np.array(batch.inputs)), torch.from_numpy(np.array(batch.targets))
            reference = nn.functional.cross_entropy(module(images), classes)
            stepper.zero_grad()
            reference.backward()
            stepper.step()
            worst = max(worst, abs(loss - reference.item()) / reference.item())
        print(f"epoch {epoch + 1}: loss {loss:.6f} here, {reference.item():.6f} in PyTorch")
    print(f"{trainer.updates} updates; largest relative difference of the losses: {worst:.1e}")
    images, classes = test.take(np.arange(len(test)))
    with torch.no_grad():
        in_pytorch = module.eval()(torch.from_numpy(np.array(images))).argmax(1).numpy()
    here = net.run({net.inputs[0]: np.asarray(images)})["output"].argmax(1)
    print(f"accuracy on {len(test)} test images: {(here == classes).mean():.4f} here, ", end="")
    print(f"{(in_pytorch == classes).mean():.4f} in PyTorch")


if __name__ == "__main__":
    main()
