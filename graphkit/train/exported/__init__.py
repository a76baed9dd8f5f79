"""Export the training step as a standard ONNX file. Other runtimes can train with this file."""
