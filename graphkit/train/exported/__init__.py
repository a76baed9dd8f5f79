"""The training step as a standard ONNX file, which other runtimes train with."""
