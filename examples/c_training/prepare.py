"""Write a training step of LeNet, and the images and labels of the digits, into the current folder."""

import numpy as np

import graphkit as gk

train, _ = gk.data.load("digits")
net = gk.models.build("lenet", image=(1, 8, 8), classes=10)
gk.Trainer(net, optimizer=gk.optim.Adam(1e-3)).to_onnx("step.onnx")
np.asarray(train.inputs, np.float32).tofile("images.bin")
np.asarray(train.targets, np.int64).tofile("labels.bin")

# The same step as programs for this computer, for batches of 20.
shapes = {"x": (20, 1, 8, 8), "target": (20,)}
gk.load("step.onnx").save("step.gkp", shapes=shapes)
gk.load("step_init.onnx").save("step_init.gkp")
