"""Editing of ONNX models in place: the opset, names and all parts that no rewrite touches stay as they are."""
