"""The graphs of a training step: loss, gradients and updates, for one rank or for several."""
