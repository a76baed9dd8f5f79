"""Defaults of training, in Python and on the command line."""

from __future__ import annotations

LOSS = "softmax_cross_entropy"
OPTIMIZER = "sgd"
BATCH_SIZE = 64
EPOCHS = 1
LOG_EVERY = 50
MONITOR = "valid_loss"
METRICS = {
    "softmax_cross_entropy": ("accuracy",),
    "sigmoid_binary_cross_entropy": ("accuracy",),
    "mse": ("mse",),
    "huber": ("mse",),
    "l1": ("mae",),
    "SoftmaxOutput": ("accuracy",),
    "Softmax": ("accuracy",),
    "SVMOutput": ("accuracy",),
    "LogisticRegressionOutput": ("accuracy",),
    "LinearRegressionOutput": ("mse",),
    "MAERegressionOutput": ("mae",),
}
# The first one is the default.
BATCH_NORM = ("train", "frozen")
