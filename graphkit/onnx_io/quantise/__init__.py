"""Quantise ONNX models after training: QDQ form, dynamic quantisation, or weights only."""
