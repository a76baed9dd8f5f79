"""Defaults of training, in Python and on the command line."""

from __future__ import annotations

LOSS = "softmax_cross_entropy"
OPTIMIZER = "sgd"  # by its name: see `optim.get`
BATCH_SIZE = 64
EPOCHS = 1
# Updates between lines of the log.
LOG_EVERY = 50
# What early stopping and the best model go by.
MONITOR = "valid_loss"
# Of losses by name, what is measured beside them on the command line when nothing is asked for.
METRICS = {
    "softmax_cross_entropy": ("accuracy",),
    "sigmoid_binary_cross_entropy": ("accuracy",),
    "mse": ("mse",),
    "huber": ("mse",),
    "l1": ("mae",),
}
# How BatchNormalization is computed in training, the first one by default.
BATCH_NORM = ("train", "frozen")
