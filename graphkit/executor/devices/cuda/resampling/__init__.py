"""Kernels that resample along each axis: padding, resizing, and their gradients."""
