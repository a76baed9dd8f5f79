"""Write a training step of LeNet, and the images and labels of the digits, into the current folder."""

import numpy as np

import graphkit as gk

train, _ = gk.data.load("digits")
net = gk.models.build("lenet", image=(1, 8, 8), classes=10)
gk.Trainer(net, optimizer=gk.optim.Adam(1e-3)).to_onnx("step.onnx")
np.asarray(train.inputs, np.float32).tofile("images.bin")
np.asarray(train.targets, np.int64).tofile("labels.bin")
